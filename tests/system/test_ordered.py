"""@graph.ordered with real processes on a real broker: workers that are killed and frozen apply each event once."""

from __future__ import annotations

import json
import random
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER
from tests.system.command import command, kstreams
from tests.system.harness import Cluster, WorkerProcess, await_joined, starting_workers, wait_until
from tests.system.recorder import Recorder

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
events = graph.topic("{name}.in", key=ks.String(), value=ks.Json())
states = graph.topic("{name}.out", key=ks.String(), value=ks.Json())


@graph.ordered(events, to=states, state=ks.State("sums"))
def apply(value, step, state):
    last, total = state.get(step.key, [0, 0])
    if value != last + 1:
        raise ValueError([step.key, last, value])
    state.put(step.key, [value, total + value])
    return [value, total + value]
"""

OBJECTS: Final = 40
EACH_ROUND: Final = 10
"""Events of each object in a round."""


@pytest.fixture
def start(name: str, tmp_path: Path, settings: Callable[..., Settings]) -> Iterator[Callable[[int], WorkerProcess]]:
    """Starts a worker in a slot; all of them are killed with the test."""
    file = tmp_path / "applying.py"
    file.write_text(GRAPH.format(name=name), encoding="utf-8")
    times = {"session_timeout_ms": 3_000, "transaction_timeout_ms": 2_500, "commit_interval_ms": 50}
    short = settings(**times, held_timeout_ms=1_000)
    with starting_workers() as start:
        yield lambda slot: start(file, slot, short.as_environment(), "--create-topics")


def write_events(cluster: Cluster, topic: str, newest: dict[str, tuple[int, int]], chance: random.Random) -> None:
    """Writes the next events of each object, some of them twice, and some before the one that they follow."""
    events: list[tuple[str, int, int, int]] = []
    for _ in range(EACH_ROUND):
        for name, (prev, value) in newest.items():
            number = 1 + max(prev, *(last for last, _ in newest.values()))
            newest[name] = number, value + 1
            events.append((name, number, prev, value + 1))
    for i in range(len(events)):
        if chance.random() < 0.1:  # OBJECTS further is the next event of the same object
            j = min(i + OBJECTS, len(events) - 1)
            events[i], events[j] = events[j], events[i]
    events += chance.choices(events, k=len(events) // 5)
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for name, number, prev, value in events:
        headers: list[tuple[str, str | bytes | None]] = [(ID_HEADER, b"%d" % number)]
        headers += [(PREV_HEADER, b"%d" % prev)] if prev else []
        producer.produce(topic, json.dumps(value).encode(), name.encode(), headers=headers)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.long)])
def test_workers_killed_and_frozen_apply_each_event_once_in_order(
    start: Callable[[int], WorkerProcess], cluster: Cluster, name: str, rounds: int
) -> None:
    chance, newest = random.Random(11), {f"o{number}": (0, 0) for number in range(OBJECTS)}
    cluster.create(f"{name}.in", partitions=4)
    workers = {slot: start(slot) for slot in range(2)}
    await_joined("apply", *workers.values())
    frozen: list[WorkerProcess] = []
    for turn in range(rounds):
        write_events(cluster, f"{name}.in", newest, chance)
        slot = chance.randrange(2)
        await_joined("apply", workers[slot])
        workers[slot].send(signal.SIGSTOP if turn % 2 else signal.SIGKILL)
        if turn % 2:
            frozen.append(workers[slot])
        workers[slot] = start(slot)
        least = OBJECTS * EACH_ROUND * turn
        wait_until(lambda least=least: len(cluster.read(f"{name}.out")) >= least, "outputs")  # type: ignore[misc]
    await_joined("apply", *workers.values())
    for worker in frozen:
        worker.send(signal.SIGCONT)
    Recorder(cluster.bootstrap_servers).await_done(f"{name}.apply", f"{name}.in")
    assert [worker.wait() for worker in frozen] == [4] * len(frozen)  # Replaced
    for worker in workers.values():
        worker.send(signal.SIGTERM)
    assert [worker.wait() for worker in workers.values()] == [0, 0]

    found = defaultdict[str, list[Any]](list)
    for m in cluster.read(f"{name}.out"):
        found[m.key().decode()].append(json.loads(m.value()))
    last = rounds * EACH_ROUND
    assert found == {each: [[n, n * (n + 1) // 2] for n in range(1, last + 1)] for each in newest}
    assert cluster.read(f"{name}.errors") == []


def write_chain(cluster: Cluster, topic: str, name: str, *events: tuple[int, int, int]) -> None:
    """Writes events of an object: id, predecessor, value."""
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number, prev, value in events:
        headers: list[tuple[str, str | bytes | None]] = [(ID_HEADER, b"%d" % number)]
        headers += [(PREV_HEADER, b"%d" % prev)] if prev else []
        producer.produce(topic, json.dumps(value).encode(), name.encode(), headers=headers)
    assert producer.flush(30) == 0


@pytest.mark.long
def test_stopped_object_goes_on_with_all_that_it_missed_while_its_worker_is_killed(
    start: Callable[[int], WorkerProcess],
    cluster: Cluster,
    name: str,
    tmp_path: Path,
    settings: Callable[..., Settings],
) -> None:
    cluster.create(f"{name}.in", partitions=2)
    environment, file = settings().as_environment(), tmp_path / "applying.py"

    def order(*arguments: object) -> tuple[int, list[str]]:
        done = kstreams("order", arguments[0], file, *arguments[1:], environment=environment)
        assert done.error_lines == []
        return done.status, done.out.splitlines()

    def totals() -> dict[str, list[int]]:
        found = defaultdict[str, list[int]](list)
        for m in cluster.read(f"{name}.out"):
            found[m.key().decode()].append(json.loads(m.value())[0])
        return dict(found)

    worker = start(0)
    write_chain(cluster, f"{name}.in", "a", (1, 0, 1), (2, 1, 2), (3, 1, 99), (4, 2, 3), (5, 4, 4))
    write_chain(cluster, f"{name}.in", "b", (6, 0, 1), (9, 8, 3))
    wait_until(lambda: len(cluster.read(f"{name}.errors")) == 3, "a is stopped")
    wait_until(lambda: totals() == {"a": [1, 2], "b": [1]}, "b goes on")
    status, lines = order("stopped")
    fault = "forked: a: event 3 follows 1, as another one did: 2 came"
    assert (status, sorted(re.sub(r"\d+ s", "N s", line) for line in lines)) == (
        1,
        [
            f"apply: 'a', after event 2, is stopped, N s ago at offset 2: {fault}",
            "apply: 'b', after event 6, waits for event 8: 1 events are held, the first of them 9, for N s",
        ],
    )

    worker.kill()
    status, lines = order("resume", "a", "--yes", "--wait", "0")
    assert (status, lines[-1][:35]) == (1, "the decision on 'a' is written, but")
    write_chain(cluster, f"{name}.in", "a", (10, 5, 5))
    worker = start(0)
    wait_until(lambda: "`kstreams order resume` of 'a', after event 2" in worker.text, "the decision is read")
    worker.kill()  # before or after its commit
    worker = start(0)
    status, lines = order("resume", "a", "--yes")
    assert (status, lines[-1]) == (0, "object 'a' goes on; 2 of its events were sent again")
    wait_until(lambda: totals()["a"] == [1, 2, 3, 4, 5], "what it missed is applied, and what waited for that")
    text = "event 9 of 'b', at"
    wait_until(lambda: text in worker.text, "the new worker warns of what it was restored with")
    status, lines = order("accept", "b", "--yes")
    assert (status, lines[-1]) == (0, "object 'b' goes on; 0 of its events were sent again")
    wait_until(lambda: order("stopped") == (0, ["all objects go on"]), "both go on")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert totals() == {"a": [1, 2, 3, 4, 5], "b": [1]}
    assert len(cluster.read(f"{name}.errors")) == 4, "the value 3 of b does not follow 1 for its function"


def test_accepted_fork_is_applied_in_one_group_while_dead_letters_are_hidden(
    start: Callable[[int], WorkerProcess],
    cluster: Cluster,
    name: str,
    tmp_path: Path,
    settings: Callable[..., Settings],
) -> None:
    file = tmp_path / "applying.py"
    other = f"""
others = graph.topic("{name}.others", key=ks.String(), value=ks.Json())
graph.ordered(events, to=others, id="other")(lambda value: value)
"""
    file.write_text(file.read_text(encoding="utf-8") + other, encoding="utf-8")
    cluster.create(f"{name}.in", f"{name}.errors", partitions=1)
    environment = settings().as_environment()
    hiding = ck.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"{name}.hiding"})
    hiding.init_transactions()

    def order(*arguments: object) -> tuple[int, list[str]]:
        done = kstreams("order", arguments[0], file, *arguments[1:], environment=environment)
        return done.status, done.out.splitlines()

    def values(topic: str) -> list[Any]:
        return [json.loads(m.value()) for m in cluster.read(f"{name}.{topic}")]

    worker = start(0)
    write_chain(cluster, f"{name}.in", "a", (1, 0, 1), (2, 1, 2), (3, 1, 3), (4, 2, 4), (5, 3, 4))
    wait_until(lambda: len(cluster.read(f"{name}.errors")) == 6, "a is stopped in both groups")
    status, lines = order("resume", "a", "--yes", "--processor", "other")
    assert (status, lines[-1]) == (0, "object 'a' goes on; 1 of its events were sent again")
    wait_until(lambda: values("others") == [1, 2, 4], "the other group goes on with event 4")

    hiding.begin_transaction()
    hiding.produce(f"{name}.errors", b"hides")
    hiding.flush()
    write_chain(cluster, f"{name}.in", "a", (6, 5, 5))
    arguments = ("order", "accept", file, "a", "--yes", "--processor", "apply")
    with command(tmp_path, *arguments, environment=environment) as accepting:
        accepting.await_text("an open transaction hides dead letters; waiting up to")
        hiding.abort_transaction()
        assert accepting.wait() == 0
        assert accepting.text.splitlines()[-1] == "object 'a' goes on; 3 of its events were sent again"
    wait_until(lambda: len(values("out")) == 5, "the fork is applied, and what follows it")
    assert values("out") == [[n, n * (n + 1) // 2] for n in range(1, 6)]
    status, lines = order("stopped")
    waits = "other: 'a', after event 4, waits for event 5: 1 events are held, the first of them 6, for N s"
    assert (status, [re.sub(r"\d+ s", "N s", line) for line in lines]) == (1, [waits]), "no fork stopped it again"
    assert values("others") == [1, 2, 4]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
