"""The Cluster contract: one suite that the cluster in memory and a real one must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from kstreams_py.errors import Abortable, Fenced, InputLost, Refused, Replaced, Retriable, TopicError
from kstreams_py.graph.guarantees import Durability
from kstreams_py.kafka import cluster
from kstreams_py.kafka.contracts import Consumer
from kstreams_py.kafka.groups import GroupOffsets
from kstreams_py.kafka.membership import Membership, Owner
from kstreams_py.records import Headers, Message, Positions, TopicPartition
from tests.contract.rig import MURMUR2, KafkaRig, Member, MemoryRig, Rig, Row, output, poll_until_held, row, until
from tests.signing_in import WAYS


@pytest.fixture(params=["memory", "kafka", *(pytest.param(way, marks=pytest.mark.long) for way in WAYS)])
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """In memory, and on a broker: the quick tier has the other ways to sign in in test_signing_in.py."""
    monkeypatch.setattr(cluster, "LEAVE_SECONDS", 60.0)
    rig: Rig
    if request.param == "memory":
        rig = MemoryRig()
    elif request.param == "kafka":
        rig = KafkaRig(request.getfixturevalue("broker").bootstrap_servers)
    else:
        listeners = request.getfixturevalue("listeners")
        rig = KafkaRig(listeners.open_servers, listeners.clients[request.param])
    try:
        yield rig
    finally:
        rig.close()


# Visibility of transactions.


def test_committed_transaction_is_seen_and_an_aborted_one_is_not(rig: Rig) -> None:
    topic = rig.topic()
    rig.append(topic, b"plain")
    rig.transaction(topic, b"a", b"b")
    rig.transaction(topic, b"c", commits=False)
    rig.transaction(topic, b"d")
    assert rig.committed(topic) == [(0, 0, b"plain"), (0, 1, b"a"), (0, 2, b"b"), (0, 6, b"d")]
    assert rig.uncommitted(topic) == [(0, 0, b"plain"), (0, 1, b"a"), (0, 2, b"b"), (0, 4, b"c"), (0, 6, b"d")]


def test_length_of_a_record_is_that_of_its_value(rig: Rig) -> None:
    """By it the bytes that are read are counted: to call value() for each record costs twice the time."""
    topic = rig.topic()
    rig.append(topic, b"four", b"", None)
    messages: list[Any] = rig.messages(topic)
    assert [len(m) for m in messages] == [4, 0, 0]


@pytest.mark.parametrize("commits", [True, False])
def test_transaction_over_two_topics_and_their_partitions_is_all_or_nothing(rig: Rig, commits: bool) -> None:
    one, two = rig.topic(2), rig.topic()
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(one, b"a"), output(one, b"b", partition=1), output(two, b"c")])
    if commits:
        producer.commit_transaction()
    else:
        producer.flush()
        producer.abort_transaction()
    expected = ([(0, 0, b"a"), (1, 0, b"b")], [(0, 0, b"c")]) if commits else ([], [])
    assert (rig.committed(one), rig.committed(two)) == expected


def test_open_transaction_is_not_delivered_and_later_records_wait_for_its_end(rig: Rig) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)
    rig.append(topic, b"before")
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(topic, b"open")])
    producer.flush()
    rig.append(topic, b"later")
    everything = [(0, 0, b"before"), (0, 1, b"open"), (0, 2, b"later")]
    assert rig.cluster.ends([tp]) == {tp: 1}
    assert list(map(row, rig.messages(topic))) == [(0, 0, b"before")]
    assert rig.uncommitted(topic) == everything
    producer.commit_transaction()
    assert rig.committed(topic) == everything
    assert rig.cluster.ends([tp]) == {tp: 4}


def test_one_producer_commits_after_an_abort_and_an_empty_transaction(rig: Rig) -> None:
    topic = rig.topic()
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(topic, b"a")])
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.commit_transaction()
    for value in (b"b", b"c"):
        producer.begin_transaction()
        producer.write([output(topic, value)])
        producer.commit_transaction()
    assert rig.committed(topic) == [(0, 2, b"b"), (0, 4, b"c")]
    assert not producer.tainted


def test_abort_right_after_a_write_leaves_no_visible_record(rig: Rig) -> None:
    topic = rig.topic()
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(topic, b"a")])
    producer.abort_transaction()
    producer.begin_transaction()
    producer.write([output(topic, b"b")])
    producer.commit_transaction()
    assert [value for _, _, value in rig.committed(topic)] == [b"b"]


# Ends, with markers at all positions.


def _marker_last(rig: Rig, topic: str) -> None:
    rig.transaction(topic, b"a")


def _marker_in_the_middle(rig: Rig, topic: str) -> None:
    rig.transaction(topic, b"a")
    rig.append(topic, b"b")


def _marker_first(rig: Rig, topic: str) -> None:
    rig.transaction(topic, b"a")
    rig.append(topic, b"b")
    rig.cluster.truncate(TopicPartition(topic, 0), 1)


def _nothing_visible(rig: Rig, topic: str) -> None:
    rig.transaction(topic, b"a", commits=False)
    rig.transaction(topic, b"b", commits=False)


def _nothing(rig: Rig, topic: str) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "start", "read", "end"),
    [
        (_marker_last, 0, [(0, 0, b"a")], 2),
        (_marker_in_the_middle, 0, [(0, 0, b"a"), (0, 2, b"b")], 3),
        (_marker_first, 1, [(0, 2, b"b")], 3),
        (_nothing_visible, 0, [], 4),
        (_nothing, 0, [], 0),
    ],
)
def test_ends_are_the_last_stable_offset_wherever_the_markers_are(
    rig: Rig, prepare: Callable[[Rig, str], None], start: int, read: list[Row], end: int
) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)
    prepare(rig, topic)
    rig.settle(topic)
    consumer = rig.consumer()
    consumer.assign({tp: start})
    found: list[Row] = []

    def has_ends() -> bool:
        found.extend(map(row, consumer.consume(100, 0.1)))
        return bool(consumer.ends)

    until(has_ends)
    assert (found, consumer.ends, rig.cluster.ends([tp])) == (read, {tp: end}, {tp: end})


def test_ends_are_reported_after_all_earlier_records_and_reset_by_assign(rig: Rig) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)
    rig.transaction(topic, b"a", b"b", b"c")
    rig.settle(topic)
    consumer = rig.consumer()
    consumer.assign({tp: 0})
    found: list[Row] = []

    def has_two_records() -> bool:
        found.extend(map(row, consumer.consume(1, 0.1)))
        return len(found) >= 2

    def has_ends() -> bool:
        found.extend(map(row, consumer.consume(1, 0.1)))
        return bool(consumer.ends)

    until(has_two_records)
    assert (len(found), consumer.ends) == (2, {})
    until(has_ends)
    assert ([value for _, _, value in found], consumer.ends) == ([b"a", b"b", b"c"], {tp: 4})
    consumer.assign({tp: 2})
    assert consumer.ends == {}


# Committed offsets and reading.


def test_committed_offsets_move_with_a_commit_and_stay_with_an_abort(rig: Rig) -> None:
    group, topic = rig.name(), rig.topic()
    tp = TopicPartition(topic, 0)
    rig.append(topic, b"a", b"b", b"c")
    member = rig.member(group, "member", topic)
    until(lambda: member.poll().holds(tp))
    producer = rig.producer()
    seen = [member.consumer.committed([tp])]
    for position, commits in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.send_offsets({tp: position}, member.consumer)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        seen.append(member.consumer.committed([tp]))
    assert seen == [{}, {tp: 1}, {tp: 1}, {tp: 3}]


def test_group_without_members_takes_offsets_of_a_client_that_never_joined(rig: Rig) -> None:
    group, tp = rig.name(), TopicPartition(rig.topic(), 0)
    consumer, producer = rig.consumer(group, "nobody"), rig.producer()
    producer.begin_transaction()
    producer.send_offsets({tp: 3}, consumer)
    producer.commit_transaction()
    until(lambda: consumer.committed([tp]) == {tp: 3}, pause=0.01)


def test_committed_offsets_move_with_a_commit_outside_of_transactions(rig: Rig) -> None:
    group, topic = rig.name(), rig.topic()
    tp = TopicPartition(topic, 0)
    rig.append(topic, b"a", b"b")
    member = rig.member(group, "member", topic)
    until(lambda: len(member.poll().rows) == 2)
    member.consumer.commit({tp: 2})
    assert member.consumer.committed([tp]) == {tp: 2}


def test_pending_offsets_raise_retriable_until_their_transaction_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, topic = rig.name(), rig.topic()
    tp = TopicPartition(topic, 0)
    rig.append(topic, b"a")
    member = rig.member(group, "member", topic)
    until(lambda: member.poll().holds(tp))
    producer = rig.producer()
    producer.begin_transaction()
    producer.send_offsets({tp: 1}, member.consumer)
    other = rig.consumer(group, "other")
    monkeypatch.setattr(other, "_limit", 2.0, raising=False)  # the client asks again until then
    with pytest.raises(Retriable):
        other.committed([tp])
    producer.commit_transaction()
    assert rig.consumer(group, "other").committed([tp]) == {tp: 1}


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_offsets_of_a_group_are_read_beside_those_that_are_pending(rig: Rig, ends: str) -> None:
    group, topic = rig.name(), rig.topic(3)
    zero, one, two = rig.partitions(topic)
    member = rig.member(group, "member", topic)
    until(lambda: member.poll().holds(zero, one, two))
    unread = rig.cluster.group_offsets(group, [zero, one, two])
    member.consumer.commit({one: 4, two: 5})
    seen = [rig.cluster.group_offsets(group, [zero, one, two])]
    producer = rig.producer()
    producer.begin_transaction()
    producer.send_offsets({two: 7, zero: 1}, member.consumer)
    seen += [rig.cluster.group_offsets(group, each) for each in ([zero, one, two], [one])]
    if ends == "commit":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    until(lambda: not rig.cluster.group_offsets(group, [zero, one, two]).pending, pause=0.01)
    after = {zero: 1, one: 4, two: 7} if ends == "commit" else {one: 4, two: 5}
    assert [unread, *seen, rig.cluster.group_offsets(group, [zero, one, two])] == [
        GroupOffsets({}),
        GroupOffsets({one: 4, two: 5}),
        GroupOffsets({one: 4, two: 5}, frozenset({zero, two})),
        GroupOffsets({one: 4}),
        GroupOffsets(after),
    ]


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_pending_offsets_are_named_with_their_transaction_until_it_ends(rig: Rig, ends: str) -> None:
    group, topic, transactional_id = rig.name(), rig.topic(3), rig.name()
    zero, one, two = rig.partitions(topic)
    member = rig.member(group, "member", topic)
    until(lambda: member.poll().holds(zero, one, two))
    member.consumer.commit({two: 0})
    seen = [rig.cluster.pending(group, [zero, one, two])]
    producer = rig.producer(transactional_id)
    producer.begin_transaction()
    producer.send_offsets({two: 0, zero: 0}, member.consumer)
    found = rig.cluster.pending(group, [zero, one, two])
    (mine,) = [each for each in found.transactions if each.transactional_id == transactional_id]
    assert (found.group, found.partitions, found.unknown) == (group, (zero, two), "")
    assert found.kept_in is not None
    assert (found.kept_in.topic, mine.producer_id >= 0, mine.epoch >= 0, mine.start >= 0, mine.hangs) == (
        ("__consumer_offsets", True, True, True, False)
    )
    seen += [rig.cluster.pending(group, [one]), rig.cluster.pending(rig.name(), [zero, one, two])]
    if ends == "commit":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    until(lambda: not rig.cluster.pending(group, [zero, one, two]).partitions, pause=0.01)
    assert [(each.partitions, each.transactions) for each in seen] == [((), ())] * 3


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_open_transaction_of_an_input_is_named_and_hides_what_is_above_it(rig: Rig, ends: str) -> None:
    topic, transactional_id = rig.topic(2), rig.name()
    zero, one = rig.partitions(topic)
    rig.append(topic, b"a")
    member = rig.member(rig.name(), "member", topic)
    producer = rig.producer(transactional_id)
    producer.begin_transaction()
    producer.write([output(topic, b"b"), output(topic, b"c")])
    producer.flush()
    rig.append(topic, b"d")
    until(lambda: member.poll().consumer.highs == {zero: 4, one: 0})
    (found,) = rig.cluster.open_transactions(zero)
    assert (found.transactional_id, found.start, found.hangs) == (transactional_id, 1, False)
    assert (rig.cluster.open_transactions(one), rig.cluster.ends([zero])) == ((), {zero: 1})
    assert rig.cluster.hanging(transactional_id, [zero, one], rig.name()) == {}  # its coordinator will end it
    if ends == "commit":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    until(lambda: rig.cluster.ends([zero]) == {zero: 5} and not rig.cluster.open_transactions(zero), pause=0.01)
    until(lambda: member.poll().consumer.highs == {zero: 5, one: 0})


def test_new_group_has_no_committed_offset_and_starts_are_the_log_start_offsets(rig: Rig) -> None:
    topic = rig.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    rig.append(topic, b"a", b"b", b"c", partition=1)
    rig.cluster.truncate(one, 2)
    assert rig.consumer().committed([zero, one]) == {}
    assert (rig.cluster.starts([zero, one]), rig.cluster.starts([])) == ({zero: 0, one: 2}, {})


def test_starts_since_a_time_are_the_first_records_of_that_time_or_the_ends(rig: Rig) -> None:
    topic = rig.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = rig.plain()
    producer.write([(topic, b"v", None, 0, None, None, 1_600_000_000_000 + second * 1000, None) for second in range(4)])
    producer.flush()
    rig.append(topic, b"now", partition=1)
    found = [rig.cluster.starts([zero, one], 1_600_000_000_000 + ms)[zero] for ms in (-1, 0, 1, 2000, 3001)]
    assert found == [0, 0, 1, 2, 4]
    assert rig.cluster.starts([zero, one], 1_600_000_000_001) == {zero: 1, one: 0}
    assert rig.cluster.starts([], 0) == {}


def test_assign_starts_exactly_at_the_given_offsets_and_drops_fetched_records(rig: Rig) -> None:
    topic = rig.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    rig.append(topic, b"a0", b"a1", b"a2", b"a3")
    rig.append(topic, b"b0", b"b1", partition=1)
    consumer = rig.consumer()

    def read(positions: Positions) -> list[Row]:
        consumer.assign(positions)
        found: list[Row] = []

        def has_all_ends() -> bool:
            found.extend(map(row, consumer.consume(100, 0.1)))
            return set(consumer.ends) == set(positions)

        until(has_all_ends)
        return sorted(found)

    assert read({zero: 2, one: 1}) == [(0, 2, b"a2"), (0, 3, b"a3"), (1, 1, b"b1")]
    assert read({zero: 3}) == [(0, 3, b"a3")]
    assert read({zero: 4, one: 0}) == [(1, 0, b"b0"), (1, 1, b"b1")]


def test_consume_returns_at_most_its_limit_and_every_record_in_order(rig: Rig) -> None:
    topic = rig.topic()
    values = [b"%d" % number for number in range(50)]
    rig.append(topic, *values)
    consumer = rig.consumer()
    consumer.assign({TopicPartition(topic, 0): 0})
    batches: list[Sequence[Message]] = []

    def all_read() -> bool:
        batches.append(consumer.consume(7, 0.1))
        return sum(map(len, batches)) == len(values)

    until(all_read)
    assert max(map(len, batches)) <= 7
    assert [row(m) for batch in batches for m in batch] == [(0, n, value) for n, value in enumerate(values)]


def read_two_partitions(rig: Rig) -> tuple[Consumer, TopicPartition, TopicPartition, list[Row], Callable[[], int]]:
    """Reads one record of each of two partitions; returns the consumer, both, what was read, and how to read more."""
    topic = rig.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    rig.append(topic, b"a0")
    rig.append(topic, b"b0", partition=1)
    consumer = rig.consumer()
    consumer.assign({zero: 0, one: 0})
    found: list[Row] = []

    def read() -> int:
        found.extend(map(row, consumer.consume(100, 0.1)))
        return len(found)

    until(lambda: read() == 2)
    return consumer, zero, one, found, read


def test_paused_partitions_are_not_read_and_all_others_are(rig: Rig) -> None:
    consumer, zero, one, found, read = read_two_partitions(rig)
    found.clear()
    consumer.pause([zero])
    rig.append(zero.topic, b"a1")
    rig.append(one.topic, b"b1", partition=1)
    until(lambda: read() >= 1)
    assert found == [(1, 1, b"b1")]
    consumer.pause([one])
    rig.append(one.topic, b"b2", partition=1)
    until(lambda: read() >= 2)
    assert found == [(1, 1, b"b1"), (0, 1, b"a1")]
    consumer.pause([])
    until(lambda: read() >= 3)
    assert found == [(1, 1, b"b1"), (0, 1, b"a1"), (1, 2, b"b2")]


@pytest.mark.parametrize("between", [False, True], ids=["assigned over", "assigned elsewhere meanwhile"])
def test_pause_ends_with_the_next_assignment(between: bool, rig: Rig) -> None:
    """Found by a review: a join whose partition stayed paused after a failed commit would never read it again."""
    consumer, zero, one, found, read = read_two_partitions(rig)
    consumer.pause([zero, one])
    if between:
        consumer.assign({one: 1})
    consumer.assign({zero: 0, one: 0})
    found.clear()
    until(lambda: read() == 2)
    assert sorted(found) == [(0, 0, b"a0"), (1, 0, b"b0")]


def test_position_below_the_log_start_raises_input_lost_and_names_the_partition(rig: Rig) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)
    rig.append(topic, b"a", b"b", b"c")
    rig.cluster.truncate(tp, 2)
    assert list(map(row, rig.messages(topic, start=2))) == [(0, 2, b"c")]
    consumer = rig.consumer()
    consumer.assign({tp: 1})

    def read() -> bool:
        assert list(consumer.consume(100, 0.1)) == []
        return False

    with pytest.raises(InputLost, match=rf"{topic}\[0\].*(?s:.)*deleted before they were read.*recover reset"):
        until(read)


# Fencing.


def test_fencing_older_producer_of_the_same_id_cannot_commit_and_is_never_read(rig: Rig) -> None:
    topic, transactional_id = rig.topic(), rig.name()
    old = rig.producer(transactional_id)
    old.begin_transaction()
    old.write([output(topic, b"old")])
    old.flush()
    new = rig.producer(transactional_id)
    new.begin_transaction()
    new.write([output(topic, b"new")])
    with pytest.raises(Fenced):
        old.commit_transaction()
    new.commit_transaction()
    assert rig.committed(topic) == [(0, 2, b"new")]


def test_fencing_new_producer_aborts_the_open_transaction_of_the_older_one(rig: Rig) -> None:
    group, topic, transactional_id = rig.name(), rig.topic(), rig.name()
    tp = TopicPartition(topic, 0)
    member = rig.member(group, "member", topic)
    until(lambda: member.poll().holds(tp))
    old = rig.producer(transactional_id)
    old.begin_transaction()
    old.write([output(topic, b"old")])
    old.flush()
    old.send_offsets({tp: 1}, member.consumer)
    assert rig.cluster.ends([tp]) == {tp: 0}
    rig.producer(transactional_id)
    assert (rig.committed(topic), rig.cluster.ends([tp]), member.consumer.committed([tp])) == ([], {tp: 2}, {})


@pytest.mark.parametrize("call", ["write", "send_offsets", "abort_transaction"])
def test_fencing_older_producer_raises_fenced_on_its_next_request(rig: Rig, call: str) -> None:
    group, topic, transactional_id = rig.name(), rig.topic(), rig.name()
    tp = TopicPartition(topic, 0)
    member = rig.member(group, "member", topic)
    until(lambda: member.poll().holds(tp))
    old = rig.producer(transactional_id)
    old.begin_transaction()
    old.write([output(topic, b"old")])
    old.flush()
    rig.producer(transactional_id)

    def write() -> None:
        old.write([output(topic, b"late")])
        old.commit_transaction()

    calls: dict[str, Callable[[], None]] = {
        "write": write,
        "send_offsets": lambda: old.send_offsets({tp: 1}, member.consumer),
        "abort_transaction": old.abort_transaction,
    }
    with pytest.raises(Fenced):
        calls[call]()
    assert rig.committed(topic) == []


# Memberships and rebalances.


@pytest.mark.parametrize("call", ["consume", "commit", "send_offsets"])
def test_membership_taken_over_gives_the_partitions_and_ends_the_old_consumer(rig: Rig, call: str) -> None:
    group, topic = rig.name(), rig.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    old, other = rig.member(group, "a", topic), rig.member(group, "b", topic)
    poll_until_held((old, zero), (other, one))
    before = list(other.events)
    new = rig.member(group, "a", topic)
    until(lambda: new.poll().holds(zero))
    producer = rig.producer()
    producer.begin_transaction()
    calls: dict[str, Callable[[], None]] = {
        "consume": lambda: until(lambda: not old.poll()),
        "commit": lambda: old.consumer.commit({zero: 1}),
        "send_offsets": lambda: producer.send_offsets({zero: 1}, old.consumer),
    }
    assert old.consumer.membership().owner is Owner.ANOTHERS
    refused = Fenced if call == "send_offsets" else (Replaced, Abortable)
    with pytest.raises(refused):
        calls[call]()
    with pytest.raises(Replaced, match="has taken the slot of a over"):
        until(lambda: poll_until_replaced(old))
    new.poll()
    other.poll()
    assert (new.events, other.events, new.consumer.committed([zero])) == ([{zero}], before, {})
    assert [each.consumer.membership() for each in (new, other)] == [Membership(Owner.OURS)] * 2


def poll_until_replaced(member: Member) -> bool:
    """Polls a member, which raises Replaced in the end; its client may report lost partitions first."""
    with suppress(Abortable):
        member.poll()
    return False


def test_offsets_without_group_metadata_are_accepted_from_a_replaced_member(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why every commit carries the group metadata: without it, the broker accepts the commit of a zombie."""
    group, topic = rig.name(), rig.topic()
    zero = TopicPartition(topic, 0)
    old = rig.member(group, "a", topic)
    until(lambda: old.poll().holds(zero))
    new = rig.member(group, "a", topic)
    until(lambda: new.poll().holds(zero))
    monkeypatch.setattr(old.consumer, "group_metadata", lambda: rig.no_member(group))
    producer = rig.producer()
    producer.begin_transaction()
    producer.send_offsets({zero: 1}, old.consumer)
    producer.commit_transaction()
    assert new.consumer.committed([zero]) == {zero: 1}


def test_rebalance_for_a_second_member_revokes_then_assigns_disjoint_and_complete(rig: Rig) -> None:
    group, one, two = rig.name(), rig.topic(3), rig.topic(3)
    front = {TopicPartition(topic, number) for topic in (one, two) for number in (0, 1)}
    back = {TopicPartition(topic, 2) for topic in (one, two)}
    first = rig.member(group, "a", one, two)
    until(lambda: first.poll().holds(*front, *back))
    second = rig.member(group, "b", one, two)
    poll_until_held((first, *front), (second, *back))
    assert first.events == [front | back, "revoked", front]
    assert second.events == [back]


def test_close_during_a_rebalance_returns_and_calls_no_callback(rig: Rig) -> None:
    group, topic = rig.name(), rig.topic(2)
    first = Member(rig.cluster, rig.cluster.consumer(group, "a"), [topic])
    until(lambda: first.poll().holds(*rig.partitions(topic)))
    second = Member(rig.cluster, rig.cluster.consumer(group, "b"), [topic])
    until(lambda: "revoked" in first.poll().events)
    before = [*first.events], [*second.events]
    first.consumer.close()
    second.consumer.close()
    assert (first.events, second.events) == before


def test_rebalance_makes_the_commit_of_a_member_of_an_older_generation_abortable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, topic = rig.name(), rig.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    first = rig.member(group, "a", topic)
    until(lambda: first.poll().holds(zero, one))
    stale = first.consumer.group_metadata()  # type: ignore[attr-defined]  # both consumers have it, the protocol does not
    second = rig.member(group, "b", topic)
    poll_until_held((first, zero), (second, one))
    producer = rig.producer()
    producer.begin_transaction()
    with monkeypatch.context() as patch:
        patch.setattr(first.consumer, "group_metadata", lambda: stale)
        with pytest.raises(Abortable):
            producer.send_offsets({zero: 5}, first.consumer)
    producer.abort_transaction()
    assert first.consumer.committed([zero]) == {}
    producer.begin_transaction()
    producer.send_offsets({zero: 1}, first.consumer)
    producer.commit_transaction()
    assert first.consumer.committed([zero]) == {zero: 1}


def test_leave_assigns_the_partitions_of_a_closed_member_to_the_others(rig: Rig) -> None:
    group, topic = rig.name(), rig.topic(2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    first, second = rig.member(group, "a", topic), Member(rig.cluster, rig.cluster.consumer(group, "b"), [topic])
    poll_until_held((first, zero), (second, one))
    first.events.clear()  # the member that joined first had both partitions for a while
    rig.append(topic, b"a", b"b", partition=1)
    second.consumer.commit({one: 1})
    second.consumer.close()
    assert rig.cluster.leave(second.consumer)
    until(lambda: first.poll().rows[-1:] == [(1, 1, b"b")])
    assert first.rows == [(1, 1, b"b")]
    assert first.events == ["revoked", {zero, one}]
    assert not rig.cluster.leave(second.consumer)


def test_leave_of_a_replaced_member_does_not_remove_its_replacement(rig: Rig) -> None:
    group, topic = rig.name(), rig.topic(2)
    partitions = rig.partitions(topic)
    old = Member(rig.cluster, rig.cluster.consumer(group, "a"), [topic])
    until(lambda: old.poll().holds(*partitions))
    old.consumer.close()
    new = rig.member(group, "a", topic)
    until(lambda: new.poll().holds(*partitions))
    assert not rig.cluster.leave(old.consumer)
    new.consumer.commit({partitions[0]: 0})
    assert new.consumer.membership() == Membership(Owner.OURS)
    assert new.poll().events == [set(partitions)]


def test_leave_of_a_consumer_that_never_joined_removes_no_member(rig: Rig) -> None:
    group, topic = rig.name(), rig.topic()
    holder = rig.member(group, "a", topic)
    until(lambda: holder.poll().holds(*rig.partitions(topic)))
    assert not rig.cluster.leave(rig.consumer(group, "a"))
    assert holder.consumer.membership() == Membership(Owner.OURS)
    assert not rig.cluster.leave(rig.consumer(group, "b"))


# Records.


def test_keys_map_to_the_same_partitions_as_in_the_java_client(rig: Rig) -> None:
    topic = rig.topic(7)
    producer = rig.plain()
    producer.write([output(topic, b"value", key, partition=-1) for key in MURMUR2])
    producer.flush()
    found = {m.key(): m.partition() for m in rig.messages(topic)}
    assert found == {key: (murmur2 & 0x7FFFFFFF) % 7 for key, murmur2 in MURMUR2.items()}


def test_producer_writes_to_partitions_added_after_its_first_write(rig: Rig) -> None:
    topic = rig.topic()
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(topic, b"before")])
    rig.cluster.grow(topic, 3)
    until(lambda: len(rig.partitions(topic)) == 3)
    left = [output(topic, b"a", partition=2), output(topic, b"b", partition=2), output(topic, b"c", partition=1)]

    def is_written() -> bool:
        with suppress(Retriable):  # unwritten outputs are still in the list
            producer.write(left)
        return not left

    until(is_written)
    producer.commit_transaction()
    rig.settle(topic)
    assert [m.value() for m in rig.cluster.read(TopicPartition(topic, 0))] == [b"before"]
    assert [m.value() for m in rig.cluster.read(TopicPartition(topic, 1))] == [b"c"]
    assert [m.value() for m in rig.cluster.read(TopicPartition(topic, 2))] == [b"a", b"b"]


def test_reading_a_partition_ends_at_the_limit_or_the_last_stable_offset(rig: Rig) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)
    rig.append(topic, *(b"%d" % number for number in range(10)))
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(topic, b"aborted")])
    producer.abort_transaction()
    rig.append(topic, b"last")
    rig.settle(topic)
    rig.cluster.truncate(tp, 2)

    def read(start: int, limit: int | None = None) -> list[bytes | None]:
        return [m.value() for m in rig.cluster.read(tp, start, limit)]

    assert read(0) == [b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"last"]
    assert (read(0, 2), read(2, 3), read(9, 2)) == ([b"2", b"3"], [b"2", b"3", b"4"], [b"9", b"last"])
    assert (read(10, 1), read(100, 1)) == ([b"last"], [])


def test_reading_uncommitted_records_passes_open_and_aborted_transactions(rig: Rig) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(topic, b"aborted")])
    producer.flush()
    producer.abort_transaction()
    rig.append(topic, b"plain")
    rig.settle(topic)
    producer.begin_transaction()
    producer.write([output(topic, b"open")])
    producer.flush()
    rig.append(topic, b"behind")

    def read(start: int = 0, limit: int | None = None) -> list[tuple[int, bytes | None]]:
        return [(m.offset(), m.value()) for m in rig.cluster.read(tp, start, limit, committed=False)]

    assert read() == [(0, b"aborted"), (2, b"plain"), (3, b"open"), (4, b"behind")]
    assert (read(1, 2), read(4), read(5)) == ([(2, b"plain"), (3, b"open")], [(4, b"behind")], [])
    assert (rig.cluster.ends([tp]), rig.cluster.ends([tp], committed=False)) == ({tp: 3}, {tp: 5})
    assert [m.value() for m in rig.cluster.read(tp)] == [b"plain"]
    producer.abort_transaction()


def test_records_without_a_key_go_to_any_partition_and_none_is_lost(rig: Rig) -> None:
    topic = rig.topic(3)
    values = [b"%02d" % number for number in range(30)]
    producer = rig.plain()
    producer.write([output(topic, value, partition=-1) for value in values])
    producer.flush()
    assert sorted(value or b"" for _, _, value in rig.committed(topic)) == values


def test_keys_headers_timestamps_and_tombstones_pass_unchanged(rig: Rig) -> None:
    topic = rig.topic()
    headers: Headers = [("one", b"1"), ("none", None), ("one", b"again"), ("empty", b"")]
    producer = rig.plain()
    producer.write(
        [
            (topic, b"value", b"key", 0, None, None, 1_234, headers),
            (topic, None, b"tombstone", 0, None, None, 0, []),
            (topic, b"", b"", 0, None, None, 5, None),
            (topic, b"\x00\xff", None, 0, None, None, 6, None),
        ]
    )
    producer.flush()
    found = rig.messages(topic)
    assert [(m.topic(), m.partition(), m.offset(), m.key(), m.value(), m.headers()) for m in found] == [
        (topic, 0, 0, b"key", b"value", headers),
        (topic, 0, 1, b"tombstone", None, None),
        (topic, 0, 2, b"", b"", None),
        (topic, 0, 3, None, b"\x00\xff", None),
    ]
    kinds, times = zip(*(m.timestamp() for m in found), strict=True)
    assert (kinds, times[0], times[1] > 1_000_000_000_000, times[2:]) == ((1, 1, 1, 1), 1_234, True, (5, 6))


def test_newest_is_the_last_committed_record_before_markers_and_open_transactions(rig: Rig) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)

    def newest() -> Row | None:
        m = rig.cluster.newest(tp)
        return None if m is None else row(m)

    def newest_when_settled() -> Row | None:
        rig.settle(topic)
        return newest()

    seen = [newest_when_settled()]
    rig.transaction(topic, b"aborted", commits=False)
    seen.append(newest_when_settled())
    rig.transaction(topic, b"a", b"b")
    seen.append(newest_when_settled())
    for _ in range(5):
        rig.transaction(topic, b"aborted", commits=False)
    seen.append(newest_when_settled())
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(topic, b"open")])
    producer.flush()
    rig.append(topic, b"later")
    seen.append(newest())
    producer.commit_transaction()
    seen.append(newest_when_settled())
    rig.cluster.truncate(tp, 18)
    seen.append(newest())
    assert seen == [None, None, (0, 3, b"b"), (0, 3, b"b"), (0, 3, b"b"), (0, 16, b"later"), None]


def test_truncate_deletes_what_is_before_and_keeps_offsets(rig: Rig) -> None:
    topic = rig.topic()
    tp = TopicPartition(topic, 0)
    rig.append(topic, b"a", b"b", b"c")
    rig.cluster.truncate(tp, 2)
    rig.cluster.truncate(tp, 1)
    rig.append(topic, b"d")
    assert list(map(row, rig.messages(topic, start=2))) == [(0, 2, b"c"), (0, 3, b"d")]


# Topics.


def test_topics_exist_once_create_topics_returns(rig: Rig) -> None:
    for _ in range(10):
        one, two = rig.name(), rig.name()
        rig.cluster.create_topics([(one, 2, 1, {}), (two, 1, 1, {})])
        found = rig.cluster.topics([one, two])
        assert {name: info.partitions for name, info in found.items()} == {one: 2, two: 1}


def test_topics_are_described_as_created_and_those_that_exist_are_left_alone(rig: Rig) -> None:
    one, two, missing = rig.topic(3, max_message_bytes="2000"), rig.topic(), rig.name()
    before = rig.cluster.topics([one, two, missing])
    rig.cluster.create_topics([(one, 5, 1, {}), (two, 2, 1, {"max.message.bytes": "7"})])
    after = rig.cluster.topics([one, two, missing])
    assert before == after
    assert [
        (name, info.name, info.partitions, info.replication, info.settings["max.message.bytes"])
        for name, info in sorted(after.items(), key=lambda item: item[1].partitions, reverse=True)
    ] == [(one, one, 3, 1, "2000"), (two, two, 1, 1, "1048588")]
    assert "" not in {info.topic_id for info in after.values()}
    assert after[one].topic_id != after[two].topic_id
    assert (after[one].own_settings, after[two].own_settings) == (("max.message.bytes",), ())
    assert rig.cluster.topics([]) == {}


def test_topics_that_are_deleted_are_gone_with_their_records_and_committed_offsets(rig: Rig) -> None:
    one, two, kept, missing = rig.topic(2), rig.topic(), rig.topic(), rig.name()
    group, partitions = rig.name(), [TopicPartition(one, 0), TopicPartition(kept, 0)]
    for topic in (one, kept):
        rig.append(topic, b"a")
    consumer, producer = rig.consumer(group), rig.producer()
    producer.begin_transaction()
    producer.send_offsets(dict.fromkeys(partitions, 1), consumer)
    producer.commit_transaction()
    until(lambda: rig.cluster.group_offsets(group, partitions).committed == dict.fromkeys(partitions, 1), pause=0.01)
    before = rig.cluster.topics([one])[one]
    rig.cluster.delete_topics([one, two, missing])
    assert list(rig.cluster.topics([one, two, kept])) == [kept]
    until(lambda: rig.cluster.group_offsets(group, partitions).committed == {partitions[1]: 1}, pause=0.01)
    rig.cluster.create_topics([(one, 1, 1, {})])
    assert rig.cluster.topics([one])[one].topic_id != before.topic_id
    assert (rig.committed(one), rig.committed(kept)) == ([], [(0, 0, b"a")])
    rig.cluster.delete_topics([missing])
    rig.cluster.delete_topics([])


# Deliveries that fail.


def test_record_larger_than_the_client_takes_is_refused_and_its_topic_named(rig: Rig) -> None:
    topic = rig.topic()
    producer = rig.producer()
    producer.begin_transaction()
    with pytest.raises(Refused, match=f"{topic}.*max.message.bytes"):
        producer.write([output(topic, b"a"), output(topic, bytes(1_100_000))])
    producer.abort_transaction()
    assert rig.committed(topic) == []


@pytest.mark.parametrize("call", ["flush", "commit_transaction", "send_offsets"])
def test_record_larger_than_its_topic_takes_fails_the_transaction_by_topic(rig: Rig, call: str) -> None:
    group, small, topic = rig.name(), rig.topic(max_message_bytes="1000"), rig.topic()
    tp = TopicPartition(topic, 0)
    member = rig.member(group, "member", topic)
    until(lambda: member.poll().holds(tp))
    producer = rig.producer()
    producer.begin_transaction()
    producer.write([output(small, b"fits")])  # `write` waits for the first record of a partition
    producer.write([output(topic, b"a"), output(small, bytes(2_000))])

    def send_offsets() -> bool:
        producer.send_offsets({tp: 1}, member.consumer)
        return False

    calls: dict[str, Callable[[], None]] = {
        "flush": producer.flush,
        "commit_transaction": producer.commit_transaction,
        "send_offsets": lambda: until(send_offsets),
    }
    with pytest.raises(Refused, match=f"{small}.*max.message.bytes"):
        calls[call]()
    producer.abort_transaction()
    assert (rig.committed(topic), rig.committed(small), member.consumer.committed([tp])) == ([], [], {})


@pytest.mark.parametrize("durability", [Durability.COMMITTED, Durability.LEADER])
def test_flush_without_a_transaction_raises_for_a_failed_delivery_by_topic(rig: Rig, durability: Durability) -> None:
    small = rig.topic(max_message_bytes="1000")
    producer = rig.plain(durability)
    producer.write([output(small, b"fits")])
    producer.flush()
    producer.write([output(small, bytes(2_000))])
    with pytest.raises(Refused, match=f"{small}.*max.message.bytes"):
        producer.flush()
    assert rig.committed(small) == [(0, 0, b"fits")]


def test_flush_with_durability_none_does_not_raise_for_failed_deliveries(rig: Rig) -> None:
    small = rig.topic(max_message_bytes="1000")
    producer = rig.plain(Durability.NONE)
    producer.write([output(small, bytes(2_000))])
    producer.flush()
    assert rig.committed(small) == []


def test_topic_that_does_not_exist_fails_the_transaction_and_is_named(rig: Rig) -> None:
    topic, missing = rig.topic(), rig.name()
    producer = rig.producer()
    producer.begin_transaction()

    def write_and_commit() -> None:
        producer.write([output(topic, b"a"), output(missing, b"b")])
        producer.commit_transaction()

    with pytest.raises(TopicError, match=f"topic '{missing}' does not exist: run `kstreams topics create`"):
        write_and_commit()
    producer.abort_transaction()
    assert rig.committed(topic) == []


def test_topic_that_does_not_exist_fails_the_flush_and_is_named(rig: Rig) -> None:
    topic, missing = rig.topic(), rig.name()
    producer = rig.plain()

    def write_and_flush() -> None:
        producer.write([output(topic, b"a"), output(missing, b"b")])
        producer.flush()

    with pytest.raises(TopicError, match=f"topic '{missing}' does not exist: run `kstreams topics create`"):
        write_and_flush()
    assert rig.committed(topic) == [(0, 0, b"a")]


def test_topic_that_does_not_exist_cannot_be_read_and_is_named(rig: Rig) -> None:
    missing = rig.name()
    member = rig.member(rig.name(), "member", missing)
    with pytest.raises(TopicError, match=f"topic '{missing}' does not exist"):
        until(lambda: member.poll().events == ["never"])
