"""The guarantees: what is saved when, the delivery hash, the choices of alts; defines Log.

================  =======================  =======  ==========  ===========================  ==========================
guarantee         positions are saved      lost     duplicated  producer                     what it costs
================  =======================  =======  ==========  ===========================  ==========================
`exactly_once`    with the outputs, in     never    never       transactional, idempotent,   a transaction every 100 ms;
                  one transaction                               acks=all                     readers wait for its commit
`at_least_once`   after the outputs are    never    after a     idempotent where acks=all,   a flush and an offset
                  acknowledged                      crash       retries                      commit every 100 ms
`at_most_once`    before the functions     after a  never       idempotent and retries, or   an offset commit before
                  run                      crash                acks=0 and no retries        each batch of records
================  =======================  =======  ==========  ===========================  ==========================

`PROMISES` is this table for the engine: it asks for a column, never for the name of a guarantee.

How far an acknowledged write survives is a second choice, apart from the first: `Durability`. Kafka's transactional
and idempotent producers work with acks=all only. So `exactly_once` goes with `committed` alone, and `at_most_once` not
with `leader`: without a producer id, the client sends a batch again that its broker may have written. With `leader` or
`none`, outputs are lost where a broker fails before its followers have them; nothing else changes in the table.
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
from typing import Any, Final, NamedTuple, Protocol

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
    may_repeat: bool
    """Whether a write may be repeated though it may have arrived, where no producer id makes the broker drop copies."""


PROMISES: Final[Mapping[Guarantee, Promise]] = {
    Guarantee.EXACTLY_ONCE: Promise(transactional=True, saves_first=False, may_repeat=True),
    Guarantee.AT_LEAST_ONCE: Promise(transactional=False, saves_first=False, may_repeat=True),
    Guarantee.AT_MOST_ONCE: Promise(transactional=False, saves_first=True, may_repeat=False),
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


class Start(NamedTuple):
    """An input as it was when choices were made: its topic id ("" where the broker has none), its committed offset."""

    topic: str
    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class Choices:
    """What an alts task reads next: runs of (topic, offset of the run's last record), in order.

    `starts` has an entry for each topic in the runs; none where an older version wrote the choices.
    """

    runs: tuple[tuple[str, int], ...] = ()
    starts: tuple[Start, ...] = ()

    def after(self, committed: Mapping[str, int]) -> Choices:
        """What is left of the choices once the positions in `committed` (topic to next offset) were delivered."""
        runs = tuple(run for run in self.runs if run[1] >= committed.get(run[0], 0))
        named = {topic for topic, _ in runs}
        return Choices(runs, tuple(start for start in self.starts if start.topic in named))

    def still_valid(self, committed: Mapping[str, int], topic_ids: Mapping[str, str]) -> tuple[Choices, list[str]]:
        """What is left of the choices, and the reasons for what was dropped though it was not delivered.

        `topic_ids` has the id of each input of today, `committed` the next offset. Runs are dropped whose topic is no
        input any more, or another topic of the same name; all are once a position was set back. The records that such
        runs name may never come, and the other inputs would wait for them.
        """
        left = self.after(committed)
        missing = {topic: f"{topic!r} is no input any more" for topic, _ in left.runs if topic not in topic_ids}
        set_back = []
        for topic, topic_id, offset in left.starts:
            if topic_id and topic_ids.get(topic, "") not in ("", topic_id):
                missing[topic] = f"{topic!r} was deleted and created again"
            elif committed.get(topic, offset) < offset:
                set_back.append(f"the position of {topic!r} was set back from {offset} to {committed[topic]}")
        if set_back:
            return Choices(), set_back
        runs = tuple(run for run in left.runs if run[0] not in missing)
        return Choices(runs, tuple(start for start in left.starts if start.topic not in missing)), [*missing.values()]

    def encode(self) -> bytes:
        """A version byte, then Avro by schemas/alts_choices.avsc."""
        buffer = BytesIO(_CHOICES_VERSION)
        buffer.seek(0, 2)
        record = {
            "runs": [{"topic": topic, "through": through} for topic, through in self.runs],
            "inputs": [{"topic": t, "topic_id": topic_id, "start": offset} for t, topic_id, offset in self.starts],
        }
        schemaless_writer(buffer, _CHOICES_SCHEMA, record)
        return buffer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Choices:
        """The inverse of `encode`, and of that of version 1; ValueError for bytes that are neither's."""
        if (written := _CHOICES_SCHEMAS.get(data[:1])) is None:
            raise ValueError(
                f"a journal record starts with {data[:1]!r}, not with a version up to {_CHOICES_VERSION!r}"
            )
        found: Any = schemaless_reader(BytesIO(data[1:]), written, _CHOICES_SCHEMA)
        return cls(
            tuple((run["topic"], run["through"]) for run in found["runs"]),
            tuple(Start(each["topic"], each["topic_id"], each["start"]) for each in found["inputs"]),
        )


_CHOICES_VERSION: Final = b"\x02"
_CHOICES: Final = json.loads((files("kstreams_py") / "schemas" / "alts_choices.avsc").read_text(encoding="utf-8"))
_CHOICES_SCHEMA: Final = parse_schema(_CHOICES)
_CHOICES_SCHEMAS: Final = {
    b"\x01": parse_schema({**_CHOICES, "fields": _CHOICES["fields"][:1]}),  # runs alone
    _CHOICES_VERSION: _CHOICES_SCHEMA,
}


# The log, as the engine needs it. Implementations: ports/kafka/ on a real cluster, testing/ in memory. Every call
# has a finite time limit of its own (settings), and raises the LogError whose name says what its caller must do.


class Consumer(Protocol):
    """One member of one group, read_committed; positions are the caller's, never its own."""

    ends: Positions
    """Per partition, the position after the last record there is, if all before it were handed out by `consume`."""

    @property
    def tainted(self) -> bool:
        """A plain commit of this member may reach the group late: finish what is open, then `rejoin`."""

    def subscribe(
        self,
        topics: Collection[str],
        assigned: Callable[[set[TopicPartition]], None],
        revoked: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        """Joins the group. No other member gets a partition between `revoked` and its return.

        `consume` calls `assigned` with the whole new assignment, of which nothing is fetched until `assign`; `revoked`
        before it ends; `lost` once the membership is over: other members may have the partitions already. A callback
        must not raise.
        """

    def rejoin(self) -> None:
        """Takes the membership with a new member id; the broker then refuses what the old one sent."""

    def assign(self, positions: Positions) -> None:
        """Fetches from exactly these positions; what was fetched before is forgotten."""

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        """Waits up to `timeout` seconds for a first record, then takes what is there, `limit` records at most.

        Returns nothing where a callback was called: every partition then starts at the next `assign`. Raises Replaced
        when another member holds this seat, InputLost where a position is below what the log still has.
        """

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        """Positions of the group, none of them pending in a transaction; without partitions that have none."""

    def commit(self, positions: Positions) -> None:
        """Commits positions outside of a transaction, and waits for it."""

    def hold_seat(self) -> bool:
        """Whether this member still holds its seat (its group.instance.id) in the group; False if nobody does.

        Raises Replaced if another member does. It asks and commits nothing: a plain commit may come late, and would
        put the group back.
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

    def write(self, outputs: list[Output]) -> None:
        """Queues outputs, in order, and takes them off the list; waits while the queue is full. Raises LogError."""

    def init_transactions(self) -> None:
        """Fences all producers of the same id; waits until their transactions are completed or aborted."""

    def begin_transaction(self) -> None: ...

    def send_offsets(self, positions: Positions, consumer: Consumer) -> None:
        """Adds the group's positions to the transaction, with the group's metadata of this moment."""

    def commit_transaction(self) -> None:
        """Raises Abortable if a delivery failed, OutcomeUnknown if no answer came in time."""

    def abort_transaction(self) -> None: ...

    def flush(self) -> None:
        """Waits until all was acknowledged.

        Raises Retriable while the broker makes no progress (nothing is lost), Refused or Abortable for what failed.
        """

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

    def consumer(self, group: str, instance_id: str, *, commits: bool = False, joins: bool = False) -> Consumer:
        """A static member of a group; `instance_id` is its group.instance.id.

        `commits` says that it commits positions itself, outside of transactions.

        `joins` says that records wait for each other once they are read: fewer of them wait in the client.
        """

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

    def grow(self, topic: str, partitions: int) -> None:
        """Gives a topic more partitions, so many in all."""

    def offsets_retention_minutes(self) -> int | None:
        """How long the cluster keeps the positions of a group without members; None if it does not say."""

    def starts(self, partitions: Collection[TopicPartition]) -> Positions:
        """The first offset of each."""

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        """The last stable offset of each."""

    def newest(self, partition: TopicPartition) -> Message | None:
        """The newest committed record; None if there is none."""

    def read(self, partition: TopicPartition) -> Sequence[Message]:
        """All committed records, in order."""

    def truncate(self, partition: TopicPartition, before: int) -> None:
        """Deletes the records below an offset."""
