"""The peers of a TestDriver: they run its graph as a job; a test kills and freezes them, and loses their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from kstreams_py.errors import UserMistake, did_you_mean
from kstreams_py.graph.channels import JobTask, filled_channels
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import JobId
from kstreams_py.jobs.cluster.explanations import describe_job
from kstreams_py.jobs.cluster.state import JobPhase, JobState
from kstreams_py.jobs.environment import TIMEOUT, JobEnvironment, job_environment
from kstreams_py.jobs.peers.function_task import FunctionTask
from kstreams_py.jobs.peers.peer import Peer
from kstreams_py.jobs.peers.routes import specify_tasks
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment
from kstreams_py.testing.memory_cluster import MemoryCluster
from kstreams_py.testing.memory_jobs import in_memory, observe_calls
from kstreams_py.testing.memory_peers import Loss, PeerCluster
from kstreams_py.testing.memory_source import MemoryConnection, MemorySource, Request

QUIET_SECONDS: Final = 1.0
"""Seconds of the clock without a change after which a run whose inputs are done is complete."""

WAITING_SECONDS: Final = 30.0
"""Seconds without a change after which a job that has too few peers counts as waiting for more."""


class ObservedGraph(Graph):
    """A graph with the same tasks, in which each call is a request."""

    def __init__(self, graph: Graph, request: Request) -> None:
        super().__init__(graph.name)
        self._observed = tuple(observe_calls(task, request) for task in graph.tasks)

    @property
    def tasks(self) -> tuple[JobTask, ...]:
        """See Graph."""
        return self._observed


class Peers:
    """The peers of a driver: see `TestDriver.peers`.

    A peer is named by its number, from 0; by its id, which changes when it starts again; or by a task. A task names the
    first peer that has it: the peers go on until there is one. `read-rows` is the task that reads source `rows`.
    """

    def __init__(
        self,
        graph: Graph,
        count: int,
        sources: Mapping[str, MemorySource],
        environment: Environment,
        cluster: MemoryCluster,
        seed: int,
    ) -> None:
        """Starts the peers and the job; reads no input. Raises UserMistake if the job waits for more peers."""
        self._graph, self._cluster, self._sources = graph, cluster, sources
        chance = Random(seed)
        request = cluster.source().request

        def open_environment(_: Graph, number: int) -> JobEnvironment:
            made = replace(
                job_environment(graph, number, environment),
                clock=environment.clock,
                sleep=environment.sleep,
                entropy=chance.randbytes,
                chance=lambda: 1.0,
            )
            return in_memory(made, sources, request, _stop_keeping)

        observed = ObservedGraph(graph, request)
        self._peers = PeerCluster(observed, open_environment, environment.clock, environment.sleep, chance)
        self._tasks = [task.id for task in specify_tasks(graph.tasks)]
        self._still_seconds = 2 * max(each.timeout or TIMEOUT for each in filled_channels(graph.tasks)) + 60
        """Seconds without a change after which the peers count as stuck."""
        self._seen: object = None
        self._changed_at = environment.clock()
        self._jobs = 0
        """How many jobs were submitted."""
        for slot in range(count):
            self._peers.start(slot)
        self._run_until(lambda: len(self._peers.replica.peers) == count)
        self._submit()

    # Faults.

    def kill(self, peer: int | str, *, replaced: bool = True) -> str:
        """Kills a peer, as SIGKILL does; returns its id.

        - `replaced`: whether its supervisor reports it at once, and starts another one in its place. Otherwise its
          machine is gone as well: the others find it silent after 6 s.
        """
        slot = self._find(peer)
        killed = self._peers.kill(slot, is_seen=replaced)
        if replaced:
            self._peers.start(slot)
        return killed

    def freeze(self, peer: int | str) -> str:
        """Stops a peer, as SIGSTOP does, until `thaw`; returns its id. After 6 s the others find it silent."""
        slot = self._find(peer)
        self._peers.frozen.add(slot)
        return self._peers.peers[slot].me

    def thaw(self, peer: int | str | None = None) -> None:
        """Lets a frozen peer go on, or all of them. A peer that was found silent drops what it had and joins again."""
        if peer is None:
            self._peers.frozen.clear()
            return
        slot = self._find(peer)
        if slot not in self._peers.frozen:
            raise UserMistake(f"peer {peer!r} is not frozen: thaw takes the id that freeze has returned")
        self._peers.frozen.discard(slot)

    def lose(
        self, sender: int | str, receiver: int | str | None = None, *, frames: int = 1, seconds: float | None = None
    ) -> None:
        """Loses frames on the network.

        - `sender`, `receiver`: the peers; None for every receiver.
        - `frames`: how many, from now on.
        - `seconds`: how long all frames are lost, instead of a number of frames.
        """
        if frames < 1 or (seconds is not None and seconds <= 0):
            raise UserMistake(f"frames={frames}, seconds={seconds}: give at least one frame, or more than 0 seconds")
        ids = [None if each is None else self._peers.peers[self._find(each)].me for each in (sender, receiver)]
        if ids[0] == ids[1]:
            raise UserMistake(f"{sender!r} and {receiver!r} are one peer: it sends no frames to itself")
        lost, until = (frames, float("inf")) if seconds is None else (float("inf"), self._peers.clock() + seconds)
        self._peers.losses.append(Loss(str(ids[0]), ids[1], lost, until))

    def add(self) -> str:
        """Starts one more peer; returns its id. A task that groups its segments gets the peer only in the next job."""
        return self._peers.start(max(self._peers.peers, default=-1) + 1).me

    # The state of the peers.

    @property
    def tasks(self) -> dict[str, str | None]:
        """The task of each peer, by its id; None for a peer without one. Frozen peers are left out."""
        return {
            peer.me: _task_of(peer)
            for slot, peer in sorted(self._peers.peers.items())
            if slot not in self._peers.frozen
        }

    @property
    def status(self) -> str:
        """What `kstreams job list` prints about the job: its phase, its peers, and why it waits."""
        return describe_job(self._peers.replica, self._job)

    @property
    def retrying(self) -> list[str]:
        """The ids of the tasks that have a segment waiting for another attempt."""
        tasks = (peer.task for peer in self._peers.peers.values())
        return [task.id for task in tasks if isinstance(task, FunctionTask) and task.runner.retrying]

    # The run: see TestDriver.

    def run(self, *, until_death: bool = False) -> bool:
        """Runs until every input is done, or waits for another attempt; with `until_death`, until a peer has died.

        Returns whether a peer has died at a request.
        """
        deaths = self._peers.deaths
        if self._state.has_ended and not self._are_done():
            self._submit()
        self._run_until(lambda: (until_death and self._peers.deaths > deaths) or self._is_complete())
        return self._peers.deaths > deaths

    def step(self) -> None:
        """Gives each peer its turns."""
        while not self._peers.act():
            pass

    def advance(self, seconds: float) -> None:
        """Lets the peers go on for some seconds of the clock."""
        until = self._peers.clock() + seconds
        while self._peers.clock() < until:
            self.step()

    def close(self) -> None:
        """Drops all peers."""
        self._peers.close()

    # Parts.

    @property
    def _job(self) -> JobId:
        return JobId(f"{self._graph.name}-{self._jobs}")

    @property
    def _state(self) -> JobState:
        return self._peers.replica.jobs[self._job]

    def _submit(self) -> None:
        """Submits the graph, and runs until its inputs are about to be read."""
        self._jobs += 1
        self._peers.submit(self._job)
        begins = (JobPhase.WAITING, JobPhase.STARTING)
        self._run_until(lambda: self._job in self._peers.replica.jobs and self._state.phase not in begins)

    def _are_done(self) -> bool:
        """Returns whether every input is acknowledged or refused."""
        if any(source.left for source in self._sources.values()):
            return False
        for channel in filled_channels(self._graph.tasks):
            if channel.topic is not None:
                committed = self._cluster.groups[group_of(self._graph.name, channel.name)]
                for record in self._cluster.records(channel.topic.name):
                    if committed.get(TopicPartition(record.topic(), record.partition()), 0) <= record.offset():
                        return False
        return True

    def _is_complete(self) -> bool:
        """Returns whether the job has completed, or waits for further inputs, and nothing happens any more."""
        if self._peers.clock() < self._changed_at + QUIET_SECONDS:
            return False
        state = self._state
        if state.phase in (JobPhase.KILLED, JobPhase.REFUSED):
            raise UserMistake(self.status)
        inputs = filled_channels(self._graph.tasks)
        can_end = all(each.topic is None and self._sources[each.name].ends for each in inputs)
        return state.phase is JobPhase.COMPLETED or (not can_end and self._are_done())

    def _run_until(self, is_done: Callable[[], bool]) -> None:
        """Runs until `is_done`. Also returns if nothing changes while a function waits for another attempt.

        Raises UserMistake if the peers are stuck.
        """
        self._changed_at = self._peers.clock()
        while not is_done():
            if not self._peers.act():
                continue
            if (seen := self._look()) != self._seen:
                self._seen, self._changed_at = seen, self._peers.clock()
            elif self._stands_still():
                if self.retrying:
                    return
                raise UserMistake(self._describe_stillness())

    def _look(self) -> object:
        """Returns the state that changes if anything happens."""
        tasks = [peer.task for peer in self._peers.peers.values()]
        counts = [task.runner.counters.as_dict() for task in tasks if isinstance(task, FunctionTask)]
        return self._peers.replica.offset, counts, [len(source.left) for source in self._sources.values()]

    def _stands_still(self) -> bool:
        still = self._peers.clock() - self._changed_at
        is_waiting = self._job in self._peers.replica.jobs and self._state.phase is JobPhase.WAITING
        return still > (WAITING_SECONDS if is_waiting else self._still_seconds)

    def _describe_stillness(self) -> str:
        if not self._peers.peers:
            return "no peer is left: add() starts one"
        frozen = ", ".join(self._peers.peers[slot].me for slot in sorted(self._peers.frozen))
        return f"nothing happens any more: {self.status}{f'; thaw() lets {frozen} go on' if frozen else ''}"

    def _find(self, wanted: int | str) -> int:
        """Returns the slot of a peer. Raises UserMistake if there is none."""
        found = self._peers.peers
        if isinstance(wanted, int):
            if wanted not in found:
                raise UserMistake(f"there is no peer {wanted}: there are {', '.join(map(str, sorted(found)))}")
            return wanted
        if wanted in self._tasks:
            self._run_until(lambda: self._state.has_ended or self._with_task(wanted) is not None)
            if (slot := self._with_task(wanted)) is None:
                raise UserMistake(f"no peer has task {wanted!r}: {self.status}")
            return slot
        by_id = {str(peer.me): slot for slot, peer in found.items()}
        if wanted not in by_id:
            close = did_you_mean(wanted, [*self._tasks, *by_id])
            known = f"the tasks are {', '.join(self._tasks)}, the peers {', '.join(by_id)}"
            raise UserMistake(f"there is no peer and no task {wanted!r}: {close or known}")
        return by_id[wanted]

    def _with_task(self, task: str) -> int | None:
        """Returns the slot of the first peer that has a task; None if there is none."""
        running = (slot for slot in sorted(self._peers.peers) if slot not in self._peers.frozen)
        return next((slot for slot in running if _task_of(self._peers.peers[slot]) == task), None)


def _task_of(peer: Peer) -> str | None:
    return None if peer.task is None or peer.assignment is None else peer.assignment.task


def _stop_keeping(connection: MemoryConnection) -> None:
    """Keeps the thread of a task from keeping its claims: it would do so by the clock of this machine."""
    connection.lease = float("inf")
