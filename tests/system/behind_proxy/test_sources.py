"""What a source sends twice: within a session Kafka drops the copy, over a death only its id tells."""

from __future__ import annotations

import importlib.util
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.proxy import Proxy
from tests.system.recorder import Recorder
from tests.unit.test_docs import DELIVERY, named_blocks
from tests.waiting import WAIT

SOURCE = """
import os, signal, sys
from pathlib import Path
import confluent_kafka as ck

servers, topic, noted, dies_at = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
producer = ck.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
for number in range(int(noted.read_text()) if noted.exists() else 0, 10):
    producer.produce(topic, b'{"id": "order %d"}' % number, b"alice")
    assert producer.flush(60) == 0
    if number == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    noted.write_text(str(number + 1))
"""


@pytest.mark.long  # a broker and a proxy of its own, for what Kafka promises by itself
def test_record_whose_acknowledgement_is_lost_is_sent_again_and_is_there_once(
    cluster: Cluster, proxy: Proxy, name: str
) -> None:
    cluster.create(name)
    proxy.drop("Produce", side="response", client=name)
    producer = ck.Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "client.id": name,
            "enable.idempotence": True,
            "socket.timeout.ms": 1_000,
        }
    )
    producer.produce(name, b"once")
    assert producer.flush(WAIT) == 0
    assert len(proxy.requests("Produce", name)) > 1
    assert cluster.values(name) == [b"once"]


@pytest.fixture
def taking(tmp_path: Path, name: str, settings: Callable[..., Settings]) -> Iterator[Callable[[], WorkerProcess]]:
    """Starts the graph of docs/delivery.md, with its table; kills its workers with the test."""
    text = named_blocks(DELIVERY)["orders.py"]
    for old, new in {
        '"shop.': f'"{name}.',
        '"intake"': f'"{name}"',
        '"taken.sqlite"': f'"{tmp_path}/taken.sqlite"',
    }.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "orders.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("orders", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(orders := importlib.util.module_from_spec(spec))
    with closing(sqlite3.connect(orders.DATABASE)) as database:
        database.execute(orders.TABLE)
    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        started.append(
            WorkerProcess(file, 0, settings(session_timeout_ms=3_000, transaction_timeout_ms=2_500).as_environment())
        )
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def test_source_that_dies_before_noting_sends_again_and_its_ids_tell_the_copies(
    taking: Callable[[], WorkerProcess], cluster_of_file: Cluster, name: str, tmp_path: Path
) -> None:
    cluster = cluster_of_file  # without a proxy
    received, orders = f"{name}.received", f"{name}.orders"
    cluster.create(received, orders)

    def send(dies_at: int) -> int:
        arguments = (cluster.bootstrap_servers, received, tmp_path / "noted", dies_at)
        command = [sys.executable, "-c", SOURCE, *map(str, arguments)]
        return subprocess.run(command, check=False, timeout=WAIT).returncode

    worker = taking()
    assert send(dies_at=3) == -signal.SIGKILL
    wait_until(lambda: len(cluster.values(orders)) == 4, "the orders before the death")
    worker.kill()
    assert send(dies_at=6) == -signal.SIGKILL
    worker = taking()
    assert send(dies_at=-1) == 0
    with closing(Recorder(cluster.bootstrap_servers)) as recorder:
        recorder.await_done(f"{name}.take", received)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.text
    sent = [*range(4), *range(3, 7), *range(6, 10)]
    assert cluster.values(received) == [b'{"id": "order %d"}' % number for number in sent]
    found = [bytes(value or b"").replace(b" ", b"") for value in cluster.values(orders)]
    assert found == [b'{"id":"order%d"}' % number for number in range(10)]
