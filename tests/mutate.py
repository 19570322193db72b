"""Applies each mutation of the repository, and runs the quick tests of the simulation: one of them must fail.

`python -m tests.mutate [NAME ...]` prints a line for each mutation: by which test it is red, as what, and after how
many seconds. Two run at a time, each in a process of its own. Tests that apply a mutation themselves are left out, but
for those that put a defect back under a unit, contract or ordering test and want it to fail: they are red if they pass.
The exit status is 1 if a mutation is not red and is not in ONLY_LONG.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kstreams_py.errors import KStreamsError
from tests.simulation import mutations_of_jobs, test_grid, test_mutations, test_state
from tests.simulation.mutation import Mutation
from tests.simulation.plan import ALO, AMO

SIMULATION: Final = Path("tests/simulation")

LAST: Final = ("test_state", "test_mutations")
"""Files whose tests see most mutations by a recorded run, or none of them."""

NEVER: Final = ("test_ordering", "test_ordering_failures", "test_replay")
"""Files that apply their own mutations, and one that compares a run with that of a process without the mutation."""

ONLY_LONG: Final[Mapping[str, str]] = {}
"""Mutations that only the long tier can see, each with the reason why."""

THEMSELVES: Final = (
    "tests/unit/test_mutations_of_findings.py",
    "tests/unit/test_mutations_of_records.py",
    "tests/system/test_mutations_on_kafka.py",
    "tests/simulation/test_ordering.py",
    "tests/simulation/test_ordering_failures.py",
)
"""Files of tests that apply a mutation and run a quick test, which must fail."""

JOBS: Final = 2
"""Mutations at a time."""

RED: Final = (AssertionError, KStreamsError, pytest.fail.Exception)
"""What a test fails by that detects a mutation; another exception is one of the mutated code."""

Patch = Callable[[pytest.MonkeyPatch], None]


class Result(NamedTuple):
    """What was seen of a mutation; `test` is "" if it is not red."""

    name: str
    test: str
    seen: str
    seconds: float


def patches() -> dict[str, tuple[Patch, tuple[str, ...]]]:
    """The mutations by name, each with the files of tests that are run first, without `.py`."""
    found = {name: (mutation.apply, _files(mutation)) for name, mutation in test_mutations.MUTATIONS.items()}
    cells = {mutation.__name__: (mutation, ("test_grid", "test_journal")) for mutation, _, _ in test_grid.SEEN_BY}
    states = {name: (patch, ("test_state",)) for name, patch in test_state.MUTATIONS.items()}
    jobs = {name: (patch, ("test_jobs", "test_job_topics")) for name, patch in mutations_of_jobs.MUTATIONS.items()}
    return cells | found | states | jobs


def _files(mutation: Mutation) -> tuple[str, ...]:
    """The files of the family that a mutation is meant for, then those of its guarantee."""
    guarantee = {ALO: "test_at_least_once", AMO: "test_at_most_once"}.get(mutation.guarantee, "test_exactly_once")
    family = {
        "test_sinks": mutation.stores,
        "test_journal": mutation.batch,
        "test_overlap": mutation.order,
        "test_retries": mutation.away,
    }
    return (*(name for name, is_meant in family.items() if is_meant), guarantee, "test_crash_table")


class Mutated:
    """A plugin of pytest: applies a patch once tests are collected, and ends at the first test that detects it."""

    def __init__(self, patch: Patch | None) -> None:
        self.red: tuple[str, str] = "", ""
        self.passed: list[tuple[str, float]] = []
        self._patch = patch
        self.patching = pytest.MonkeyPatch()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out what applies mutations, or with no patch what does not."""
        words = ("mutation", "finding", "left_out") if self._patch is None else ("mutation_", "that_mutations_name")
        items[:] = [item for item in items if (self._patch is None) == any(word in item.name for word in words)]

    def pytest_collection_finish(self) -> None:
        if self._patch is not None:
            self._patch(self.patching)

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        name = item.nodeid.removeprefix("tests/")
        if call.excinfo is None:
            self.passed += [(name, call.duration)] * (call.when == "call")
            return
        error, message = call.excinfo.value, str(call.excinfo.value)
        if isinstance(error, RED) and "\nbroken: " not in message:
            lines = [line for line in message.splitlines() if line and not line.startswith("seed ")]
            self.red = name, f"{type(error).__name__}: {lines[0] if lines else ''}"
            item.session.shouldstop = "red"
        elif not self.red[1]:
            self.red = "", f"not accepted: {error!r}"


def run(patch: Patch | None, files: Iterable[str]) -> Mutated:
    """Runs the quick tests of these files in this process, with a patch."""
    plugin = Mutated(patch)
    logging.disable(logging.CRITICAL)
    arguments = ["-q", "-m", "not long", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=no"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *files]  # modules are imported before
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        pytest.main(arguments, plugins=[plugin])
    plugin.patching.undo()
    return plugin


def try_one(name: str) -> Result:
    """Runs the tests of the simulation with a mutation, file by file, until one is red; recorded runs come last."""
    patch, first = patches()[name]
    others = [file.stem for file in sorted(SIMULATION.glob("test_*.py")) if file.stem not in NEVER]
    since = time.monotonic()
    seen = ""
    for file in dict.fromkeys((*first, *(each for each in others if each not in LAST), *LAST)):
        plugin = run(patch, [f"{SIMULATION / file}.py"])
        seen = plugin.red[1] or seen
        if plugin.red[0]:
            break
    return Result(name, plugin.red[0], seen, time.monotonic() - since)


def try_themselves(file: str) -> list[Result]:
    """Runs the tests of a file that apply mutations themselves."""
    plugin = run(None, [file])
    red = [Result(name.partition("::")[2], name, "by itself", seconds) for name, seconds in plugin.passed]
    failed = [Result(plugin.red[0], "", plugin.red[1], 0.0)] if any(plugin.red) else []
    return red + failed


def main(names: list[str]) -> int:
    """Tries these mutations, or all; prints the table."""
    known = patches()
    if unknown := set(names) - known.keys():
        raise SystemExit(f"no such mutations: {', '.join(sorted(unknown))}")
    wrong = 0

    def show(result: Result) -> None:
        nonlocal wrong
        excused = ONLY_LONG.get(result.name, "")
        wrong += not result.test and not excused
        test = result.test or f"NOT {excused}"
        sys.stdout.write(f"{result.name:<66.66}  {test:<110.110}  {result.seconds:6.1f} s  {result.seen:.90}\n")
        sys.stdout.flush()

    # forked, so that each process begins with all modules imported, and none mutated
    with get_context("fork").Pool(JOBS, maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(try_one, names or known, chunksize=1):
            show(result)
        for results in pool.imap_unordered(try_themselves, () if names else THEMSELVES, chunksize=1):
            for result in results:
                show(result)
    sys.stdout.write(f"{wrong} not red\n")
    return int(wrong > 0)


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent)
    sys.exit(main(sys.argv[1:]))
