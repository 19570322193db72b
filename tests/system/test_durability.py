"""The durability levels on three brokers: what was acknowledged outlives brokers, as far as its level says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.delivery import PROMISES, Durability, Guarantee, Output
from kstreams_py.errors import Abortable, BrokerUnavailable, LogError
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.record import Positions, TopicPartition
from kstreams_py.testing import Expected, Kind
from tests.system.harness import running, wait_until
from tests.system.recorder import Recorder, three_brokers

BROKERS = 3


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    with three_brokers() as kafka:
        yield kafka


@pytest.fixture
def recorder(brokers: EmbeddedKafka) -> Recorder:
    return Recorder(brokers.bootstrap_servers)


@pytest.fixture
def place(brokers: EmbeddedKafka, tmp_path: Path) -> Callable[..., Settings]:
    def make(**changed: int) -> Settings:
        return Settings.load(
            bootstrap_servers=brokers.bootstrap_servers, schema_directory=tmp_path / "schemas", **changed
        )

    return make


Place = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key and value of a record."""


def create(recorder: Recorder, topic: str, *replicas: list[int], min_in_sync: int = 1) -> None:
    """A topic whose partitions have their replicas on these brokers, the first of them its leader."""
    config = {"min.insync.replicas": str(min_in_sync)}
    new = NewTopic(topic, len(replicas), replica_assignment=[*replicas], config=config)
    recorder.admin.create_topics([new])[topic].result()
    recorder.cluster.partitions(topic)


@contextmanager
def without(brokers: EmbeddedKafka, broker: int, recorder: Recorder) -> Iterator[None]:
    """One broker is killed (SIGKILL) for the length of the block; after it, all replicas are in sync again."""
    recorder.history.fault(f"broker {broker} is killed")
    brokers.kill(broker)
    try:
        yield
    finally:
        brokers.restart(broker)
        recorder.history.fault(f"broker {broker} is there again")
        recorder.await_in_sync()


def leaders(recorder: Recorder, topic: str) -> dict[int, int]:
    """The leader of each partition, -1 where there is none now."""
    return {p.id: p.leader for p in recorder.admin.list_topics(topic, timeout=10).topics[topic].partitions.values()}


def in_sync(recorder: Recorder, topic: str) -> list[int]:
    """The in-sync replicas of partition 0."""
    return sorted(recorder.admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs)


def content(recorder: Recorder, topic: str) -> list[Place]:
    return [(m.partition(), m.offset(), m.key(), m.value()) for m in recorder.cluster.read(topic)]


def test_committed_outlives_all_but_one_in_sync_replica_and_is_the_same_under_each_leader(
    brokers: EmbeddedKafka, recorder: Recorder, place: Callable[..., Settings], name: str
) -> None:
    """Each broker in turn is killed once positions are committed: what they stand for was acknowledged by both.

    Two replicas, because of three brokers no quorum would outlive the second; and one must do, because below
    min.insync.replicas Kafka shows readers nothing new.
    """
    source, targets = f"{name}.in", [f"{name}.once", f"{name}.at-least-once"]
    create(recorder, source, [0, 1, 2], min_in_sync=2)
    for target in targets:
        create(recorder, target, [0, 1], [1, 2], [2, 0])
    graph = ks.Graph(name, durability=Durability.COMMITTED)
    read = graph.topic(source)
    for target, guarantee in zip(targets, (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE), strict=True):
        graph.map(read, to=graph.topic(target), id=guarantee, guarantee=guarantee)(lambda value: value)
    written: set[bytes] = set()
    before: dict[str, list[Place]] = {target: [] for target in targets}
    led: set[tuple[int, int]] = set()
    for broker in range(BROKERS):
        values = [b"%d" % i for i in range(len(written), len(written) + 60)]
        with running(graph, place()):
            recorder.write(source, values)
            for processor in graph.processors:
                recorder.await_done(f"{name}.{processor.id}", source)
        written |= {*values}
        with without(brokers, broker, recorder):
            for target in targets:
                wait_until(lambda: not {-1, broker} & {*leaders(recorder, target).values()}, "other leaders")  # noqa: B023
                recorder.await_no_open_transaction(target)
                led |= {*leaders(recorder, target).items()}
                found = content(recorder, target)
                assert {value for *_, value in found} == written
                assert [each for each in found if each in {*before[target]}] == before[target], "at the same offsets"
                before[target] = found
        assert {target: content(recorder, target) for target in targets} == before
    assert len(led) == 2 * BROKERS, "each replica has led its partition"
    recorder.await_equal_replicas(brokers, source, *targets)
    anomalies = recorder.anomalies(*(Expected(source, to=target) for target in targets))
    assert [found for found in anomalies if found.kind is not Kind.DUPLICATE] == []
    assert len(before[targets[0]]) == len(written), "once under exactly_once"


def test_ends_of_partitions_whose_leader_has_died_are_asked_of_its_successor(
    brokers: EmbeddedKafka, recorder: Recorder, place: Callable[..., Settings], name: str
) -> None:
    create(recorder, name, [0, 1], [1, 2], [2, 0])
    for partition in range(3):
        recorder.write(name, [b"value"] * (partition + 1), partition=partition)
    log = KafkaLog(place())
    expected = {TopicPartition(name, partition): partition + 1 for partition in range(3)}
    assert log.ends([*expected]) == expected
    told: list[Positions] = []

    def tell() -> bool:
        with suppress(LogError, BrokerUnavailable):
            told.append(log.ends([*expected]))
        return bool(told)

    with without(brokers, 1, recorder):
        wait_until(tell, "the ends are known again")
    assert told == [expected]


def output(topic: str, value: bytes) -> list[Output]:
    return [(topic, value, None, 0, None, None, 0, None)]


def test_levels_with_too_few_replicas_committed_refuses_leader_accepts_none_does_not_ask(
    brokers: EmbeddedKafka, recorder: Recorder, place: Callable[..., Settings], name: str
) -> None:
    """Of two replicas one is down, and of another partition the only one: what a level promises, and no more."""
    both, one = f"{name}.both", f"{name}.one"
    create(recorder, both, [0, 1], min_in_sync=2)
    create(recorder, one, [1])
    log = KafkaLog(place())
    unrepeated = PROMISES[Guarantee.AT_MOST_ONCE]  # nothing is sent twice: a refusal is told at once
    committed, leader, none = [
        log.producer(unrepeated, durability, f"{name}.{durability}") for durability in Durability
    ]
    none.write(output(one, b"sent"))
    none.flush()
    with without(brokers, 1, recorder):
        none.write(output(one, b"to nobody"))  # returns, and nobody is there
        wait_until(lambda: in_sync(recorder, both) == [0], "one replica is in sync")
        committed.write(output(both, b"refused"))
        with pytest.raises(Abortable, match="Not enough in-sync replicas"):
            committed.flush()
        leader.write(output(both, b"accepted"))
        leader.flush()
        for producer in (committed, leader, none):
            producer.drop()
    assert [value for *_, value in content(recorder, both)] == [b"accepted"]
    assert [value for *_, value in content(recorder, one)] in ([], [b"sent"])
    recorder.await_equal_replicas(brokers, both)
