"""testing/: what only the log in memory has: its clock, faults on request, sequences, records that linger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from kstreams_py.delivery import PROMISES, Durability, Guarantee, Output
from kstreams_py.errors import Abortable, Fenced, LogError, OutcomeUnknown, Replaced, Retriable, TopicError
from kstreams_py.partitioner import murmur2
from kstreams_py.record import Message, TopicPartition
from kstreams_py.testing import ManualClock, MemoryLog
from kstreams_py.testing.memory_broker import Content, Partition, Stamp
from kstreams_py.testing.memory_clients import Fault, MemoryConsumer, MemoryProducer

IN0, IN1, IN2 = (TopicPartition("in", number) for number in range(3))
OUT0 = TopicPartition("out", 0)


class Member:
    """A consumer that keeps what was assigned, revoked and handed out."""

    def __init__(self, log: MemoryLog, seat: str, topic: str = "in") -> None:
        self.events: list[object] = []
        self.values: list[bytes | None] = []
        self.consumer: MemoryConsumer = log.consumer("group", seat)
        self._new: set[TopicPartition] = set()
        self.consumer.subscribe(
            [topic], self._assigned, lambda: self.events.append("revoked"), lambda: self.events.append("lost")
        )

    def _assigned(self, partitions: set[TopicPartition]) -> None:
        self.events.append(partitions)
        self._new = partitions

    def poll(self) -> None:
        """Reads; from the start, or the committed positions, of what is assigned meanwhile."""
        found = self.consumer.consume(100, 0.0)
        if self._new:
            assert not found
            self.consumer.assign(dict.fromkeys(self._new, 0) | self.consumer.committed(self._new))
            self._new = set()
            found = self.consumer.consume(100, 0.0)
        self.values += [m.value() for m in found]


def memory_log(clock: ManualClock | None = None, *, linger: float = 0.0) -> MemoryLog:
    log = MemoryLog(clock, linger=linger)
    log.create_topics([("in", 3, -1, {}), ("out", 1, -1, {})])
    return log


def started(
    log: MemoryLog, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, durability: Durability = Durability.COMMITTED
) -> MemoryProducer:
    producer = log.producer(PROMISES[guarantee], durability, "id")
    if guarantee is Guarantee.EXACTLY_ONCE:
        producer.init_transactions()
        producer.begin_transaction()
    return producer


def output(value: bytes, topic: str = "out") -> Output:
    return (topic, value, None, 0, None, None, 0, None)


def values(messages: Sequence[Message]) -> list[bytes | None]:
    return [m.value() for m in messages]


def place(m: Message) -> tuple[int, int, bytes | None]:
    return m.partition(), m.offset(), m.value()


# What time brings.


def test_transaction_open_for_too_long_is_aborted_by_the_broker_and_its_producer_fenced() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    producer = started(log)
    producer.write([output(b"a")])
    clock.advance(10.0)
    assert (values(log.records("out", "read_uncommitted")), log.ends([OUT0])) == ([b"a"], {OUT0: 0})
    clock.advance(0.5)
    assert log.ends([OUT0]) == {OUT0: 2}
    with pytest.raises(Fenced, match="id: epoch 0 is over, 1 counts"):
        producer.commit_transaction()
    assert values(log.records("out")) == []


def test_transaction_time_out_counts_from_the_first_record_and_not_for_an_idle_producer() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    producer = started(log)
    clock.advance(100.0)
    producer.write([output(b"a")])
    clock.advance(10.0)
    producer.commit_transaction()
    clock.advance(100.0)
    producer.begin_transaction()
    producer.write([output(b"b")])
    producer.commit_transaction()
    assert values(log.records("out")) == [b"a", b"b"]


def test_positions_pending_in_a_timed_out_transaction_are_dropped() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    member = Member(log, "a")
    member.poll()
    producer = started(log)
    producer.send_offsets({IN0: 5}, member.consumer)
    with pytest.raises(Retriable, match=r"group group: the position of in\[0\] is pending in a transaction"):
        member.consumer.committed([IN0])
    assert member.consumer.committed([IN1]) == {}
    clock.advance(11.0)
    assert member.consumer.committed([IN0]) == {}
    assert log.group("group") == {}


def test_seat_of_a_silent_member_is_freed_and_its_partitions_go_to_the_others() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    silent, other = Member(log, "a"), Member(log, "b")
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


def test_member_whose_session_timed_out_has_lost_it_cannot_commit_and_joins_again() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    member = Member(log, "a")
    member.poll()
    assert member.consumer.hold_seat()
    clock.advance(11.0)
    assert not member.consumer.hold_seat()
    for call in (
        lambda: member.consumer.commit({IN0: 1}),
        lambda: started(log).send_offsets({IN0: 1}, member.consumer),
    ):
        with pytest.raises(Abortable, match=r"group group: a is no member \(any more\)"):
            call()
    member.poll()
    assert member.events == [{IN0, IN1, IN2}, "lost"]
    member.poll()  # it asks who holds its membership first
    assert member.events == [{IN0, IN1, IN2}, "lost", {IN0, IN1, IN2}]
    member.consumer.commit({IN0: 1})
    assert log.group("group") == {IN0: 1}


def test_rebalance_waits_for_every_member_and_lets_the_old_generation_commit_until_then() -> None:
    log = memory_log()
    first = Member(log, "a")
    first.poll()
    second = Member(log, "b")
    second.poll()
    assert (first.events, second.events) == ([{IN0, IN1, IN2}], [])
    log.append("in", b"a", partition=2)
    first.consumer.commit({IN2: 1})
    first.poll()
    second.poll()
    assert first.events == [{IN0, IN1, IN2}, "revoked", {IN0, IN1}]
    assert second.events == [{IN2}]
    assert second.consumer.committed([IN2]) == {IN2: 1}


def test_rebalance_completed_by_others_makes_the_commit_of_a_member_that_did_not_see_it_abortable() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    first, second = Member(log, "a"), Member(log, "b")
    first.poll()
    second.poll()
    third = Member(log, "c")
    first.poll()
    second.poll()
    with pytest.raises(Abortable, match="group group: a is of generation -1, and 2 is the newest"):
        first.consumer.commit({IN0: 1})
    first.poll()
    third.poll()
    assert [m.events[-1] for m in (first, second, third)] == [{IN0}, {IN1}, {IN2}]


def test_time_stamps_come_from_the_clock() -> None:
    log = memory_log(ManualClock(5.25))
    log.append("in", b"a", partition=0)
    log.append("in", b"b", partition=0, timestamp=7)
    assert [m.timestamp() for m in log.records("in")] == [(1, 5250), (1, 7)]


def test_lingering_records_leave_with_time_a_flush_or_a_commit_and_are_lost_with_their_producer() -> None:
    clock = ManualClock()
    log = memory_log(clock, linger=0.02)
    producer = started(log, Guarantee.AT_LEAST_ONCE)
    producer.write([output(b"a")])
    seen = [values(log.records("out"))]
    clock.advance(0.03)
    seen.append(values(log.records("out")))
    producer.write([output(b"b")])
    producer.flush()
    seen.append(values(log.records("out")))
    producer.write([output(b"c")])
    producer.drop()
    clock.advance(1.0)
    seen.append(values(log.records("out")))
    transactional = started(log)
    transactional.write([output(b"d")])
    transactional.commit_transaction()
    seen.append(values(log.records("out")))
    assert seen == [[], [b"a"], [b"a", b"b"], [b"a", b"b"], [b"a", b"b", b"d"]]


# What goes wrong on request.


def test_commit_whose_answer_is_lost_was_carried_out() -> None:
    log = memory_log()
    log.inject("commit_transaction", nth=2, error=OutcomeUnknown("no answer"))
    producer = started(log)
    producer.write([output(b"a")])
    producer.commit_transaction()
    producer.begin_transaction()
    producer.write([output(b"b")])
    with pytest.raises(OutcomeUnknown, match="no answer"):
        producer.commit_transaction()
    assert values(log.records("out")) == [b"a", b"b"]


def test_commit_that_is_lost_on_its_way_leaves_the_transaction_open_until_a_new_producer() -> None:
    log = memory_log()
    log.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=False)
    producer = started(log)
    producer.write([output(b"a")])
    with pytest.raises(OutcomeUnknown, match="no answer"):
        producer.commit_transaction()
    assert (values(log.records("out", "read_uncommitted")), log.ends([OUT0])) == ([b"a"], {OUT0: 0})
    started(log)
    assert (values(log.records("out")), log.ends([OUT0])) == ([], {OUT0: 2})


@pytest.mark.parametrize(("renewed", "read"), [(False, [b"a", b"b"]), (True, [b"a"])])
def test_commit_that_comes_late_ends_a_later_transaction_of_its_epoch_and_none_of_a_newer(
    renewed: bool, read: list[bytes]
) -> None:
    clock = ManualClock()
    log = memory_log(clock)
    log.inject("commit_transaction", late=6.0)
    producer = started(log)
    producer.write([output(b"a")])
    tainted = [producer.tainted]
    producer.commit_transaction()
    tainted.append(producer.tainted)
    if renewed:
        producer = started(log)
    else:
        producer.begin_transaction()
    assert [*tainted, producer.tainted] == [False, True, not renewed]
    producer.write([output(b"b")])
    clock.advance(6.0)
    assert values(log.records("out")) == read
    if renewed:
        producer.abort_transaction()
    else:
        with pytest.raises(OutcomeUnknown, match="id: no transaction is open"):
            producer.abort_transaction()
    assert values(log.records("out")) == read


def test_commit_of_unknown_outcome_taints_nothing_and_may_come_late_all_the_same() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    log.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=False, late=6.0)
    producer = started(log)
    producer.write([output(b"a")])
    with pytest.raises(OutcomeUnknown):
        producer.commit_transaction()
    assert (producer.tainted, values(log.records("out"))) == (False, [])
    clock.advance(6.0)
    assert values(log.records("out")) == [b"a"]


def test_commit_that_is_said_again_is_taken_for_the_one_before() -> None:
    log = memory_log()
    producer = started(log)
    producer.write([output(b"a")])
    log.inject("commit_transaction", error=Retriable("no answer"))
    with pytest.raises(Retriable):
        producer.commit_transaction()
    producer.commit_transaction()
    assert values(log.records("out")) == [b"a"]
    producer.begin_transaction()
    producer.write([output(b"b")])
    producer.commit_transaction()
    assert values(log.records("out")) == [b"a", b"b"]


def test_markers_follow_the_answer_to_a_commit_and_whoever_needs_them_waits_for_them() -> None:
    clock = ManualClock()
    log = MemoryLog(clock, marker_delay=0.5)
    log.create_topics([("in", 3, -1, {}), ("out", 1, -1, {})])
    member = Member(log, "a")
    member.poll()
    producer = started(log)
    for value, position in ((b"a", 1), (b"b", 2)):
        producer.write([output(value)])
        producer.send_offsets({IN0: position}, member.consumer)
        producer.commit_transaction()
        assert (log.ends([OUT0]), log.group("group").get(IN0, 0)) == ({OUT0: 2 * (position - 1)}, position - 1)
        with pytest.raises(Retriable):
            member.consumer.committed([IN0])
        if position == 1:
            producer.begin_transaction()  # its first partition waits for the markers of the one before
    clock.advance(0.5)
    assert (values(log.records("out")), log.group("group")) == ([b"a", b"b"], {IN0: 2})
    producer.begin_transaction()
    producer.write([output(b"c")])
    producer.commit_transaction()
    assert values(log.records("out")) == [b"a", b"b"]
    started(log)  # so does a new producer
    assert values(log.records("out")) == [b"a", b"b", b"c"]


def test_positions_that_come_late_are_refused_once_their_transaction_has_ended() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    member = Member(log, "a")
    member.poll()
    log.inject("send_offsets", late=3.0)
    producer = started(log)
    producer.send_offsets({IN0: 5}, member.consumer)
    producer.commit_transaction()
    clock.advance(3.0)
    assert member.consumer.committed([IN0]) == {IN0: 5}  # nothing is pending


@pytest.mark.parametrize(("rejoins", "position"), [(True, 2), (False, 1)])
def test_commit_that_comes_late_is_refused_once_its_member_has_joined_again(rejoins: bool, position: int) -> None:
    clock = ManualClock()
    log = memory_log(clock)
    log.append("in", b"a", partition=0)
    member = Member(log, "a")
    member.poll()
    log.inject("commit", late=3.0)
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
    assert log.group("group") == {IN0: position}


def test_requests_of_a_member_that_come_late_taint_it_only_if_they_commit() -> None:
    log = memory_log()
    member = Member(log, "a")
    member.poll()
    for request, call in (("hold_seat", member.consumer.hold_seat), ("consume", member.poll)):
        log.inject(request, late=3.0)
        call()
    assert not member.consumer.tainted


def test_watcher_sees_each_request_with_its_client_and_says_what_befalls_it() -> None:
    log = memory_log()
    seen: list[tuple[str, object]] = []

    def watch(name: str, client: object) -> Fault | None:
        seen.append((name, client))
        return Fault(OutcomeUnknown("watched"), applied=False) if name == "commit_transaction" else None

    log.watch(watch)
    producer = started(log)
    producer.write([output(b"a")])
    with pytest.raises(OutcomeUnknown, match="watched"):
        producer.commit_transaction()
    log.ends([OUT0])
    names = ["init_transactions", "add_partition", "produce", "commit_transaction"]
    assert seen == [*((name, producer) for name in names), ("ends", None)]
    assert values(log.records("out")) == []


def test_watcher_that_raises_stops_a_request_before_it_is_made() -> None:
    def dies(name: str, client: object) -> None:
        raise SystemExit(name)

    log = memory_log()
    before = len(log.requests)
    log.watch(dies)
    with pytest.raises(SystemExit, match="ends"):
        log.ends([OUT0])
    assert len(log.requests) == before


def test_chance_changes_what_a_fetch_brings_and_nothing_of_what_there_is() -> None:
    fetches = []
    for seed in (1, 1, 2):
        log = MemoryLog(chance=Random(seed))
        log.create_topics([("in", 3, -1, {})])
        for number in range(12):
            log.append("in", b"%d" % number, partition=number % 3)
        member = Member(log, "a")
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


def test_abort_that_is_lost_and_comes_late_leaves_positions_pending_until_then() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    member = Member(log, "a")
    member.poll()
    log.inject("abort_transaction", error=OutcomeUnknown("no answer"), applied=False, late=3.0)
    producer = started(log)
    producer.send_offsets({IN0: 5}, member.consumer)
    with pytest.raises(OutcomeUnknown):
        producer.abort_transaction()
    with pytest.raises(Retriable):
        member.consumer.committed([IN0])
    clock.advance(3.0)
    assert member.consumer.committed([IN0]) == {}


def test_requests_are_recorded_in_order_and_any_of_them_can_be_where_a_crash_happens() -> None:
    class Crash(BaseException):
        pass

    def way(log: MemoryLog) -> None:
        producer = started(log)
        producer.write([output(b"a"), output(b"b", "in")])
        producer.commit_transaction()

    clean = memory_log()
    before = len(clean.requests)
    way(clean)
    expected = ["init_transactions", "add_partition", "produce", "add_partition", "produce", "commit_transaction"]
    assert clean.requests[before:] == expected
    seen = []
    for nth in range(1, len(expected) + 1):
        for applied in (False, True):
            log = memory_log()
            log.inject("", nth=nth, error=Crash(), applied=applied)
            with pytest.raises(Crash):
                way(log)
            seen.append((nth, applied, values(log.records("out")), values(log.records("out", "read_uncommitted"))))
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
def test_batch_without_an_answer_is_sent_again_as_promised_and_doubled_only_without_sequences(
    guarantee: Guarantee, durability: Durability, applied: bool, read: list[bytes], error: type[LogError] | None
) -> None:
    log = memory_log()
    log.inject("produce", error=Retriable("no answer"), applied=applied)
    producer = started(log, guarantee, durability)
    producer.write([output(b"a")])
    if error is None:
        producer.flush()
    else:
        with pytest.raises(error, match=r"writing to out\[0\]: no answer"):
            producer.flush()
        producer.flush()
    assert values(log.records("out")) == read


def test_batch_in_a_transaction_without_an_answer_is_sent_again_and_written_once() -> None:
    log = memory_log()
    log.inject("produce", nth=1, error=Retriable("no answer"))
    log.inject("produce", nth=3, error=Retriable("no answer"), applied=False)
    producer = started(log)
    producer.write([output(b"a"), output(b"b")])
    producer.write([output(b"c")])
    producer.commit_transaction()
    assert list(map(place, log.records("out"))) == [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c")]


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
@pytest.mark.parametrize("applied", [True, False])
def test_batches_without_an_answer_wait_and_are_written_once_and_in_order(guarantee: Guarantee, applied: bool) -> None:
    clock = ManualClock()
    log = memory_log(clock)
    producer = started(log, guarantee)
    log.begin_outage(5.0, ["produce"], lambda: applied)
    for value in (b"a", b"b"):
        producer.write([output(value)])
        with pytest.raises(Retriable, match=r"batches to out\[0\] wait for their acknowledgement"):
            producer.flush()
    clock.advance(5.0)
    producer.flush()
    assert values(log.records("out")) == [b"a", b"b"]


def test_transaction_whose_batches_find_no_answer_can_be_neither_committed_nor_aborted() -> None:
    log = memory_log()
    producer = started(log)
    log.begin_outage(5.0, ["produce"])
    producer.write([output(b"a")])
    with pytest.raises(Abortable, match=r"id: batches to out\[0\] are not acknowledged"):
        producer.commit_transaction()
    with pytest.raises(OutcomeUnknown, match="id: batches were neither sent nor refused before the abort"):
        producer.abort_transaction()


def test_delivery_that_fails_fails_the_whole_transaction() -> None:
    log = memory_log()
    log.inject("produce", nth=2, error=Abortable("disk full"), applied=False)
    producer = started(log)
    producer.write([output(b"a"), output(b"b", "in")])
    member = Member(log, "a")
    member.poll()
    calls: list[Callable[[], None]] = [
        lambda: producer.send_offsets({IN0: 1}, member.consumer),
        producer.commit_transaction,
    ]
    for call in calls:
        with pytest.raises(Abortable, match="disk full"):
            call()
    producer.abort_transaction()
    assert (values(log.records("out")), values(log.records("in")), log.group("group")) == ([], [], {})


# Sequences and keys.


def test_batches_are_known_by_producer_epoch_and_sequence_doubles_dropped_gaps_refused() -> None:
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
    assert values(list(partition.read(0, "read_committed"))) == [
        b"a",
        b"b",
        b"of another producer",
        b"of another epoch",
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def test_records_without_a_key_go_round_robin() -> None:
    log = memory_log()
    for value in (b"a", b"b", b"c", b"d"):
        log.append("in", value)
    assert list(map(place, log.records("in"))) == [(0, 0, b"a"), (0, 1, b"d"), (1, 0, b"b"), (2, 0, b"c")]


# Calls out of order.


def test_producer_calls_outside_of_a_transaction_are_refused() -> None:
    log = memory_log()
    producer = log.producer(PROMISES[Guarantee.EXACTLY_ONCE], Durability.COMMITTED, "id")
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
    assert log.ends([OUT0]) == {OUT0: 0}


def test_member_that_was_replaced_while_its_group_rebalances_ends() -> None:
    log = memory_log()
    first, second = Member(log, "a"), Member(log, "b")
    first.poll()
    second.poll()
    newer = Member(log, "a")
    first.poll()
    with pytest.raises(Replaced, match="another worker has taken the slot of a over; this one ends"):
        first.poll()
    newer.poll()
    second.poll()
    assert (first.events, newer.events, second.events) == ([{IN0, IN1}, "lost"], [{IN0, IN1}], [{IN2}])


def test_member_that_was_replaced_is_told_by_its_commit_that_it_is_no_member() -> None:
    log = memory_log()
    first = Member(log, "a")
    first.poll()
    Member(log, "a")
    with pytest.raises(Abortable, match="another worker has taken the slot of a over"):
        first.consumer.commit({IN0: 1})
    assert (first.events, log.group("group")) == ([{IN0, IN1, IN2}, "lost"], {})


def test_member_that_wakes_up_joins_again_unless_another_has_its_seat_and_waits_for_the_group_to_say() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    sleeper, silent = Member(log, "a"), Member(log, "a")
    silent.poll()
    clock.advance(11.0)
    newest = Member(log, "a")
    silent.poll()  # it has lost its partitions, and asks
    log.inject("hold_seat", error=Retriable("no answer"), applied=False)
    silent.poll()
    with pytest.raises(Replaced):
        silent.poll()
    newest.poll()
    sleeper.poll()  # it never had any: its client joins again without a word, and takes the seat
    newest.poll()
    with pytest.raises(Replaced):
        newest.poll()
    assert (silent.events, newest.events) == ([{IN0, IN1, IN2}, "lost"], [{IN0, IN1, IN2}, "lost"])


def test_only_the_leader_of_a_group_sees_its_topic_grow_and_whoever_starts_compares() -> None:
    clock = ManualClock()
    log = MemoryLog(clock, metadata_age=5.0)
    log.create_topics([("in", 2, -1, {})])
    leader, other = Member(log, "a"), Member(log, "b")
    for member in (leader, other, leader):
        member.poll()
    log.grow("in", 3)
    clock.advance(4.0)
    for member in (leader, other):
        member.poll()
    assert (leader.events, other.events) == ([{IN0}], [{IN1}])
    clock.advance(1.0)
    other.poll()  # it joins again, and is given what it had
    assert (leader.events, other.events) == ([{IN0}], [{IN1}, "revoked", {IN1}])
    for member in (leader, other, leader):
        member.poll()
    assert leader.events == [{IN0}, "revoked", {IN0, IN1}]
    assert other.events == [{IN1}, "revoked", {IN1}, "revoked", {IN2}]
    log.grow("in", 4)
    newer = Member(log, "a")  # it knows all four from the start, and no rebalance would come of it
    for member in (newer, other, newer):
        member.poll()
    assert (newer.events, other.events[-1]) == ([{IN0, IN1}], {IN2, TopicPartition("in", 3)})


def test_static_member_is_given_its_old_assignment_if_the_group_has_all_that_it_reads() -> None:
    log = memory_log()
    Member(log, "a").poll()
    newer = Member(log, "a")
    newer.poll()
    assert (newer.events, log._broker.group("group").generation) == ([{IN0, IN1, IN2}], 1)


def test_outage_leaves_requests_without_an_answer_whether_carried_out_or_not() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    member = Member(log, "a")
    member.poll()
    log.append("in", b"a", partition=0)
    applied = iter([True, False])
    log.begin_outage(12.0, ["commit", "heartbeat"], lambda: next(applied))
    other = Member(log, "b")
    for position in (1, 2):
        with pytest.raises(Retriable, match="commit: no answer"):
            member.consumer.commit({IN0: position})
    member.poll()
    clock.advance(9.0)
    member.poll()
    assert (member.events, member.values, log.group("group")) == ([{IN0, IN1, IN2}], [b"a"], {IN0: 1})
    clock.advance(3.0)  # the session has not timed out: the coordinator is back, and hears everybody anew
    for each in (member, other, member, other):
        each.poll()
    assert (member.events, other.events) == ([{IN0, IN1, IN2}, "lost", {IN0, IN1}], [{IN2}])


def test_topic_that_is_deleted_takes_its_positions_and_its_part_of_transactions_along() -> None:
    log = memory_log()
    member = Member(log, "a")
    member.poll()
    member.consumer.commit({IN0: 1})
    producer = started(log)
    producer.write([output(b"a"), output(b"b", "in")])
    producer.send_offsets({IN1: 1}, member.consumer)
    before = log.topics(["in"])["in"].topic_id
    log.delete("in")
    with pytest.raises(TopicError, match="topic 'in' does not exist"):
        member.poll()
    log.create_topics([("in", 1, -1, {})])
    producer.commit_transaction()
    assert (values(log.records("out")), log.ends([IN0]), log.group("group")) == ([b"a"], {IN0: 0}, {})
    assert log.topics(["in"])["in"].topic_id != before


def test_positions_of_a_group_can_be_forgotten() -> None:
    log = memory_log()
    member = Member(log, "a")
    member.poll()
    member.consumer.commit({IN0: 1})
    log.forget_positions("group")
    assert member.consumer.committed([IN0]) == {}


def test_write_to_a_partition_that_does_not_exist_fails_the_delivery() -> None:
    log = memory_log()
    producer = started(log)
    producer.write([("out", b"a", None, 9, None, None, 0, None)])
    with pytest.raises(TopicError, match="topic 'out' has 1 partitions, and no 9"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(log.records("out", "read_uncommitted")) == []


def test_plain_commit_that_comes_late_overwrites_a_newer_one() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    member = Member(log, "a")
    member.poll()
    log.inject("commit", error=Retriable("no answer"), applied=False, late=5.0)
    with pytest.raises(Retriable):
        member.consumer.commit({IN0: 1})
    member.consumer.commit({IN0: 2})
    seen = [log.group("group")]
    clock.advance(5.0)
    assert [*seen, log.group("group")] == [{IN0: 2}, {IN0: 1}]


def test_member_whose_session_timed_out_before_it_was_assigned_anything_is_not_revoked() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    member = Member(log, "a")
    clock.advance(11.0)
    member.poll()
    assert member.events == [{IN0, IN1, IN2}]


def test_batch_that_comes_late_is_refused_once_its_transaction_has_ended() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    log.inject("produce", error=Abortable("no answer"), applied=False, late=5.0)
    producer = started(log)
    producer.write([output(b"a")])
    with pytest.raises(Abortable, match="no answer"):
        producer.commit_transaction()
    producer.abort_transaction()
    clock.advance(5.0)
    assert (values(log.records("out", "read_uncommitted")), log.ends([OUT0])) == ([], {OUT0: 1})


def test_partition_that_is_added_late_opens_a_transaction_which_the_broker_ends() -> None:
    clock = ManualClock()
    log = memory_log(clock)
    log.inject("add_partition", late=5.0)
    producer = started(log)
    producer.write([output(b"a")])
    producer.commit_transaction()
    clock.advance(5.0)
    assert log.ends([OUT0]) == {OUT0: 2}
    clock.advance(11.0)
    assert log.ends([OUT0]) == {OUT0: 3}
    producer.begin_transaction()
    producer.write([output(b"b")])
    with pytest.raises(Fenced):
        producer.commit_transaction()


@pytest.mark.parametrize("applied", [True, False])
def test_transaction_after_one_with_a_failed_batch_is_complete(applied: bool) -> None:
    log = memory_log()
    log.inject("produce", nth=2, error=Abortable("no answer"), applied=applied)
    producer = started(log)
    for value in (b"a", b"b", b"c"):
        producer.write([output(value)])
    with pytest.raises(Abortable, match="no answer"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.write([output(b"a"), output(b"b"), output(b"c")])
    producer.commit_transaction()
    assert values(log.records("out")) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("applied", [True, False])
def test_producer_without_transactions_goes_on_after_a_failed_batch(applied: bool) -> None:
    log = memory_log()
    log.inject("produce", error=Abortable("no answer"), applied=applied)
    producer = started(log, Guarantee.AT_LEAST_ONCE)
    producer.write([output(b"a")])
    with pytest.raises(Abortable, match="no answer"):
        producer.flush()
    producer.write([output(b"a"), output(b"b")])
    producer.flush()
    assert values(log.records("out")) == [b"a"] * applied + [b"a", b"b"]
