"""The checker: from a history to its anomalies, each with a name, a sentence and its evidence.

What is judged is the union of all that committed readers were handed, place by place (topic, partition, offset):

- its contents, as a multiset, against what was sent (source topics) or must follow from the inputs' final reads;
- its order, per key, against the order of what led to it;
- each transaction and each step with several outputs: all of it or nothing;
- readers against each other, and every final read against the union.

It takes time in proportion to the history. It never passes on an error of its own: what it cannot judge is a
HistoryError. The anomalies are those of Jepsen's Kafka workload, as far as they can be told without a search for
cycles (https://jepsen.io/analyses/bufstream-0.1.0), and named for what a stream processor promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Final

from kstreams_py.testing.evidence import Anomaly, Case, Cause, Expected, Kind, Pair, Topic, pair_of, place_name
from kstreams_py.testing.history import Event, Fault, Outcome, Read, Sent, show


def check(history: Iterable[Event], expected: Iterable[Expected] = ()) -> list[Anomaly]:
    """All anomalies of a history, by kind; none means that it is clean.

    A topic that is in some `to` is judged by what is expected there, any other by what was sent to it; an input
    without sends is taken as it is. Raises HistoryError for a history that cannot be judged.
    """
    case = Case(tuple(expected))
    case.take(history)
    case.expect()
    found = case.anomalies
    for name, topic in case.topics.items():
        found += _visible(name, topic, case)
        found += _places(name, topic, case)
    found += _torn_transactions(case)
    found += _torn_steps(case)
    for name, topic in case.topics.items():
        found += _passed_over(name, topic)
        if not topic.given:
            found += _too_much(name, topic)
            found += _too_little(name, topic, case)
            found += _order(name, topic)
    return sorted(found, key=lambda anomaly: _RANKS[anomaly.kind])


def explain(anomalies: Iterable[Anomaly], history: Iterable[Event] = (), *, limit: int = 10) -> str:
    """Anomalies for people: how many of each kind, the first `limit` of each with their evidence, and all faults."""
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


def _dated(event: Event) -> str:
    return f"    {datetime.fromtimestamp(event.wall, UTC):%H:%M:%S.%f}  {event}"


FEW: Final = 3
"""Events of one sort in the evidence of one anomaly, where there may be many."""

_RANKS: Final = {kind: rank for rank, kind in enumerate(Kind)}


def _visible(name: str, topic: Topic, case: Case) -> Iterator[Anomaly]:
    """Records that a committed reader was handed though their transaction was not committed (yet)."""
    wanted = []
    of_many = cache(lambda pair: case.standing(topic.sends[pair]))
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
    topic.ordered = wanted
    topic.seen = Counter(map(pair_of, wanted))


def _places(name: str, topic: Topic, case: Case) -> Iterator[Anomaly]:
    """Records that were acknowledged at one place, and are not there but elsewhere; see `lost` for nowhere."""
    for (partition, offset), sent in topic.sent_at.items():
        read, pair = topic.reads.get((partition, offset)), pair_of(sent)
        if case.must(sent) and (read is None or pair_of(read) != pair) and not topic.lacks(pair):
            sentence = f"{_named(name, pair)} was acknowledged at {place_name(sent)}, and is not there"
            elsewhere = topic.found(pair)
            kind = Kind.OFFSETS_INCONSISTENT if elsewhere or read else Kind.LOST
            yield Anomaly(kind, sentence, (sent, *([read] if read else []), *elsewhere[:FEW], *topic.proof))


def _torn_transactions(case: Case) -> Iterator[Anomaly]:
    """Transactions of which some records were read and some were not."""
    for name, fate in case.fates.items():
        here: list[Sent] = []
        missing: list[Sent] = []
        for sent in fate.sends:
            if sent.outcome is Outcome.FAILED:
                continue
            topic = case.topics[sent.topic]
            if sent.offset >= 0:
                read = topic.reads.get((sent.partition, sent.offset))
                (here if read is not None and pair_of(read) == pair_of(sent) else missing).append(sent)
            elif len(topic.sends[pair_of(sent)]) == 1:  # else it cannot be told which one was read
                (here if topic.seen[pair_of(sent)] else missing).append(sent)
        if here and missing and not fate.never:
            case.torn.update((sent.topic, pair_of(sent)) for sent in missing)
            sentence = (
                f"of transaction {name} ({fate.phase}), {len(here)} records were read and {len(missing)} were not"
            )
            reads = case.topics[here[0].topic].found(pair_of(here[0]))
            proof = case.topics[missing[0].topic].proof
            yield Anomaly(
                Kind.TORN_TRANSACTION, sentence, (*fate.events, *missing[:FEW], *here[:FEW], *reads[:1], *proof)
            )


def _torn_steps(case: Case) -> Iterator[Anomaly]:
    """Steps of which some outputs were read and some were not; only outputs that no other step has can tell."""
    for inputs, outputs in case.forks:
        own = [(topic, pair) for topic, pair in outputs if case.topics[topic].only_by(pair, inputs)]
        missing = [(topic, pair) for topic, pair in own if case.topics[topic].lacks(pair)]
        if missing and any(case.topics[topic].seen[pair] for topic, pair in own):
            here = [read for topic, pair in own for read in case.topics[topic].found(pair)]
            case.torn.update(missing)
            what = ", ".join(_named(*each) for each in missing[:FEW])
            sentence = f"a step's outputs are there in part: {what} {'is' if len(missing) == 1 else 'are'} missing"
            yield Anomaly(Kind.TORN_TRANSACTION, sentence, (*inputs, *here[:FEW], *case.topics[missing[0][0]].proof))


def _too_much(name: str, topic: Topic) -> Iterator[Anomaly]:
    """Records that nothing led to, or more of them than what led to them."""
    for pair, number in topic.seen.items():
        causes = topic.causes.get(pair, ())
        if number > len(causes):
            events = [event for cause in causes[:FEW] for event in cause.events]
            kind = Kind.DUPLICATE if causes else Kind.FOREIGN
            sentence = f"{_named(name, pair)} is there {number} times, and {len(causes)} led to it"
            if not causes:
                sentence = f"{_named(name, pair)} was read, and nothing led to it"
            yield Anomaly(kind, sentence, (*events, *topic.found(pair)[: len(causes) + FEW]))


def _too_little(name: str, topic: Topic, case: Case) -> Iterator[Anomaly]:
    """Records that must be there and are not."""
    for pair, causes in topic.causes.items():
        if topic.lacks(pair) and (name, pair) not in case.torn:
            number = topic.seen[pair]
            sentence = f"{_named(name, pair)} is there {number} times, and must be {topic.least(pair)} times"
            events = [event for cause in causes[:FEW] for event in cause.events]
            yield Anomaly(Kind.LOST, sentence, (*events, *topic.proof))


def _order(name: str, topic: Topic) -> Iterator[Anomaly]:
    """Records of one key in another order than what led to them."""
    newest: dict[object, tuple[Cause, Read]] = {}
    for cause, read in _paired(topic):
        line = (cause.chain, read.partition, read.key)
        before = newest.get(line)
        if before is None or before[0].rank < cause.rank:
            newest[line] = (cause, read)
        else:
            sentence = (
                f"{_named(name, pair_of(read))} was read after what came later: {_named(name, pair_of(before[1]))}"
            )
            yield Anomaly(Kind.ORDER_BROKEN, sentence, (*cause.events, *before[0].events, before[1], read))


def _paired(topic: Topic) -> Iterator[tuple[Cause, Read]]:
    """Each record with what led to it, in the order of the log; of equal records the nth with the nth.

    Left out are copies too many, and equal records of which one is missing or which are of several chains: it cannot
    be told which one is which.
    """
    used: dict[Pair, list[Cause]] = {}
    for read in topic.ordered:
        pair = pair_of(read)
        causes = topic.causes.get(pair)
        if causes is None:
            continue
        if len(causes) > 1 or topic.seen[pair] > 1:
            if pair not in used:
                alike = topic.seen[pair] >= len(causes) and len({cause.chain for cause in causes}) == 1
                used[pair] = causes[::-1] if alike else []
            if not used[pair]:
                continue
            cause = used[pair].pop()
        else:
            cause = causes[0]
        if cause.chain is not None:
            yield cause, read


def _passed_over(name: str, topic: Topic) -> Iterator[Anomaly]:
    """Records that one committed reader was handed, and another one's final read was not."""
    if len(topic.read_by) == 1:
        return
    for reader, ends in topic.final.items():
        for place in sorted(topic.reads.keys() - set(topic.read_by[reader])):
            read = topic.reads[place]
            sentence = f"{_named(name, pair_of(read))} was read by {read.reader}, and not by {reader}, who read all"
            yield Anomaly(Kind.OFFSETS_INCONSISTENT, sentence, (read, ends[read.partition]))


def _named(topic: str, pair: Pair) -> str:
    return f"{topic} {show(pair[0])}: {show(pair[1])}"
