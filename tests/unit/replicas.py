"""A cluster whose log is a list: each peer applies each entry at once and appends what it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    CompleteTask,
    Entry,
    Found,
    JobId,
    KillJob,
    Leave,
    LeaveReason,
    PeerId,
    Scheduler,
    SealTask,
    SignalReady,
    SubmitJob,
    TaskSpec,
    Volunteer,
)
from kstreams_py.jobs.cluster.fold import VERSION, apply
from kstreams_py.jobs.cluster.reactions import react
from kstreams_py.jobs.cluster.state import Replica

CODE = {"shop": "f1"}


def submit(text: str, **features: Sequence[int]) -> SubmitJob:
    """Returns the submission of a job written as A3 (its name and tasks), or A3@70 with a percentage.

    - `features`: the numbers of the tasks that are `grouped`; `limited`, for each number the most peers.
    """
    name, _, percentage = text.partition("@")
    limits = dict(zip(features.get("limited", ())[::2], features.get("limited", ())[1::2], strict=True))
    tasks = tuple(
        TaskSpec(f"t{number}", True, number in features.get("grouped", ()), limits.get(number))
        for number in range(int(name[1:]))
    )
    return SubmitJob(JobId(name[0]), *next(iter(CODE.items())), tasks, float(percentage) if percentage else None)


@dataclass
class Replicas:
    """The replica that all peers have, and the log.

    - `is_ready`: whether peers are ready for their tasks as soon as they get them.
    - `held`: whether what peers answer waits for `release`.
    """

    replica: Replica = field(default_factory=Replica)
    log: list[Entry] = field(default_factory=list)
    is_ready: bool = True
    held: bool = False
    waiting: deque[Command] = field(default_factory=deque)

    def append(self, command: Command) -> list[Command]:
        """Appends a command, then what the peers answer; returns the direct answers."""
        before = self.replica
        self.log.append(Entry(f"author {len(self.log)}", 1, command))
        self.replica = apply(before, self.log[-1], len(self.log) - 1)
        answers = [each for peer in self.replica.peers for each in react(before, self.log[-1], self.replica, peer)]
        self.waiting += answers
        if self.is_ready:
            self.waiting += [each for each in self.unready() if each not in self.waiting]
        if not self.held:
            self.release()
        return answers

    def unready(self) -> list[SignalReady]:
        """What peers say that have become ready."""
        return [
            SignalReady(peer, each.job, each.since)
            for peer, each in self.replica.assignments.items()
            if peer not in self.replica.jobs[each.job].ready
        ]

    def release(self) -> None:
        """Appends what waits."""
        self.held = True
        while self.waiting:
            self.append(self.waiting.popleft())
        self.held = False

    def join(self, count: int = 1) -> list[Command]:
        """Lets peers join, called a, b, c, ..., and returns what is answered to the last one."""
        answers = list[Command]()
        for _ in range(count):
            answers = self.append(AcceptJoin(PeerId(chr(ord("a") + self.replica.joined)), "", "", CODE))
        return answers

    def leave(self, peer: str) -> list[Command]:
        """Lets a peer die."""
        return self.append(Leave(PeerId(peer), LeaveReason.DIED))

    def do(self, event: str) -> list[Command]:
        """Appends the commands of an event as it stands in a table (* is each task); returns the last answers."""
        verb, _, what = event.partition(" ")
        if verb == "join":
            return self.join()
        if verb == "submit":
            return self.append(submit(what))
        if verb == "kill":
            return self.append(KillJob(JobId(what)))
        if verb == "leave":  # the newest peer of a job, or of no job
            peers = [each for each in self.replica.peers if self._job_of(each) == what.removeprefix("idle")]
            return self.leave(peers[-1])
        name, _, task = what.partition(" ")
        job, answers = JobId(name), list[Command]()
        if task == "*":
            return [self.do(f"{verb} {name} {each.id[1:]}") for each in self.replica.jobs[job].tasks][-1]
        if verb == "complete":
            return self.append(CompleteTask(job, f"t{task}"))
        assert verb == "seal", event
        for peer in self.replica.peers_of(job, f"t{task}"):
            answers = self.append(SealTask(job, f"t{task}", peer, self.replica.assignments[peer].since))
        return answers

    def _job_of(self, peer: PeerId) -> str:
        found = self.replica.assignments.get(peer)
        return "" if found is None else found.job

    def counts(self) -> str:
        """How many peers each job has, as A 3, B 0; jobs that have ended are left out."""
        return ", ".join(f"{name} {len(self.replica.peers_of(name))}" for name, _ in self.replica.open_jobs())

    def check(self) -> None:
        """Asserts what holds after each entry of any log."""
        replica = self.replica
        for name, job in replica.jobs.items():
            peers = replica.peers_of(name)
            assert bool(peers) == job.is_active, (name, job)
            if job.is_active:
                assert replica.covers(name, replica.assignments), (name, job)
            for task in job.left:
                limit = task.max_peers
                assert limit is None or len(replica.peers_of(name, task.id)) <= limit, (name, task)
                if job.is_active and task.is_grouped:
                    numbers = {replica.peers[each].number for each in replica.peers_of(name, task.id)}
                    assert {*job.slots[task.id]} == numbers, (name, task)
        assert all(each in replica.peers for each in replica.assignments)


def new_replicas(scheduler: str | Scheduler, peers: int = 0, jobs: str = "", **settings: Any) -> Replicas:
    """Returns a cluster of some peers, to which some jobs were submitted. `settings`: of Found."""
    found = Replicas()
    found.append(Found(VERSION, "flights", Scheduler(scheduler), **settings))
    found.join(peers)
    for each in jobs.split():
        found.append(submit(each))
    return found


def volunteers(answers: Sequence[Command]) -> int:
    """How many peers volunteer."""
    return sum(isinstance(each, Volunteer) for each in answers)
