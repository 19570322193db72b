"""Event ordering with real processes: workers that are killed and frozen, on real stores and a real broker."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sized
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from confluent_kafka.admin import NewPartitions

from bench.servers import Server, start_redis
from kstreams_py.errors import Replaced, StoreUnavailable, TopicError
from kstreams_py.ordering import Ordering
from kstreams_py.ordering.events import ID_HEADER, KIND_HEADER, PREV_HEADER, UUID_HEADER
from kstreams_py.ordering.front_end import open_storage
from tests.system.command import clean_environment, kstreams
from tests.system.cutting_proxy import Cut, CuttingProxy, choose_at_random
from tests.system.harness import Cluster, await_stopped
from tests.system.launcher import Launched
from tests.system.ordering_point import NAME as DYING
from tests.system.ordering_point import die_at
from tests.waiting import wait_until

OBJECTS: Final = 12
FRONT_ENDS: Final = 4
CHANGES: Final = 300
"""Of each front end, under faults that come at any moment."""

FAULTS: Final = 5
"""The least number of these faults."""

FEW: Final = 60
"""Changes of each front end where one thing happens to a worker."""


STORES: Final = ("sqlite", "redis")


def quick(store: str) -> pytest.MarkDecorator:
    """A test on one store; the other is long: tests/contract/test_ordering_storage.py holds both to one contract."""
    found = [pytest.param(each, marks=() if each == store else pytest.mark.long) for each in STORES]
    return pytest.mark.parametrize("store", found, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store that forgets nothing."""
    if request.param == "sqlite":
        yield str(tmp_path / "events.db")
        return
    server: Server
    with closing(start_redis("--appendfsync", "always")) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


class Workers:
    """Processes of workers by their names, each with a log in this directory."""

    def __init__(self, cluster: Cluster, store: str, topic: str, directory: Path) -> None:
        self._directory = directory
        self._where = ["--store", store, "--topic", topic, "-b", cluster.bootstrap_servers]
        self._started: list[Launched] = []

    def start(self, name: str, *options: str) -> Launched:
        """Starts a worker of few lanes and small batches."""
        words = ("order", "--name", name, "--lanes", 3, "--batch", 4, *options, *self._where)
        with self._log(name).open("ab") as log:
            process = Launched(words, clean_environment({}), stdout=log.fileno(), stderr=log.fileno())
        self._started.append(process)
        return process

    def read_log(self, name: str) -> str:
        """What the processes of a worker have logged."""
        return self._log(name).read_text(encoding="utf-8")

    def take_over(self, name: str) -> str:
        """Runs `kstreams order takeover`; returns what it printed."""
        done = kstreams("order", "takeover", name, "--yes", *self._where, environment={})
        assert done.status == 0, done
        return done.out

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def working(cluster: Cluster, store: str, topic: str, directory: Path) -> Iterator[Workers]:
    cluster.create(topic, partitions=3)
    found = Workers(cluster, store, topic, directory)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture
def workers(cluster: Cluster, store: str, name: str, tmp_path: Path) -> Iterator[Workers]:
    with working(cluster, store, name, tmp_path) as found:
        yield found


AWAY: Final = {
    "status": ["status"],
    "takeover": ["takeover", "one", "--topic", "t", "--yes"],
    "worker": ["--topic", "t"],
}


each_command = pytest.mark.parametrize(
    "arguments",
    # each opens the store alike, with one time-out
    [pytest.param(each, marks=() if name == "worker" else pytest.mark.long) for name, each in AWAY.items()],
    ids=list(AWAY),
)


@each_command
def test_store_that_is_away_at_the_start_is_one_message_which_names_it(arguments: list[str]) -> None:
    check_store_that_is_away(arguments, listens=False)


@each_command
def test_store_that_gives_no_answer_at_the_start_is_one_message_which_names_it(arguments: list[str]) -> None:
    check_store_that_is_away(arguments, listens=True)


def check_store_that_is_away(arguments: list[str], *, listens: bool) -> None:
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        store = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        done = kstreams("order", *arguments, "--store", store, environment={})
    why = "Timeout reading from socket" if listens else r"Error 111 connecting to .* Connection refused"
    assert (done.status, done.out) == (3, "")
    (line,) = done.err.splitlines()
    assert re.fullmatch(
        rf"error: StoreUnavailable: the store {store}: {why}: start the server, or correct its settings", line
    )


def enqueue(ordering: Ordering, name: str, values: list[Any], state: Any) -> None:
    """Queues a change, and tries again with its uuid while the store gives no answer."""
    uuid, attempts = uuid4(), 0
    while True:
        try:
            is_new = ordering.enqueue(name, state, values[0], sub_events=values[1:], uuid=uuid)
        except StoreUnavailable:
            attempts += 1
            time.sleep(0.02)  # as a front end waits
        else:
            assert is_new or attempts
            return


def queue(
    store: str, front_end: int, changes: int, pause: float = 0.0, faults: Sized | None = None, least: int = FAULTS
) -> None:
    """Queues changes of all objects; each has a main event and up to two sub-events.

    - `pause`: seconds between two.
    - `faults`: those that have come so far; a part of the changes waits for each of the first `least`.
    """
    with closing(Ordering(store)) as ordering:
        for number in range(changes):
            if faults is not None:
                part = number * (least + 1) // changes
                wait_until(lambda part=part: len(faults) >= part, f"{part} faults")  # type: ignore[misc]
            values = [[front_end, number, part] for part in range(1 + number % 3)]
            enqueue(ordering, f"object {number % OBJECTS}", values, {"newest": number})
            time.sleep(pause)


def read_applied(cluster: Cluster, topic: str, *, holds_back: bool = False) -> dict[str, list[Any]]:
    """The events of each object as a consumer applies them: each once, each after its predecessor.

    `holds_back`: it waits for predecessors, which may be in other partitions.
    """
    newest: dict[str, int] = {}
    applied: dict[str, list[Any]] = {}
    uuids = set[bytes]()
    messages = cluster.read(topic)
    if holds_back:
        messages.sort(key=lambda message: int(dict(message.headers())[ID_HEADER]))
    for message in messages:
        headers = dict(message.headers() or ())
        name, number = message.key().decode(), int(headers[ID_HEADER])
        if number <= newest.get(name, 0):  # a copy of one that was sent again
            continue
        prev = headers.get(PREV_HEADER)
        assert (None if prev is None else int(prev)) == newest.get(name), f"{name}: {number} came after a gap"
        assert headers[UUID_HEADER] not in uuids, f"{name}: {number} is a second event with its uuid"
        uuids.add(headers[UUID_HEADER])
        newest[name] = number
        value = json.loads(message.value())
        assert headers[KIND_HEADER] == (b"sub" if value[2] else b"main")
        applied.setdefault(name, []).append(value)
    return applied


def assert_ordered(applied: dict[str, list[Any]], changes: int) -> None:
    """Each event was applied once, those of a change together, and those of a front end in its order."""
    for index in range(OBJECTS):
        found = applied[f"object {index}"]
        numbers = [number for number in range(changes) if number % OBJECTS == index]
        for front_end in range(FRONT_ENDS):
            expected = [[front_end, number, part] for number in numbers for part in range(1 + number % 3)]
            assert [value for value in found if value[0] == front_end] == expected
        mains = [at for at, value in enumerate(found) if value[2] == 0]
        for begin, end in zip(mains, [*mains[1:], len(found)], strict=True):
            front_end, number, _ = found[begin]
            assert found[begin:end] == [[front_end, number, part] for part in range(1 + number % 3)]


def await_empty(store: str, *names: str) -> None:
    """Waits until all events are sent, and workers of these names have started."""
    with closing(open_storage(store)) as storage:
        wait_until(
            lambda: {*names} <= {each.name for each in storage.workers()} and storage.objects() == [],
            "all events are sent",
        )


def processes_of(store: str) -> dict[str, int]:
    """How many processes have started under the name of each worker."""
    with closing(open_storage(store)) as storage:
        return {each.name: each.number for each in storage.workers()}


@pytest.mark.parametrize(
    ("store", "changes", "least"),
    [("redis", FEW, 2), *(pytest.param(each, CHANGES, FAULTS, marks=pytest.mark.long) for each in STORES)],
    indirect=["store"],
)
def test_events_keep_their_order_while_workers_are_killed(
    cluster: Cluster, workers: Workers, store: str, name: str, changes: int, least: int
) -> None:
    chance = random.Random(13)
    running = {each: workers.start(each) for each in ("one", "two", "three")}
    kills, before = list[str](), dict[str, int]()
    front_ends = [
        threading.Thread(target=queue, args=[store, number, changes, 0.02, kills, least])
        for number in range(FRONT_ENDS)
    ]
    for thread in front_ends:
        thread.start()
    while any(thread.is_alive() for thread in front_ends):
        time.sleep(chance.uniform(0.5, 2.0))  # the fault: a kill at any moment
        killed = chance.choice(sorted(running))
        running[killed].kill()
        assert running[killed].wait() == -signal.SIGKILL
        before[killed] = processes_of(store).get(killed, 0)
        running[killed] = workers.start(killed)
        kills.append(killed)
    for thread in front_ends:
        thread.join()
    await_empty(store)
    wait_until(
        lambda: all(processes_of(store).get(each, 0) > number for each, number in before.items()),
        "all workers have started",
    )
    for process in running.values():
        process.terminate()
    assert [process.wait() for process in running.values()] == [0, 0, 0]
    assert_ordered(read_applied(cluster, name), changes)
    with closing(open_storage(store)) as storage:
        assert [(each.name, dict(each.objects)) for each in storage.workers()] == [
            ("one", {}),
            ("three", {}),
            ("two", {}),
        ]


def freeze(process: Launched, store: str) -> bool:
    """Stops a process; lets it run on, and returns False, if it holds the lock of an SQLite file."""
    process.send_signal(signal.SIGSTOP)
    await_stopped(process.pid)
    if "://" in store:
        return True
    with closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
            return False
        connection.execute("ROLLBACK")
    return True


@quick("sqlite")
def test_frozen_worker_that_was_replaced_ends_with_the_status_of_that(
    cluster: Cluster, workers: Workers, store: str, name: str
) -> None:
    """EF15: it may send copies, and changes nothing in the store."""
    frozen = workers.start("one")
    with closing(open_storage(store)) as storage:
        wait_until(storage.workers, "the worker has started")
    wait_until(lambda: freeze(frozen, store), "the worker is frozen between two steps")
    for front_end in range(FRONT_ENDS):
        queue(store, front_end, FEW)
    second = workers.start("one")
    await_empty(store)
    frozen.send_signal(signal.SIGCONT)
    assert frozen.wait() == Replaced.exit_status
    second.terminate()
    assert second.wait() == 0
    assert_ordered(read_applied(cluster, name), FEW)


@pytest.mark.long  # in the quick tier, unit/test_ordering.py has a worker that stops
@pytest.mark.parametrize("store", STORES, indirect=True)
def test_worker_that_stops_gives_its_objects_back(cluster: Cluster, workers: Workers, store: str, name: str) -> None:
    one = workers.start("one")
    front_ends = [threading.Thread(target=queue, args=[store, number, FEW, 0.01]) for number in range(FRONT_ENDS)]
    for thread in front_ends:
        thread.start()
    wait_until(lambda: cluster.read(name), "an event is sent")
    one.terminate()
    assert one.wait() == 0
    two = workers.start("two")
    for thread in front_ends:
        thread.join()
    await_empty(store, "two")
    two.terminate()
    assert two.wait() == 0
    assert_ordered(read_applied(cluster, name), FEW)


@quick("sqlite")
def test_what_a_dead_worker_holds_is_finished_by_a_takeover(
    cluster: Cluster, workers: Workers, store: str, name: str
) -> None:
    """EO-46: without it, or another start under the name, its objects wait."""
    queue(store, 0, FEW)
    dead = workers.start(DYING)
    wait_until(lambda: cluster.read(name), "an event is sent")
    dead.kill()
    dead.wait()
    front_ends = [threading.Thread(target=queue, args=[store, number, FEW, 0.01]) for number in range(1, FRONT_ENDS)]
    for thread in front_ends:
        thread.start()
    assert die_at("all is begun at once", store, name, cluster) == -signal.SIGKILL
    with closing(open_storage(store)) as storage:
        (status,) = storage.workers()
    other = workers.start("other")
    for thread in front_ends:
        thread.join()
    held = sorted(set(status.objects.values()))
    with closing(open_storage(store)) as storage:
        wait_until(lambda: {each.name for each in storage.objects()} <= set(held), "only its objects are left")
        assert [each for each in storage.objects() if not each.owner] == []
    told, ends = workers.take_over(DYING), f"worker {DYING} holds nothing now\n"
    assert (f"and holds: {', '.join(held)}\n" in told, told.endswith(ends)) == (True, True)
    await_empty(store, "other")
    other.terminate()
    assert other.wait() == 0
    assert_ordered(read_applied(cluster, name), FEW)


@quick("sqlite")
def test_partitions_that_are_added_get_nothing_until_a_worker_is_told_to_use_them(
    cluster: Cluster, workers: Workers, store: str, name: str
) -> None:
    one = workers.start("one")
    with closing(open_storage(store)) as storage:
        wait_until(storage.workers, "the worker has started")
    (adding,) = cluster.admin.create_partitions([NewPartitions(name, 7)]).values()
    adding.result()
    wait_until(lambda: cluster.partitions(name) == list(range(7)), "the partitions are known")
    for front_end in range(2):
        queue(store, front_end, FEW)
    await_empty(store)
    assert {message.partition() for message in cluster.read(name)} == {0, 1, 2}
    one.terminate()
    assert one.wait() == 0
    for front_end in range(2, 4):
        queue(store, front_end, FEW)
    assert workers.start("one").wait() == TopicError.exit_status
    refused = workers.read_log("one")
    assert f"topic '{name}' has 7 partitions, but had 3 when events of the store {store} were sent to it: " in refused
    assert "then start with --accept-partitions" in refused
    assert processes_of(store) == {"one": 1}
    again = workers.start("one", "--accept-partitions")
    await_empty(store)
    again.terminate()
    assert again.wait() == 0
    assert {message.partition() for message in cluster.read(name)} > {0, 1, 2}
    assert_ordered(read_applied(cluster, name, holds_back=True), FEW)


# Faults of the store, which workers and front ends outlast.


def end_and_judge(
    cluster: Cluster, topic: str, workers: Workers, running: dict[str, Launched], asked: str, store: str, changes: int
) -> None:
    """Ends the workers, none of which has ended before, and checks what they sent, and that they told of the faults.

    `asked`: the address of the store by which workers know it; `store`: the one without faults.
    """
    await_empty(store)
    lines = [f"ordering worker {each} waits for its store: the store {asked}: " for each in running]
    lines += [f"ordering worker {each}: the store {asked} answers again" for each in running]
    # a worker that stood still meanwhile asks for events on and on, and so meets a fault
    wait_until(lambda: all(line in "".join(map(workers.read_log, running)) for line in lines), "all have met a fault")
    assert [process.poll() for process in running.values()] == [None] * len(running)
    for process in running.values():
        process.terminate()
    assert [process.wait() for process in running.values()] == [0] * len(running)
    assert_ordered(read_applied(cluster, topic), changes)


def await_workers(store: str, names: Collection[str]) -> None:
    """Waits until workers have begun: one whose store is away at its start ends with status 3."""
    with closing(open_storage(store)) as storage:
        wait_until(lambda: {worker.name for worker in storage.workers()} == {*names}, "the workers have begun")


@pytest.mark.long  # in the quick tier, simulation/test_ordering_failures.py has EF16 on real stores
@pytest.mark.parametrize(("changes", "share"), [(FEW, 0.1), (CHANGES, 0.03)])
def test_connections_that_are_cut_in_a_step_end_no_worker_and_change_no_order(
    cluster: Cluster, name: str, tmp_path: Path, changes: int, share: float
) -> None:
    """EF16: a step that has no answer was done, or was not; of the steps of several lanes some were."""
    server: Server
    begun, cut = threading.Event(), choose_at_random(16, share)
    with (
        closing(start_redis("--appendfsync", "always")) as server,
        closing(CuttingProxy(server.port, lambda: cut() if begun.is_set() else None)) as proxy,
    ):
        asked, store = (f"redis://127.0.0.1:{port}/0" for port in (proxy.port, server.port))
        with working(cluster, asked, name, tmp_path) as workers:
            running = {each: workers.start(each) for each in ("one", "two", "three")}
            await_workers(store, running)
            begun.set()
            front_ends = [
                threading.Thread(target=queue, args=[asked, number, changes, 0.01]) for number in range(FRONT_ENDS)
            ]
            for thread in front_ends:
                thread.start()
            for thread in front_ends:
                thread.join()
            end_and_judge(cluster, name, workers, running, asked, store, changes)
        assert min(proxy.cuts[cut] for cut in Cut) >= changes // 30


@pytest.mark.long
def test_store_that_dies_under_load_loses_nothing_and_ends_no_worker(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """EF17: a Redis that writes each step to its disk, before it answers."""
    chance = random.Random(17)
    server: Server
    with closing(start_redis("--appendfsync", "always")) as server:
        store = f"redis://127.0.0.1:{server.port}/0"
        with working(cluster, store, name, tmp_path) as workers:
            running = {each: workers.start(each) for each in ("one", "two", "three")}
            await_workers(store, running)
            crashes: list[int] = []
            front_ends = [
                threading.Thread(target=queue, args=[store, number, CHANGES, 0.03, crashes])
                for number in range(FRONT_ENDS)
            ]
            for thread in front_ends:
                thread.start()
            while any(thread.is_alive() for thread in front_ends):
                time.sleep(chance.uniform(0.5, 1.5))  # the fault: a kill at any moment
                server.crash()
                crashes.append(len(crashes))
            for thread in front_ends:
                thread.join()
            end_and_judge(cluster, name, workers, running, store, store, CHANGES)
