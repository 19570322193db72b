"""Commit markers that are held back on their way to a broker: cuts and tables have a transaction whole, or not at all.

A proxy before the listener that brokers use among themselves holds the requests that write markers. Clients reach all
brokers directly, and the coordinator has logged its decision: the transaction is committed, and half visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.errors import BrokerUnavailable, UserMistake
from kstreams_py.records import TopicPartition
from kstreams_py.spark import cut, cutting
from kstreams_py.spark.cutting import Cutting
from kstreams_py.spark.pipelines import runner
from tests.system.harness import metadata
from tests.system.proxy import Proxy, Rule, proxied_replication
from tests.system.test_cuts import Rig, values
from tests.system.test_pipeline_faults import FIRST, WHOLE, Halves, cut_by_stable_offsets, read
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]  # of collect()

BROKERS: Final = 3
HELD: Final = BROKERS - 1
"""The broker that markers reach only through the proxy."""

OFFSETS: Final = "__consumer_offsets"


@pytest.fixture(scope="module")
def replicated() -> Iterator[tuple[EmbeddedKafka, Proxy]]:
    with proxied_replication(BROKERS) as (kafka, proxy):
        # the topic of the offsets is created for the first group
        consumer = ck.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "first"})
        wait_until(lambda: _answers(consumer), "the offsets of a group are known")
        consumer.close()
        yield kafka, proxy


def _answers(consumer: ck.Consumer) -> bool:
    try:
        consumer.committed([ck.TopicPartition("any", 0)], 10)
    except ck.KafkaException:
        return False
    return True


def _coordinator(admin: AdminClient, group: str) -> int:
    """The broker that leads the partition of the group's offsets, by the absolute value of Java's hash of its name."""
    digest = 0
    for character in group:
        digest = (31 * digest + ord(character)) & 0xFFFF_FFFF
    partitions = metadata(admin, OFFSETS).topics[OFFSETS].partitions
    return int(partitions[min(digest, 2**32 - digest) % len(partitions)].leader)


class Late:
    """A rig on three brokers, and what holds the markers of the broker behind the proxy."""

    def __init__(self, kafka: EmbeddedKafka, proxy: Proxy, name: str, late: tuple[str, ...]) -> None:
        """`late`: where the markers are late: on topic "b", on the offsets of the group, or on both."""
        self._proxy, self._late = proxy, late
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        self.group = f"{name}.split"
        number = 0
        while (_coordinator(admin, self.group) == HELD) is not ("offsets" in late):
            number += 1
            self.group = f"{name}.{number}.split"
        on_others = [0, 1, HELD]
        replicas = dict.fromkeys(("in", "a", "b", "c"), on_others)
        if "b" in late:
            replicas["b"] = [HELD, 0, 1]
        self.rig = Rig(kafka, self.group.removesuffix(".split"), replicas)

    def deliver_half(self) -> Rule:
        """Commits step 1, whose markers are written where they are not late. The rule holds the others."""
        rig = self.rig
        rule = self._proxy.hold("WriteTxnMarkers", times=None)
        producer = rig.producer()
        for to in ("a", "b"):
            rig.write(producer, to, "1", rig.headers("split", "in", at=1))
        rig.send(producer, "split", "in", offset=2)
        rig.commit(producer)
        rig.settle(a=4, b=2 if "b" in self._late else 4)
        if "offsets" not in self._late:
            rig.settle_offsets()
        wait_until(lambda: rule.caught, "a marker is held")
        return rule

    def is_pending(self) -> bool:
        """The group's offset has no marker yet."""
        read = [TopicPartition(self.rig.names["in"], 0)]
        return bool(self.rig.cluster.group_offsets(self.group, read).pending)


@pytest.fixture
def late(replicated: tuple[EmbeddedKafka, Proxy], topic_name: str, request: pytest.FixtureRequest) -> Iterator[Late]:
    made = Late(*replicated, topic_name, request.param)
    yield made
    replicated[1].lift()
    made.rig.close()


@pytest.mark.parametrize("late", [("b",), ("offsets",), ("b", "offsets")], indirect=True, ids="-".join)
def test_cut_waits_for_markers_that_are_held_back_where_stable_offsets_show_half(
    spark: SparkSession, late: Late, request: pytest.FixtureRequest
) -> None:
    rig, where = late.rig, request.node.callspec.params["late"]
    rig.deliver(0)
    first = rig.cut()
    rule = late.deliver_half()
    found = values(spark, rig, "a", "b"), late.is_pending()
    half = ["0"] if "b" in where else ["0", "1"]
    assert found == ({"a": ["0", "1"], "b": half}, "offsets" in where)
    why = r"\.b\[0\]: a transaction below offset 3 has been open for 0\.5 s \(the last stable offset is 2\)"
    if "offsets" in where:
        why = rf"group '{late.group}': the offsets of .*\.in\[0\] are pending in a transaction"
    with pytest.raises(UserMistake, match=why):
        cut(rig.graph, [rig.names["a"], rig.names["b"]], settings=rig.settings, timeout=0.5)
    second = rig.cut(rule.lift)
    rig.deliver(2)
    third = rig.cut()
    assert values(spark, rig, "a", "b", end=first) == {"a": ["0"], "b": ["0"]}
    assert values(spark, rig, "a", "b", start=first, end=second) == {"a": ["1"], "b": ["1"]}
    assert values(spark, rig, "a", "b", end=second) == {"a": ["0", "1"], "b": ["0", "1"]}
    assert values(spark, rig, "a", "b", start=second, end=third) == {"a": ["2"], "b": ["2"]}


@pytest.mark.parametrize("late", [("b",)], indirect=True, ids="-".join)
@pytest.mark.parametrize("mode", ["complete", "append"])
def test_table_has_the_whole_transaction_whose_marker_is_held_back_or_nothing_of_it(
    spark: SparkSession, late: Late, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    halves = Halves(late.rig, spark, mode, tmp_path)
    late.rig.deliver(0)
    halves.run()
    rule = late.deliver_half()
    seen: list[Any] = []

    def wait(_: float) -> None:
        if not seen:
            seen.append(read(halves.target))
            rule.lift()

    monkeypatch.setattr(cutting, "Cutting", partial(Cutting, sleep=wait))
    assert (halves.run(), seen) == (WHOLE, [FIRST])


@pytest.mark.parametrize("late", [("b",)], indirect=True, ids="-".join)
def test_mutation_that_cuts_by_last_stable_offsets_publishes_half_a_transaction(
    spark: SparkSession, late: Late, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "cut", cut_by_stable_offsets)
    halves = Halves(late.rig, spark, "append", tmp_path)
    late.rig.deliver(0)
    halves.run()
    rule = late.deliver_half()
    torn = halves.run()
    rule.lift()
    late.rig.settle(b=4)
    assert (torn, halves.run()) == ([("a", "0"), ("a", "1"), ("b", "0")], WHOLE)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("late", [("b",)], indirect=True, ids="-".join)
def test_runs_read_from_the_new_leader_while_the_one_before_is_frozen(
    spark: SparkSession, late: Late, replicated: tuple[EmbeddedKafka, Proxy], tmp_path: Path
) -> None:
    kafka, _ = replicated
    halves = Halves(late.rig, spark, "append", tmp_path)
    late.rig.deliver(0)
    assert halves.run() == FIRST
    late.rig.deliver(1)
    kafka.pause(HELD)

    def is_whole() -> bool:
        try:
            return halves.run() == WHOLE
        except BrokerUnavailable:  # Spark's clients know the frozen broker, too, and choose one by chance
            assert read(halves.target) == FIRST
            return False

    try:
        wait_until(is_whole, "a run has read from the new leader", 240)
    finally:
        kafka.resume(HELD)
