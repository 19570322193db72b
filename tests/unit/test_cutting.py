"""Cuts on the cluster in memory: markers that are late, transactions between the requests, random schedules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, Final

import pytest

from kstreams_py.errors import BrokerUnavailable, Retriable, TopicError, UserMistake
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TRANSACTIONAL
from kstreams_py.kafka.transactions import place_options
from kstreams_py.records import HASH_HEADER, PLACE_HEADER, Headers, Message, Positions, TopicPartition
from kstreams_py.spark.cuts import Cut, CutInput, CutTopic, CutWriter, Span
from kstreams_py.spark.cutting import Cutting
from kstreams_py.testing import ManualClock, MemoryCluster
from kstreams_py.testing.memory_records import POSITIONS
from tests.cut_model import is_inside

IN0, A0, B0 = (TopicPartition(topic, 0) for topic in ("in", "a", "b"))
HIGH = 60.0
"""Seconds for a cut."""


def make_graph() -> Graph:
    """`split` forks "in" to "a" and "b"; `pair` joins these to "c"; both have the dead letters "dead"."""
    graph = Graph("g", errors="dead")
    for topic in ("in", "a", "b", "c"):
        graph.topic(topic)
    graph.map("in", to=["a", "b"], id="split")(lambda value: {})
    graph.join("a", "b", by="order", to="c", id="pair")(lambda a, b: a)
    return graph


def make_cluster(partitions: int = 1) -> MemoryCluster:
    cluster = MemoryCluster(ManualClock())
    cluster.create_topics([(topic, partitions, -1, {}) for topic in ("in", "a", "b", "c", "dead")])
    return cluster


class Writer:
    """Writes transactions of a processor by hand: records of its steps, and offsets."""

    def __init__(self, cluster: MemoryCluster, processor: str, slot: int = 0) -> None:
        self.cluster, self.name = cluster, f"g.{processor}"
        self.producer = cluster.producer(TRANSACTIONAL, f"{self.name}.{slot}")
        self.producer.init_transactions()

    def headers(self, *read: TopicPartition, at: int) -> Headers:
        """The headers of the step that reads these partitions at one offset."""
        ids = {name: info.topic_id for name, info in self.cluster.topics([tp.topic for tp in read]).items()}
        place = hash_prefix(self.name, read[0].topic, ids[read[0].topic], read[0].partition) + pack_offset(at)
        if len(read) == 1:
            return [(HASH_HEADER, place)]
        digest = joined_hash(self.name, ((tp.topic, ids[tp.topic], tp.partition, at) for tp in read))
        return [(HASH_HEADER, digest), (PLACE_HEADER, place)]

    def write(self, to: TopicPartition, value: bytes, headers: Headers | None) -> None:
        self.producer.write([(to.topic, value, None, to.partition, None, None, 0, headers)])

    def send(self, positions: Positions) -> None:
        self.producer.send_offsets(positions, self.cluster.consumer(self.name, ""))

    def deliver(self, offset: int) -> None:
        """A transaction of `split`: the step at this offset of in[0], with an output to each topic."""
        self.producer.begin_transaction()
        for to in (A0, B0):
            self.write(to, b"%d" % offset, self.headers(IN0, at=offset))
        self.send({IN0: offset + 1})
        self.producer.flush()
        self.producer.commit_transaction()


def cutting(
    cluster: MemoryCluster,
    sleep: Callable[[], None] = lambda: None,
    graph: Graph | None = None,
    topics: tuple[str, ...] = ("a", "b"),
) -> Cutting:
    """What makes a cut, with the steps that happen each time it waits."""
    clock = cluster.clock
    assert isinstance(clock, ManualClock)

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        sleep()

    options = place_options("east:9092")
    return Cutting(graph or make_graph(), topics, cluster, HIGH, options=options, clock=clock, sleep=wait)


def inside(cluster: MemoryCluster, cut: Cut, topic: str) -> list[Any]:
    return [m.value() for m in cluster.records(topic) if is_inside(cut, m)]


def test_cut_of_idle_topics_has_everything() -> None:
    cluster = make_cluster()
    Writer(cluster, "split").deliver(0)
    cut = cutting(cluster).make()
    span = Span(0, 2, 2)
    ids = {name: info.topic_id for name, info in cluster.topics(["in", "a", "b"]).items()}
    assert cut == Cut(
        "g",
        {"a": CutTopic(ids["a"], (span,)), "b": CutTopic(ids["b"], (span,))},
        (CutWriter("split", ("a", "b"), (CutInput("in", ids["in"], (1,)),)),),
    )


@pytest.mark.parametrize("late", [A0, B0, POSITIONS], ids=["a", "b", "offsets"])
def test_transaction_whose_marker_is_late_is_waited_for_and_is_inside_on_both_topics(late: TopicPartition) -> None:
    cluster = make_cluster()
    writer = Writer(cluster, "split")
    writer.deliver(0)
    cluster.faults.hold_markers(late)
    writer.deliver(1)
    seen = [len(cluster.records(topic)) for topic in ("a", "b")]
    cut = cutting(cluster, lambda: cluster.faults.release_markers(late)).make()
    assert seen == {A0: [1, 2], B0: [2, 1], POSITIONS: [2, 2]}[late]
    assert [inside(cluster, cut, topic) for topic in ("a", "b")] == [[b"0", b"1"]] * 2


def test_transaction_committed_between_the_requests_is_outside_on_both_topics() -> None:
    cluster = make_cluster()
    writer = Writer(cluster, "split")
    writer.deliver(0)
    writer.producer.begin_transaction()
    writer.write(A0, b"1", writer.headers(IN0, at=1))  # below the end of a, as b's record is not below that of b

    def commit() -> None:
        writer.write(B0, b"1", writer.headers(IN0, at=1))
        writer.send({IN0: 2})
        writer.producer.commit_transaction()

    cut = cutting(cluster, commit).make()
    later = cutting(cluster).make()
    seen = {topic: [m.value() for m in cluster.records(topic)] for topic in ("a", "b")}
    assert seen == {"a": [b"0", b"1"], "b": [b"0", b"1"]}
    assert cut.topics["a"].partitions[0].end > 2
    assert [inside(cluster, cut, topic) for topic in ("a", "b")] == [[b"0"]] * 2
    assert [inside(cluster, later, topic) for topic in ("a", "b")] == [[b"0", b"1"]] * 2
    assert [each.start for topic in ("a", "b") for each in later.spans(topic, cut)] == [2, 2]


def test_offset_that_is_pending_all_the_time_is_not_waited_for() -> None:
    cluster = make_cluster()
    writers = [Writer(cluster, "split", slot) for slot in range(2)]
    for offset, writer in enumerate(writers):
        writer.producer.begin_transaction()
        writer.write(A0, b"%d" % offset, writer.headers(IN0, at=offset))
        if not offset:
            writer.send({IN0: 1})

    def go_on() -> None:
        """The second transaction takes over while the offset of the first is still looked at."""
        if cluster.groups["g.split"]:
            writers[1].producer.commit_transaction()
            return
        writers[1].send({IN0: 2})
        writers[0].producer.commit_transaction()

    making = cutting(cluster, go_on)
    assert making.make().writers[0].inputs[0].offsets == (1,)
    assert cluster.groups["g.split"] == {IN0: 2}  # committed later, for the ends


def test_record_whose_cause_is_committed_while_a_cut_is_made_is_not_inside_alone() -> None:
    cluster = make_cluster()
    split, pair = Writer(cluster, "split"), Writer(cluster, "pair")
    c0 = TopicPartition("c", 0)

    def deliver() -> None:
        """Between the looks at the groups, both processors deliver a step, one after the other."""
        split.deliver(0)
        pair.producer.begin_transaction()
        pair.write(c0, b"0", pair.headers(A0, B0, at=0))
        pair.send({A0: 1, B0: 1})
        pair.producer.commit_transaction()

    asked: list[str] = []

    def watch(name: str, client: object) -> None:
        if name == "group_offsets":
            asked.append(name)
            if len(asked) == 2:
                deliver()

    cluster.faults.watch(watch)
    cut = Cutting(make_graph(), None, cluster, HIGH, clock=cluster.clock, sleep=lambda _: None).make()
    assert {topic: inside(cluster, cut, topic) for topic in ("a", "b", "c")} == {"a": [b"0"], "b": [b"0"], "c": []}


def test_records_before_a_reset_to_the_start_stay_inside() -> None:
    cluster = make_cluster()
    writer = Writer(cluster, "split")
    for offset in range(3):
        writer.deliver(offset)
    before = cutting(cluster).make()
    writer.producer.begin_transaction()
    writer.send({IN0: 0})
    writer.producer.commit_transaction()
    cut = cutting(cluster).make()
    assert cut.writers[0].inputs[0].offsets == (0,)
    assert [inside(cluster, each, "a") for each in (before, cut)] == [[b"0", b"1", b"2"]] * 2


def test_positions_that_expired_leave_what_is_settled_inside() -> None:
    cluster = make_cluster()
    Writer(cluster, "split").deliver(0)
    cluster.faults.forget_positions("g.split")
    cut = cutting(cluster).make()
    assert (cut.writers[0].inputs[0].offsets, inside(cluster, cut, "b")) == ((0,), [b"0"])


@pytest.mark.parametrize("topic", ["in", "b"])
def test_partition_that_is_added_while_a_cut_is_made_is_part_of_it(topic: str) -> None:
    cluster = make_cluster()
    writer = Writer(cluster, "split")
    writer.producer.begin_transaction()
    writer.write(A0, b"0", writer.headers(IN0, at=0))
    added = TopicPartition(topic, 1)

    def grow() -> None:
        if len(cluster.topics([topic])[topic].topic_id) and cluster.topics([topic])[topic].partitions == 1:
            cluster.grow(topic, 2)
            read, to = (added, B0) if topic == "in" else (IN0, added)
            writer.write(to, b"0", writer.headers(read, at=0))
            writer.send({IN0: 1, read: 1})
            writer.producer.commit_transaction()

    cut = cutting(cluster, grow).make()
    assert [inside(cluster, cut, each) for each in ("a", "b")] == [[b"0"]] * 2
    counts = len(cut.topics["b"].partitions), len(cut.writers[0].inputs[0].offsets)
    assert counts == ((1, 2) if topic == "in" else (2, 1))


def test_transaction_that_stays_open_is_named_with_its_partition_and_the_remedy() -> None:
    cluster = MemoryCluster(ManualClock(), transaction_timeout=1_000)
    cluster.create_topics([(topic, 1, -1, {}) for topic in ("in", "a", "b", "c", "dead")])
    writer = Writer(cluster, "split")
    writer.producer.begin_transaction()
    writer.write(B0, b"0", None)
    with pytest.raises(UserMistake) as caught:
        cutting(cluster).make()
    assert str(caught.value) == (
        "b[0]: a transaction below offset 1 has been open for 60 s (the last stable offset is 0): run `kstreams "
        "transactions find-hanging --topic b --bootstrap-servers east:9092`, which prints how to end those that hang"
    )
    writer.send({IN0: 1})
    with pytest.raises(UserMistake, match=r"the offsets of in\[0\] are pending in a transaction; open on __cons"):
        cutting(cluster).make()


def test_request_that_fails_is_repeated_from_the_start_and_an_outage_is_reported() -> None:
    cluster = make_cluster()
    Writer(cluster, "split").deliver(0)
    cluster.faults.inject("group_offsets", error=Retriable("no answer"))
    before = len(cluster.faults.requests)
    assert inside(cluster, cutting(cluster).make(), "a") == [b"0"]
    once = ["topics", "starts", "ends", "group_offsets"]
    assert list(cluster.faults.requests[before:]) == [*once, *once, "ends", "ends", "topics"]
    cluster.faults.begin_outage(1_000, ["ends"])
    with pytest.raises(BrokerUnavailable, match="no cut of graph 'g' within 60 s: "):
        cutting(cluster).make()


def test_topic_that_does_not_exist_is_named() -> None:
    cluster = MemoryCluster(ManualClock())
    cluster.create_topics([("a", 1, -1, {}), ("b", 1, -1, {})])
    with pytest.raises(TopicError, match="topic 'in' does not exist: run `kstreams topics create`"):
        cutting(cluster).make()


# Random schedules.


class Task:
    """One processor on one partition number, which writes transactions in parts."""

    def __init__(
        self, world: World, processor: str, inputs: tuple[str, ...], outputs: tuple[str, ...], slot: int
    ) -> None:
        self._world, self._outputs = world, outputs
        self._writer = Writer(world.cluster, processor, slot)
        self._inputs = tuple(TopicPartition(topic, slot) for topic in inputs)
        self._done = dict.fromkeys(self._inputs, 0)
        self._next: Positions = {}
        self._phase = 0
        self._name = ""

    def act(self) -> None:
        """Goes on with the transaction, or begins one if there is something to read."""
        try:
            getattr(self, ("_begin", "_write", "_send", "_write", "_end")[self._phase])()
        except Retriable:
            return  # the markers of the last one are late
        if self._next:
            self._phase = (self._phase + 1) % 5

    def _begin(self) -> None:
        self._next = {}
        read = [self._world.cluster.read(tp, self._done[tp]) for tp in self._inputs]
        self._steps = list(zip(*read, strict=False))[: self._world.chance.randint(1, 3)]
        if self._steps:
            self._writer.producer.begin_transaction()
            self._next = {m_tp: m.offset() + 1 for m_tp, m in zip(self._inputs, self._steps[-1], strict=True)}
            self._name = f"{self._writer.name} {self._inputs[0]} {self._next[self._inputs[0]]}"

    def _write(self) -> None:
        for step in self._steps:
            topic = self._world.chance.choice(self._outputs)
            to = TopicPartition(topic, self._world.chance.randrange(2))
            place = self._writer.headers(*self._inputs, at=step[0].offset())
            causes = " ".join(f"{m.topic()}/{m.partition()}/{m.offset()}" for m in step)
            self._writer.write(to, f"{self._name}|{causes}".encode(), place)
        self._writer.producer.flush()

    def _send(self) -> None:
        self._writer.send(self._next)

    def _end(self) -> None:
        if self._world.chance.random() < 0.15:
            self._writer.producer.abort_transaction()
            return
        for tp in [TopicPartition(t, n) for t in ("a", "b", "c", "dead") for n in range(2)] + [POSITIONS]:
            if self._world.chance.random() < 0.15:
                self._world.cluster.faults.hold_markers(tp)
        self._writer.producer.commit_transaction()
        self._done |= self._next


class World:
    """Tasks of both processors on two partitions, and somebody who writes inputs; a step of one of them at a time."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.cluster = make_cluster(2)
        self.tasks = [Task(self, "split", ("in",), ("a", "b", "dead"), slot) for slot in range(2)]
        self.tasks += [Task(self, "pair", ("a", "b"), ("c", "dead"), slot) for slot in range(2)]
        self._acting = False
        self.cluster.faults.watch(lambda _name, client: self.act() if client is None else None)

    def act(self, steps: int | None = None) -> None:
        """Does some steps; a cut that is being made is between two requests."""
        if self._acting:
            return
        self._acting = True
        for _ in range(self.chance.randint(0, 6) if steps is None else steps):
            if self.chance.random() < 0.3:
                self.cluster.append("in", b"", partition=self.chance.randrange(2))
            if self.chance.random() < 0.2:
                for topic in ("a", "b", "c", "dead"):
                    self.cluster.faults.release_markers(TopicPartition(topic, self.chance.randrange(2)))
                self.cluster.faults.release_markers(POSITIONS)
            self.chance.choice(self.tasks).act()
        self._acting = False

    def records(self) -> list[Message]:
        return [m for topic in ("a", "b", "c", "dead") for m in self.cluster.records(topic)]

    def end(self) -> None:
        """Ends all transactions."""
        self._acting = True
        for topic in ("a", "b", "c", "dead"):
            for number in range(2):
                self.cluster.faults.release_markers(TopicPartition(topic, number))
        self.cluster.faults.release_markers(POSITIONS)


def place_of(m: Message) -> str:
    return f"{m.topic()}/{m.partition()}/{m.offset()}"


QUICK_SEEDS: Final = 12


def test_cuts_of_random_schedules_tear_no_transaction_have_each_cause_and_add_up() -> None:
    for seed in range(QUICK_SEEDS):
        check_cuts(seed)


@pytest.mark.long
def test_cuts_of_more_random_schedules_tear_no_transaction() -> None:
    for seed in range(QUICK_SEEDS, 60):
        check_cuts(seed)


def check_cuts(seed: int) -> None:
    """Each assertion that fails names the seed."""
    world = World(seed)
    clock = world.cluster.clock
    assert isinstance(clock, ManualClock)
    cuts = []
    for _ in range(6):
        world.act(20)
        making = Cutting(make_graph(), None, world.cluster, 10_000, clock=clock, sleep=lambda _: world.act(3))
        cuts.append(making.make())
    world.end()
    records = world.records()
    assert len({m.topic() for m in records}) == 4, seed
    before: set[str] = set()
    for earlier, cut in zip([None, *cuts], cuts, strict=False):
        found = {place_of(m) for m in records if is_inside(cut, m)}
        of_transactions: dict[str, set[bool]] = {}
        for m in records:
            transaction, causes = (m.value() or b"").decode().split("|")
            of_transactions.setdefault(transaction, set()).add(place_of(m) in found)
            if place_of(m) in found:
                assert {each for each in causes.split() if not each.startswith("in/")} <= found, seed
        assert {transaction for transaction, each in of_transactions.items() if len(each) > 1} == set(), seed
        new = {
            place_of(m)
            for m in records
            if cut.spans(m.topic(), earlier)[m.partition()].start <= m.offset() and is_inside(cut, m)
            if earlier is None or not is_inside(earlier, m)
        }
        assert (new | before, new & before) == (found, set()), seed
        before = found
    assert before, seed
    for earlier, cut in pairwise(cuts):  # a settled cut needs no filter, at either end
        for m in records:
            span = cut.spans(m.topic(), earlier)[m.partition()]
            if span.start <= m.offset() < span.end:
                assert is_inside(cut, m) or not cut.is_settled(m.topic()), seed
                assert not is_inside(earlier, m) or not earlier.is_settled(m.topic()), seed


# A pipeline that writes a topic of two partitions.

RUNS0 = TopicPartition("__ks.totals.runs", 0)
TOTALS0, TOTALS1 = (TopicPartition("totals", number) for number in range(2))


def make_pipeline_graph() -> Graph:
    graph = Graph("g")
    graph.topic("in")
    graph.topic("totals")
    graph.pipeline("in", to="totals", mode="append", id="count")(lambda rows: rows)
    return graph


class Runs(Writer):
    """Writes runs of the pipeline by hand."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster, "count")
        self.last = 0

    def place(self) -> bytes:
        (info,) = self.cluster.topics([RUNS0.topic]).values()
        return hash_prefix(self.name, RUNS0.topic, info.topic_id, 0) + pack_offset(self.last)

    def publish(self) -> None:
        self.last += 1
        self.producer.begin_transaction()
        for number, to in enumerate((TOTALS0, TOTALS1)):
            headers: Headers = [(HASH_HEADER, bytes([self.last, number]) * 8), (PLACE_HEADER, self.place())]
            self.write(to, b"%d" % self.last, headers)
        self.send({RUNS0: self.last + 1})
        self.producer.flush()
        self.producer.commit_transaction()


def make_pipeline_cluster(*, has_runs: bool = True) -> MemoryCluster:
    cluster = MemoryCluster(ManualClock())
    cluster.create_topics([("in", 1, -1, {}), ("totals", 2, -1, {})])
    if has_runs:
        cluster.create_topics([(RUNS0.topic, 1, -1, {})])
    return cluster


def cut_of_totals(cluster: MemoryCluster, step: Callable[[], None] = lambda: None) -> Cut:
    return cutting(cluster, step, make_pipeline_graph(), ("totals",)).make()


@pytest.mark.parametrize("late", [TOTALS0, TOTALS1, POSITIONS], ids=["first", "second", "offsets"])
def test_run_of_a_pipeline_whose_marker_is_late_is_inside_as_a_whole(late: TopicPartition) -> None:
    cluster = make_pipeline_cluster()
    runs = Runs(cluster)
    runs.publish()
    cluster.faults.hold_markers(late)
    runs.publish()
    cut = cut_of_totals(cluster, lambda: cluster.faults.release_markers(late))
    assert sorted(inside(cluster, cut, "totals")) == [b"1", b"1", b"2", b"2"]


def test_run_of_a_pipeline_after_the_cut_has_asked_its_group_is_on_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_pipeline_cluster()
    runs = Runs(cluster)
    runs.publish()
    asked = cluster.group_offsets

    def publish_after(*arguments: Any) -> Any:
        found = asked(*arguments)
        runs.publish()
        return found

    monkeypatch.setattr(cluster, "group_offsets", publish_after)
    cut = cut_of_totals(cluster)
    assert sorted(inside(cluster, cut, "totals")) == [b"1", b"1"]


def test_first_run_of_a_pipeline_while_a_cut_is_made_is_inside_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_pipeline_cluster(has_runs=False)
    ends, runs = cluster.ends, list[Runs]()

    def publish_after(*arguments: Any, **options: Any) -> Any:
        found = ends(*arguments, **options)
        if not runs:
            cluster.create_topics([(RUNS0.topic, 1, -1, {})])
            runs.append(Runs(cluster))
            runs[0].publish()
        return found

    monkeypatch.setattr(cluster, "ends", publish_after)
    cut = cut_of_totals(cluster)
    assert sorted(inside(cluster, cut, "totals")) == [b"1", b"1"]
    assert [writer.processor for writer in cut.writers] == ["count"]


def test_cut_of_the_topic_of_a_pipeline_that_has_not_run_has_no_writer() -> None:
    cut = cut_of_totals(make_pipeline_cluster(has_runs=False))
    assert (cut.writers, [span.end for span in cut.topics["totals"].partitions]) == ((), [0, 0])
