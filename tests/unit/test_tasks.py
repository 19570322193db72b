"""Tasks: buffered records are bounded in number and bytes, and an input that a step waits for is never paused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from kstreams_py.graph.topology import Graph
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.processing.tasks.task import RECORD_BYTES
from kstreams_py.processing.tasks.tasks import BUFFER_BYTES, BUFFER_LIMIT, TAKEN_AT_LEAST
from kstreams_py.records import Message, TopicPartition
from tests.unit.fakes import Read
from tests.unit.processing import Processing

MIB = 1 << 20
MEGABYTE = b"m" * (MIB - RECORD_BYTES)
"""The value of a record that takes a MiB."""


def a(offset: int, partition: int = 0, value: bytes | None = MEGABYTE) -> Read:
    return Read("a", offset, value, partition=partition)


def b(offset: int, partition: int = 0, value: bytes | None = MEGABYTE) -> Read:
    return Read("b", offset, value, partition=partition)


def locate(steps: Sequence[Any]) -> list[Any]:
    return [locate(step) if isinstance(step, tuple) else (step.topic(), step.offset()) for step in steps]


def make_tasks(*inputs: str, joins: bool = True, choices: Choices | None = None) -> Processing:
    """A join or an alts of these inputs, with twelve partitions of each assigned."""
    graph = Graph("g")
    for topic in (*inputs, "x"):
        graph.topic(topic)
    declare = partial(graph.join, by="order") if joins else graph.alts
    declare(*inputs, to="x", id="p")(lambda *_: None)
    start = {TopicPartition(topic, partition): 0 for topic in inputs for partition in range(12)}
    rig = Processing(graph, start={})
    rig.tasks.assign(start, {0: choices} if choices else {})
    return rig


def make_join() -> Processing:
    return make_tasks("a", "b")


def make_alts(*runs: tuple[str, int]) -> Processing:
    return make_tasks("a", "b", joins=False, choices=Choices(runs))


def add(rig: Processing, messages: Sequence[Message]) -> list[Any]:
    """Adds records; returns the steps that are ready then."""
    rig.tasks.add(messages)
    taken = rig.tasks.take(sys.maxsize)
    return list(taken.steps) if taken else []


def feed_until_paused(rig: Processing, records: Sequence[Read]) -> int:
    """Adds records one by one until their partition is paused; returns how many were added."""
    for number, m in enumerate(records):
        if TopicPartition(m.topic(), m.partition()) in rig.tasks.paused:
            return number
        assert add(rig, [m]) == []
    return len(records)


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
HALF = BUFFER_BYTES // MIB // 2


@pytest.mark.parametrize("make", [make_join, lambda: make_alts(("b", 0))], ids=["join", "alts"])
def test_one_partition_is_paused_at_half_of_the_bytes(make: Any) -> None:
    rig = make()
    assert feed_until_paused(rig, [a(offset) for offset in range(100)]) == HALF
    assert rig.tasks.paused == {A0}


def test_fetch_limit_follows_the_size_of_the_buffered_records() -> None:
    rig = make_join()
    assert rig.tasks.limit_fetch(sys.maxsize) == sys.maxsize, "no record has been seen yet"
    seen = []
    for count, size in ((1, MIB), (31, MIB), (100, MIB // 2), (10, MIB)):
        add(rig, [a(offset, value=bytes(size - RECORD_BYTES)) for offset in range(count)])
        seen.append(rig.tasks.limit_fetch(sys.maxsize))
    # 47 MiB are left, then 16 MiB, then none
    assert seen == [47, 16, TAKEN_AT_LEAST, TAKEN_AT_LEAST]


def test_fetch_limit_of_a_map_is_unlimited() -> None:
    graph = Graph("g")
    graph.map(graph.topic("a"), to=graph.topic("x"), id="p")(lambda value: value)
    rig = Processing(graph)
    assert len(add(rig, [a(offset) for offset in range(100)])) == 100
    assert rig.tasks.limit_fetch(sys.maxsize) == sys.maxsize


def test_buffered_bytes_count_keys_headers_and_each_record() -> None:
    by_key, by_headers, by_number = make_join(), make_join(), make_join()
    size = MIB - RECORD_BYTES
    assert feed_until_paused(by_key, [Read("a", i, None, key=b"k" * size) for i in range(100)]) == HALF
    headers = [("h", b"h" * (size - 2)), ("n", None)]
    assert feed_until_paused(by_headers, [Read("a", i, None, headers=headers) for i in range(100)]) == HALF
    assert feed_until_paused(by_number, [Read("a", i, None) for i in range(20_000)]) == BUFFER_LIMIT


def test_partitions_that_wait_for_an_idle_input_leave_bytes_for_the_others() -> None:
    """Each partition may take half of the bytes that are left, and at least one record."""
    rig = make_join()
    counts = [feed_until_paused(rig, [a(offset, partition) for offset in range(100)]) for partition in range(12)]
    assert counts == [24, 12, 6, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert rig.tasks.paused == {TopicPartition("a", partition) for partition in range(12)}


def test_equal_partitions_share_all_of_the_bytes() -> None:
    rig = make_join()
    left = {partition: [a(offset, partition) for offset in range(100)] for partition in range(7)}
    while going := {tp.partition for tp in {TopicPartition("a", p) for p in left} - rig.tasks.paused}:
        for partition in going:
            add(rig, [left[partition].pop(0)])
    assert [100 - len(records) for records in left.values()] == [6] * 7


@pytest.mark.parametrize("records", [1, 3])
def test_input_that_a_join_waits_for_is_never_paused(records: int) -> None:
    rig = make_join()
    huge = b"h" * BUFFER_BYTES
    for partition in range(3):
        add(rig, [a(offset, partition, huge) for offset in range(records)])
    assert rig.tasks.paused == {TopicPartition("a", partition) for partition in range(3)}
    assert locate(add(rig, [b(0), b(0, 2)])) == [[("a", 0), ("b", 0)]] * 2
    expected = {0, 1, 2} if records > 1 else {1}
    assert rig.tasks.paused == {TopicPartition("a", partition) for partition in expected}


def test_partition_is_resumed_once_its_records_are_taken() -> None:
    rig = make_join()
    assert feed_until_paused(rig, [a(offset) for offset in range(100)]) == HALF
    assert locate(add(rig, [b(0)])) == [[("a", 0), ("b", 0)]]
    assert rig.tasks.paused == frozenset()
    assert feed_until_paused(rig, [a(HALF), a(HALF + 1)]) == 1
    assert len(add(rig, [b(offset) for offset in range(1, HALF + 20)])) == HALF
    assert rig.tasks.paused == frozenset()
    assert feed_until_paused(rig, [b(HALF + 20 + offset) for offset in range(100)]) == HALF - 19
    assert rig.tasks.paused == {B0}


def test_alts_input_is_resumed_once_its_choices_are_used_up() -> None:
    rig = make_alts(("b", 0), ("a", 3))
    assert feed_until_paused(rig, [a(offset) for offset in range(100)]) == HALF
    assert locate(add(rig, [b(0)])) == [("b", 0), *(("a", offset) for offset in range(HALF))]
    assert (rig.tasks.paused, list(rig.tasks.by_partition[0].runs_left)) == (frozenset(), [])
    rig = make_alts(("b", 3))
    assert feed_until_paused(rig, [a(offset) for offset in range(100)]) == HALF


def test_alts_input_that_is_next_in_its_choices_is_never_paused() -> None:
    rig = make_alts(("b", 0), ("a", 0), ("b", 1))
    huge = b"h" * BUFFER_BYTES
    assert (add(rig, [a(0, value=huge), a(1, value=huge)]), rig.tasks.paused) == ([], frozenset({A0}))
    assert locate(add(rig, [b(0, value=huge)])) == [("b", 0), ("a", 0)]
    assert rig.tasks.paused == {A0}
    assert locate(add(rig, [b(1)])) == [("b", 1), ("a", 1)]
    assert rig.tasks.paused == frozenset()


def waiting_bytes(rig: Processing) -> int:
    return sum(queue.bytes for task in rig.tasks.by_partition.values() for queue in task.queues.values())


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 20))])
def test_join_of_records_of_any_size_completes_within_its_bounds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer reads partitions that are not paused, in any order, three records at a time."""
    limit = 20_000
    monkeypatch.setattr("kstreams_py.processing.tasks.tasks.BUFFER_BYTES", limit)
    monkeypatch.setattr("kstreams_py.processing.tasks.tasks.BUFFER_LIMIT", 10)
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
    rig, steps, slow = make_tasks(*topics), list[Any](), random.choice(topics)
    while any(left.values()):
        open_ = [tp for tp, records in left.items() if records and tp not in rig.tasks.paused]
        assert open_, "every partition that has records is paused"
        tp = random.choice([tp for tp in open_ if tp.topic != slow] or open_)  # others wait for the slow input
        found, left[tp] = left[tp][:3], left[tp][3:]
        steps += add(rig, found)
        assert waiting_bytes(rig) <= limit + 3 * len(left) * 30_400
    assert (waiting_bytes(rig), rig.tasks.paused) == (0, frozenset())
    everything = [(partition, offset) for partition in range(partitions) for offset in range(count)]
    assert sorted((step[0].partition(), step[0].offset()) for step in steps) == everything
    assert all(locate(step) == [(topic, step[0].offset()) for topic in topics] for step in steps)
