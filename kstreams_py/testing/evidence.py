"""A history taken apart: what it says of each topic and transaction, and what each topic should hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from kstreams_py.errors import HistoryError
from kstreams_py.testing.history import (
    Assigned,
    Committed,
    Event,
    Fault,
    Isolation,
    Outcome,
    Phase,
    Read,
    ReadOut,
    Sent,
    Transaction,
)

Content = tuple[str, bytes | None, bytes | None]
"""Topic, key, value."""

Pair = tuple[bytes | None, bytes | None]
"""Key and value, in a topic."""

Place = tuple[int, int]
"""Partition and offset, in a topic."""


class Kind(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    DUPLICATE = "duplicate"
    FOREIGN = "foreign"
    ABORTED_READ = "aborted read"
    TORN_TRANSACTION = "torn transaction"
    PRECOMMITTED_READ = "precommitted read"
    ORDER_BROKEN = "order broken"
    OFFSETS_INCONSISTENT = "offsets inconsistent"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not be: what kind, a sentence, and the events that show it."""

    kind: Kind
    sentence: str
    evidence: tuple[Event, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What the records of a topic must lead to; of several topics: a join, one record of each partition in step.

    `outputs` gets the Read of each input and returns (topic, key, value) of each output of the step, as bytes, to
    topics in `to`; without it, a record passes through to the one topic in `to` as it is. Several for one `to` are an
    alts, or several processors. Raises HistoryError.
    """

    inputs: str | Sequence[str]
    to: str | Sequence[str]
    outputs: Callable[..., Iterable[Content]] | None = None

    def __post_init__(self) -> None:
        if self.outputs is None and (len(listed(self.inputs)) != 1 or len(listed(self.to)) != 1):
            raise HistoryError(f"{self.name}: give outputs=, a function: only one topic passes through to one other")

    @property
    def name(self) -> str:
        """In a message."""
        return f"Expected({' and '.join(listed(self.inputs))} to {', '.join(listed(self.to))})"

    def step(self, inputs: tuple[Read, ...]) -> list[tuple[str, Pair]]:
        """Topic and contents of each output that these inputs must lead to."""
        read = inputs[0]
        if self.outputs is None:
            return [(listed(self.to)[0], (read.key, read.value))]
        try:
            found = [(topic, (key, value)) for topic, key, value in self.outputs(*inputs)]
        except Exception as error:
            raise HistoryError(f"{self.name}: outputs() failed at {read}: {type(error).__name__}: {error}") from error
        for topic, (key, value) in found:
            if topic not in listed(self.to):
                raise HistoryError(f"{self.name}: outputs() returned a record for {topic!r}: add it to `to`")
            if not isinstance(key, bytes | None) or not isinstance(value, bytes | None):
                raise HistoryError(f"{self.name}: outputs() returned ({key!r}, {value!r}): return bytes or None")
        return found


def pair_of(event: Sent | Read) -> Pair:
    return event.key, event.value


def place_name(event: Sent | Read) -> str:
    """Where a record is."""
    return f"{event.topic}[{event.partition}]@{event.offset}"


def listed(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


class Cause(NamedTuple):
    """Why a record should be there: whether it must, what shows it, and its rank among those of its chain."""

    must: bool
    events: tuple[Event, ...]
    chain: object
    rank: int


@dataclass(slots=True)
class Topic:
    """What a history says of one topic."""

    sends: dict[Pair, list[Sent]] = field(default_factory=dict)
    sent_at: dict[Place, Sent] = field(default_factory=dict)
    reads: dict[Place, Read] = field(default_factory=dict)
    """What committed readers were handed: the first read of each place."""
    dirty: dict[Place, Read] = field(default_factory=dict)
    """The same of uncommitted readers."""
    read_by: defaultdict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    final: defaultdict[str, dict[int, ReadOut]] = field(default_factory=lambda: defaultdict(dict))
    ends: dict[int, int] = field(default_factory=dict)
    ordered: list[Read] = field(default_factory=list)
    """`reads` by partition and offset, without the unwanted."""
    unwanted: list[Read] = field(default_factory=list)
    """Of `reads`, those that no committed reader should have been handed."""
    seen: Counter[Pair] = field(default_factory=Counter)
    """How many of each contents are in `ordered`."""
    causes: dict[Pair, list[Cause]] = field(default_factory=dict)
    given: bool = False
    """An input of which the history does not say how it came to be."""
    _least: dict[Pair, int] = field(default_factory=dict)
    _index: dict[Pair, list[Read]] = field(default_factory=dict)

    def least(self, pair: Pair) -> int:
        """How many records of these contents there must be."""
        if pair not in self._least:
            self._least[pair] = sum(cause.must for cause in self.causes.get(pair, ()))
        return self._least[pair]

    def lacks(self, pair: Pair) -> bool:
        """Fewer records of these contents were read than there must be."""
        return self.seen[pair] < self.least(pair)

    def found(self, pair: Pair) -> Sequence[Read]:
        """The records of these contents; to be asked for evidence only, as it takes an index."""
        if not self._index:
            for read in self.ordered:
                self._index.setdefault(pair_of(read), []).append(read)
        return self._index.get(pair, [])

    def only_by(self, pair: Pair, inputs: tuple[Event, ...]) -> bool:
        """Nothing but this step leads to these contents; a step's causes follow each other."""
        return self.causes[pair][0].events is inputs and self.causes[pair][-1].events is inputs

    def check(self, name: str) -> None:
        """Raises HistoryError unless final reads say what is there, in every partition."""
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
    def proof(self) -> tuple[Event, ...]:
        """One final read."""
        return tuple(next(iter(self.final.values())).values())


@dataclass(slots=True)
class Fate:
    """A transaction: when its commit was asked for, how it ended, what was sent in it."""

    events: list[Event]
    asked: float = inf
    phase: Phase = Phase.BEGUN
    sends: list[Sent] = field(default_factory=list)

    @property
    def never(self) -> bool:
        """It cannot have been committed."""
        return self.phase in (Phase.BEGUN, Phase.ABORTED)


class Case:
    """A history taken apart: topics, transactions, and what is wrong with offsets, which shows on the way."""

    def __init__(self, rules: tuple[Expected, ...]) -> None:
        self.rules = rules
        self.topics: defaultdict[str, Topic] = defaultdict(Topic)
        self.anomalies: list[Anomaly] = []
        self._written = {name for rule in rules for name in listed(rule.to)}
        self._inputs = {name for rule in rules for name in listed(rule.inputs)}
        self.fates: dict[str, Fate] = {}
        self._isolation: dict[str, Isolation] = {}
        self._reached: defaultdict[str, dict[tuple[str, int], Read]] = defaultdict(dict)
        self._positions: dict[tuple[str, str, int], Committed] = {}
        self._rank = 0
        self.torn: set[tuple[str, Pair]] = set()
        """Topic and contents of what is missing from a transaction or step that is there in part."""
        self.forks: list[tuple[tuple[Read, ...], list[tuple[str, Pair]]]] = []
        """Inputs and outputs of each step with several outputs."""

    # What happened.

    def take(self, history: Iterable[Event]) -> None:
        """Takes all events in; raises HistoryError for a history that says too little or contradicts itself."""
        takers: dict[type[Event], Callable[[Any], object]] = {
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
                raise HistoryError(f"{event!r} is no event of a history: record it with the methods of History")
            takers[type(event)](event)
        self._check()
        for name, topic in self.topics.items():
            if name not in self._written:
                self._cause_by_sends(topic)
                topic.given = not topic.sends
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
            self._fate(event.transaction).sends.append(event)

    def _fate(self, name: str) -> Fate:
        if name not in self.fates:
            raise HistoryError(f"transaction {name!r} was never begun: use the name that History.begun returned")
        return self.fates[name]

    def _transaction(self, event: Transaction) -> None:
        name, phase = event.transaction, event.phase
        if phase is Phase.BEGUN:
            if name in self.fates:
                raise HistoryError(f"transaction {name!r} was begun twice: each needs a name of its own")
            self.fates[name] = Fate([event])
            return
        fate = self._fate(name)
        if fate.phase in (Phase.COMMITTED, Phase.ABORTED) and phase is not fate.phase:
            raise HistoryError(f"transaction {name!r} is {phase} after it was {fate.phase}")
        if phase is Phase.COMMIT_ASKED:
            fate.asked = min(fate.asked, event.at)
        elif phase is Phase.COMMITTED and fate.asked == inf:
            raise HistoryError(f"transaction {name!r} was committed without commit_asked: record it before you ask")
        fate.phase = phase
        fate.events.append(event)

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
            raise HistoryError(f"reader {event.reader!r} reads with two isolation levels: give each reader its name")

    def _committed(self, event: Committed) -> None:
        before = self._positions.get(key := (event.group, event.topic, event.partition))
        if before is not None and before.position > event.position:
            what = f"the position of group {event.group} in {event.topic}[{event.partition}] went back"
            self._inconsistent(f"{what} from {before.position} to {event.position}", before, event)
        self._positions[key] = event

    def _inconsistent(self, sentence: str, *evidence: Event) -> None:
        self.anomalies.append(Anomaly(Kind.OFFSETS_INCONSISTENT, sentence, evidence))

    def _check(self) -> None:
        declared = self._written | self._inputs | {name for name, topic in self.topics.items() if topic.sends}
        if not declared:
            raise HistoryError("the history has no sends, and nothing is expected: there is nothing to judge")
        for name in sorted({*declared, *self.topics}):
            if name not in declared:
                raise HistoryError(f"topic {name!r} was read, and nobody said what should be in it: see Expected")
            self.topics[name].check(name)
        for event in self._positions.values():
            end = self.topics[event.topic].ends.get(event.partition)
            if end is None:
                raise HistoryError(f"{event}, of which no final read gives the end: record one")
            if event.position > end:
                self._inconsistent(f"{event}, beyond its end at {end}", event, *self.topics[event.topic].proof)

    # What should be there.

    def _cause_by_sends(self, topic: Topic) -> None:
        for pair, sends in topic.sends.items():
            for sent in sends:
                if not self.never(sent):
                    # one whose outcome is unknown is recorded late: it has no place in the order
                    chain = ("sender", sent.sender) if sent.outcome is Outcome.ACKNOWLEDGED else None
                    topic.causes.setdefault(pair, []).append(Cause(self.must(sent), (sent,), chain, sent.at))

    def expect(self) -> None:
        """Derives what must be in the written topics from what is in the inputs."""
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
        outputs = rule.step(reads)
        for topic, pair in outputs:
            self._rank += 1
            self.topics[topic].causes.setdefault(pair, []).append(Cause(True, reads, chain, self._rank))
        if len(outputs) > 1:
            self.forks.append((reads, outputs))

    # What is known of a sent record.

    def must(self, sent: Sent) -> bool:
        """A committed reader of the whole topic must have been handed it."""
        if sent.outcome is not Outcome.ACKNOWLEDGED:
            return False
        return not sent.transaction or self.fates[sent.transaction].phase is Phase.COMMITTED

    def never(self, sent: Sent) -> bool:
        """No committed reader may be handed it, ever."""
        return sent.outcome is Outcome.FAILED or bool(sent.transaction and self.fates[sent.transaction].never)

    def innocent(self, read: Read, sent: Sent) -> bool:
        """Nothing is wrong with this read, if it is of this record."""
        if sent.outcome is Outcome.FAILED:
            return False
        fate = self.fates[sent.transaction] if sent.transaction else None
        return fate is None or (not fate.never and fate.asked <= read.at)

    def standing(self, sends: Sequence[Sent]) -> tuple[float, bool, bool]:
        """Of records of the same contents: when one may be read at the earliest, if never, and if one was given up."""
        fates = [self.fates[sent.transaction] if sent.transaction else None for sent in sends]
        earliest = min(-inf if fate is None else fate.asked for fate in fates)
        failed = any(sent.outcome is Outcome.FAILED for sent in sends)
        aborted = any(fate is not None and fate.phase is Phase.ABORTED for fate in fates)
        return earliest, all(map(self.never, sends)), failed or aborted

    def story(self, sends: Sequence[Sent]) -> Iterator[Event]:
        """What shows how these came to be, or not to be."""
        for sent in sends:
            yield sent
            if sent.transaction:
                yield from self.fates[sent.transaction].events


def _by_partition(topic: Topic) -> dict[int, list[Read]]:
    reads: dict[int, list[Read]] = {partition: [] for partition in topic.ends}
    for read in topic.ordered:
        reads[read.partition].append(read)
    return reads
