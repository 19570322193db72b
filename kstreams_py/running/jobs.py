"""The tasks of a graph in one slot: a job in a thread, and its reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.job import Job
from kstreams_py.metrics import WorkerState
from kstreams_py.running.reports import Report
from kstreams_py.running.watch import Stillness


class JobLoop:
    """The job of a slot, and the thread that runs it."""

    def __init__(self, graph: Graph, slot: int, environment: JobEnvironment, run: Callable[[Job], None]) -> None:
        """Connects to the sources. Raises SourceUnavailable and SettingsError.

        - `run`: runs the job, in the thread.
        """
        self.id = ", ".join(task.id for task in graph.tasks)
        self._slot = slot
        self._job = Job(graph.name, graph.tasks, environment)
        self.thread = threading.Thread(target=run, args=(self._job,), name="job", daemon=True)
        self._stillness = Stillness()

    def reports(self, state: WorkerState | None) -> list[Report]:
        """Returns a report of each task. `state`: that of the slot; None if each task has its own."""
        still = self._stillness.look(self._job.turns, time.monotonic()) if self.thread.is_alive() else 0.0
        return [
            Report(
                task.id,
                self._slot,
                task.counters.as_dict(),
                task.waiting,
                round(still, 1),
                state=state or (WorkerState.SINK_AWAY if task.id in self._job.outages.away else WorkerState.RUNNING),
                measures=task.counters.measures(),
                failure=task.newest_failure,
                why=self._job.outages.away.get(task.id, ""),
            )
            for task in self._job.tasks
        ]
