"""The guarantees of processors whose rows are stored in a target, each once.

By delivery hash (`ExactlyOnceRows`, `AtLeastOnceRows`), rows are stored before the offsets are committed. A crash
between the two delivers their steps again, and the target knows the hashes.

By offsets (`StoredOffsets`), rows and the next offsets of the inputs are stored together, if the target still has the
offsets that this worker has read. The target's offsets decide; the group's offsets follow. Dead letters are committed
before the rows of the same intakes, so a crash between the two writes them twice, with one delivery hash.

No transaction is open while a target writes: however long that takes, the broker does not abort it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from kstreams_py.errors import ClientError, SinkAway
from kstreams_py.graph.sink import Row
from kstreams_py.metrics import estimate
from kstreams_py.processing.commits.committer import Committer, Context
from kstreams_py.processing.commits.guarantees import HELD_BYTES, AtLeastOnce, ExactlyOnce
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.outputs import OUTPUT_BYTES, delivery_hash_of, value_bytes
from kstreams_py.steps.plan import Plan
from kstreams_py.steps.rows import split
from kstreams_py.steps.target import Target

logger = logging.getLogger(__name__)


class _Storing(Committer):
    """Holds rows, and dead letters, until the commit; stores the rows before the offsets are committed."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        sink = context.processor.target
        assert sink is not None, "this processor has no target"
        environment = context.environment
        self._target = Target(sink, context.name, context.topic_ids, environment.open_sink, environment.clock)
        self._rows: list[Row] = []
        self._row_bytes = 0
        self.steps_max = self._target.rows_max

    @property
    def due(self) -> bool:
        return super().due or (
            len(self._rows) >= self._target.rows_max
            or self._row_bytes >= OUTPUT_BYTES
            or value_bytes(self._outputs) >= HELD_BYTES
        )

    def resume(self, positions: Positions, partitions: Collection[TopicPartition]) -> Positions:
        """Restores the state, then connects to the target, so that a mistake is found before a function is called."""
        positions = super().resume(positions, partitions)
        self._target.open()
        return positions

    def write(self, plan: Plan) -> None:
        rows, others = split(plan.outputs)
        size = estimate(value_bytes, plan.outputs)
        Committer.write(self, replace(plan, outputs=others))  # others are sent with the commit, not before
        self._rows += rows
        self._row_bytes += size
        self._written += len(rows)
        self._counters.stepped(read=0, written=len(rows), failed=0, size=max(0, size - estimate(value_bytes, others)))

    def _commit(self) -> None:
        if self._rows:
            self._store({}, {})
        super()._commit()  # type: ignore[safe-super]  # the method of the guarantee beside this class

    def _store(self, positions: Positions, expected: Positions) -> None:
        """Stores the rows; keeps them for the next commit while the target is away."""
        self.must_repeat_commit = False
        try:
            self._target.store(self._rows, positions, expected)
        except SinkAway:
            self.must_repeat_commit = True
            raise
        self._rows, self._row_bytes = [], 0
        self.steps_max = self._target.rows_max

    def _recover(self, error: ClientError) -> bool:
        if isinstance(error, SinkAway):
            self.attempts.failed(error, "trying again")
            return not self.must_repeat_commit
        return super()._recover(error)  # type: ignore[safe-super]

    def end(self) -> None:
        super().end()
        self._target.close()

    def _forget(self) -> None:
        super()._forget()
        self._rows, self._row_bytes = [], 0


class ExactlyOnceRows(_Storing, ExactlyOnce):
    """Stores rows by their hashes; then commits dead letters and offsets in one transaction."""


class AtLeastOnceRows(_Storing, AtLeastOnce):
    """Stores rows by their hashes, each once; then writes dead letters, then commits offsets."""


class StoredOffsets(_Storing, ExactlyOnce):
    """Commits dead letters, then rows and next offsets in one transaction of the target, then the group's offsets."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stored: Positions = {}
        """The next offsets in the target, as last read or written."""
        self._delivered: set[bytes | None] = set()
        """Delivery hashes of steps with a committed dead letter whose offsets the target does not have yet."""

    def resume(self, positions: Positions, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the offsets of the target where it has some, and sets those of the group to them."""
        positions = super().resume(positions, partitions)
        self._stored = self._target.positions(partitions)
        if differing := {tp: at for tp, at in self._stored.items() if positions.get(tp) != at}:
            is_ahead = any(positions.get(tp, at) > at for tp, at in differing.items())
            logger.log(
                logging.WARNING if is_ahead else logging.INFO,  # a crash between the two leaves the group behind
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
        self._store(positions, {tp: self._stored[tp] for tp in positions if tp in self._stored})
        self._stored |= positions
        self._delivered -= letters
        self._transact(positions, [])
        self._ledger.commit(positions)
