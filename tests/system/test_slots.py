"""Slots that are released: workers that leave their groups, `kstreams slots list` and `release`, on a real broker.

The session time-out is longer than any wait here: partitions move because a member left, not because it expired.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.errors import BrokerUnavailable
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.kafka.administration import GroupAdmin
from tests.system.command import RunningCommand, command, kstreams
from tests.system.harness import Cluster, WorkerProcess, running, wait_until

MakeSettings = Callable[..., Settings]

SESSION_MS = 280_000

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
source, middle, target = (graph.topic("{name}." + each) for each in ("in", "middle", "out"))

@graph.map(source, to=middle)
def first(value):
    return value

@graph.map(middle, to=target)
def second(value):
    return value
"""


class Feed:
    """Writes numbered records to each partition of a topic, and checks outputs by input partition, in order."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self._cluster, self._topic, self._partitions = cluster, topic, partitions
        self.count = 0

    def write(self, count: int) -> None:
        for partition in range(self._partitions):
            values = [b"%d-%d" % (partition, i) for i in range(self.count, self.count + count)]
            self._cluster.write(self._topic, values, partition=partition, keys=[b"%d" % partition] * count)
        self.count += count

    @contextmanager
    def keep_writing(self) -> Iterator[None]:
        """Writes inside the block."""
        stopping = threading.Event()

        def write() -> None:
            while not stopping.wait(0.1):  # the pace
                self.write(25)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    @property
    def expected(self) -> list[list[bytes]]:
        return [[b"%d-%d" % (partition, i) for i in range(self.count)] for partition in range(self._partitions)]

    def read(self, topic: str) -> list[list[bytes | None]]:
        """The values of an output topic by input partition."""
        values = self._cluster.values(topic)
        return [[v for v in values if (v or b"").startswith(b"%d-" % p)] for p in range(self._partitions)]

    def await_all(self, topic: str) -> None:
        """Waits until an output topic has as many records as were written, then compares all of them."""
        total = self.count * self._partitions
        wait_until(lambda: len(self._cluster.values(topic)) >= total, f"{total} records in {topic}")
        assert self.read(topic) == self.expected


@pytest.mark.parametrize(
    "guarantee",
    # in the quick tier, test_errors.py has a stop under each guarantee
    [pytest.param(each, marks=() if each is Guarantee.EXACTLY_ONCE else pytest.mark.long) for each in Guarantee],
)
def test_workers_that_leave_hand_their_partitions_over_and_records_are_copied_once(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: Guarantee
) -> None:
    cluster.create(f"{name}.in", partitions=4)
    cluster.create(f"{name}.out")
    graph = ks.Graph(name, guarantee=guarantee)

    @graph.map(graph.topic(f"{name}.in"), to=graph.topic(f"{name}.out"))
    def copy(value: bytes) -> bytes:
        return value

    cluster.partitions(f"{name}.out")
    leaving = settings(session_timeout_ms=SESSION_MS, leave_on_stop=True)
    feed = Feed(cluster, f"{name}.in", 4)

    def members() -> list[str]:
        return [m.instance for m in GroupAdmin(leaving).members(f"{name}.copy") if m.partitions]

    with running(graph, leaving, 0, 1, 2, 3) as slots:
        wait_until(lambda: members() == [f"{name}.copy.{slot}" for slot in range(4)], "each slot has a partition")
        feed.write(50)
        feed.await_all(f"{name}.out")
        with feed.keep_writing():
            for slot in slots[2:]:
                slot.stop()
        feed.write(50)
        feed.await_all(f"{name}.out")
        assert members() == [f"{name}.copy.{slot}" for slot in range(2)]


class Deployment:
    """A graph of two processors in a file, its topics, and its processes."""

    def __init__(self, directory: Path, name: str, cluster: Cluster, settings: Settings) -> None:
        self.directory, self.name = directory, name
        self.file = directory / "graph_of_two.py"
        self.file.write_text(GRAPH.format(name=name))
        self.target = f"{self.file}:graph"
        self.environment = settings.as_environment()
        cluster.create(f"{name}.in", f"{name}.middle", partitions=4)
        cluster.create(f"{name}.out", f"{name}.errors")
        self.feed = Feed(cluster, f"{name}.in", 4)

    def worker(self, slot: int, *options: str) -> WorkerProcess:
        return WorkerProcess(self.file, slot, self.environment, *options)

    def slots(self, *arguments: object) -> tuple[int, str, str]:
        """Exit status, output and errors of `kstreams slots`; the random part of member ids is replaced by ID."""
        verb, *rest = arguments
        done = kstreams("slots", verb, self.target, *rest, environment=self.environment)
        return done.status, re.sub(r"-[0-9a-f]{8}-[0-9a-f-]{27}$", "-ID", done.out, flags=re.MULTILINE), done.err

    def format_list(self, *slots: tuple[int, int, int]) -> str:
        """The output of `list` for (slot, first partition, last partition) of each input."""
        lines = []
        for processor, topic in (("first", "in"), ("second", "middle")):
            group = f"{self.name}.{processor}"
            lines.append(f"{group}: Stable")
            for slot, first, last in slots:
                held = ", ".join(f"{self.name}.{topic}[{number}]" for number in range(first, last + 1))
                lines.append(f"  slot {slot} on 127.0.0.1: {held}; member {group}.{slot}-ID")
        return "\n".join(lines) + "\n"

    def await_listed(self, *slots: tuple[int, int, int]) -> None:
        wanted = (0, self.format_list(*slots), "")
        try:
            wait_until(lambda: self.slots("list") == wanted, "the list of slots")
        except AssertionError:
            assert self.slots("list") == wanted


@pytest.fixture
def deployment(tmp_path: Path, name: str, cluster: Cluster, settings: MakeSettings) -> Deployment:
    return Deployment(tmp_path, name, cluster, settings(session_timeout_ms=SESSION_MS))


@pytest.mark.parametrize(
    ("stays", "leaves", "shared", "moved"),
    [
        pytest.param(("--slot", 0), ("--slot", 1), [(0, 0, 1), (1, 2, 3)], [(0, 0, 3)], id="workers"),
        pytest.param(
            ("--slots", "0-1"),
            ("--slots", "2-3"),
            [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3)],
            [(0, 0, 1), (1, 2, 3)],
            id="supervisors",
            marks=pytest.mark.long,  # which pass their options on to workers
        ),
    ],
)
def test_run_with_leave_releases_its_partitions_at_the_end_and_keeps_them_without(
    deployment: Deployment,
    stays: tuple[object, ...],
    leaves: tuple[object, ...],
    shared: list[tuple[int, int, int]],
    moved: list[tuple[int, int, int]],
) -> None:
    assert deployment.slots("list") == (
        0,
        f"{deployment.name}.first: there is no such group yet\n{deployment.name}.second: there is no such group yet\n",
        "",
    )
    run = partial(command, deployment.directory, "run", deployment.target, environment=deployment.environment)
    with run(*stays) as staying, run(*leaves, "--leave") as leaving:
        deployment.await_listed(*shared)
        deployment.feed.write(50)
        deployment.feed.await_all(f"{deployment.name}.out")
        leaving.send(signal.SIGTERM)
        assert leaving.wait() == 0
        deployment.feed.write(50)
        deployment.feed.await_all(f"{deployment.name}.out")
        deployment.await_listed(*moved)
        staying.send(signal.SIGTERM)
        assert staying.wait() == 0
        deployment.await_listed(*moved)


def test_slot_auto_runs_the_slot_of_the_pod_or_of_the_variable(deployment: Deployment) -> None:
    def run(**variables: str) -> AbstractContextManager[RunningCommand]:
        environment = {**deployment.environment, "HOSTNAME": "shop-1", **variables}
        directory = deployment.directory / variables.get("KSTREAMS_SLOT", "pod")
        directory.mkdir()
        return command(directory, "run", deployment.target, "--slot", "auto", environment=environment)

    with run() as pod, run(KSTREAMS_SLOT="3") as named:
        deployment.await_listed((1, 0, 1), (3, 2, 3))
        for each in (pod, named):
            each.send(signal.SIGTERM)
        assert [pod.wait(), named.wait()] == [0, 0]


def test_release_of_a_killed_workers_slot_moves_its_partitions_and_no_others(deployment: Deployment) -> None:
    name = deployment.name
    workers = [deployment.worker(slot) for slot in (0, 1)]
    try:
        deployment.await_listed((0, 0, 1), (1, 2, 3))
        workers[1].kill()
        unknown = [f"slot {slot} has no member in any group of graph '{name}': nothing to release\n" for slot in (2, 7)]
        assert deployment.slots("release", 7, 2) == (0, "".join(unknown), "")
        deployment.await_listed((0, 0, 1), (1, 2, 3))
        released = (
            f"{name}.first: released slot 1 on 127.0.0.1 ({name}.in[2], {name}.in[3])\n"
            f"{name}.second: released slot 1 on 127.0.0.1 ({name}.middle[2], {name}.middle[3])\n"
        )
        assert deployment.slots("release", 1) == (0, released, "")
        deployment.feed.write(50)
        deployment.feed.await_all(f"{name}.out")
        deployment.await_listed((0, 0, 3))
    finally:
        for worker in workers:
            worker.kill()


def test_release_of_a_slot_that_still_runs_lets_its_worker_join_again(deployment: Deployment) -> None:
    workers = [deployment.worker(slot) for slot in (0, 1)]
    try:
        deployment.await_listed((0, 0, 1), (1, 2, 3))
        with deployment.feed.keep_writing():
            assert deployment.slots("release", 1)[0] == 0
        deployment.feed.await_all(f"{deployment.name}.out")
        deployment.await_listed((0, 0, 1), (1, 2, 3))
    finally:
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0, 0]


def test_group_admin_request_without_an_answer_ends_after_its_time_limit(settings: MakeSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        text = f"^no Kafka broker answers at {address}: .*: describing groups 'any'"  # and the newest error, if any
        with pytest.raises(BrokerUnavailable, match=text):
            GroupAdmin(settings(bootstrap_servers=address), 1.2).members("any")
        assert time.monotonic() - started < 10.0
