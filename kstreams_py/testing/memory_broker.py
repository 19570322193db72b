"""A Kafka broker in memory: partitions with markers, transactions with epochs, groups with memberships.

The broker reads no clock and never waits: time is an argument, and it answers every request immediately. Its clients
are in memory_clients.py, the faults in request_faults.py. The broker treats a client as Apache Kafka treats one that
speaks EndTxn v1:

- A transaction opens with its first partition or group, and ends with one marker in each of its partitions. The broker
  may write the markers some time after it has answered the commit.
- Only the newest epoch of a transactional id is valid; a time-out raises the epoch, and so does a new producer.
- A batch is identified by producer id, epoch and sequence per partition: duplicates are dropped, gaps are refused.
- A group rebalances in two phases: all members join again, or their sessions time out; then the members of the new
  generation get their partitions.
- A static membership outlives its process: the member that takes it gets its partitions without a rebalance.
- Taking over a membership starts no rebalance: the new member gets the partitions of the old one, even if it subscribes
  to other topics, or if the topics have more partitions now (seen on Kafka 4.3.1 with librdkafka 2.16).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from kstreams_py.errors import (
    Abortable,
    Fenced,
    InputLost,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Replaced,
    Retriable,
    TopicError,
)
from kstreams_py.kafka.membership import replaced
from kstreams_py.kafka.partitioner import partition_of
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.testing.events import Isolation
from kstreams_py.testing.memory_records import POSITIONS, Content, Marker, Markers, StoredMessage

DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
"""The default settings of a topic."""


class Stamp(NamedTuple):
    """The identity of a batch: its producer id, the epoch, and the sequence number of its first record."""

    producer_id: int
    epoch: int
    sequence: int


class Partition:
    """A partition. Records and markers have consecutive offsets, so readers see gaps."""

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.start = 0
        self._slots: list[StoredMessage | Marker] = []
        self._open: dict[int, list[int]] = {}
        self._aborted: set[int] = set()
        self._sequences: dict[int, tuple[int, int]] = {}
        self._written: dict[Stamp, int] = {}
        """The first offset of each batch."""

    @property
    def end(self) -> int:
        """The next offset to be written (the high watermark)."""
        return len(self._slots)

    @property
    def stable(self) -> int:
        """The last stable offset: the first offset of the earliest open transaction, or the end if none is open."""
        return min(offsets[0] for offsets in self._open.values()) if self._open else len(self._slots)

    @property
    def writers(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id, in order of the ids."""
        return {producer_id: self._open[producer_id][0] for producer_id in sorted(self._open)}

    def first(self, since: int | None) -> int:
        """Returns the first offset; with `since`, the offset of the first record with this timestamp or a later one.

        If there is no such record, returns the last stable offset.
        """
        if since is None:
            return self.start
        found = (m.offset() for m in self.read(self.start, Isolation.UNCOMMITTED) if m.timestamp()[1] >= since)
        return next(found, self.stable)

    def append(self, batch: Sequence[Content], stamp: Stamp | None, *, transactional: bool) -> int:
        """Writes a batch, unless it is a duplicate; returns its first offset.

        Raises Abortable if an earlier batch is missing.
        """
        if stamp is not None:
            epoch, expected = self._sequences.get(stamp.producer_id, (stamp.epoch, 0))
            if epoch != stamp.epoch:
                expected = 0
            if stamp.sequence < expected:
                return self._written[stamp]
            if stamp.sequence > expected:
                raise Abortable(
                    f"{self.name}: out of order: producer {stamp.producer_id} sent sequence {stamp.sequence} where "
                    f"{expected} was next"
                )
            self._sequences[stamp.producer_id] = (stamp.epoch, expected + len(batch))
            self._written[stamp] = self.end
        first = self.end
        for content in batch:
            if stamp is not None and transactional:
                self._open.setdefault(stamp.producer_id, []).append(self.end)
            self._slots.append(StoredMessage(self.name, self.end, content))
        return first

    def end_transaction(self, marker: Marker) -> None:
        """Ends a producer's transaction in this partition; if it is committed, its records become visible."""
        offsets = self._open.pop(marker.producer_id, [])
        if not marker.commits:
            self._aborted.update(offsets)
        self._slots.append(marker)

    def read(self, position: int, isolation: Isolation) -> Iterator[StoredMessage]:
        """Yields the visible records from an offset on, in order."""
        committed = isolation is Isolation.COMMITTED
        for offset in range(max(position, self.start), self.stable if committed else self.end):
            slot = self._slots[offset]
            if isinstance(slot, StoredMessage) and not (committed and offset in self._aborted):
                yield slot

    def newest(self) -> StoredMessage | None:
        """Returns the newest committed record; None if there is none."""
        for offset in range(self.stable - 1, self.start - 1, -1):
            slot = self._slots[offset]
            if isinstance(slot, StoredMessage) and offset not in self._aborted:
                return slot
        return None

    def truncate(self, before: int) -> None:
        """Deletes the records below an offset."""
        self.start = max(self.start, min(before, self.end))

    def check(self, position: int) -> None:
        """Raises InputLost if the partition does not hold this offset."""
        if not self.start <= position <= self.end:
            raise InputLost(
                f"{self.name}: position {position} is not in the log, which holds {self.start} to {self.end}: records "
                "were deleted before they were read; set the group's offset on purpose (`kstreams recover "
                "reset`)"
            )


class MemoryTopic:
    """A topic: its partitions and settings, and the next partition for a record without a key."""

    def __init__(self, name: str, topic_id: str, partitions: int, settings: Mapping[str, str]) -> None:
        self.topic_id = topic_id
        self.settings = {**DEFAULTS, **settings}
        self.own_settings = tuple(sorted(settings))
        self.partitions = [Partition(TopicPartition(name, number)) for number in range(partitions)]
        self._keyless = 0

    def partition_for(self, key: bytes | None) -> int:
        """Returns the partition number for a key, as Java's clients compute it; round robin without a key."""
        if key is not None:
            return partition_of(key, len(self.partitions))
        self._keyless += 1
        return (self._keyless - 1) % len(self.partitions)


@dataclass(slots=True)
class TransactionalId:
    """A transactional id and its transaction.

    - `epoch`: the valid epoch.
    - `since`: when the open transaction began; None if no transaction is open.
    - `partitions`: the partitions that were added to the transaction.
    - `positions`: whether offsets may be added to the transaction.
    - `commits`: whether the newest transaction commits or aborts; None while that is not decided.
    - `ends_at`: when the broker writes the markers; until then the records stay open. None while that is not decided.
    """

    producer_id: int
    epoch: int = -1
    since: float | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    positions: bool = False
    commits: bool | None = None
    ends_at: float | None = None


class GroupMetadata(NamedTuple):
    """The group metadata of a member, which the member sends with every commit."""

    group: str
    instance_id: str
    member: int
    generation: int


@dataclass(slots=True)
class StaticMember:
    """A static member: its member id, its topics, its last heartbeat, and whether it has joined the next generation."""

    member: int
    topics: frozenset[str]
    heard: float
    joined: bool = True
    partitions: frozenset[TopicPartition] = frozenset()


class Heard(Enum):
    """The answer to a heartbeat."""

    STABLE = auto()
    REBALANCING = auto()
    """The member has to join the next generation."""
    UNKNOWN = auto()
    """The session of the member has timed out."""


class MemoryGroup:
    """A consumer group: committed offsets, pending offsets of open transactions, static members."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.static_members: dict[str, StaticMember] = {}
        self.positions: Positions = {}
        self.notes: dict[TopicPartition, str] = {}
        """The metadata of the committed offsets."""
        self.pending: dict[int, Positions] = {}
        self.leader = ""
        """The instance id of the leader. New partitions cause a rebalance only once the leader learns of them."""
        self._rebalancing = False
        self._members = 0
        self._commits = 0
        self._order: dict[tuple[int | None, TopicPartition], int] = {}
        """The number of the commit that sent each offset. The producer id is None once the offset is committed."""

    def add_pending(self, producer_id: int, positions: Positions) -> None:
        """Makes offsets pending in the transaction of a producer."""
        self._commits += 1
        self._order |= {(producer_id, tp): self._commits for tp in positions}
        self.pending.setdefault(producer_id, {}).update(positions)

    def end_pending(self, producer_id: int, *, commits: bool) -> None:
        """Commits or drops the pending offsets of a producer.

        However late its transaction ends, an offset does not replace a committed offset that was sent after it.
        """
        for tp, offset in self.pending.pop(producer_id, {}).items():
            order = self._order.pop((producer_id, tp))
            if commits and order > self._order.get((None, tp), 0):
                self.positions[tp], self._order[None, tp] = offset, order
                self.notes.pop(tp, None)

    def commit(
        self, positions: Positions, membership: GroupMetadata, notes: Mapping[TopicPartition, str] | None = None
    ) -> None:
        """Commits offsets of a member outside of transactions, with their metadata. Raises the errors of `check`."""
        self.check(membership)
        self._commits += 1
        self._order |= {(None, tp): self._commits for tp in positions}
        self.positions.update(positions)
        self.notes.update(dict.fromkeys(positions, "") | dict(notes or {}))

    def join(self, instance_id: str, topics: Collection[str], now: float) -> int:
        """Adds a member, and returns its id. It takes over a held membership; otherwise a rebalance begins."""
        self._members += 1
        held = self.static_members.get(instance_id)
        if held is None:
            self.rebalance()
        if self.leader not in self.static_members:
            self.leader = instance_id
        partitions = held.partitions if held else frozenset[TopicPartition]()
        self.static_members[instance_id] = StaticMember(self._members, frozenset(topics), now, partitions=partitions)
        return self._members

    def hear(self, instance_id: str, member: int, now: float) -> Heard:
        """Answers a heartbeat. Raises Replaced if another member holds the membership."""
        held = self._held(instance_id, member)
        if held is None:
            return Heard.UNKNOWN
        held.heard = now
        return Heard.STABLE if held.joined else Heard.REBALANCING

    def rejoin(self, instance_id: str) -> None:
        """Notes that a member has joined the next generation."""
        self.static_members[instance_id].joined = True

    def deal(self, counts: Mapping[str, int]) -> None:
        """Assigns the partitions to a new generation if all members have joined it.

        Partitions are assigned by range over the sorted instance ids, each topic by itself, so topics with equal
        numbers of partitions are assigned alike.

        - `counts`: the number of partitions by topic.
        """
        if self._rebalancing and all(member.joined for member in self.static_members.values()):
            self._rebalancing = False
            self.generation += 1
            for member in self.static_members.values():
                member.partitions = frozenset()
            for topic, count in counts.items():
                takers = [member for _, member in sorted(self.static_members.items()) if topic in member.topics]
                for index, member in enumerate(takers):
                    share, extra = divmod(count, len(takers))
                    first = share * index + min(index, extra)
                    numbers = range(first, first + share + (index < extra))
                    member.partitions |= {TopicPartition(topic, number) for number in numbers}

    def check(self, membership: GroupMetadata) -> None:
        """Raises Replaced if another member holds the membership, Abortable for no membership or an old generation.

        A group without members accepts the offsets of a client that has never joined.
        """
        if not (self.static_members or membership.member):
            return
        if self._held(membership.instance_id, membership.member) is None:
            raise Abortable(f"group {self.name}: {membership.instance_id} is not a member, or no longer")
        if membership.generation != self.generation:
            raise Abortable(
                f"group {self.name}: {membership.instance_id} is of generation {membership.generation}, but "
                f"{self.generation} is the newest"
            )

    @property
    def is_stable(self) -> bool:
        """Whether the newest generation is assigned."""
        return not self._rebalancing

    def expire(self, before: float) -> None:
        """Ends the memberships without a heartbeat since `before`."""
        expired = [name for name, member in self.static_members.items() if member.heard < before]
        for name in expired:
            self.rebalance()
            del self.static_members[name]
        if expired and self.leader not in self.static_members:
            self.leader = min(self.static_members, default="")

    def leave(self, instance_id: str, member: int) -> bool:
        """Ends the membership immediately if this member holds it; returns whether it did."""
        held = self.static_members.get(instance_id)
        if held is None or held.member != member:
            return False
        held.heard = float("-inf")
        self.expire(0.0)
        return True

    def keep(self, now: float) -> None:
        """Restarts all sessions, as a coordinator does after it was unavailable."""
        for member in self.static_members.values():
            member.heard = now

    def _held(self, instance_id: str, member: int) -> StaticMember | None:
        held = self.static_members.get(instance_id)
        if held is not None and held.member != member:
            raise replaced(instance_id, f"member {held.member}")
        return held

    def rebalance(self) -> None:
        """Asks all members to join the next generation."""
        if not self._rebalancing:
            self._rebalancing = True
            for member in self.static_members.values():
                member.joined = False


class Broker:
    """All topics, transactional ids and groups, and the requests to them."""

    def __init__(self, *, transaction_timeout: float, session_timeout: float, marker_delay: float = 0.0) -> None:
        self.topics: dict[str, MemoryTopic] = {}
        self.groups: dict[str, MemoryGroup] = {}
        self._transactional: dict[str, TransactionalId] = {}
        self._begun: dict[int, TransactionalId] = {}
        """By producer id, the transactional ids whose transaction may be open, or may lack its markers."""
        self.session_timeout = session_timeout
        self._transaction_timeout = transaction_timeout
        self._marker_delay = marker_delay
        self.markers = Markers(self._write_marker)
        self._now = 0.0
        self._ids = 0

    def next_id(self) -> int:
        """Returns a new number, for a producer or a topic."""
        self._ids += 1
        return self._ids

    def pass_time(self, now: float) -> None:
        """Sets the time. Writes due markers, and ends transactions and memberships that have timed out."""
        if now == self._now:
            return
        self._now = now
        for producer_id in sorted(self._begun):
            held = self._begun[producer_id]
            if held.ends_at is not None and held.ends_at <= now:
                self._write_markers(held)
            if held.since is not None and now - held.since > self._transaction_timeout:
                self._abort(held)
                held.epoch += 1
            if held.since is None and held.ends_at is None:
                del self._begun[producer_id]
        for group in self.groups.values():
            if group.static_members:
                group.expire(now - self.session_timeout)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Adds partitions to a topic until it has this many."""
        found = self.topic(name).partitions
        found += [Partition(TopicPartition(name, number)) for number in range(len(found), partitions)]

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Creates a topic, unless it exists."""
        if name not in self.topics:
            self.topics[name] = MemoryTopic(name, f"memory-{self.next_id()}", partitions, settings)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and removes its partitions from transactions and groups."""
        del self.topics[name]
        for held in self._transactional.values():
            held.partitions = {tp for tp in held.partitions if tp.topic != name}
        for group in self.groups.values():
            for positions in (group.positions, *group.pending.values()):
                for tp in [tp for tp in positions if tp.topic == name]:
                    del positions[tp]

    def topic(self, name: str) -> MemoryTopic:
        """Returns a topic. Raises TopicError if it does not exist."""
        if name not in self.topics:
            raise TopicError(f"topic {name!r} does not exist: run `kstreams topics create`")
        return self.topics[name]

    def partition(self, name: TopicPartition) -> Partition:
        """Returns a partition. Raises TopicError if it does not exist."""
        topic, number = name
        partitions = self.topic(topic).partitions
        if not 0 <= number < len(partitions):
            raise TopicError(f"topic {topic!r} has {len(partitions)} partitions, but no partition {number}")
        return partitions[number]

    def group(self, name: str) -> MemoryGroup:
        """Returns a group; creates it if it does not exist."""
        if name not in self.groups:
            self.groups[name] = MemoryGroup(name)
        return self.groups[name]

    # Transactions.

    def init_producer(self, transactional_id: str) -> tuple[int, int]:
        """Returns the producer id and a new epoch; aborts the open transaction of the older producer."""
        held = self._transactional.setdefault(transactional_id, TransactionalId(self.next_id()))
        self._abort(held)
        held.epoch += 1
        return held.producer_id, held.epoch

    def enlist(self, transactional_id: str, epoch: int, partition: TopicPartition | None, now: float) -> None:
        """Opens a transaction unless one is open, and adds a partition (None: offsets) to it. Raises Fenced.

        The broker first writes the markers of the previous transaction: a client waits for them
        (CONCURRENT_TRANSACTIONS).
        """
        held = self._of_epoch(transactional_id, epoch)
        self._write_markers(held)
        if self.markers.are_late(held.producer_id):
            raise Retriable(f"{transactional_id}: markers of its last transaction are not written yet")
        if partition is None:
            held.positions = True
        else:
            held.partitions.add(self.partition(partition).name)
        if held.since is None:
            held.since, self._begun[held.producer_id] = now, held

    def produce(
        self,
        partition: TopicPartition,
        batch: Sequence[Content],
        stamp: Stamp | None,
        transactional_id: str | None,
        *,
        now: float | None = None,
    ) -> int:
        """Writes a batch, in the transaction of the id unless that is None; returns its first offset.

        - `now`: the broker's time in seconds since 1970, to check timestamps against; None to accept any timestamp.

        Raises Fenced, Abortable, Refused.
        """
        target, settings = self.partition(partition), self.topic(partition.topic).settings
        limit, compacts = int(settings["max.message.bytes"]), settings["cleanup.policy"] == "compact"
        before, after = (settings.get(f"message.timestamp.{side}.max.ms") for side in ("before", "after"))
        for content in batch:
            mistake: RecordRefused | None = content.find_excess(partition.topic, limit)
            ahead = 0 if now is None else content.timestamp - int(now * 1000)
            if (before and -ahead > int(before)) or (after and ahead > int(after)):
                mistake = mistake or RecordRefused(f"topic {partition.topic!r} refuses the timestamp of a record")
            if compacts and content.key is None:
                mistake = mistake or RecordRefused(f"topic {partition.topic!r} refuses a record without a key")
            if mistake is not None:
                raise Refused(mistake, [each.output(partition) for each in batch])
        if stamp is not None and transactional_id is not None:
            held = self._of_epoch(transactional_id, stamp.epoch)
            if partition not in held.partitions:
                raise Abortable(f"{transactional_id}: {partition} is not part of an open transaction")
        return target.append(batch, stamp, transactional=transactional_id is not None)

    def add_positions(self, transactional_id: str, epoch: int, positions: Positions, membership: GroupMetadata) -> None:
        """Makes offsets of a group pending in a transaction. Raises Fenced, Abortable.

        Group metadata without a member is not checked: a zombie that sends such metadata can commit.
        """
        held = self._of_epoch(transactional_id, epoch)
        if not held.positions:
            raise Abortable(f"{transactional_id}: positions are not part of an open transaction")
        group = self.group(membership.group)
        if membership.instance_id:
            try:
                group.check(membership)
            except Replaced as replaced:
                raise Fenced(str(replaced)) from None
        group.add_pending(held.producer_id, positions)

    def end_transaction(self, transactional_id: str, epoch: int, *, commits: bool) -> None:
        """Commits or aborts the open transaction; accepts the repetition of the last request.

        Raises Fenced, and OutcomeUnknown if no transaction is open. EndTxn v1 does not name its transaction: a late
        request ends a later transaction of its epoch (KAFKA-17754).
        """
        held = self._of_epoch(transactional_id, epoch)
        if held.since is None:
            if held.commits is commits:
                return
            raise OutcomeUnknown(f"{transactional_id}: no transaction is open")
        held.since, held.commits, held.ends_at = None, commits, self._now + self._marker_delay
        if not self._marker_delay:
            self._write_markers(held)

    def hanging(
        self, transactional_id: str, partitions: Collection[TopicPartition], group: str
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns the producer id and first offset of each transaction of this id that hangs, by partition.

        The transaction is open on the partition, but its coordinator will not end it.

        - `group`: adds an entry for POSITIONS if offsets of this group are pending; "" adds no entry.
        """
        held = self._transactional.get(transactional_id)
        if held is None or self.markers.are_late(held.producer_id):
            return {}
        is_ending = held.since is not None or held.ends_at is not None
        starts = {tp: self.partition(tp).writers.get(held.producer_id) for tp in sorted(set(partitions))}
        if group and held.producer_id in self.group(group).pending:
            starts[POSITIONS] = 0
        ending = held.partitions | ({POSITIONS} if held.positions else set()) if is_ending else set()
        return {tp: (held.producer_id, start) for tp, start in starts.items() if start is not None and tp not in ending}

    def _of_epoch(self, transactional_id: str, epoch: int) -> TransactionalId:
        held = self._transactional[transactional_id]
        if held.epoch != epoch:
            raise Fenced(f"{transactional_id}: epoch {epoch} is fenced by epoch {held.epoch}")
        return held

    def _abort(self, held: TransactionalId) -> None:
        """Aborts the open transaction; if its end is decided, writes its markers instead."""
        if held.since is not None:
            held.since, held.commits, held.ends_at = None, False, self._now
        self._write_markers(held)
        held.commits = None

    def _write_markers(self, held: TransactionalId) -> None:
        """Ends a transaction in its partitions and groups, if its end is decided."""
        if held.ends_at is None:
            return
        for partition in (*sorted(held.partitions), POSITIONS):
            self.markers.write(partition, Marker(held.producer_id, held.commits is True))
        held.ends_at, held.positions = None, False
        held.partitions.clear()

    def _write_marker(self, partition: TopicPartition, marker: Marker) -> None:
        if partition != POSITIONS:
            self.partition(partition).end_transaction(marker)
        else:
            for group in self.groups.values():
                group.end_pending(marker.producer_id, commits=marker.commits)

    # Committed offsets.

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Positions:
        """Returns a group's committed offsets of these partitions. Raises Retriable while an offset is pending."""
        found = self.group(group)
        for positions in found.pending.values():
            if waiting := sorted(set(partitions) & set(positions)):
                raise Retriable(f"group {group}: the offset of {waiting[0]} is pending in a transaction")
        return {tp: found.positions[tp] for tp in sorted(partitions) if tp in found.positions}
