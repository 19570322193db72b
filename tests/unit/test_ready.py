"""Steps that are ready: by arrival, or by partition and in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kstreams_py.processing.tasks.ready import Ready, ReadyByPartition
from kstreams_py.processing.tasks.task import RECORD_BYTES
from tests.unit.fakes import Read


def steps(*partitions: int) -> list[Any]:
    """Steps of these partitions; offsets count on."""
    return [Read("a", offset, b"1234", partition=partition) for offset, partition in enumerate(partitions)]


def offsets(found: list[Any]) -> list[int]:
    return [step.offset() for step in found]


def test_steps_are_taken_in_the_order_of_their_arrival() -> None:
    ready = Ready()
    some = steps(0, 0, 1, 0)
    ready.add(some[1:3])
    ready.add(some[3:])
    ready.put_first(some[:1])
    assert (offsets(ready.take(3)), offsets(list(ready)), len(ready)) == ([0, 1, 2], [3], 1)


def test_steps_by_partition_are_taken_of_each_in_turn_and_of_each_in_order() -> None:
    ready = ReadyByPartition()
    ready.add(steps(0, 0, 0, 0, 1, 1, 2))
    assert offsets(ready.take(3)) == [0, 4, 6]
    assert offsets(ready.take(3)) == [1, 5, 2]
    assert offsets(ready.take(9)) == [3]
    assert not ready
    assert ready.take(9) == []


def test_fewer_steps_than_partitions_are_taken_of_other_partitions_each_time() -> None:
    ready = ReadyByPartition()
    ready.add(steps(0, 1, 2, 0, 1, 2))
    assert [offsets(ready.take(2)) for _ in range(4)] == [[0, 1], [2, 3], [4, 5], []]


def test_steps_that_are_put_first_come_first_in_their_partition() -> None:
    ready = ReadyByPartition()
    some = steps(0, 1, 0, 1)
    ready.add(some[2:])
    ready.put_first(some[:2])
    assert sorted(offsets(ready.take(2))) == [0, 1]
    assert sorted(offsets(ready.take(2))) == [2, 3]


@pytest.mark.parametrize("make", [Ready, ReadyByPartition])
def test_pull_takes_all_of_a_partition_and_clear_takes_all(make: Callable[[], Ready]) -> None:
    ready = make()
    ready.add(steps(0, 1, 0, 2))
    assert (offsets(ready.pull((0,))), sorted(offsets(list(ready))), len(ready)) == ([0, 2], [1, 3], 2)
    assert ready.pull((0,)) == []
    ready.clear()
    assert (list(ready), len(ready)) == ([], 0)


def test_bytes_are_those_of_the_steps_that_are_there() -> None:
    ready = ReadyByPartition()
    ready.add(steps(0, 0, 1))
    size = RECORD_BYTES + 4
    assert (ready.size(0), ready.size(1), ready.size(2), ready.total) == (2 * size, size, 0, 3 * size)
    ready.take(2)
    assert (ready.size(0), ready.count(0), ready.size(1), ready.total) == (size, 1, 0, size)
