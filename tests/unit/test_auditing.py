"""operations/auditing.py: each kind of finding with its places, and what is no finding."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kstreams_py.operations.auditing import Audit, Finding, Found, InputRange
from kstreams_py.processing.hashes import hash_prefix, pack_offset
from kstreams_py.records import TopicPartition

IN = TopicPartition("in", 0)
OUT = TopicPartition("out", 0)
OTHER = TopicPartition("out", 1)
PREFIX = hash_prefix("app.copy", "in", "id-1", 0)


def audit(*, start: int = 0, end: int = 6, many: bool = False, inputs: Iterable[int] = range(6)) -> Audit:
    """An audit of a processor that reads `in`, partition 0, and has not begun a topic."""
    judge = Audit({PREFIX: InputRange(IN, start, end)}, many=many)
    for offset in inputs:
        judge.take_input(IN, offset)
    return judge


def read(judge: Audit, *partitions: tuple[TopicPartition, Iterable[int | bytes | None]]) -> list[Found]:
    """What is wrong with a topic's outputs: each an offset of its input, or its whole hash."""
    judge.begin_topic()
    found: list[Found] = []
    for tp, outputs in partitions:
        judge.begin_partition()
        for place, each in enumerate(outputs):
            digest = PREFIX + pack_offset(each) if isinstance(each, int) else each
            found += judge.take_output((tp, place), digest)
    return found


def test_an_output_or_a_dead_letter_of_each_input_is_clean() -> None:
    judge = audit()

    found = read(judge, (OUT, [0, 1, 3]), (OTHER, [2, 5]))
    judge.take_dead_letter(PREFIX + pack_offset(4))

    assert [*found, *judge.compare({IN: 6}, {IN: 6})] == []
    assert (judge.counts, judge.unjudged) == ({}, 0)


def test_a_second_output_is_found_in_the_same_and_in_another_partition() -> None:
    found = read(audit(), (OUT, [0, 1, 1, 0]), (OTHER, [1]))

    assert found == [
        Found(Finding.DUPLICATED, (OUT, 2), (IN, 1)),
        Found(Finding.DUPLICATED, (OUT, 3), (IN, 0)),
        Found(Finding.DUPLICATED, (OTHER, 0), (IN, 1)),
    ]


def test_a_step_may_write_to_each_of_its_topics() -> None:
    judge = audit()

    assert read(judge, (OUT, [0, 1])) == []
    assert read(judge, (TopicPartition("more", 0), [0, 1])) == []


def test_of_several_outputs_a_copy_that_comes_after_another_step_is_found() -> None:
    found = read(audit(many=True), (OUT, [0, 0, 1, 1, 0]), (OTHER, [0, 1]))

    assert found == [Found(Finding.DUPLICATED, (OUT, 4), (IN, 0))]


@pytest.mark.parametrize(
    "digest",
    [
        pytest.param(None, id="no header"),
        pytest.param(PREFIX, id="too short"),
        pytest.param(hash_prefix("other.copy", "in", "id-1", 0) + pack_offset(0), id="another graph"),
    ],
)
def test_an_output_without_a_hash_of_this_processor_is_foreign(digest: bytes | None) -> None:
    assert read(audit(), (OUT, [0, digest])) == [Found(Finding.FOREIGN, (OUT, 1), None)]


def test_an_output_of_another_processor_of_the_graph_is_ignored() -> None:
    other = hash_prefix("app.other", "in", "id-1", 0)
    judge = Audit({PREFIX: InputRange(IN, 0, 6)}, {other}, many=False)

    assert read(judge, (OUT, [other + pack_offset(0), other])) == [Found(Finding.FOREIGN, (OUT, 1), None)]


def test_an_output_of_an_offset_without_a_committed_input_is_foreign() -> None:
    assert read(audit(inputs=[0, 2]), (OUT, [0, 1])) == [Found(Finding.FOREIGN, (OUT, 1), (IN, 1))]


def test_an_output_after_that_of_a_later_input_is_out_of_order_in_its_partition_only() -> None:
    found = read(audit(), (OUT, [0, 3, 2, 4]), (OTHER, [1, 5]))

    assert found == [Found(Finding.DISORDERED, (OUT, 2), (IN, 2))]


def test_outputs_of_deleted_inputs_and_of_later_ones_are_not_judged() -> None:
    judge = audit(start=2, end=4, inputs=[1, 2, 3, 4])

    assert read(judge, (OUT, [1, 2, 3, 4])) == []
    judge.take_dead_letter(PREFIX + pack_offset(1))
    assert list(judge.compare({IN: 4}, {IN: 4})) == []
    assert judge.unjudged == 2


def test_inputs_below_the_position_without_output_and_outputs_from_it_on_are_found() -> None:
    judge = audit(start=1, inputs=[1, 2, 3, 4, 5])

    assert read(judge, (OUT, [2, 5])) == []
    assert list(judge.compare({IN: 4}, {IN: 4})) == [
        Found(Finding.UNANSWERED, None, (IN, 1)),
        Found(Finding.UNANSWERED, None, (IN, 3)),
        Found(Finding.EARLY, None, (IN, 5)),
    ]
    assert judge.counts == {Finding.UNANSWERED: 2, Finding.EARLY: 1}


def test_what_is_delivered_while_the_outputs_are_read_is_no_finding() -> None:
    judge = audit()

    assert read(judge, (OUT, [0, 1, 2])) == []
    assert list(judge.compare({IN: 2}, {IN: 5})) == []


def test_without_a_position_every_output_is_early() -> None:
    judge = audit(inputs=[0, 1])

    assert read(judge, (OUT, [0])) == []
    assert list(judge.compare({}, {})) == [Found(Finding.EARLY, None, (IN, 0))]
