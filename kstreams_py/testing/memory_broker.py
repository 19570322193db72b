"""A Kafka broker in memory: partitions with markers, transactions with epochs, groups with seats.

Nothing here reads a clock or waits: time is an argument, and every request is answered at once. The clients that speak
to it, and what a test may do to them, are in testing.py. It follows Apache Kafka with a client that speaks EndTxn v1:

- a transaction opens with its first partition or group, and ends with one marker in each of its partitions, which may
  follow the answer to its commit after a while;
- a transactional id has one epoch that counts, the newest; a time-out raises it as a new producer does;
- a batch is known by producer id, epoch and sequence per partition: doubles are dropped, gaps are refused;
- a group rebalances in two phases: all members join anew (or their sessions time out), then a new generation is dealt;
- a static member's seat outlives it: who takes the seat has its partitions at once, and nobody else notices;
- these are the old partitions, whatever the new member subscribes to and however its topics have grown: only the next
  rebalance deals others (seen on Kafka 4.3.1 with librdkafka 2.16: none comes by itself).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Literal, NamedTuple

from kstreams_py.delivery import Output
from kstreams_py.errors import (
    Abortable,
    Fenced,
    InputLost,
    OutcomeUnknown,
    RecordRefused,
    RecordTooLarge,
    Refused,
    Replaced,
    Retriable,
    TopicError,
)
from kstreams_py.partitioner import partition_of
from kstreams_py.record import Positions, TopicPartition

Isolation = Literal["read_committed", "read_uncommitted"]

DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
"""Settings of a topic for which it was given none."""

RECORD_OVERHEAD: Final = 70
"""Bytes of a batch with one record, beside its key, value and headers (about)."""


class Content(NamedTuple):
    """What a producer says of a record; the time is in milliseconds since 1970."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int

    def check_size(self, topic: str, limit: int, outputs: Sequence[Any] = ()) -> None:
        """Raises Refused, of these outputs, if a batch with this record alone is larger than so many bytes."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers or ())
        size = RECORD_OVERHEAD + len(self.key or b"") + len(self.value or b"") + headers
        if size > limit:
            mistake = RecordTooLarge(
                f"a record for topic {topic!r} ({size} bytes) is larger than it takes ({limit}): raise the topic's "
                "max.message.bytes and KSTREAMS_KAFKA__MESSAGE_MAX_BYTES, or make the record smaller"
            )
            raise Refused(mistake, outputs)

    def output(self, partition: TopicPartition) -> Output:
        """The record as it was written."""
        return (*partition[:1], self.value, self.key, partition.partition, None, None, self.timestamp, self.headers)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record at its place: a record.Message."""

    _partition: TopicPartition
    _offset: int
    _content: Content

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._content.key

    def value(self) -> bytes | None:
        return self._content.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._content.headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self._content.timestamp


class Marker(NamedTuple):
    """Where a transaction ended: it takes an offset, and no reader sees it."""

    producer_id: int
    commits: bool


class Stamp(NamedTuple):
    """What makes a batch known: who sent it, in which life, and its first record's place in the sender's sequence."""

    producer_id: int
    epoch: int
    sequence: int


class Partition:
    """A partition: its offsets run without gaps over records and markers, so that readers see gaps."""

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.start = 0
        self._slots: list[StoredMessage | Marker] = []
        self._open: dict[int, list[int]] = {}
        self._aborted: set[int] = set()
        self._sequences: dict[int, tuple[int, int]] = {}

    @property
    def end(self) -> int:
        """The offset of whatever is written next (the high watermark)."""
        return len(self._slots)

    @property
    def stable(self) -> int:
        """The last stable offset: the first one of the earliest open transaction, else the end."""
        return min(offsets[0] for offsets in self._open.values()) if self._open else len(self._slots)

    def append(self, batch: Sequence[Content], stamp: Stamp | None, *, transactional: bool) -> None:
        """Writes a batch, unless it is a double. Raises Abortable where one is missing before it."""
        if stamp is not None:
            epoch, expected = self._sequences.get(stamp.producer_id, (stamp.epoch, 0))
            if epoch != stamp.epoch:
                expected = 0
            if stamp.sequence < expected:
                return
            if stamp.sequence > expected:
                raise Abortable(
                    f"{self.name}: out of order: producer {stamp.producer_id} sent sequence {stamp.sequence} where "
                    f"{expected} was next"
                )
            self._sequences[stamp.producer_id] = (stamp.epoch, expected + len(batch))
        for content in batch:
            if stamp is not None and transactional:
                self._open.setdefault(stamp.producer_id, []).append(self.end)
            self._slots.append(StoredMessage(self.name, self.end, content))

    def end_transaction(self, marker: Marker) -> None:
        """Ends a producer's transaction here; its records become visible, or never will be."""
        offsets = self._open.pop(marker.producer_id, [])
        if not marker.commits:
            self._aborted.update(offsets)
        self._slots.append(marker)

    def read(self, position: int, isolation: Isolation) -> Iterator[StoredMessage]:
        """Records from a position on, in order, as far as they are visible."""
        committed = isolation == "read_committed"
        for offset in range(max(position, self.start), self.stable if committed else self.end):
            slot = self._slots[offset]
            if isinstance(slot, StoredMessage) and not (committed and offset in self._aborted):
                yield slot

    def newest(self) -> StoredMessage | None:
        """The newest record that is committed."""
        for offset in range(self.stable - 1, self.start - 1, -1):
            slot = self._slots[offset]
            if isinstance(slot, StoredMessage) and offset not in self._aborted:
                return slot
        return None

    def truncate(self, before: int) -> None:
        """Deletes the records below an offset."""
        self.start = max(self.start, min(before, self.end))

    def check(self, position: int) -> None:
        """Raises InputLost if nothing can be read from this position."""
        if not self.start <= position <= self.end:
            raise InputLost(
                f"{self.name}: position {position} is not in the log, which holds {self.start} to {self.end}: records "
                "were deleted before they were read; set the group's position on purpose (kafka-consumer-groups "
                "--reset-offsets)"
            )


class Topic:
    """A topic: its partitions, and where records without a key go next."""

    def __init__(self, name: str, topic_id: str, partitions: int, settings: Mapping[str, str]) -> None:
        self.topic_id = topic_id
        self.settings = {**DEFAULTS, **settings}
        self.partitions = [Partition(TopicPartition(name, number)) for number in range(partitions)]
        self._keyless = 0

    def place(self, key: bytes | None) -> int:
        """The partition number for a key: as Java's clients have it; round robin without a key."""
        if key is not None:
            return partition_of(key, len(self.partitions))
        self._keyless += 1
        return (self._keyless - 1) % len(self.partitions)


@dataclass(slots=True)
class TransactionalId:
    """A transactional id: the epoch that counts, and its open transaction (since when; None: none is open).

    `partitions` may be written in it, and `positions` be added. Once its end is decided (`commits`), the markers follow
    at `ends_at`; until then its records are still open.
    """

    producer_id: int
    epoch: int = -1
    since: float | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    positions: bool = False
    commits: bool | None = None
    ends_at: float | None = None


class Membership(NamedTuple):
    """What a member knows of itself: the group's metadata that goes with every commit."""

    group: str
    seat: str
    member: int
    generation: int


@dataclass(slots=True)
class Seat:
    """A static member: who sits there, when it was last heard of, and whether it joined the coming generation."""

    member: int
    topics: frozenset[str]
    heard: float
    joined: bool = True
    partitions: frozenset[TopicPartition] = frozenset()


class Heard(Enum):
    """The answer to a heartbeat."""

    STABLE = auto()
    REBALANCING = auto()
    """Join the coming generation."""
    UNKNOWN = auto()
    """This member's session has timed out."""


class Group:
    """A consumer group: positions, pending positions of open transactions, seats."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.seats: dict[str, Seat] = {}
        self.positions: Positions = {}
        self.pending: dict[int, Positions] = {}
        self.leader = ""
        """The seat whose member deals: only what this one learns of its topics causes a rebalance."""
        self._rebalancing = False
        self._members = 0

    def join(self, seat: str, topics: Collection[str], now: float) -> int:
        """Sits down, at once if the seat is held, else once all others have joined anew; returns the member's id."""
        self._members += 1
        held = self.seats.get(seat)
        if held is None:
            self.rebalance()
        if self.leader not in self.seats:
            self.leader = seat
        partitions = held.partitions if held else frozenset[TopicPartition]()
        self.seats[seat] = Seat(self._members, frozenset(topics), now, partitions=partitions)
        return self._members

    def hear(self, seat: str, member: int, now: float) -> Heard:
        """A heartbeat, and what the member is told. Raises Replaced if another holds its seat."""
        held = self._held(seat, member)
        if held is None:
            return Heard.UNKNOWN
        held.heard = now
        return Heard.STABLE if held.joined else Heard.REBALANCING

    def rejoin(self, seat: str) -> None:
        """Joins the coming generation."""
        self.seats[seat].joined = True

    def deal(self, counts: Mapping[str, int]) -> bool:
        """Deals a new generation if all are here for it; whether there is a generation to work in.

        By range over the sorted seats, each topic by itself: topics of as many partitions are dealt alike.
        """
        if self._rebalancing and all(seat.joined for seat in self.seats.values()):
            self._rebalancing = False
            self.generation += 1
            for seat in self.seats.values():
                seat.partitions = frozenset()
            for topic, count in counts.items():
                takers = [seat for _, seat in sorted(self.seats.items()) if topic in seat.topics]
                for index, seat in enumerate(takers):
                    share, extra = divmod(count, len(takers))
                    first = share * index + min(index, extra)
                    numbers = range(first, first + share + (index < extra))
                    seat.partitions |= {TopicPartition(topic, number) for number in numbers}
        return not self._rebalancing

    def check(self, membership: Membership) -> None:
        """Raises Replaced if another member holds the seat, Abortable if this one is not of the generation."""
        if not self.holds(membership.seat, membership.member):
            raise Abortable(f"group {self.name}: {membership.seat} is no member (any more)")
        if membership.generation != self.generation:
            raise Abortable(
                f"group {self.name}: {membership.seat} is of generation {membership.generation}, and "
                f"{self.generation} is the newest"
            )

    def holds(self, seat: str, member: int) -> bool:
        """Whether this member holds the seat; False if nobody does. Raises Replaced if another member holds it."""
        return self._held(seat, member) is not None

    def expire(self, before: float) -> None:
        """Frees the seats of members that were not heard of since."""
        for name, seat in list(self.seats.items()):
            if seat.heard < before:
                self.rebalance()
                del self.seats[name]
        if self.leader not in self.seats:
            self.leader = min(self.seats, default="")

    def leave(self, name: str, member: int) -> bool:
        """Frees a seat at once, if this member has it."""
        seat = self.seats.get(name)
        if seat is None or seat.member != member:
            return False
        seat.heard = float("-inf")
        self.expire(0.0)
        return True

    def keep(self, now: float) -> None:
        """Starts all sessions again, as a coordinator does that was away."""
        for seat in self.seats.values():
            seat.heard = now

    def _held(self, seat: str, member: int) -> Seat | None:
        held = self.seats.get(seat)
        if held is not None and held.member != member:
            raise Replaced(f"another worker has taken the slot of {seat} over; this one ends")
        return held

    def rebalance(self) -> None:
        """Asks all members to join the coming generation."""
        if not self._rebalancing:
            self._rebalancing = True
            for seat in self.seats.values():
                seat.joined = False


class Broker:
    """All topics, transactional ids and groups, and the requests that touch more than one of them."""

    def __init__(self, *, transaction_timeout: float, session_timeout: float, marker_delay: float = 0.0) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self._transactional: dict[str, TransactionalId] = {}
        self.session_timeout = session_timeout
        self._transaction_timeout = transaction_timeout
        self._marker_delay = marker_delay
        self._now = 0.0
        self._ids = 0

    def next_id(self) -> int:
        """A number given out once: for producers and topics."""
        self._ids += 1
        return self._ids

    def pass_time(self, now: float) -> None:
        """Writes markers, aborts transactions that are open for too long, and frees the seats of silent members."""
        if now == self._now:
            return
        self._now = now
        for held in self._transactional.values():
            if held.ends_at is not None and held.ends_at <= now:
                self._write_markers(held)
            if held.since is not None and now - held.since > self._transaction_timeout:
                self._abort(held)
                held.epoch += 1
        for group in self.groups.values():
            group.expire(now - self.session_timeout)

    def keep_sessions(self, now: float) -> None:
        """Starts the sessions of all members again: nobody is heard while a coordinator is away."""
        for group in self.groups.values():
            group.keep(now)

    def grow_topic(self, name: str, partitions: int) -> None:
        """Adds partitions until the topic has so many."""
        found = self.topic(name).partitions
        found += [Partition(TopicPartition(name, number)) for number in range(len(found), partitions)]

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Creates a topic; one that exists is left alone."""
        if name not in self.topics:
            self.topics[name] = Topic(name, f"memory-{self.next_id()}", partitions, settings)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and what transactions and groups have of it."""
        del self.topics[name]
        for held in self._transactional.values():
            held.partitions = {tp for tp in held.partitions if tp.topic != name}
        for group in self.groups.values():
            for positions in (group.positions, *group.pending.values()):
                for tp in [tp for tp in positions if tp.topic == name]:
                    del positions[tp]

    def topic(self, name: str) -> Topic:
        """Raises TopicError if there is none."""
        if name not in self.topics:
            raise TopicError(f"topic {name!r} does not exist: run `kstreams topics create`")
        return self.topics[name]

    def partition(self, name: TopicPartition) -> Partition:
        """Raises TopicError if there is none."""
        partitions = self.topic(name.topic).partitions
        if not 0 <= name.partition < len(partitions):
            raise TopicError(f"topic {name.topic!r} has {len(partitions)} partitions, and no {name.partition}")
        return partitions[name.partition]

    def group(self, name: str) -> Group:
        """The group, made by its first mention."""
        return self.groups.setdefault(name, Group(name))

    # Transactions.

    def init_producer(self, transactional_id: str) -> tuple[int, int]:
        """A producer id and its new epoch; what the older one left open is aborted."""
        held = self._transactional.setdefault(transactional_id, TransactionalId(self.next_id()))
        self._abort(held)
        held.epoch += 1
        return held.producer_id, held.epoch

    def enlist(self, transactional_id: str, epoch: int, partition: TopicPartition | None, now: float) -> None:
        """Opens a transaction unless one is open, and adds a partition (None: positions) to it. Raises Fenced.

        The markers of the one before come first: a client is kept waiting for them (CONCURRENT_TRANSACTIONS).
        """
        held = self._of_epoch(transactional_id, epoch)
        self._write_markers(held)
        if partition is None:
            held.positions = True
        else:
            held.partitions.add(self.partition(partition).name)
        if held.since is None:
            held.since = now

    def produce(
        self, partition: TopicPartition, batch: Sequence[Content], stamp: Stamp | None, transactional_id: str | None
    ) -> None:
        """Writes a batch, in the transaction of the id if there is one. Raises Fenced, Abortable, Refused."""
        log, settings = self.partition(partition), self.topic(partition.topic).settings
        outputs = [content.output(partition) for content in batch]
        for content in batch:
            content.check_size(partition.topic, int(settings["max.message.bytes"]), outputs)
            if settings["cleanup.policy"] == "compact" and content.key is None:
                raise Refused(RecordRefused(f"topic {partition.topic!r} refuses a record without a key"), outputs)
        if stamp is not None and transactional_id is not None:
            held = self._of_epoch(transactional_id, stamp.epoch)
            if partition not in held.partitions:
                raise Abortable(f"{transactional_id}: {partition} is not part of an open transaction")
        log.append(batch, stamp, transactional=transactional_id is not None)

    def add_positions(self, transactional_id: str, epoch: int, positions: Positions, membership: Membership) -> None:
        """Makes positions of a group pending in a transaction. Raises Fenced, Abortable.

        Of a producer that says nothing of a member, nothing is asked: so a zombie could commit.
        """
        held = self._of_epoch(transactional_id, epoch)
        if not held.positions:
            raise Abortable(f"{transactional_id}: positions are not part of an open transaction")
        group = self.group(membership.group)
        if membership.seat:
            try:
                group.check(membership)
            except Replaced as replaced:
                raise Fenced(str(replaced)) from None
        group.pending.setdefault(held.producer_id, {}).update(positions)

    def end_transaction(self, transactional_id: str, epoch: int, *, commits: bool) -> None:
        """Commits or aborts whatever is open. Raises Fenced, OutcomeUnknown if nothing is, unless it says so again.

        EndTxn v1 does not say which transaction it means: a late one ends another of its epoch (KAFKA-17754).
        """
        held = self._of_epoch(transactional_id, epoch)
        if held.since is None:
            if held.commits is commits:
                return
            raise OutcomeUnknown(f"{transactional_id}: no transaction is open")
        held.since, held.commits, held.ends_at = None, commits, self._now + self._marker_delay
        if not self._marker_delay:
            self._write_markers(held)

    def _of_epoch(self, transactional_id: str, epoch: int) -> TransactionalId:
        held = self._transactional[transactional_id]
        if held.epoch != epoch:
            raise Fenced(f"{transactional_id}: epoch {epoch} is over, {held.epoch} counts")
        return held

    def _abort(self, held: TransactionalId) -> None:
        """Aborts what is open; what was committed or aborted already gets its markers."""
        if held.since is not None:
            held.since, held.commits, held.ends_at = None, False, self._now
        self._write_markers(held)
        held.commits = None

    def _write_markers(self, held: TransactionalId) -> None:
        """Ends a transaction in its partitions and its groups, if its end is decided."""
        if held.ends_at is None:
            return
        commits = held.commits is True
        for partition in sorted(held.partitions):
            self.partition(partition).end_transaction(Marker(held.producer_id, commits))
        for group in self.groups.values():
            positions = group.pending.pop(held.producer_id, {})
            if commits:
                group.positions.update(positions)
        held.ends_at, held.positions = None, False
        held.partitions.clear()

    # Positions.

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Positions:
        """A group's positions, of partitions that have one. Raises Retriable while one is pending."""
        found = self.group(group)
        for positions in found.pending.values():
            if waiting := sorted(set(partitions) & set(positions)):
                raise Retriable(f"group {group}: the position of {waiting[0]} is pending in a transaction")
        return {tp: found.positions[tp] for tp in sorted(partitions) if tp in found.positions}
