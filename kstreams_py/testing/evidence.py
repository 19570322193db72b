"""A history by topic and transaction, and the causes of the records that each topic should hold.

A Case keeps the events, because the events that show an anomaly are its evidence. Offsets that contradict each other
are anomalies themselves; an incomplete history raises HistoryError.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from kstreams_py.errors import HistoryError
from kstreams_py.graph.anomalies import Kind
from kstreams_py.testing.events import (
    Assigned,
    Committed,
    Fault,
    HistoryEvent,
    Isolation,
    Outcome,
    Phase,
    Read,
    ReadOut,
    Sent,
    Transaction,
)
from kstreams_py.testing.expected import Expected, Pair, listed, pair_of
from kstreams_py.testing.verdicts import Anomaly, Comparison, compare

Place = tuple[int, int]
"""Partition and offset, in a topic."""


def place_name(event: Sent | Read) -> str:
    """Formats the place of a record."""
    return f"{event.topic}[{event.partition}]@{event.offset}"


class Cause(NamedTuple):
    """Why a record should be in a topic.

    - `must`: whether there has to be at least one copy.
    - `events`: the evidence.
    - `chain`: causes of one chain have an order; None for a cause without one.
    - `rank`: the place in that order.
    - `repeats`: whether there may be any number of copies; otherwise at most one.
    """

    must: bool
    events: tuple[HistoryEvent, ...]
    chain: object
    rank: int
    repeats: bool = False


_REPEATS = attrgetter("repeats")


@dataclass(slots=True)
class TopicEvidence:
    """The records of one topic in a history: sent, read, and expected."""

    sends: dict[Pair, list[Sent]] = field(default_factory=dict)
    sent_at: dict[Place, Sent] = field(default_factory=dict)
    reads: dict[Place, Read] = field(default_factory=dict)
    """The first read of each place by a committed reader."""
    dirty: dict[Place, Read] = field(default_factory=dict)
    """The first read of each place by an uncommitted reader."""
    read_by: defaultdict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    final: defaultdict[str, dict[int, ReadOut]] = field(default_factory=lambda: defaultdict(dict))
    ends: dict[int, int] = field(default_factory=dict)
    ordered: list[Read] = field(default_factory=list)
    """`reads` by partition and offset, without records that no committed reader should have read."""
    seen: Counter[Pair] = field(default_factory=Counter)
    """The number of records in `ordered`, by contents."""
    causes: dict[Pair, list[Cause]] = field(default_factory=dict)
    is_assumed: bool = False
    """Whether it is an input that nothing was sent to: its records are assumed to be right."""
    _least: dict[Pair, int] = field(default_factory=dict)
    _index: dict[Pair, list[Read]] = field(default_factory=dict)

    def keep(self, wanted: list[Read]) -> None:
        """Keeps only these records in `ordered`."""
        self.ordered = wanted
        self.seen = Counter(map(pair_of, wanted))

    def least(self, pair: Pair) -> int:
        """Returns the least number of records with these contents that must exist."""
        if pair not in self._least:
            self._least[pair] = sum(cause.must for cause in self.causes.get(pair, ()))
        return self._least[pair]

    def compared(self) -> Comparison[Pair]:
        """Compares the records that were read with their causes."""
        least = {pair: self.least(pair) for pair in self.causes}
        most = {pair: inf if any(map(_REPEATS, causes)) else len(causes) for pair, causes in self.causes.items()}
        return compare(self.seen, least, most)

    def lacks(self, pair: Pair) -> bool:
        """Returns whether fewer records with these contents were read than must exist."""
        return self.seen[pair] < self.least(pair)

    def found(self, pair: Pair) -> Sequence[Read]:
        """Returns the records with these contents. For evidence only: the first call builds an index."""
        if not self._index:
            for read in self.ordered:
                self._index.setdefault(pair_of(read), []).append(read)
        return self._index.get(pair, [])

    def only_by(self, pair: Pair, inputs: tuple[HistoryEvent, ...]) -> bool:
        """Returns whether this step is the only cause of these contents; the causes of a step follow each other."""
        return self.causes[pair][0].events is inputs and self.causes[pair][-1].events is inputs

    def check(self, name: str) -> None:
        """Raises HistoryError unless final reads cover every partition."""
        if not self.final:
            raise HistoryError(f"no committed reader has read all of topic {name!r}: record a final_read of it")
        numbers = {number for places in (self.reads, self.dirty, self.sent_at) for number, _ in places}
        if nowhere := numbers - set(self.ends):
            raise HistoryError(f"no final read of {name!r} gives the end of partition {min(nowhere)}: give it")
        for reader, ends in self.final.items():
            if lacking := set(self.ends) - set(ends):
                raise HistoryError(f"{reader}'s final read of {name!r} leaves out partition {min(lacking)}: read it")
            if beyond := [place for place in self.read_by[reader] if place[1] >= ends[place[0]].end]:
                raise HistoryError(f"{reader} read {name}[{beyond[0][0]}]@{beyond[0][1]}, beyond the end that it gives")

    @property
    def proof(self) -> tuple[HistoryEvent, ...]:
        """The events of one final read."""
        return tuple(next(iter(self.final.values())).values())


@dataclass(slots=True)
class TransactionEvents:
    """A transaction: when its commit was requested, its newest phase, and the records sent in it."""

    events: list[HistoryEvent]
    asked: float = inf
    phase: Phase = Phase.BEGUN
    sends: list[Sent] = field(default_factory=list)

    @property
    def never(self) -> bool:
        """Whether it was certainly not committed."""
        return self.phase in (Phase.BEGUN, Phase.ABORTED)


class Case:
    """A history by topic and transaction, with the anomalies of offsets that `take` finds."""

    def __init__(self, rules: tuple[Expected, ...]) -> None:
        self.rules = rules
        self.topics: defaultdict[str, TopicEvidence] = defaultdict(TopicEvidence)
        self.anomalies: list[Anomaly] = []
        self._written = {name for rule in rules for name in listed(rule.to)}
        self._inputs = {name for rule in rules for name in listed(rule.inputs)}
        self.transactions: dict[str, TransactionEvents] = {}
        self._isolation: dict[str, Isolation] = {}
        self._reached: defaultdict[str, dict[tuple[str, int], Read]] = defaultdict(dict)
        self._positions: dict[tuple[str, str, int], Committed] = {}
        self._rank = 0
        self.torn: set[tuple[str, Pair]] = set()
        """Topic and contents of records that are missing from a torn transaction or step."""
        self.forks: list[tuple[tuple[Read, ...], list[tuple[str, Pair]]]] = []
        """Inputs and outputs of each step with several outputs."""

    # The events.

    def take(self, history: Iterable[HistoryEvent]) -> None:
        """Takes all events. Raises HistoryError for a history that is incomplete or contradicts itself."""
        takers: dict[type[HistoryEvent], Callable[[Any], object]] = {
            Sent: self._sent,
            Transaction: self._transaction,
            Read: self._read,
            Assigned: lambda event: self._reached.pop(event.reader, None),
            ReadOut: self._read_out,
            Committed: self._committed,
            Fault: lambda _: None,
        }
        for event in sorted(history, key=lambda event: getattr(event, "at", 0)):
            if type(event) not in takers:
                raise HistoryError(f"{event!r} is not an event of a history: record it with the methods of History")
            takers[type(event)](event)
        self._check()
        for name, topic in self.topics.items():
            if name not in self._written:
                self._cause_by_sends(topic)
                topic.is_assumed = not topic.sends
            topic.ordered = [topic.reads[place] for place in sorted(topic.reads)]
            for place, read in topic.dirty.items():
                self._compare(topic.reads.get(place, read), read)

    def _sent(self, event: Sent) -> None:
        topic = self.topics[event.topic]
        topic.sends.setdefault(pair_of(event), []).append(event)
        if event.offset >= 0:
            other = topic.sent_at.setdefault((event.partition, event.offset), event)
            if other is not event:
                self._inconsistent(f"two records were acknowledged at {place_name(event)}", other, event)
        if event.transaction:
            self._find_transaction(event.transaction).sends.append(event)

    def _find_transaction(self, name: str) -> TransactionEvents:
        if name not in self.transactions:
            raise HistoryError(f"transaction {name!r} was never begun: use the name that History.begun returned")
        return self.transactions[name]

    def _transaction(self, event: Transaction) -> None:
        name, phase = event.transaction, event.phase
        if phase is Phase.BEGUN:
            if name in self.transactions:
                raise HistoryError(f"transaction {name!r} was begun twice: each needs a name of its own")
            self.transactions[name] = TransactionEvents([event])
            return
        found = self._find_transaction(name)
        if found.phase in (Phase.COMMITTED, Phase.ABORTED) and phase is not found.phase:
            raise HistoryError(f"transaction {name!r} is {phase} after it was {found.phase}")
        if phase is Phase.COMMIT_ASKED:
            found.asked = min(found.asked, event.at)
        elif phase is Phase.COMMITTED and found.asked == inf:
            raise HistoryError(f"transaction {name!r} was committed without commit_asked: record it before you ask")
        found.phase = phase
        found.events.append(event)

    def _read(self, event: Read) -> None:
        topic, place, line = self.topics[event.topic], (event.partition, event.offset), (event.topic, event.partition)
        self._check_isolation(event)
        if event.reader in topic.final:
            raise HistoryError(f"{event}, after its final read: record read_out once nothing more can come")
        reads = topic.reads if event.isolation is Isolation.COMMITTED else topic.dirty
        self._compare(reads.setdefault(place, event), event)
        reached = self._reached[event.reader]
        last = reached.get(line)
        if last is not None and last.offset >= event.offset:
            self._inconsistent(f"{event.reader} read {place_name(event)} after offset {last.offset}", last, event)
        reached[line] = event
        topic.read_by[event.reader].append(place)

    def _compare(self, one: Read, other: Read) -> None:
        if one is not other and pair_of(one) != pair_of(other):
            self._inconsistent(f"{place_name(one)} was read with two contents", one, other)

    def _read_out(self, event: ReadOut) -> None:
        topic = self.topics[event.topic]
        self._check_isolation(event)
        topic.ends[event.partition] = max(event.end, topic.ends.get(event.partition, 0))
        if event.isolation is Isolation.COMMITTED:
            topic.final[event.reader][event.partition] = event

    def _check_isolation(self, event: Read | ReadOut) -> None:
        if self._isolation.setdefault(event.reader, event.isolation) is not event.isolation:
            raise HistoryError(f"reader {event.reader!r} reads with two isolation levels: give each a name of its own")

    def _committed(self, event: Committed) -> None:
        before = self._positions.get(key := (event.group, event.topic, event.partition))
        if before is not None and before.position > event.position:
            what = f"the position of group {event.group} in {event.topic}[{event.partition}] went back"
            self._inconsistent(f"{what} from {before.position} to {event.position}", before, event)
        self._positions[key] = event

    def _inconsistent(self, sentence: str, *evidence: HistoryEvent) -> None:
        self.anomalies.append(Anomaly(Kind.OFFSETS_INCONSISTENT, sentence, evidence))

    def _check(self) -> None:
        declared = self._written | self._inputs | {name for name, topic in self.topics.items() if topic.sends}
        if not declared:
            raise HistoryError("the history has no sends, and nothing is expected: there is nothing to judge")
        for name in sorted({*declared, *self.topics}):
            if name not in declared:
                raise HistoryError(f"topic {name!r} was read, and nothing declares its records: add an Expected for it")
            self.topics[name].check(name)
        for event in self._positions.values():
            end = self.topics[event.topic].ends.get(event.partition)
            if end is None:
                raise HistoryError(f"{event}, and no final read has its end: record one")
            if event.position > end:
                self._inconsistent(f"{event}, beyond its end at {end}", event, *self.topics[event.topic].proof)

    def judged(self) -> Iterator[tuple[str, TopicEvidence]]:
        """Yields the topics to judge, by name: all but inputs that nothing was sent to."""
        return ((name, topic) for name, topic in self.topics.items() if not topic.is_assumed)

    # The causes.

    def _cause_by_sends(self, topic: TopicEvidence) -> None:
        for pair, sends in topic.sends.items():
            for sent in sends:
                if not self.never(sent):
                    # a record with an unknown outcome is recorded late, so it has no place in the order
                    chain = ("sender", sent.sender) if sent.outcome is Outcome.ACKNOWLEDGED else None
                    topic.causes.setdefault(pair, []).append(Cause(self.must(sent), (sent,), chain, sent.at))

    def expect(self) -> None:
        """Derives the causes of the records in the written topics from the records of the inputs."""
        for index, rule in enumerate(self.rules):
            inputs = [self.topics[name] for name in listed(rule.inputs)]
            if odd := [topic for topic in inputs if topic.ends.keys() != inputs[0].ends.keys()]:
                raise HistoryError(f"{rule.name}: {len(inputs[0].ends)} and {len(odd[0].ends)} partitions do not join")
            rows = [_by_partition(topic) for topic in inputs]
            for partition in inputs[0].ends:
                chain = (index, partition)
                for reads in zip(*(row[partition] for row in rows), strict=False):
                    self._step(rule, chain, reads)

    def _step(self, rule: Expected, chain: object, reads: tuple[Read, ...]) -> None:
        outputs, tolerated = rule.step(reads), rule.tolerated
        must, repeats = Kind.LOST not in tolerated, Kind.DUPLICATE in tolerated
        for topic, pair in outputs:
            self._rank += 1
            self.topics[topic].causes.setdefault(pair, []).append(Cause(must, reads, chain, self._rank, repeats))
        if len(outputs) > 1 and Kind.TORN_TRANSACTION not in tolerated:
            self.forks.append((reads, outputs))

    # Whether a sent record must be read, or must not.

    def must(self, sent: Sent) -> bool:
        """Returns whether a committed reader of the whole topic must have read this record."""
        if sent.outcome is not Outcome.ACKNOWLEDGED:
            return False
        return not sent.transaction or self.transactions[sent.transaction].phase is Phase.COMMITTED

    def never(self, sent: Sent) -> bool:
        """Returns whether no committed reader may ever read this record."""
        return sent.outcome is Outcome.FAILED or bool(sent.transaction and self.transactions[sent.transaction].never)

    def innocent(self, read: Read, sent: Sent) -> bool:
        """Returns whether this read is right, assuming that it read this record."""
        if sent.outcome is Outcome.FAILED:
            return False
        found = self.transactions[sent.transaction] if sent.transaction else None
        return found is None or (not found.never and found.asked <= read.at)

    def standing(self, sends: Sequence[Sent]) -> tuple[float, bool, bool]:
        """Returns when equal records may first be read, whether none may be, and whether one failed or was aborted."""
        transactions = [self.transactions[sent.transaction] if sent.transaction else None for sent in sends]
        earliest = min(-inf if found is None else found.asked for found in transactions)
        failed = any(sent.outcome is Outcome.FAILED for sent in sends)
        aborted = any(found is not None and found.phase is Phase.ABORTED for found in transactions)
        return earliest, all(map(self.never, sends)), failed or aborted

    def story(self, sends: Sequence[Sent]) -> Iterator[HistoryEvent]:
        """Yields the sends, each with the events of its transaction."""
        for sent in sends:
            yield sent
            if sent.transaction:
                yield from self.transactions[sent.transaction].events


def _by_partition(topic: TopicEvidence) -> dict[int, list[Read]]:
    reads: dict[int, list[Read]] = {partition: [] for partition in topic.ends}
    for read in topic.ordered:
        reads[read.partition].append(read)
    return reads
