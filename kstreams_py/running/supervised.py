"""One slot as its supervisor sees it: the reports of its worker processes, why each ended, and what to do next."""

from __future__ import annotations

import signal
from collections import deque
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from kstreams_py.errors import NOT_RESTARTED, Replaced, WorkersFailed
from kstreams_py.metrics import WorkerState
from kstreams_py.running.pipe import PipeReader
from kstreams_py.running.reports import PEER, Report
from kstreams_py.running.status import End, SlotStatus
from kstreams_py.running.watch import Stillness, Watch

FINAL: Final = frozenset(NOT_RESTARTED) - {Replaced.exit_status}
"""Exit statuses that a restart cannot remedy in any slot: the supervisor stops all slots."""

RESTARTS_MAX: Final = 8
"""Restarts of a slot in a row without a healthy worker, after which the supervisor stops all slots."""

HEALTHY_SECONDS: Final = 10.0
"""A worker that ran for this long was healthy; so was one that committed before a signal ended it."""

BACKOFF: Final = (0.0, 0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0)
"""Seconds before each restart in a row. The first two are immediate: the group waits for the static member."""


ENDS_KEPT: Final = 20
"""The maximum number of ends of a slot's processes in its status."""


class Next(Enum):
    """The supervisor's next action after a worker has ended."""

    RESTART = auto()
    """Start another process in the slot, at `start_at` or later."""
    STOP = auto()
    """Stop all slots: the worker ended by itself."""
    LEAVE = auto()
    """Do not restart the slot: a worker elsewhere holds it."""


class SupervisedSlot:
    """The state of one slot. Times are seconds of one monotonic clock.

    For each worker process: `begin`, then `feed` and `look` while it runs, then `end` once all its output is fed.
    """

    def __init__(self, number: int, stuck_timeout_ms: int | None = None, restarts: int = 0) -> None:
        self.number = number
        self.restarts = restarts
        """Restarts in a row without a healthy worker."""
        self.start_at = 0.0
        """The earliest time at which the next process may start."""
        self.error = ""
        """The error that the newest process reported before it ended."""
        self.taken = ""
        """Why the slot is not restarted: another worker holds it; "" otherwise."""
        self.restarts_max = RESTARTS_MAX
        self.started = 0
        """The number of processes that the slot has had."""
        self._ends = deque[End](maxlen=ENDS_KEPT)
        self._silent = 0.0
        self._stuck_timeout_ms = stuck_timeout_ms
        self._reports: dict[str, Report] = {}
        """The newest report of each processor, plus the counts of this slot's earlier processes."""
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Starts the state of a new process; only the counts of earlier ones are kept."""
        self.error = ""
        self._silent = 0.0
        self._started_at = now
        self._committed = False
        self._stuck = ""
        """Why the process is being killed; "" if it is not."""
        self._pipe = PipeReader()
        self._past = {name: (report.counters, report.measures) for name, report in self._reports.items()}
        """The counts and measures of this slot's earlier processes."""
        self._fresh = set[str]()
        """The processors that this process has reported on."""
        self._latest: dict[str, Report] = {}
        """The newest report of each processor from this process, by which `look` judges."""
        self._report_count = 0
        self._stillness = Stillness()
        self._watch = Watch(self.number, self._stuck_timeout_ms)

    def feed(self, data: bytes) -> bool:
        """Takes bytes from the worker's pipe; returns whether they complete a report or an error."""
        found = self._pipe.feed(data)
        for each in found:
            if isinstance(each, str):
                self.error = each
                continue
            self._report_count += 1
            self._latest[each.processor] = each
            self._fresh.add(each.processor)
            self._reports[each.processor] = each.after(*self._past.get(each.processor, ({}, {})))
            self._committed |= each.counters["commits"] > 0
        return bool(found)

    def forget_latest(self) -> None:
        """Makes `look` ignore the reports so far: they are old, because the supervisor itself was stopped."""
        self._latest = {}
        self._pipe.forget()

    def look(self, now: float) -> bool:
        """Warns of a stuck worker; returns True if the caller must kill it, after stuck_timeout_ms.

        A stuck worker cannot drain, so it is not asked to.
        """
        if self._stuck:
            return False
        silent = self._silent = self._stillness.look(self._report_count, now)
        found = self._watch.look(self._latest.values(), silent, has_reported=self._report_count > 0)
        if found is None:
            return False
        self._stuck = found.why
        commits = self._latest[found.processor].counters["commits"] if found.processor else self._committed
        self.restarts = 0 if commits else self.restarts
        return True

    def end(self, status: int, now: float) -> Next:
        """Returns the next action after an end with `status` (a negative signal number, as in subprocess).

        Raises WorkersFailed if a restart cannot remedy the error, or `restarts_max` restarts did not.
        """
        ran_well = now - self._started_at >= HEALTHY_SECONDS or (status < 0 and self._committed)
        if ran_well and not self._stuck:
            self.restarts = 0
        if status == 0 and self._pipe.has_drained:
            return Next.STOP
        if status == Replaced.exit_status:
            self.taken = self.why(status)
            return Next.LEAVE
        if status in FINAL:
            raise WorkersFailed(f"slot {self.number} ended by {self.why(status)}", status)
        if self.restarts >= self.restarts_max:
            ended = f"died {self.restarts + 1} times in a row, at last" if self.restarts else "ended"
            raise WorkersFailed(f"slot {self.number} {ended} by {self.why(status)}", status if status > 0 else 1)
        self.start_at = now + BACKOFF[min(self.restarts, len(BACKOFF) - 1)]
        self.restarts += 1
        return Next.RESTART

    def note_end(self, status: int, at: float) -> None:
        """Adds the end of a process to the status; `at` is in seconds since 1970."""
        self._ends.append(End(at, self.why(status)))

    def status(self, pid: int | None) -> SlotStatus:
        """Returns the status of the slot at this moment; `pid` is None if it has no process."""
        return SlotStatus(
            number=self.number,
            pid=pid,
            reports=tuple(
                report if report.processor in self._fresh else self._of_previous(report)
                for report in self._reports.values()
            ),
            has_reported=self._report_count > 0,
            silent=self._silent,
            restarts=max(0, self.started - 1),
            ends=tuple(self._ends),
            taken=self.taken,
            began_at=self._started_at,
        )

    def _of_previous(self, report: Report) -> Report:
        """Returns a report of the previous process with the present state of the slot."""
        if self._is_over(report):
            return replace(report.as_past(), lag=0, state=WorkerState.SPARE)
        return replace(report.as_past(), state=WorkerState.RESTARTING)

    def _is_over(self, report: Report) -> bool:
        """Returns whether a report is on a task that has ended: a peer that starts again does not get its task back."""
        return PEER in self._fresh and report.processor not in self._fresh

    def has_drained(self, status: int) -> bool:
        """Returns whether a process that was asked to stop has drained; if not, its steps will run again.

        A process that has not reported has begun nothing: its source was away, for example.
        """
        if not self._report_count:
            return True
        # SIGTERM: the process had not installed its handler yet. Replaced: another worker has the slot and its work
        return status in (-signal.SIGTERM, Replaced.exit_status) or (status == 0 and self._pipe.has_drained)

    @property
    def are_inputs_done(self) -> bool:
        """Whether the newest process has drained because the sources of its graph have no input left."""
        return self._pipe.are_inputs_done

    def why(self, status: int) -> str:
        """Returns why the process ended, as text: why it was killed, the error that it reported, or its status."""
        named = signal.Signals(-status).name if status < 0 else f"status {status}"
        if status == 0 and not self._pipe.has_drained:
            named = "status 0 before it had drained: does a function call os._exit()?"
        return f"{named} ({self._stuck})" if self._stuck else self.error or named

    def reports(self) -> list[Report]:
        """Returns the newest report of each processor. The lag is 0 for partitions that others hold now."""
        return [
            replace(report, lag=0) if self.taken or self._is_over(report) else report
            for report in self._reports.values()
        ]
