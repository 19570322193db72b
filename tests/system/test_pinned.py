"""Committed offsets that a hanging transaction pins (docs/exactly-once.md): cause, transaction, remedy."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import Retriable
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.groups import Pending
from kstreams_py.kafka.transaction_admin import TransactionAdmin
from kstreams_py.records import TopicPartition
from tests.clusters import open_cluster
from tests.system.hanging import Work, leave_hanging
from tests.system.harness import Cluster


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedKafka]:
    """A broker that accepts records of transactions that their coordinator does not know."""
    unverified = {"transaction.partition.verification.enable": "false"}
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=unverified) as kafka:
        yield kafka


def test_committed_offsets_of_a_group_are_in_the_partition_of_its_hash(own_broker: EmbeddedKafka, name: str) -> None:
    servers = own_broker.bootstrap_servers
    cluster, groups = Cluster(servers), GroupAdmin(Settings(bootstrap_servers=servers))
    for number, group in enumerate(("polygenelubricants", "polygenelubricantt", name)):
        work = Work(cluster, f"{name}.{number}", group)
        producer = work.producer()
        work.begin(producer, b"any", 0)
        (found,) = groups.open_transactions(groups.positions_partition(group))
        assert (found.transactional_id, found.hangs) == (work.id, False)
        assert abs(found.written_at - time.time()) < 60
        producer.abort_transaction(30)
        cluster.await_markers("__consumer_offsets")  # the next group may be in the same partition


def test_hanging_transaction_pins_offsets_until_every_partition_has_its_marker(
    own_broker: EmbeddedKafka, name: str
) -> None:
    """If only the offsets get a marker, the group continues, and its next commit commits the hanging outputs too.

    The next transaction of the same transactional id has the same producer id: its marker ends the hanging one.
    """
    servers = own_broker.bootstrap_servers
    cluster = Cluster(servers)
    kafka = open_cluster(Settings(bootstrap_servers=servers))
    impatient = open_cluster(Settings(bootstrap_servers=servers, request_timeout_ms=1_000))
    groups = GroupAdmin(Settings(bootstrap_servers=servers))
    works = [Work(cluster, f"{name}.{n}") for n in range(3)]  # will be aborted, committed, aborted in the offsets only
    for work in works:
        leave_hanging(servers, work, b"hanging", 1)

    for work in works:
        found = kafka.pending(work.group, [work.input])
        assert (found.partitions, found.unknown) == ((work.input,), "")
        (mine,) = [each for each in found.transactions if each.transactional_id == work.id]
        assert mine.hangs
        prefix = f"({work.id}) from offset {mine.start}, "
        assert prefix in (text := found.describe(time.time(), "this"))
        assert text.partition(prefix)[2].endswith("outputs first and __consumer_offsets last")
        with pytest.raises(Retriable):
            work.committed(impatient)
        assert (cluster.values(work.target), cluster.values(work.target, "read_uncommitted")) == ([], [b"hanging"])

    for work in works:
        kept_in = groups.positions_partition(work.group)
        for partition in (TopicPartition(work.target, 0), kept_in):
            if work is not works[2] or partition == kept_in:
                (mine,) = [each for each in groups.open_transactions(partition) if each.transactional_id == work.id]
                TransactionAdmin(Settings(bootstrap_servers=servers)).write_marker(
                    partition, mine, commits=work is works[1]
                )
        assert kafka.pending(work.group, [work.input]) == Pending(work.group, ())
    assert [work.committed(kafka) for work in works] == [None, 1, None]
    for work in works:
        work.go_on(b"next", 2)
    cluster.await_markers(*(work.target for work in works))
    assert [cluster.values(work.target) for work in works] == [[b"next"], [b"hanging", b"next"], [b"hanging", b"next"]]
    assert [work.committed(kafka) for work in works] == [2, 2, 2]
