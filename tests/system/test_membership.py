"""Which worker holds a slot: frozen and resumed workers, and slots taken over by another supervisor; a real broker."""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import pytest

from kstreams_py import Settings
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.kafka.administration import GroupAdmin
from tests.system.app import MakeSettings
from tests.system.command import RunningCommand, command, list_children
from tests.system.harness import Cluster, wait_until

SESSION_MS: Final = 6_000
MANY: Final = 1_200
"""More records than a transaction holds back: some outputs are written before the last record is processed."""

GRAPH = """
import time
from pathlib import Path
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
place = Path({place!r})

def wait_at(processor, value):
    if value.endswith(b"-wait") and not (place / "open").exists():
        (place / f"waiting-{{processor}}").touch()
        while not (place / "open").exists():
            time.sleep(0.01)
    return value
"""

PROCESSOR = """
@graph.map(graph.topic("{name}.{processor}.in"), to=graph.topic("{name}.{processor}.out"), guarantee={guarantee!r})
def {processor}(value):
    return wait_at({processor!r}, value)
"""


class Load:
    """Writes that continue in a thread."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def await_more(self, count: int) -> None:
        """Waits until each processor has written `count` more outputs."""
        d = self._deployment
        wanted = {processor: len(d.cluster.values(d.topic(processor, "out"))) + count for processor in d.processors}
        for processor, least in wanted.items():
            wait_until(
                lambda: len(d.cluster.values(d.topic(processor, "out"))) >= least,  # noqa: B023
                f"{least} outputs of {processor}",
            )


class Deployment:
    """A graph file of copying processors, its topics, and its supervisors.

    The functions wait at a value that ends in `-wait` until the gate is open.
    """

    def __init__(
        self, directory: Path, cluster: Cluster, settings: Settings, name: str, partitions: int, **guarantees: Guarantee
    ) -> None:
        self.directory, self.cluster, self.name, self.partitions = directory, cluster, name, partitions
        self.processors, self.guarantees = tuple(guarantees), guarantees
        self.file = directory / "copying_graph.py"
        text = GRAPH.format(name=name, place=str(directory))
        for processor, guarantee in guarantees.items():
            text += PROCESSOR.format(name=name, processor=processor, guarantee=str(guarantee))
            cluster.create(self.topic(processor, "in"), self.topic(processor, "out"), partitions=partitions)
        self.file.write_text(text)
        cluster.create(f"{name}.errors")
        self.settings, self.environment = settings, settings.as_environment()
        self.written: dict[str, list[list[bytes]]] = {each: [[] for _ in range(partitions)] for each in guarantees}

    def topic(self, processor: str, end: str) -> str:
        return f"{self.name}.{processor}.{end}"

    @contextmanager
    def run(self, *options: object) -> Iterator[RunningCommand]:
        """Runs `kstreams run` inside a `with` block."""
        with command(self.directory, "run", f"{self.file}:graph", *options, environment=self.environment) as running:
            yield running

    def write(self, processor: str, count: int, partition: int, *, wait: bool = False) -> None:
        """Writes `count` numbered records to one partition; with `wait`, the function waits at the last of them."""
        done = self.written[processor][partition]
        values = [b"%d-%d" % (partition, i) for i in range(len(done), len(done) + count)]
        if wait:
            values[-1] += b"-wait"
        # a partition has one key, so that its outputs are in one partition and in order
        self.cluster.write(self.topic(processor, "in"), values, keys=[b"%d" % partition] * count, partition=partition)
        done += values

    def outputs(self, processor: str) -> list[list[bytes]]:
        """The values of the output topic by input partition."""
        values: list[Any] = self.cluster.values(self.topic(processor, "out"))
        return [[v for v in values if v.startswith(b"%d-" % p)] for p in range(self.partitions)]

    @contextmanager
    def keep_writing(self) -> Iterator[Load]:
        """Writes to all partitions inside the block."""
        stopping = threading.Event()

        def write() -> None:
            while not stopping.wait(0.2):  # the pace
                for processor in self.processors:
                    for partition in range(self.partitions):
                        self.write(processor, 20, partition)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield Load(self)
        finally:
            stopping.set()
            thread.join()

    def await_done(self) -> None:
        """Waits until every group has committed the ends of its input."""
        for processor in self.processors:
            ends = {p: len(values) for p, values in enumerate(self.written[processor])}
            self.cluster.await_committed(f"{self.name}.{processor}", self.topic(processor, "in"), ends)

    def await_no_members(self) -> None:
        """Waits until all sessions have expired."""
        groups = [f"{self.name}.{processor}" for processor in self.processors]
        admin = GroupAdmin(self.settings)
        wait_until(lambda: not any(group.members for group in admin.describe(groups).values()), "no members are left")

    def await_held(self, running: RunningCommand, workers: int) -> None:
        """Waits until this number of workers of a supervisor was assigned partitions of each input."""
        for processor in self.processors:
            topic = re.escape(self.topic(processor, "in"))
            running.await_text(rf"(?s)(.*{processor}: holds {topic}\[.*){{{workers}}}")

    def format_replaced_pattern(self, slot: int, by: RunningCommand, *, named: bool | None) -> str:
        """A pattern for the message about a slot that a worker of another supervisor has taken.

        `named`: whether the message names the new worker; None for either. Within the session of the first worker,
        the broker goes on naming the first worker's client.
        """
        processors, workers = "|".join(self.processors), "|".join(map(str, list_children(by.process.pid)))
        instance_id = rf"{self.name}\.({processors})\.{slot}"
        client = rf"{instance_id}@{re.escape(platform.node())}-({workers}) on \S+"
        unnamed = "the broker still shows this worker's client id"
        known = rf"({client}|{unnamed})" if named is None else client if named else unnamed
        holder = rf"member {instance_id}-[-0-9a-f]+; {known}"
        replaced = rf"Replaced: another worker has taken the slot of {instance_id} over \({holder}\); this one ends"
        return rf"slot {slot} ended by {replaced}"

    def check(self, processor: str, *, in_flight: int, lost: int = 0, ordered: bool = True) -> None:
        """Compares all outputs with the inputs.

        Under at_least_once, `in_flight` consecutive outputs of a partition may be repeated; under at_most_once, `lost`
        consecutive ones may be missing, and none comes late unless not `ordered`.
        """
        for found, wanted in zip(self.outputs(processor), self.written[processor], strict=True):
            if self.guarantees[processor] is Guarantee.EXACTLY_ONCE:
                assert found == wanted
            elif self.guarantees[processor] is Guarantee.AT_MOST_ONCE:
                left = Counter(wanted) - Counter(found)
                missing = [i for i, value in enumerate(wanted) if left[value]]
                assert not missing or missing[-1] - missing[0] < lost
                assert Counter(found) == Counter(wanted) - left
                assert not ordered or found == [value for value in wanted if not left[value]]
            else:
                repeated = [i for i, value in enumerate(wanted) if found.count(value) > 1]
                assert not repeated or repeated[-1] - repeated[0] < in_flight
                assert Counter(found) == Counter(wanted) + Counter(wanted[i] for i in repeated)

    def await_waiting(self, *processors: str) -> None:
        for processor in processors:
            wait_until((self.directory / f"waiting-{processor}").exists, f"{processor} waits")

    def open_gate(self) -> None:
        (self.directory / "open").touch()


@pytest.fixture
def deploy(tmp_path: Path, cluster: Cluster, settings: MakeSettings, name: str) -> Callable[..., Deployment]:
    def make(partitions: int, guarantees: dict[str, Guarantee], **changed: Any) -> Deployment:
        short = settings(session_timeout_ms=SESSION_MS, transaction_timeout_ms=4_000, **changed)
        return Deployment(tmp_path, cluster, short, name, partitions, **guarantees)

    return make


def find_warnings(running: RunningCommand) -> list[str]:
    """The warnings and errors of a supervisor and its workers."""
    return [line for line in running.text.splitlines() if re.search(r" (WARNING|ERROR) |^error: |Traceback", line)]


class Freeze:
    """Freezes a process and its children inside the block, or until `resume`."""

    def __init__(self, pid: int) -> None:
        self._pids = [pid, *list_children(pid)]

    def __enter__(self) -> Self:
        self._send(signal.SIGSTOP)
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()

    def resume(self) -> None:
        self._send(signal.SIGCONT)
        self._pids = []

    def await_session_expiry(self) -> None:
        """Waits until the sessions of the frozen clients have expired."""
        wait_until(lambda: time.monotonic() > self._since + SESSION_MS / 1000 + 1, "the session has expired")

    def _send(self, signum: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, signum)


# All slots are taken over.


@pytest.mark.long
@pytest.mark.parametrize(
    ("guarantee", "late"), [(Guarantee.EXACTLY_ONCE, True), *((guarantee, False) for guarantee in Guarantee)]
)
def test_resumed_supervisor_ends_when_another_has_taken_its_slots(
    deploy: Callable[..., Deployment], guarantee: Guarantee, late: bool
) -> None:
    """Slot 0 has an open transaction of one of two processors, slot 1 is idle.

    `late`: the second supervisor starts after the sessions of the first have expired.
    """
    deployed = deploy(2, {"busy": guarantee, "idle": guarantee}, commit_interval_ms=3_500)
    with deployed.run("--slots", "0-1") as first:
        deployed.await_held(first, 2)
        deployed.write("busy", MANY, 0, wait=True)
        deployed.await_waiting("busy")
        with Freeze(first.process.pid) as frozen, ExitStack() as stack:
            if late:
                deployed.await_no_members()
            second = stack.enter_context(deployed.run("--slots", "0-1"))
            deployed.open_gate()
            deployed.await_held(second, 2)
            deployed.write("idle", 50, 1)
            deployed.await_done()
            frozen.await_session_expiry()
            frozen.resume()
            by = [deployed.format_replaced_pattern(slot, second, named=late or None) for slot in (0, 1)]
            assert first.wait() == 4, first.text
            both = "to run both, start one of them with --slots 2-3"
            ends = rf"^error: WorkersFailed: {by[0]}; {by[1]}; {both}$"
            assert re.search(ends, first.text, flags=re.MULTILINE), (ends, first.text)
            deployed.write("busy", 50, 0)
            deployed.write("busy", 50, 1)
            deployed.await_done()
            second.send(signal.SIGTERM)
            assert second.wait() == 0, second.text
            assert find_warnings(second) == []
    deployed.check("busy", in_flight=MANY, lost=MANY)
    deployed.check("idle", in_flight=0)


# No other worker has taken the slot.


@pytest.mark.parametrize("busy", [pytest.param(False, marks=pytest.mark.long), True], ids=["idle", "busy"])
def test_resumed_worker_joins_again_when_no_other_has_taken_its_membership(
    deploy: Callable[..., Deployment], busy: bool
) -> None:
    """One slot with three processors, one for each guarantee."""
    deployed = deploy(1, {str(guarantee): guarantee for guarantee in Guarantee}, commit_interval_ms=3_500)
    with deployed.run("--slot", 0) as worker:
        deployed.await_held(worker, 1)
        for processor in deployed.processors:
            deployed.write(processor, MANY, 0, wait=busy)
        if busy:
            deployed.await_waiting(*deployed.processors)
        else:
            deployed.await_done()
        with Freeze(worker.process.pid) as frozen:
            deployed.open_gate()
            frozen.await_session_expiry()
        for processor in deployed.processors:
            deployed.write(processor, 50, 0)
        deployed.await_done()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.text
        again = re.findall(r"(\S+): the membership was lost, and no other worker has taken it: joining", worker.text)
        assert sorted(again) == sorted(f"{deployed.name}.{each}.0" for each in deployed.processors), worker.text
    for processor in deployed.processors:
        deployed.check(processor, in_flight=MANY if busy else 0)


# One of several slots is taken over.


@pytest.mark.long
def test_slot_that_another_supervisor_takes_over_ends_and_names_the_new_holder(
    deploy: Callable[..., Deployment],
) -> None:
    """Each slot has three processors, one for each guarantee."""
    deployed = deploy(3, {str(guarantee): guarantee for guarantee in Guarantee})
    with deployed.run("--slots", "0-1") as first:
        deployed.await_held(first, 2)
        with deployed.keep_writing() as load:
            load.await_more(100)
        with deployed.run("--slots", "1-2") as second:
            with deployed.keep_writing() as load:
                deployed.await_held(second, 2)
                # taken within the session: the broker goes on naming the client of the replaced member
                by = deployed.format_replaced_pattern(1, second, named=False)
                first.await_text(rf"WARNING \S+: {by}: it is not restarted here; slot 0 goes on\n")
                load.await_more(500)
            deployed.await_done()
            for supervisor in (first, second):
                supervisor.send(signal.SIGTERM)
            assert [first.wait(), second.wait()] == [0, 0], (first.text, second.text)
        lines = (first.text + second.text).splitlines()
        fencings = [line for line in lines if re.search(r"transactional id back|new producer|fenced", line)]
        assert len(fencings) <= 1, fencings
        assert find_warnings(second) == []
    for processor in deployed.processors:
        # the replaced worker may write what it has begun until its group says so: see docs/exactly-once.md
        deployed.check(processor, in_flight=400, lost=400, ordered=False)
