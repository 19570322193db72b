"""The protocols of a cluster, its consumers and its producers.

Implementations: cluster.py on a real cluster, testing/ in memory. Every call ends within a limit from the settings. A
call that fails raises the ClientError whose class tells its caller what to do. If a person has to act, the call raises
UserMistake, Unavailable, Replaced or InputLost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kstreams_py.kafka.groups import GroupOffsets, Pending
from kstreams_py.kafka.membership import Membership
from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.records import Headers, Message, Positions, TopicPartition


class Consumer(Protocol):
    """A static member of a group. It reads committed records, from offsets that its caller chooses."""

    ends: Positions
    """The end offset of each partition whose records `consume` has returned completely."""
    highs: Positions
    """The high watermark of each partition in `ends`, at most a few seconds old. Where it is above the last stable
    offset, transactions are open. The mapping is replaced as a whole: another thread may read it.
    """

    @property
    def tainted(self) -> bool:
        """Whether a commit outside of transactions may still arrive; if so, commit processed records, then `rejoin`."""

    def subscribe(
        self,
        topics: Collection[str],
        assigned: Callable[[set[TopicPartition]], None],
        revoked: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        """Joins the group. `consume` calls the callbacks, which must not raise.

        - `assigned`: gets the whole new assignment; no records of it are fetched until `assign`.
        - `revoked`: the assignment ends; no other member gets a partition until this returns.
        - `lost`: the membership is over; other members may have the partitions already.
        """

    def rejoin(self) -> None:
        """Joins with a new member id, and keeps the membership; the broker then refuses late requests of the old id.

        If partitions were added since the group's last assignment, the group assigns all of them again.
        """

    def assign(self, positions: Positions) -> None:
        """Fetches from exactly these offsets, with no partition paused. Drops records that were fetched before."""

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        """Waits up to `timeout` seconds for a first record, then returns fetched records, `limit` at most.

        The len() of a record is the length of its value. Returns nothing if it called a callback: the next `assign`
        then sets where every partition starts. Raises Replaced if another member holds this membership, and InputLost
        if the records at the next offset were deleted.
        """

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the committed offsets of the group, without partitions that have none.

        Raises Retriable while one of the offsets is pending in a transaction.
        """

    def noted(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        """Returns what `committed` returns, each offset with the text that was committed beside it; "" if none."""

    def commit(self, positions: Positions, notes: Mapping[TopicPartition, str] | None = None) -> None:
        """Commits offsets outside of a transaction, and waits for the answer.

        - `notes`: by partition, a text to keep beside its offset, 4,096 bytes at most (`offset.metadata.max.bytes` of
          the broker).

        Raises Retriable without an answer (the offsets may be committed), and Abortable if the partitions may belong to
        another member.
        """

    def membership(self) -> Membership:
        """Asks the group who holds the membership of this consumer (its group.instance.id).

        A commit outside of transactions would also show this, but could arrive late and set the group back.
        """

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stops fetching these partitions, and resumes all others."""

    def close(self) -> None:
        """Stops without leaving: the membership lasts until the session times out, or until `Cluster.leave`."""


@dataclass(frozen=True, slots=True)
class ProducerMode:
    """How a producer writes.

    - `acks`: -1 (all in-sync replicas), 1 (the leader) or 0 (no acknowledgement). With -1 the producer is idempotent:
      the broker recognizes a repeated record by its sequence number, and drops it.
    - `may_repeat`: whether a record may be written again even if it may have arrived.
    - `reports`: whether outputs may have a callback that gets the place where they were written.
    """

    transactional: bool
    acks: int
    may_repeat: bool
    reports: bool = False

    @property
    def idempotent(self) -> bool:
        return self.acks == -1


TRANSACTIONAL: Final = ProducerMode(transactional=True, acks=-1, may_repeat=True)


class Producer(Protocol):
    """Writes records; with a transactional id, in transactions."""

    @property
    def lost(self) -> Mapping[str, int]:
        """How many records the producer has given up, by topic ("" if unknown); some of them may be written.

        Records in the `outputs` of an error do not count; after `drop`, all others without acknowledgement do.
        Only a producer that does not write a record again needs to count them.
        """

    @property
    def tainted(self) -> bool:
        """Whether a request timed out or lost its connection, and may still reach the broker (KAFKA-17754)."""

    def write(self, outputs: list[Output]) -> None:
        """Queues outputs in order, and removes them from the list. Waits while the queue is full."""

    def init_transactions(self) -> None:
        """Fences all producers of the same id, and waits until their transactions are completed or aborted."""

    def begin_transaction(self) -> None: ...

    def send_offsets(self, positions: Positions, consumer: Consumer) -> None:
        """Adds offsets to the transaction, with the current metadata of the consumer's group."""

    def commit_transaction(self) -> None:
        """Commits the transaction.

        Raises Abortable if a delivery failed, and OutcomeUnknown if no answer came in time.
        """

    def abort_transaction(self) -> None: ...

    def flush(self) -> None:
        """Waits until all records are acknowledged.

        Raises Retriable if the broker makes no progress (nothing is lost), and Refused or Abortable for failed records.
        """

    def drop(self) -> None:
        """Ends the client immediately: nothing is flushed, committed or aborted."""


Report = Callable[[Any, Message], None]
"""A callback that gets an error, or None, and the record with its partition and offset."""

Output = tuple[str, bytes | None, bytes | None, int, Report | None, None, int, Headers | None]
"""A record to write, in the order of the client's arguments: a tuple, because one is made for each record.

The constants below are the indexes of its fields. Index 5, an alias of the report, is None.
"""

TOPIC: Final = 0
VALUE: Final = 1
KEY: Final = 2
PARTITION: Final = 3
"""-1: chosen by the key."""
REPORT: Final = 4
"""The callback of the delivery, for a producer that reports."""
TIMESTAMP: Final = 6
"""Milliseconds; 0: now."""
HEADERS: Final = 7


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker describes it.

    - `topic_id`: "" if it has none.
    - `settings`: all settings.
    - `own_settings`: the names of the settings made for this topic; the others are the broker's defaults.
    """

    name: str
    topic_id: str
    partitions: int
    replication: int
    settings: Mapping[str, str]
    own_settings: tuple[str, ...] = ()

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted: any of its records may be deleted, not only the oldest."""
        return "compact" in self.settings.get("cleanup.policy", "")


class Partitions(Protocol):
    """Reads partitions without a group."""

    def starts(self, partitions: Collection[TopicPartition], since: int | None = None) -> Positions:
        """Returns the first offset of each partition.

        - `since`: returns the offset of the first record with this timestamp (milliseconds since 1970) or a later one
          instead; the end of the partition if there is none.
        """

    def ends(self, partitions: Collection[TopicPartition], *, committed: bool = True) -> Positions:
        """Returns the last stable offset of each partition; without `committed`, the offset after its last record."""

    def newest(self, partition: TopicPartition) -> Message | None:
        """Returns the newest committed record of a partition; None if it has none."""

    def read(
        self, partition: TopicPartition, start: int = 0, limit: int | None = None, *, committed: bool = True
    ) -> Sequence[Message]:
        """Returns committed records of a partition, in order.

        - `start`: the first offset to read.
        - `limit`: the maximum number of records to return; None for all.
        - `committed`: if False, records of open and aborted transactions are returned, too.
        """


class Cluster(Partitions, Protocol):
    """A Kafka cluster."""

    def named(self, name: str) -> Cluster:
        """Returns a cluster by its name in the settings; this one for "". Raises SettingsError for an unknown name."""

    def consumer(
        self, group: str, instance_id: str, *, commits: bool = False, joins: bool = False, pauses: bool = False
    ) -> Consumer:
        """Makes a static member of a group.

        - `instance_id`: its group.instance.id.
        - `commits`: whether it commits offsets itself, outside of transactions.
        - `joins`: whether the records of its inputs wait for each other: the client then fetches fewer of them ahead.
        - `pauses`: whether it often pauses partitions, and must get records soon after it resumes them.
        """

    def producer(self, mode: ProducerMode, transactional_id: str, batch_bytes: int | None = None) -> Producer:
        """Makes a producer.

        - `transactional_id`: its transactional.id if the mode is transactional; otherwise only its name.
        - `batch_bytes`: no batch is larger, unless a single record is; None for the client's default.
        """

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """Returns the topics that exist, by name."""

    def create_topics(self, topics: Iterable[tuple[str, int, int, Mapping[str, str]]]) -> None:
        """Creates topics, each (name, partitions, replication (-1: the broker's), settings), and waits for them."""

    def delete_topics(self, names: Collection[str]) -> None:
        """Deletes topics, and waits until they are gone. Ignores names that do not exist.

        Kafka also deletes the committed offsets of their partitions, in every group. Raises TopicError if the brokers
        do not delete topics; some topics may be deleted by then.
        """

    def leave(self, consumer: Consumer) -> bool:
        """Removes the static member of a closed consumer, so that its partitions move immediately.

        Returns whether the member was removed: a membership that this consumer does not hold (any more) is left alone.
        """

    def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        """Returns the committed offsets of a group, including partitions with an offset pending in a transaction."""

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        """Returns which of these partitions have an offset pending in a transaction, and the open transactions."""

    def open_transactions(self, partition: TopicPartition) -> tuple[OpenTransaction, ...]:
        """Returns the transactions that are open on a partition, in order of their producer ids."""

    def hanging(
        self, transactional_id: str, partitions: Collection[TopicPartition], group: str = ""
    ) -> dict[TopicPartition, OpenTransaction]:
        """Returns the transactions of an id that are open on these partitions and that its coordinator will not end.

        - `group`: the partition that keeps the offsets of this group is checked, too; "" if there is none.

        Leaves out partitions that this user may not read. Raises Retriable without an answer, and TopicError for a
        topic that does not exist.
        """

    def grow(self, topic: str, partitions: int) -> None:
        """Adds partitions to a topic, until it has `partitions` in all."""

    def offsets_retention_minutes(self) -> int | None:
        """Returns the minutes for which the committed offsets of a group without members are kept; None if unknown."""

    def truncate(self, partition: TopicPartition, before: int) -> None:
        """Deletes the records before the offset `before`."""
