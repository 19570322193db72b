"""Audits the processors of a graph from its inputs, outputs, journals and committed offsets; changes nothing."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import RecoveryUndecidable, Retriable
from kstreams_py.graph.anomalies import Kind
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.hashes import hash_prefix, joined_hash
from kstreams_py.graph.limits import why_not_audited, why_not_judged
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.committed import CommittedReader, find_all_topics
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.pages import open_pages
from kstreams_py.operations.recover.audit_report import AuditReport
from kstreams_py.operations.recover.comparison import Audit, FoundAnomaly, JoinedSteps, JudgedSteps, SingleSteps
from kstreams_py.operations.recover.positions import partitions_of, select
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.commits.opening import open_journal
from kstreams_py.processing.dead_letters.letters import LetterPlace
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.topics import ask_clusters
from kstreams_py.records import HASH_HEADER, Message, Positions, TopicPartition, readable_headers
from kstreams_py.steps.environment import Environment

HASH_BYTES: Final = 16

SHOWN: Final = 20
"""Default number of anomalies that a report shows for each processor."""


@dataclass(frozen=True, slots=True)
class AuditScope:
    """The scope of an audit.

    - `processors`: the ids of processors; empty for all.
    - `since`, `until`: only inputs from `since` on and before `until`, in milliseconds since 1970; None for no limit.
    - `every`: each input must have an output or a dead letter.
    """

    processors: Collection[str] = ()
    since: int | None = None
    until: int | None = None
    every: bool = False


def audit(graph: Graph, environment: Environment, selection: AuditScope, shown: int = SHOWN) -> list[AuditReport]:
    """Audits a graph, and returns a report for each processor.

    - `shown`: the maximum number of anomalies that a report shows for a processor.

    Raises UserMistake for a processor that the graph does not have, and TopicError if a topic is missing.
    """
    chosen = {select(graph, each).id for each in selection.processors} or {each.id for each in graph.processors}
    run = _Run(graph, environment, selection, shown, chosen)
    run.run()
    return [report for report in run.reports if report.processor in chosen]


class _Subject:
    """A processor that is audited, and its inputs as they are read.

    - `outputs`: the topics in which its outputs are judged.
    - `before`: its committed offsets before anything else is read.
    """

    def __init__(
        self, group: str, processor: Processor, topics: Mapping[str, TopicInfo], before: Positions, report: AuditReport
    ) -> None:
        self.processor, self.before, self.report = processor, before, report
        self.partitions = partitions_of(processor, topics)
        reason = why_not_judged(processor)
        self.outputs = () if reason else processor.outputs
        if reason:
            report.notes.append(f"only dead letters and positions are judged: {reason}")
        self._group = group
        self._ids = {topic.name: topics[topic.name].topic_id for topic in processor.inputs}
        self._compacted = {topic.name for topic in processor.inputs if topics[topic.name].is_compacted}
        self._single: dict[TopicPartition, SingleSteps] = {}
        self._joined: dict[TopicPartition, array[int]] = {}
        self._limits: Positions = {}
        self.audit = Audit((), processor.guarantee, many=False)

    def take(self, tp: TopicPartition, first: int, limit: int) -> Callable[[int], None]:
        """Returns a function that takes the offsets of the committed records of a partition from `first` on.

        Records before `limit` are judged. A join takes the later ones too: its positions tell which records are paired.
        """
        if self.processor.joins:
            self._joined[tp], self._limits[tp] = array("Q"), limit
            return self._joined[tp].append
        prefix = hash_prefix(self._group, tp.topic, self._ids[tp.topic], tp.partition)
        self._single[tp] = SingleSteps(prefix, tp, first, limit, is_compacted=tp.topic in self._compacted)
        return self._single[tp].take_input

    def begin(self, *, has_all: bool) -> None:
        """Begins the audit once all inputs are read. `has_all`: they were read from their first records on."""
        tasks: list[JudgedSteps] = [*self._single.values()]
        recognizes_all = True
        if self.processor.joins:
            joined = [self._join(number) for number in sorted({tp.partition for tp in self.partitions})]
            recognizes_all = has_all and not self._compacted and all(each.is_complete for each in joined)
            tasks += joined
            self._joined.clear()
        self.audit = Audit(
            tasks, self.processor.guarantee, many=self.processor.generator, recognizes_all=recognizes_all
        )
        if self.outputs and not recognizes_all:
            self.report.notes.append("foreign outputs are not judged: not all pairs of the join are known")

    def _join(self, number: int) -> JoinedSteps:
        places = [TopicPartition(topic.name, number) for topic in self.processor.inputs]

        def digest(offsets: Sequence[int]) -> bytes:
            read = zip(places, offsets, strict=True)
            return joined_hash(self._group, ((tp.topic, self._ids[tp.topic], number, at) for tp, at in read))

        at = {tp: self.before.get(tp, 0) for tp in places}
        return JoinedSteps(places, [self._joined[tp] for tp in places], at, self._limits, digest)


class _Run:
    """One audit. It includes other processors that write to the same topics: their outputs are not foreign."""

    def __init__(
        self, graph: Graph, environment: Environment, selection: AuditScope, shown: int, chosen: Collection[str]
    ) -> None:
        self._graph, self._environment, self._selection, self._shown = graph, environment, selection, shown
        self._cluster = environment.cluster
        self._topics = find_all_topics(graph, self._cluster)
        self._committed = CommittedReader(graph, environment)
        self._attempts = Attempts(f"{graph.name}: audit", graph.name, environment.sleep)
        self._pages = open_pages(graph, self._cluster, self._attempts)
        written = {topic for each in graph.processors if each.id in chosen for topic in each.outputs}
        writers = [each for each in graph.processors if each.id in chosen or written.intersection(each.outputs)]
        self.reports = [AuditReport(each.id, each.guarantee, skipped=why_not_audited(each)) for each in writers]
        self._subjects = [
            _Subject(self._committed.group(each), each, self._topics, self._committed_of(each), report)
            for each, report in zip(writers, self.reports, strict=True)
            if not report.skipped
        ]
        self._unhashed = {topic.name for each in writers if why_not_judged(each) for topic in each.outputs}
        self._written = {
            topic.name: [each for each in self._subjects if topic in each.outputs]
            for topic in graph.topics.values()
            if topic in written
        }

    def run(self) -> None:
        """Fills the reports."""
        self._read_inputs()
        self._read_letters()
        for topic, writers in self._written.items():
            if writers:
                self._read_outputs(topic, writers)
        for subject in self._subjects:
            self._compare(subject)

    def _committed_of(self, processor: Processor) -> Positions:
        return self._committed.read(processor, partitions_of(processor, self._topics))

    def _delivered_of(self, subject: _Subject) -> Positions:
        """Returns where the tasks of a processor go on; deliveries to another cluster may be ahead of the group."""
        found = self._committed_of(subject.processor)
        journal = open_journal(self._graph, subject.processor, self._environment, self._topics, "")
        if not isinstance(journal, DeliveryJournal):
            return found
        existing = self._cluster.topics([journal.topic])
        if journal.topic not in existing:
            return found
        numbers = {tp.partition for tp in found} & {*range(existing[journal.topic].partitions)}
        ahead: Positions = {}
        try:
            self._attempts.call(lambda: self._look(subject, journal, numbers, found, ahead))
        except Retriable as error:  # a busy worker has a transaction open most of the time
            beside = journal.delivered is not None
            what = "the journal, and outputs before their positions, are" if beside else "the journal is"
            subject.report.notes.append(f"{what} not judged: {error}")
            if beside:
                ahead |= {tp: sys.maxsize for tp in found if tp.partition in numbers}
        return {tp: max(offset, ahead.get(tp, 0)) for tp, offset in found.items()}

    def _look(
        self, subject: _Subject, journal: DeliveryJournal, numbers: set[int], found: Positions, ahead: Positions
    ) -> None:
        """Decides from a journal as a starting worker does, and counts the refusals.

        - `numbers`: the partition numbers of the tasks; decided ones are removed.
        - `found`: their committed offsets, which are read again, because a worker may have delivered since.
        - `ahead`: receives the offsets at which the tasks go on.

        Raises Retriable if some tasks cannot be decided while their transactions are open.
        """
        found |= self._committed_of(subject.processor)
        waits: Retriable | None = None
        for number in sorted(numbers):
            at = {tp.topic: offset for tp, offset in found.items() if tp.partition == number}
            try:
                offsets = journal.look(number, at).offsets
            except Retriable as error:
                waits = error
                continue
            except RecoveryUndecidable as error:
                tp = TopicPartition(journal.topic, number)
                place = LetterPlace(*tp, self._cluster.ends([tp])[tp])
                self._show(subject, [subject.audit.count(Kind.UNDECIDABLE, place, f"ends the next start: {error}")])
            else:
                ahead |= {TopicPartition(topic, number): offset for topic, offset in offsets.items()}
            numbers.discard(number)
        if waits is not None:
            raise waits

    def _read_inputs(self) -> None:
        partitions = sorted({tp for each in self._subjects for tp in each.partitions})
        starts, ends = self._cluster.starts(partitions), self._cluster.ends(partitions)
        since, until = self._selection.since, self._selection.until
        firsts = starts if since is None else self._cluster.starts(partitions, since)
        limits = ends if until is None else self._cluster.starts(partitions, until)
        for tp in partitions:
            readers, limit = [each for each in self._subjects if tp in each.partitions], min(limits[tp], ends[tp])
            takers = [each.take(tp, firsts[tp], limit) for each in readers]
            last = ends[tp] if any(each.processor.joins for each in readers) else limit
            for m in self._pages[""].between(tp, firsts[tp], last):
                offset = m.offset()
                for take in takers:
                    take(offset)
        for each in self._subjects:
            each.begin(has_all=not any(firsts[tp] for tp in each.partitions))

    def _read_letters(self) -> None:
        by_id = {each.processor.id: each for each in self._subjects if each.processor.errors is not None}
        if not by_id:
            return
        reader = LetterReader(self._graph, self._environment)
        marks = reader.marks()
        for letter in reader.letters():
            if (subject := by_id.get(letter.processor_id)) is not None:
                mark = marks.get(letter.place)
                replayed = mark is not None and not mark.is_discard
                self._show(subject, subject.audit.take_letter(letter.place, letter.delivery_hash, replayed=replayed))

    def _read_outputs(self, topic: str, writers: Sequence[_Subject]) -> None:
        for each in writers:
            each.audit.begin_topic()
        place = self._graph.topics[topic].cluster
        partitions = [TopicPartition(topic, number) for number in range(self._topics[topic].partitions)]
        ends = self._cluster.named(place).ends(partitions)
        for tp in partitions:
            for each in writers:
                each.audit.begin_partition()
            for m in self._pages[place].between(tp, 0, ends[tp]):
                self._take_output(m, writers)

    def _take_output(self, m: Message, writers: Sequence[_Subject]) -> None:
        place = LetterPlace(m.topic(), m.partition(), m.offset())
        digest = next((value for name, value in reversed(readable_headers(m)) if name == HASH_HEADER), None)
        if digest is not None and len(digest) == HASH_BYTES:
            for each in writers:
                found = each.audit.take_output(place, digest)
                if found is not None:
                    self._show(each, found)
                    return
        first = writers[0]
        is_ours = digest is not None and not all(each.audit.recognizes_all for each in writers)
        if is_ours or place.topic in self._unhashed:
            first.audit.unjudged += 1
        else:
            sentence = "has no delivery hash" if digest is None else "has a delivery hash of no step of this graph"
            self._show(first, [first.audit.count(Kind.FOREIGN, place, sentence)])

    def _compare(self, subject: _Subject) -> None:
        audit, report = subject.audit, subject.report
        every = self._selection.every and bool(subject.outputs)
        if every and (deleted := self._deleted(subject.processor)):
            report.notes.append(f"lost outputs are not judged: records of {', '.join(deleted)} may be deleted")
            every = False
        after = self._delivered_of(subject)
        self._show(subject, audit.compare(subject.before, after, every=every))
        report.inputs, unanswered = audit.count_inputs(subject.before)
        report.unanswered = unanswered if subject.outputs else 0
        report.outputs, report.letters, report.unjudged = audit.outputs, audit.letters, audit.unjudged
        report.counts = audit.counts

    def _deleted(self, processor: Processor) -> list[str]:
        """Returns topics that may lack records: outputs, and inputs of a join, whose pairs are then unknown."""
        names = processor.written
        pairs = [topic.name for topic in processor.inputs if self._topics[topic.name].is_compacted]
        partitions = [TopicPartition(name, n) for name in names for n in range(self._topics[name].partitions)]
        starts = ask_clusters(self._graph, self._cluster, partitions, lambda cluster, each: cluster.starts(each))
        return (pairs if processor.joins else []) + [
            name
            for name in names
            if self._topics[name].is_compacted or any(start for tp, start in starts.items() if tp.topic == name)
        ]

    def _show(self, subject: _Subject, found: Iterable[FoundAnomaly]) -> None:
        """Keeps the first anomalies, and consumes all, so that they are counted."""
        for each in found:
            if len(subject.report.shown) < self._shown:
                subject.report.shown.append(each)
