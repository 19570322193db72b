"""The tasks of a graph in one slot: a job in a thread, and its reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Thread
from types import FrameType
from typing import NamedTuple

from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.job import Job
from kstreams_py.jobs.runners import TaskRunner
from kstreams_py.metrics import WorkerState
from kstreams_py.running.places import PLACE_AFTER, place_of
from kstreams_py.running.reports import Reading, Report
from kstreams_py.running.watch import Stillness
from kstreams_py.steps import calls


class StillPlace(NamedTuple):
    """How long something has been stuck, and where: "" until PLACE_AFTER seconds have passed."""

    seconds: float = 0.0
    place: str = ""


class JobLoop:
    """The job of a slot, and the thread that runs it."""

    def __init__(self, graph: Graph, slot: int, environment: JobEnvironment, run: Callable[[Job], None]) -> None:
        """Connects to the sources. Raises SourceUnavailable and SettingsError.

        - `run`: runs the job, in the thread.
        """
        self.id = ", ".join(task.id for task in graph.tasks)
        self._slot = slot
        self._job = Job(graph.name, graph.tasks, environment)
        self.thread = Thread(target=run, args=(self._job,), name="job", daemon=True)
        self._of_thread = Stillness()
        self._of_calls = {task.id: Stillness() for task in self._job.tasks}

    def reports(self, state: WorkerState | None) -> list[Report]:
        """Returns a report on each task. `state`: the state of the slot; None if each task has its own.

        The report on the first task includes the figures of the whole job. The lags do not count records of topics.
        """
        tasks = self._job.tasks
        turning = self._job.turning or tasks[0]
        standing, sources = self._look_at_thread(turning), self._job.show_pending()
        reports = [self._report(task, state, standing if task is turning else StillPlace()) for task in tasks]
        measures = {**reports[0].measures, **self._job.measures()}
        return [replace(reports[0], measures=measures, sources=sources), *reports[1:]]

    def readings(self) -> list[Reading]:
        """Returns what the tasks read from topics; tasks that read no topic are left out."""
        read = [(task.id, self._job.topics_of(task).values()) for task in self._job.tasks]
        return [
            Reading(
                name,
                {tp: at for each in connections for tp, at in each.positions.items()},
                {tp: high for each in connections for tp, high in each.highs.items()},
            )
            for name, connections in read
            if connections
        ]

    def _report(self, task: TaskRunner, state: WorkerState | None, standing: StillPlace) -> Report:
        seconds, place = max(standing, self._look_at_calls(task))
        waiting, why = self._waiting(task)
        return Report(
            task.id,
            self._slot,
            task.counters.as_dict(),
            self._lag(task),
            seconds,
            place,
            state=state or waiting or WorkerState.RUNNING,
            measures=task.measures(),
            failure=task.newest_failure,
            why=why,
            is_task=True,
        )

    def _lag(self, task: TaskRunner) -> int:
        """Returns how many values wait for a task, without records of topics."""
        if self._job.is_closed:  # everything that waited has been given back
            return 0
        topics = self._job.topics_of(task)
        return task.waiting_of([each for each in task.inputs if each not in topics]) if topics else task.waiting

    def _away(self, task: TaskRunner) -> tuple[WorkerState | None, str]:
        """Returns the state of a task, and why, if its target or one of its sources is away; otherwise None."""
        outages = self._job.outages.away.copy()
        if why := outages.get(task.id):
            return WorkerState.SINK_AWAY, why
        why = next((outages[each] for each in self._job.sources_of(task) if each in outages), "")
        return (WorkerState.SOURCE_AWAY, why) if why else (None, "")

    def _waiting(self, task: TaskRunner) -> tuple[WorkerState | None, str]:
        """Returns the state of a task, and why, if it waits for another system or for its next attempt."""
        away, why = self._away(task)
        if away is None and (why := task.attempts.why):
            return WorkerState.RETRYING, why
        return away, why

    def _look_at_thread(self, turning: TaskRunner) -> StillPlace:
        """Returns how long the job's thread has been stuck. `turning`: the task whose turn it is.

        The time for which it waits for another system does not count: a restart would not help.
        """
        if not self.thread.is_alive() or self._away(turning)[0]:
            self._of_thread = Stillness()
            return StillPlace()
        # one turn may run many slow calls: a job whose calls end is not stuck
        mark = self._job.turns, turning.id, turning.ended
        return _look(self._of_thread, mark, partial(calls.frame_of, self.thread.ident))

    def _look_at_calls(self, task: TaskRunner) -> StillPlace:
        """Returns how long the oldest call outside the job's thread has been under way."""
        if not self.thread.is_alive() or (oldest := task.oldest) is None:
            self._of_calls[task.id] = Stillness()
            return StillPlace()
        began, find_frame = oldest
        return _look(self._of_calls[task.id], began, find_frame)


def _look(stillness: Stillness, mark: object, find_frame: Callable[[], FrameType | None]) -> StillPlace:
    seconds = round(stillness.look(mark, time.monotonic()), 1)
    return StillPlace(seconds, place_of(find_frame) if seconds >= PLACE_AFTER else "")
