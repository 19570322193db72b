"""The log of a cluster in Kafka: a topic for its commands, one for heartbeats, and one for the newest replica.

The topic of commands has one partition, so that all peers read the same order. Its producer is idempotent and not
transactional: a command that may have been appended is appended again, and the fold drops the copy.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from kstreams_py.errors import DecodeError, InputLost, KStreamsError, Retriable, SettingsError, TopicError
from kstreams_py.graph.names import cluster_topics
from kstreams_py.jobs.cluster.commands import Command, Entry
from kstreams_py.jobs.cluster.fold import VERSION, apply, refuse_version
from kstreams_py.jobs.cluster.log import LogRecord
from kstreams_py.jobs.cluster.records import decode_entry, decode_replica, encode_entry, named_version
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.kafka.contracts import Cluster, Consumer, Output, Producer, ProducerMode
from kstreams_py.kafka.foreign_records import is_deletion
from kstreams_py.kafka.own_topics import ensure_topics
from kstreams_py.log_fields import repeated
from kstreams_py.printable import count_of
from kstreams_py.records import Message, TopicPartition

logger = logging.getLogger(__name__)

START_SECONDS: Final = 30.0
"""Seconds for which the start of a client waits for the leaders of its topics."""

CUT_SECONDS: Final = 3.0
"""Seconds after which entries that the newest replica expects, and the log lacks, count as deleted by others."""

KEPT_FOREVER: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

KEPT_BRIEFLY: Final = {"cleanup.policy": "delete", "retention.ms": "600000", "segment.ms": "600000"}

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
        self._next = 0
        """The offset of the next entry to be fetched."""
        self._entries: list[LogRecord] = []
        self._heard: list[bytes] = []
        self._keeping: threading.Thread | None = None
        """The thread that keeps a replica."""

    def start(self) -> bytes | None:
        """Creates the topics if they are missing; see ClusterLog.

        Raises TopicError for a topic with other settings, SettingsError for a replica of another version, and Retriable
        if the topics have no leaders.
        """
        cluster, wanted = self._cluster, (KEPT_FOREVER, KEPT_BRIEFLY, COMPACTED)
        topics = (self._log.topic, self._beats.topic, self._replica.topic)
        ensure_topics(cluster, {topic: (1, settings) for topic, settings in zip(topics, wanted, strict=True)})
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                kept, replica = find_kept(cluster, self._name)
                why = self._find_loss(replica.offset + 1)
                ends = cluster.ends({self._beats})
            except Retriable as error:  # topics that were just created have no leader for a moment
                if time.monotonic() > deadline:
                    raise
                logger.info("the topics of cluster %s cannot be read yet: %s", self._name, error)
            else:
                if not why:
                    break
                if time.monotonic() > deadline - START_SECONDS + CUT_SECONDS:  # a peer may just be cutting the log
                    raise self._lost(why)
            time.sleep(0.2)
        self._next = replica.offset + 1
        self._producer = cluster.producer(MODE, f"{self._name}.{self._peer}")
        self._consumer = cluster.consumer(f"ks.cluster.{self._name}.{self._peer}", self._peer)
        self._consumer.assign({self._log: self._next} | ends)
        return kept

    def _find_loss(self, begin: int) -> str:
        """Returns a sentence about entries from offset `begin` on that others have deleted; "" if none are missing."""
        first, end = (
            found[self._log] for found in (self._cluster.starts({self._log}), self._cluster.ends({self._log}))
        )
        if first > begin:
            return f"entries {begin} to {first - 1} of {self._log.topic} were deleted by others"
        if end < begin:
            return f"entries up to {begin - 1} of {self._log.topic} were deleted by others: it ends at {end} now"
        return ""

    def _lost(self, why: str) -> InputLost:
        return InputLost(
            f"{why}: no peer knows the jobs of cluster {self._name} any more: stop its peers, delete its topics "
            f"({', '.join(cluster_topics(self._name))}), and begin again: start the peers, and submit the jobs"
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Replaces the error for a topic that was deleted after the start: its remedy does not create these topics."""
        try:
            yield
        except TopicError as error:
            topics = cluster_topics(self._name)
            found = self._cluster.topics(topics)
            missing = [topic for topic in topics if topic not in found]
            if self._log.topic in missing:
                raise self._lost(f"{self._log.topic} was deleted by others") from error
            if not missing and (why := self._find_loss(self._next)):
                raise self._lost(why) from error
            raise TopicError(
                f"{missing[0] if missing else 'a topic'} of cluster {self._name} was deleted by others: start its "
                "peers again: the first one creates what is missing"
            ) from error

    def append(self, value: bytes) -> None:
        """See ClusterLog."""
        self._write(self._log, value)

    def _write(self, to: TopicPartition, value: bytes, key: bytes | None = None) -> None:
        assert self._producer is not None
        output: Output = (to.topic, value, key, to.partition, None, None, 0, None)
        with self._explained():
            self._producer.write([output])

    def _fetch(self) -> None:
        assert self._consumer is not None
        with self._explained():
            try:
                records = self._consumer.consume(READ_MAX, 0.0)
            except InputLost as error:
                if why := self._find_loss(self._next):
                    raise self._lost(why) from error
                # heartbeats were deleted while this peer stood still: it needs none of them
                self._consumer.assign({self._log: self._next} | self._cluster.ends({self._beats}))
                return
        for record in records:
            if record.topic() == self._log.topic:
                offset = record.offset() or 0
                self._entries.append(LogRecord(offset, _value_of(record)))
                self._next = offset + 1
            else:
                self._heard.append(_value_of(record) or b"")

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
        """See ClusterLog. Runs in a thread of its own: the thread of heartbeats must not wait."""
        if self._keeping is None or not self._keeping.is_alive():
            self._keeping = threading.Thread(target=self._keep, args=(value, offset), name="replica", daemon=True)
            self._keeping.start()

    def _keep(self, value: bytes, offset: int) -> None:
        assert self._producer is not None
        try:
            # each peer has a key of its own: the late write of a frozen peer replaces no other peer's replica
            self._write(self._replica, value, self._peer.encode())
            with self._explained():
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


def _value_of(record: Message) -> bytes | None:
    """Returns the value of a record; None if it cannot be read: no peer has written such a record."""
    try:
        return record.value()
    except DecodeError:
        return None


def find_kept(cluster: Cluster, name: str) -> tuple[bytes | None, Replica]:
    """Returns the newest kept replica of a cluster of peers, encoded and decoded; None and an empty one if none is.

    Records of others are left out, with a warning. Raises SettingsError for a replica of another version.
    """
    topic = TopicPartition(cluster_topics(name)[2], 0)
    kept, newest, foreign = None, Replica(), list[int]()
    for record in cluster.read(topic):
        value, offset = _value_of(record), record.offset() or 0
        if (version := named_version(value, name)) not in (0, VERSION):
            raise SettingsError(f"{topic}@{offset}: {refuse_version(name, version)}")
        try:
            replica = decode_replica(value)
        except DecodeError:
            replica = Replica()
        if (record.key() or b"").decode(errors="replace") not in replica.peers or replica.cluster != name:
            foreign += [] if is_deletion(record) else [offset]
        elif replica.offset > newest.offset:
            kept, newest = value, replica
    if foreign:
        logger.warning(
            "%s has %s that no peer of cluster %s kept, the first at offset %d: somebody else writes to it; the "
            "cluster leaves them out",
            topic.topic, count_of(len(foreign), "record"), name, foreign[0],
            extra=repeated("times that foreign records were left out of a cluster's replicas", first=1),
        )  # fmt: skip
    return kept, newest


class LoggedEntry(NamedTuple):
    """An entry of a log.

    - `timestamp`: when it was appended, in milliseconds since 1970.
    - `entry`: its content; None for a record that no peer has written.
    """

    offset: int
    timestamp: int
    entry: Entry | None


def read_entries(cluster: Cluster, name: str) -> tuple[Replica, list[LoggedEntry]]:
    """Returns the kept replica of a cluster of peers, and the entries after it.

    Raises SettingsError if there is no such cluster, or if it has another version.
    """
    log, _, replica = cluster_topics(name)
    if len(cluster.topics([log, replica])) < 2:
        raise SettingsError(
            f"there is no cluster of peers called {name!r}: start one with `kstreams peer --cluster {name}`"
        )
    _, kept = find_kept(cluster, name)
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
