"""`kstreams recover audit` in memory: clean after crashes, each defect with its place, what is not judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.cli import options, recover
from kstreams_py.errors import UserMistake
from kstreams_py.kafka.contracts import TRANSACTIONAL
from kstreams_py.operations.audit_report import Report, as_fields, describe
from kstreams_py.operations.comparing import Selection, audit
from kstreams_py.processing.environment import Environment
from kstreams_py.records import HASH_HEADER, TopicPartition
from kstreams_py.sinks import SQLite
from kstreams_py.testing import MemoryCluster, MemoryRegistry, TestDriver
from tests.unit.test_dead_letters_command import Unclosed

IN = TopicPartition("in", 0)
JOURNAL = "__ks.g.far.journal[0]"
LOST = "is before the committed position, and has no output and no dead letter"


class Site:
    """A graph in memory, and its audit."""

    def __init__(self, graph: ks.Graph, partitions: int = 2) -> None:
        self.graph, self.registry = graph, MemoryRegistry()
        self.driver = TestDriver(graph, partitions=partitions, registry=self.registry)

    @property
    def cluster(self) -> MemoryCluster:
        return self.driver.cluster

    @property
    def environment(self) -> Environment:
        return Environment(
            self.cluster, self.registry, Settings(), clock=self.cluster.clock, sleep=lambda seconds: None
        )

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self.driver.send(topic, value, partition=partition)

    def audit(self, **selection: Any) -> list[str]:
        """The reports as text."""
        return [describe(each) for each in self.reports(**selection)]

    def reports(self, **selection: Any) -> list[Report]:
        return audit(self.graph, self.environment, Selection(**selection))

    def copy_output(self, topic: str, place: int) -> None:
        """Writes a record of partition 0 once more."""
        m = [each for each in self.cluster.records(topic) if each.partition() == 0][place]
        self.cluster.append(topic, m.value(), m.key(), m.headers(), partition=0)

    def move(self, processor: str, offset: int) -> None:
        """Ends the worker, and sets the position on the first partition of the input."""
        self.driver.crash()
        self.driver.advance(60.0)
        producer = self.cluster.producer(TRANSACTIONAL, "operator")
        producer.init_transactions()
        producer.begin_transaction()
        consumer = self.cluster.consumer(f"g.{processor}", "operator")
        consumer.subscribe(["in"], lambda _: None, lambda: None, lambda: None)
        consumer.consume(1, 0.0)
        producer.send_offsets({IN: offset}, consumer)
        producer.commit_transaction()


def fail_if_bad(value: bytes) -> bytes | None:
    if value == b"bad":
        raise ValueError(value)
    return None if value == b"none" else value


def twice(value: bytes) -> Iterator[bytes]:
    yield value
    yield value


def declare_all() -> ks.Graph:
    """A graph with a processor of each kind, and one that writes to another cluster."""
    graph = ks.Graph("g", errors="dead")
    topic = graph.topic
    graph.map(topic("in"), to=topic("out"), id="copy")(fail_if_bad)
    graph.map(topic("b"), to=topic("out"), id="twice")(twice)
    graph.map(topic("in"), to=[topic("left"), topic("right")], id="fork")(lambda v: {"left": v, "right": v})
    graph.alts(topic("in"), topic("b"), to=topic("alted"), id="alts")(lambda v: v)
    graph.join(topic("left"), topic("right"), to=topic("joined"), id="join")(lambda a, b: a + b)
    graph.map(topic("b"), to=topic("far", cluster="west"), id="far", persistence="journal", errors="far.dead")(
        fail_if_bad
    )
    graph.sink(topic("b"), id="sink")(lambda v: None)
    return graph


ALL_CLEAN = [
    "copy: 8 inputs, 5 outputs, 2 dead letters: clean\n  1 inputs have no output and no dead letter",
    "twice: 6 inputs, 12 outputs, 0 dead letters: clean",
    "fork: 8 inputs, 16 outputs, 0 dead letters: clean",
    "alts: 14 inputs, 14 outputs, 0 dead letters: clean",
    "join: 8 inputs, 8 outputs, 0 dead letters: clean",
    "far: 6 inputs, 5 outputs, 1 dead letters: clean",
    "sink: not audited: it writes no outputs",
]


def sent(site: Site) -> None:
    for number in range(2):
        site.send("in", b"1", b"bad", b"2", b"none" if number else b"3", partition=number)
        site.send("b", b"4", b"bad" if number else b"5", b"6", partition=number)


def test_a_graph_with_all_kinds_is_clean() -> None:
    site = Site(declare_all())
    sent(site)
    site.driver.run()

    assert site.audit() == ALL_CLEAN


def crashes() -> list[Any]:
    site = Site(declare_all())
    sent(site)
    site.driver.run()
    return site.driver.crash_points()[::7]


@pytest.mark.parametrize("point", crashes(), ids=str)
def test_a_graph_that_crashed_is_clean_when_it_has_gone_on(point: Any) -> None:
    site = Site(declare_all())
    sent(site)
    site.driver.crash(point)
    site.driver.advance(60.0)
    site.driver.restart()
    site.driver.run()

    assert site.audit() == ALL_CLEAN


def copier(**options: Any) -> Site:
    """A graph that has copied `in`, three records, to `out`."""
    graph = ks.Graph("g")
    graph.map(graph.topic("in"), to=graph.topic("out"), id="copy", **options)(fail_if_bad)
    site = Site(graph, 1)
    site.send("in", b"1", b"2", b"3")
    site.driver.run()
    return site


READ = "copy: 3 inputs, {} outputs, 0 dead letters: "


def test_a_copy_of_an_output_is_a_duplicate() -> None:
    site = copier()
    site.copy_output("out", 1)

    assert site.audit() == [READ.format(4) + "1 duplicate\n  duplicate: out[0]@4 is one more output of in[0]@1"]


def test_at_least_once_a_copy_is_reported_and_allowed() -> None:
    site = copier(guarantee="at_least_once")
    site.copy_output("out", 1)

    (report,) = site.reports()
    assert describe(report).splitlines()[0] == READ.format(4) + "1 duplicate, which at_least_once allows"
    assert report.is_clean


def test_records_of_others_are_foreign() -> None:
    site = copier()
    site.cluster.append("out", b"x", partition=0)
    site.cluster.append("out", b"x", None, [(HASH_HEADER, bytes(16))], partition=0)
    site.cluster.append("out", b"x", None, [(HASH_HEADER, b"short")], partition=0)

    assert site.audit() == [
        READ.format(3) + "3 foreign\n  foreign: out[0]@4 has no delivery hash\n"
        "  foreign: out[0]@5 has a delivery hash of no step of this graph\n"
        "  foreign: out[0]@6 has a delivery hash of no step of this graph"
    ]


def test_positions_that_are_set_back_and_forward_are_found() -> None:
    site = copier()
    site.move("copy", 1)
    early = "has an output or dead letter, and is not before the committed position"
    assert site.audit() == [
        (
            "copy: 1 inputs, 3 outputs, 0 dead letters: 2 offsets inconsistent\n"
            f"  offsets inconsistent: in[0]@1 {early}\n  offsets inconsistent: in[0]@2 {early}"
        )
    ]
    site.send("in", b"4", b"5")
    site.move("copy", 5)
    assert site.audit(every=True) == [
        f"copy: 5 inputs, 3 outputs, 0 dead letters: 2 lost\n  lost: in[0]@3 {LOST}\n  lost: in[0]@4 {LOST}"
    ]
    assert site.reports()[0].is_clean  # a function may write nothing


def test_outputs_that_are_deleted_are_not_lost() -> None:
    site = copier()
    site.cluster.truncate(TopicPartition("out", 0), 2)

    (report,) = site.reports(every=True)
    assert (report.is_clean, report.unanswered, report.notes) == (
        True, 2, ["lost outputs are not judged: records of out may be deleted"],
    )  # fmt: skip


def test_outputs_of_deleted_inputs_and_of_those_before_a_time_are_not_judged() -> None:
    site = copier()
    site.copy_output("out", 0)
    site.cluster.truncate(IN, 1)
    assert site.audit() == [
        (
            "copy: 2 inputs, 4 outputs, 0 dead letters: clean\n"
            "  2 records not judged: their inputs are not in the range that was read"
        )
    ]
    site.driver.advance(10.0)
    now = int(site.cluster.clock() * 1000)
    site.send("in", b"4")
    site.driver.run()
    assert site.audit(since=now) == [
        (
            "copy: 1 inputs, 5 outputs, 0 dead letters: clean\n"
            "  4 records not judged: their inputs are not in the range that was read"
        )
    ]


def test_a_join_whose_first_inputs_are_deleted_does_not_judge_foreign_outputs() -> None:
    graph = ks.Graph("g")
    graph.join(graph.topic("a"), graph.topic("b"), to=graph.topic("out"), id="join")(lambda a, b: a + b)
    site = Site(graph, 1)
    for topic in ("a", "b"):
        site.send(topic, b"1", b"2", b"3")
    site.driver.run()
    site.cluster.truncate(TopicPartition("a", 0), 1)
    site.copy_output("out", 2)

    assert site.audit() == [
        (
            "join: 2 inputs, 3 outputs, 0 dead letters: 1 duplicate\n"
            "  1 records not judged: their inputs are not in the range that was read\n"
            "  foreign outputs are not judged: the first pairs of the join are not known\n"
            "  duplicate: out[0]@4 is one more output of a[0]@2"
        )
    ]


def test_positions_that_the_journal_of_a_busy_worker_does_not_tell_are_not_judged() -> None:
    site = Site(declare_all())
    sent(site)
    site.driver.run()
    producer = site.cluster.producer(TRANSACTIONAL, "worker")
    producer.init_transactions()
    producer.begin_transaction()
    producer.write([("__ks.g.far.journal", b"", None, 0, None, None, 0, None)])
    producer.flush()

    find = "kstreams transactions find-hanging --topic __ks.g.far.journal --bootstrap-servers 127.0.0.1:9092"
    why = f"far: a transaction hides journal {JOURNAL} from offset 4 on: `{find}` shows whether it hangs"
    assert site.audit(processors=["far"]) == [f"{ALL_CLEAN[5]}\n  outputs before their positions are not judged: {why}"]


def test_outputs_of_a_processor_that_is_not_asked_for_are_not_foreign() -> None:
    site = Site(declare_all())
    sent(site)
    site.driver.run()

    assert site.audit(processors=["twice"]) == [ALL_CLEAN[1]]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hash_header": False}, "its outputs have no delivery hash (hash_header=False)"),
    ],
)
def test_a_processor_that_cannot_be_audited_is_named_with_the_reason(options: Any, reason: str) -> None:
    site = copier(**options)

    assert site.audit() == [f"copy: not audited: {reason}"]


def test_the_rows_of_a_target_are_not_audited() -> None:
    graph = ks.Graph("g")
    target = SQLite("rows.db", table="rows", columns=["value"])
    graph.sink(graph.topic("in"), id="store", to=target)(lambda v: (v,))

    assert Site(graph).audit() == [
        f"store: not audited: its rows are in {target}, which has their delivery hashes or offsets"
    ]


def test_a_processor_and_topics_that_do_not_exist_are_named() -> None:
    site = copier()
    with pytest.raises(UserMistake, match="no processor 'copi': did you mean"):
        site.audit(processors=["copi"])
    empty = Environment(MemoryCluster(), MemoryRegistry(), Settings())
    with pytest.raises(UserMistake, match="missing topics: in, out: run `kstreams topics create`"):
        audit(site.graph, empty, Selection())


def test_an_audit_as_json_has_the_place_of_each_anomaly() -> None:
    site = copier()
    site.copy_output("out", 1)
    (report,) = site.reports()

    assert as_fields(report) == {
        "processor": "copy",
        "guarantee": "exactly_once",
        "skipped": "",
        "inputs": 3,
        "unanswered": 0,
        "outputs": 4,
        "dead_letters": 0,
        "not_judged": 0,
        "clean": False,
        "counts": {"duplicate": 1},
        "notes": [],
        "anomalies": [
            {
                "kind": "duplicate",
                "topic": "out",
                "partition": 0,
                "offset": 4,
                "sentence": "is one more output of in[0]@1",
            }
        ],
    }


def test_the_number_of_anomalies_that_are_shown_is_limited_and_all_are_counted() -> None:
    site = copier()
    for place in (0, 1, 2):
        site.copy_output("out", place)

    (report,) = audit(site.graph, site.environment, Selection(), shown=1)
    assert describe(report) == (
        READ.format(6) + "3 duplicate\n  duplicate: out[0]@4 is one more output of in[0]@0\n  and 2 more"
    )


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs the command on a site."""
    monkeypatch.chdir(tmp_path)

    def run(site: Site, *arguments: str) -> Result:
        monkeypatch.setattr(options, "load", lambda _: site.graph)
        monkeypatch.setattr(options, "KafkaCluster", lambda _: Unclosed(site.cluster))
        monkeypatch.setattr(options, "open_registry", lambda *_: site.registry)
        return CliRunner().invoke(recover.app, ["audit", "app.py", *arguments])

    return run


def test_command_prints_the_reports_and_ends_with_status_1_for_anomalies(command: Callable[..., Result]) -> None:
    site = copier()
    done = command(site)
    assert (done.exit_code, done.stdout) == (0, READ.format(3) + "clean\n")

    site.copy_output("out", 1)
    done = command(site)
    assert (done.exit_code, done.stdout.splitlines()) == (
        1, [READ.format(4) + "1 duplicate", "  duplicate: out[0]@4 is one more output of in[0]@1"],
    )  # fmt: skip
    done = command(site, "--json", "--limit", "0", "--processor", "copy", "--every", "--since", "1970-01-01T00:00")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["counts"], report["anomalies"]) == (1, {"duplicate": 1}, [])


def test_command_allows_what_the_guarantee_allows(command: Callable[..., Result]) -> None:
    site = copier(guarantee="at_least_once")
    site.copy_output("out", 1)

    assert command(site).exit_code == 0


def test_command_refuses_a_processor_that_the_graph_does_not_have(command: Callable[..., Result]) -> None:
    done = command(copier(), "--processor", "nothing")

    assert isinstance(done.exception, UserMistake)
    assert str(done.exception) == "graph 'g' has no processor 'nothing': it has copy"
