"""The page of the tests (tests/README.md): each promise has a test in both tiers, and its mutation exists."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from _pytest.mark.structures import Mark, ParameterSet

from tests import mutate

TESTS = Path(__file__).parent

ROW = re.compile(
    r"^\| (?P<promise>[^|]+) \| `(?P<quick>test_\w+)` \| `(?P<long>test_\w+)` \| (?P<mutation>[^|]+) \|$", re.MULTILINE
)


@cache
def files_of_tests() -> dict[str, Path]:
    """The file of each test, by its name."""
    found = dict[str, Path]()
    for path in TESTS.rglob("test_*.py"):
        found |= dict.fromkeys(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE), path)
    return found


@cache
def tiers_of(name: str) -> set[str]:
    """The tiers in which a test has a case."""
    module = import_module(".".join(files_of_tests()[name].relative_to(TESTS.parent).with_suffix("").parts))
    test = getattr(module, name)
    assert isinstance(test, FunctionType)
    of_module: Any = getattr(module, "pytestmark", [])
    marks: list[Mark] = [*getattr(test, "pytestmark", []), *(of_module if isinstance(of_module, list) else [of_module])]
    if any(mark.name == "long" for mark in marks):
        return {"long"}
    tiers = {"quick"}
    for mark in marks:
        if mark.name == "parametrize":
            cases = list(mark.args[1])
            long = [each for each in cases if isinstance(each, ParameterSet) and "long" in {m.name for m in each.marks}]
            tiers = ({"long"} if len(long) == len(cases) else tiers | {"long"}) if long else tiers
    return tiers


def rows() -> list[dict[str, str]]:
    return [match.groupdict() for match in ROW.finditer((TESTS / "README.md").read_text(encoding="utf-8"))]


def test_page_of_the_tests_has_each_promise_in_both_tiers() -> None:
    found = rows()
    assert len(found) > 55
    assert {name for row in found for name in (row["quick"], row["long"])} - files_of_tests().keys() == set()
    assert [row["promise"] for row in found if "quick" not in tiers_of(row["quick"])] == []
    assert [row["promise"] for row in found if "long" not in tiers_of(row["long"])] == []


def test_mutations_on_the_page_of_the_tests_exist() -> None:
    without = [row["promise"] for row in rows() if row["mutation"] == "-"]
    assert without == ["The commands of README run as printed"], "the test runs the page itself"
    named = {row["mutation"].strip("`") for row in rows()} - {"-"}
    assert named - mutate.patches().keys() - files_of_tests().keys() == set()
