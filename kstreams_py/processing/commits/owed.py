"""The steps that a worker owes under at_most_once: their offsets are committed, but they were not run."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from kstreams_py.errors import ClientError
from kstreams_py.graph.declarations import Processor
from kstreams_py.kafka.contracts import Consumer
from kstreams_py.processing.commits.committer import Committer
from kstreams_py.processing.tasks.committed import CommittedOffsets
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import Positions, TopicPartition

logger = logging.getLogger(__name__)

Debts = dict[TopicPartition, tuple[int, int]]
"""By partition, the next offset of the steps that were not run, and the committed offset after them."""


class Owed:
    """The committed steps of one worker that wait, or whose partitions are revoked before they are run.

    No other worker would run them. So the worker commits the offsets before them again (it gives them back), and the
    next owner of the partitions begins there. Under the other guarantees nothing is committed before it is run, so
    there is nothing to give back.
    """

    def __init__(
        self, processor: Processor, tasks: Tasks, committer: Committer, consumer: Consumer, committed: CommittedOffsets
    ) -> None:
        self._processor = processor.id
        self._joins = processor.joins
        self._tasks = tasks
        self._ledger = tasks.ledger
        self._committer = committer
        self._consumer = consumer
        self._committed = committed
        self.over_rejoin: Debts = {}
        """The debts when the worker left its group to join again; empty once the steps are given back or run."""
        self._given: Debts = {}
        """The steps given back since `consume` last showed that no late commit can undo a give-back."""

    def clear(self) -> None:
        """Forgets everything: the partitions are revoked or lost."""
        self.over_rejoin, self._given = {}, {}

    def waiting(self, partitions: Collection[int] | None = None) -> Debts:
        """Returns the debts of these partitions; if None, of the partitions that wait for another attempt."""
        chosen, cursors = self._tasks.held if partitions is None else partitions, self._ledger.cursors
        return {
            tp: (at.next, at.committed)
            for tp, at in cursors.items()
            if tp.partition in chosen and at.next < at.committed
        }

    def unprocessed(self) -> Debts:
        """Returns the debts of all partitions that have steps which were not run."""
        return self.waiting({tp.partition for tp in self._ledger.unprocessed})

    def undone(self) -> Debts:
        """Returns the debts that a late commit would lose: for steps that wait, and for steps that were given back."""
        return self._given | self.waiting()

    def heard(self) -> None:
        """Notes that no commit can come late: nothing can undo the give-backs any more."""
        self._given = {}

    def give_held_back(self) -> None:
        """Commits the offsets before the steps that wait, so that a crash does not lose them."""
        if self._tasks.held and not self._consumer.tainted:  # otherwise a late commit would undo this: join again first
            self._given |= self.waiting()
            self._committer.give_back(self._tasks.held.keys())

    def give_back_unstarted(self, assigned: Collection[TopicPartition]) -> None:
        """Commits the offsets before the owed steps: the partitions are revoked before their tasks start."""
        try:
            self._committer.attempts.call(partial(self._give_back, assigned))
        except ClientError as error:
            logger.error("%s: at most once: steps that wait may be lost: %s", self._processor, error)

    def _give_back(self, assigned: Collection[TopicPartition]) -> None:
        owed = self.over_rejoin
        if back := self.starts(self._committed.read({tp for tp in owed if tp in assigned}), owed):
            self._consumer.commit(back)

    def starts(self, positions: Positions, owed: Debts) -> Positions:
        """Returns the next offsets of debts whose committed offset is still the group's; logs which steps are lost.

        A join goes back in all inputs of a task or in none: otherwise its n-th records would no longer meet.
        """
        if lost := [tp for tp, (at, committed) in owed.items() if positions.get(tp, committed + 1) > committed]:
            logger.error(
                "%s: at most once: steps that waited are lost: another worker has %s, or had it meanwhile",
                self._processor, ", ".join(map(str, sorted(lost))),
            )  # fmt: skip
        moved = {tp for tp, (_, committed) in owed.items() if positions.get(tp) != committed}
        if self._joins:
            tasks = {tp.partition for tp in moved}
            moved = {tp for tp in owed if tp.partition in tasks}
        return {tp: at for tp, (at, _) in owed.items() if tp not in moved}
