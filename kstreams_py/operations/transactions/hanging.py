"""What an open transaction holds back, what its coordinator decided about it, and what follows from both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kstreams_py.graph.declarations import Topic, changelog_of
from kstreams_py.graph.names import runs_topic
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.groups import POSITIONS_TOPIC
from kstreams_py.kafka.log_batches import Log, Prepared, committed_offsets
from kstreams_py.kafka.transactions import OpenTransaction, command
from kstreams_py.printable import join_lines
from kstreams_py.records import TopicPartition


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The records and offsets that a transaction holds back on its partition.

    - `records`: how many records it has written to the partition.
    - `positions`: the committed offsets among them, by group, if the partition is one of POSITIONS_TOPIC.
    - `waiting`: how many committed records of other producers can be read once it has ended.
    - `behind`: the offset of the next open transaction, at which readers of committed records then stop; None if none.
    - `is_complete`: False if the partition was not read to its end: there are more records.
    """

    records: int
    positions: Mapping[str, Mapping[TopicPartition, int]]
    waiting: int
    behind: int | None
    is_complete: bool


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """Whether a transaction was committed; None if that is unknown, with the reason in `why`."""

    is_committed: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class FoundTransaction:
    """A transaction that is open on a partition; `held` and `decision` are not read for one that ends by itself."""

    partition: TopicPartition
    transaction: OpenTransaction
    held: HeldBack | None = None
    decision: CommitDecision = field(default=CommitDecision(None))

    @property
    def verb(self) -> str:
        """The command that ends it."""
        return "commit" if self.decision.is_committed else "abort"


NOT_DECIDED: Final = "its coordinator's log has no decision about this partition"
NOT_READ: Final = "the log of its coordinator was not read to its end in time"
NOT_SHOWN: Final = "no coordinator shows its transactional id"


def is_found(transaction: OpenTransaction, limit: float, now: float) -> bool:
    """Returns whether to report a transaction: it hangs, or is older than `limit`. Times are in seconds."""
    return transaction.hangs is True or transaction.age(now) >= limit


def topics_of(graph: Graph, cluster: str = "") -> set[str]:
    """Returns all topics of a cluster that the workers, replays and pipelines of a graph read or write.

    - `cluster`: "" for the graph's own cluster, which also has the topic of its groups' offsets.
    """
    own: set[str | None] = {topic.name for topic in graph.topics.values() if topic.cluster == cluster}
    own |= {graph.delivered(processor) for processor in graph.processors if processor.cluster == cluster}
    if not cluster:
        own |= {graph.journal_topic(processor) for processor in graph.processors}
        own |= {changelog_of(graph.name, processor) for processor in graph.processors}
        own |= {runs_topic(each.target.name) for each in graph.pipelines if isinstance(each.target, Topic)}
        own |= {graph.beginnings, graph.replayed, POSITIONS_TOPIC}
    return {topic for topic in own if topic is not None}


def clusters_of(graph: Graph) -> list[str]:
    """Returns the names of the clusters that a graph uses; "", its own, is the first."""
    return sorted({"", *(topic.cluster for topic in graph.topics.values())})


def order(found: Iterable[FoundTransaction]) -> list[FoundTransaction]:
    """Sorts transactions in the order in which they must be ended: outputs before committed offsets.

    Once its offsets can be read, a worker goes on, and its next transaction commits the last one's hanging outputs.
    """
    return sorted(found, key=lambda f: (f.partition.topic == POSITIONS_TOPIC, f.partition, f.transaction.start))


def decide(
    decisions: Sequence[Prepared], is_complete: bool, partition: TopicPartition, transaction: OpenTransaction
) -> CommitDecision:
    """Returns what the coordinator decided about a transaction on a partition.

    This is the last decision that names the producer and the partition. A later transaction of the producer with this
    partition would have ended this one. An earlier one was decided before this one's last record was written.
    """
    of_both = [
        each for each in decisions if each.producer_id == transaction.producer_id and partition in each.partitions
    ]
    if of_both and of_both[-1].updated_at >= transaction.written_at:
        return CommitDecision(of_both[-1].commits)
    return CommitDecision(None, NOT_DECIDED if is_complete else NOT_READ)


def hold(log: Log, transaction: OpenTransaction, others: Collection[OpenTransaction]) -> HeldBack:
    """Returns what a transaction holds back, from the log of its partition beginning with its first record.

    - `others`: the other open transactions on the partition.
    """
    own = [b for b in log.batches if b.producer_id == transaction.producer_id and b.commits is None]
    stop = min((other.start for other in others), default=None)
    return HeldBack(
        records=sum(batch.size for batch in own),
        positions=committed_offsets(own),
        waiting=_count_committed(log, transaction.producer_id, stop),
        behind=stop,
        is_complete=log.is_complete,
    )


def _count_committed(log: Log, but_of: int, stop: int | None) -> int:
    """Returns how many records before the offset `stop` are committed, not counting one producer's records."""
    committed, undecided = 0, dict[int, int]()
    for batch in log.batches:
        if batch.producer_id == but_of and batch.is_transactional:
            continue
        if batch.commits is not None:
            decided = undecided.pop(batch.producer_id, 0)
            committed += decided if batch.commits else 0
        elif stop is None or batch.first < stop:
            if batch.is_transactional:
                undecided[batch.producer_id] = undecided.get(batch.producer_id, 0) + batch.size
            else:
                committed += batch.size
    return committed


# As text and as JSON.


def describe(found: FoundTransaction, now: float, options: str = "") -> str:
    """Returns a transaction, what it holds back, and the command that ends it, as text.

    - `now`: seconds since 1970.
    - `options`: the options of the command that name the cluster.
    """
    return join_lines([headline(found, now), *(f"  {line}" for line in _lines(found, options))])


def headline(found: FoundTransaction, now: float) -> str:
    """Returns a transaction with its partition in one line."""
    return f"{found.partition}: {found.transaction.describe(now)}"


def _lines(found: FoundTransaction, options: str) -> Iterator[str]:
    yield from consequences(found)
    if found.transaction.hangs is False:
        yield "do not end it: start its producer again, which ends it, or wait for the timeout of the transaction"
    else:
        yield command(found.verb, found.partition, found.transaction.start) + options


def consequences(found: FoundTransaction) -> Iterator[str]:
    """Yields which records become visible and which are discarded if the transaction is ended with its `verb`."""
    if (held := found.held) is None:
        return
    more = "" if held.is_complete else "at least "
    if found.decision.is_committed:
        yield f"its coordinator has committed it: a commit makes {more}{_records(held.records)} of its own visible"
    else:
        known = "its coordinator did not commit it"
        if found.decision.is_committed is None:
            known = f"whether it was committed is not known: {found.decision.why}"
        yield f"{known}; an abort discards {more}{_records(held.records)} of its own for good"
    for group, positions in sorted(held.positions.items()):
        offsets = ", ".join(f"{tp} at {offset}" for tp, offset in sorted(positions.items()))
        yield f"it pins the positions of group {group!r}, and would commit {offsets}"
    if found.partition.topic == POSITIONS_TOPIC:
        return  # the offsets of each group are held by its own transactions only
    yield f"{more}{_records(held.waiting)} of other, committed transactions wait behind it"
    if held.behind is not None:
        yield f"readers of committed records stop then at offset {held.behind}, where another transaction is open"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def as_fields(found: FoundTransaction, now: float, options: str = "") -> dict[str, Any]:
    """Returns a transaction as fields for JSON; `now` is in seconds since 1970."""
    transaction, held = found.transaction, found.held
    fields: dict[str, Any] = {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "start_offset": transaction.start,
        "transactional_id": transaction.transactional_id or None,
        "state": transaction.state or None,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "seconds": round(transaction.age(now), 1),
        "hangs": transaction.hangs,
        "committed": found.decision.is_committed,
    }
    if held is not None:
        fields["records"] = held.records
        fields["waiting"] = held.waiting
        fields["readers_stop_at"] = held.behind
        fields["complete"] = held.is_complete
        fields["positions"] = {
            group: [
                {"topic": tp.topic, "partition": tp.partition, "offset": offset}
                for tp, offset in sorted(positions.items())
            ]
            for group, positions in sorted(held.positions.items())
        }
    if transaction.hangs is not False:
        fields["command"] = command(found.verb, found.partition, transaction.start) + options
    return fields
