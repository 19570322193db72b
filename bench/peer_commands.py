"""Measures how long a command takes at one peer of many, for `scripts/bench peers`: nothing is sent.

It is a program that prints the figures as JSON, so that it can import another checkout.

There are half as many jobs as peers, each of two tasks. A job is killed, another one submitted, a peer dies, another
one joins, again and again; all peers answer, and each is ready at once. A command is applied, and answered, once.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Final

from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    Entry,
    Found,
    JobId,
    KillJob,
    Leave,
    LeaveReason,
    PeerId,
    Scheduler,
    SignalReady,
    SubmitJob,
    TaskSpec,
    Volunteer,
)
from kstreams_py.jobs.cluster.fold import VERSION, apply
from kstreams_py.jobs.cluster.reactions import find_volunteers, react
from kstreams_py.jobs.cluster.state import Replica

SIZES: Final = (10, 30, 50, 100)
"""Numbers of peers."""

EVENTS: Final = 40
TASKS: Final = (TaskSpec("read", is_input=True), TaskSpec("store"))
CODE: Final[Mapping[str, str]] = {"bench": "f"}


class Commands:
    """The commands of a cluster, and how long each of them took."""

    def __init__(self, peers: int) -> None:
        """Lets the peers join, and submits the jobs."""
        self._replica = Replica()
        self._waiting = deque[Command]()
        self._appended, self._submitted = 0, 0
        self.seconds = list[float]()
        """Of each command."""
        self.planning = list[float]()
        """Of those for which the peer makes a plan: to answer, or to follow it."""
        self._append(Found(VERSION, "bench", Scheduler.ROUND_ROBIN))
        for _ in range(peers):
            self.join()
        for _ in range(peers // 2):
            self.submit()

    def join(self) -> None:
        """Lets a peer join."""
        self._do(AcceptJoin(PeerId(f"peer-{self._replica.joined}"), "", "", CODE))

    def submit(self) -> None:
        """Submits a job."""
        self._submitted += 1
        self._do(SubmitJob(JobId(f"job-{self._submitted}"), *next(iter(CODE.items())), TASKS))

    def change(self, chance: random.Random) -> None:
        """Kills a job and a peer, and starts others."""
        self._do(KillJob(chance.choice([name for name, _ in self._replica.open_jobs()])))
        self.submit()
        self._do(Leave(chance.choice([*self._replica.peers]), LeaveReason.DIED))
        self.join()

    def _do(self, command: Command) -> None:
        self._append(command)
        while self._waiting:
            self._append(self._waiting.popleft())

    def _append(self, command: Command) -> None:
        self._appended += 1
        answering = command.peer if isinstance(command, Volunteer | SignalReady) else None
        before = self._replica
        entry = Entry(answering or f"tool-{self._appended}", self._appended, command)
        me = [PeerId(""), *before.peers][-1]
        began = time.perf_counter()
        after = apply(before, entry, self._appended)
        react(before, entry, after, me)
        self.seconds.append(time.perf_counter() - began)
        self._replica = after
        if answering is None or after.planned_at != before.planned_at:
            self.planning.append(self.seconds[-1])
        if answering is None:
            self._waiting += [Volunteer(peer, after.offset) for peer in find_volunteers(after)]
        self._waiting += [
            SignalReady(peer, each.job, each.since)
            for peer, each in after.assignments.items()
            if each != before.assignments.get(peer)
        ]


def measure_commands() -> dict[str, float]:
    """Measures commands at several numbers of peers."""
    found = dict[str, float]()
    for peers in SIZES:
        commands, chance = Commands(peers), random.Random(peers)
        commands.seconds.clear()
        commands.planning.clear()
        for _ in range(EVENTS):
            commands.change(chance)
        found[f"command at {peers} peers, ms"] = median(commands.seconds) * 1e3
    first, *_, last = found.values()
    found["command, growth"] = last / first * SIZES[0] / SIZES[-1]
    found[f"plan at {peers} peers, ms"] = median(commands.planning) * 1e3
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_commands()))
