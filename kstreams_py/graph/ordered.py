"""Ordered: a processor that applies the events of each object once, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

HELD_MAX: Final = 10_000
"""The default limit of events of a task that wait for the events before them."""

HELD_BYTES_MAX: Final = 64 << 20
"""The default limit of the bytes of their keys and values."""


class Start(StrEnum):
    """Which event may come first for an object without a state."""

    FROM_START = "from_start"
    """The object's first event: one with a predecessor is held."""
    ACCEPT_FIRST = "accept_first"
    """Any event: earlier events that come later are dropped as copies."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """How a processor applies events.

    - `start`: which event of an object may be the first.
    - `held_max`, `held_bytes_max`: how many events of a task may wait for the events before them, and their bytes.
    - `takes_state`: the function takes a state of its own.
    """

    start: Start
    held_max: int
    held_bytes_max: int
    takes_state: bool
