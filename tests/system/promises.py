"""What each guarantee promises of a partition's outputs after so many faults."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

from kstreams_py.delivery import Guarantee

T = TypeVar("T", bound=Hashable)


def assert_kept(guarantee: Guarantee, found: Sequence[T], expected: Sequence[T], faults: int) -> None:
    """Outputs, each of them unique, against those of the inputs in order.

    A fault costs at most one run of consecutive outputs: at_least_once repeats it, at_most_once loses it.
    """
    if guarantee is Guarantee.EXACTLY_ONCE:
        assert list(found) == list(expected)
        return
    place = {output: i for i, output in enumerate(expected)}
    assert len(place) == len(expected), "each is unique"
    assert {*found} <= place.keys(), "nothing else is there"
    places = [place[output] for output in found]
    steps = [after - before for before, after in zip([-1, *places], [*places, len(expected)], strict=True)]
    jumps = [step for step in steps if step != 1]
    assert len(jumps) <= faults, f"{len(jumps)} runs are lost or repeated by {faults} faults"
    if guarantee is Guarantee.AT_LEAST_ONCE:
        assert {*found} == place.keys(), "nothing is lost"
        assert all(step < 1 for step in jumps), "what is repeated is repeated in order, and nothing is skipped"
    else:
        assert all(step > 1 for step in jumps), "nothing is repeated or out of order"
