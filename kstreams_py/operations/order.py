"""Objects of event ordering that are stuck, and an operator's decisions on them.

An object is stopped at an event that contradicts its order, or waits for an event that has not arrived. A decision
(ordering/decisions.py) is a record in the topic of the events. A worker of the consuming group carries it out while it
runs, in the transaction that commits the record's offset. Once the group has read the decision, no more events of the
object become dead letters. Those that have become dead letters are sent again, each in the same transaction as the
mark that `dead-letters list` counts as replayed. Decisions carry these events, so other groups skip them. An accepted
event that is a dead letter is sent in the same way.

After a crash, run the command again. A decision that was already carried out names an older state of the object, and
changes nothing. A dead letter is either sent and marked, or not sent.
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
from kstreams_py.operations.dead_letters.originals import Originals
from kstreams_py.operations.dead_letters.reader import LetterReader, await_letters
from kstreams_py.operations.dead_letters.transactions import Done, ReplayTransactions
from kstreams_py.ordering.chain import HeldEvent, Reason
from kstreams_py.ordering.decisions import Decision, Verb, decision_record
from kstreams_py.ordering.events import place_of
from kstreams_py.ordering.held import ObjectStop, read_task
from kstreams_py.processing.dead_letters.letters import Letter
from kstreams_py.records import Message, TopicPartition, Unreadable
from kstreams_py.state.changelog import unreadable_value
from kstreams_py.state.reading import commands_of, read_reserved
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

LETTERS_AT_ONCE: Final = 500
"""The maximum number of events that one transaction sends again."""

LOOK_SECONDS: Final = 0.2

_SENT_AGAIN: Final = (Reason.STOPPED, Reason.FORKED)

_FAULT: Final = f"{EventFault.__module__}.{EventFault.__qualname__}"


@dataclass(frozen=True, slots=True)
class ObjectState:
    """The state of an object in a consumer group.

    - `newest`: the id of the newest applied event; 0 if there is none.
    - `stop`: why the object is stopped; None if it is not.
    - `held`: the events that wait, sorted by their predecessors.
    """

    processor: str
    partition: int
    name: bytes
    newest: int = 0
    stop: ObjectStop | None = None
    held: tuple[HeldEvent, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether the object is not stopped and none of its events waits."""
        return self.stop is None and not self.held


class Decided(NamedTuple):
    """The result of a decision that the group has read.

    - `is_done`: the object goes on, or waits for another event. If False, nothing changed or another fault stopped it.
    - `sent`: how many of the object's events were sent again, including an accepted one.
    """

    is_done: bool
    sent: int


class Missed(NamedTuple):
    """An event that was refused, and its dead letter. `prev`: the id of its predecessor; 0 if there is none."""

    id: int
    prev: int
    reason: str
    letter: Letter
    event: Message


def following(refused: Iterable[Missed], newest: int, accepted: int) -> list[Missed]:
    """Returns the refused events that may follow the newest one, sorted by id.

    Events of a chain that contradicts the newest one are left out.

    - `accepted`: the event that follows the newest one whatever its predecessor is; 0 if there is none.
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
    """Returns the processors that apply events, or only the one with this id. Raises UserMistake if there is none."""
    found = [each for each in graph.processors if each.ordered is not None]
    chosen = [each for each in found if named in (None, each.id)]
    if not chosen:
        there = ", ".join(each.id for each in found) or "none"
        raise UserMistake(
            f"graph {graph.name!r} has no processor {named or 'of graph.ordered'!r} that applies events: it has {there}"
        )
    return chosen


def find_objects(graph: Graph, processor: Processor, environment: Environment) -> Iterator[ObjectState]:
    """Yields the committed state of each object of a processor. Raises TopicError, ClientError."""
    for partition, entries in read_reserved(graph, processor, environment.cluster).items():
        try:
            task = read_task(entries, partition)
        except DecodeError as error:
            changelog = TopicPartition(changelog_of(graph.name, processor) or "", partition)
            raise TopicError(unreadable_value(changelog, error, commands_of(graph, processor))) from None
        waiting: dict[bytes, list[HeldEvent]] = {}
        for event in sorted(task.held, key=lambda event: event.prev):
            waiting.setdefault(event.object, []).append(event)
        for name in sorted(task.states.keys() | waiting.keys()):
            newest, _, _, reason, _ = task.states.get(name, (0, 0, b"", "", 0))
            stop = task.stops.get(name, ObjectStop(reason, -1, 0.0)) if reason else None
            yield ObjectState(processor.id, partition, name, newest, stop, tuple(waiting.get(name, ())))


class Operator:
    """Writes decisions on one object of a processor, and sends again the events that the object has missed."""

    def __init__(self, graph: Graph, processor: Processor, environment: Environment, name: str) -> None:
        """Reads the committed state. Raises UserMistake for an object without events, and the same as find_objects."""
        self._graph = graph
        self._processor = processor
        self._environment = environment
        self._group = group_of(graph.name, processor.id)
        self._name = name
        self.object = self._read()
        self._input = TopicPartition(processor.inputs[0].name, self.object.partition)

    @property
    def keeps_refused(self) -> bool:
        """Whether refused events become dead letters, which can be sent again."""
        return self._processor.errors is not None

    def missed(self, accepted: int = 0) -> list[Missed]:
        """Returns the events that would be sent again if event `accepted` were accepted; 0 accepts none.

        Raises BrokerUnavailable if a transaction hides dead letters.
        """
        return following(self._refused(), self.object.newest, accepted)

    def choose(self) -> int:
        """Returns the id of the event to go on with: the oldest waiting event, or else the oldest refused one.

        Raises UserMistake if there is none. Also raises it if refused events can follow without a decision, because a
        decision would lose them.
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
                f"{self._shown}: there is no waiting or refused event to go on with: `kstreams order resume` lets "
                "it go on with the event that follows"
            )
        return first

    def catch_up(self, seconds: float) -> bool:
        """Waits until the group has read all records that the partition has now, then reads the object again.

        Returns False after `seconds`: the group's workers do not run, or an open transaction hides records.
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
        """Writes a decision, waits until the group has read it, and sends again the events that the object has missed.

        - `event`: the accepted event; 0 to resume.
        - `seconds`: the longest wait for the group. Then returns None: decide again once the group's workers run.

        Raises Replaced if a replay of dead letters or another decision begins meanwhile, and the same as `missed`.
        """
        reader = LetterReader(self._graph, self._environment, required=False)
        transactions = ReplayTransactions(self._graph, reader, self._environment)
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

    def _write(self, transactions: ReplayTransactions, verb: Verb, event: int) -> int:
        """Writes a decision, and returns how many events it carries."""
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
        """Returns the step that sends the event of a dead letter again, with a decision."""
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
        """Yields the refused events after the newest one: they forked, or the object was stopped."""
        await_letters(self._graph, self._environment, required=False)
        reader = LetterReader(self._graph, self._environment, required=False)
        originals = Originals(self._graph, self._environment)
        marks = reader.marks()
        for letter in reader.letters():
            if letter.processor != self._group or letter.error != _FAULT or letter.place in marks:
                continue
            if (reason := _reason(letter)) not in _SENT_AGAIN or letter.inputs[0].key() != self.object.name:
                continue
            if [each.name for each in letter.inputs] != [self._input[0]]:  # a forged dead letter may name any topic
                logger.warning("%s is not sent again: it names inputs other than %s", letter.place, self._input[0])
                continue
            inputs = originals.find(letter, self._processor)
            if isinstance(inputs, str) or isinstance(inputs[0], Unreadable):
                why = inputs if isinstance(inputs, str) else "its event cannot be read"
                logger.warning("%s is not sent again: %s", letter.place, why)
                continue
            number, prev = place_of(inputs[0].headers() or ())
            is_possible = prev is None or 1 <= prev < number  # any other would stop the object again
            if number > self.object.newest and is_possible:
                yield Missed(number, prev or 0, reason, letter, inputs[0])

    @property
    def _shown(self) -> str:
        return f"{self._processor.id}: object {self.object.name.decode(errors='replace')!r}"


def _reason(letter: Letter) -> str:
    """Returns the Reason why the event of a dead letter is a fault."""
    return letter.message.partition(":")[0]
