"""Applies events: each once, after the previous event of its object (ordering/chain.py has the rule).

The store of the task has the rule's data on each object and the events that wait, beside the function's state. All of
it is committed with the outputs, and undone with them. An event whose function raises, or whose output a topic
refuses, becomes a dead letter, and the next event of its object is applied after it. An operator's decision is a record
among the events (ordering/decisions.py), and is carried out when it is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from kstreams_py.errors import DecodeError, EventFault, InputLost, Refused, TopicError
from kstreams_py.formats.registry import Registry
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.kafka.contracts import HEADERS
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import EventCounts, LongestHeld
from kstreams_py.ordering import held
from kstreams_py.ordering.chain import ChainFault, EventChains, HeldEvent, Offered, OfferKind, Reason
from kstreams_py.ordering.decisions import Decision, Verb, decision_of, event_headers
from kstreams_py.ordering.events import place_of
from kstreams_py.processing.runners.runner import Read, Runner
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import PLACE_HEADER, Inputs, KeptRecord, Message, TopicPartition
from kstreams_py.state.changelog import Commands, unreadable_value
from kstreams_py.state.keyed import TaskStore
from kstreams_py.steps.dead_letters import DeadLetters, Failure
from kstreams_py.steps.failures import Refusal, next_refusal
from kstreams_py.steps.outputs import delivery_hash_of
from kstreams_py.steps.plan import Intake, Plan, read_by
from kstreams_py.steps.tracing import Run, Tracing

logger = logging.getLogger(__name__)

_ALL: Final = b""
"""Stands for the delivery hashes of all events of a step, if no hash shows whose output is refused."""


class _Chains(NamedTuple):
    """The rule of one task and its store.

    - `rollbacks`: how often the store had been rolled back when the rule was loaded from it.
    - `stopped`: the objects that are stopped.
    """

    rule: EventChains
    store: TaskStore
    rollbacks: int
    stopped: set[bytes]


class _Mark(NamedTuple):
    """How many outputs, dead letters and failures a plan had before a step."""

    outputs: int
    dead_letters: int
    failures: int


class OrderedRunner(Runner):
    """Runs a processor that applies events in their order."""

    def __init__(
        self,
        processor: Processor,
        tasks: Tasks,
        registry: Registry,
        dead_letters: DeadLetters | None,
        *,
        tracing: Tracing | None = None,
        stores: Mapping[int, TaskStore],
    ) -> None:
        """Does the same as `Runner.__init__`; `stores` is required."""
        super().__init__(processor, tasks, registry, dead_letters, tracing=tracing, stores=stores)
        assert processor.ordered is not None, f"{processor.id} applies no events"
        self._ordered = processor.ordered
        self._chains: dict[int, _Chains] = {}
        self.events = self._counts = EventCounts()
        self._is_counted = True
        """Whether the counts of events that wait and of stopped objects include the newest event."""
        self._refused_events: dict[Read, dict[bytes, Refusal]] = {}
        """By step with a refused output, the refusals of its events, by delivery hash."""
        self._refusals: dict[bytes, Refusal] = {}
        """The refusals of the step that runs."""
        self._running: Message
        """The record of the step that runs."""

    def assigned(self) -> None:
        """Loads the held events: an operator must also hear of objects whose events have stopped coming."""
        self._chains.clear()
        for partition in self._stores:
            self._chains_of(partition)
        self._count()

    def _loop(self) -> Run:
        return self._run_events

    def _run_events(self, steps: Sequence[Any], plan: Plan) -> None:
        for m in steps:
            chains = self._chains_of(m.partition())
            before = _Mark(len(plan.outputs), plan.dead_letters, len(plan.failures))
            if not self._run_event(m, chains, plan):
                chains.store.undo()
                self._chains.pop(m.partition())
                del plan.outputs[before.outputs :], plan.failures[before.failures :]
                plan.dead_letters = before.dead_letters
                return
            chains.store.keep()
            plan.steps += 1
            self._tasks.by_partition[m.partition()].cursors[m.topic()].next = m.offset() + 1
            if chains.store.is_full:
                break
        if not self._is_counted:
            self._count()

    def refuse(self, intake: Intake, error: Refused) -> None:
        """Makes the event whose output is refused a dead letter from now on; the intake has only one step.

        The first time, the step is run again with each output written by itself: its event may have released others.
        """
        read = read_by(intake.steps[0])
        if read not in self._refused:
            super().refuse(intake, error)
            return
        digest = (delivery_hash_of(error.outputs[0]) or _ALL) if error.outputs else _ALL
        refused = self._refused_events.setdefault(read, {})
        digest = _ALL if _ALL in refused else digest
        refused[digest] = next_refusal(refused.get(digest), error)

    def committed(self) -> None:
        super().committed()
        self._refused_events = {read: each for read, each in self._refused_events.items() if read in self._refused}

    def _give_dead_letters(self, steps: Sequence[Any], plan: Plan) -> None:
        """Runs steps with a refused output: the rule passes the event of that output without a call of the function."""
        for step in steps:
            self._refusals = self._refused_events.get(read_by(step), {})
            self._run_events([step], plan)
            plan.apart, self._refusals = True, {}

    def _run_event(self, m: Message, chains: _Chains, plan: Plan) -> bool:
        """Handles a record according to the rule; returns False if the worker stops instead."""
        self._running = m
        try:
            number, prev = place_of(m.headers() or ())
            name = m.key()
            if name is None:
                raise DecodeError("a record without a key is not an event of an object")
        except DecodeError as error:
            return self._run_other(m, error, chains, plan)
        return self._offer(m, name, (number, prev), chains, plan)

    def _offer(self, m: Message, name: bytes, place: tuple[int, int | None], chains: _Chains, plan: Plan) -> bool:
        try:
            outcome = chains.rule.offer(name, *place, m.value(), m, m.offset())
        except DecodeError as error:  # the stored state of its object cannot be read: other objects go on
            return self._failures.handle((m,), error, plan, tried=False)
        if outcome.kind is OfferKind.APPLY and not self._apply(m, chains.store, plan):
            return False
        if outcome.kind is OfferKind.DUPLICATE:
            self._counts.duplicate += 1
        if outcome.fault is not None:
            self._refuse(m, outcome.fault, plan)
        return self._follow(outcome, chains, plan)

    def _run_other(self, m: Message, error: DecodeError, chains: _Chains, plan: Plan) -> bool:
        """Carries out the operator's decision in a record that is not an event; other records become dead letters."""
        name, decision = m.key(), None
        try:
            decision = decision_of(m.headers() or ())
        except DecodeError as mistake:
            error = mistake
        if decision is None or name is None:
            return self._failures.handle((m,), error, plan, tried=False)
        return decision.group != self._tasks.name or self._obey(m, name, decision, chains, plan)

    def _obey(self, m: Message, name: bytes, decision: Decision, chains: _Chains, plan: Plan) -> bool:
        brought = None if decision.prev is None else _brought(m, name, decision, decision.prev)
        if brought is not None:
            self._running = brought.record
        if decision.verb is Verb.OFFER and brought is not None:
            return self._offer(brought.record, name, (brought.id, brought.prev or None), chains, plan)
        try:
            is_meant = decision.stop == held.stop_offset(chains.store, name)
            outcome = chains.rule.obey(name, decision, brought) if is_meant else None
        except DecodeError as error:
            return self._failures.handle((m,), error, plan, tried=False)
        what = f"{self._processor.id}: `kstreams order {decision.verb}` of {name.decode(errors='replace')!r}"
        extra = repeated(f"decisions on objects of {self._processor.id}")
        if outcome is None:
            logger.warning("%s changes nothing: it was decided of another state of the object, after event %d", what,
                           decision.newest, extra=extra)  # fmt: skip
            if brought is not None:
                self._return(brought, decision.newest, plan)
            return True
        logger.warning("%s, after event %d", what, decision.newest, extra=extra)
        if name in chains.stopped:
            chains.stopped.remove(name)
            held.remove_stop(chains.store, name)
        self._is_counted = False
        return self._follow(outcome, chains, plan)

    def _follow(self, outcome: Offered, chains: _Chains, plan: Plan) -> bool:
        """Applies the consequences of an event for the held events, and for its object."""
        store = chains.store
        if outcome.held is not None:
            held.hold(store, outcome.held)
            self._counts.held += 1
            self._is_counted = False
            if limit := self._limit(chains.rule):
                plan.interrupt = self._full(chains.rule, limit)
                return False
        for event in outcome.released:
            held.release(store, event)
            self._is_counted = False
            if not self._apply(event.record, store, plan):
                return False
        for event, fault in outcome.refused:
            held.release(store, event)
            self._refuse(event.record, fault, plan)
        return True

    def _apply(self, m: Message, store: TaskStore, plan: Plan) -> bool:
        """Calls the function for an event; returns False if its exception stops the worker."""
        inputs, mark = (m,), store.mark()
        tried, result = False, None
        try:
            digest = self._tasks.delivery_hash(inputs)
            if (refusal := self._refusal(inputs)) is not None:
                self._failures.add_dead_letter(inputs, refusal.mistake, plan)
                return True
            values = self._arguments(inputs, digest, store if self._ordered.takes_state else None)
            tried = True
            result = self._processor.function(*values)
            outputs = self._outputs.of(result, inputs, digest)
            if m is not self._running and self._processor.hash_header:
                place = (PLACE_HEADER, self._place_of_step())
                outputs = [(*each[:HEADERS], [*(each[HEADERS] or ()), place]) for each in outputs]
            plan.outputs += outputs
            self._counts.applied += 1
        except BaseException as error:
            self._abandon(result)
            store.undo(mark)
            return self._failures.handle(inputs, error, plan, tried=tried)
        return True

    def _refusal(self, inputs: Inputs) -> Refusal | None:
        """Returns the refusal of an event of the step that runs; None if there is none."""
        if not self._refusals:
            return None
        return self._refusals.get(self._tasks.delivery_hash(inputs)) or self._refusals.get(_ALL)

    def _failure(self, inputs: Inputs, error: BaseException, attempts: int = 1) -> Failure:
        failure = super()._failure(inputs, error, attempts)
        return failure if inputs[0] is self._running else replace(failure, place=self._place_of_step())

    def _place_of_step(self) -> bytes:
        """Returns the hash of the record that released an event: the group passed the event's own offset earlier."""
        return self._tasks.delivery_hash((self._running,))

    def _refuse(self, m: Message, fault: ChainFault, plan: Plan) -> None:
        """Makes a dead letter of an event; the first one of an object says why the object is stopped."""
        self._counts.fault += 1
        self._is_counted = False
        chains, name = self._chains[m.partition()], m.key() or b""
        if fault.reason is not Reason.STOPPED:
            chains.stopped.add(name)
            held.note_stop(chains.store, name, held.ObjectStop(str(fault), m.offset(), time.time()))
        self._failures.add_dead_letter((m,), EventFault(str(fault)), plan)

    def _return(self, brought: HeldEvent, newest: int, plan: Plan) -> None:
        """Makes an event a dead letter again if its decision changes nothing: the old one is marked as replayed."""
        self._counts.fault += 1
        reason = Reason.FORKED if brought.prev < newest else Reason.STOPPED
        name = brought.object.decode(errors="replace")
        fault = f"{reason}: {name}: event {brought.id} was accepted in another state of the object, after {newest}"
        self._failures.add_dead_letter((brought.record,), EventFault(fault), plan)

    def _limit(self, rule: EventChains) -> str:
        """Returns the name of the limit that the held events exceed; "" if there is none."""
        if rule.held_events > self._ordered.held_max:
            return "held_max"
        return "held_bytes_max" if rule.held_bytes > self._ordered.held_bytes_max else ""

    def _full(self, rule: EventChains, limit: str) -> InputLost:
        oldest: HeldEvent = min(rule.held(), key=lambda event: event.position)
        return InputLost(
            f"{self._processor.id}: {rule.held_events:,} events of {rule.held_bytes:,} bytes wait for those before "
            f"them, the first one, at offset {oldest.position}, for event {oldest.prev} of "
            f"{oldest.object.decode(errors='replace')!r}: raise {limit}, and if that event is lost, go on "
            "without it: `kstreams order accept`"
        )

    def _count(self) -> None:
        """Counts the events that wait, and the stopped objects."""
        counts, found = self._counts, self._chains.values()
        counts.held_now = sum(each.rule.held_events for each in found)
        counts.stopped_now = sum(len(each.stopped) for each in found)
        oldest = min((event for each in found for event in each.rule.held()), key=lambda e: e.held_at, default=None)
        counts.longest_held = None if oldest is None else self._describe(oldest)
        self._is_counted = True

    def _describe(self, event: HeldEvent) -> LongestHeld:
        place = f"{event.record.topic()}[{event.record.partition()}]@{event.position}"
        name = event.object.decode(errors="replace")
        return LongestHeld(self._tasks.name, place, name, event.id, event.prev, event.held_at)

    def _chains_of(self, partition: int) -> _Chains:
        """Returns the rule of a task; loads it again if its store was rolled back."""
        store, chains = self._stores[partition], self._chains.get(partition)
        if chains is None or chains.store is not store or chains.rollbacks != store.rollbacks:
            rule = EventChains(cast(Any, held.States(store)), time.time, self._ordered.start)
            rule.load(self._load(store, partition))
            chains = self._chains[partition] = _Chains(rule, store, store.rollbacks, held.stopped(store))
        return chains

    def _load(self, store: TaskStore, partition: int) -> list[HeldEvent]:
        """Returns the held events. Raises TopicError for values that no worker has stored."""
        changelog = changelog_of(self._tasks.name.removesuffix(f".{self._processor.id}"), self._processor)
        try:
            return list(held.load(store, partition))
        except DecodeError as error:
            raise TopicError(unreadable_value(TopicPartition(changelog or "", partition), error, Commands())) from None


def _brought(m: Message, name: bytes, decision: Decision, prev: int) -> HeldEvent:
    """Returns the event that a decision contains."""
    place, headers = (m.topic(), m.partition(), m.offset()), event_headers(m.headers() or (), decision)
    record = KeptRecord(place, m.timestamp(), (name, m.value()), headers)
    return HeldEvent(name, decision.event, prev, m.value(), record, m.offset(), time.time())
