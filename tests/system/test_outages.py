"""A broker that is away for longer than all attempts of a worker: the worker waits, and says so (KS-17).

A proxy cuts the connections of the workers: the broker itself goes on, and its data are whole.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.metrics import WorkerState
from kstreams_py.processing import attempts, session
from tests.system.harness import Cluster, RunningSlot, wait_until
from tests.system.proxy import Proxy

LIMITS: dict[ModuleType, dict[str, float]] = {
    attempts: {"FAILURES_MAX": 3, "PRODUCERS_MAX": 3, "CALLS_MAX": 2, "FAILURES_WARNED": 1, "WAIT_MAX": 0.1},
    session: {"MEMBERSHIP_ASKED_MAX": 3},
}
"""After so few attempts a worker would give up, if attempts without a broker counted."""

ATTEMPTS = 4
"""Attempts during the outage, more than any of the limits; the session of a member ends meanwhile."""


class App:
    """A map under one guarantee, whose function waits in mid-transaction for the outage."""

    def __init__(self, name: str, guarantee: str, persistence: str, cluster: Cluster) -> None:
        self.id = f"{guarantee}-{persistence}"
        self.group, self.source, self.target = f"{name}.{self.id}", f"{name}.{self.id}.in", f"{name}.{self.id}.out"
        self.waits, self.goes_on = threading.Event(), threading.Event()
        cluster.create(self.source, self.target)
        self.graph = ks.Graph(name, guarantee=guarantee)
        topics = self.graph.topic(self.source), self.graph.topic(self.target)
        self.graph.map(topics[0], to=topics[1], id=self.id, persistence=persistence)(self._step)

    def _step(self, value: bytes) -> bytes:
        if value == b"9":
            self.waits.set()
            assert self.goes_on.wait(60)
        return value

    def failures(self, records: Sequence[logging.LogRecord]) -> int:
        """The attempts and questions without an answer that its worker has logged."""
        own = (f"{self.id}: ", f"{self.group}.0: ")
        return sum(record.getMessage().startswith(own) for record in records)


def lower_limits(patch: pytest.MonkeyPatch) -> None:
    for module, limits in LIMITS.items():
        for name, value in limits.items():
            patch.setattr(module, name, value)


KINDS = [
    ("exactly_once", "transaction"),
    ("exactly_once", "journal"),
    ("at_least_once", "transaction"),
    ("at_most_once", "transaction"),
]


def test_worker_waits_for_a_broker_without_limit_and_loses_and_doubles_nothing(
    proxied: tuple[Cluster, Proxy],
    proxy: Proxy,
    settings: Callable[..., Settings],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, values = proxied[0], [b"%d" % number for number in range(20)]
    apps = [App(name, *kind, cluster) for kind in KINDS]
    behind = settings(bootstrap_servers=proxy.bootstrap_servers, request_timeout_ms=3_000)
    slots = [RunningSlot(app.graph, behind, outputs_held=0) for app in apps]
    try:
        for app in apps:
            cluster.write(app.source, values[:9])
            cluster.await_committed(app.group, app.source, {0: 9})
        lower_limits(monkeypatch)
        for app in apps:
            cluster.write(app.source, values[9:])
        for app in apps:
            wait_until(app.waits.is_set, f"{app.id} is in mid-transaction")
        caplog.clear()
        caplog.set_level(logging.INFO)
        proxy.cut()
        for app in apps:
            app.goes_on.set()
        for app, slot in zip(apps, slots, strict=True):
            wait_until(
                lambda app=app, slot=slot: slot.failure or app.failures(caplog.records) > ATTEMPTS,  # type: ignore[misc]
                f"{app.id} repeats its attempts",
            )
            assert slot.failure is None, app.id
            assert [report.state for report in slot.reports] == [WorkerState.BROKER_AWAY], app.id
        proxy.lift()
        for app in apps:
            cluster.await_committed(app.group, app.source, {0: 20})
    finally:
        for slot in slots:
            slot.slot.stop()
        for slot in slots:
            slot.join()
    assert [slot.failure for slot in slots] == [None] * len(apps)
    assert {app.id: cluster.values(app.target) for app in apps} == {app.id: values for app in apps}
