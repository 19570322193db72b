"""The checker: from a history to its anomalies, each with a name, a sentence and its evidence.

- A *history* (history.py) is the events that the clients of a test have recorded, in one order.
- *Expected* (expected.py) declares the outputs that follow from the records of an input.
- A *check* is a function from a case (evidence.py) to the anomalies that it finds. `CHECKS` has all of them.
- An *anomaly* (verdicts.py) is one violation; its *evidence* is the events that show it.

The checks judge the union of the records that committed readers have read, by place (topic, partition, offset). They
identify a record by its contents: of equal records, they judge only the number. A check takes time in proportion to the
number of events. A history that cannot be judged raises HistoryError, never another exception. The anomalies are the
ones of Jepsen's Kafka workload that need no search for cycles (https://jepsen.io/analyses/bufstream-0.1.0), named for
the promises of a stream processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import chain, islice
from typing import Final

from kstreams_py.graph.anomalies import Kind
from kstreams_py.testing.events import Fault, HistoryEvent, Outcome, Read, Sent, show
from kstreams_py.testing.evidence import Case, Cause, TopicEvidence, place_name
from kstreams_py.testing.expected import Expected, Pair, pair_of
from kstreams_py.testing.verdicts import Anomaly, overtaken, overtaken_in_every_copy


def check(history: Iterable[HistoryEvent], expected: Iterable[Expected] = ()) -> list[Anomaly]:
    """Returns all anomalies of a history, ordered by kind; none for a clean one.

    A topic in the `to` of an Expected is judged by the expected outputs, any other topic by the records sent to it. If
    nothing was sent to an input, its records are assumed to be right. Raises HistoryError for a history that cannot be
    judged.
    """
    case = Case(tuple(expected))
    case.take(history)
    case.expect()
    found = case.anomalies
    for each in CHECKS:
        found += each(case)
    return sorted(found, key=lambda anomaly: _RANKS[anomaly.kind])


def explain(anomalies: Iterable[Anomaly], history: Iterable[HistoryEvent] = (), *, limit: int = 10) -> str:
    """Formats anomalies as text: the number of each kind, the first `limit` with their evidence, and all faults."""
    found = list(anomalies)
    counts = Counter(anomaly.kind for anomaly in found)
    lines = [", ".join(f"{number} {kind}" for kind, number in counts.items()) or "no anomalies"]
    for kind, number in counts.items():
        for anomaly in [anomaly for anomaly in found if anomaly.kind is kind][:limit]:
            lines += ["", str(anomaly), *map(_dated, sorted(anomaly.evidence, key=lambda event: event.at))]
        if number > limit:
            lines += ["", f"{kind}: {number - limit} more"]
    if faults := [event for event in history if isinstance(event, Fault)]:
        lines += ["", "faults", *map(_dated, faults)]
    return "\n".join(lines)


def _dated(event: HistoryEvent) -> str:
    return f"    {datetime.fromtimestamp(event.wall, UTC):%H:%M:%S.%f}  {event}"


FEW: Final = 3
"""The maximum number of events of one type in the evidence of an anomaly."""

_RANKS: Final = {kind: rank for rank, kind in enumerate(Kind)}


def read_too_early(case: Case) -> Iterator[Anomaly]:
    """Checks that committed readers read committed records only; later checks leave out aborted records.

    It does not detect a record that is read between the request of its commit and the commit.
    """
    for name, topic in case.topics.items():
        wanted: list[Read] = []
        of_many = cache(lambda pair, topic=topic: case.standing(topic.sends[pair]))
        for read in topic.ordered:
            pair = pair_of(read)
            sent = topic.sent_at.get((read.partition, read.offset))
            sends = topic.sends.get(pair, ()) if sent is None or pair_of(sent) != pair else (sent,)
            if not sends or case.innocent(read, sends[-1]):
                wanted.append(read)
                continue
            visible_from, never, given_up = case.standing(sends) if len(sends) == 1 else of_many(pair)
            if never and given_up:
                sentence = f"{_named(name, pair)} was read, and its transaction was aborted, or its sending failed"
                yield Anomaly(Kind.ABORTED_READ, sentence, (*case.story(sends[:FEW]), read))
            elif read.at < visible_from:
                sentence = f"{_named(name, pair)} was read before the commit of its transaction was asked for"
                yield Anomaly(Kind.PRECOMMITTED_READ, sentence, (*case.story(sends[:FEW]), read))
            if not never:
                wanted.append(read)
        topic.keep(wanted)


def misplaced(case: Case) -> Iterator[Anomaly]:
    """Checks that each record is at its acknowledged place; a record that is nowhere is lost (`miscounted`).

    It does not check a record whose sender does not know the place.
    """
    for name, topic in case.topics.items():
        for (partition, offset), sent in topic.sent_at.items():
            read, pair = topic.reads.get((partition, offset)), pair_of(sent)
            if case.must(sent) and (read is None or pair_of(read) != pair) and not topic.lacks(pair):
                sentence = f"{_named(name, pair)} was acknowledged at {place_name(sent)}, and is not there"
                elsewhere = topic.found(pair)
                kind = Kind.OFFSETS_INCONSISTENT if elsewhere or read else Kind.LOST
                yield Anomaly(kind, sentence, (sent, *([read] if read else []), *elsewhere[:FEW], *topic.proof))


def torn_transactions(case: Case) -> Iterator[Anomaly]:
    """Checks that all records of a transaction are read, or none.

    It leaves out equal records without a place, because it is not known which of them was read.
    """
    for name, found in case.transactions.items():
        here: list[Sent] = []
        missing: list[Sent] = []
        for sent in found.sends:
            if sent.outcome is Outcome.FAILED:
                continue
            topic = case.topics[sent.topic]
            if sent.offset >= 0:
                read = topic.reads.get((sent.partition, sent.offset))
                (here if read is not None and pair_of(read) == pair_of(sent) else missing).append(sent)
            elif len(topic.sends[pair_of(sent)]) == 1:  # which one of equal records was read is not known
                (here if topic.seen[pair_of(sent)] else missing).append(sent)
        if here and missing and not found.never:
            case.torn.update((sent.topic, pair_of(sent)) for sent in missing)
            sentence = (
                f"of transaction {name} ({found.phase}), {len(here)} records were read and {len(missing)} were not"
            )
            reads = case.topics[here[0].topic].found(pair_of(here[0]))
            proof = case.topics[missing[0].topic].proof
            yield Anomaly(
                Kind.TORN_TRANSACTION, sentence, (*found.events, *missing[:FEW], *here[:FEW], *reads[:1], *proof)
            )


def torn_steps(case: Case) -> Iterator[Anomaly]:
    """Checks that all outputs of a step are read, or none.

    It leaves out outputs that another step has as well, and offsets, which are not read from topics.
    """
    for inputs, outputs in case.forks:
        own = [(topic, pair) for topic, pair in outputs if case.topics[topic].only_by(pair, inputs)]
        missing = [(topic, pair) for topic, pair in own if case.topics[topic].lacks(pair)]
        if missing and any(case.topics[topic].seen[pair] for topic, pair in own):
            here = [read for topic, pair in own for read in case.topics[topic].found(pair)]
            case.torn.update(missing)
            what = ", ".join(_named(*each) for each in missing[:FEW])
            sentence = f"a step's outputs are there in part: {what} {'is' if len(missing) == 1 else 'are'} missing"
            yield Anomaly(Kind.TORN_TRANSACTION, sentence, (*inputs, *here[:FEW], *case.topics[missing[0][0]].proof))


def passed_over(case: Case) -> Iterator[Anomaly]:
    """Checks that a final read has every record of other committed readers. It misses records that all readers skip."""
    for name, topic in case.topics.items():
        if len(topic.read_by) == 1:
            continue
        for reader, ends in topic.final.items():
            for place in sorted(topic.reads.keys() - set(topic.read_by[reader])):
                read = topic.reads[place]
                sentence = f"{_named(name, pair_of(read))} was read by {read.reader}, not by {reader}, which read all"
                yield Anomaly(Kind.OFFSETS_INCONSISTENT, sentence, (read, ends[read.partition]))


def miscounted(case: Case) -> Iterator[Anomaly]:
    """Checks that each record is there as often as it has causes, within the tolerance of the guarantee.

    It counts equal records together, and detects no loss in an input that nothing was sent to. A record that is missing
    from a torn transaction or step is not reported again as lost.
    """
    for name, topic in case.judged():
        comparison = topic.compared()
        for kind, items in ((Kind.DUPLICATE, comparison.duplicate), (Kind.FOREIGN, comparison.foreign)):
            for pair in items:
                number, causes = topic.seen[pair], topic.causes.get(pair, [])
                sentence = f"{_named(name, pair)} is there {number} times, and {len(causes)} led to it"
                if not causes:
                    sentence = f"{_named(name, pair)} was read, and nothing led to it"
                yield Anomaly(kind, sentence, (*_events(causes), *topic.found(pair)[: len(causes) + FEW]))
        for pair in comparison.lost:
            if (name, pair) not in case.torn:
                number = topic.seen[pair]
                sentence = f"{_named(name, pair)} is there {number} times, and must be {topic.least(pair)} times"
                yield Anomaly(Kind.LOST, sentence, (*_events(topic.causes[pair]), *topic.proof))


def disordered(case: Case) -> Iterator[Anomaly]:
    """Checks that the records of one key and one origin are in the order of their causes.

    An origin is a sender, or a partition of an input. The check ignores the order between keys or origins, surplus
    copies, and equal records if one of them is missing. With at least once, one copy of each record must be in order.
    """
    for name, topic in case.judged():
        paired = list(_paired(topic))
        late = overtaken((each for each in paired if not each[0].repeats), _line, _rank)
        late_again = overtaken_in_every_copy((each for each in paired if each[0].repeats), _line, _rank)
        for (before, later), (cause, read) in chain(late, late_again):
            sentence = f"{_named(name, pair_of(read))} was read after what came later: {_named(name, pair_of(later))}"
            yield Anomaly(Kind.ORDER_BROKEN, sentence, (*cause.events, *before.events, later, read))


CHECKS: Final[Sequence[Callable[[Case], Iterator[Anomaly]]]] = (
    read_too_early,
    misplaced,
    torn_transactions,
    torn_steps,
    passed_over,
    miscounted,
    disordered,
)
"""All checks, in order: later checks leave out violations that earlier ones have reported.

Before the checks, `Case.take` finds offsets that contradict each other.
"""


def _paired(topic: TopicEvidence) -> Iterator[tuple[Cause, Read]]:
    """Yields each record with its cause, in the order of the topic; the nth of equal records with the nth cause.

    Equal records are left out if they cannot be matched: one is missing or may be repeated, or they belong to several
    chains. Surplus copies are left out too. A record with one cause that may be repeated is yielded with every copy.
    """
    used: dict[Pair, list[Cause]] = {}
    for read in topic.ordered:
        pair = pair_of(read)
        causes = topic.causes.get(pair)
        if causes is None:
            continue
        cause = causes[0]
        if len(causes) > 1 or (topic.seen[pair] > 1 and not cause.repeats):
            if pair not in used:
                used[pair] = causes[::-1] if _correspond(causes, topic.seen[pair]) else []
            if not used[pair]:
                continue
            cause = used[pair].pop()
        if cause.chain is not None:
            yield cause, read


def _correspond(causes: Sequence[Cause], number: int) -> bool:
    """Returns whether the nth of equal records belongs to the nth cause."""
    if len(causes) == 1:
        return True
    return number >= len(causes) and len({cause.chain for cause in causes}) == 1 and not causes[0].repeats


def _line(each: tuple[Cause, Read]) -> tuple[object, int, bytes | None]:
    cause, read = each
    return cause.chain, read.partition, read.key


def _rank(each: tuple[Cause, Read]) -> int:
    return each[0].rank


def _events(causes: Iterable[Cause]) -> list[HistoryEvent]:
    return [event for cause in islice(causes, FEW) for event in cause.events]


def _named(topic: str, pair: Pair) -> str:
    return f"{topic} {show(pair[0])}: {show(pair[1])}"
