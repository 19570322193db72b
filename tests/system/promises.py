"""Checks the outputs of one partition against the promise of each guarantee, after a number of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from kstreams_py.graph.anomalies import TOLERATED
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.testing.verdicts import compare

T = TypeVar("T", bound=Hashable)


def assert_kept(
    guarantee: Guarantee, found: Sequence[T], expected: Sequence[T], faults: int, *, stalls: int = 0
) -> None:
    """Compares outputs, each of them unique, with the expected outputs in the order of the inputs.

    This is stricter than the checker, which compares by key and without a bound: a fault costs at most one run of
    consecutive outputs, which at_least_once repeats and at_most_once loses. A worker that a stall has cost its
    partitions may have sent one run under at_most_once that comes late, and cannot be called back.
    """
    place = {output: i for i, output in enumerate(expected)}
    assert len(place) == len(expected), "each expected output is unique"
    comparison = compare(Counter(found), Counter(expected))
    assert comparison.totals.keys() <= TOLERATED[guarantee], comparison
    places = [place[output] for output in found]
    steps = [after - before for before, after in zip([-1, *places], [*places, len(expected)], strict=True)]
    jumps = [step for step in steps if step != 1]
    bound = 0 if guarantee is Guarantee.EXACTLY_ONCE else faults + 2 * stalls
    assert len(jumps) <= bound, f"{faults} faults and {stalls} stalls, but runs: {jumps}"
    if guarantee is Guarantee.AT_LEAST_ONCE:
        assert all(step < 1 for step in jumps), "outputs are repeated in order, and none is skipped"
    else:
        assert sum(step < 1 for step in jumps) <= stalls, "no output is repeated or out of order"


def key_of(value: bytes) -> bytes:
    """The key of a numbered value: one of thirty."""
    return b"key %d" % (int(value) % 30)


def by_key(values: Iterable[bytes | None]) -> dict[bytes, list[bytes]]:
    """The values of each key, in their order."""
    found: dict[bytes, list[bytes]] = {}
    for value in values:
        assert value is not None
        found.setdefault(key_of(value), []).append(value)
    return found
