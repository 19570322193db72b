"""operations/recover/comparison.py: each kind of anomaly with its place, and what is none."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable, Iterable, Sequence

import pytest

from kstreams_py.graph.anomalies import Kind
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from kstreams_py.operations.recover.comparison import Audit, JoinedSteps, SingleSteps
from kstreams_py.processing.dead_letters.letters import LetterPlace
from kstreams_py.records import TopicPartition

IN = TopicPartition("in", 0)
OUT = TopicPartition("out", 0)
OTHER = TopicPartition("out", 1)
DEAD = TopicPartition("dead", 0)
PREFIX = hash_prefix("app.copy", "in", "id-1", 0)


class Judge:
    """An audit of a processor that reads `in`, partition 0."""

    def __init__(
        self,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        *,
        start: int = 0,
        end: int = 6,
        many: bool = False,
        inputs: Iterable[int] = range(6),
    ) -> None:
        steps = SingleSteps(PREFIX, IN, start, end)
        for offset in inputs:
            steps.take_input(offset)
        self.audit = Audit([steps], guarantee, many=many)

    def read(self, *partitions: tuple[TopicPartition, Iterable[int]]) -> list[str]:
        """What is wrong with a topic's outputs: each the offset of its input."""
        self.audit.begin_topic()
        found: list[str] = []
        for tp, outputs in partitions:
            self.audit.begin_partition()
            for offset, each in enumerate(outputs):
                taken = self.audit.take_output(LetterPlace(*tp, offset), PREFIX + pack_offset(each))
                assert taken is not None
                found += map(str, taken)
        return found

    def letters(self, *offsets: int, replayed: bool = False) -> list[str]:
        """What is wrong with dead letters, each the offset of its input."""
        found: list[str] = []
        for at, offset in enumerate(offsets):
            taken = self.audit.take_letter(LetterPlace(*DEAD, at), PREFIX + pack_offset(offset), replayed=replayed)
            found += map(str, taken)
        return found

    def compare(self, before: int, after: int | None = None, *, every: bool = True) -> list[str]:
        positions = {IN: before}
        return [
            str(each) for each in self.audit.compare(positions, {IN: before if after is None else after}, every=every)
        ]


def test_an_output_or_a_dead_letter_of_each_input_is_clean() -> None:
    judge = Judge()

    assert judge.letters(4) + judge.read((OUT, [0, 1, 3]), (OTHER, [2, 5])) + judge.compare(6) == []
    assert (judge.audit.counts, judge.audit.unjudged, judge.audit.outputs, judge.audit.letters) == ({}, 0, 5, 1)
    assert judge.audit.count_inputs({IN: 6}) == (6, 0)


def test_a_second_output_is_found_in_the_same_and_in_another_partition() -> None:
    assert Judge().read((OUT, [0, 1, 1, 0]), (OTHER, [1])) == [
        "duplicate: out[0]@2 is one more output of in[0]@1",
        "duplicate: out[0]@3 is one more output of in[0]@0",
        "duplicate: out[1]@0 is one more output of in[0]@1",
    ]


def test_a_step_may_write_to_each_of_its_topics() -> None:
    judge = Judge()

    assert judge.read((OUT, [0, 1])) + judge.read((TopicPartition("more", 0), [0, 1])) == []


def test_of_several_outputs_a_copy_that_comes_after_another_step_is_found() -> None:
    found = Judge(many=True).read((OUT, [0, 0, 1, 1, 0]), (OTHER, [0, 1]))

    assert found == ["duplicate: out[0]@4 is one more output of in[0]@0"]


def test_an_output_of_no_step_of_the_processor_is_anothers() -> None:
    audit = Judge().audit

    assert audit.take_output(LetterPlace("out", 0, 0), hash_prefix("b.copy", "in", "id-1", 0) + pack_offset(0)) is None


def test_an_output_of_an_offset_without_a_committed_record_is_foreign() -> None:
    assert Judge(inputs=[0, 2]).read((OUT, [0, 1])) == ["foreign: out[0]@1 names in[0]@1, where no committed record is"]


def test_an_output_after_that_of_a_later_input_is_out_of_order_in_its_partition_only() -> None:
    outputs = [(OUT, [0, 3, 2, 4]), (OTHER, [1, 5])]

    assert Judge().read(*outputs) == ["order broken: out[0]@2 is an output of in[0]@2, after one of a later input"]
    assert Judge(Guarantee.AT_LEAST_ONCE).read(*outputs) == []  # it is written again after a crash, with those behind


def test_outputs_of_dead_letters_are_duplicates_unless_they_were_replayed() -> None:
    replayed = Judge()
    assert replayed.letters(1, replayed=True) + replayed.read((OUT, [0, 2, 1])) == []
    failed = Judge()
    assert failed.letters(1, 1) == ["duplicate: dead[0]@1 is a second dead letter of in[0]@1"]
    assert failed.read((OUT, [0, 1])) == [
        "duplicate: out[0]@1 is an output of in[0]@1, which has a dead letter as well"
    ]
    weaker = Judge(Guarantee.AT_MOST_ONCE)
    assert weaker.letters(1) + weaker.read((OUT, [0, 1])) == []


def test_a_dead_letter_of_an_offset_without_a_committed_record_is_foreign() -> None:
    assert Judge(inputs=[0, 2]).letters(0, 1) == ["foreign: dead[0]@1 names in[0]@1, where no committed record is"]


def test_outputs_of_deleted_inputs_and_of_later_ones_are_not_judged() -> None:
    judge = Judge(start=2, end=4, inputs=[1, 2, 3, 4])

    assert judge.letters(1) + judge.read((OUT, [1, 2, 3, 4])) + judge.compare(4) == []
    assert judge.audit.unjudged == 3


def test_inputs_below_the_position_without_output_and_outputs_from_it_on_are_found() -> None:
    judge = Judge(start=1, inputs=[1, 2, 3, 4, 5])

    assert judge.read((OUT, [2, 5])) == []
    lost = "is before the committed position, and has no output and no dead letter"
    early = "offsets inconsistent: in[0]@5 has an output or dead letter, and is not before the committed position"
    assert judge.compare(4, every=False) == [early]
    assert judge.compare(4) == [f"lost: in[0]@1 {lost}", f"lost: in[0]@3 {lost}", early]
    assert judge.audit.counts == {Kind.LOST: 2, Kind.OFFSETS_INCONSISTENT: 2}
    assert judge.audit.count_inputs({IN: 4}) == (3, 2)


def peak_of(take: Callable[[int], Audit], steps: int) -> int:
    """The most bytes that an audit of so many steps takes, each with an output."""
    tracemalloc.start()
    try:
        audit = take(steps)
        audit.begin_topic()
        audit.begin_partition()
        for step in range(steps):
            name = PREFIX + pack_offset(step) if audit._by_prefix else digest((step, step))
            assert audit.take_output(LetterPlace(*OUT, step), name) == ()
        positions = dict.fromkeys((IN, LEFT, RIGHT), steps)
        assert list(audit.compare(positions, positions, every=True)) == []
        assert audit.count_inputs(positions) == (steps, 0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("take", "limit"),
    [
        (lambda count: Judge(end=count, inputs=range(count)).audit, 4),
        (lambda count: judge_join(joined(range(count), range(count), (count, count), (count, count))), 100),
    ],
    ids=["single", "join"],
)
def test_memory_of_an_audit_is_some_bytes_for_a_step(take: Callable[[int], Audit], limit: int) -> None:
    few, many = (peak_of(take, steps) for steps in (500, 2_500))
    assert (many - few) / 2_000 < limit


def test_output_delivered_while_they_are_read_or_at_least_once_early_is_no_anomaly() -> None:
    exactly, at_least = Judge(), Judge(Guarantee.AT_LEAST_ONCE)

    assert exactly.read((OUT, [0, 1, 2])) + exactly.compare(2, 5) == []
    assert at_least.read((OUT, [0, 1, 2])) + at_least.compare(2) == []


def test_without_a_position_every_output_is_early() -> None:
    judge = Judge(inputs=[0, 1])
    judge.read((OUT, [0]))

    found = list(judge.audit.compare({}, {}, every=True))

    assert [(each.kind, each.place) for each in found] == [(Kind.OFFSETS_INCONSISTENT, LetterPlace("in", 0, 0))]


LEFT, RIGHT = TopicPartition("left", 0), TopicPartition("right", 0)


def digest(offsets: Sequence[int]) -> bytes:
    return joined_hash("app.pair", [("left", "l", 0, offsets[0]), ("right", "r", 0, offsets[1])])


def joined(
    left: Sequence[int], right: Sequence[int], at: tuple[int, int], limits: tuple[int, int] = (100, 100)
) -> JoinedSteps:
    columns = [array("Q", left), array("Q", right)]
    positions, ends = (dict(zip((LEFT, RIGHT), offsets, strict=True)) for offsets in (at, limits))
    return JoinedSteps([LEFT, RIGHT], columns, positions, ends, digest)


def judge_join(steps: JoinedSteps) -> Audit:
    """An audit of a join, before the first partition of its outputs."""
    audit = Audit([steps], Guarantee.EXACTLY_ONCE, many=False)
    audit.begin_topic()
    audit.begin_partition()
    return audit


def test_the_steps_of_a_join_are_pairs_on_both_sides_of_its_positions() -> None:
    steps = joined([0, 2, 3, 7], [5, 6, 9], (3, 9))

    pairs = [(0, 5), (2, 6), (3, 9)]
    assert [steps.find(digest(pair)) for pair in pairs] == [0, 1, 2]
    assert [str(steps.place(step)) for step in range(3)] == ["left[0]@0", "left[0]@2", "left[0]@3"]
    assert [steps.find(digest(pair)) for pair in [(7, 9), (0, 6)]] == [None, None]
    assert (steps.is_complete, steps.before({LEFT: 3}), steps.before({LEFT: 4}), steps.before({})) == (True, 2, 3, 0)


@pytest.mark.parametrize(("left", "right"), [([1, 2, 3], [8, 9]), ([2, 3], [7, 8, 9])])
def test_pairs_of_a_join_without_its_first_records_are_those_before_its_positions(
    left: list[int], right: list[int]
) -> None:
    steps = joined(left, right, (4, 10))

    assert [steps.find(digest(pair)) for pair in [(2, 8), (3, 9)]] == [0, 1]
    assert not steps.is_complete


@pytest.mark.parametrize("limits", [(3, 100), (100, 9), (3, 9)])
def test_pairs_from_a_limit_on_are_known_and_not_judged(limits: tuple[int, int]) -> None:
    """They are counted from the positions, which are behind the limits."""
    steps = joined([0, 2, 3, 7], [5, 6, 9, 11], (7, 11), limits)
    audit = judge_join(steps)

    pairs = [(0, 5), (0, 5), (3, 9), (3, 9), (0, 6)]
    found = [audit.take_output(LetterPlace("out", 0, at), digest(pair)) for at, pair in enumerate(pairs)]
    found += [tuple(audit.take_letter(LetterPlace(*DEAD, 0), digest((7, 11)), replayed=False))]

    assert [each if each is None else [*map(str, each)] for each in found] == [
        [], ["duplicate: out[0]@1 is one more output of left[0]@0"], [], [], None, [],
    ]  # fmt: skip
    assert (audit.outputs, audit.letters, audit.unjudged) == (4, 1, 3)
    (lost,) = audit.compare({LEFT: 7, RIGHT: 11}, {LEFT: 7, RIGHT: 11}, every=True)
    assert (lost.kind, lost.place) == (Kind.LOST, LetterPlace("left", 0, 2))
    assert audit.count_inputs({LEFT: 7, RIGHT: 11}) == (2, 1)


def test_outputs_of_a_join_are_judged_by_its_pairs() -> None:
    audit = judge_join(joined([0, 1, 2], [0, 1, 2], (3, 3)))
    pairs = [(0, 0), (2, 2), (2, 2), (0, 1)]
    found = [audit.take_output(LetterPlace("out", 0, at), digest(pair)) for at, pair in enumerate(pairs)]

    (copy,) = found[2] or ()
    assert str(copy) == "duplicate: out[0]@2 is one more output of left[0]@2"
    assert [found[0], found[1], found[3]] == [(), (), None]
    (lost,) = audit.compare({LEFT: 3, RIGHT: 3}, {LEFT: 3, RIGHT: 3}, every=True)
    assert (lost.kind, lost.place) == (Kind.LOST, LetterPlace("left", 0, 1))
