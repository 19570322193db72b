"""The log of a cluster in Kafka: a topic for its commands, one for heartbeats, and one for the newest replica.

The topic of commands has one partition, so that all peers read the same order. Its producer is idempotent and not
transactional: a command that may have been appended is appended again, and the fold drops the copy.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Final, NamedTuple

from kstreams_py.errors import DecodeError, InputLost, KStreamsError, Retriable, SettingsError
from kstreams_py.graph.names import cluster_topics
from kstreams_py.jobs.cluster.commands import Command, Entry
from kstreams_py.jobs.cluster.fold import apply
from kstreams_py.jobs.cluster.log import LogRecord
from kstreams_py.jobs.cluster.records import decode_entry, decode_replica, encode_entry
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.kafka.contracts import Cluster, Consumer, Output, Producer, ProducerMode
from kstreams_py.kafka.own_topics import ensure_topics
from kstreams_py.log_fields import repeated
from kstreams_py.records import TopicPartition

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0
"""Seconds for which the start of a client waits for the leaders of its topics."""

CUT_SECONDS: Final = 3.0
"""Seconds after which a log without the entries behind the newest replica counts as cut by others."""

KEPT_FOREVER: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

KEPT_SHORTLY: Final = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "600000"}

COMPACTED: Final = {"cleanup.policy": "compact"}

MODE: Final = ProducerMode(transactional=False, acks=-1, may_repeat=True)

READ_MAX: Final = 1_000


class KafkaLog:
    """See ClusterLog."""

    def __init__(self, cluster: Cluster, name: str, peer: str) -> None:
        """Makes no request. `name`: the name of the cluster of peers. `peer`: the id of this peer."""
        self._cluster, self._name, self._peer = cluster, name, peer
        log, beats, replica = cluster_topics(name)
        self._log, self._beats, self._replica = (TopicPartition(topic, 0) for topic in (log, beats, replica))
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None
        self._entries: list[LogRecord] = []
        self._heard: list[bytes] = []
        self._keeping: threading.Thread | None = None
        """The thread that keeps a replica."""

    def start(self) -> bytes | None:
        """Creates the topics if they are missing; see ClusterLog.

        Raises TopicError for other settings of a topic, and Retriable if the topics have no leaders.
        """
        cluster, wanted = self._cluster, (KEPT_FOREVER, KEPT_SHORTLY, COMPACTED)
        topics = (self._log.topic, self._beats.topic, self._replica.topic)
        ensure_topics(cluster, {topic: (1, settings) for topic, settings in zip(topics, wanted, strict=True)})
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                kept, begin, first = self._find_kept()
                ends = cluster.ends({self._beats})
            except Retriable as error:  # topics that were just created have no leader for a moment
                if time.monotonic() > deadline:
                    raise
                logger.info("the topics of cluster %s cannot be read yet: %s", self._name, error)
            else:
                if first <= begin:
                    break
                if time.monotonic() > deadline - START_SECONDS + CUT_SECONDS:  # a peer may just be cutting the log
                    raise InputLost(
                        f"entries {begin} to {first - 1} of {self._log.topic} were deleted by others: no peer knows "
                        f"the jobs of cluster {self._name} any more: stop its peers, delete its topics, and begin again"
                    )
            time.sleep(0.2)
        self._producer = cluster.producer(MODE, f"{self._name}.{self._peer}")
        self._consumer = cluster.consumer(f"ks.cluster.{self._name}.{self._peer}", self._peer)
        self._consumer.assign({self._log: begin} | ends)
        return kept

    def _find_kept(self) -> tuple[bytes | None, int, int]:
        """Returns the newest kept replica, the offset of the entry behind it, and the first offset of the log."""
        kept, begin = None, 0
        for record in self._cluster.read(self._replica):
            value = record.value()
            if value is not None and (offset := decode_replica(value).offset + 1) > begin:
                kept, begin = value, offset
        return kept, begin, self._cluster.starts({self._log})[self._log]

    def append(self, value: bytes) -> None:
        """See ClusterLog."""
        self._write(self._log, value)

    def _write(self, to: TopicPartition, value: bytes, key: bytes | None = None) -> None:
        assert self._producer is not None
        output: Output = (to.topic, value, key, to.partition, None, None, 0, None)
        self._producer.write([output])

    def _fetch(self) -> None:
        assert self._consumer is not None
        for record in self._consumer.consume(READ_MAX, 0.0):
            value = record.value()
            if record.topic() == self._log.topic:
                self._entries.append(LogRecord(record.offset() or 0, value))
            elif value is not None:
                self._heard.append(value)

    def read(self) -> list[LogRecord]:
        """See ClusterLog."""
        self._fetch()
        found, self._entries = self._entries, []
        return found

    def beat(self, value: bytes) -> None:
        """See ClusterLog."""
        self._write(self._beats, value)

    def read_beats(self) -> list[bytes]:
        """See ClusterLog."""
        found, self._heard = self._heard, []
        return found

    def keep(self, value: bytes, offset: int) -> None:
        """See ClusterLog. It does so in a thread: the thread of heartbeats waits for nothing."""
        if self._keeping is None or not self._keeping.is_alive():
            self._keeping = threading.Thread(target=self._keep, args=(value, offset), name="replica", daemon=True)
            self._keeping.start()

    def _keep(self, value: bytes, offset: int) -> None:
        assert self._producer is not None
        try:
            # a key for each peer: what one that was frozen writes late takes the place of no other's
            self._write(self._replica, value, self._peer.encode())
            self._producer.flush()
            self._cluster.truncate(self._log, offset + 1)
        except KStreamsError as error:
            logger.warning(
                "the log of cluster %s is not cut, and grows: %s", self._name, error, extra=repeated("cuts of the log")
            )

    def close(self) -> None:
        """See ClusterLog."""
        if self._keeping is not None:
            self._keeping.join(CUT_SECONDS)
        if self._producer is not None:
            self._producer.drop()
        if self._consumer is not None:
            self._consumer.close()


class LoggedEntry(NamedTuple):
    """An entry of a log: its offset, when it was appended (milliseconds since 1970), and what it is; None for junk."""

    offset: int
    timestamp: int
    entry: Entry | None


def read_entries(cluster: Cluster, name: str) -> tuple[Replica, list[LoggedEntry]]:
    """Returns the kept replica of a cluster of peers, and the entries behind it.

    Raises SettingsError if there is no such cluster.
    """
    log, _, replica = cluster_topics(name)
    if len(cluster.topics([log, replica])) < 2:
        raise SettingsError(
            f"there is no cluster of peers called {name!r}: start one with `kstreams peer --cluster {name}`"
        )
    replicas = (decode_replica(record.value()) for record in cluster.read(TopicPartition(replica, 0)))
    kept = max(replicas, key=lambda each: each.offset, default=Replica())
    found = list[LoggedEntry]()
    for record in cluster.read(TopicPartition(log, 0), kept.offset + 1):
        try:
            entry: Entry | None = decode_entry(record.value())
        except DecodeError:
            entry = None
        found.append(LoggedEntry(record.offset() or 0, record.timestamp()[1], entry))
    return kept, found


def read_replica(cluster: Cluster, name: str) -> Replica:
    """Returns the state of a cluster of peers. Raises SettingsError if there is none of this name."""
    replica, entries = read_entries(cluster, name)
    for each in entries:
        if each.entry is not None:
            replica = apply(replica, each.entry, each.offset)
    return replica


def append_command(cluster: Cluster, name: str, command: Command) -> None:
    """Appends a command to the log of a cluster of peers, and waits until the log has it."""
    log, _, _ = cluster_topics(name)
    author = f"tool-{secrets.token_hex(6)}"
    producer = cluster.producer(MODE, author)
    try:
        producer.write([(log, encode_entry(Entry(author, 1, command)), None, 0, None, None, 0, None)])
        producer.flush()
    finally:
        producer.drop()
