"""Exactly once under faults: frozen, killed, joining and idle workers, broker failures, hanging transactions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from tests.system.app import MakeApp, app_factory
from tests.system.command import list_children
from tests.system.harness import await_joined, list_transactional_ids, wait_until
from tests.system.recorder import Record, Recorder

MANY = 1_200
"""More records than a transaction holds back: some outputs are written before the last record is processed."""


@pytest.fixture
def new_app(tmp_path: Path, name: str, settings: Callable[..., Settings]) -> Iterator[MakeApp]:
    with app_factory(tmp_path, name, settings) as make:
        yield make


# Frozen workers.


def test_exactly_once_worker_frozen_past_its_session_and_replaced_writes_nothing(new_app: MakeApp) -> None:
    """A real zombie: another slot had its partitions, a third worker has its membership; it has heard of neither."""
    app = new_app(partitions=2, session_timeout_ms=2_500, transaction_timeout_ms=2_000, commit_interval_ms=1_900)
    with app.recorder.reading(app.target) as reader:
        app.write(MANY, 0, b"wait")
        frozen = app.start(0)
        app.freeze_in_mid_transaction(frozen.send)
        other = app.start(1)
        wait_until(lambda: f"holds {app.source}[0], {app.source}[1]" in other.text, "its session has expired")
        app.write(100, 0)
        app.write(100, 1)
        app.recorder.await_done(app.group, app.source)
        replacement = app.start(0)
        wait_until(lambda: f"holds {app.source}" in replacement.text, "the replacement has the membership")
        app.send(frozen, signal.SIGCONT)
        assert frozen.wait() == 4, frozen.text
        assert "another worker has taken the slot" in frozen.text
        app.write(100, 0)
        app.write(100, 1)
        app.drain(other, replacement)
        reader.finish()
    app.verify()


@pytest.mark.long
def test_exactly_once_worker_frozen_past_its_session_and_not_replaced_joins_again(new_app: MakeApp) -> None:
    """No other worker has its membership when it is resumed; it joins by itself or is restarted by its supervisor."""
    app = new_app(partitions=2, session_timeout_ms=2_500, transaction_timeout_ms=2_000, commit_interval_ms=1_900)
    app.write(MANY, 0, b"wait")
    with app.recorder.reading(app.target) as reader, app.supervised() as supervisor:
        app.await_waiting()
        pid = list_children(supervisor.process.pid)[0]  # the second child is on standby
        app.freeze_in_mid_transaction(lambda signum: os.kill(pid, signum))
        other = app.start(1)
        wait_until(lambda: f"holds {app.source}[0], {app.source}[1]" in other.text, "its session has expired")
        app.write(100, 0)
        app.recorder.await_done(app.group, app.source)
        app.recorder.history.fault("SIGCONT to the frozen worker")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: supervisor.text.count("copy: holds") > 1, "it has partitions again")
        app.write(100, 0)
        app.write(100, 1)
        app.drain(other)
        supervisor.send(signal.SIGTERM)
        assert supervisor.wait() == 0, supervisor.text
        reader.finish()
    app.verify()


@pytest.mark.long
def test_exactly_once_worker_frozen_past_its_transaction_timeout_begins_a_new_one(new_app: MakeApp) -> None:
    """The broker has aborted the transaction, and the worker still has its membership."""
    app = new_app(session_timeout_ms=60_000, transaction_timeout_ms=2_000, commit_interval_ms=1_900)
    with app.recorder.reading(app.target) as reader:
        app.write(MANY, 0, b"wait")
        worker = app.start(0)
        app.freeze_in_mid_transaction(worker.send)
        app.recorder.await_no_open_transaction(app.target)
        app.send(worker, signal.SIGCONT)
        app.write(50, 0)
        app.drain(worker)
        reader.finish()
    assert "the broker timed the transaction out after" in worker.text
    app.verify()


# Workers that join and leave.


@pytest.mark.long
def test_exactly_once_workers_that_join_and_leave_deliver_once_and_in_order_per_key(new_app: MakeApp) -> None:
    app = new_app(partitions=6, session_timeout_ms=3_000, transaction_timeout_ms=2_500)

    def record(number: int) -> Record:
        return app.source, b"%d" % number, b"%d" % (number % 40), -1

    with app.recorder.reading(app.target) as reader:
        with app.recorder.feeding(record, at_once=1_000, per_second=400):
            workers = [app.start(0)]
            reader.await_more(300)
            workers += [app.start(1), app.start(2)]
            await_joined("copy", *workers)
            reader.await_more(300)
            app.send(workers[1], signal.SIGTERM)
            app.send(workers[2], signal.SIGKILL)
            assert [workers[1].wait(), workers[2].wait()] == [0, -signal.SIGKILL]
            everything = ", ".join(f"{app.source}[{p}]" for p in range(6))
            wait_until(lambda: workers[0].text.count(f"copy: holds {everything}\n") == 2, "one has all of them again")
            workers[1:] = [app.start(1), app.start(3)]
            await_joined("copy", *workers)
            reader.await_more(300)
        app.drain(*workers)
        reader.finish()
    app.verify()


# A broker that expires ids, and that fails.


@pytest.fixture
def new_forgetful_app(tmp_path: Path, name: str, own_broker: EmbeddedKafka) -> Iterator[MakeApp]:
    """Apps on a broker that expires transactional ids and producers after two seconds."""
    load = partial(Settings.load, bootstrap_servers=own_broker.bootstrap_servers, schema_directory=tmp_path / "schemas")
    with app_factory(tmp_path, name, load) as make:
        yield make


@pytest.mark.long
def test_exactly_once_workers_whose_transactional_ids_expired_deliver_once(
    new_forgetful_app: MakeApp, name: str, own_broker: EmbeddedKafka
) -> None:
    app = new_forgetful_app(partitions=2)
    workers = [app.start(0), app.start(1)]
    await_joined("copy", *workers)
    app.write(50, 0)
    app.write(50, 1)
    app.recorder.await_done(app.group, app.source)
    servers = own_broker.bootstrap_servers
    wait_until(lambda: not any(name in found for found in list_transactional_ids(servers)), "the ids have expired")
    app.write(50, 0)
    app.write(50, 1)
    app.drain(*workers)
    app.verify()


@pytest.mark.long
def test_exactly_once_coordinator_down_past_the_session_replaces_no_worker(
    new_forgetful_app: MakeApp, name: str, own_broker: EmbeddedKafka
) -> None:
    """By then the client has dropped its member id, and the restarted coordinator refuses its heartbeats."""
    app = new_forgetful_app(session_timeout_ms=6_000, transaction_timeout_ms=6_000)
    app.write(100, 0, b"wait")
    worker = app.start(0)
    app.await_waiting()
    # the worker's first commit has returned before its markers are written: those of a broker that dies may be skipped
    app.recorder.await_no_open_transaction(f"__ks.{name}.beginnings", "__consumer_offsets", app.target)
    app.recorder.history.fault("the broker is killed")
    own_broker.kill(0)
    own_broker.restart(0)  # ready once its old session with the controller has expired: after the worker's session
    app.recorder.history.fault("the broker is up again")
    time.sleep(3)  # no client shows its heartbeats: longer than their interval, shorter than the session
    app.gate.touch()
    app.recorder.await_done(app.group, app.source)
    app.write(100, 0)
    app.drain(worker)
    app.verify()


# Hanging transactions of another producer.


@contextmanager
def hanging_transaction(recorder: Recorder, topic: str, partition: int) -> Iterator[int]:
    """Another producer's transaction, open on a partition during the block; gives the offset of its record."""
    offsets: list[int] = []
    configuration = {**recorder.common, "transactional.id": f"stranger on {topic}", "transaction.timeout.ms": 300_000}
    producer = ck.Producer(configuration)
    producer.init_transactions(30)
    transaction = recorder.history.begun("stranger")
    delivered = recorder.history.on_delivery(transaction, "stranger")

    def on_delivery(error: ck.KafkaError | None, message: Any) -> None:
        delivered(error, message)
        offsets.append(message.offset())

    producer.begin_transaction()
    producer.produce(topic, b"not to be read", b"stranger", partition=partition, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    recorder.history.fault(f"a transaction hangs on {topic}[{partition}] at {offsets[0]}")
    yield offsets[0]
    ck.Producer(configuration).init_transactions(30)  # which aborts the transaction
    recorder.await_no_open_transaction(topic)
    recorder.history.aborted(transaction)
    producer.purge()


def test_exactly_once_hanging_transaction_on_an_output_delays_only_readers(new_app: MakeApp) -> None:
    """The processor goes on writing and committing; readers get all outputs once the hanging one has ended."""
    app = new_app(partitions=2)
    recorder = app.recorder
    worker = app.start(0)
    with recorder.reading(app.target) as reader:
        for partition in (0, 1):
            app.write(50, partition)
        recorder.await_done(app.group, app.source)
        written = max(recorder.ends(app.target).items(), key=lambda end: end[1])[0]
        with hanging_transaction(recorder, app.target, written) as at:
            for partition in (0, 1):
                app.write(50, partition)
            recorder.await_done(app.group, app.source)
            assert recorder.ends(app.target)[written] == at, "the outputs are committed, and not readable yet"
            assert recorder.ends(app.target, "read_uncommitted")[written] > at + 50
        app.write(50, 0)
        app.drain(worker)
        reader.finish()
    app.verify()


def test_exactly_once_hanging_transaction_on_an_input_blocks_only_that_partition(new_app: MakeApp) -> None:
    """Records behind the open transaction are read only after it has ended."""
    app = new_app(partitions=2)
    recorder = app.recorder
    worker = app.start(0)
    with recorder.reading(app.target) as reader:
        for partition in (0, 1):
            app.write(50, partition)
        recorder.await_done(app.group, app.source)
        with hanging_transaction(recorder, app.source, 0) as at:
            for partition in (0, 1):
                app.write(100, partition)
            # no partition has an offset while the coordinator does not answer
            wait_until(
                lambda: recorder.committed(app.group, app.source) == {0: at, 1: 150}, "the other partition goes on"
            )
            assert recorder.ends(app.source)[0] == at
        app.drain(worker)
        reader.finish()
    app.verify()
