"""The intakes of a worker: takes the steps that are ready, runs them, writes their outputs, and commits."""

from __future__ import annotations

import logging
import sys
from threading import Event
from typing import Final

from kstreams_py.errors import ClientError, Refused, Retriable
from kstreams_py.processing.commits.committer import Committer, Context
from kstreams_py.processing.commits.owed import Owed
from kstreams_py.processing.runners.runner import Runner
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.processing.tasks.waits import Waits
from kstreams_py.records import Positions
from kstreams_py.steps.plan import Intake, Plan


class Pace:
    """How many records to fetch and to take at a time.

    A slow function must neither outlast its transaction nor keep its worker from the group, and a fast one must not
    pay per call. With `whole_fetches` each intake costs a commit of its own, so everything that was fetched is taken.
    """

    FETCH_MAX: Final = 10_000
    TAKE_MAX: Final = 500
    FETCH_SECONDS: Final = 0.2

    def __init__(self, *, whole_fetches: bool, least: int = 1) -> None:
        """`least` is the minimum to fetch and to take."""
        self.fetch = max(100, least)
        self._whole_fetches = whole_fetches
        self._least = least
        self._waited = 0.0

    @property
    def take(self) -> int:
        """How many steps to run before the clock is read."""
        return self.fetch if self._whole_fetches else min(self.fetch, max(self.TAKE_MAX, self._least))

    def ran(self, steps: int, seconds: float) -> None:
        """Aims at fetches of FETCH_SECONDS of work: grows fourfold at most, shrinks immediately."""
        wanted = int(self.FETCH_SECONDS * steps / seconds) if seconds > 0 else self.FETCH_MAX
        self.fetch = max(self._least, min(wanted, self.fetch * 4, self.FETCH_MAX))

    def waited(self, steps: int, seconds: float) -> None:
        """Does the same as `ran` for steps with overlapping calls; `steps` is 0 if none of them is done yet."""
        self._waited += seconds
        if steps:
            self.ran(steps, self._waited)
            self._waited = 0.0


class Search:
    """Finds the step that makes a transaction fail, by halving the number of steps of the next transaction."""

    def __init__(self) -> None:
        self.limit = sys.maxsize
        self._whole = 0
        """How many steps the first failed transaction had."""

    @property
    def searching(self) -> bool:
        """Whether a search is going on: every intake is then committed by itself."""
        return self.limit < sys.maxsize

    def failed(self, steps: int) -> bool:
        """Returns whether a single step failed; otherwise the next transaction has half as many steps."""
        self._whole = max(self._whole, steps)
        self.limit = max(1, steps // 2)
        return steps == 1

    def committed(self, steps: int) -> None:
        """Notes that a transaction of this many steps was committed: the next one may have twice as many."""
        if self.searching and steps:
            self.limit *= 2
            if self.limit > self._whole:
                self.limit, self._whole = sys.maxsize, 0


logger = logging.getLogger(__name__)


class Intakes:
    """Runs the steps of one worker, one intake at a time. It does not know the group: the worker handles rebalances."""

    def __init__(
        self, context: Context, tasks: Tasks, runner: Runner, committer: Committer, owed: Owed, stopping: Event
    ) -> None:
        """`stopping` ends the runs of steps. This object also sets it, once a function stops the worker."""
        processor, retries = context.processor, runner.retries
        least = 2 * processor.concurrency if runner.overlaps and not committer.commits_each_intake else 1
        self.pace = Pace(whole_fetches=committer.commits_each_intake or context.journal is not None, least=least)
        self.interrupt: BaseException | None = None
        """The exception of a function that stops this worker."""
        self._processor = processor.id
        self._tasks = tasks
        self._ledger = tasks.ledger
        self._runner = runner
        self._committer = committer
        self._owed = owed
        self._counters = context.counters
        self._clock = context.environment.clock
        self._stopping = stopping
        self._search = Search()
        self._waits = Waits(processor.id, retries, tasks, context.environment, context.counters) if retries else None
        self._taken: Taken | None = None
        """The intake that was taken and not run; it is prepared again if the commit of its offsets got no answer."""
        self._last: Intake | None = None
        """The intake that was run last."""
        self._has_repeated = False
        """Whether the last turn ran steps whose wait was over."""

    @property
    def why(self) -> str:
        """The newest failure of a step that is run again, as text; "" if there was none."""
        return "" if self._waits is None else self._waits.why

    @property
    def is_blocked(self) -> bool:
        """Whether a step has stopped the worker, or an intake was taken and not run: no offset may be passed."""
        return self.interrupt is not None or self._taken is not None

    def patience(self, limit: float) -> float:
        """Returns the seconds to wait for a record: `limit`, or less if a step is run again earlier."""
        return limit if self._waits is None else self._waits.seconds(limit)

    # Between two rewinds.

    def run_ready(self) -> None:
        """Runs the steps that are ready, and the steps of one wait that is over."""
        if self._waits is not None:
            if self._owed.waiting():
                self._owed.give_held_back()  # only the next `consume` shows whether this commit may come late
            elif not (self._has_repeated and self._tasks.ready):  # alternate, so that neither starves the other
                self._waits.release()
        self._has_repeated = False
        while not self._stopping.is_set() and (intake := self._take()) is not None:
            failed = self._run_taken()
            self._has_repeated |= intake.repeated
            if failed:  # commit the steps before the one that waits
                self.commit()
                self._owed.give_held_back()
            # return, so that the client hears from the group: failing calls may be slow in each partition, and the
            # next commit of offsets must not overtake one that may reach the broker late
            if (failed and not intake.repeated) or (self._committer.commits_each_intake and self._tasks.rest is None):
                return
            if self._runner.overlaps and self._tasks.rest is not None:  # their calls are under way
                return

    def run_saved(self) -> None:
        """Runs the intake that was taken, if its offsets are or may be committed, and then its rest."""
        if self._taken is not None and self._taken.saved:
            self._run_taken()
        self.run_rest()

    def run_rest(self) -> None:
        """Runs the rest of an intake whose offsets are committed: no other worker would run it."""
        while self._tasks.owes and self._take() is not None:
            self._run_taken()

    def commit(self) -> None:
        """Commits outputs and offsets. Raises ClientError: pass it to the guarantee's `recover`, then call `failed`."""
        steps = self._committer.uncommitted_steps
        self._committer.commit()
        self._search.committed(steps)
        if self._ledger.cursors:  # none between two assignments: the partitions may come back
            self._runner.committed()

    def failed(self, error: ClientError, steps: int, *, rewinds: bool) -> None:
        """Narrows the search for a step that fails: a commit of `steps` steps failed."""
        if isinstance(error, Refused) and rewinds and self._search.failed(steps):
            assert self._last is not None
            self._runner.refuse(self._last, error)
        elif self._committer.session.timed_out:
            self._search.failed(steps)

    # At a rewind.

    def forget(self) -> None:
        """Forgets the steps that were taken or are under way: the partitions are revoked or lost."""
        self._taken = None
        self._runner.abandon()
        self._tasks.clear()

    def keep_saved(self, positions: Positions) -> None:
        """Forgets the intake that was taken, unless it is committed under at_most_once: no other worker would run it.

        Under the other guarantees, committed offsets mean that another worker has delivered it.
        """
        taken = self._taken
        if taken is None or not self._committer.must_finish or not taken.positions().items() <= positions.items():
            self._taken = None
        else:
            taken.saved = True

    def read_again(self, starts: Positions) -> None:
        """Forgets the intake that was taken if a partition of it starts at an earlier offset."""
        if self._taken is not None and not self._taken.positions().keys().isdisjoint(starts):
            self._taken = None

    def assigned(self) -> None:
        """Continues the waits, and the intake that was kept, once the tasks have new positions."""
        if self._taken is not None:  # its steps are committed and not processed: they may still be given back
            self._ledger.advance(self._taken.begins())
        if self._waits is not None:
            self._waits.restore()

    # At the end.

    def finish_calls(self, deadline: float) -> None:
        """Makes no more overlapping calls, and waits for the calls under way; other steps are run again, or given back.

        Under at_most_once, committed steps are run first, for half of the time; steps whose calls do not end count as
        done.
        """
        runner, must_finish, failure = self._runner, self._committer.must_finish, None
        half = self._clock() + (deadline - self._clock()) / 2
        while self._tasks.rest is not None and self._taken is None and self._clock() < deadline:
            if not must_finish or self._clock() >= half:
                runner.finish()
                if not (runner.has_open if must_finish else runner.is_calling):
                    break
            self._take()
            failure = self._run_past_failures() or failure
        runner.finish()
        left = runner.under_way()
        if must_finish:
            self._ledger.advance(left)
            self._taken = self._tasks.rest = None
        if left:
            what = "outputs are lost" if must_finish else "they will be made again"
            logger.warning("%s: calls under way are given up: %s", self._processor, what)
        if failure is not None:
            raise failure

    def _run_past_failures(self) -> ClientError | None:
        """Runs the intake that was taken. Under at_most_once, returns an error: the committer keeps the outputs."""
        try:
            self._run_taken()
        except ClientError as error:
            if not self._committer.must_finish:
                raise
            if not isinstance(error, Refused):
                return error
            self._committer.recover(error)  # the next commit writes its dead letter
        return None

    # One intake.

    def _take(self) -> Taken | None:
        """Returns the intake that waits to be prepared, or takes the next one; None if no step is ready."""
        if self._taken is None:
            limit = self.pace.take
            if (target := self._committer.target) is not None:  # a commit is due once one write can take no more rows
                limit = min(limit, target.rows_max)
            if self._runner.overlaps:  # at least one step of each partition, so that the partitions overlap
                limit = max(limit, len(self._tasks.by_partition))
            self._taken = self._tasks.take(min(limit, self._search.limit), fills=not self._search.searching)
        return self._taken

    def _run_taken(self) -> bool:
        """Prepares the intake, runs its steps, writes the outputs, and commits if a commit is due.

        Returns whether a step failed and is run again after a wait.
        """
        intake = self._taken
        assert intake is not None
        if not intake.prepared:
            self._committer.prepare(intake)
        self._taken = None
        plan = self._run_measured(intake)
        if plan.steps:
            self._last = plan.intake
        if plan.again is not None and self._waits is not None:
            self._waits.begin(plan.again)
        if plan.interrupt is not None and not self._committer.must_finish:
            self._finish_and_stop(plan, plan.interrupt)
        else:
            if plan.interrupt is not None:
                self._stop(plan.interrupt)
            if plan.steps or plan.tried:
                self._committer.write(plan)
        if self._committer.due or self._search.searching:
            self.commit()
        return plan.again is not None

    def _run_measured(self, intake: Taken) -> Plan:
        started = self._clock()
        plan = self._runner.run(intake)
        seconds = self._clock() - started
        if plan.seconds is None:
            self.pace.ran(max(1, plan.steps), seconds)
        else:
            self.pace.waited(plan.steps, seconds)
        self._counters.ran(plan.steps, seconds if plan.seconds is None else plan.seconds)
        return plan

    def _finish_and_stop(self, plan: Plan, interrupt: BaseException) -> None:
        """Writes and commits the steps before the one that stops the worker."""
        try:
            self._committer.write(plan)
            self.commit()
        except Retriable:
            # a commit to be repeated must not pass the step that raised; otherwise all steps are run again
            if self._committer.must_repeat_commit:
                self._stop(interrupt)
            raise
        self._stop(interrupt)

    def _stop(self, interrupt: BaseException) -> None:
        self.interrupt = interrupt
        self._stopping.set()
