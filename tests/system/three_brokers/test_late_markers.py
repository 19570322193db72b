"""A cut while the marker of one transaction is late on one partition, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

import confluent_kafka as ck
import pytest
from pyspark.sql import SparkSession

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath, spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.spark import session
from tests.system.test_cuts import SECONDS, Rig, values
from tests.system.three_brokers.brokers import BROKERS

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

FOLLOWER: Final = 1
"""The broker that is frozen: it leads nothing of the transaction."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers, of which a frozen one stays in sync, so that what it has not copied stays invisible.

    The coordinators have no followers, which they would wait for.
    """
    settings = {
        "broker.session.timeout.ms": "120000",
        "replica.lag.time.max.ms": "120000",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "offsets.topic.replication.factor": "1",
    }
    with EmbeddedKafka(kafka_classpath(), find_java(), brokers=BROKERS, settings=settings) as found:
        yield found


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    found = session("late_markers", jars=spark_jars(), java=find_java(for_spark=True), **{"spark.log.level": "ERROR"})
    yield found
    found.stop()


def hash_in_java(text: str) -> int:
    """String.hashCode() without its sign, as a coordinator's partition is chosen."""
    found = 0
    for character in text.encode():
        found = (31 * found + character) & 0xFFFFFFFF
    return found & 0x7FFFFFFF


def choose_name(kafka: EmbeddedKafka) -> str:
    """The name of a graph whose coordinators are on other brokers than FOLLOWER."""
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    first = ck.Producer({**servers, "transactional.id": "first"})
    first.init_transactions(SECONDS)
    consumer = ck.Consumer({**servers, "group.id": "first"})
    consumer.committed([ck.TopicPartition("none", 0)], SECONDS)
    consumer.close()

    def leads(topic: str, name: str) -> bool:
        partitions = first.list_topics(topic, SECONDS).topics[topic].partitions
        return bool(partitions[hash_in_java(name) % len(partitions)].leader == FOLLOWER)

    return next(
        name
        for name in (f"late{number}" for number in range(1_000))
        if not any(leads("__transaction_state", f"{name}.{number}") for number in (1, 2))
        and not any(leads("__consumer_offsets", f"{name}.{processor}") for processor in ("split", "pair"))
    )


def test_cut_has_the_whole_transaction_whose_marker_is_late_on_one_partition(
    spark: SparkSession, kafka: EmbeddedKafka
) -> None:
    replicas = {"in": [0], "a": [0], "b": [2, FOLLOWER], "c": [0]}
    with closing(Rig(kafka, choose_name(kafka), replicas)) as rig:
        rig.deliver(0)
        rig.settle(a=2, b=2)
        late = rig.producer()
        for to in ("a", "b"):
            rig.write(late, to, "1", rig.headers("split", "in", at=1))
        rig.send(late, "split", "in", offset=2)
        kafka.pause(FOLLOWER)
        rig.commit(late)
        rig.settle(a=4)
        torn = values(spark, rig, "a", "b")
        waits: list[str] = []

        def resume() -> None:
            kafka.resume(FOLLOWER)
            waits.append("for the marker")

        made = rig.cut(resume)
        assert torn == {"a": ["0", "1"], "b": ["0"]}
        assert waits == ["for the marker"]
        assert values(spark, rig, "a", "b", end=made) == {"a": ["0", "1"], "b": ["0", "1"]}
