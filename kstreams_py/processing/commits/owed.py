"""What a worker owes at most once: steps whose offsets are committed and that were not run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial

from kstreams_py.errors import ClientError
from kstreams_py.kafka.contracts import Consumer
from kstreams_py.processing.commits.committer import Committer
from kstreams_py.processing.tasks.committed import CommittedOffsets
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import Positions, TopicPartition

logger = logging.getLogger(__name__)

Debts = dict[TopicPartition, tuple[int, int]]
"""By partition, the next offset of the steps that were not run, and the committed offset behind them."""


class Owed:
    """The steps of one worker that are committed and wait, or whose partitions go before they are run.

    No other worker would run them: the worker commits the offsets before them again (it gives them back), so that
    whoever gets the partitions begins there. Under the other guarantees nothing is committed before it is run, and
    there is nothing to give back.
    """

    def __init__(
        self, processor: str, tasks: Tasks, committer: Committer, consumer: Consumer, committed: CommittedOffsets
    ) -> None:
        """`processor` is its id."""
        self._processor = processor
        self._tasks = tasks
        self._ledger = tasks.ledger
        self._committer = committer
        self._consumer = consumer
        self._committed = committed
        self.over_rejoin: Debts = {}
        """What was owed when the worker left its group to join again; empty once that is given back, or run."""
        self._given: Debts = {}
        """What was given back since `consume` last told that no late commit undoes that."""

    def clear(self) -> None:
        """Forgets all: the partitions are gone."""
        self.over_rejoin, self._given = {}, {}

    def waiting(self, partitions: Collection[int] | None = None) -> Debts:
        """Returns what is owed of these partitions; of those that wait for another attempt if it is None."""
        chosen, cursors = self._tasks.held if partitions is None else partitions, self._ledger.cursors
        return {
            tp: (at.next, at.committed)
            for tp, at in cursors.items()
            if tp.partition in chosen and at.next < at.committed
        }

    def unprocessed(self) -> Debts:
        """Returns what is owed of all partitions that have steps which were not run."""
        return self.waiting({tp.partition for tp in self._ledger.unprocessed})

    def undone(self) -> Debts:
        """Returns what a commit that reaches the broker late would take: what waits, and what was given back."""
        return self._given | self.waiting()

    def heard(self) -> None:
        """Notes that no commit may come late: what was given back stays so."""
        self._given = {}

    def give_held_back(self) -> None:
        """Commits the offsets before the steps that wait, so that a crash does not lose them."""
        if self._tasks.held and not self._consumer.tainted:  # else a late commit would undo this: join again first
            self._given |= self.waiting()
            self._committer.give_back(self._tasks.held.keys())

    def give_back_unstarted(self, assigned: Collection[TopicPartition]) -> None:
        """Commits the offsets before what is owed: the partitions are revoked before they could be started there."""
        try:
            self._committer.attempts.call(partial(self._give_back, assigned))
        except ClientError as error:
            logger.error("%s: at most once: steps that wait may be lost: %s", self._processor, error)

    def _give_back(self, assigned: Collection[TopicPartition]) -> None:
        owed = self.over_rejoin
        if back := self.starts(self._committed.read({tp for tp in owed if tp in assigned}), owed):
            self._consumer.commit(back)

    def starts(self, positions: Positions, owed: Mapping[TopicPartition, tuple[int, int]]) -> Positions:
        """Returns the next offsets of what is owed where the group is at the offsets behind it; logs what is lost."""
        if lost := [tp for tp, (at, committed) in owed.items() if positions.get(tp, committed + 1) > committed]:
            logger.error(
                "%s: at most once: steps that waited are lost: another worker has %s, or had it meanwhile",
                self._processor, ", ".join(map(str, sorted(lost))),
            )  # fmt: skip
        return {tp: at for tp, (at, committed) in owed.items() if positions.get(tp) == committed}
