"""Objects of event ordering that do not go on, and what an operator decides of them.

An object is stopped after an event that contradicts its order, or waits for an event that has not come. A decision
(ordering/decisions.py) is a record of the events' topic: the consumer's worker does it in the transaction of its
position, while it runs. Once the group has read the decision, no more events of the object become dead letters; those
that have, are sent again, each in one transaction with the mark that `dead-letters list` counts as replayed. They are
brought along by decisions, so other groups go past them. So is an accepted event that is a dead letter.

After a crash, run it again: a decision that is done already is for another state of the object then, and changes
nothing; a dead letter is marked, or it is not sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kstreams_py.errors import DecodeError, EventFault, TopicError, UserMistake
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Output
from kstreams_py.operations.committed import CommittedReader
from kstreams_py.operations.dead_letters.letters import Letter
from kstreams_py.operations.dead_letters.originals import Originals
from kstreams_py.operations.dead_letters.reader import LetterReader, await_letters
from kstreams_py.operations.dead_letters.transactions import Done, Transactions
from kstreams_py.ordering.chain import Held, Reason
from kstreams_py.ordering.decisions import Decision, Verb, decision_record
from kstreams_py.ordering.events import place_of
from kstreams_py.ordering.held import Stop, read_task
from kstreams_py.processing.environment import Environment
from kstreams_py.records import Message, TopicPartition, Unreadable
from kstreams_py.state.changelog import unreadable_value
from kstreams_py.state.reading import read_reserved

logger = logging.getLogger(__name__)

LETTERS_AT_ONCE: Final = 500
"""Events that are sent again in one transaction."""

LOOK_SECONDS: Final = 0.2

_SENT_AGAIN: Final = (Reason.STOPPED, Reason.FORKED)

_FAULT: Final = f"{EventFault.__module__}.{EventFault.__qualname__}"


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What a consumer group has of an object.

    - `newest`: the id of the newest applied event; 0 for none.
    - `stop`: why it is stopped; None if it is not.
    - `held`: the events that wait, by their predecessors.
    """

    processor: str
    partition: int
    name: bytes
    newest: int = 0
    stop: Stop | None = None
    held: tuple[Held, ...] = ()

    @property
    def goes_on(self) -> bool:
        """It is not stopped, and none of its events waits."""
        return self.stop is None and not self.held


class Decided(NamedTuple):
    """What has become of a decision that the group has read.

    - `is_done`: the object goes on, or waits for another event. Otherwise nothing has changed, or another fault came.
    - `sent`: how many of its events were sent again, with an accepted one.
    """

    is_done: bool
    sent: int


class Missed(NamedTuple):
    """An event that was refused, and its dead letter. `prev`: its predecessor, 0 for none."""

    id: int
    prev: int
    reason: str
    letter: Letter
    event: Message


def following(refused: Iterable[Missed], newest: int, accepted: int) -> list[Missed]:
    """The refused events that may follow the newest one, by their ids: not those of a chain that contradicts it.

    - `accepted`: the event that is to follow it whatever its predecessor is; 0 for none.
    """
    found: list[Missed] = []
    left_out: set[int] = set()
    for each in sorted(refused, key=lambda each: each.id):
        is_next = each.id == accepted or each.prev == newest
        is_fork = each.reason == Reason.FORKED and each.id != accepted
        if not is_next and (is_fork or each.prev < newest or each.prev in left_out):
            if each.id != newest:  # else it is a copy
                left_out.add(each.id)
            continue
        found.append(each)
        newest = each.id if is_next else newest
    return found


def ordered_processors(graph: Graph, named: str | None = None) -> list[Processor]:
    """The processors that apply events; that of an id. Raises UserMistake if there is none."""
    found = [each for each in graph.processors if each.ordered is not None]
    chosen = [each for each in found if named in (None, each.id)]
    if not chosen:
        there = ", ".join(each.id for each in found) or "none"
        raise UserMistake(
            f"graph {graph.name!r} has no processor {named or 'of graph.ordered'!r} that applies events: it has {there}"
        )
    return chosen


def find_objects(graph: Graph, processor: Processor, environment: Environment) -> Iterator[ObjectState]:
    """The objects of a processor, as they are committed. Raises TopicError, ClientError."""
    for partition, entries in read_reserved(graph, processor, environment.cluster).items():
        try:
            task = read_task(entries, partition)
        except DecodeError as error:
            changelog = TopicPartition(changelog_of(graph.name, processor) or "", partition)
            raise TopicError(unreadable_value(changelog, error)) from None
        waiting: dict[bytes, list[Held]] = {}
        for event in sorted(task.held, key=lambda event: event.prev):
            waiting.setdefault(event.object, []).append(event)
        for name in sorted(task.states.keys() | waiting.keys()):
            newest, _, _, reason, _ = task.states.get(name, (0, 0, b"", "", 0))
            stop = task.stops.get(name, Stop(reason, -1, 0.0)) if reason else None
            yield ObjectState(processor.id, partition, name, newest, stop, tuple(waiting.get(name, ())))


class Operator:
    """Decides of one object of a processor, and sends again what it has missed."""

    def __init__(self, graph: Graph, processor: Processor, environment: Environment, name: str) -> None:
        """Reads what is committed. Raises UserMistake for an object without an event, and as find_objects."""
        self._graph = graph
        self._processor = processor
        self._environment = environment
        self._group = group_of(graph.name, processor.id)
        self._name = name
        self.object = self._read()
        self._input = TopicPartition(processor.inputs[0].name, self.object.partition)

    def missed(self, accepted: int = 0) -> list[Missed]:
        """The events that would be sent again, if this event is accepted, or none.

        Raises BrokerUnavailable if a transaction hides dead letters.
        """
        return following(self._refused(), self.object.newest, accepted)

    def choose(self) -> int:
        """The id of the event to go on with: the oldest that waits, or else that was refused.

        Raises UserMistake if there is none, and if events were refused that it can go on with: they would be lost.
        """
        if self.object.stop is None and (missed := self.missed()):
            raise UserMistake(
                f"{self._shown}: {len(missed):,} of its events are dead letters, from event {missed[0].id} on, and "
                "were not sent again: `kstreams order resume` sends them"
            )
        if self.object.held:
            return self.object.held[0].id
        if (first := min((each.id for each in self._refused()), default=0)) == 0:
            raise UserMistake(
                f"{self._shown}: no event waits or was refused that it could go on with: `kstreams order resume` lets "
                "it go on with the event that follows"
            )
        return first

    def catch_up(self, seconds: float) -> bool:
        """Waits until the group has read all that is in the partition now, then reads the object again.

        False after `seconds`: its workers do not run, or a transaction hides what is there.
        """
        cluster, deadline = self._environment.cluster, self._environment.clock() + seconds
        high = cluster.ends([self._input], committed=False)[self._input]
        if not self._await(lambda: cluster.ends([self._input])[self._input] >= high, deadline):
            return False
        newest = cluster.newest(self._input)
        goal = 0 if newest is None else newest.offset() + 1
        reader = CommittedReader(self._graph, self._environment)
        if not self._await(lambda: reader.read(self._processor, [self._input]).get(self._input, 0) >= goal, deadline):
            return False
        self.object = self._read()
        return True

    def decide(self, verb: Verb, event: int, seconds: float) -> Decided | None:
        """Lets the object go on, once its group has read the decision, and sends again what it has missed.

        - `event`: the one that is accepted; 0 to resume.
        - `seconds`: the longest wait for the group; None is returned after it: decide again once its workers run.

        Raises Replaced if a replay of dead letters, or another decision, begins meanwhile; and as `missed`.
        """
        transactions = Transactions(self._graph, LetterReader(self._graph, self._environment), self._environment)
        sent = 0
        try:
            transactions.start()
            if verb is Verb.ACCEPT or self.object.stop is not None:
                sent = self._write(transactions, verb, event)
                if not self.catch_up(seconds):
                    return None
            else:
                self.object = self._read()
            if self.object.stop is not None or self.object.newest < event:
                return Decided(is_done=False, sent=0)
            missed = self.missed()
            for first in range(0, len(missed), LETTERS_AT_ONCE):
                part = missed[first : first + LETTERS_AT_ONCE]
                transactions.commit([self._step(each, Verb.OFFER, 0, -1) for each in part])
        finally:
            transactions.end()
        return Decided(is_done=True, sent=sent + len(missed))

    def _write(self, transactions: Transactions, verb: Verb, event: int) -> int:
        """Writes a decision; returns how many events it brings along."""
        newest, stop = self.object.newest, self.object.stop
        offset = -1 if stop is None else stop.offset
        if verb is Verb.ACCEPT and stop is not None:
            brought = [each for each in self._refused() if each.id == event][:1]
            transactions.commit([self._step(each, verb, newest, offset) for each in brought])
            return len(brought)
        decision = Decision(verb, self._group, newest, event, offset)
        transactions.write([decision_record(*self._input, self.object.name, decision)])
        return 0

    def _step(self, missed: Missed, verb: Verb, newest: int, stop: int) -> Done:
        """A dead letter whose event is sent again with a decision."""
        decision = Decision(verb, self._group, newest, missed.id, stop, missed.prev)
        output: Output = decision_record(*self._input, self.object.name, decision, missed.event)
        return Done(missed.letter, [missed.letter.place], [output])

    def _await(self, is_reached: Callable[[], bool], deadline: float) -> bool:
        while not is_reached():
            if self._environment.clock() >= deadline:
                return False
            self._environment.sleep(LOOK_SECONDS)
        return True

    def _read(self) -> ObjectState:
        objects = find_objects(self._graph, self._processor, self._environment)
        found = [each for each in objects if each.name == self._name.encode()]
        if not found:
            raise UserMistake(f"{self._processor.id}: no event of object {self._name!r} was read: correct the name")
        return found[0]

    def _refused(self) -> Iterator[Missed]:
        """The events behind the newest one that were refused, as their order was contradicted or as it is stopped."""
        await_letters(self._graph, self._environment)
        reader = LetterReader(self._graph, self._environment)
        originals = Originals(self._graph, self._environment)
        marks = reader.marks()
        for letter in reader.letters():
            if letter.processor != self._group or letter.error != _FAULT or letter.place in marks:
                continue
            if (reason := _reason(letter)) not in _SENT_AGAIN or letter.inputs[0].key() != self.object.name:
                continue
            if [each.name for each in letter.inputs] != [self._input[0]]:  # a forged one may name any topic
                logger.warning("%s is not sent again: it names other inputs than %s", letter.place, self._input[0])
                continue
            inputs = originals.find(letter, self._processor)
            if isinstance(inputs, str) or isinstance(inputs[0], Unreadable):
                why = inputs if isinstance(inputs, str) else "its event cannot be read"
                logger.warning("%s is not sent again: %s", letter.place, why)
                continue
            number, prev = place_of(inputs[0].headers() or ())
            is_possible = prev is None or 1 <= prev < number  # another one would stop the object again
            if number > self.object.newest and is_possible:
                yield Missed(number, prev or 0, reason, letter, inputs[0])

    @property
    def _shown(self) -> str:
        return f"{self._processor.id}: object {self.object.name.decode(errors='replace')!r}"


def _reason(letter: Letter) -> str:
    """Why its event is a fault: a Reason."""
    return letter.message.partition(":")[0]
