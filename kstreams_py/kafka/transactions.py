"""Open transactions, as partition leaders and coordinators see them, and which of them never end."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kstreams_py.records import TopicPartition

TRANSACTIONS_TOPIC: Final = "__transaction_state"
"""The topic in which brokers keep the transactions that they coordinate."""

ONGOING: Final = "Ongoing"

STATES: Final = (
    "Empty",
    ONGOING,
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
"""Kafka's names for the states of a transactional id."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id in the list of a coordinator; `coordinator` is the number of that broker."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class Coordinated:
    """The newest transaction of a transactional id, as its coordinator describes it.

    - `coordinator`: the number of that broker.
    - `timeout`: seconds after which the coordinator aborts it.
    - `started_at`: in seconds since 1970; None if there was no transaction since the producer started.
    - `partitions`: the partitions on which the coordinator will end it; none once the coordinator calls it complete.
    """

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    coordinator: int
    timeout: float
    started_at: float | None
    partitions: frozenset[TopicPartition]

    def will_end(self, partition: TopicPartition, epoch: int) -> bool:
        """Returns whether the coordinator will end a transaction that a producer of this epoch has open on a partition.

        A coordinator that prepares to end a transaction may have raised the epoch already.
        """
        return partition in self.partitions and (self.state != ONGOING or self.epoch == epoch)


@dataclass(frozen=True, slots=True)
class Writer:
    """A producer that has a transaction open on a partition, as the leader describes it; see OpenTransaction."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    start: int
    written_at: float


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open on a partition.

    - `coordinator_epoch`: the epoch in the producer's last marker on the partition; -1 if there is none.
    - `start`: the offset of its first record.
    - `written_at`: the time of its last record, in seconds since 1970; the producer may have set it.
    - `transactional_id`: "" if no coordinator names it.
    - `hangs`: whether its coordinator will not end it, so that it never ends by itself; None if no coordinator
      shows it to this user. Kafka leaves out transactional ids on which the user lacks DESCRIBE, without an error.
    - `state`: the state of its transactional id at the coordinator; "" if no coordinator names it.
    - `started_at`: when it began, in seconds since 1970; None unless its coordinator will end it.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int
    start: int
    written_at: float
    transactional_id: str
    hangs: bool | None
    state: str = ""
    started_at: float | None = None

    @property
    def identity(self) -> tuple[int, int, int]:
        """Producer id, epoch and first offset, which together identify it on the partition."""
        return self.producer_id, self.epoch, self.start

    def age(self, now: float) -> float:
        """Returns its age in seconds, since its last record if its start is unknown; `now` is in seconds since 1970."""
        return max(0.0, now - (self.written_at if self.started_at is None else self.started_at))

    def describe(self, now: float) -> str:
        """Returns this transaction in one line; `now` is in seconds since 1970."""
        name = f" ({self.transactional_id})" if self.transactional_id else ""
        producer = f"producer {self.producer_id} epoch {self.epoch}{name}"
        return f"{producer} from offset {self.start}, {self.age(now):.0f} s old: {self.describe_end()}"

    def describe_end(self) -> str:
        """Returns, in words, whether it ends by itself."""
        if self.hangs is None:
            return "no coordinator shows it to this user: it hangs, or DESCRIBE on its transactional id is missing"
        if self.hangs:
            return f"its coordinator ({self.state}) will not end it: it never ends by itself"
        return "its coordinator will end it"


def command(verb: str, partition: TopicPartition, start: int) -> str:
    """Returns the command that ends a transaction on a partition; `verb` is abort or commit."""
    topic, number = partition
    return f"kstreams transactions {verb} --topic {topic} --partition {number} --start-offset {start}"


def cluster_option(name: str) -> str:
    """Returns the option of a printed command that names another cluster; "" for the graph's own, whose name is ""."""
    return f" --cluster {shlex.quote(name)}" if name else ""


def place_options(bootstrap_servers: str, cluster: str = "") -> str:
    """Returns the options of a printed command that name a cluster.

    `cluster`: its name in the settings; "" for the graph's own, which is named by its address.
    """
    return cluster_option(cluster) or f" --bootstrap-servers {shlex.quote(bootstrap_servers)}"


def find_command(options: str, topics: Collection[str] = ()) -> str:
    """Returns the command that finds hanging transactions, and prints the commands that end them.

    - `options`: see place_options().
    - `topics`: the topics that it looks at; empty for all.
    """
    named = "".join(f" --topic {topic}" for topic in sorted(topics))
    return f"kstreams transactions find-hanging{named}{options}"


def find_command_at(bootstrap_servers: str, topics: Collection[str] = ()) -> str:
    """Returns find_command() for the cluster at this address."""
    return find_command(place_options(bootstrap_servers), topics)


def match(
    partition: TopicPartition,
    before: Collection[Writer],
    known: Mapping[int, Coordinated],
    after: Collection[Writer],
) -> tuple[OpenTransaction, ...]:
    """Returns the open transactions of a partition, in order of their producer ids; `known` is by producer id.

    The coordinators were asked between two reads of the partition's writers (`before`, `after`): a transaction that
    ends in between is complete for its coordinator, but does not hang, because it is missing from `after`.
    """
    still = {(each.producer_id, each.epoch, each.start) for each in after}
    found = sorted((w for w in before if (w.producer_id, w.epoch, w.start) in still), key=lambda w: w.producer_id)
    return tuple(_open_transaction(partition, writer, known.get(writer.producer_id)) for writer in found)


def _open_transaction(partition: TopicPartition, writer: Writer, known: Coordinated | None) -> OpenTransaction:
    ends = None if known is None else known.will_end(partition, writer.epoch)
    return OpenTransaction(
        producer_id=writer.producer_id,
        epoch=writer.epoch,
        coordinator_epoch=writer.coordinator_epoch,
        start=writer.start,
        written_at=writer.written_at,
        transactional_id="" if known is None else known.transactional_id,
        hangs=None if ends is None else not ends,
        state="" if known is None else known.state,
        started_at=known.started_at if known is not None and ends else None,
    )
