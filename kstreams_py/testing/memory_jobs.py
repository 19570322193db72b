"""The jobs of a TestDriver: each call of a function is a request, and acknowledgements can be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from random import Random
from threading import Event
from typing import Any, Final

from kstreams_py.errors import Stop
from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.source import SourceConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.environment import TIMEOUT, JobEnvironment, job_environment
from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.job import Job
from kstreams_py.jobs.topic_inputs import COMMIT_SECONDS
from kstreams_py.steps.calls import Call, Calls, EndedCall, open_calls
from kstreams_py.steps.environment import Environment
from kstreams_py.testing.memory_cluster import MemoryCluster
from kstreams_py.testing.memory_source import MemoryConnection, MemorySource, Request

CALL: Final = "call"
"""The name of the request that calls a task's function; for calls that overlap, the end of a call is the request."""


class LossyAcker(Acker):
    """An acker that loses acknowledgements. `losses`: how many to lose next, in a list of one item."""

    def __init__(self, losses: list[int]) -> None:
        super().__init__()
        self._losses = losses

    def ack(self, inputs: Sequence[SegmentId], patterns: Iterable[int]) -> list[SegmentId]:
        """See Acker."""
        lost = min(self._losses[0], len(inputs))
        self._losses[0] -= lost
        return super().ack(inputs[lost:], [*patterns][lost:])


class ObservedCalls:
    """Calls that overlap; the end of each is a request, in the order in which the calls were started."""

    def __init__(self, calls: Calls, request: Request) -> None:
        self._calls, self._request = calls, request

    def start(self, calls: Iterable[Call], /) -> None:
        """See Calls."""
        self._calls.start(calls)

    def collect(self) -> Sequence[EndedCall]:
        """See Calls."""
        ended = sorted(self._calls.collect(), key=lambda each: each.ticket)
        return [self._observe(each) for each in ended]

    def _observe(self, ended: EndedCall) -> EndedCall:
        try:
            if ended.has_run:
                self._request(CALL, lambda: None)
        except Exception as error:
            return ended._replace(result=None, error=error)
        return ended

    def drop(self) -> None:
        """See Calls."""
        self._calls.drop()

    def abandon(self) -> None:
        """See Calls."""
        self._calls.abandon()

    def close(self) -> None:
        """See Calls."""
        self._calls.close()

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """See Calls."""
        return self._calls.oldest


def observe_calls(task: JobTask, request: Request) -> JobTask:
    """Returns the task with each call as a request; a task whose calls overlap stays as it is: see ObservedCalls."""
    if task.overlaps:
        return task
    function = task.function

    def make_call(*arguments: Any) -> tuple[Any, Exception | None]:
        try:
            result = function(*arguments)
            return [*result] if task.generator else result, None
        except Exception as error:  # the request is carried out all the same
            return None, error

    @wraps(function)
    def call(*arguments: Any) -> Any:
        result, error = request(CALL, partial(make_call, *arguments))
        if error is not None:
            raise error
        return result

    return replace(task, function=call)


def in_memory(
    environment: JobEnvironment,
    sources: Mapping[str, MemorySource],
    request: Request,
    opened: Callable[[MemoryConnection], None],
) -> JobEnvironment:
    """Returns an environment with sources in memory, in which the end of each call that overlaps is a request.

    - `sources`: by the names of the channels that they fill.
    - `opened`: takes each new connection to a source.
    """

    def open_source(channel: Channel, reader: str) -> SourceConnection:
        if channel.name not in sources:
            return environment.open_source(channel, reader)
        connection = sources[channel.name].open(reader)
        opened(connection)
        return connection

    return replace(
        environment,
        open_source=open_source,
        open_calls=lambda task, finish: ObservedCalls(open_calls(task, finish, patience=None), request),
    )


class MemoryJob:
    """The job of one process."""

    def __init__(
        self,
        graph: Graph,
        environment: JobEnvironment,
        sources: Mapping[str, MemorySource],
        request: Request,
        stopping: Event,
    ) -> None:
        """Starts the job.

        - `sources`: the sources in memory, by the names of the channels that they fill.
        - `request`: carries out a request.
        - `stopping`: set once a function stops the job.
        """
        self._stopping = stopping
        self._connections: list[MemoryConnection] = []
        self._is_closed = False
        opened = in_memory(environment, sources, request, self._connections.append)
        self._job = Job(graph.name, [observe_calls(task, request) for task in graph.tasks], opened)

    def run_turn(self) -> None:
        """Runs a turn. Raises the error of a function that stops the job, and closes the job."""
        try:
            self._job.turn()
        except Stop:
            self._stopping.set()
        except Exception as error:
            self._close(failed=self._job.is_death(error))
            raise

    def finish(self) -> None:
        """Gives back the inputs under way: another job reads them again."""
        self._close(failed=False)

    def _close(self, *, failed: bool) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._job.close(failed=failed)

    def kill(self) -> None:
        """Drops the job as SIGKILL does: its claims are kept until their lease ends."""
        for task in self._job.tasks:
            task.close()  # ends its threads

    def keep(self) -> None:
        """Keeps the claims."""
        self._job.keep()

    def end_leases(self) -> None:
        """Ends the leases of a dead job, as if their time had passed."""
        for connection in self._connections:
            connection.end_lease()

    @property
    def retrying(self) -> list[str]:
        """The ids of the tasks that have a segment waiting for another attempt."""
        return [task.id for task in self._job.tasks if task.retrying]

    @property
    def state(self) -> object:
        """The state that a turn changes if it does anything, apart from the sources."""
        return [(task.counters.as_dict(), task.waiting) for task in self._job.tasks]


class MemoryJobs:
    """The jobs of a graph in all processes of a TestDriver. A graph without tasks has none."""

    def __init__(
        self, graph: Graph, cluster: MemoryCluster, sources: Mapping[str, MemorySource], environment: Environment
    ) -> None:
        self._graph, self._sources, self._environment = graph, sources, environment
        self._request = cluster.source().request
        self._entropy, self._losses, self._turns = Random(0), [0], 0
        self._running: dict[int, MemoryJob] = {}
        """By slot."""
        self._dead: list[MemoryJob] = []

    @property
    def timeout(self) -> float:
        """Seconds after which each input that is neither complete nor under way is read again."""
        filled = [each for task in self._graph.tasks for each in task.inputs if each.is_filled]
        return max(each.timeout or TIMEOUT for each in filled)

    def lose_acknowledgement(self) -> None:
        """Loses the next acknowledgement of a task."""
        self._losses[0] += 1

    def start(self, slot: int, stopping: Event) -> None:
        """Starts the job of a process. `stopping`: set once a function stops the job."""
        if not self._graph.tasks:
            return
        clock = self._environment.clock
        # offsets are committed at each turn that may commit some, although the clock does not move
        topics = replace(self._environment, clock=lambda: clock() + COMMIT_SECONDS * self._turns)
        made = replace(
            job_environment(self._graph, slot, topics),
            clock=clock,
            sleep=self._environment.sleep,
            entropy=self._entropy.randbytes,
            chance=lambda: 1.0,
            open_acker=partial(LossyAcker, self._losses),
            look_seconds=0.0,  # an input may be added while the clock does not move
        )
        self._running[slot] = MemoryJob(self._graph, made, self._sources, self._request, stopping)

    def joining(self, slot: int) -> list[MemoryJob]:
        """Returns the job of a process if it is a member of groups: its first turn reads no record yet."""
        return self.of(slot) if any(each.topic for task in self._graph.tasks for each in task.inputs) else []

    def of(self, slot: int) -> list[MemoryJob]:
        """Returns the running job of a process, in a list; an empty list if there is none."""
        return [self._running[slot]] if slot in self._running else []

    def begin_turn(self) -> None:
        """Begins a turn of all processes. The claims of all jobs are kept: in a worker, a thread does this."""
        self._turns += 1
        for job in self._running.values():
            job.keep()

    def kill(self, slot: int) -> None:
        """Kills the job of a process."""
        for job in self.of(slot):
            job.kill()
            self._dead.append(self._running.pop(slot))

    def close(self, slot: int) -> None:
        """Stops the job of a process."""
        for job in self.of(slot):
            job.finish()
            del self._running[slot]

    def end_leases(self) -> None:
        """Ends the leases of the jobs that were killed."""
        for job in self._dead:
            job.end_leases()
        self._dead.clear()

    @property
    def retrying(self) -> list[str]:
        """The ids of the tasks that have a segment waiting for another attempt."""
        return [task for job in self._running.values() for task in job.retrying]

    def state(self) -> object:
        """Returns the state that a turn changes if it does anything."""
        kept = [repr(source.kept) for source in self._sources.values()]
        return [(slot, job.state) for slot, job in self._running.items()], kept
