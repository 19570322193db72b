"""The acker and the inputs under way: every order of acknowledgements, and a model with lost and copied messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import permutations
from operator import xor
from typing import NamedTuple

import pytest

from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.identity import Pattern, SegmentId, new_ids, new_patterns
from kstreams_py.jobs.pending import PendingInputs

INPUT, OTHER = SegmentId(b"1"), SegmentId(b"2")

ROOT, FIRST, SECOND = Pattern(837878), Pattern(23944), Pattern(993758)
"""The numbers of the source document: an input with two children."""


def acknowledgement(done: Pattern, made: Iterable[Pattern]) -> int:
    """What a task acknowledges of a copy that is done and the copies that it made from it."""
    return reduce(xor, made, done)


TREE = (acknowledgement(ROOT, (FIRST, SECOND)), FIRST, SECOND)
"""What is acknowledged of it."""


def never(_: SegmentId) -> bool:
    return False


def deliver(acker: Acker, message: int | None) -> list[SegmentId]:
    """Delivers an acknowledgement; None is the opening."""
    return acker.open([INPUT], [ROOT]) if message is None else acker.ack([INPUT], [message])


@pytest.mark.parametrize("order", list(permutations((None, *TREE))))
def test_input_of_the_document_is_complete_at_the_last_message_in_each_order(order: tuple[int | None, ...]) -> None:
    acker = Acker()
    assert [deliver(acker, message) for message in order] == [[], [], [], [INPUT]]
    assert len(acker) == 0


def test_without_the_root_in_the_opening_the_numbers_of_the_document_leave_it_over() -> None:
    assert reduce(xor, TREE) == ROOT == 837878


def test_seven_messages_complete_a_tree_of_six_in_each_of_5040_orders() -> None:
    patterns = [Pattern(1 << n) for n in range(6)]  # the XOR of no subset of these is zero
    children = {0: (1, 2), 1: (3,), 2: (4, 5)}
    acks = [acknowledgement(patterns[n], [patterns[c] for c in children.get(n, ())]) for n in range(6)]
    for order in permutations((None, *acks)):
        acker = Acker()
        ends = [
            acker.open([INPUT], [patterns[0]]) if message is None else acker.ack([INPUT], [message])
            for message in order
        ]
        assert ends == [[]] * 6 + [[INPUT]]


def test_acknowledgements_that_cancel_each_other_complete_nothing_before_the_opening() -> None:
    acker = Acker()
    assert acker.ack([INPUT, INPUT], [FIRST, FIRST]) == []
    assert acker.open([INPUT], [ROOT]) == []
    assert acker.left(INPUT) == ROOT


@pytest.mark.parametrize("place", range(1, 4))
def test_second_opening_changes_nothing_whenever_it_comes(place: int) -> None:
    messages: list[int | None] = [None, *TREE]
    messages.insert(place, None)
    acker = Acker()
    assert [deliver(acker, message) for message in messages] == [[], [], [], [], [INPUT]]


def test_opening_without_copies_is_complete_at_once() -> None:
    assert Acker().open([INPUT, OTHER], [0, ROOT]) == [INPUT]


def test_one_pattern_for_two_copies_would_complete_while_one_is_under_way() -> None:
    """Why each copy has its own pattern: the two would open the entry with zero."""
    assert Acker().open([INPUT], [FIRST ^ FIRST]) == [INPUT]
    assert Acker().open([INPUT], [FIRST ^ SECOND]) == []


def test_entries_whose_end_is_lost_are_dropped_after_two_calls_and_others_are_not() -> None:
    acker = Acker()
    acker.open([INPUT], [ROOT])
    acker.ack([OTHER], [FIRST])  # of an input that is never opened
    acker.drop(never)
    assert len(acker) == 2
    assert acker.ack([INPUT], [ROOT ^ FIRST]) == []  # an old entry is still found
    third = SegmentId(b"3")
    acker.open([third], [SECOND])
    acker.drop(never)
    assert (len(acker), acker.dropped) == (1, 2)
    assert acker.ack([third], [SECOND]) == [third]
    assert len(acker) == 0


def test_forgotten_entry_is_gone_and_a_late_acknowledgement_of_it_is_dropped_in_time() -> None:
    acker = Acker()
    acker.open([INPUT], [ROOT])
    acker.forget([INPUT])
    assert deliver(acker, ROOT) == []
    acker.drop(never)
    acker.drop(never)
    assert (len(acker), acker.dropped) == (0, 1)


def test_entry_of_an_input_that_is_still_waited_for_is_never_dropped() -> None:
    acker = Acker()
    acker.open([INPUT], [ROOT])
    acker.ack([OTHER], [FIRST])
    for _ in range(5):
        acker.drop(lambda segment: segment == INPUT)
    assert (len(acker), acker.dropped) == (1, 1)
    assert acker.ack([INPUT], [ROOT]) == [INPUT]


def test_patterns_are_not_zero_and_ids_are_distinct() -> None:
    assert len(set(new_ids(os.urandom, 10_000))) == 10_000
    patterns = new_patterns(os.urandom, 100_000)
    assert len(set(patterns)) == 100_000
    assert all(0 < pattern < 1 << 64 for pattern in patterns)
    assert new_patterns(bytes, 3) == [1, 1, 1]


def test_pending_input_is_either_acknowledged_or_read_again() -> None:
    pending = PendingInputs[str](timeout=10.0)
    pending.add([INPUT, OTHER], ["a", "b"], now=0.0)
    assert pending.overdue(9.9) == []
    assert pending.complete([INPUT]) == ["a"]
    assert pending.overdue(10.0) == [OTHER]
    assert pending.expire([OTHER, INPUT]) == ["b"]
    assert (pending.complete([OTHER, INPUT]), pending.late, len(pending)) == ([], 2, 0)


def test_each_pending_input_has_the_whole_time_and_progress_gives_it_again() -> None:
    pending = PendingInputs[str](timeout=10.0)
    for now, segment in ((0.0, INPUT), (4.0, OTHER)):
        pending.add([segment], ["claim"], now)
    pending.extend([INPUT], now=9.0)
    assert [(now, pending.overdue(now)) for now in (13.9, 14.0, 19.0)] == [
        (13.9, []), (14.0, [OTHER]), (19.0, [OTHER, INPUT]),
    ]  # fmt: skip
    oldest = pending.oldest
    assert oldest is not None
    assert (oldest.segment, oldest.since) == (INPUT, 0.0), "progress does not make it younger"
    assert (len(pending.take_all()), len(pending)) == (2, 0)


# A model: one input goes to a task that makes two copies, each of which has an effect.


COPIES = (1, 2)


class State(NamedTuple):
    """What is under way: messages, the faults that may still happen, and what happened.

    - `lives_max`: how often the input may be read.
    - `messages`: in flight, in no order, each (life of the input, kind, number).
    - `acker`: the entries of the acker, by the generation that has them.
    - `effects`: the copies whose effect is stored, whatever their life.
    - `ended`: how each life has ended.
    """

    lives_max: int
    faults: int
    messages: tuple[tuple[int, str, int], ...] = ()
    acker: tuple[tuple[str, tuple[tuple[SegmentId, int], ...]], ...] = ()
    lives: int = 0
    effects: frozenset[int] = frozenset()
    ended: tuple[str, ...] = ()

    def followed_by(self) -> Iterator[State]:
        """Delivers, loses or copies each message; lets the life that is pending expire."""
        for index, message in enumerate(self.messages):
            rest = self._replace(messages=self.messages[:index] + self.messages[index + 1 :])
            if self.faults:
                yield rest._replace(faults=self.faults - 1)
                yield self._replace(messages=(*self.messages, message), faults=self.faults - 1)
            yield rest.delivered(*message)
        if self.is_pending and self.lives < self.lives_max:
            yield self._replace(ended=(*self.ended, "expired")).begun()

    @property
    def is_pending(self) -> bool:
        return len(self.ended) < self.lives

    def begun(self) -> State:
        """The source gives the input."""
        life = self.lives
        return self._replace(messages=(*self.messages, (life, "opening", 0), (life, "segment", 0)), lives=life + 1)

    def delivered(self, life: int, kind: str, number: int) -> State:
        if kind == "segment":
            copies = [pattern(life, copy) for copy in COPIES]
            made = (*((life, "copy", copy) for copy in COPIES), (life, "ack", pattern(life, 0) ^ xor(*copies)))
            return self._replace(messages=self.messages + made)
        if kind == "copy":
            ack = (life, "ack", pattern(life, number))
            return self._replace(messages=(*self.messages, ack), effects=self.effects | {number})
        acker, segment = Acker(), SegmentId(bytes([life]))
        vars(acker).update((name, dict(entries)) for name, entries in self.acker)
        complete = acker.open([segment], [pattern(life, 0)]) if kind == "opening" else acker.ack([segment], [number])
        kept = [(name, entries) for name, entries in sorted(vars(acker).items()) if isinstance(entries, dict)]
        state = self._replace(acker=tuple((name, tuple(sorted(entries.items()))) for name, entries in kept))
        if not complete or len(self.ended) != life:
            return state
        assert self.effects == set(COPIES), f"acknowledged before its effects: {self}"
        return state._replace(ended=(*self.ended, "acknowledged"))


def pattern(life: int, copy: int) -> Pattern:
    return Pattern(1 << (4 * life + copy))


@pytest.mark.parametrize(("lives", "faults"), [(1, 2), (2, 1), pytest.param(2, 2, marks=pytest.mark.long)])
def test_model_never_acknowledges_before_all_effects_and_always_without_faults(lives: int, faults: int) -> None:
    first = State(lives, faults).begun()
    seen, wave, left_over = {first}, [first], 0
    while wave:
        state = wave.pop()
        if not state.messages and state.is_pending:
            left_over += 1
            assert state.faults < faults, f"not acknowledged, though nothing was lost or copied: {state}"
        for each in state.followed_by():
            following = each._replace(messages=tuple(sorted(each.messages)))
            if following not in seen:
                seen.add(following)
                wave.append(following)
    assert left_over > 0, "a lost message leaves an input pending, until it expires"
    assert len(seen) > 1_000
