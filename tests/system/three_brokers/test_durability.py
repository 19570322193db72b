"""The durability levels on three brokers: which acknowledged records survive the failure of a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.nodes import HOST
from kstreams_py.errors import BrokerUnavailable, ClientError, Retriable
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.contracts import Output
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.testing import Expected
from tests.clusters import open_cluster
from tests.system.harness import metadata, running, wait_until
from tests.system.recorder import Recorder
from tests.system.three_brokers.brokers import BROKERS, stop


@pytest.fixture
def recorder(brokers: EmbeddedKafka) -> Recorder:
    return Recorder(brokers.bootstrap_servers)


@pytest.fixture
def new_settings(brokers: EmbeddedKafka, tmp_path: Path) -> Callable[..., Settings]:
    def make(*, request_timeout_ms: int | None = None) -> Settings:
        return Settings.load(
            bootstrap_servers=brokers.bootstrap_servers,
            schema_directory=tmp_path / "schemas",
            request_timeout_ms=request_timeout_ms,
        )

    return make


Row = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key and value of a record."""


def create(recorder: Recorder, topic: str, *replicas: list[int], min_in_sync: int = 1) -> None:
    """Creates a topic whose partitions have their replicas on these brokers, the first as leader."""
    config = {"min.insync.replicas": str(min_in_sync)}
    new = NewTopic(topic, len(replicas), replica_assignment=[*replicas], config=config)
    recorder.admin.create_topics([new])[topic].result()
    recorder.cluster.partitions(topic)


@contextmanager
def without(brokers: EmbeddedKafka, broker: int, recorder: Recorder) -> Iterator[None]:
    """Kills one broker (SIGKILL) for the length of the block, then waits until all replicas are in sync again."""
    recorder.history.fault(f"broker {broker} is killed")
    brokers.kill(broker)
    try:
        yield
    finally:
        brokers.restart(broker)
        recorder.history.fault(f"broker {broker} is up again")
        recorder.await_in_sync()


def leaders(recorder: Recorder, topic: str) -> dict[int, int]:
    """The leader of each partition, or -1."""
    return {p.id: p.leader for p in metadata(recorder.admin, topic).topics[topic].partitions.values()}


def await_other_leaders(recorder: Recorder, topic: str, broker: int) -> None:
    wait_until(lambda: not {-1, broker} & {*leaders(recorder, topic).values()}, "other leaders")


def in_sync(recorder: Recorder, topic: str) -> list[int]:
    """The in-sync replicas of partition 0."""
    return sorted(metadata(recorder.admin, topic).topics[topic].partitions[0].isrs)


def coordinator(recorder: Recorder, group: str) -> int | None:
    """The broker that coordinates a group; None while it is unknown."""
    client = AdminClient({"bootstrap.servers": recorder.cluster.bootstrap_servers})
    with suppress(KafkaException, TimeoutError):
        described = client.describe_consumer_groups([group], request_timeout=300)[group].result(2)
        return int(described.coordinator.id)
    return None


def await_coordinator(recorder: Recorder, group: str, *others: int) -> int:
    """The broker that coordinates a group, once it is known and none of the others."""
    found: list[int | None] = []

    def is_known() -> bool:
        found.append(coordinator(recorder, group))
        return found[-1] not in (None, *others)

    wait_until(is_known, f"the coordinator of {group}")
    assert found[-1] is not None
    return found[-1]


def content(recorder: Recorder, topic: str) -> list[Row]:
    return [(m.partition(), m.offset(), m.key(), m.value()) for m in recorder.cluster.read(topic)]


@pytest.mark.long
def test_cluster_accepts_records_while_a_broker_is_down_and_brings_it_back_in_sync(
    brokers: EmbeddedKafka, recorder: Recorder, name: str
) -> None:
    create(recorder, name, [0, 1, 2], min_in_sync=2)
    recorder.write(name, [b"all up"])
    with without(brokers, 2, recorder):
        recorder.write(name, [b"one killed"])
    stop(brokers, 0)
    recorder.write(name, [b"one stopped"])
    brokers.restart(0)
    recorder.await_in_sync()
    assert recorder.cluster.values(name) == [b"all up", b"one killed", b"one stopped"]


@pytest.mark.long
def test_durability_committed_survives_each_leader_in_turn_with_the_same_records(
    brokers: EmbeddedKafka, recorder: Recorder, new_settings: Callable[..., Settings], name: str
) -> None:
    """Each broker in turn is killed under load: the new leader has all records committed before.

    Topics have two replicas: three brokers keep no quorum without two of them. min.insync.replicas is 1: below it,
    Kafka shows readers nothing new.
    """
    source, targets = f"{name}.in", [f"{name}.once", f"{name}.at-least-once"]
    create(recorder, source, [0, 1, 2], min_in_sync=2)
    for target in targets:
        create(recorder, target, [0, 1], [1, 2], [2, 0])
    graph = ks.Graph(name, durability=Durability.COMMITTED)
    read = graph.topic(source)
    for target, guarantee in zip(targets, (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE), strict=True):
        graph.map(read, to=graph.topic(target), id=guarantee, guarantee=guarantee)(lambda value: value)
    led: set[tuple[int, int]] = set()
    with recorder.reading(*targets) as reader:
        with running(graph, new_settings()):
            with recorder.feeding(lambda i: (source, b"%d" % i, None, 0), at_once=60, per_second=100):
                for broker in range(BROKERS):
                    reader.await_more(100)
                    before = {target: content(recorder, target) for target in targets}
                    with without(brokers, broker, recorder):
                        for target in targets:
                            await_other_leaders(recorder, target, broker)
                            led |= {*leaders(recorder, target).items()}
                            found = content(recorder, target)
                            assert [each for each in found if each in {*before[target]}] == before[target], (
                                "same offsets"
                            )
                        reader.await_more(30)
            for processor in graph.processors:
                recorder.await_done(f"{name}.{processor.id}", source)
        recorder.await_no_open_transaction(*targets)
        reader.finish()
    assert len(led) == 2 * BROKERS, "each replica has led its partition"
    recorder.await_equal_replicas(brokers, source, *targets)
    recorder.verify(
        Expected(source, to=targets[0], guarantee=Guarantee.EXACTLY_ONCE),
        Expected(source, to=targets[1], guarantee=Guarantee.AT_LEAST_ONCE),
    )


@pytest.mark.long
def test_holder_of_a_membership_is_found_after_its_coordinator_moved_and_died(
    brokers: EmbeddedKafka, recorder: Recorder, new_settings: Callable[..., Settings], name: str
) -> None:
    """A client that has found a coordinator keeps asking that broker, so it could not see members after a move."""
    create(recorder, name, [0, 1, 2], min_in_sync=2)
    log, group, member = open_cluster(new_settings()), f"{name}.group", f"{name}.group.0"
    consumer = log.consumer(group, member)
    assigned: list[set[TopicPartition]] = []
    consumer.subscribe([name], assigned.append, lambda: None, lambda: None)
    wait_until(lambda: not consumer.consume(1, 0.1) and assigned != [], "the member has its partition")
    first = await_coordinator(recorder, group)
    holder = log._holder(group, member)
    assert holder is not None
    assert holder.coordinator == first
    found: list[object] = []

    def is_found() -> bool:
        with suppress(ClientError, BrokerUnavailable):
            found.append(log._holder(group, member))
        return bool(found)

    with without(brokers, first, recorder):
        await_coordinator(recorder, group, first)
    second = await_coordinator(recorder, group)
    assert log._holder(group, member) == holder._replace(coordinator=second), "the first coordinator was asked before"
    with without(brokers, second, recorder):
        wait_until(is_found, "the next coordinator answers")
        third = await_coordinator(recorder, group)
    assert found == [holder._replace(coordinator=third)]
    consumer.close()


def output(topic: str, value: bytes) -> list[Output]:
    return [(topic, value, None, 0, None, None, 0, None)]


# in the quick tier, test_kafka_cluster.py looks for new leaders, and test_session_table.py has too few replicas
@pytest.mark.long
def test_ends_are_read_from_new_leaders_and_committed_waits_while_a_broker_is_down(
    brokers: EmbeddedKafka, recorder: Recorder, new_settings: Callable[..., Settings], name: str
) -> None:
    """With too few replicas, durability `leader` accepts."""
    led, waiting = f"{name}.led", f"{name}.waiting"
    create(recorder, led, [0, 1], [1, 2], [2, 0])
    create(recorder, waiting, [0, 1], min_in_sync=2)
    for partition in range(3):
        recorder.write(led, [b"value"] * (partition + 1), partition=partition)
    log = open_cluster(new_settings(request_timeout_ms=3_000))
    expected = {TopicPartition(led, partition): partition + 1 for partition in range(3)}
    assert log.ends([*expected]) == expected
    committed, leader = [
        log.producer(producer_mode(Guarantee.AT_LEAST_ONCE, durability), f"{name}.{durability}")
        for durability in (Durability.COMMITTED, Durability.LEADER)
    ]
    found: list[Positions] = []

    def are_known() -> bool:
        with suppress(ClientError, BrokerUnavailable):
            found.append(log.ends([*expected]))
        return bool(found)

    with without(brokers, 1, recorder):
        wait_until(are_known, "the ends are known again")
        wait_until(lambda: in_sync(recorder, waiting) == [0], "one replica is in sync")
        leader.write(output(waiting, b"accepted"))
        leader.flush()
        committed.write(output(waiting, b"waits"))
        with pytest.raises(Retriable, match="1 records wait for their acknowledgement"):
            committed.flush()
    committed.flush()
    for producer in (committed, leader):
        producer.drop()
    assert found == [expected]
    assert [value for *_, value in content(recorder, waiting)] == [b"accepted", b"waits"]
    recorder.await_equal_replicas(brokers, waiting)


def has_unread_answer(brokers: EmbeddedKafka, broker: int, *, of: int) -> bool:
    """Whether a frozen broker has unread bytes of another one: only Fetch keeps a request waiting between them."""
    pid, port = brokers._running[broker].pid, int(brokers.bootstrap_servers.split(",")[of].rpartition(":")[2])
    inodes = set[str]()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # the descriptor was closed meanwhile
            inodes.add(entry.readlink().name.removeprefix("socket:[").removesuffix("]"))
    tables = (Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()]
    # remote address, send and receive queue, inode: proc(5)
    return any(
        row[9] in inodes and row[2].endswith(f":{port:04X}") and not row[4].endswith(":00000000") for row in rows
    )


def freeze_behind_an_answer(brokers: EmbeddedKafka, broker: int, *, of: int) -> bool:
    """Freezes a broker that waits for a Fetch of another one, which answers after `replica.fetch.wait.max.ms` (0.5 s).

    Lets it go on if there is no answer soon: it was frozen between two of them.
    """
    brokers.pause(broker)
    with suppress(AssertionError):
        wait_until(lambda: has_unread_answer(brokers, broker, of=of), "an answer", 3.0)
        return True
    brokers.resume(broker)
    return False


class WithOneController(EmbeddedKafka):
    """Brokers of which the last is the only controller: without the others, it still makes leaders."""

    def _format(self, cluster_id: str) -> None:
        *others, last = self._nodes
        for node in self._nodes:
            lines = [f"controller.quorum.voters={last.index}@{HOST}:{last.controller_port}"]
            if node in others:
                lines += ["process.roles=broker", f"listeners=BROKER://{HOST}:{node.port}"]
            # of a name that is there twice, the last value counts
            with (node.directory / "server.properties").open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
        super()._format(cluster_id)


@pytest.fixture
def pair() -> Iterator[EmbeddedKafka]:
    """Two brokers, of which the first may be killed: a third would cost 8 s of CPU.

    The controller is frozen, too: past the sessions of the brokers, it may fence all of them.
    """
    with WithOneController(brokers=2, settings={"broker.session.timeout.ms": "30000"}) as kafka:
        yield kafka


def test_durability_only_committed_survives_a_leader_whose_follower_had_not_fetched(
    pair: EmbeddedKafka, tmp_path: Path, name: str
) -> None:
    """The follower is frozen, the leader accepts records and is killed, the follower is resumed and leads."""
    recorder, topics = Recorder(pair.bootstrap_servers), {each: f"{name}.{each}" for each in Durability}
    cluster = open_cluster(Settings.load(bootstrap_servers=pair.bootstrap_servers, schema_directory=tmp_path))
    producers = {}
    for durability, topic in topics.items():
        create(recorder, topic, [0, 1], min_in_sync=2)
        producers[durability] = cluster.producer(producer_mode(Guarantee.AT_LEAST_ONCE, durability), topic)
        producers[durability].write(output(topic, b"both have it"))
        producers[durability].flush()
    wait_until(lambda: all(len(content(recorder, topic)) == 1 for topic in topics.values()), "both replicas have them")
    try:
        wait_until(lambda: freeze_behind_an_answer(pair, 1, of=0), "the leader has answered the last Fetch")
        for durability, producer in producers.items():
            producer.write(output(topics[durability], b"not fetched"))
            if durability is not Durability.COMMITTED:
                producer.flush()  # acknowledged by the leader alone, or not at all
        with without(pair, 0, recorder):
            pair.resume(1)
            for topic in topics.values():
                wait_until(lambda topic=topic: leaders(recorder, topic) == {0: 1}, "the follower leads", pause=0.3)  # type: ignore[misc]
    finally:
        pair.resume(1)
    for durability, producer in producers.items():
        producer.flush()
        producer.drop()
        kept = [b"not fetched"] if durability is Durability.COMMITTED else []
        assert [value for *_, value in content(recorder, topics[durability])] == [b"both have it", *kept], durability
    recorder.await_equal_replicas(pair, *topics.values())
