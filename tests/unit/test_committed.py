"""processing/tasks/committed.py: the committed offsets of a group, and the log of offsets that stay pending."""

from __future__ import annotations

import pytest

from kstreams_py.errors import BrokerUnavailable, Retriable
from kstreams_py.kafka.groups import Pending
from kstreams_py.records import TopicPartition
from tests.unit.fakes import raise_error
from tests.unit.guarantee import A0, B0, Bench


def test_committed_offsets_of_no_partition_make_no_request() -> None:
    bench = Bench()
    assert (bench.committed.read([]), bench.take_requests()) == ({}, [])


def test_committed_offsets_that_stay_pending_are_logged_every_30_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    pending = Pending("g.p", (A0,), TopicPartition("__consumer_offsets", 7), (), "no rights")
    monkeypatch.setattr(bench.cluster, "pending", lambda group, partitions: pending)

    def warned_after(seconds: float) -> list[str]:
        caplog.clear()
        bench.clock.advance(seconds)
        bench.cluster.faults.inject("committed", error=Retriable("pending in a transaction"), applied=False)
        with pytest.raises(Retriable, match="pending in a transaction"):
            bench.committed.read([A0, B0])
        return caplog.messages[:]

    why = pending.describe(0, "kstreams transactions find-hanging --bootstrap-servers 127.0.0.1:9092")
    named = [f"g.p.0: committed offsets have not been readable for 30 s: {why}"]
    assert [warned_after(seconds) for seconds in (0, 29.9, 0.1, 29.9, 0.1)] == [[], [], named, [], named]
    assert bench.committed.read([A0, B0]) == {}, "they are readable again"
    assert [warned_after(seconds) for seconds in (29.9, 0.2)] == [[], []], "the 30 seconds count from the last success"
    monkeypatch.setattr(bench.cluster, "pending", lambda *_: raise_error(BrokerUnavailable("no broker")))
    unknown = "which transaction holds them is not known: no broker"
    assert warned_after(30) == [f"g.p.0: committed offsets have not been readable for 30 s: {unknown}"]
