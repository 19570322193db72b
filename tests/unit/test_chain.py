"""The consumer's rule of event ordering: each event of an object once, in order; each impossible one has its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from kstreams_py.errors import DecodeError
from kstreams_py.graph.declarations import Start
from kstreams_py.ordering.chain import (
    APPLY,
    DUPLICATE,
    ChainFault,
    EventChains,
    HeldEvent,
    ObjectState,
    Offered,
    OfferKind,
    Reason,
    decode_state,
    digest_of,
    encode_state,
)
from kstreams_py.ordering.decisions import CONTROL_HEADER, Decision, Verb, decision_of, decision_record
from kstreams_py.ordering.events import Event, OrderedEvent, headers_of, place_of

Sent = tuple[bytes, int, int | None, bytes]
"""An event in a topic: object, id, predecessor, value."""

MakeChains = Callable[[], EventChains]

A, B = b"a", b"b"


def sent(name: bytes, number: int, prev: int | None, value: bytes | None = None) -> Sent:
    return name, number, prev, b"%d" % number if value is None else value


def new_chains(states: dict[bytes, ObjectState] | None = None, start: Start = Start.FROM_START) -> EventChains:
    return EventChains({} if states is None else states, lambda: 100.0, start)


def offer(chains: EventChains, event: Sent, position: int = 0) -> Offered:
    return chains.offer(*event, event, position)


def applied(event: Sent, outcome: Offered) -> list[Sent]:
    """The events that an outcome applies, in order."""
    return [event] * (outcome.kind is OfferKind.APPLY) + [each.record for each in outcome.released]


Found = tuple[OfferKind | Reason, list[int], list[tuple[int, Reason]]]
"""What became of an event, the ids of released events, and those of refused ones with the reason."""

APPLIED: Final[Found] = (OfferKind.APPLY, [], [])
DROPPED: Final[Found] = (OfferKind.DUPLICATE, [], [])
HELD: Final[Found] = (OfferKind.HOLD, [], [])


def outcomes(chains: EventChains, *events: Sent) -> list[Found]:
    """Offers events."""
    found = list[Found]()
    for event in events:
        each = offer(chains, event)
        what: OfferKind | Reason = each.kind if each.fault is None else each.fault.reason
        refused = [(held.id, fault.reason) for held, fault in each.refused]
        found.append((what, [held.id for held in each.released], refused))
    return found


# Any order of arrival.


def scatter(chance: Random) -> tuple[dict[bytes, list[Sent]], list[Sent]]:
    """The chains of some objects, whose ids have gaps, and a topic with them in any order, some more than once."""
    newest: dict[bytes, int | None] = {b"%d" % each: None for each in range(chance.randint(1, 4))}
    chains: dict[bytes, list[Sent]] = {name: [] for name in newest}
    number = 0
    for _ in range(chance.randint(1, 30)):
        number += chance.randint(1, 3)
        name = chance.choice(sorted(newest))
        chains[name].append(sent(name, number, newest[name]))
        newest[name] = number
    topic = [event for events in chains.values() for event in events]
    topic += chance.choices(topic, k=chance.randint(0, 20))
    chance.shuffle(topic)
    return chains, topic


def check_any_order(make: MakeChains) -> None:
    for seed in range(400):
        expected, topic = scatter(Random(seed))
        found: dict[bytes, list[Sent]] = {name: [] for name in expected}
        chains = make()
        for event in topic:
            outcome = offer(chains, event)
            assert (outcome.fault, outcome.refused) == (None, ()), seed
            found[event[0]] += applied(event, outcome)
        assert found == expected, seed
        assert (chains.held_events, chains.held_bytes, list(chains.held())) == (0, 0, []), seed


def test_any_order_of_arrival_with_late_copies_applies_each_event_once_in_order() -> None:
    check_any_order(new_chains)


def test_restarts_at_any_event_apply_each_event_once_in_order() -> None:
    for seed in range(200):
        chance = Random(seed)
        expected, topic = scatter(chance)
        found: dict[bytes, list[Sent]] = {name: [] for name in expected}
        states: dict[bytes, ObjectState] = {}
        chains, stored = new_chains(states), dict[tuple[bytes, int], HeldEvent]()
        for at, event in enumerate(topic):
            outcome = offer(chains, event, at)
            found[event[0]] += applied(event, outcome)
            for each in outcome.released:
                stored.pop((each.object, each.prev), None)
            if outcome.held is not None:
                stored[outcome.held.object, outcome.held.prev] = outcome.held
            if chance.random() < 0.1:
                chains = new_chains(states)
                chains.load(stored.values())
        assert found == expected, seed


# One event after another.


def check_copies() -> None:
    chains = new_chains()
    events = [sent(A, 10, None), sent(B, 11, None), sent(A, 20, 10), sent(B, 21, 11), sent(A, 30, 20)]
    assert [offer(chains, each) for each in events] == [APPLY] * 5
    assert [offer(chains, each) for each in events] == [DUPLICATE] * 5
    assert (chains.duplicates, offer(chains, sent(B, 22, 21))) == (5, APPLY)


def test_copies_are_dropped_and_counted_by_object() -> None:
    check_copies()


def test_held_object_blocks_no_other() -> None:
    chains = new_chains()
    again = sent(A, 2, 1)
    found = outcomes(chains, sent(A, 3, 2), sent(B, 4, None), sent(B, 5, 4), again, again, sent(A, 1, None))
    assert found == [HELD, APPLIED, APPLIED, HELD, DROPPED, (OfferKind.APPLY, [2, 3], [])]


IMPOSSIBLE: Final = "event {} after {} is not possible: ids grow from 1"

FAULTS: Final[dict[str, tuple[list[Sent], Sent, Reason, str]]] = {
    "an id of 0": ([], sent(A, 0, None), Reason.MALFORMED, IMPOSSIBLE.format(0, None)),
    "an id below 0": ([], sent(A, -1, None), Reason.MALFORMED, IMPOSSIBLE.format(-1, None)),
    "a predecessor of 0": ([], sent(A, 1, 0), Reason.MALFORMED, IMPOSSIBLE.format(1, 0)),
    "a predecessor below 0": ([], sent(A, 1, -1), Reason.MALFORMED, IMPOSSIBLE.format(1, -1)),
    "its own predecessor": ([], sent(A, 5, 5), Reason.MALFORMED, IMPOSSIBLE.format(5, 5)),
    "a later predecessor": (
        [sent(A, 5, None)], sent(A, 3, 5), Reason.MALFORMED, IMPOSSIBLE.format(3, 5),
    ),
    "a fork": (
        [sent(A, 5, None), sent(A, 7, 5)], sent(A, 8, 5), Reason.FORKED,
        "event 8 follows 5, as another one did: 7 came",
    ),
    "a second beginning": (
        [sent(A, 5, None)], sent(A, 7, None), Reason.FORKED, "event 7 begins the object again after 5",
    ),
    "a fork among held events": (
        [sent(A, 7, 5)], sent(A, 8, 5), Reason.FORKED, "event 8 follows 5, as 7 does",
    ),
    "an id that no event had": (
        [sent(A, 5, None), sent(A, 9, 5)], sent(A, 7, 5), Reason.BACKWARDS, "event 7 came after 9, and was not applied",
    ),
    "an id before the first": (
        [sent(A, 5, None)], sent(A, 4, None), Reason.BACKWARDS, "event 4 came after 5, and was not applied",
    ),
    "another value": (
        [sent(A, 5, None)], sent(A, 5, None, b"x"), Reason.ALTERED, "event 5 came again with another value",
    ),
    "another predecessor": (
        [sent(A, 5, None), sent(A, 9, 5)], sent(A, 9, 4), Reason.ALTERED,
        "event 9 came again with another predecessor: 4, and before 5",
    ),
    "another value of a held event": (
        [sent(A, 7, 5)], sent(A, 7, 5, b"x"), Reason.ALTERED, "event 7 came again with another value",
    ),
    "another predecessor of a held event": (
        [sent(A, 7, 5)], sent(A, 7, 6), Reason.ALTERED, "event 7 came again with another predecessor: 6, and before 5",
    ),
}  # fmt: skip


def check_fault(name: str) -> None:
    before, event, reason, text = FAULTS[name]
    states: dict[bytes, ObjectState] = {}
    chains = new_chains(states)
    offer(chains, sent(B, 2, 1))
    for each in before:
        assert offer(chains, each).fault is None
    held = [each for each in chains.held() if each.object == A]
    stopped = ChainFault(
        Reason.STOPPED,
        f"a is stopped after a fault of its chain ({reason}): its events are refused until `kstreams order resume`",
    )
    fault = Offered(OfferKind.FAULT, ChainFault(reason, f"a: {text}"), refused=tuple((each, stopped) for each in held))
    assert offer(chains, event) == fault, name
    later = [*before, event, sent(A, 10, 9), sent(A, 1, None)]
    assert [offer(chains, each) for each in later] == [Offered(OfferKind.FAULT, stopped)] * len(later)
    assert outcomes(chains, sent(B, 1, None)) == [(OfferKind.APPLY, [2], [])], "another object goes on"
    assert (chains.held_events, chains.held_bytes, chains.duplicates) == (0, 0, 0)
    newest = states[A][0]
    assert chains.obey(A, decided(Verb.RESUME, newest)) == DUPLICATE
    following = sent(A, 20, newest or None)
    assert outcomes(chains, following, following) == [APPLIED, DROPPED]


def test_impossible_event_is_a_fault_that_stops_its_object() -> None:
    for name in FAULTS:
        check_fault(name)


def test_fork_among_released_events_is_refused_with_those_behind_it() -> None:
    chains = new_chains()
    found = outcomes(chains, sent(A, 8, 7), sent(A, 9, 8), sent(A, 6, 5), sent(A, 10, 6), sent(A, 5, None))
    assert found[-1] == (OfferKind.APPLY, [6, 10], [(8, Reason.FORKED), (9, Reason.STOPPED)])
    assert outcomes(chains, sent(A, 11, 10)) == [(Reason.STOPPED, [], [])]
    chains = new_chains()
    found = outcomes(chains, sent(A, 2, None), sent(A, 8, 7), sent(A, 9, 2))
    assert found[-1] == (OfferKind.APPLY, [], [(8, Reason.FORKED)]), "no event follows 7 any more"


# A late start.


def test_from_start_holds_an_event_in_the_middle_and_accept_first_applies_it() -> None:
    events = [sent(A, 9, 8), sent(A, 10, 9), sent(A, 8, 7), sent(A, 3, None)]
    assert outcomes(new_chains(), *events) == [HELD, HELD, HELD, APPLIED]
    assert outcomes(new_chains(start=Start.ACCEPT_FIRST), *events) == [APPLIED, APPLIED, DROPPED, DROPPED]


def test_accept_first_applies_what_was_held_behind_the_first_event() -> None:
    chains = new_chains(start=Start.ACCEPT_FIRST)
    before = new_chains()
    outcomes(before, sent(A, 10, 9), sent(A, 11, 10))
    chains.load(before.held())
    assert outcomes(chains, sent(A, 9, 8)) == [(OfferKind.APPLY, [10, 11], [])]


# What an operator decides.


def decided(verb: Verb, newest: int, event: int = 0) -> Decision:
    return Decision(verb, "g.apply", newest, event)


def test_operator_lets_an_object_go_on_without_an_event_that_is_lost() -> None:
    chains = new_chains()
    outcomes(chains, sent(A, 1, None), sent(A, 10, 9), sent(A, 11, 10), sent(A, 20, 19))
    found = chains.obey(A, decided(Verb.ACCEPT, 1, 10))
    assert found is not None
    assert ([each.id for each in found.released], found.refused, chains.held_events) == ([10, 11], (), 1)
    assert outcomes(chains, sent(A, 1, None), sent(A, 9, 1)) == [DROPPED, DROPPED], "it comes after all"
    assert outcomes(chains, sent(A, 19, 11)) == [(OfferKind.APPLY, [20], [])]


def test_accepted_event_that_a_decision_brings_along_is_applied_at_once() -> None:
    states: dict[bytes, ObjectState] = {}
    chains = new_chains(states)
    fork = sent(A, 3, 1)
    brought = HeldEvent(A, 3, 1, fork[3], None, 12, 100.0)
    decision = replace(decided(Verb.ACCEPT, 2, 3), prev=1)
    outcomes(chains, sent(A, 1, None), sent(A, 2, 1))
    assert chains.obey(A, decision, brought) is None, "it is not stopped"
    outcomes(chains, fork)
    assert chains.obey(A, decision, brought) == Offered(OfferKind.DUPLICATE, None, (brought,))
    chains = new_chains({A: decode_state(encode_state(states[A]))})
    assert outcomes(chains, sent(A, 5, 4), fork, sent(A, 4, 3)) == [HELD, DROPPED, (OfferKind.APPLY, [5], [])]
    assert outcomes(chains, sent(A, 6, 2)) == [(Reason.FORKED, [], [])], "the other chain is refused"


@pytest.mark.parametrize("value", [b"3", None])
def test_copy_of_an_event_that_an_accepted_one_has_replaced_is_dropped(value: bytes | None) -> None:
    """EO-52: a copy may come at any time, also of an event that the order does not have any more."""
    states: dict[bytes, ObjectState] = {}
    chains = new_chains(states)
    chain = [sent(A, 1, None), sent(A, 4, 1), sent(A, 6, 4)]
    outcomes(chains, *chain, sent(A, 9, 1))
    brought = HeldEvent(A, 9, 1, value, None, 12, 100.0)
    decision = replace(decided(Verb.ACCEPT, 6, 9), prev=1)
    assert chains.obey(A, decision, brought) == Offered(OfferKind.DUPLICATE, None, (brought,))

    def restarted() -> EventChains:
        return new_chains({A: decode_state(encode_state(states[A]))})

    assert outcomes(restarted(), *chain) == [DROPPED] * 3
    copy = replace_value(sent(A, 9, 1), value)
    found = outcomes(restarted(), copy, *chain, sent(A, 10, 9), *chain, copy)
    assert found == [*[DROPPED] * 4, APPLIED, *[DROPPED] * 4]
    assert outcomes(restarted(), sent(A, 7, 6)) == [(Reason.BACKWARDS, [], [])], "it was never applied"
    assert outcomes(restarted(), replace_value(copy, b"x")) == [(Reason.ALTERED, [], [])]
    chains = restarted()
    assert outcomes(chains, sent(A, 10, 4)) == [(Reason.FORKED, [], [])]
    assert chains.obey(A, decided(Verb.RESUME, 9)) == DUPLICATE
    assert outcomes(chains, *chain, sent(A, 10, 9)) == [*[DROPPED] * 3, APPLIED]


def replace_value(event: Sent, value: Any) -> Sent:
    return (*event[:3], value)


@pytest.mark.parametrize(
    "decision",
    [decided(Verb.RESUME, 1), decided(Verb.ACCEPT, 0, 10), decided(Verb.ACCEPT, 2, 10), decided(Verb.ACCEPT, 1, 11)],
    ids=["it is not stopped", "an event came since", "an event is missing", "an older event waits"],
)
def test_decision_for_another_state_of_the_object_changes_nothing(decision: Decision) -> None:
    states: dict[bytes, ObjectState] = {}
    chains = new_chains(states)
    outcomes(chains, sent(A, 1, None), sent(A, 10, 9), sent(A, 11, 10))
    before = dict(states)
    assert chains.obey(A, decision) is None
    assert chains.obey(B, decided(Verb.RESUME, 0)) is None
    assert (states, chains.held_events) == (before, 2)


@pytest.mark.parametrize(
    "decision",
    [
        decided(Verb.ACCEPT, 2, 3),
        replace(decided(Verb.RESUME, 0), stop=7),
        replace(decided(Verb.ACCEPT, 2, 3), stop=7, prev=0),
        replace(decided(Verb.OFFER, 0, 3), prev=2),
    ],
)
def test_decision_is_the_same_in_a_record(decision: Decision) -> None:
    topic, value, key, partition, *_, headers = decision_record("t", 1, A, decision)
    assert (topic, value, key, partition) == ("t", None, A, 1)
    assert headers is not None
    assert decision_of(headers) == decision
    assert decision_of([("ks-event-id", b"1")]) is None


VALID: Final = {"verb": "accept", "group": "g", "newest": 2, "event": 3, "stop": 7, "prev": 1}


def test_decision_that_no_object_can_have_is_refused() -> None:
    changes: Final[list[dict[str, object]]] = [
        {"verb": "stop"}, {"group": 1}, {"newest": -1}, {"newest": 3}, {"newest": True}, {"newest": "2"},
        {"newest": float("inf")}, {"event": -1}, {"event": 2}, {"event": 2**63}, {"event": 2.5}, {"stop": -2},
        {"stop": None}, {"prev": -1}, {"prev": 3}, {"verb": "resume"}, {"verb": "offer", "prev": None},
        {"verb": "resume", "prev": None}, {"verb": "resume", "event": 0},
    ]  # fmt: skip
    texts = [b"", b"[]", b"{}", b'{"verb": "resume"}', b"[" * 100_000]

    def is_refused(data: bytes) -> bool:
        try:
            decision_of([(CONTROL_HEADER, data)])
        except DecodeError as error:
            return "is not a decision of `kstreams order resume` or `accept`: " in str(error)
        return False

    texts += [json.dumps(VALID | change).encode() for change in changes]
    assert [data for data in texts if not is_refused(data)] == []


# Bounds.


def test_held_events_and_their_bytes_are_counted_with_their_time() -> None:
    times = iter([10.0, 20.0, 30.0])
    chains = EventChains({}, lambda: next(times))
    for position, event in enumerate([sent(A, 5, 4, b"1234"), sent(B, 5, 4, b""), sent(A, 6, 5, b"1")]):
        name, number, prev, value = event
        held = HeldEvent(name, number, prev or 0, value, event, position + 100, 10.0 * (position + 1))
        assert offer(chains, event, position + 100) == Offered(OfferKind.HOLD, held=held)
    assert (chains.held_events, chains.held_bytes) == (3, 8)
    assert outcomes(chains, sent(A, 4, None)) == [(OfferKind.APPLY, [5, 6], [])]
    assert (chains.held_events, chains.held_bytes) == (1, 1)


def test_load_replaces_what_is_held() -> None:
    chains, other = new_chains(), new_chains()
    outcomes(chains, sent(A, 5, 4))
    outcomes(other, sent(B, 5, 4), sent(B, 6, 5))
    chains.load(other.held())
    assert (chains.held_events, chains.held_bytes, [each.id for each in chains.held()]) == (2, 4, [5, 6])
    assert outcomes(chains, sent(A, 4, None), sent(B, 4, None)) == [APPLIED, (OfferKind.APPLY, [5, 6], [])]


# In a store, and in records.


@pytest.mark.parametrize(
    "state",
    [
        (1, 0, digest_of(b""), "", 0),
        (2**63 - 1, 2**63 - 2, digest_of(b"value"), "", 0),
        (7, 5, digest_of(None), Reason.FORKED.value, 0),
        (7, 1, digest_of(None), Reason.FORKED.value, 6),
        (2**63 - 1, 1, digest_of(b"value"), "", 2**63 - 2),
    ],
)
def test_state_of_an_object_is_small_and_the_same_after_a_store(state: ObjectState) -> None:
    assert (decode_state(encode_state(state)), len(encode_state(state)) < 40) == (state, True)


def test_bytes_that_are_no_state_are_named() -> None:
    for end in (b"", b"\0what", b"\0accepts ", b"\0\xff", b"\x08" + bytes(7), b"\x80" + bytes(7)):
        with pytest.raises(DecodeError, match="is not a state of an object: "):
            decode_state(bytes(16) + end)
    with pytest.raises(DecodeError, match="is not a state of an object: "):
        decode_state(b"")


def test_values_that_differ_have_other_digests() -> None:
    assert len({digest_of(each) for each in (None, b"", b"a", b"b")}) == 4


@pytest.mark.parametrize("prev", [None, 6])
def test_place_of_a_record_is_what_its_worker_wrote(prev: int | None) -> None:
    assert place_of(headers_of(OrderedEvent(Event(bytes(16), b""), 7, prev))) == (7, prev)


NO_PLACE: Final = "{} is not the place of an event: only `kstreams order` may write here"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([], "a record without the header ks-event-id is not an event: only `kstreams order` may write here"),
        ([("ks-event-id", None)], NO_PLACE.format({"ks-event-id": None})),
        ([("ks-event-id", b"x")], NO_PLACE.format({"ks-event-id": b"x"})),
        ([("ks-event-id", b"%d" % 2**63)], NO_PLACE.format({"ks-event-id": b"9223372036854775808"})),
        ([("ks-event-id", b"1" * 9000)], NO_PLACE.format({"ks-event-id": b"1" * 40})),
        (
            [("ks-event-id", b"2"), ("else", b""), ("ks-event-prev", b"")],
            NO_PLACE.format({"ks-event-id": b"2", "ks-event-prev": b""}),
        ),
        (
            [("ks-event-id", b"2"), ("ks-event-prev", b"-%d" % 2**63)],
            NO_PLACE.format({"ks-event-id": b"2", "ks-event-prev": b"-9223372036854775808"}),
        ),
    ],
)
def test_record_without_a_place_is_named(headers: list[tuple[str, bytes | None]], message: str) -> None:
    with pytest.raises(DecodeError) as raised:
        place_of(headers)
    assert str(raised.value) == message


# Mutations: each rule that is left out turns a test above red.


class OneNewest(EventChains):
    """Copies are told by the newest id of all objects."""

    def __init__(self, *arguments: Any, **limits: Any) -> None:
        super().__init__(*arguments, **limits)
        self._newest = 0

    def offer(self, name: bytes, number: int, *event: Any) -> Offered:
        if number <= self._newest:
            return DUPLICATE
        self._newest = number
        return super().offer(name, number, *event)


class ReleasesByArrival(EventChains):
    """Events that wait are applied in the order in which they came."""

    def _release(self, name: bytes, newest: int) -> Offered:
        held = [each for each in self.held() if each.object == name]
        outcome = super()._release(name, newest)
        return replace(outcome, released=tuple(each for each in held if each in outcome.released))


class ReleasesOne(EventChains):
    """Of events that wait for each other only the next one is applied."""

    def _release(self, name: bytes, newest: int) -> Offered:
        outcome = super()._release(name, newest)
        return replace(outcome, released=outcome.released[:1])


class NeverStops(EventChains):
    """A fault is forgotten."""

    def _stop(self, name: bytes, reason: Reason, text: str) -> Offered:
        before = self._states.get(name)
        outcome = super()._stop(name, reason, text)
        if before is None:
            del self._states[name]
        else:
            self._states[name] = before
        return outcome


@pytest.mark.parametrize("mutated", [OneNewest, ReleasesByArrival, ReleasesOne])
def test_mutation_of_order_or_copies_is_detected(mutated: type[EventChains]) -> None:
    with pytest.raises(AssertionError):
        check_any_order(lambda: mutated({}, lambda: 100.0))


def test_mutation_that_tells_copies_by_the_newest_of_all_objects_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "EventChains", OneNewest)
    with pytest.raises(AssertionError):
        check_copies()


def test_mutation_that_forgets_a_stop_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "EventChains", NeverStops)
    for name in FAULTS:
        with pytest.raises(AssertionError):
            check_fault(name)
