"""The kinds of anomalies, and which of them each guarantee tolerates after a fault."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kstreams_py.graph.guarantees import Guarantee


class Kind(StrEnum):
    """The kinds of anomalies."""

    LOST = "lost"
    """Fewer copies of a record than there must be."""
    DUPLICATE = "duplicate"
    """More copies of a record than there may be."""
    FOREIGN = "foreign"
    """A record without a cause."""
    ABORTED_READ = "aborted read"
    """A reader with read_committed has read a record that was aborted, or that could not be sent."""
    TORN_TRANSACTION = "torn transaction"
    """Some records of a transaction, or outputs of a step, are there, and others are missing."""
    PRECOMMITTED_READ = "precommitted read"
    """A reader with read_committed has read a record before its commit was requested."""
    ORDER_BROKEN = "order broken"
    """A record comes after one that should follow it."""
    OFFSETS_INCONSISTENT = "offsets inconsistent"
    """The offsets of readers and groups contradict each other."""
    UNDECIDABLE = "undecidable"
    """A journal contradicts outputs or offsets, or cannot be read: the worker does not start."""


TOLERATED: Final[Mapping[Guarantee, frozenset[Kind]]] = {
    Guarantee.EXACTLY_ONCE: frozenset(),
    Guarantee.AT_LEAST_ONCE: frozenset({Kind.DUPLICATE}),
    Guarantee.AT_MOST_ONCE: frozenset({Kind.LOST, Kind.TORN_TRANSACTION}),
}
"""The anomalies of outputs that each guarantee tolerates after a fault."""
