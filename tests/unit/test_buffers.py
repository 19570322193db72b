"""buffers.py: what waits is bounded by records and by bytes, and nothing that is waited for is ever paused."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from kstreams_py.buffers import BUFFER_BYTES, BUFFER_LIMIT, RECORD_BYTES, TAKEN_AT_LEAST, Buffers
from kstreams_py.record import TopicPartition
from tests.unit.fakes import Read

MIB = 1 << 20
MEGABYTE = b"m" * (MIB - RECORD_BYTES)
"""The value of a record that takes a MiB."""


def a(offset: int, partition: int = 0, value: bytes | None = MEGABYTE) -> Read:
    return Read("a", offset, value, partition=partition)


def b(offset: int, partition: int = 0, value: bytes | None = MEGABYTE) -> Read:
    return Read("b", offset, value, partition=partition)


def places(steps: Sequence[Any]) -> list[Any]:
    return [places(step) if isinstance(step, tuple) else (step.topic(), step.offset()) for step in steps]


def fed(buffers: Buffers, records: Sequence[Read]) -> int:
    """Feeds records one by one until their partition is paused; how many came in."""
    for number, m in enumerate(records):
        if TopicPartition(m.topic(), m.partition()) in buffers.paused:
            return number
        assert buffers.add([m]) == []
    return len(records)


def joining() -> Buffers:
    return Buffers(["a", "b"], joins=True)


def following(*runs: tuple[str, int]) -> Buffers:
    buffers = Buffers(["a", "b"], joins=False)
    buffers.scripts[0] = deque(runs)
    return buffers


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
HALF = BUFFER_BYTES // MIB // 2


@pytest.mark.parametrize("make", [joining, lambda: following(("b", 0))])
def test_one_partition_is_paused_at_half_of_the_bytes(make: Any) -> None:
    buffers = make()
    assert fed(buffers, [a(offset) for offset in range(100)]) == HALF
    assert buffers.paused == {A0}


def test_room_is_for_records_of_the_size_of_those_that_wait() -> None:
    buffers = joining()
    assert buffers.room == sys.maxsize, "nothing is known yet"
    seen = []
    for count, size in ((1, MIB), (31, MIB), (100, MIB // 2), (10, MIB)):
        buffers.add([a(offset, value=bytes(size - RECORD_BYTES)) for offset in range(count)])
        seen.append(buffers.room)
    # 47 MiB are left; 16; none; none
    assert seen == [47, 16, TAKEN_AT_LEAST, TAKEN_AT_LEAST]


def test_room_of_a_map_has_no_bound() -> None:
    buffers = Buffers(["a"], joins=False)
    assert len(buffers.add([a(offset) for offset in range(100)])) == 100
    assert buffers.room == sys.maxsize


def test_keys_headers_and_the_record_itself_count() -> None:
    by_key, by_headers, by_number = joining(), joining(), joining()
    size = MIB - RECORD_BYTES
    assert fed(by_key, [Read("a", i, None, key=b"k" * size) for i in range(100)]) == HALF
    headers = [("h", b"h" * (size - 2)), ("n", None)]
    assert fed(by_headers, [Read("a", i, None, headers=headers) for i in range(100)]) == HALF
    assert fed(by_number, [Read("a", i, None) for i in range(20_000)]) == BUFFER_LIMIT


def test_an_idle_input_of_some_partitions_leaves_room_for_the_others() -> None:
    """Of what is left each takes half, then less: together never more than there is."""
    buffers = joining()
    counts = [fed(buffers, [a(offset, partition) for offset in range(100)]) for partition in range(12)]
    assert counts == [24, 12, 6, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert buffers.paused == {TopicPartition("a", partition) for partition in range(12)}


def test_equal_partitions_share_all_of_the_bytes() -> None:
    buffers = joining()
    left = {partition: [a(offset, partition) for offset in range(100)] for partition in range(7)}
    while going := {tp.partition for tp in {TopicPartition("a", p) for p in left} - buffers.paused}:
        for partition in going:
            buffers.add([left[partition].pop(0)])
    assert [100 - len(records) for records in left.values()] == [6] * 7


@pytest.mark.parametrize("records", [1, 3])
def test_what_is_waited_for_is_never_paused_however_much_waits(records: int) -> None:
    buffers = joining()
    huge = b"h" * BUFFER_BYTES
    for partition in range(3):
        buffers.add([a(offset, partition, huge) for offset in range(records)])
    assert buffers.paused == {TopicPartition("a", partition) for partition in range(3)}
    assert places(buffers.add([b(0), b(0, 2)])) == [[("a", 0), ("b", 0)]] * 2
    expected = {0, 1, 2} if records > 1 else {1}
    assert buffers.paused == {TopicPartition("a", partition) for partition in expected}


def test_a_partition_goes_on_once_its_records_are_taken() -> None:
    buffers = joining()
    assert fed(buffers, [a(offset) for offset in range(100)]) == HALF
    assert places(buffers.add([b(0)])) == [[("a", 0), ("b", 0)]]
    assert buffers.paused == frozenset()
    assert fed(buffers, [a(HALF), a(HALF + 1)]) == 1
    assert len(buffers.add([b(offset) for offset in range(1, HALF + 20)])) == HALF
    assert buffers.paused == frozenset()
    assert fed(buffers, [b(HALF + 20 + offset) for offset in range(100)]) == HALF - 19
    assert buffers.paused == {B0}


def test_alts_is_paused_no_more_once_it_is_free() -> None:
    buffers = following(("b", 0), ("a", 3))
    assert fed(buffers, [a(offset) for offset in range(100)]) == HALF
    assert places(buffers.add([b(0)])) == [("b", 0), *(("a", offset) for offset in range(HALF))]
    assert (buffers.paused, buffers.scripts) == (frozenset(), {})
    buffers.scripts[0] = deque([("b", 3)])
    assert fed(buffers, [a(offset) for offset in range(100)]) == HALF


def test_alts_waits_for_the_topic_whose_turn_it_is_though_all_others_are_paused() -> None:
    buffers = following(("b", 0), ("a", 0), ("b", 1))
    huge = b"h" * BUFFER_BYTES
    assert (buffers.add([a(0, value=huge), a(1, value=huge)]), buffers.paused) == ([], {A0})
    assert places(buffers.add([b(0, value=huge)])) == [("b", 0), ("a", 0)]
    assert buffers.paused == {A0}
    assert places(buffers.add([b(1)])) == [("b", 1), ("a", 1)]
    assert buffers.paused == frozenset()


@pytest.mark.parametrize("seed", range(20))
def test_join_of_records_of_any_size_goes_through_within_its_bounds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that reads any partition that is not paused, in any order, some records at a time."""
    limit = 20_000
    monkeypatch.setattr("kstreams_py.buffers.BUFFER_BYTES", limit)
    monkeypatch.setattr("kstreams_py.buffers.BUFFER_LIMIT", 10)
    random = Random(seed)
    topics, partitions, count = "abc"[: random.choice((2, 3))], random.choice((1, 3, 8)), 40
    left = {
        TopicPartition(topic, partition): [
            Read(topic, offset, b"v" * random.choice((0, 10, 3_000, 30_000)), partition=partition)
            for offset in range(count)
        ]
        for topic in topics
        for partition in range(partitions)
    }
    buffers, steps, slow = Buffers(topics, joins=True), list[Any](), random.choice(topics)
    while any(left.values()):
        open_ = [tp for tp, records in left.items() if records and tp not in buffers.paused]
        assert open_, "all that has records is paused"
        tp = random.choice([tp for tp in open_ if tp.topic != slow] or open_)  # the slow one comes when all wait for it
        found, left[tp] = left[tp][:3], left[tp][3:]
        steps += buffers.add(found)
        waiting = sum(queue.bytes for task in buffers._tasks.values() for queue in task.values())
        assert buffers._bytes == waiting <= limit + 3 * len(left) * 30_400
    assert (buffers._bytes, buffers.paused) == (0, frozenset())
    everything = [(partition, offset) for partition in range(partitions) for offset in range(count)]
    assert sorted((step[0].partition(), step[0].offset()) for step in steps) == everything
    assert all(places(step) == [(topic, step[0].offset()) for topic in topics] for step in steps)
