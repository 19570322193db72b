"""Ten late EndTxn requests in 45 seconds of a steady load: no record is lost, doubled or out of order."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.testing import Expected
from tests.system.harness import running, wait_until
from tests.system.proxy import proxied_broker
from tests.system.recorder import Recorder

pytestmark = pytest.mark.long

LATE_REQUESTS = 10
EVERY_SECONDS = 4.5
HELD_SECONDS = 6.0
SOCKET_TIMEOUT_MS = 2_000
RECORDS_PER_SECOND = 1_000
PARTITIONS = 3
WORK_SECONDS = 0.0005
"""Per record: the input never runs empty, so that a late request arrives in the middle of a long transaction."""

INVALID_PRODUCER_EPOCH = 47


def test_exactly_once_ten_late_requests_under_load_deliver_once_and_in_order(name: str, tmp_path: Path) -> None:
    """The chaos run of late EndTxn requests: the client continues long before each held request arrives."""
    source, target, group = f"{name}.in", f"{name}.out", f"{name}.copy"
    graph = ks.Graph(name)

    @graph.map(graph.topic(source), to=graph.topic(target))
    def copy(value: bytes) -> bytes:
        time.sleep(WORK_SECONDS)
        return value

    with proxied_broker() as (kafka, proxy):
        recorder = Recorder(kafka.bootstrap_servers)
        recorder.cluster.create(source, target, partitions=PARTITIONS)
        settings = Settings.load(
            bootstrap_servers=proxy.bootstrap_servers,
            schema_directory=tmp_path,
            commit_interval_ms=500,
            kafka={"socket.timeout.ms": SOCKET_TIMEOUT_MS},
        )
        late = []
        with running(graph, settings), recorder.reading(target) as reader:
            with recorder.feeding(
                lambda i: (source, b"%d" % i, b"key %d" % (i % 30), -1), per_second=RECORDS_PER_SECOND
            ):
                reader.await_more(1)
                for _ in range(LATE_REQUESTS):
                    started = time.monotonic()
                    recorder.history.fault(f"an EndTxn is held for {HELD_SECONDS:g} s")
                    late.append(proxy.delay("EndTxn", HELD_SECONDS, client=f"{group}.0"))
                    wait_until(lambda: late[-1].caught, "an EndTxn is held")
                    time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - started)))  # the pace of the load
                wait_until(lambda: all(rule.answers for rule in late), "the broker has answered all late requests")
            recorder.await_done(group, source)
            reader.finish()
        recorder.verify(Expected(source, to=target))
        errors = [int.from_bytes(rule.answers[0].body[8:10], "big") for rule in late]
        assert errors == [INVALID_PRODUCER_EPOCH] * LATE_REQUESTS
