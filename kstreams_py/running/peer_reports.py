"""The reports of a peer: one on its membership and its links, and one on each task that it has had."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kstreams_py.jobs.messengers.contract import Messenger
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.peers.function_task import FunctionTask
from kstreams_py.jobs.peers.peer import Peer, PeerTask
from kstreams_py.jobs.peers.routes import READ
from kstreams_py.metrics import Counters, WorkerState
from kstreams_py.running.places import PLACE_AFTER, place_of
from kstreams_py.running.reports import PEER, Report, in_graph
from kstreams_py.running.watch import Stillness
from kstreams_py.steps import calls


class PeerReports:
    """The reports of the peer of one slot, over its incarnations and tasks: counts never decrease.

    The thread of the peer calls `begin` and `end`; between the two, any one thread calls `look`.
    """

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._past: dict[str, Report] = {}
        """The reports of earlier incarnations and tasks, by task."""
        self._stillness = Stillness()

    def begin(self, peer: Peer, links: Links, messenger: Messenger) -> None:
        """Takes another incarnation of the peer."""
        self._peer, self._links, self._messenger = peer, links, messenger

    def look(self, now: float) -> list[Report]:
        """Returns the reports, the one on the peer first. `now`: monotonic seconds."""
        peer, task = self._peer, self._peer.task
        if task in self._end_tasks(now):
            task = None
        state = self._state(now)
        ended = task.runner.ended if isinstance(task, FunctionTask) else 0
        seconds = round(self._stillness.look((peer.membership.turns, ended), now), 1)
        thread = threading.main_thread().ident
        place = place_of(partial(calls.frame_of, thread)) if seconds >= PLACE_AFTER else ""
        current = [self._on_peer(now, state)]
        if task is not None:
            current.append(self._since_start(report_of(task, self._slot, state, now)))
        current[-1] = replace(current[-1], still_seconds=seconds, place=place)
        names = {report.processor for report in current}
        return [*current, *(report for name, report in self._past.items() if name not in names)]

    def end(self, now: float) -> None:
        """Keeps the counts of this incarnation, whose task is closed."""
        self._end_tasks(now)
        self._past[PEER] = self._on_peer(now, WorkerState.JOINING).as_past()

    def _end_tasks(self, now: float) -> list[PeerTask]:
        """Keeps the last counts of the tasks that were closed, also between two looks; returns these tasks."""
        found = list[PeerTask]()
        while self._peer.closed:
            found.append(self._peer.closed.popleft())
            report = self._since_start(report_of(found[-1], self._slot, WorkerState.RUNNING, now))
            self._past[report.processor] = replace(report.as_past(), lag=0, state=WorkerState.SPARE)
        return found

    def _since_start(self, report: Report) -> Report:
        past = self._past.get(report.processor)
        return report if past is None else report.after(past.counters, past.measures)

    def _state(self, now: float) -> WorkerState:
        if not self._peer.membership.is_member:
            return WorkerState.JOINING
        return WorkerState.RUNNING if self._peer.membership.may_act(now) else WorkerState.BROKER_AWAY

    def _on_peer(self, now: float, state: WorkerState) -> Report:
        membership = self._peer.membership
        return self._since_start(
            Report(
                PEER,
                self._slot,
                NO_COUNTS,
                0,
                state=state,
                measures=self._measures(),
                heartbeat_seconds=None if (seconds := membership.heartbeat_seconds(now)) is None else round(seconds, 1),
            )
        )

    def _measures(self) -> Mapping[str, float]:
        links, dropped = self._links.counts(), self._messenger.counts
        return {
            "entries": self._peer.membership.seen.entries,
            "frames:resent": links.resent,
            "frames:returned": links.returned,
            "frames:came_back": links.came_back,
            "frames:garbage": self._links.garbage + dropped.garbage,
            "frames:unexpected": links.unexpected,
            "frames:strangers": self._links.strangers + dropped.strangers,
        }


NO_COUNTS: Final[Mapping[str, int]] = Counters().as_dict()


def report_of(task: PeerTask, slot: int, state: WorkerState, now: float) -> Report:
    """Returns the report on a task. Any thread may call it.

    - `state`: the state of the peer. While the peer runs, the task has a state of its own.
    """
    if isinstance(task, FunctionTask):
        runner = task.runner
        waiting, why = _waiting(WorkerState.SINK_AWAY, task.outages.away.get(task.id, ""), runner.attempts.why)
        return Report(
            in_graph(task.graph, task.id),
            slot,
            runner.counters.as_dict(),
            task.waiting,
            state=waiting if state is WorkerState.RUNNING else state,
            measures=runner.measures(),
            failure=runner.newest_failure,
            why=why,
            is_task=True,
        )
    name, away = in_graph(task.graph, task.channel.name), task.outages.away.get(task.inputs.name, "")
    counts = task.inputs.counts
    waiting, why = _waiting(WorkerState.SOURCE_AWAY, away, "")
    return Report(
        in_graph(task.graph, READ + task.channel.name),
        slot,
        NO_COUNTS,
        0,
        state=waiting if state is WorkerState.RUNNING else state,
        measures=replace(counts, refused=counts.refused + sum(task.inputs.refused_by.values())).measures(name),
        why=why,
        is_task=True,
        sources={name: task.inputs.show_pending(now, lambda _: (), away, others_wait=task.must_wait)},
    )


def _waiting(state: WorkerState, away: str, failed: str) -> tuple[WorkerState, str]:
    """Returns the state of a task, and why. `away`: why its system is away. `failed`: why it is called again."""
    if away:
        return state, away
    return (WorkerState.RETRYING, failed) if failed else (WorkerState.RUNNING, "")
