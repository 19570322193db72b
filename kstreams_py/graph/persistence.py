"""Journal: a processor that records each delivery in a topic of its own, before it happens and before it is visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import GraphError

BATCH_MAX: Final = 10_000
"""The most input sets that a journal may deliver together."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Deliveries of an `exactly_once` processor go through a journal: `persistence=Journal()`, or "journal".

    The journal records a task's next offsets before its function is called, and the places of the outputs before
    their transaction is committed. After a crash, the next start reads the outputs back from there.

    - `batch`: the most input sets of a task that are delivered together. With 1, each is recorded and committed by
      itself.

    Raises GraphError unless `batch` is a number from 1 to 10,000.
    """

    batch: int = 1_000

    def __post_init__(self) -> None:
        if not isinstance(self.batch, int) or isinstance(self.batch, bool) or not 1 <= self.batch <= BATCH_MAX:
            raise GraphError(f"Journal: batch is {self.batch!r}: give a number from 1 to {BATCH_MAX:,}")
