"""A broker that is away for longer than all attempts of a worker: the worker waits, and says so (KS-17).

A proxy cuts the connections of the workers: the broker itself goes on, and its data are whole.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import pytest

import kstreams_py as ks
from kstreams_py.errors import Replaced
from kstreams_py.kafka import membership
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.metrics import WorkerState
from kstreams_py.processing.commits import attempts, session
from tests.system.app import MakeSettings
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
        self._cluster = cluster
        cluster.create(self.source, self.target)
        self.graph = ks.Graph(name, guarantee=guarantee)
        topics = self.graph.topic(self.source), self.graph.topic(self.target)
        self.graph.map(topics[0], to=topics[1], id=self.id, persistence=persistence)(self._step)

    def _step(self, value: bytes) -> bytes:
        if value == VALUES[COUNT - 1]:
            self.waits.set()
            assert self.goes_on.wait(60)
        return value

    def begin(self) -> None:
        """Returns in mid-transaction: outputs are written, and the function waits in a later batch."""
        self._cluster.write(self.source, VALUES[:9])
        self._cluster.await_committed(self.group, self.source, {0: 9})
        self._cluster.write(self.source, VALUES[9:COUNT])
        wait_until(self.waits.is_set, f"{self.id} is in mid-transaction")

    def failures(self, records: Sequence[logging.LogRecord]) -> int:
        """The attempts and questions without an answer that its worker has logged."""
        own = (f"{self.id}: ", f"{self.group}.0: ")
        return sum(record.getMessage().startswith(own) for record in records)

    def says(self, text: str, records: Sequence[logging.LogRecord]) -> bool:
        """Whether the client of its worker has logged this text."""
        lines = [record.getMessage() for record in records]
        return any(line.startswith(f"{self.group}.0: ") and text in line for line in lines)


def begin_all(apps: Sequence[App]) -> None:
    with ThreadPoolExecutor() as pool:
        for begun in [pool.submit(app.begin) for app in apps]:
            begun.result()


@contextmanager
def ending(slots: Sequence[RunningSlot]) -> Iterator[None]:
    """Ends the slots after the block, whether they have failed or not; some may be added in it."""
    try:
        yield
    finally:
        for slot in slots:
            slot.slot.stop()
        for slot in slots:
            slot.join()


def client_of(app: App) -> str:
    """The client id of the consumer of a worker that runs in this process."""
    return f"{app.group}.0@{platform.node()}-{os.getpid()}"


def lower_limits(patch: pytest.MonkeyPatch) -> None:
    for module, limits in LIMITS.items():
        for name, value in limits.items():
            patch.setattr(module, name, value)


COUNT = 1_500
"""More than one batch."""

VALUES = [b"%d" % number for number in range(COUNT + 1)]
SETTINGS = {"request_timeout_ms": 3_000, "commit_interval_ms": 5_000}
"""Of the workers behind the proxy; the commit interval is longer than `begin`."""

KINDS = [
    ("exactly_once", "transaction"),
    ("exactly_once", "journal"),
    ("at_least_once", "transaction"),
    ("at_most_once", "transaction"),
]


def assert_outputs(apps: Sequence[App], cluster: Cluster) -> None:
    found = {app.id: cluster.values(app.target) for app in apps}
    least = KINDS.index(("at_least_once", "transaction"))  # its session ended before a commit: a run is repeated
    found[apps[least].id] = list(dict.fromkeys(found[apps[least].id]))
    kept = found[apps[KINDS.index(("at_most_once", "transaction"))].id]  # without the run that its client had queued
    lost = [at for at, value in enumerate(VALUES[:COUNT]) if value not in {*kept}]
    if lost:
        kept[lost[0] : lost[0]] = VALUES[lost[0] : lost[-1] + 1]
    assert found == {app.id: VALUES[:COUNT] for app in apps}


def test_worker_waits_for_a_broker_without_limit_and_loses_and_doubles_nothing(
    cluster: Cluster,
    proxy: Proxy,
    settings: MakeSettings,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    apps = [App(name, *kind, cluster) for kind in KINDS]
    behind = settings(bootstrap_servers=proxy.bootstrap_servers, **SETTINGS)
    slots = [RunningSlot(app.graph, behind, outputs_held=0) for app in apps]
    with ending(slots):
        begin_all(apps)
        lower_limits(monkeypatch)
        caplog.clear()
        caplog.set_level(logging.INFO)
        proxy.cut()
        for app in apps:
            app.goes_on.set()
        for app, slot in zip(apps, slots, strict=True):
            wait_until(
                lambda app=app, slot=slot: slot.failure or app.failures(caplog.records) > ATTEMPTS,  # type: ignore[misc]
                f"{app.id} repeats its attempts",
                pause=0.3,  # of thousands of log records
            )
            assert slot.failure is None, app.id
            assert [report.state for report in slot.reports] == [WorkerState.BROKER_AWAY], app.id
        proxy.lift()
        for app in apps:
            cluster.await_committed(app.group, app.source, {0: COUNT})
    assert [slot.failure for slot in slots] == [None] * len(apps)
    assert_outputs(apps, cluster)


@pytest.mark.long  # in the quick tier, test_membership.py
def test_worker_that_joins_again_after_its_session_is_not_its_own_replacement(
    cluster: Cluster, proxy: Proxy, settings: MakeSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group names it, with its new id, until all other members have joined again; only then it answers."""
    is_over = threading.Event()
    app = App(name, "exactly_once", "transaction", cluster)
    join_again = KafkaConsumer._join_again

    def join_once_it_is_over(consumer: KafkaConsumer) -> bool:
        if is_over.is_set():
            proxy.lift()
        return join_again(consumer)

    monkeypatch.setattr(KafkaConsumer, "_join_again", join_once_it_is_over)
    monkeypatch.setattr(attempts, "FAILURES_WARNED", 0)
    monkeypatch.setattr(attempts, "WAIT_MAX", 0.3)  # the question follows while the group waits for the other member
    behind = settings(bootstrap_servers=proxy.bootstrap_servers, **SETTINGS)
    slots = [RunningSlot(app.graph, behind, outputs_held=0)]
    with ending(slots):
        app.begin()
        proxy.cut()
        app.goes_on.set()
        slots.append(RunningSlot(app.graph, settings(bootstrap_servers=cluster.bootstrap_servers), 1))
        cluster.await_committed(app.group, app.source, {0: COUNT})
        is_over.set()
        wait_until(lambda: slots[0].failure or states(slots) == SHARED, "both are members")
        cluster.write(app.source, VALUES[COUNT:])
        cluster.await_committed(app.group, app.source, {0: COUNT + 1})
    assert [slot.failure for slot in slots] == [None, None]
    assert cluster.values(app.target) == VALUES


@pytest.mark.long
def test_worker_whose_join_was_sent_twice_outlives_the_member_that_nobody_is(
    cluster: Cluster, proxy: Proxy, settings: MakeSettings, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The second copy takes the membership from the first, whose answer the client gets: it is fenced by itself."""
    apps = [App(name, *kind, cluster) for kind in KINDS]
    behind = settings(bootstrap_servers=proxy.bootstrap_servers, **SETTINGS)
    caplog.set_level(logging.WARNING, "kstreams_py.kafka.consumer")
    slots = [RunningSlot(app.graph, behind, outputs_held=0) for app in apps]
    with ending(slots):
        begin_all(apps)
        proxy.cut()
        for app in apps:
            app.goes_on.set()
        for app in apps:
            # at most once, a worker whose commit may be late joins again before its client finds its membership lost
            lost = (f"{app.group}.0: the membership is lost", f"{app.id}: a commit of offsets may reach")
            wait_until(lambda lost=lost: any(m.startswith(lost) for m in caplog.messages), f"{app.id} is silent")  # type: ignore[misc]
            wait_until(lambda app=app: not cluster.members(app.group), f"{app.group} has no member")  # type: ignore[misc]
        doubled = [proxy.double("JoinGroup", client=client_of(app)) for app in apps]
        proxy.mend()
        for app, slot in zip(apps, slots, strict=True):
            unsure = partial(app.says, "may be this worker itself", caplog.records)
            wait_until(lambda slot=slot, unsure=unsure: slot.failure or unsure(), f"{app.id} is unsure")  # type: ignore[misc]
            assert slot.failure is None, app.id
        for app in apps:
            cluster.await_committed(app.group, app.source, {0: COUNT})
    assert [len(rule.caught) for rule in doubled] == [1] * len(apps)
    assert [slot.failure for slot in slots] == [None] * len(apps)
    assert_outputs(apps, cluster)


@pytest.mark.long
def test_worker_that_is_replaced_while_it_joins_ends_once_the_other_has_stayed(
    cluster: Cluster,
    proxy: Proxy,
    settings: MakeSettings,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its request for the assignment reaches the group after the join of the other, which keeps the slot."""
    monkeypatch.setattr(membership, "SESSIONS", 0.2)  # its own session must not end in this test
    apps = [App(name, *kind, cluster) for kind in KINDS]
    late = settings(bootstrap_servers=proxy.bootstrap_servers, session_timeout_ms=40_000)
    held = [proxy.hold("SyncGroup", client=client_of(app)) for app in apps]
    replaced = [RunningSlot(app.graph, late) for app in apps]
    slots = list(replaced)
    with ending(slots):
        for app, rule in zip(apps, held, strict=True):
            wait_until(lambda rule=rule: rule.caught, f"{app.id} joins")  # type: ignore[misc]
        others = [RunningSlot(app.graph, settings(bootstrap_servers=cluster.bootstrap_servers)) for app in apps]
        slots += others
        for other in others:
            wait_until(lambda other=other: other.failure or states([other]) == {WorkerState.RUNNING}, "it has the slot")  # type: ignore[misc]
        for rule in held:
            rule.release()
        for app, slot in zip(apps, replaced, strict=True):
            wait_until(lambda slot=slot: slot.failure, f"{app.id} ends as replaced")  # type: ignore[misc]
            assert type(slot.failure) is Replaced, slot.failure
        for app in apps:
            app.goes_on.set()
            cluster.write(app.source, VALUES[:COUNT])
            cluster.await_committed(app.group, app.source, {0: COUNT})
    assert [other.failure for other in others] == [None] * len(apps)
    assert [app.says("may be this worker itself", caplog.records) for app in apps] == [True] * len(apps)
    assert {app.id: cluster.values(app.target) for app in apps} == {app.id: VALUES[:COUNT] for app in apps}


SHARED = {WorkerState.RUNNING, WorkerState.SPARE}


def states(slots: Sequence[RunningSlot]) -> set[WorkerState]:
    return {report.state for slot in slots for report in slot.reports}
