"""The demo's own tools: what is expected, what is found, and that one row too few or too many is seen."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from rich.console import Console

from kstreams_py.config import Settings
from kstreams_py.delivery import hash_prefix, pack_offset
from kstreams_py.demo import data, flights_graph, report, screen, traffic
from kstreams_py.demo import flights as demo
from kstreams_py.demo.checks import Check, Deliveries, Difference, Found, difference, exit_status, judge
from kstreams_py.demo.data import FIELDS, Expected, Row
from kstreams_py.demo.flights_graph import airports, flights, graph
from kstreams_py.demo.results import Results
from kstreams_py.demo.traffic import Kill, Kills, Loader, Progress, Traffic, Watch
from kstreams_py.engine.topics import check_topics, create_topics
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.ports.registry import FileRegistry
from kstreams_py.ports.sinks import SqliteTable
from kstreams_py.record import TopicPartition
from kstreams_py.testing import MemoryLog


def row(number: int, **changed: Any) -> Row:
    """A departure like no other."""
    usual = {
        "year": 2013, "month": 1 + number % 2, "day": 1, "dep_time": 600, "sched_dep_time": 555, "dep_delay": 5,
        "arr_time": 800, "sched_arr_time": 750, "arr_delay": number, "carrier": "UA" if number % 3 else "DL",
        "flight": number, "tailnum": f"N{number % 5}", "origin": ("EWR", "JFK", "LGA")[number % 3], "dest": "ORD",
        "air_time": 90, "distance": 733, "hour": 5, "minute": 55, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    return tuple((usual | changed)[name] for name in FIELDS)


def rows() -> list[Row]:
    """Thirty departures: 25 departed, 3 cancelled (one without a tail number), 2 without an arrival delay."""
    cancelled = [row(n, dep_time=None, dep_delay=None, arr_time=None, arr_delay=None) for n in (100, 101)]
    nameless = row(102, dep_time=None, dep_delay=None, arr_time=None, arr_delay=None, tailnum=None)
    return [*map(row, range(25)), *cancelled, nameless, row(103, arr_delay=None), row(104, arr_delay=None)]


# What is expected.


def test_data_rows_are_read_in_the_files_order_with_none_for_na() -> None:
    found = data.read(839)
    assert (len(found), found[0], found[838]) == (
        839,
        (2013, 1, 1, 517, 515, 2, 830, 819, 11, "UA", 1545, "N14228", "EWR", "IAH", 227, 1400, 5, 15,
         "2013-01-01T10:00:00Z"),
        (2013, 1, 1, None, 1630, None, None, 1815, None, "EV", 4308, "N18120", "EWR", "RDU", None, 416, 16, 30,
         "2013-01-01T21:00:00Z"),
    )  # fmt: skip


def test_data_carriers_have_names() -> None:
    assert data.carriers()["UA"] == "United Air Lines Inc."


def test_data_what_must_become_of_each_row_is_computed_from_the_rows() -> None:
    expected = data.expect(rows())
    assert {outcome: sorted(r[FIELDS.index("flight")] for r in found) for outcome, found in expected.rows.items()} == {
        "departed": [*range(25)],
        "cancelled": [100, 101, 102],
        "errors": [103, 104],
    }
    assert (expected.records, expected.without_tail_number) == (30, 1)
    assert expected.delays == {
        ("DL", 1): (5, 12.0), ("DL", 2): (4, 12.0), ("UA", 1): (8, 12.0), ("UA", 2): (8, 12.0),
    }  # fmt: skip


# What is found.


def perfect(expected: Expected) -> Found:
    """A run in which nothing went wrong."""
    return Found(
        inputs=expected.records,
        merged=expected.records,
        without_key=expected.without_tail_number,
        rows=expected.rows,
        deliveries=Difference(),
        disorder=0,
        stored=expected.rows["departed"],
        delays=expected.delays,
    )


def failing(expected: Expected, found: Found) -> dict[str, tuple[int, int]]:
    """Expected and found of each check that does not hold."""
    return {check.what: (check.expected, check.found) for check in judge(expected, found) if not check.ok}


def without(rows: Counter[Row], number: int) -> Counter[Row]:
    return rows - Counter([row(number)])


def test_checks_of_a_perfect_run_all_hold() -> None:
    expected = data.expect(rows())
    checks = judge(expected, perfect(expected))
    assert [(check.what, check.expected, check.found) for check in checks] == [
        ("departures read", 30, 30),
        ("merged from three airports", 30, 30),
        ("departed", 25, 25),
        ("cancelled", 3, 3),
        ("dead letters", 2, 2),
        ("without a tail number, so without a key", 1, 1),
        ("lost", 0, 0),
        ("duplicated", 0, 0),
        ("altered", 0, 0),
        ("out of order", 0, 0),
        ("deliveries lost, by delivery hash", 0, 0),
        ("deliveries repeated, by delivery hash", 0, 0),
        ("rows in SQLite", 25, 25),
        ("rows in SQLite that differ from the file", 0, 0),
        ("rows of Spark's table (carrier and month)", 4, 4),
        ("rows of Spark's table that differ from the file", 0, 0),
    ]
    assert exit_status(checks) == 0


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        pytest.param(
            lambda f: replace(f, rows={**f.rows, "departed": without(f.rows["departed"], 7)}),
            {"departed": (25, 24), "lost": (0, 1)},
            id="a row is missing",
        ),
        pytest.param(
            lambda f: replace(f, rows={**f.rows, "departed": f.rows["departed"] + Counter([row(7)])}),
            {"departed": (25, 26), "duplicated": (0, 1)},
            id="a row is doubled",
        ),
        pytest.param(
            lambda f: replace(f, rows={**f.rows, "departed": without(f.rows["departed"], 7) + Counter([row(8)])}),
            {"lost": (0, 1), "duplicated": (0, 1)},
            id="a row is there instead of another",
        ),
        pytest.param(
            lambda f: replace(
                f, rows={**f.rows, "departed": without(f.rows["departed"], 7) + Counter([row(7, day=2)])}
            ),
            {"lost": (0, 1), "altered": (0, 1)},
            id="a row has another value",
        ),
        pytest.param(
            lambda f: replace(f, stored=without(f.stored, 7)),
            {"rows in SQLite": (25, 24), "rows in SQLite that differ from the file": (0, 1)},
            id="a row is missing in SQLite",
        ),
        pytest.param(
            lambda f: replace(f, delays={**f.delays, ("UA", 1): (8, 12.5)}),
            {"rows of Spark's table that differ from the file": (0, 2)},
            id="Spark has another mean",
        ),
        pytest.param(
            lambda f: replace(f, delays={key: value for key, value in f.delays.items() if key != ("UA", 1)}),
            {
                "rows of Spark's table (carrier and month)": (4, 3),
                "rows of Spark's table that differ from the file": (0, 1),
            },
            id="Spark lacks a group",
        ),
        pytest.param(
            lambda f: replace(f, deliveries=Difference(lost=1, duplicated=2, alien=3), disorder=4),
            {
                "out of order": (0, 4),
                "deliveries lost, by delivery hash": (0, 1),
                "deliveries repeated, by delivery hash": (0, 5),
            },
            id="deliveries are wrong",
        ),
    ],
)
def test_checks_one_thing_wrong_is_seen_and_gives_exit_status_1(
    spoil: Callable[[Found], Found], seen: dict[str, tuple[int, int]]
) -> None:
    expected = data.expect(rows())
    spoiled = spoil(perfect(expected))
    assert failing(expected, spoiled) == seen
    assert exit_status(judge(expected, spoiled)) == 1


def test_checks_a_difference_counts_lost_duplicated_and_alien() -> None:
    assert difference(Counter("aabc"), Counter("abbbx")) == Difference(lost=2, duplicated=2, alien=1)
    assert difference(Counter("ab"), Counter("ba")) == Difference()


def test_checks_deliveries_are_compared_by_source_and_offset() -> None:
    deliveries = Deliveries()
    one, other = b"source-1", b"source-2"
    for offset in range(5):
        deliveries.expect(one, offset)
        deliveries.expect(other, offset)
    for offset in (0, 1, 3, 2, 4):
        deliveries.saw("here", one + pack_offset(offset))
    for offset in (0, 1, 1, 4, 9):
        deliveries.saw("here", other + pack_offset(offset))
    assert deliveries.difference() == Difference(lost=2, duplicated=1, alien=1)
    assert deliveries.disorder() == 1, "only offset 2 of the first source came late"


# From the topics to the table.


class Run:
    """The demo's graph over the thirty departures, in one thread, on a log in memory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = SqliteTable(directory / "flights.sqlite", "departed", FIELDS)
        monkeypatch.setattr(flights_graph, "DATABASE", self.table)
        self.log = MemoryLog()
        self.registry = FileRegistry(directory / "schemas")
        create_topics(graph, self.log)
        self.topics = check_topics(graph, self.log)
        self.partitions = [
            TopicPartition(name, p) for name, info in self.topics.items() for p in range(info.partitions)
        ]
        self.loader = Loader(self.log, self.registry, graph, rows(), 0.001)

    def work(self) -> None:
        around = Surroundings(self.log, self.registry, Settings(), self.log.clock, self.log.clock.advance)  # type: ignore[attr-defined]
        for processor in graph.processors:
            worker = Worker(graph, processor, 0, around, Event())
            worker.start()
            for _ in range(20):
                worker.step()
            worker.session.end()
            worker.consumer.close()

    def found(self) -> Found:
        results = Results(graph, self.topics, self.registry, rows())
        results.read(self.log)
        results.take_stored(self.table.rows())
        return results.found([t.name for t in airports], flights.name, data.expect(rows()).delays)


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run(tmp_path, monkeypatch)
    run.loader.run(Event())
    run.work()
    return run


def test_results_of_a_run_are_found_as_they_are(finished: Run) -> None:
    assert finished.loader.done
    assert failing(data.expect(rows()), finished.found()) == {}


def test_results_a_record_written_twice_is_seen_by_row_and_by_delivery_hash(finished: Run) -> None:
    again = finished.log.records("flights.departed")[0]
    finished.log.append("flights.departed", again.value(), again.key(), again.headers(), partition=again.partition())
    seen = failing(data.expect(rows()), finished.found())
    assert seen.pop("out of order") == (0, 1), "it came after others of its partition"
    assert seen == {
        "departed": (25, 26),
        "duplicated": (0, 1),
        "deliveries repeated, by delivery hash": (0, 1),
        "deliveries lost, by delivery hash": (0, 1),  # the sink has not stored the copy
    }


def test_results_a_record_under_another_key_counts_as_altered(finished: Run) -> None:
    last = finished.log.records("flights.cancelled")[-1]  # of its partition too: the order stays
    finished.log.append("flights.cancelled", last.value(), b"N-other", last.headers(), partition=last.partition())
    assert failing(data.expect(rows()), finished.found()) == {
        "cancelled": (3, 4),
        "altered": (0, 1),
        "deliveries repeated, by delivery hash": (0, 1),
    }


def test_results_a_delivery_that_no_record_explains_is_seen(finished: Run) -> None:
    source = hash_prefix("flights.store", "flights.departed", "another topic of this name", 0)
    finished.table.insert([(source + pack_offset(0), *row(0))])
    assert failing(data.expect(rows()), finished.found()) == {
        "rows in SQLite": (25, 26),
        "rows in SQLite that differ from the file": (0, 1),
        "deliveries repeated, by delivery hash": (0, 1),
    }


# What goes on around the workers.


def test_watch_counts_what_is_committed_and_knows_when_the_graph_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)
    watch = Watch(run.log, run.partitions)
    progress = Progress(run.log, graph, run.partitions, watch)
    run.loader.run(Event())
    while watch.look():
        assert not progress.complete()
    assert watch.counts == {"flights.ewr": 10, "flights.jfk": 10, "flights.lga": 10}
    run.work()
    assert not progress.complete(), "the watch has not seen the outcomes"
    while watch.look():
        pass
    assert watch.counts["flights"] == 30
    assert sum(n for _, topic, n in watch.arrivals if topic == "flights.departed") == 25
    assert progress.complete()
    progress.close()


def test_kills_of_one_seed_meet_the_same_slots_at_the_same_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(traffic.os, "kill", lambda pid, signum: sent.append((pid, signum)))

    def story(seed: int) -> list[tuple[int, int]]:
        kills, told, pids = Kills(5, 1000, seed), [], {0: 100, 1: 200, 2: 300}
        for done in range(1001):
            kill = kills.look(done, pids)
            if kill is not None:
                told.append((done, kill.slot))
                pids = {**pids, kill.slot: kill.pid + 1}
        assert (kills.left, len(kills.done)) == (0, 5)
        return told

    assert story(1) == story(1)
    assert story(1) != story(2)
    assert all(50 <= done <= 970 for done, _ in story(3))
    assert {signum for _, signum in sent} == {signal.SIGKILL}


def test_kills_of_a_process_that_has_just_ended_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int, signum: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(traffic.os, "kill", gone)
    kills = Kills(1, 100, 1)
    assert kills.look(100, {0: 11}) is None
    assert (kills.left, kills.done) == (1, [])


def test_kills_wait_for_a_worker_that_was_not_killed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic.os, "kill", lambda pid, signum: None)
    kills = Kills(3, 100, 1)
    first = kills.look(100, {0: 11})
    assert first is not None
    assert kills.look(100, {0: 11}) is None, "it is dead, and not restarted yet"
    assert kills.look(100, {}) is None
    second = kills.look(100, {0: 12})
    assert second is not None
    assert (first.pid, second.pid, kills.left) == (11, 12, 1)


# What is shown.


def shown(checks: list[Check], *, arrivals: int = 40, kills: int = 3) -> report.Run:
    seen = [(100.0 + n / 2, topic, 5) for n in range(arrivals) for topic in ("flights", "flights.departed")]
    killed = [Kill(100.0 + 5 * n, n, 1000 + n) for n in range(kills)]
    expected = data.expect(rows())
    return report.Run(graph, checks, Traffic(100.0, seen, killed, 1.25), expected.delays, data.carriers(), 7, 3, 61.0)


def test_report_needs_no_other_file_and_says_what_was_found() -> None:
    expected = data.expect(rows())
    page = report.page(shown(judge(expected, perfect(expected))))
    text = page.replace("&nbsp;", " ")
    assert "<h1>30 departures, 3 kills, none lost, none doubled</h1>" in text
    assert "--kills 3 --seed 7" in text
    assert "United Air Lines Inc." in text
    assert page.count("<svg") == 3
    assert not re.findall(r'(?:src|href)="(?!#)|url\((?!#)|@import|<script', page)
    assert not re.findall(r"#0000[a-f0-9]{2}\b", page), "every stand-in became a colour of the style sheet"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_report_says_when_checks_failed() -> None:
    expected = data.expect(rows())
    spoiled = replace(perfect(expected), stored=Counter(), disorder=3)
    page = report.page(shown(judge(expected, spoiled))).replace("&nbsp;", " ")
    assert "<h1>30 departures, 3 kills, 3 of 16 checks failed</h1>" in page
    assert page.count('<tr class="wrong">') == 3


def test_report_of_a_run_without_kills_or_outcomes_is_drawn() -> None:
    expected = data.expect(rows())
    empty = replace(shown(judge(expected, perfect(expected)), arrivals=0, kills=0), delays={})
    assert report.page(empty).count("<svg") == 3


def test_screen_lists_every_check_in_plain_text() -> None:
    out = io.StringIO()
    checks = [Check("departed", 1234, 1234), Check("lost", 0, 2)]
    screen.Screen(Console(file=out, width=60)).table(checks)
    assert [line.split() for line in out.getvalue().splitlines() if line.strip()] == [
        ["what", "expected", "found"],
        ["ok", "departed", "1,234", "1,234"],
        ["WRONG", "lost", "0", "2"],
    ]


# What may be missing.


def test_demo_without_its_libraries_says_what_to_install() -> None:
    script = "import sys; sys.modules['matplotlib'] = None; from kstreams_py.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "demo", "flights"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "error: MissingSoftware: matplotlib is not installed: run pip install 'kstreams_py[demo]'",
    )


def test_demo_without_the_flights_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingSoftware, match=r"^the flights are not installed: run pip install 'kstreams_py\[demo\]'$"
    ):
        data.read(1)


def test_demo_into_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file/shown cannot be written .*: name another with --output$"):
        demo._prepared(tmp_path / "file" / "shown")


def test_demo_replaces_what_an_earlier_run_left_and_nothing_else(tmp_path: Path) -> None:
    for name in ("report.html", "run.log", "flights.sqlite", "flights.sqlite-wal", "mine.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "delays.parquet").mkdir()
    (tmp_path / "delays.parquet" / "part").write_text("")
    assert demo._prepared(tmp_path) == tmp_path.resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
