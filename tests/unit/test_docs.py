"""Code of documents passes, or is that of examples which pass: pages testing, delivery, sinks, channels and retries."""

from __future__ import annotations

import ast
import operator
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings, embedded, sinks, sources, testing
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.graph.source import SourceStatus
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.dead_letters.text import Describer, groups_as_text
from kstreams_py.operations.sources import RefusedInputs, inspect_sources, show_counts
from kstreams_py.processing.dead_letters.letters import group
from kstreams_py.processing.journal.records import RecordType
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import History, Kind, MemoryCluster, MemoryRegistry, TestDriver
from tests.unit.users_tests import run_tests

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
DELIVERY = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"


def named_blocks(text: str) -> dict[str, str]:
    """The Python blocks of a document by their file names."""
    return dict(re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", text, flags=re.DOTALL))


def test_code_blocks_of_the_document_are_the_example_files() -> None:
    examples = {
        path.name: path.read_text(encoding="utf-8").split('"""\n\n', 1)[1] for path in (EXAMPLES / "tests").glob("*.py")
    }
    assert examples == named_blocks(TEXT)


@pytest.mark.parametrize(("page", "name"), [("sinks", "items.py"), ("channels", "enrich.py"), ("retries", "rates.py")])
def test_graph_of_a_page_is_the_recipe(page: str, name: str) -> None:
    recipe = (EXAMPLES / "recipes" / name).read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert named_blocks((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")) == {name: recipe}


def test_commands_of_the_page_of_channels_show_refused_rows_and_give_them_back(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "channels.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```text\norders  shop.db: table orders: (.*)\n  refused: (.*)\n```", page)
    graph, prices = ks.Graph("enrich"), dict[str, int]()
    orders = graph.source("orders", sources.SQLite(tmp_path / "shop.db", table="orders", key="id", ends=True))

    def price(order: dict[str, Any]) -> tuple[int, int]:
        if order["item"] not in prices:
            raise LookupError(f"no price of {order['item']!r}: status 404")
        return order["id"], prices[order["item"]]

    graph.sink(orders, to=sinks.SQLite(tmp_path / "priced.db", table="priced", columns=["id", "cents"]))(price)
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        shop.execute("INSERT INTO orders VALUES (3, 'gear')")
    ks.start(graph).wait()
    status = inspect_sources(graph, 10)["orders"].status
    assert status is not None
    assert (show_counts(status), *(f"{each.key}  {each.reason}" for each in status.shown)) == printed
    prices["gear"] = 7
    assert RefusedInputs(graph, None).retry(None) == 1
    ks.start(graph).wait()
    assert inspect_sources(graph, 10)["orders"].status == SourceStatus()
    with closing(sqlite3.connect(tmp_path / "priced.db")) as priced:
        assert priced.execute("SELECT id, cents FROM priced").fetchall() == [(3, 7)]


def test_examples_pass_at_each_branch_and_more_than_50_crash_points(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "shop.py", tmp_path)
    (tmp_path / "tests").mkdir()
    for name in ("test_shop.py", "test_departures.py", "test_departures_on_peers.py"):
        shutil.copy(EXAMPLES / "tests" / name, tmp_path / "tests")
    blocks = named_blocks(DELIVERY)
    assert blocks.keys() == {
        f"{test}{name}.py" for name in ("payments", "mirror", "prices", "orders") for test in ("", "test_")
    }
    for name, text in blocks.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert run_tests(tmp_path) > 50 + 8 + 20


def strings_of_the_code() -> set[str]:
    """The strings of the code that messages are made of, in pieces between what is filled in."""
    nodes = (node for path in (ROOT / "kstreams_py").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    strings = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {piece for text in strings for piece in re.split(r"%(?:\.\d+)?[a-z]|\n", text) if len(piece) >= 8}


def test_messages_that_pages_print_are_those_of_the_code() -> None:
    """What is filled in has no four words in a row; a message whose words were changed in the code has."""
    printed = {
        f"{path.name}: {message}": " ".join(message.split())
        for path in sorted((ROOT / "docs").glob("*.md"))
        if path.name != "tutorial.md"  # see below
        for block in re.findall(
            r"^ *```text\n(.*?)^ *```", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for message in re.split(
            r"\n(?= *(?:error|INFO|WARNING|[a-z]+: [a-z]+\.[a-z]+\[|the outputs |set these))", block
        )
    }
    assert sum(text.startswith(("error: ", "WARNING ")) for text in printed.values()) == 11
    pieces = strings_of_the_code()
    unknown = dict[str, list[str]]()
    for name, text in printed.items():
        left = [False] * len(text)
        for piece in pieces:
            for found in re.finditer(re.escape(piece), text) if piece in text else ():
                left[found.start() : found.end()] = [True] * len(piece)
        rest = "".join("\0" if is_known else char for is_known, char in zip(left, text, strict=True))
        if words := re.findall(r"[a-z`-]+(?: [a-z`-]+){3,}", rest):
            unknown[name] = words
    assert unknown == {}


def tutorial_outputs() -> dict[str, str]:
    """What the tutorial prints, by the last command before it."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n([^`]*)\n```\n\n```text\n(.*?)```", text, flags=re.DOTALL)
    return {commands.split("\n")[-1]: without_times(output) for commands, output in blocks}


def without_times(text: str) -> str:
    """Text without times, delivery hashes and the calls of a traceback."""
    text = re.sub(r"(?<=last\):\n).*(?=\n  \| KeyError)", "  ...", text, flags=re.DOTALL)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]{8}Z|\b[0-9a-f]{32}\b", "-", text)


def test_dead_letter_of_the_tutorial_is_printed_as_its_commands_print_it() -> None:
    names: dict[str, Any] = {}
    exec(named_blocks((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))["weather.py"], names)
    registry = MemoryRegistry()
    with TestDriver(names["graph"], partitions=4, registry=registry) as driver:
        # as send.py does
        for station, reading in (
            ("oslo", {"fahrenheit": 68}),
            ("lima", {"fahrenheit": 77}),
            ("turku", {"kelvin": 293.15}),
        ):
            driver.send("weather.readings", reading, key=station)
        driver.run()
        environment = Environment(driver.cluster, registry, Settings(), driver.clock)
        (letter,) = LetterReader(names["graph"], environment).letters()
    listed = groups_as_text(group([(letter, None)]))
    shown = Describer(names["graph"], registry).as_text(letter)
    printed = tutorial_outputs()
    assert printed["kstreams dead-letters list weather.py"] == without_times(listed) + "\n"
    assert printed["kstreams dead-letters show weather.py"] == without_times(shown) + "\n"


def test_document_names_each_record_of_a_journal() -> None:
    assert set(re.findall(r"`(snapshot|snapshot-\w+|attempt-\w+)`", DELIVERY)) == set(RecordType)


def test_each_peer_has_the_version_that_was_read_and_its_date() -> None:
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    rows = page.partition("its date |\n|---|---|---|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) == 10
    assert [row for row in rows if not re.search(r"\d+\.\d+\.\d+, .*\w 20\d\d \|$", row)] == []


def test_document_names_all_anomalies_and_only_calls_that_exist() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| ", TEXT.split("| anomaly | means | cannot be seen |")[1], flags=re.MULTILINE)
    assert sorted(rows) == sorted(Kind)
    cluster = MemoryCluster()
    named = re.findall(r"`cluster\.((?:faults\.)?\w+)", TEXT)
    assert len(named) == 5
    for name in named:
        assert operator.attrgetter(name)(cluster) is not None, name
    called = {name for name in re.findall(r"`(\w+)\(", TEXT) if not name[0].isupper()}
    known = {*dir(TestDriver), *vars(testing.Peers), *vars(History), *vars(EmbeddedKafka), *vars(testing)}
    assert called - known == {"produce"}
    assert set(re.findall(r"`([A-Z][a-z]\w+)\(", TEXT)) <= {*testing.__all__, *embedded.__all__}
