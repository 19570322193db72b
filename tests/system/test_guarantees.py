"""The three guarantees under SIGKILL, replacement and rebalance: worker processes on a real broker."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstreams_py import Settings
from tests.system.harness import Cluster, WorkerProcess, wait_until

GRAPH = """
import os, time
from pathlib import Path
import kstreams_py as ks

graph = ks.Graph({name!r}, guarantee={guarantee!r})
gate = Path({gate!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    if value == b"wait" and not gate.exists():
        gate.with_name("waiting").touch()
        while not gate.exists():
            time.sleep(0.01)
    return value
"""


class App:
    """A graph file of one copying processor, whose function waits at the value `wait` until the gate is open."""

    def __init__(self, directory: Path, name: str, cluster: Cluster, settings: Settings, guarantee: str) -> None:
        self.file = directory / f"graph_{name.replace('-', '_')}.py"
        self.gate = directory / "gate"
        self.waiting = directory / "waiting"
        self.source, self.target, self.group = f"{name}.in", f"{name}.out", f"{name}.copy"
        self.cluster = cluster
        self.file.write_text(GRAPH.format(name=name, guarantee=guarantee, gate=str(self.gate)))
        self.environment = settings.as_environment()

    @contextmanager
    def worker(self, slot: int = 0) -> Iterator[WorkerProcess]:
        worker = WorkerProcess(self.file, slot, self.environment)
        try:
            yield worker
        finally:
            worker.kill()

    def copies(self) -> Counter[bytes | None]:
        return Counter(self.cluster.values(self.target))


@pytest.fixture
def app(tmp_path: Path, name: str, cluster: Cluster, settings: Callable[..., Settings]) -> Callable[..., App]:
    def make(guarantee: str = "exactly_once", partitions: int = 1, **changed: int) -> App:
        created = App(tmp_path, name, cluster, settings(**changed), guarantee)
        cluster.create(created.source, created.target, partitions=partitions)
        return created

    return make


def test_exactly_once_sigkill_in_mid_transaction_delivers_once(app: Callable[..., App], cluster: Cluster) -> None:
    # the commit interval is longer than the wait: outputs written before the gate stay in one open transaction
    copier = app(commit_interval_ms=5_000)
    values = [str(i).encode() for i in range(1_200)]  # more than a transaction holds back
    cluster.write(copier.source, [*values, b"wait", b"last"])
    with copier.worker() as first:
        wait_until(lambda: len(cluster.read(copier.target, "read_uncommitted")) >= 100, "outputs are written")
        wait_until(copier.waiting.exists, "the function waits")
        assert cluster.values(copier.target) == []
        first.send(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    copier.gate.touch()
    with copier.worker() as second:
        cluster.await_committed(copier.group, copier.source, {0: 1_202})
        second.send(signal.SIGTERM)
        assert second.wait() == 0, second.text
    assert cluster.values(copier.target) == [*values, b"wait", b"last"]
    assert len(cluster.read(copier.target, "read_uncommitted")) > 1_202, "the killed worker's outputs were there"


@pytest.mark.long
def test_at_least_once_sigkill_before_positions_are_saved_repeats_and_loses_nothing(
    app: Callable[..., App], cluster: Cluster
) -> None:
    copier = app("at_least_once", commit_interval_ms=5_000)
    values = [str(i).encode() for i in range(150)]
    cluster.write(copier.source, [*values, b"wait", b"last"])
    with copier.worker() as first:
        wait_until(lambda: len(cluster.read(copier.target)) >= 100, "outputs are written")
        wait_until(copier.waiting.exists, "the function waits")
        first.send(signal.SIGKILL)
        first.wait()
    written = copier.copies()
    copier.gate.touch()
    with copier.worker():
        cluster.await_committed(copier.group, copier.source, {0: 152})
    assert copier.copies() == Counter([*values, b"wait", b"last"]) + written


@pytest.mark.long
def test_at_most_once_sigkill_while_functions_run_loses_and_repeats_none(
    app: Callable[..., App], cluster: Cluster
) -> None:
    copier = app("at_most_once")
    cluster.write(copier.source, [b"first", b"wait", b"lost"])
    with copier.worker() as first:
        wait_until(copier.waiting.exists, "the function waits")
        assert cluster.committed(copier.group, copier.source) == {0: 3}, (
            "offsets are committed before the functions run"
        )
        first.send(signal.SIGKILL)
        first.wait()
    copier.gate.touch()
    cluster.write(copier.source, [b"later"])
    with copier.worker():
        wait_until(lambda: b"later" in copier.copies(), "the next record")
    assert cluster.values(copier.target) == [b"later"]


@pytest.mark.long
def test_exactly_once_replacement_in_the_slot_fences_the_frozen_worker(
    app: Callable[..., App], cluster: Cluster
) -> None:
    copier = app(commit_interval_ms=4_000)
    cluster.write(copier.source, [str(i).encode() for i in range(120)] + [b"wait"])
    with copier.worker() as frozen:
        wait_until(copier.waiting.exists, "the function waits in an open transaction")
        frozen.send(signal.SIGSTOP)
        copier.gate.touch()
        with copier.worker() as replacement:
            cluster.await_committed(copier.group, copier.source, {0: 121})
            frozen.send(signal.SIGCONT)
            assert frozen.wait() == 4, frozen.text  # Replaced
            assert "another worker has taken the slot" in frozen.text
            cluster.write(copier.source, [b"after"])
            cluster.await_committed(copier.group, copier.source, {0: 122})
            replacement.send(signal.SIGTERM)
            assert replacement.wait() == 0, replacement.text
    assert cluster.values(copier.target) == [*(str(i).encode() for i in range(120)), b"wait", b"after"]


@pytest.mark.long
def test_exactly_once_rebalance_under_load_delivers_once_and_in_order_per_key(
    app: Callable[..., App], cluster: Cluster
) -> None:
    copier = app(partitions=4, session_timeout_ms=6_000, transaction_timeout_ms=5_000)
    keys = [str(i % 16).encode() for i in range(20_000)]
    values = [f"{key.decode()}:{i}".encode() for i, key in enumerate(keys)]
    cluster.write(copier.source, values[:8_000], keys=keys[:8_000])
    with copier.worker(0) as first:
        wait_until(lambda: cluster.values(copier.target), "the first worker writes outputs")
        with copier.worker(1) as second:
            cluster.write(copier.source, values[8_000:14_000], keys=keys[8_000:14_000])
            wait_until(lambda: "copy: holds" in second.text, "the second worker holds partitions")
            cluster.write(copier.source, values[14_000:], keys=keys[14_000:])
            second.send(signal.SIGTERM)
            assert second.wait() == 0, second.text
        # the second worker's membership lasts until its session expires; then the first gets its partitions
        wait_until(lambda: len(cluster.read(copier.target)) >= len(values), "all records")
        first.send(signal.SIGTERM)
        assert first.wait() == 0, first.text
    found = cluster.values(copier.target)
    assert Counter(found) == Counter(values)

    def select_key(key: bytes, records: Iterable[bytes | None]) -> list[bytes]:
        return [value for value in records if value is not None and value.split(b":")[0] == key]

    source = cluster.values(copier.source)
    written, copied = ({key: select_key(key, each) for key in set(keys)} for each in (source, found))
    assert [key for key in written if written[key] != select_key(key, values)] == [], "the test wrote in another order"
    assert [key for key in written if written[key] != copied[key]] == [], (
        "the outputs are not in the order of the source"
    )
