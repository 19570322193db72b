"""The guarantee of processors whose target stores the next offsets of the inputs with the rows.

Rows and offsets are stored together, if the target still has the offsets that this worker has read. The target's
offsets decide; the group's offsets follow. Dead letters are committed before the rows of the same intakes: after a
crash between the two, dead letters are written twice, with the same delivery hash.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kstreams_py.processing.commits.committer import Context
from kstreams_py.processing.commits.guarantees import ExactlyOnce
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.outputs import delivery_hash_of

logger = logging.getLogger(__name__)


class StoredOffsets(ExactlyOnce):
    """Commits dead letters, then rows and next offsets in one transaction of the target, then the group's offsets."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stored: Positions = {}
        """The next offsets in the target, as last read or written."""
        self._delivered: set[bytes | None] = set()
        """Delivery hashes of steps with a committed dead letter whose offsets the target does not have yet."""

    def resume(self, positions: Positions, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the offsets of the target where it has some, and commits them to the group."""
        positions = super().resume(positions, partitions)
        assert self.target is not None, "this processor has no target"
        self._stored = self.target.positions(partitions)
        if differing := {tp: at for tp, at in self._stored.items() if positions.get(tp) != at}:
            is_ahead = any(positions.get(tp, at) > at for tp, at in differing.items())
            logger.log(
                logging.WARNING if is_ahead else logging.INFO,  # a crash between the commits leaves the group behind
                "%s: continues at the offsets that its target has, not at those of its group: %s", self._processor.id,
                ", ".join(f"{tp}@{at}, not {positions.get(tp, 'any')}" for tp, at in sorted(differing.items())),
            )  # fmt: skip
            self._transact(differing, [])
        return positions | self._stored

    def _commit(self) -> None:
        positions = self._ledger.uncommitted
        letters = {delivery_hash_of(output) for output in self._outputs}
        if left := [output for output in self._outputs if delivery_hash_of(output) not in self._delivered]:
            self._transact({}, left)
        self._delivered |= letters
        expected = {tp: self._stored[tp] for tp in positions if tp in self._stored}
        self._ask(positions, lambda: self._store_rows(positions, expected))
        self.tally.committed()  # whatever becomes of the group's offsets
        self._stored |= positions
        self._delivered -= letters
        self._transact(positions, [])
        self._ledger.commit(positions)
