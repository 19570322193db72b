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
from kstreams_py.errors import RecoveryUndecidable, SettingsError, UserMistake
from kstreams_py.graph.hashes import hash_prefix, pack_offset
from kstreams_py.kafka.contracts import TRANSACTIONAL, Producer
from kstreams_py.operations.recover import comparison as auditing
from kstreams_py.operations.recover.audit import AuditScope, audit
from kstreams_py.operations.recover.audit_report import AuditReport, as_fields, describe
from kstreams_py.records import HASH_HEADER, TopicPartition
from kstreams_py.sinks import SQLite
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import CrashPoint, MemoryCluster, MemoryRegistry, TestDriver
from tests.unit.test_dead_letters_command import Unclosed

IN = TopicPartition("in", 0)
JOURNAL = "__ks.g.far.journal[0]"
ONLY_LETTERS = "  only dead letters and positions are judged: "
UNANSWERED = "input has no output and no dead letter: dropped, skipped, or with the result None"
LOST = "is before the committed position, and has no output and no dead letter"


def new_transaction(cluster: MemoryCluster, name: str) -> Producer:
    producer = cluster.producer(TRANSACTIONAL, name)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


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
        return Environment(self.cluster, self.registry, Settings(), self.cluster.clock, lambda seconds: None)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self.driver.send(topic, value, partition=partition)

    def audit(self, **selection: Any) -> list[str]:
        """The reports as text."""
        return [describe(each) for each in self.reports(**selection)]

    def reports(self, **selection: Any) -> list[AuditReport]:
        return audit(self.graph, self.environment, AuditScope(**selection))

    def copy_output(self, topic: str, place: int) -> None:
        """Writes a record of partition 0 once more."""
        m = [each for each in self.cluster.records(topic) if each.partition() == 0][place]
        self.cluster.append(topic, m.value(), m.key(), m.headers(), partition=0)

    def begin(self, topic: str, partition: int) -> None:
        """Leaves a transaction open that has a record in this partition."""
        producer = new_transaction(self.cluster, "worker")
        producer.write([(topic, b"", None, partition, None, None, 0, None)])
        producer.flush()

    def move(self, processor: str, offset: int) -> None:
        """Ends the worker, and sets the position on the first partition of the input."""
        self.driver.crash()
        self.driver.advance(60.0)
        producer = new_transaction(self.cluster, "operator")
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
    graph.join(topic("left"), topic("right"), by="order", to=topic("joined"), id="join")(lambda a, b: a + b)
    graph.map(topic("b"), to=topic("far", cluster="west"), id="far", persistence="journal", errors="far.dead")(
        fail_if_bad
    )
    graph.sink(topic("b"), id="sink")(lambda v: None)
    return graph


ALL_CLEAN = [
    f"copy: 8 inputs, 5 outputs, 2 dead letters: clean\n  1 {UNANSWERED}",
    "twice: 6 inputs, 12 outputs, 0 dead letters: clean",
    "fork: 8 inputs, 16 outputs, 0 dead letters: clean",
    "alts: 14 inputs, 14 outputs, 0 dead letters: clean",
    "join: 8 inputs, 8 outputs, 0 dead letters: clean",
    "far: 6 inputs, 5 outputs, 1 dead letter: clean",
    f"sink: 6 inputs, 0 outputs, 0 dead letters: clean\n{ONLY_LETTERS}it writes no outputs",
]


def sent(site: Site) -> None:
    for number in range(2):
        site.send("in", b"1", b"bad", b"2", b"none" if number else b"3", partition=number)
        site.send("b", b"4", b"bad" if number else b"5", b"6", partition=number)


def run_all_kinds() -> Site:
    site = Site(declare_all())
    sent(site)
    site.driver.run()
    return site


def test_a_graph_with_all_kinds_and_one_of_its_processors_are_clean() -> None:
    """Outputs of a processor that is not asked for are not foreign."""
    site = run_all_kinds()
    assert (site.audit(), site.audit(processors=["twice"])) == (ALL_CLEAN, [ALL_CLEAN[1]])


def one_of_each_kind(points: list[CrashPoint]) -> list[CrashPoint]:
    """A point for each kind of request on each cluster, carried out and lost: one in the middle of the run."""
    kinds: dict[Any, list[CrashPoint]] = {}
    for point in points:
        kinds.setdefault((point.request, point.cluster, point.applied), []).append(point)
    return [each[len(each) // 2] for each in kinds.values()]


@pytest.mark.long  # in the quick tier, test_audit.py of a broker
@pytest.mark.parametrize(
    "choose",
    [one_of_each_kind, pytest.param(lambda points: points[::7], marks=pytest.mark.long)],
    ids=["each kind", "each seventh"],
)
def test_a_graph_that_crashed_is_clean_when_it_has_gone_on(
    choose: Callable[[list[CrashPoint]], list[CrashPoint]],
) -> None:
    for point in choose(run_all_kinds().driver.crash_points()):
        site = Site(declare_all())
        sent(site)
        site.driver.crash(point)
        site.driver.advance(60.0)
        site.driver.restart()
        site.driver.run()
        assert site.audit() == ALL_CLEAN, point


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


def test_mutation_of_an_audit_that_looks_for_one_output_finds_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "_REPEATED", 0)
    with pytest.raises(AssertionError):
        test_a_copy_of_an_output_is_a_duplicate()


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
            "copy: 1 input, 3 outputs, 0 dead letters: 2 offsets inconsistent\n"
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
    site, elsewhere = copier(), "their inputs are not in the range that was read"
    site.copy_output("out", 0)
    site.cluster.truncate(IN, 1)
    assert site.audit() == [f"copy: 2 inputs, 4 outputs, 0 dead letters: clean\n  2 records not judged: {elsewhere}"]
    site.driver.advance(10.0)
    now = int(site.cluster.clock() * 1000)
    site.send("in", b"4")
    site.driver.run()
    assert site.audit(since=now) == [
        f"copy: 1 input, 5 outputs, 0 dead letters: clean\n  4 records not judged: {elsewhere}"
    ]


def test_inputs_between_two_times_are_judged_and_others_are_not() -> None:
    """Of a join, too, whose pairs are counted from positions that are later."""
    graph = ks.Graph("g")
    graph.map(graph.topic("a"), to=graph.topic("copied"), id="copy")(fail_if_bad)
    graph.join(graph.topic("a"), graph.topic("b"), by="order", to=graph.topic("out"), id="join")(lambda a, b: a + b)
    site, times = Site(graph, 1), []
    for _ in range(4):
        times.append(int(site.cluster.clock() * 1000))
        for topic in ("a", "b", "a"):
            site.send(topic, b"1")
        site.driver.run()
        site.driver.advance(10.0)
    for topic in ("copied", "out"):
        for place in range(4):
            site.copy_output(topic, place)

    def anomalies(**selection: int) -> list[list[str]]:
        return [[str(each) for each in report.shown] for report in site.reports(**selection)]

    def copies(topic: str, first: int, sources: range) -> list[str]:
        return [f"duplicate: {topic}[0]@{first + at} is one more output of a[0]@{at}" for at in sources]

    firsts = [min(m.offset() for m in site.cluster.records(topic)[-4:]) for topic in ("copied", "out")]
    assert anomalies() == [copies("copied", firsts[0], range(4)), copies("out", firsts[1], range(4))]
    assert anomalies(until=times[1]) == [copies("copied", firsts[0], range(2)), copies("out", firsts[1], range(1))]
    assert anomalies(since=times[1], until=times[2]) == [copies("copied", firsts[0], range(2, 4)), []]
    assert [(each.inputs, each.unjudged) for each in site.reports(until=times[1])] == [(2, 8), (1, 6)]
    assert [(each.inputs, each.unjudged) for each in site.reports(until=times[0])] == [(0, 12), (0, 8)]


def compacted(declare: Callable[[ks.Graph, Any, Any], Any]) -> Site:
    """A processor `p` whose inputs have lost records to compaction, and an output of one of them."""
    graph = ks.Graph("g")
    a, b = (graph.topic(name, config={"cleanup.policy": "compact"}) for name in "ab")
    declare(graph, a, b)
    site = Site(graph, 1)
    for topic in "ab":
        site.cluster.append(topic, b"1", b"key")
    producer = new_transaction(site.cluster, "upstream")
    producer.write([("a", b"2", b"key", 0, None, None, 0, None)])
    producer.abort_transaction()  # leaves a gap in the offsets, as compaction does
    for topic in "ab":
        site.cluster.append(topic, b"3", b"key")
    site.driver.run()
    prefix = hash_prefix("g.p", "a", site.cluster.topics(["a"])["a"].topic_id, 0)
    site.cluster.append("out", b"2", None, [(HASH_HEADER, prefix + pack_offset(1))], partition=0)
    return site


def test_outputs_of_inputs_that_were_compacted_away_are_not_judged() -> None:
    """Nor are the pairs of a join known there."""
    of_map = compacted(lambda graph, a, _: graph.map(a, to=graph.topic("out"), id="p")(lambda v: v))
    of_join = compacted(
        lambda graph, a, b: graph.join(a, b, by="order", to=graph.topic("out"), id="p")(lambda v, w: v + w)
    )

    not_judged = "1 record not judged: its input is not in the range that was read"
    (found,) = of_map.audit(every=True)
    assert found.split("\n  ") == ["p: 2 inputs, 3 outputs, 0 dead letters: clean", not_judged]
    (found,) = of_join.audit(every=True)
    assert found.split("\n  ") == [
        "p: 2 inputs, 2 outputs, 0 dead letters: clean",
        not_judged,
        "foreign outputs are not judged: not all pairs of the join are known",
        "lost outputs are not judged: records of a, b may be deleted",
    ]


def test_a_join_whose_first_inputs_are_deleted_does_not_judge_foreign_outputs() -> None:
    graph = ks.Graph("g")
    graph.join(graph.topic("a"), graph.topic("b"), by="order", to=graph.topic("out"), id="join")(lambda a, b: a + b)
    site = Site(graph, 1)
    for topic in ("a", "b"):
        site.send(topic, b"1", b"2", b"3")
    site.driver.run()
    site.cluster.truncate(TopicPartition("a", 0), 1)
    site.copy_output("out", 2)

    assert site.audit() == [
        (
            "join: 2 inputs, 3 outputs, 0 dead letters: 1 duplicate\n"
            "  1 record not judged: its input is not in the range that was read\n"
            "  foreign outputs are not judged: not all pairs of the join are known\n"
            "  duplicate: out[0]@4 is one more output of a[0]@2"
        )
    ]


def test_positions_that_the_journal_of_a_busy_worker_does_not_tell_are_not_judged() -> None:
    site = run_all_kinds()
    site.begin("__ks.g.far.journal", 0)

    find = "kstreams transactions find-hanging --topic __ks.g.far.journal --bootstrap-servers 127.0.0.1:9092"
    why = f"far: a transaction hides journal {JOURNAL} from offset 4 on: `{find}` shows whether it hangs"
    assert site.audit(processors=["far"]) == [
        f"{ALL_CLEAN[5]}\n  the journal, and outputs before their positions, are not judged: {why}"
    ]


def journaled(partitions: int = 1) -> Site:
    """A graph that has copied `in`, two records of each partition, by a journal."""
    graph = ks.Graph("g")
    graph.map(graph.topic("in"), to=graph.topic("out"), id="copy", persistence="journal")(fail_if_bad)
    site = Site(graph, partitions)
    for number in range(partitions):
        site.send("in", b"1", b"2", partition=number)
    site.driver.run()
    site.driver.crash()
    site.driver.advance(60.0)
    return site


def test_a_journal_that_a_start_refuses_is_found_and_the_rest_is_audited() -> None:
    site = journaled(partitions=2)
    site.cluster.append("__ks.g.copy.journal", b"foreign", partition=1)
    end = site.cluster.ends([TopicPartition("__ks.g.copy.journal", 1)])
    site.copy_output("out", 1)

    (report,) = site.reports()
    site.driver.restart()
    with pytest.raises(RecoveryUndecidable) as raised:
        site.driver.run()
    ((journal, offset),) = end.items()
    assert describe(report) == (
        "copy: 4 inputs, 5 outputs, 0 dead letters: 1 duplicate, 1 undecidable\n"
        "  duplicate: out[0]@3 is one more output of in[1]@0\n"
        f"  undecidable: {journal}@{offset} ends the next start: {raised.value}"
    )
    assert not report.is_clean


def test_a_journal_that_contradicts_what_is_on_another_cluster_is_found() -> None:
    site = run_all_kinds()
    site.driver.crash()
    site.driver.advance(60.0)
    journal = TopicPartition("__ks.g.far.journal", 0)
    end = site.cluster.ends([journal])[journal]
    site.cluster.truncate(journal, end)

    reason = (
        f"far: partition 0: journal {journal}: all its records before offset {end} were deleted, and whether the last "
        "delivery was committed is not known without the newest ones: decide where it goes on, and set it (`kstreams "
        "recover reset GRAPH far`), then start again"
    )
    assert site.audit(processors=["far"]) == [
        (
            "far: 6 inputs, 5 outputs, 1 dead letter: 1 undecidable\n"
            f"  undecidable: {journal}@{end} ends the next start: {reason}"
        )
    ]


def test_a_journal_of_a_busy_worker_is_not_judged() -> None:
    site, journal = journaled(partitions=2), "__ks.g.copy.journal"
    site.begin(journal, 1)

    find = f"kstreams transactions find-hanging --topic {journal} --bootstrap-servers 127.0.0.1:9092"
    why = f"copy: a transaction hides journal {journal}[1] from offset 4 on: `{find}` shows whether it hangs"
    assert site.audit() == [f"copy: 4 inputs, 4 outputs, 0 dead letters: clean\n  the journal is not judged: {why}"]


def test_a_processor_that_cannot_be_audited_is_named_with_the_reason() -> None:
    site = copier(hash_header=False)

    assert site.audit() == ["copy: not audited: its outputs have no delivery hash (hash_header=False)"]


def test_dead_letters_beside_outputs_without_a_hash_are_audited() -> None:
    site = copier(hash_header=False, errors="dead")
    site.send("in", b"bad")
    site.driver.run()
    site.copy_output("dead", 0)
    m = site.cluster.records("dead")[-1]

    assert site.audit(every=True) == [
        (
            f"copy: 4 inputs, 0 outputs, 2 dead letters: 1 duplicate\n{ONLY_LETTERS}its outputs have no delivery hash "
            f"(hash_header=False)\n  duplicate: dead[0]@{m.offset()} is a second dead letter of in[0]@3"
        )
    ]


def stored(**options: Any) -> Site:
    """A graph that has stored the rows of `in`, of which two records fail."""
    graph = ks.Graph("g")
    graph.sink(graph.topic("in"), id="store", **options)(lambda value: (fail_if_bad(value),))
    site = Site(graph, 1)
    site.send("in", b"1", b"bad", b"2", b"bad", b"3")
    site.driver.run()
    return site


def with_target(**options: Any) -> Site:
    return stored(to=SQLite("rows.db", table="rows", columns=["value"]), errors="dead", **options)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: stored(errors="dead"), "it writes no outputs"),
        (lambda: stored(errors="dead", persistence="journal"), "it writes no outputs"),
        (with_target, "its rows are in rows.db: table rows, which has their delivery hashes or offsets"),
    ],
    ids=["sink", "journal", "target"],
)
def test_dead_letters_of_a_sink_are_audited(make: Callable[[], Site], reason: str) -> None:
    site = make()
    clean = f"store: 5 inputs, 0 outputs, 2 dead letters: clean\n{ONLY_LETTERS}{reason}"
    assert site.audit(every=True) == [clean]

    end = site.cluster.ends([TopicPartition("dead", 0)])[TopicPartition("dead", 0)]
    site.copy_output("dead", 0)
    assert site.audit() == [
        (
            f"store: 5 inputs, 0 outputs, 3 dead letters: 1 duplicate\n{ONLY_LETTERS}{reason}\n"
            f"  duplicate: dead[0]@{end} is a second dead letter of in[0]@1"
        )
    ]


def test_positions_of_a_sink_before_its_dead_letters_are_found() -> None:
    site = stored(errors="dead")
    site.move("store", 3)

    assert site.audit() == [
        (
            f"store: 3 inputs, 0 outputs, 2 dead letters: 1 offsets inconsistent\n{ONLY_LETTERS}it writes no outputs\n"
            "  offsets inconsistent: in[0]@3 has an output or dead letter, and is not before the committed position"
        )
    ]


def test_sinks_that_write_nothing_or_whose_target_has_the_offsets_are_not_audited() -> None:
    graph = ks.Graph("g", errors="dead")
    kept, counted = (SQLite("rows.db", table=name, columns=["value"], evidence=name) for name in ("hash", "offsets"))
    graph.sink(graph.topic("in"), id="drop", errors=None)(lambda v: None)
    graph.sink(graph.topic("in"), id="keep", to=kept, errors=None)(lambda v: (v,))
    graph.sink(graph.topic("in"), id="count", to=counted)(lambda v: (v,))

    assert Site(graph).audit() == [
        "drop: not audited: it writes no outputs",
        f"keep: not audited: its rows are in {kept}, which has their delivery hashes or offsets",
        f"count: not audited: its rows are in {counted}, which has their delivery hashes or offsets",
    ]


def test_a_processor_and_topics_that_do_not_exist_are_named() -> None:
    site = copier()
    with pytest.raises(UserMistake, match="no processor 'copi': did you mean"):
        site.audit(processors=["copi"])
    empty = Environment(MemoryCluster(), MemoryRegistry(), Settings())
    with pytest.raises(UserMistake, match="missing topics: in, out: run `kstreams topics create`"):
        audit(site.graph, empty, AuditScope())


def test_an_audit_as_json_has_the_place_of_each_anomaly() -> None:
    site = copier()
    site.copy_output("out", 1)
    (report,) = site.reports()
    sentence = "is one more output of in[0]@1"

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
        "anomalies": [{"kind": "duplicate", "topic": "out", "partition": 0, "offset": 4, "sentence": sentence}],
    }


def test_the_number_of_anomalies_that_are_shown_is_limited_and_all_are_counted() -> None:
    site = copier()
    for place in (0, 1, 2):
        site.copy_output("out", place)

    (report,) = audit(site.graph, site.environment, AuditScope(), shown=1)
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


def test_at_least_once_a_copy_is_reported_and_allowed(command: Callable[..., Result]) -> None:
    site = copier(guarantee="at_least_once")
    site.copy_output("out", 1)

    (report,) = site.reports()
    assert describe(report).splitlines()[0] == READ.format(4) + "1 duplicate, which at_least_once allows"
    assert (report.is_clean, command(site).exit_code) == (True, 0)


def test_command_refuses_a_range_that_ends_before_it_begins(command: Callable[..., Result]) -> None:
    done = command(copier(), "--since", "1h", "--until", "2h")

    assert isinstance(done.exception, SettingsError)
    assert str(done.exception) == "--until 2h is not after --since 1h: there are no inputs between them"
    done = command(copier(), "--until", "2001-01-01T00:00", "--json")
    assert (done.exit_code, json.loads(done.stdout)["not_judged"]) == (0, 3)


def test_command_refuses_a_processor_that_the_graph_does_not_have(command: Callable[..., Result]) -> None:
    done = command(copier(), "--processor", "nothing")

    assert isinstance(done.exception, UserMistake)
    assert str(done.exception) == "graph 'g' has no processor 'nothing': it has copy"
