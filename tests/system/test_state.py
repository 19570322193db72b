"""Keyed state with real processes on a real broker: workers that are killed and frozen, tasks that move."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from kstreams_py import Settings
from tests.system.command import clean_environment
from tests.system.harness import Cluster, WorkerProcess, await_joined, starting_workers, wait_until
from tests.system.recorder import Recorder

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
words = graph.topic("{name}.in", key=ks.String(), value=ks.String())
counts = graph.topic("{name}.out", key=ks.String(), value=ks.Json())


@graph.map(words, to=counts, state=ks.State("counts", on_disk={on_disk}))
def count(word, state):
    seen = state.get(word, 0) + 1
    state.put(word, seen)
    if word == "bad":
        raise ValueError(word)
    return seen
"""

pytestmark = pytest.mark.long

WRITTEN: Final = 400
"""Records that are written before each fault."""

FAULTS: Final = 8

KEYS: Final = [f"k{number}" for number in range(40)] + ["bad"]


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def start(
    name: str, tmp_path: Path, settings: Callable[..., Settings], request: pytest.FixtureRequest
) -> Iterator[Callable[[int], WorkerProcess]]:
    """Starts a worker in a slot; all of them are killed with the test."""
    file = tmp_path / "counting.py"
    file.write_text(GRAPH.format(name=name, on_disk=request.param), encoding="utf-8")
    times = {"session_timeout_ms": 3_000, "transaction_timeout_ms": 2_500, "commit_interval_ms": 50}
    short = settings(state_directory=tmp_path / "state", **times)
    with starting_workers() as start:
        yield lambda slot: start(file, slot, short.as_environment(), "--create-topics")


def test_workers_killed_at_random_count_each_record_once(
    start: Callable[[int], WorkerProcess],
    cluster: Cluster,
    name: str,
    tmp_path: Path,
    settings: Callable[..., Settings],
) -> None:
    """Each record of a key gives the next number: a value that is old, or doubled, or lost, is seen at once."""
    chance, written = random.Random(3), dict[str, int].fromkeys(KEYS, 0)
    cluster.create(f"{name}.in", partitions=4)
    workers = {slot: start(slot) for slot in range(3)}
    await_joined("count", *workers.values())
    frozen: list[WorkerProcess] = []
    for turn in range(FAULTS):
        keys = chance.choices(KEYS, k=WRITTEN)
        values: list[bytes | None] = [key.encode() for key in keys]
        cluster.write(f"{name}.in", values, keys=values)
        for key in keys:
            written[key] += 1
        least = chance.randrange(sum(written.values()))
        wait_until(lambda least=least: len(cluster.read(f"{name}.out")) >= least * 0.9, "outputs")  # type: ignore[misc]
        slot = chance.randrange(3)
        await_joined("count", workers[slot])
        if turn % 2:
            workers[slot].send(signal.SIGSTOP)  # its session ends: another slot takes its partitions meanwhile
            frozen.append(workers[slot])
            workers[slot] = start(slot)
        else:
            workers[slot].send(signal.SIGKILL)
            workers[slot].wait()
            workers[slot] = start(slot)
        if frozen and turn % 4 == 3:
            await_joined("count", workers[slot])
            frozen[-1].send(signal.SIGCONT)
    await_joined("count", *workers.values())
    for worker in frozen:
        worker.send(signal.SIGCONT)
    Recorder(cluster.bootstrap_servers).await_done(f"{name}.count", f"{name}.in")
    for worker in frozen:
        assert worker.wait() == 4, worker.text  # Replaced
    for worker in workers.values():
        worker.send(signal.SIGTERM)
    assert [worker.wait() for worker in workers.values()] == [0, 0, 0], [worker.text for worker in workers.values()]

    numbers = defaultdict[str, list[int]](list)
    for m in cluster.read(f"{name}.out"):
        numbers[m.key().decode()].append(int(m.value()))
    bad = written.pop("bad")
    assert numbers == {key: list(range(1, count + 1)) for key, count in written.items()}
    assert len(cluster.read(f"{name}.errors")) == bad
    shown = subprocess.run(
        [sys.executable, "-m", "kstreams_py", "state", "show", f"{tmp_path / 'counting.py'}:graph", "counts"],
        env=clean_environment(settings().as_environment()), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert shown.splitlines() == [
        f'{{"key": "{key}", "value": {count}}}' for key, count in sorted(written.items()) if count
    ]
