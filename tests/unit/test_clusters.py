"""Topics on another cluster: what is declared and refused, and how a start decides between two clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import BrokerUnavailable, GraphError, RecoveryUndecidable, Retriable, TopicError, UserMistake
from kstreams_py.kafka.contracts import Output, Producer, ProducerMode
from kstreams_py.operations.transactions.hanging import topics_of
from kstreams_py.processing.journal import deliveries
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.journal.records import (
    Attempt,
    OutputPlace,
    RecordType,
    Snapshot,
    attempt_record,
    forgotten_record,
    snapshot_record,
)
from kstreams_py.processing.tasks.choices import InputStart
from kstreams_py.processing.topics import check_topics, create_topics, find_topics
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import MemoryCluster, MemoryRegistry, TestDriver

# The declaration.


@pytest.fixture
def graph() -> ks.Graph:
    return ks.Graph("g")


def declare(graph: ks.Graph, cluster: str = "west", **options: Any) -> None:
    graph.map(graph.topic("in"), to=graph.topic("out", cluster=cluster), id="p", **options)(lambda value: value)


def test_processor_that_writes_elsewhere_has_a_journal_and_its_dead_letters_there(graph: ks.Graph) -> None:
    declare(graph, errors="dead")
    (processor,) = graph.processors
    assert (processor.journal, processor.cluster, graph.delivered(processor)) == (
        ks.Journal(), "west", "__ks.g.p.delivered",
    )  # fmt: skip
    assert processor.written == ("out", "dead")
    assert {name: topic.cluster for name, topic in graph.topics.items()} == {"in": "", "out": "west", "dead": "west"}
    assert "  out   key Bytes(), value Bytes(), cluster west" in graph.describe()
    assert topics_of(graph) == {
        "in", "__ks.g.p.journal", "__ks.g.beginnings", "__ks.g.replayed", "__consumer_offsets",
    }  # fmt: skip


def test_topic_of_dead_letters_that_is_declared_later_stays_on_its_cluster(graph: ks.Graph) -> None:
    declare(graph, errors="dead")
    assert graph.topic("dead", partitions=3).cluster == "west"


@pytest.mark.parametrize("shared", [False, True], ids=["declared", "of another processor"])
def test_sink_whose_dead_letters_are_elsewhere_has_a_journal(graph: ks.Graph, shared: bool) -> None:
    """They are all that it writes."""
    if shared:
        declare(graph, errors="dead")
    else:
        graph.topic("in")
        graph.topic("dead", value=ks.dead_letters(), cluster="west")
    graph.sink("in", id="store", errors="dead")(print)
    processor = graph.processors[-1]
    assert (processor.journal, processor.cluster, graph.delivered(processor)) == (
        ks.Journal(), "west", "__ks.g.store.delivered",
    )  # fmt: skip


def test_sink_whose_dead_letters_are_elsewhere_makes_each_once(graph: ks.Graph) -> None:
    def refuse(value: bytes) -> None:
        raise ValueError(value)

    graph.topic("dead", value=ks.dead_letters(), cluster="west")
    graph.sink(graph.topic("in"), id="store", errors="dead")(refuse)
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        driver.send("in", b"two")
        driver.crash("commit_transaction", cluster="west")
        driver.restart()
        driver.run()
        assert [letter["inputs"][0]["value"] for letter in driver.values("dead")] == [b"one", b"two"]


def stores_rows(graph: ks.Graph) -> None:
    graph.topic("dead", value=ks.dead_letters(), cluster="west")
    target = ks.PostgreSQL("postgresql://u:p@db:5432/d", table="t", columns=("a",))
    graph.sink(graph.topic("in"), to=target, id="p", errors="dead")(lambda value: value)


def keeps_no_journal(graph: ks.Graph) -> None:
    graph.topic("dead", value=ks.dead_letters(), cluster="west")
    graph.sink(graph.topic("in"), id="p", errors="dead", persistence="transaction")(print)


def reads_there(graph: ks.Graph) -> None:
    declare(graph)
    graph.map("out", to=graph.topic("more"), id="q")(lambda value: value)


def writes_to_both(graph: ks.Graph) -> None:
    here, there = graph.topic("here"), graph.topic("out", cluster="west")
    graph.map(graph.topic("in"), to=[there, here], id="p")(lambda value: {})


def shares_dead_letters(graph: ks.Graph) -> None:
    declare(graph, errors="dead")
    graph.map("in", to=graph.topic("here"), id="q", errors="dead")(lambda value: value)


def inherits_dead_letters(_: ks.Graph) -> None:
    declare(ks.Graph("g", errors="dead"))


def moves_dead_letters(graph: ks.Graph) -> None:
    declare(graph, errors="dead")
    graph.topic("dead", cluster="east")


APART: Final = (
    "processor {} writes to {} and its dead letters, 'dead', to {}, and no transaction spans both: give it "
    "errors=None, or the name of another topic, which is then on the cluster of its outputs"
)
JOURNAL_NEEDED: Final = (
    "processor 'p' writes to {} on cluster 'west', and no transaction spans two clusters: leave persistence out, or "
    "give it 'journal'"
)
ONLY_WRITTEN: Final = (
    "processor 'q' reads 'out' on cluster 'west', where it can only write: read the topic in another graph, "
    "run with that cluster's bootstrap_servers"
)
WRITES_TO_BOTH: Final = (
    "processor 'p' writes to cluster 'west' and, with 'here', to the graph's own cluster, and no transaction spans "
    "both: write to one of them, and let another processor write to the other"
)
TOO_WEAK: Final = (
    "processor 'p' is at_least_once and writes to cluster 'west': give it guarantee exactly_once, which goes through a "
    "journal there"
)
NOT_MOVED: Final = "topic 'dead' takes dead letters from a processor that writes to another cluster: omit cluster="
OWN, WEST = "the graph's own cluster", "cluster 'west'"


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (reads_there, ONLY_WRITTEN),
        (writes_to_both, WRITES_TO_BOTH),
        (lambda graph: declare(graph, persistence="transaction"), JOURNAL_NEEDED.format("'out'")),
        (lambda graph: declare(graph, guarantee="at_least_once"), TOO_WEAK),
        (shares_dead_letters, APART.format("'q'", OWN, WEST)),
        (inherits_dead_letters, APART.format("'p'", WEST, OWN)),
        (stores_rows, APART.format("'p'", OWN, WEST)),
        (keeps_no_journal, JOURNAL_NEEDED.format("'dead'")),
        (moves_dead_letters, NOT_MOVED),
    ],
)
def test_declarations_that_no_transaction_spans_are_refused(
    graph: ks.Graph, mistake: Callable[[ks.Graph], None], message: str
) -> None:
    with pytest.raises(GraphError) as raised:
        mistake(graph)
    assert str(raised.value) == message


# Topics.


def test_topics_are_created_and_checked_on_their_own_clusters(graph: ks.Graph) -> None:
    declare(graph, errors="dead")
    cluster = MemoryCluster()
    other = cluster.named("west")
    other.create_topics([("in", 9, -1, {})])  # of somebody else
    assert create_topics(graph, cluster, 3) == ["in", "out", "dead"]
    assert {name: info.partitions for name, info in check_topics(graph, cluster).items()} == dict.fromkeys(
        ("in", "out", "dead"), 3
    )
    assert find_topics(graph, cluster, ["dead", "in"]).keys() == {"dead", "in"}
    own = ["__ks.g.p.journal", "__ks.g.beginnings", "__ks.g.p.delivered", "in", "out", "dead"]
    assert cluster.topics(own).keys() == {"__ks.g.p.journal", "__ks.g.beginnings", "in"}
    assert other.topics(own).keys() == {"__ks.g.p.delivered", "out", "dead", "in"}
    assert other.topics(["__ks.g.p.delivered"])["__ks.g.p.delivered"].partitions == 3


def test_topic_that_records_deliveries_must_be_compacted(graph: ks.Graph) -> None:
    declare(graph)
    cluster = MemoryCluster()
    create_topics(graph, cluster)
    cluster.named("west").create_topics([("__ks.g.p.delivered", 4, -1, {"cleanup.policy": "delete"})])
    with pytest.raises(TopicError, match=r"'__ks\.g\.p\.delivered' has cleanup\.policy=delete and needs compact"):
        check_topics(graph, cluster)


def test_driver_crashes_at_requests_of_a_named_cluster(graph: ks.Graph) -> None:
    declare(graph)
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        assert driver.values("out") == [b"one"]
        assert {point.cluster for point in driver.crash_points()} == {"", "west"}
        with pytest.raises(UserMistake) as raised:
            driver.crash("commit_transaction", cluster="wets")
    assert str(raised.value) == "graph 'g' writes to no cluster 'wets': did you mean west?"


@pytest.mark.parametrize("place", ["", "west"])
def test_cluster_that_does_not_answer_a_recovery_is_waited_for(graph: ks.Graph, place: str) -> None:
    declare(graph)
    with TestDriver(graph) as driver:
        for value in (b"one", b"two"):
            driver.send("in", value)
            driver.run()
        driver.crash()
        driver.advance(60.0)
        faults = driver.cluster.named(place).faults
        faults.inject("ends", error=BrokerUnavailable("no Kafka broker answers"), applied=False)
        driver.send("in", b"three")
        driver.restart()
        driver.run()
        assert driver.values("out") == [b"one", b"two", b"three"]
        assert driver.down == frozenset()


def test_truncation_that_fails_ends_no_worker(graph: ks.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "TRUNCATED_EVERY", 1)
    declare(graph)
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        driver.send("in", b"two")
        driver.cluster.faults.inject("truncate", error=BrokerUnavailable("no Kafka broker answers"), applied=False)
        driver.run()
        assert driver.values("out") == [b"one", b"two"]
        assert driver.down == frozenset()


# A start.

IN = TopicPartition("in", 0)
JOURNAL, DELIVERED = "__ks.g.p.journal", "__ks.g.p.delivered"
HASH = b"h" * 16


class Bench:
    """A journal on one cluster, outputs on another; `cluster` is that of its processor now."""

    def __init__(self, cluster: str = "west") -> None:
        self.cluster = MemoryCluster(transaction_timeout=1_000.0)
        self.other = self.cluster.named("west")
        graph = ks.Graph("g")
        declare(graph, cluster, persistence="journal")
        create_topics(graph, self.cluster, 1)
        topics = check_topics(graph, self.cluster)
        (processor,) = graph.processors
        beside = graph.delivered(processor)
        environment = Environment(self.cluster, MemoryRegistry(), Settings(), self.cluster.clock)
        self.journal = DeliveryJournal(JOURNAL, processor, environment, topics, "g.p", "g.p.0", beside)
        self.topic_id = topics["in"].topic_id
        self.snapshot = Snapshot("g.p", 0, (InputStart("in", topics["in"].topic_id, 3),))
        place = OutputPlace("out", 0, 0, HASH)
        after = (InputStart("in", topics["in"].topic_id, 5),)
        self.attempt = Attempt(RecordType.OUTPUT, self.snapshot.hash, HASH, 2, "g.p.0", after, (place,), "west")

    def begin(self, writer: str, attempt: Attempt) -> Producer:
        """Journals an attempt, and leaves the transaction of its outputs open."""
        self.append(snapshot_record(JOURNAL, self.snapshot), attempt_record(JOURNAL, 0, attempt))
        return self.write(writer, attempt)

    def append(self, *records: Output) -> None:
        for topic, value, key, partition, _, _, _, headers in records:
            place = self.other if topic == DELIVERED else self.cluster
            place.append(topic, value, key, headers, partition=partition)

    def write(self, writer: str, attempt: Attempt) -> Producer:
        """Writes the outputs of an attempt, and leaves their transaction open."""
        producer = self.other.producer(ProducerMode(transactional=True, acks=-1, may_repeat=True), writer)
        producer.init_transactions()
        producer.begin_transaction()
        producer.write([("out", b"v", None, 0, None, None, 0, [("ks-hash", HASH)])])
        producer.write([attempt_record(DELIVERED, 0, attempt, b"newest")])
        producer.flush()
        return producer


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(("committed", "goes_on"), [(3, 5), (5, 5), (7, 7)])
def test_attempt_beside_its_outputs_is_committed_wherever_the_offsets_are(
    bench: Bench, committed: int, goes_on: int
) -> None:
    bench.begin("g.p.0", bench.attempt).commit_transaction()
    assert bench.journal.recover({IN: committed}) == ({IN: goes_on}, {})
    assert bench.journal.snapshots == {}


def test_attempt_that_was_aborted_is_made_again_from_its_snapshot(bench: Bench) -> None:
    bench.begin("g.p.0", bench.attempt).abort_transaction()
    assert bench.journal.recover({IN: 3}) == ({IN: 3}, {})
    assert bench.journal.snapshots == {0: bench.snapshot}


def test_transaction_of_this_worker_that_is_open_is_waited_for(bench: Bench) -> None:
    bench.begin("g.p.0", bench.attempt)
    with pytest.raises(Retriable) as raised:
        bench.journal.recover({IN: 3})
    assert str(raised.value) == (
        f"p: a transaction hides {DELIVERED}[0] from offset 0 on: `kstreams transactions find-hanging --topic "
        f"{DELIVERED} --cluster west` shows whether it hangs"
    )


def test_transaction_of_another_worker_is_aborted_by_the_one_that_has_its_task(bench: Bench) -> None:
    attempt = replace(bench.attempt, writer="g.p.7")
    frozen = bench.begin("g.p.7", attempt)
    assert bench.journal.recover({IN: 3}) == ({IN: 3}, {})
    assert bench.journal.snapshots == {0: bench.snapshot}
    with pytest.raises(Exception, match="fenced"):
        frozen.commit_transaction()
    assert bench.other.records("out") == []


def test_worker_whose_delivery_is_committed_is_not_fenced(bench: Bench) -> None:
    producer = bench.begin("g.p.7", replace(bench.attempt, writer="g.p.7"))
    producer.commit_transaction()
    assert bench.journal.recover({IN: 3}) == ({IN: 5}, {})
    producer.begin_transaction()
    producer.write([("out", b"next", None, 0, None, None, 0, None)])
    producer.commit_transaction()
    assert [m.value() for m in bench.other.records("out")] == [b"v", b"next"]


@pytest.mark.parametrize(
    ("committed", "ends", "reason"),
    [
        (4, True, "are in@4, its record is beside its outputs, and of its outputs: out[0]@0 is there"),
        (5, False, "are in@5, its record is not beside its outputs, and of its outputs: out[0]@0 is not there"),
    ],
)
def test_offsets_that_contradict_both_clusters_end_the_worker(
    bench: Bench, committed: int, ends: bool, reason: str
) -> None:
    producer = bench.begin("g.p.0", bench.attempt)
    (producer.commit_transaction if ends else producer.abort_transaction)()
    with pytest.raises(RecoveryUndecidable) as raised:
        bench.journal.recover({IN: committed})
    assert f"the newest record is an attempt-output from in@3 to in@5, the committed offsets {reason}: decide" in str(
        raised.value
    )


def test_damaged_record_beside_the_outputs_ends_the_worker(bench: Bench) -> None:
    bench.begin("g.p.0", bench.attempt).commit_transaction()
    bench.other.append(DELIVERED, b"foreign", b"newest", partition=0)
    with pytest.raises(
        RecoveryUndecidable, match=r"__ks.g.p.delivered\[0\]@2 is not an attempt at a delivery: its type is ''"
    ):
        bench.journal.recover({IN: 3})


# A journal without the newest delivery, and outputs that are declared elsewhere.


def nothing(_: Bench) -> tuple[Output, ...]:
    return ()


def snapshot_alone(bench: Bench) -> tuple[Output, ...]:
    return (snapshot_record(JOURNAL, bench.snapshot),)


def delivery_before(bench: Bench) -> tuple[Output, ...]:
    """One that wrote nothing: the committed offsets are after it, as its journal says."""
    snapshot = Snapshot("g.p", 0, (InputStart("in", bench.topic_id, 1),))
    attempt = replace(
        bench.attempt, type=RecordType.NIL, snapshot=snapshot.hash, inputs=bench.snapshot.inputs, outputs=()
    )
    return snapshot_record(JOURNAL, snapshot), attempt_record(JOURNAL, 0, attempt)


@pytest.mark.parametrize(
    ("kept", "stands"),
    [
        (nothing, "no snapshot"),
        (snapshot_alone, "its newest snapshot at in@3"),
        (delivery_before, "its newest snapshot at in@1"),
    ],
)
def test_journal_that_has_lost_a_delivery_to_the_other_cluster_ends_the_worker(
    bench: Bench, kept: Callable[[Bench], tuple[Output, ...]], stands: str
) -> None:
    bench.append(*kept(bench))
    bench.write("g.p.0", bench.attempt).commit_transaction()
    with pytest.raises(RecoveryUndecidable) as raised:
        bench.journal.recover({IN: 3})
    assert str(raised.value) == (
        f"p: partition 0: journal {JOURNAL}[0]: {DELIVERED}[0], offset 0, has a delivery to in@5 that was committed "
        f"with its outputs (out[0]@0), and the journal, with {stands}, has lost it: decide where it goes on, and set "
        "it (`kstreams recover reset GRAPH p`), then start again"
    )


def test_worker_replaced_while_it_read_the_evidence_tries_again(bench: Bench) -> None:
    """It was frozen between the journal and the record beside the outputs: it ended with status 5, for an operator."""
    bench.append(snapshot_record(JOURNAL, bench.snapshot))

    def deliver(request_name: str, _: object) -> None:
        if request_name == "newest" and bench.other.records("out") == []:
            bench.append(attempt_record(JOURNAL, 0, bench.attempt))
            bench.write("g.p.1", bench.attempt).commit_transaction()

    bench.other.faults.watch(deliver)
    with pytest.raises(Retriable, match=rf"another worker has delivered while journal {JOURNAL}\[0\] was read"):
        bench.journal.recover({IN: 3})
    assert bench.journal.recover({IN: 3}) == ({IN: 5}, {})


def test_delivery_that_is_committed_before_its_worker_is_fenced_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, fence = bench.begin("g.p.7", replace(bench.attempt, writer="g.p.7")), bench.journal._fence

    def commit_first(writer: str) -> None:
        producer.commit_transaction()
        fence(writer)

    monkeypatch.setattr(bench.journal, "_fence", commit_first)
    assert bench.journal.recover({IN: 3}) == ({IN: 5}, {})


def test_deliveries_before_the_newest_snapshot_or_a_reset_decide_nothing(bench: Bench) -> None:
    later = Snapshot("g.p", 0, (InputStart("in", bench.topic_id, 5),))
    nil = replace(
        bench.attempt,
        type=RecordType.NIL,
        snapshot=later.hash,
        inputs=(InputStart("in", bench.topic_id, 6),),
        outputs=(),
    )
    bench.begin("g.p.0", bench.attempt).commit_transaction()
    bench.append(snapshot_record(JOURNAL, later))
    assert (bench.journal.recover({IN: 5}), bench.journal.snapshots) == (({IN: 5}, {}), {0: later})
    bench.append(attempt_record(JOURNAL, 0, nil))
    assert (bench.journal.recover({IN: 6}), bench.journal.snapshots) == (({IN: 6}, {}), {})
    bench.append(forgotten_record(DELIVERED, 0), snapshot_record(JOURNAL, bench.snapshot))
    assert (bench.journal.recover({IN: 3}), bench.journal.snapshots) == (({IN: 3}, {}), {0: bench.snapshot})


@pytest.mark.parametrize(("cluster", "before", "on"), [("west", "", ""), ("", "west", " on cluster 'west'")])
def test_delivery_to_outputs_that_were_moved_is_decided_by_offsets_behind_it(
    cluster: str, before: str, on: str
) -> None:
    bench = Bench(cluster)
    bench.append(
        snapshot_record(JOURNAL, bench.snapshot), attempt_record(JOURNAL, 0, replace(bench.attempt, cluster=before))
    )
    assert bench.journal.recover({IN: 5}) == ({IN: 5}, {})
    with pytest.raises(RecoveryUndecidable) as raised:
        bench.journal.recover({IN: 3})
    assert str(raised.value) == (
        f"p: partition 0: journal {JOURNAL}[0]: a delivery from in@3 to in@5 may not be committed, and the processor "
        f"no longer writes to 'out'{on}: start it once with the outputs that it had: decide where it goes "
        "on, and set it (`kstreams recover reset GRAPH p`), then start again"
    )


def test_input_that_was_created_again_begins_where_its_group_says(bench: Bench) -> None:
    bench.begin("g.p.0", bench.attempt).commit_transaction()
    bench.journal.topic_ids = {"in": "another"}
    assert bench.journal.recover({IN: 3}) == ({IN: 3}, {})
