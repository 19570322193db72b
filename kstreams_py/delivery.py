"""The guarantees: what is saved when, the delivery hash, the choices of alts; defines Log.

================  =======================  =======  ==========  ===========================  ==========================
guarantee         positions are saved      lost     duplicated  producer                     what it costs
================  =======================  =======  ==========  ===========================  ==========================
`exactly_once`    with the outputs, in     never    never       transactional, idempotent,   a transaction every 100 ms;
                  one transaction                               acks=all                     readers wait for its commit
`at_least_once`   after the outputs are    never    after a     idempotent where acks=all,   a flush and an offset
                  acknowledged                      crash       retries                      commit every 100 ms
`at_most_once`    before the functions     after a  never       no retries, not idempotent   an offset commit before
                  run                      crash                                             each batch of records
================  =======================  =======  ==========  ===========================  ==========================

`PROMISES` is this table for the engine: it asks for a column, never for the name of a guarantee.

How far an acknowledged write survives is a second choice, apart from the first: `Durability`. Kafka's transactional
producer works with acks=all only, so `exactly_once` goes with `committed` alone; with `leader` or `none` the table
holds as long as no broker fails.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from importlib.resources import files
from io import BytesIO
from typing import Any, Final, Protocol

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from kstreams_py.groups import Pending
from kstreams_py.record import Headers, Message, Positions, TopicPartition


class Guarantee(StrEnum):
    """What a crash can do to a record; the table above."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class Durability(StrEnum):
    """When a write counts as acknowledged: by all in-sync replicas, by the leader alone, or not waited for."""

    COMMITTED = "committed"
    LEADER = "leader"
    NONE = "none"

    @property
    def acks(self) -> int:
        """The producer's `acks`: -1 (all), 1 or 0."""
        return {"committed": -1, "leader": 1, "none": 0}[self]


@dataclass(frozen=True, slots=True)
class Promise:
    """A row of the table: how one guarantee is kept."""

    transactional: bool
    saves_first: bool
    retries: bool


PROMISES: Final[Mapping[Guarantee, Promise]] = {
    Guarantee.EXACTLY_ONCE: Promise(transactional=True, saves_first=False, retries=True),
    Guarantee.AT_LEAST_ONCE: Promise(transactional=False, saves_first=False, retries=True),
    Guarantee.AT_MOST_ONCE: Promise(transactional=False, saves_first=True, retries=False),
}


# The delivery hash: 128 bits, a pure function of what a step reads, never of its contents or of Python's hash().

pack_offset: Final[Callable[[int], bytes]] = struct.Struct(">Q").pack


def hash_prefix(processor: str, topic: str, topic_id: str, partition: int) -> bytes:
    """The first 8 bytes of the delivery hash of every one-input step of a task: BLAKE2b of processor and tailer.

    `processor` is `graph.processor`; `topic_id` is the broker's id of the topic ("" where it has none), so that a
    topic that was deleted and made anew does not repeat hashes. Append `pack_offset(offset)` and the hash is
    injective over offsets, cheap, and sorted as the records are.
    """
    return blake2b(_canonical("snapshot", processor, topic, topic_id, partition), digest_size=8).digest()


def joined_hash(processor: str, tailers: Iterable[tuple[str, str, int, int]]) -> bytes:
    """The delivery hash of a step of several inputs: 16 bytes of BLAKE2b over all (topic, id, partition, offset)."""
    parts = [part for tailer in sorted(tailers) for part in tailer]
    return blake2b(_canonical("snapshot", processor, *parts), digest_size=16).digest()


def _canonical(*parts: str | int) -> bytes:
    """Parts as bytes, each with its length in front, so that no two lists of parts give the same bytes."""
    raw = [str(part).encode() for part in parts]
    return b"".join(struct.pack(">I", len(part)) + part for part in raw)


# The choices of alts: which input each coming step reads, journaled before the functions run.


@dataclass(frozen=True, slots=True)
class Choices:
    """What an alts task reads next: runs of (topic, offset of the run's last record), in order."""

    runs: tuple[tuple[str, int], ...] = ()

    def after(self, committed: Mapping[str, int]) -> Choices:
        """What is left of the choices once the positions in `committed` (topic to next offset) were delivered."""
        return Choices(tuple(run for run in self.runs if run[1] >= committed.get(run[0], 0)))

    def encode(self) -> bytes:
        """A version byte, then Avro by schemas/alts_choices.avsc."""
        buffer = BytesIO(_CHOICES_VERSION)
        buffer.seek(0, 2)
        schemaless_writer(buffer, _CHOICES_SCHEMA, {"runs": [{"topic": t, "through": o} for t, o in self.runs]})
        return buffer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Choices:
        """The inverse of `encode`; ValueError for bytes that are not a journal record of this version."""
        if data[:1] != _CHOICES_VERSION:
            raise ValueError(f"a journal record starts with {data[:1]!r}, not with version {_CHOICES_VERSION!r}")
        found: Any = schemaless_reader(BytesIO(data[1:]), _CHOICES_SCHEMA, None)
        return cls(tuple((run["topic"], run["through"]) for run in found["runs"]))


_CHOICES_VERSION: Final = b"\x01"
_CHOICES_SCHEMA: Final = parse_schema(
    json.loads((files("kstreams_py") / "schemas" / "alts_choices.avsc").read_text(encoding="utf-8"))
)


# The log, as the engine needs it. Implementations: ports/kafka/ on a real cluster, testing/ in memory. Every call
# has a finite time limit of its own (settings), and raises the LogError whose name says what its caller must do.


class Consumer(Protocol):
    """One member of one group, read_committed; positions are the caller's, never its own."""

    ends: Positions
    """Per partition, the position after the last record there is, if all before it were handed out by `consume`."""

    def subscribe(
        self, topics: Collection[str], assigned: Callable[[set[TopicPartition]], None], revoked: Callable[[], None]
    ) -> None:
        """Joins the group. `consume` calls `assigned` with the whole new assignment, `revoked` before it ends."""

    def assign(self, positions: Positions) -> None:
        """Fetches from exactly these positions; what was fetched before is forgotten."""

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        """Waits up to `timeout` seconds for a first record, then takes what is there, `limit` records at most.

        Raises Replaced when another member holds this seat, InputLost where a position is below what the log still has.
        """

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        """Positions of the group, none of them pending in a transaction; the log's start where there is none."""

    def commit(self, positions: Positions) -> None:
        """Commits positions outside of a transaction, and waits for it."""

    def hold_seat(self) -> None:
        """Raises Replaced if another member has taken this member's seat (its group.instance.id) in the group.

        It asks and commits nothing: a plain commit may come late, and would put the group back.
        """

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stops fetching these, and resumes all others."""

    def close(self) -> None:
        """Stops without leaving: the seat stays this slot's until the session times out, or until `Log.leave`."""


class Producer(Protocol):
    """Writes records; with a transactional id, in transactions."""

    @property
    def tainted(self) -> bool:
        """A request of this producer timed out or lost its connection, and may yet reach the broker (KAFKA-17754)."""

    def write(self, outputs: Sequence[Output]) -> None:
        """Queues outputs, in order; waits while the queue is full. Raises RecordTooLarge, LogError."""

    def init_transactions(self) -> None:
        """Fences all producers of the same id; waits until their transactions are completed or aborted."""

    def begin_transaction(self) -> None: ...

    def send_offsets(self, positions: Positions, consumer: Consumer) -> None:
        """Adds the group's positions to the transaction, with the group's metadata of this moment."""

    def commit_transaction(self) -> None:
        """Raises Abortable if a delivery failed, OutcomeUnknown if no answer came in time."""

    def abort_transaction(self) -> None: ...

    def flush(self) -> None:
        """Waits until all was acknowledged; raises Abortable naming the first delivery that failed."""

    def drop(self) -> None:
        """Lets go at once: nothing is flushed, committed or aborted."""


Output = tuple[str, bytes | None, bytes | None, int, None, None, int, Headers | None]
"""Topic, value, key, partition (-1: by key), two unused callbacks, timestamp (0: now), headers: the client's order."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What the broker tells of a topic; `topic_id` is "" where it tells none."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    settings: Mapping[str, str]


class Log(Protocol):
    """A cluster."""

    def consumer(self, group: str, seat: str) -> Consumer: ...

    def producer(
        self, promise: Promise, durability: Durability, transactional_id: str, batch_bytes: int | None = None
    ) -> Producer:
        """`transactional_id` names the producer; it is used as such where the promise is transactional.

        No batch of records is larger than `batch_bytes`, unless one record is.
        """

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """Those of the topics that exist."""

    def create_topics(self, topics: Iterable[tuple[str, int, int, Mapping[str, str]]]) -> None:
        """Creates (name, partitions, replication (-1: the broker's default), settings), and waits for them."""

    def leave(self, consumer: Consumer) -> bool:
        """Removes the static member of a consumer that was closed, so that its partitions move at once.

        Returns whether it was removed: a membership that is not this consumer's (any more) is left alone.
        """

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        """Which of these positions of a group nobody can read now, and the transactions that hold them."""

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        """The last stable offset of each."""

    def newest(self, partition: TopicPartition) -> Message | None:
        """The newest committed record; None if there is none."""

    def truncate(self, partition: TopicPartition, before: int) -> None:
        """Deletes the records below an offset."""
