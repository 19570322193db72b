"""Large records: memory while an input is idle, dead letters that exceed the limit of their topic."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka as ck
import pytest

import kstreams_py as ks
from tests.system.app import MakeSettings, decode_dead_letter
from tests.system.harness import Cluster, WorkerProcess, running, wait_until

PARTITIONS = 12
RECORDS = 400
PADDING = bytes(999_000)

JOIN = """
import kstreams_py as ks

graph = ks.Graph("{name}", errors="{name}.errors")
large, idle, out = (graph.topic("{name}." + end) for end in ("large", "idle", "out"))


@graph.join(large, idle, by="order", to=out)
def pair(x, y):
    return x[:3] + y
"""


def write_large(cluster: Cluster, topic: str) -> None:
    """Writes records of one megabyte that begin with their number, to each partition in turn."""
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, b"%03d" % number + PADDING, partition=number % PARTITIONS)
        producer.flush(30)


def read_megabytes(worker: WorkerProcess, field: str) -> float:
    """Memory of the process: VmRSS now, or VmHWM at its peak so far."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def await_constant_memory(worker: WorkerProcess) -> None:
    """Returns once the memory has not changed for some seconds: the worker reads no more."""
    seen: list[float] = []

    def is_constant() -> bool:
        seen.append(read_megabytes(worker, "VmRSS"))
        return len(seen) > 150 and max(seen[-150:]) - min(seen[-150:]) < 1

    wait_until(is_constant, "the worker reads no more")


@pytest.mark.long
def test_join_of_large_records_with_an_idle_input_uses_less_than_200_megabytes(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """Once the idle input has its records too, every pair is written."""
    large, idle, out = (f"{name}.{end}" for end in ("large", "idle", "out"))
    cluster.create(large, idle, out, f"{name}.errors", partitions=PARTITIONS)
    write_large(cluster, large)
    cluster.write(idle, [b"-000"], partition=0)
    file = tmp_path / "join.py"
    file.write_text(JOIN.format(name=name), encoding="utf-8")
    environment = {
        "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "KSTREAMS_SCHEMA_DIRECTORY": str(tmp_path / "schemas"),
    }
    worker = WorkerProcess(file, 0, environment)
    try:
        wait_until(lambda: cluster.values(out) == [b"000-000"], "the first pair")
        await_constant_memory(worker)
        assert read_megabytes(worker, "VmHWM") < 200
        assert cluster.values(out) == [b"000-000"]
        for partition in range(PARTITIONS):
            rest = [b"-%03d" % number for number in range(partition, RECORDS, PARTITIONS) if number]
            cluster.write(idle, rest, partition=partition)
        wait_until(lambda: len(cluster.values(out)) >= RECORDS, "every pair")
        assert sorted(m.value() for m in cluster.read(out)) == [b"%03d-%03d" % (n, n) for n in range(RECORDS)]
    finally:
        worker.kill()


@pytest.mark.parametrize("limit", [pytest.param(None, marks=pytest.mark.long), 50_000])
def test_dead_letter_of_too_large_records_is_truncated_and_the_worker_continues(
    cluster: Cluster, settings: MakeSettings, name: str, limit: int | None
) -> None:
    left, right, target, errors = (f"{name}.{end}" for end in ("left", "right", "out", "errors"))
    cluster.create(left, right, target)
    cluster.create(errors, config={} if limit is None else {"max.message.bytes": str(limit)})
    cluster.write(left, [b"l" * 999_000, b"fine"], keys=[b"k" * 900, None], headers=[("h", b"1")])
    cluster.write(right, [b"r" * 999_000, b" too"])
    graph = ks.Graph(name, errors=errors)

    @graph.join(graph.topic(left), graph.topic(right), by="order", to=graph.topic(target))
    def pair(x: bytes, y: bytes) -> bytes:
        if x[:1] == b"l":
            raise ValueError("no")
        return x + y

    with running(graph, settings()):
        cluster.await_committed(f"{name}.pair", left, {0: 2})
    assert cluster.values(target) == [b"fine too"]
    (m,) = cluster.read(errors)
    found = decode_dead_letter(m)
    kept = [len(each["value"]) for each in found["inputs"]]
    assert (limit or 1_000_000) * 0.98 < len(m.value()) + len(m.key()) < (limit or 1_000_000)
    assert abs(kept[0] - kept[1]) <= 1
    assert found["cut"].startswith(f"value of {left}[0]@0: {kept[0]:,} of 999,000 bytes kept; value of {right}[0]@0: ")
    assert [(each["key"], each["headers"]) for each in found["inputs"]] == [
        (b"k" * 900, [{"name": "h", "value": b"1"}]), (None, []),
    ]  # fmt: skip
