"""testing/: what only the cluster in memory has: its clock, injected faults, batch sequences, lingering records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from kstreams_py.errors import Abortable, ClientError, Fenced, OutcomeUnknown, Replaced, Retriable, TopicError
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.contracts import Output
from kstreams_py.kafka.membership import Membership, Owner
from kstreams_py.kafka.partitioner import murmur2
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import Message, TopicPartition
from kstreams_py.testing import Isolation, ManualClock, MemoryCluster
from kstreams_py.testing.memory_broker import Partition, Stamp
from kstreams_py.testing.memory_clients import MemoryConsumer, MemoryProducer
from kstreams_py.testing.memory_records import Content
from kstreams_py.testing.request_faults import RequestFault
from tests.contract.rig import MURMUR2

IN0, IN1, IN2 = (TopicPartition("in", number) for number in range(3))
OUT0 = TopicPartition("out", 0)


class Member:
    """A consumer that records its rebalances and the values it reads."""

    def __init__(self, cluster: MemoryCluster, instance_id: str, topic: str = "in") -> None:
        self.events: list[object] = []
        self.values: list[bytes | None] = []
        self.consumer: MemoryConsumer = cluster.consumer("group", instance_id)
        self._new: set[TopicPartition] = set()
        self.consumer.subscribe(
            [topic], self._assigned, lambda: self.events.append("revoked"), lambda: self.events.append("lost")
        )

    def _assigned(self, partitions: set[TopicPartition]) -> None:
        self.events.append(partitions)
        self._new = partitions

    def poll(self) -> None:
        """Reads; newly assigned partitions are read from their committed offsets, or from offset 0."""
        found = self.consumer.consume(100, 0.0)
        if self._new:
            assert not found
            self.consumer.assign(dict.fromkeys(self._new, 0) | self.consumer.committed(self._new))
            self._new = set()
            found = self.consumer.consume(100, 0.0)
        self.values += [m.value() for m in found]


def make_cluster(clock: ManualClock | None = None, *, linger: float = 0.0) -> MemoryCluster:
    cluster = MemoryCluster(clock, linger=linger)
    cluster.create_topics([("in", 3, -1, {}), ("out", 1, -1, {})])
    return cluster


def start_producer(
    cluster: MemoryCluster, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, durability: Durability = Durability.COMMITTED
) -> MemoryProducer:
    producer = cluster.producer(producer_mode(guarantee, durability), "id")
    if guarantee is Guarantee.EXACTLY_ONCE:
        producer.init_transactions()
        producer.begin_transaction()
    return producer


def output(value: bytes, topic: str = "out") -> Output:
    return (topic, value, None, 0, None, None, 0, None)


def values_of(messages: Sequence[Message]) -> list[bytes | None]:
    return [m.value() for m in messages]


def describe(m: Message) -> tuple[int, int, bytes | None]:
    return m.partition(), m.offset(), m.value()


# Time-outs, rebalances and the clock.


def test_transaction_open_for_too_long_is_aborted_and_its_producer_fenced() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    clock.advance(10.0)
    assert (values_of(cluster.records("out", "read_uncommitted")), cluster.ends([OUT0])) == ([b"a"], {OUT0: 0})
    clock.advance(0.5)
    assert cluster.ends([OUT0]) == {OUT0: 2}
    with pytest.raises(Fenced, match="id: epoch 0 is fenced by epoch 1"):
        producer.commit_transaction()
    assert values_of(cluster.records("out")) == []


def test_transaction_time_out_counts_from_the_first_record_not_while_idle() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    producer = start_producer(cluster)
    clock.advance(100.0)
    producer.write([output(b"a")])
    clock.advance(10.0)
    producer.commit_transaction()
    clock.advance(100.0)
    producer.begin_transaction()
    producer.write([output(b"b")])
    producer.commit_transaction()
    assert values_of(cluster.records("out")) == [b"a", b"b"]


def test_positions_pending_in_a_timed_out_transaction_are_dropped() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    member = Member(cluster, "a")
    member.poll()
    producer = start_producer(cluster)
    producer.send_offsets({IN0: 5}, member.consumer)
    with pytest.raises(Retriable, match=r"group group: the offset of in\[0\] is pending in a transaction"):
        member.consumer.committed([IN0])
    assert member.consumer.committed([IN1]) == {}
    clock.advance(11.0)
    assert member.consumer.committed([IN0]) == {}
    assert cluster.groups["group"] == {}


def test_session_timeout_of_a_silent_member_reassigns_its_partitions_to_the_others() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    silent, other = Member(cluster, "a"), Member(cluster, "b")
    silent.poll()
    other.poll()
    assert (silent.events, other.events) == ([{IN0, IN1}], [{IN2}])
    silent.consumer.close()
    clock.advance(9.0)
    other.poll()
    assert other.events == [{IN2}]
    clock.advance(2.0)
    other.poll()
    assert other.events == [{IN2}, "revoked", {IN0, IN1, IN2}]


def test_member_whose_session_timed_out_cannot_commit_and_rejoins() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    member = Member(cluster, "a")
    member.poll()
    assert member.consumer.membership() == Membership(Owner.OURS)
    clock.advance(11.0)
    assert member.consumer.membership() == Membership(Owner.NOBODYS)
    commits: list[Callable[[], None]] = [
        lambda: member.consumer.commit({IN0: 1}),
        lambda: start_producer(cluster).send_offsets({IN0: 1}, member.consumer),
    ]
    for commit in commits:
        with pytest.raises(Abortable, match=r"group group: a is not a member, or no longer"):
            commit()
    member.poll()
    assert member.events == [{IN0, IN1, IN2}, "lost"]
    member.poll()  # before it rejoins, it asks the group who holds its membership
    assert member.events == [{IN0, IN1, IN2}, "lost", {IN0, IN1, IN2}]
    member.consumer.commit({IN0: 1})
    assert cluster.groups["group"] == {IN0: 1}


def test_rebalance_waits_for_all_members_and_the_old_generation_commits_until_then() -> None:
    cluster = make_cluster()
    first = Member(cluster, "a")
    first.poll()
    second = Member(cluster, "b")
    second.poll()
    assert (first.events, second.events) == ([{IN0, IN1, IN2}], [])
    cluster.append("in", b"a", partition=2)
    first.consumer.commit({IN2: 1})
    first.poll()
    second.poll()
    assert first.events == [{IN0, IN1, IN2}, "revoked", {IN0, IN1}]
    assert second.events == [{IN2}]
    assert second.consumer.committed([IN2]) == {IN2: 1}


def test_commit_of_a_member_that_missed_a_rebalance_is_abortable() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    first, second = Member(cluster, "a"), Member(cluster, "b")
    first.poll()
    second.poll()
    third = Member(cluster, "c")
    first.poll()
    second.poll()
    with pytest.raises(Abortable, match="group group: a is of generation -1, but 2 is the newest"):
        first.consumer.commit({IN0: 1})
    first.poll()
    third.poll()
    assert [m.events[-1] for m in (first, second, third)] == [{IN0}, {IN1}, {IN2}]


def test_append_without_a_timestamp_takes_it_from_the_clock() -> None:
    cluster = make_cluster(ManualClock(5.25))
    cluster.append("in", b"a", partition=0)
    cluster.append("in", b"b", partition=0, timestamp=7)
    assert [m.timestamp() for m in cluster.records("in")] == [(1, 5250), (1, 7)]


def test_lingering_records_are_sent_by_time_flush_or_commit_or_are_lost() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock, linger=0.02)
    producer = start_producer(cluster, Guarantee.AT_LEAST_ONCE)
    producer.write([output(b"a")])
    seen = [values_of(cluster.records("out"))]
    clock.advance(0.03)
    seen.append(values_of(cluster.records("out")))
    producer.write([output(b"b")])
    producer.flush()
    seen.append(values_of(cluster.records("out")))
    producer.write([output(b"c")])
    producer.drop()
    clock.advance(1.0)
    seen.append(values_of(cluster.records("out")))
    transactional = start_producer(cluster)
    transactional.write([output(b"d")])
    transactional.commit_transaction()
    seen.append(values_of(cluster.records("out")))
    assert seen == [[], [b"a"], [b"a", b"b"], [b"a", b"b"], [b"a", b"b", b"d"]]


# Injected faults.


def test_commit_whose_answer_is_lost_was_carried_out() -> None:
    cluster = make_cluster()
    cluster.faults.inject("commit_transaction", nth=2, error=OutcomeUnknown("no answer"))
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    producer.commit_transaction()
    producer.begin_transaction()
    producer.write([output(b"b")])
    with pytest.raises(OutcomeUnknown, match="no answer"):
        producer.commit_transaction()
    assert values_of(cluster.records("out")) == [b"a", b"b"]


def test_lost_commit_request_leaves_the_transaction_open_until_a_new_producer() -> None:
    cluster = make_cluster()
    cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=False)
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    with pytest.raises(OutcomeUnknown, match="no answer"):
        producer.commit_transaction()
    assert (values_of(cluster.records("out", "read_uncommitted")), cluster.ends([OUT0])) == ([b"a"], {OUT0: 0})
    start_producer(cluster)
    assert (values_of(cluster.records("out")), cluster.ends([OUT0])) == ([], {OUT0: 2})


@pytest.mark.parametrize(("renewed", "read"), [(False, [b"a", b"b"]), (True, [b"a"])])
def test_late_commit_ends_a_later_transaction_of_its_epoch_and_none_of_a_newer_epoch(
    renewed: bool, read: list[bytes]
) -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    cluster.faults.inject("commit_transaction", late=6.0)
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    tainted = [producer.tainted]
    producer.commit_transaction()
    tainted.append(producer.tainted)
    if renewed:
        producer = start_producer(cluster)
    else:
        producer.begin_transaction()
    assert [*tainted, producer.tainted] == [False, True, not renewed]
    producer.write([output(b"b")])
    clock.advance(6.0)
    assert values_of(cluster.records("out")) == read
    if renewed:
        producer.abort_transaction()
    else:
        with pytest.raises(OutcomeUnknown, match="id: no transaction is open"):
            producer.abort_transaction()
    assert values_of(cluster.records("out")) == read


def test_commit_of_unknown_outcome_taints_no_producer_and_may_be_applied_late() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=False, late=6.0)
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    with pytest.raises(OutcomeUnknown):
        producer.commit_transaction()
    assert (producer.tainted, values_of(cluster.records("out"))) == (False, [])
    clock.advance(6.0)
    assert values_of(cluster.records("out")) == [b"a"]


def test_repeated_commit_of_a_committed_transaction_succeeds_and_changes_nothing() -> None:
    cluster = make_cluster()
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    cluster.faults.inject("commit_transaction", error=Retriable("no answer"))
    with pytest.raises(Retriable):
        producer.commit_transaction()
    producer.commit_transaction()
    assert values_of(cluster.records("out")) == [b"a"]
    producer.begin_transaction()
    producer.write([output(b"b")])
    producer.commit_transaction()
    assert values_of(cluster.records("out")) == [b"a", b"b"]


def test_markers_follow_the_answer_to_a_commit_and_the_next_transaction_waits() -> None:
    clock = ManualClock()
    cluster = MemoryCluster(clock, marker_delay=0.5)
    cluster.create_topics([("in", 3, -1, {}), ("out", 1, -1, {})])
    member = Member(cluster, "a")
    member.poll()
    producer = start_producer(cluster)
    for value, position in ((b"a", 1), (b"b", 2)):
        producer.write([output(value)])
        producer.send_offsets({IN0: position}, member.consumer)
        producer.commit_transaction()
        assert (cluster.ends([OUT0]), cluster.groups["group"].get(IN0, 0)) == ({OUT0: 2 * (position - 1)}, position - 1)
        with pytest.raises(Retriable):
            member.consumer.committed([IN0])
        if position == 1:
            producer.begin_transaction()  # its first partition waits for the markers of the previous transaction
    clock.advance(0.5)
    assert (values_of(cluster.records("out")), cluster.groups["group"]) == ([b"a", b"b"], {IN0: 2})
    producer.begin_transaction()
    producer.write([output(b"c")])
    producer.commit_transaction()
    assert values_of(cluster.records("out")) == [b"a", b"b"]
    start_producer(cluster)  # a new producer waits for the markers too
    assert values_of(cluster.records("out")) == [b"a", b"b", b"c"]


def test_late_send_offsets_is_refused_once_its_transaction_has_ended() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    member = Member(cluster, "a")
    member.poll()
    cluster.faults.inject("send_offsets", late=3.0)
    producer = start_producer(cluster)
    producer.send_offsets({IN0: 5}, member.consumer)
    producer.commit_transaction()
    clock.advance(3.0)
    assert member.consumer.committed([IN0]) == {IN0: 5}  # nothing is pending


@pytest.mark.parametrize(("rejoins", "position"), [(True, 2), (False, 1)])
def test_late_offset_commit_is_refused_once_its_member_has_rejoined(rejoins: bool, position: int) -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    cluster.append("in", b"a", partition=0)
    member = Member(cluster, "a")
    member.poll()
    cluster.faults.inject("commit", late=3.0)
    tainted = [member.consumer.tainted]
    member.consumer.commit({IN0: 1})
    tainted.append(member.consumer.tainted)
    if rejoins:
        member.consumer.rejoin()
        member.poll()
    assert [*tainted, member.consumer.tainted] == [False, True, not rejoins]
    assert member.events == [{IN0, IN1, IN2}] * (1 + rejoins)
    member.consumer.commit({IN0: 2})
    clock.advance(3.0)
    assert cluster.groups["group"] == {IN0: position}


def test_late_request_taints_its_consumer_only_if_it_commits_offsets() -> None:
    cluster = make_cluster()
    member = Member(cluster, "a")
    member.poll()
    for request, call in (("membership", member.consumer.membership), ("consume", member.poll)):
        cluster.faults.inject(request, late=3.0)
        call()
    assert not member.consumer.tainted


def test_watcher_is_called_with_each_request_and_its_client_and_chooses_the_fault() -> None:
    cluster = make_cluster()
    seen: list[tuple[str, object]] = []

    def watch(name: str, client: object) -> RequestFault | None:
        seen.append((name, client))
        return RequestFault(OutcomeUnknown("watched"), applied=False) if name == "commit_transaction" else None

    cluster.faults.watch(watch)
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    with pytest.raises(OutcomeUnknown, match="watched"):
        producer.commit_transaction()
    cluster.ends([OUT0])
    names = ["init_transactions", "add_partition", "produce", "commit_transaction"]
    assert seen == [*((name, producer) for name in names), ("ends", None)]
    assert values_of(cluster.records("out")) == []


def test_watcher_that_raises_stops_a_request_before_it_is_made() -> None:
    def dies(name: str, client: object) -> None:
        raise SystemExit(name)

    cluster = make_cluster()
    before = len(cluster.faults.requests)
    cluster.faults.watch(dies)
    with pytest.raises(SystemExit, match="ends"):
        cluster.ends([OUT0])
    assert len(cluster.faults.requests) == before


def test_chance_varies_the_fetches_and_keeps_the_order_of_each_partition() -> None:
    fetches: list[list[list[bytes | None]]] = []
    for seed in (1, 1, 2):
        cluster = MemoryCluster(chance=Random(seed))
        cluster.create_topics([("in", 3, -1, {})])
        for number in range(12):
            cluster.append("in", b"%d" % number, partition=number % 3)
        member = Member(cluster, "a")
        fetches.append([])
        while len(member.values) < 12:
            before = len(member.values)
            member.poll()
            fetches[-1].append(member.values[before:])
        assert sorted(member.values, key=lambda value: int(value or b"")) == [b"%d" % number for number in range(12)]
        for number in range(3):
            mine = [value for value in member.values if int(value or b"") % 3 == number]
            assert mine == sorted(mine, key=lambda value: int(value or b""))
    assert fetches[0] == fetches[1] != fetches[2]


def test_abort_that_arrives_late_leaves_offsets_pending_until_then() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    member = Member(cluster, "a")
    member.poll()
    cluster.faults.inject("abort_transaction", error=OutcomeUnknown("no answer"), applied=False, late=3.0)
    producer = start_producer(cluster)
    producer.send_offsets({IN0: 5}, member.consumer)
    with pytest.raises(OutcomeUnknown):
        producer.abort_transaction()
    with pytest.raises(Retriable):
        member.consumer.committed([IN0])
    clock.advance(3.0)
    assert member.consumer.committed([IN0]) == {}


def test_requests_are_recorded_in_order_and_a_crash_can_be_injected_at_each() -> None:
    class Crash(BaseException):
        pass

    def run_transaction(cluster: MemoryCluster) -> None:
        producer = start_producer(cluster)
        producer.write([output(b"a"), output(b"b", "in")])
        producer.commit_transaction()

    clean = make_cluster()
    before = len(clean.faults.requests)
    run_transaction(clean)
    expected = ["init_transactions", "add_partition", "produce", "add_partition", "produce", "commit_transaction"]
    assert clean.faults.requests[before:] == expected
    seen = []
    for nth in range(1, len(expected) + 1):
        for applied in (False, True):
            cluster = make_cluster()
            cluster.faults.inject("", nth=nth, error=Crash(), applied=applied)
            with pytest.raises(Crash):
                run_transaction(cluster)
            seen.append(
                (nth, applied, values_of(cluster.records("out")), values_of(cluster.records("out", "read_uncommitted")))
            )
    assert seen == [
        (1, False, [], []),
        (1, True, [], []),
        (2, False, [], []),
        (2, True, [], []),
        (3, False, [], []),
        (3, True, [], [b"a"]),
        (4, False, [], [b"a"]),
        (4, True, [], [b"a"]),
        (5, False, [], [b"a"]),
        (5, True, [], [b"a"]),
        (6, False, [], [b"a"]),
        (6, True, [b"a"], [b"a"]),
    ]


@pytest.mark.parametrize(
    ("guarantee", "durability", "applied", "read", "error"),
    [
        (Guarantee.AT_LEAST_ONCE, Durability.COMMITTED, True, [b"a"], None),
        (Guarantee.AT_LEAST_ONCE, Durability.COMMITTED, False, [b"a"], None),
        (Guarantee.AT_LEAST_ONCE, Durability.LEADER, True, [b"a", b"a"], None),
        (Guarantee.AT_LEAST_ONCE, Durability.LEADER, False, [b"a"], None),
        (Guarantee.AT_MOST_ONCE, Durability.LEADER, True, [b"a"], Abortable),
        (Guarantee.AT_MOST_ONCE, Durability.LEADER, False, [], Abortable),
        (Guarantee.AT_MOST_ONCE, Durability.NONE, False, [], None),
    ],
)
def test_unanswered_batch_is_retried_and_duplicated_only_without_sequences(
    guarantee: Guarantee, durability: Durability, applied: bool, read: list[bytes], error: type[ClientError] | None
) -> None:
    cluster = make_cluster()
    cluster.faults.inject("produce", error=Retriable("no answer"), applied=applied)
    producer = start_producer(cluster, guarantee, durability)
    producer.write([output(b"a")])
    if error is None:
        producer.flush()
    else:
        with pytest.raises(error, match=r"writing to out\[0\]: no answer"):
            producer.flush()
        producer.flush()
    assert values_of(cluster.records("out")) == read


def test_unanswered_batch_of_a_transaction_is_retried_and_written_once() -> None:
    cluster = make_cluster()
    cluster.faults.inject("produce", nth=1, error=Retriable("no answer"))
    cluster.faults.inject("produce", nth=3, error=Retriable("no answer"), applied=False)
    producer = start_producer(cluster)
    producer.write([output(b"a"), output(b"b")])
    producer.write([output(b"c")])
    producer.commit_transaction()
    assert list(map(describe, cluster.records("out"))) == [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c")]


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
@pytest.mark.parametrize("applied", [True, False])
def test_unanswered_batches_wait_and_are_written_once_and_in_order(guarantee: Guarantee, applied: bool) -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    producer = start_producer(cluster, guarantee)
    cluster.faults.begin_outage(5.0, ["produce"], lambda: applied)
    for value in (b"a", b"b"):
        producer.write([output(value)])
        with pytest.raises(Retriable, match=r"batches to out\[0\] wait for their acknowledgement"):
            producer.flush()
    clock.advance(5.0)
    producer.flush()
    assert values_of(cluster.records("out")) == [b"a", b"b"]


def test_transaction_with_unanswered_batches_can_be_neither_committed_nor_aborted() -> None:
    cluster = make_cluster()
    producer = start_producer(cluster)
    cluster.faults.begin_outage(5.0, ["produce"])
    producer.write([output(b"a")])
    with pytest.raises(Abortable, match=r"id: batches to out\[0\] are not acknowledged"):
        producer.commit_transaction()
    with pytest.raises(OutcomeUnknown, match="id: batches were neither sent nor refused before the abort"):
        producer.abort_transaction()


def test_failed_delivery_fails_the_whole_transaction() -> None:
    cluster = make_cluster()
    cluster.faults.inject("produce", nth=2, error=Abortable("disk full"), applied=False)
    producer = start_producer(cluster)
    producer.write([output(b"a"), output(b"b", "in")])
    member = Member(cluster, "a")
    member.poll()
    calls: list[Callable[[], None]] = [
        lambda: producer.send_offsets({IN0: 1}, member.consumer),
        producer.commit_transaction,
    ]
    for call in calls:
        with pytest.raises(Abortable, match="disk full"):
            call()
    producer.abort_transaction()
    assert (values_of(cluster.records("out")), values_of(cluster.records("in")), cluster.groups["group"]) == (
        [],
        [],
        {},
    )


# Batch sequences and partitioning by key.


def test_batch_sequence_of_a_producer_epoch_drops_duplicates_and_refuses_gaps() -> None:
    partition = Partition(OUT0)

    def append(value: bytes, producer_id: int, epoch: int, sequence: int) -> None:
        content = Content(None, value, None, 0)
        partition.append([content], Stamp(producer_id, epoch, sequence), transactional=False)

    for sequence, value in ((0, b"a"), (0, b"a again"), (1, b"b"), (0, b"a once more")):
        append(value, 1, 0, sequence)
    with pytest.raises(Abortable, match=r"out\[0\]: out of order: producer 1 sent sequence 3 where 2 was next"):
        append(b"d", 1, 0, 3)
    append(b"of another producer", 2, 0, 0)
    append(b"of another epoch", 1, 1, 0)
    assert values_of(list(partition.read(0, Isolation.COMMITTED))) == [
        b"a",
        b"b",
        b"of another producer",
        b"of another epoch",
    ]


@pytest.mark.parametrize(("key", "expected"), MURMUR2.items())
def test_murmur2_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def test_records_without_a_key_are_spread_round_robin() -> None:
    cluster = make_cluster()
    for value in (b"a", b"b", b"c", b"d"):
        cluster.append("in", value)
    assert list(map(describe, cluster.records("in"))) == [(0, 0, b"a"), (0, 1, b"d"), (1, 0, b"b"), (2, 0, b"c")]


# Calls out of order.


def test_producer_calls_outside_of_a_transaction_are_refused() -> None:
    cluster = make_cluster()
    producer = cluster.producer(producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED), "id")
    with pytest.raises(OutcomeUnknown, match="id: not started"):
        producer.begin_transaction()
    producer.init_transactions()
    calls: list[Callable[[], None]] = [
        lambda: producer.write([output(b"a")]),
        producer.commit_transaction,
        producer.abort_transaction,
    ]
    for call in calls:
        with pytest.raises(OutcomeUnknown, match="id: no transaction is open"):
            call()
    producer.begin_transaction()
    with pytest.raises(OutcomeUnknown, match="a transaction is open already"):
        producer.begin_transaction()
    producer.commit_transaction()
    assert cluster.ends([OUT0]) == {OUT0: 0}


def test_member_that_is_replaced_during_a_rebalance_raises_replaced() -> None:
    cluster = make_cluster()
    first, second = Member(cluster, "a"), Member(cluster, "b")
    first.poll()
    second.poll()
    newer = Member(cluster, "a")
    first.poll()
    with pytest.raises(
        Replaced, match=r"taken the slot of a over \(member 3; another member on memory\); this one ends"
    ):
        first.poll()
    newer.poll()
    second.poll()
    assert (first.events, newer.events, second.events) == ([{IN0, IN1}, "lost"], [{IN0, IN1}], [{IN2}])


def test_commit_of_a_replaced_member_is_refused() -> None:
    cluster = make_cluster()
    first = Member(cluster, "a")
    first.poll()
    Member(cluster, "a")
    with pytest.raises(Abortable, match="another worker has taken the slot of a over"):
        first.consumer.commit({IN0: 1})
    assert (first.events, cluster.groups["group"]) == ([{IN0, IN1, IN2}, "lost"], {})


def test_member_whose_session_timed_out_rejoins_unless_it_is_replaced() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    sleeper, silent = Member(cluster, "a"), Member(cluster, "a")
    silent.poll()
    clock.advance(11.0)
    newest = Member(cluster, "a")
    silent.poll()  # its partitions are lost: it asks the group
    cluster.faults.inject("membership", error=Retriable("no answer"), applied=False)
    silent.poll()
    with pytest.raises(Replaced):
        silent.poll()
    newest.poll()
    sleeper.poll()  # it had no partitions: its client rejoins without asking, and takes the membership over
    newest.poll()
    with pytest.raises(Replaced):
        newest.poll()
    assert (silent.events, newest.events) == ([{IN0, IN1, IN2}, "lost"], [{IN0, IN1, IN2}, "lost"])


def test_member_replaced_while_it_joins_never_takes_the_membership_back() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    replaced, other = Member(cluster, "a"), Member(cluster, "b")
    for member in (replaced, other, replaced):
        member.poll()
    replaced.consumer.rejoin()
    newer = Member(cluster, "a")
    newer.poll()
    replaced.poll()
    assert replaced.events[-1] == "lost"
    assert replaced.consumer.membership() == Membership(Owner.UNSURE, "member 4; another member on memory")
    for _ in range(31):  # three sessions of 10 s
        replaced.poll()
        clock.advance(1.0)
        for member in (newer, other):
            member.poll()
    with pytest.raises(Replaced):
        replaced.poll()
    assert newer.consumer.membership() == Membership(Owner.OURS)


def test_topic_growth_rebalances_once_the_leader_or_a_starting_member_sees_it() -> None:
    clock = ManualClock()
    cluster = MemoryCluster(clock, metadata_age=5.0)
    cluster.create_topics([("in", 2, -1, {})])
    leader, other = Member(cluster, "a"), Member(cluster, "b")
    for member in (leader, other, leader):
        member.poll()
    cluster.grow("in", 3)
    clock.advance(4.0)
    for member in (leader, other):
        member.poll()
    assert (leader.events, other.events) == ([{IN0}], [{IN1}])
    clock.advance(1.0)
    other.poll()  # it rejoins, and gets the same partition
    assert (leader.events, other.events) == ([{IN0}], [{IN1}, "revoked", {IN1}])
    for member in (leader, other, leader):
        member.poll()
    assert leader.events == [{IN0}, "revoked", {IN0, IN1}]
    assert other.events == [{IN1}, "revoked", {IN1}, "revoked", {IN2}]
    cluster.grow("in", 4)
    # its metadata has all four partitions already: no later growth would start a rebalance
    newer = Member(cluster, "a")
    for member in (newer, other, newer):
        member.poll()
    assert (newer.events, other.events[-1]) == ([{IN0, IN1}], {IN2, TopicPartition("in", 3)})


def test_leader_that_rejoins_before_it_sees_growth_gets_the_added_partitions() -> None:
    cluster = MemoryCluster(ManualClock(), metadata_age=5.0)
    cluster.create_topics([("in", 2, -1, {})])
    leader = Member(cluster, "a")
    leader.poll()
    cluster.grow("in", 3)
    leader.consumer.rejoin()
    leader.poll()
    assert leader.events == [{IN0, IN1}, {IN0, IN1, IN2}]


def test_static_member_gets_its_old_assignment_if_the_group_has_all_its_partitions() -> None:
    cluster = make_cluster()
    Member(cluster, "a").poll()
    newer = Member(cluster, "a")
    newer.poll()
    assert (newer.events, cluster._broker.group("group").generation) == ([{IN0, IN1, IN2}], 1)


def test_outage_leaves_requests_without_an_answer_whether_carried_out_or_not() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    member = Member(cluster, "a")
    member.poll()
    cluster.append("in", b"a", partition=0)
    applied = iter([True, False])
    cluster.faults.begin_outage(12.0, ["commit", "heartbeat"], lambda: next(applied))
    other = Member(cluster, "b")
    for position in (1, 2):
        with pytest.raises(Retriable, match="commit: no answer"):
            member.consumer.commit({IN0: position})
    member.poll()
    clock.advance(9.0)
    member.poll()
    assert (member.events, member.values, cluster.groups["group"]) == ([{IN0, IN1, IN2}], [b"a"], {IN0: 1})
    clock.advance(3.0)  # the session has not timed out: a coordinator that returns restarts all sessions
    for each in (member, other, member, other):
        each.poll()
    assert (member.events, other.events) == ([{IN0, IN1, IN2}, "lost", {IN0, IN1}], [{IN2}])


def test_deleted_topic_loses_its_committed_offsets_and_its_part_of_open_transactions() -> None:
    cluster = make_cluster()
    member = Member(cluster, "a")
    member.poll()
    member.consumer.commit({IN0: 1})
    producer = start_producer(cluster)
    producer.write([output(b"a"), output(b"b", "in")])
    producer.send_offsets({IN1: 1}, member.consumer)
    before = cluster.topics(["in"])["in"].topic_id
    cluster.faults.delete_topic("in")
    with pytest.raises(TopicError, match="topic 'in' does not exist"):
        member.poll()
    cluster.create_topics([("in", 1, -1, {})])
    producer.commit_transaction()
    assert (values_of(cluster.records("out")), cluster.ends([IN0]), cluster.groups["group"]) == ([b"a"], {IN0: 0}, {})
    assert cluster.topics(["in"])["in"].topic_id != before


def test_forget_positions_removes_the_committed_offsets_of_a_group() -> None:
    cluster = make_cluster()
    member = Member(cluster, "a")
    member.poll()
    member.consumer.commit({IN0: 1})
    cluster.faults.forget_positions("group")
    assert member.consumer.committed([IN0]) == {}


def test_write_to_a_partition_that_does_not_exist_fails_the_delivery() -> None:
    cluster = make_cluster()
    producer = start_producer(cluster)
    producer.write([("out", b"a", None, 9, None, None, 0, None)])
    with pytest.raises(TopicError, match="topic 'out' has 1 partitions, but no partition 9"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values_of(cluster.records("out", "read_uncommitted")) == []


def test_late_offset_commit_overwrites_a_newer_one() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    member = Member(cluster, "a")
    member.poll()
    cluster.faults.inject("commit", error=Retriable("no answer"), applied=False, late=5.0)
    with pytest.raises(Retriable):
        member.consumer.commit({IN0: 1})
    member.consumer.commit({IN0: 2})
    seen = [cluster.groups["group"]]
    clock.advance(5.0)
    assert [*seen, cluster.groups["group"]] == [{IN0: 2}, {IN0: 1}]


def test_member_whose_session_timed_out_before_any_assignment_is_not_revoked() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    member = Member(cluster, "a")
    clock.advance(11.0)
    member.poll()
    assert member.events == [{IN0, IN1, IN2}]


def test_late_batch_is_refused_once_its_transaction_has_ended() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    cluster.faults.inject("produce", error=Abortable("no answer"), applied=False, late=5.0)
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    with pytest.raises(Abortable, match="no answer"):
        producer.commit_transaction()
    producer.abort_transaction()
    clock.advance(5.0)
    assert (values_of(cluster.records("out", "read_uncommitted")), cluster.ends([OUT0])) == ([], {OUT0: 1})


def test_late_add_partition_opens_a_transaction_that_the_broker_times_out() -> None:
    clock = ManualClock()
    cluster = make_cluster(clock)
    cluster.faults.inject("add_partition", late=5.0)
    producer = start_producer(cluster)
    producer.write([output(b"a")])
    producer.commit_transaction()
    clock.advance(5.0)
    assert cluster.ends([OUT0]) == {OUT0: 2}
    clock.advance(11.0)
    assert cluster.ends([OUT0]) == {OUT0: 3}
    producer.begin_transaction()
    producer.write([output(b"b")])
    with pytest.raises(Fenced):
        producer.commit_transaction()


@pytest.mark.parametrize("applied", [True, False])
def test_transaction_after_one_with_a_failed_batch_is_complete(applied: bool) -> None:
    cluster = make_cluster()
    cluster.faults.inject("produce", nth=2, error=Abortable("no answer"), applied=applied)
    producer = start_producer(cluster)
    for value in (b"a", b"b", b"c"):
        producer.write([output(value)])
    with pytest.raises(Abortable, match="no answer"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.write([output(b"a"), output(b"b"), output(b"c")])
    producer.commit_transaction()
    assert values_of(cluster.records("out")) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("applied", [True, False])
def test_producer_without_transactions_writes_again_after_a_failed_batch(applied: bool) -> None:
    cluster = make_cluster()
    cluster.faults.inject("produce", error=Abortable("no answer"), applied=applied)
    producer = start_producer(cluster, Guarantee.AT_LEAST_ONCE)
    producer.write([output(b"a")])
    with pytest.raises(Abortable, match="no answer"):
        producer.flush()
    producer.write([output(b"a"), output(b"b")])
    producer.flush()
    assert values_of(cluster.records("out")) == [b"a"] * applied + [b"a", b"b"]
