"""The consumer's rule: each event of an object is applied once, after the one before it.

An event is applied if its predecessor is the newest applied event of its object. It is dropped if it is a copy of an
applied event, and held if its predecessor has not arrived. Anything else is a fault: it stops the object, and each
later event of the object is a fault too, until an operator resumes the object. Other objects go on.

An operator may also accept that events are lost. Then an event that is held, or that the decision carries, is applied
without its predecessor. It replaces the applied events that are newer than its predecessor: their late copies are
dropped like others. Until the next event is applied, any event whose id is at most the newest replaced id is dropped,
too.

For the newest applied event of an object and for held events, predecessor and value tell a copy from another event with
the same id. For older events, only the range of their ids is known: up to the predecessor of the newest event. An event
with an id between that predecessor and the newest event is a fault. The values of older copies are not compared.

Source: spec of event ordering, EO-50 to EO-59; D-EO-02: the first event has no predecessor, ids begin at 1.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from kstreams_py.errors import DecodeError
from kstreams_py.graph.declarations import Start
from kstreams_py.ordering.decisions import Decision, Verb

ObjectState: TypeAlias = tuple[int, int, bytes, str, int]
"""The state of an object:

- id, predecessor (0 if there is none) and digest of its newest applied event
- the Reason of its stop, or ""
- the id of the newest event that the newest applied one has replaced by an operator's decision, or 0
"""

_NOTHING: Final[ObjectState] = (0, 0, b"", "", 0)
_PLACE: Final = struct.Struct(">QQB")
_REPLACED: Final = struct.Struct(">Q")
_HAS_REPLACED: Final = 0x80
"""A flag in the length of the digest: the id of a replaced event follows."""

_DIGEST_BYTES: Final = 8


def digest_of(value: bytes | None) -> bytes:
    """Returns 8 bytes that distinguish the value of an event from others; no bytes for None."""
    return b"" if value is None else blake2b(value, digest_size=_DIGEST_BYTES).digest()


def encode_state(state: ObjectState) -> bytes:
    """Encodes the state of an object as one value of a store."""
    newest, prev, digest, reason, replaced = state
    if replaced:
        place = _PLACE.pack(newest, prev, len(digest) | _HAS_REPLACED) + _REPLACED.pack(replaced)
        return place + digest + reason.encode()
    return _PLACE.pack(newest, prev, len(digest)) + digest + reason.encode()


def decode_state(data: bytes) -> ObjectState:
    """Decodes the bytes of `encode_state`. Raises DecodeError for other bytes."""
    try:
        newest, prev, length = _PLACE.unpack_from(data)
        at, replaced = _PLACE.size, 0
        if length & _HAS_REPLACED:
            (replaced,) = _REPLACED.unpack_from(data, at)
            at, length = at + _REPLACED.size, length - _HAS_REPLACED
        digest, reason = data[at : at + length], data[at + length :].decode()
        if len(digest) != length or (reason and reason not in set(Reason)):
            raise ValueError("cut off, or of another version")
    except (struct.error, ValueError) as error:
        raise DecodeError(f"{data[:40]!r} is not a state of an object: {error}") from None
    return newest, prev, digest, reason, replaced


class Reason(StrEnum):
    """Why an event is a fault."""

    MALFORMED = "malformed"
    """Its id or its predecessor is below 1, or the predecessor is not below the id."""
    FORKED = "forked"
    """It has the same predecessor as another event."""
    BACKWARDS = "backwards"
    """Its id is below the newest one, and it is not a copy: no event with this id was applied."""
    ALTERED = "altered"
    """Another event has the same id, but another predecessor or value."""
    STOPPED = "stopped"
    """Its object was stopped by an earlier fault."""


@dataclass(frozen=True, slots=True)
class ChainFault:
    """Why an event becomes a dead letter."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@dataclass(frozen=True, slots=True)
class HeldEvent:
    """An event that waits for its predecessor.

    - `record`: the caller's own object.
    - `position`: the place where the caller finds it again; positions grow as events arrive.
    - `held_at`: when it was held, in seconds of EventChains' clock.
    """

    object: bytes
    id: int
    prev: int
    value: bytes | None
    record: Any
    position: int
    held_at: float

    @property
    def bytes(self) -> int:
        """The size of key and value."""
        return len(self.object) + len(self.value or b"")


class OfferKind(Enum):
    """The outcome for an event that was offered."""

    APPLY = "apply"
    DUPLICATE = "duplicate"
    HOLD = "hold"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Offered:
    """The decision on an event that was offered, and on events that were held until now.

    - `kind`: the outcome for the offered event.
    - `fault`: why the offered event is a fault.
    - `held`: the offered event, if it is held now.
    - `released`: held events to apply after it, in this order.
    - `refused`: held events that are faults now.
    """

    kind: OfferKind
    fault: ChainFault | None = None
    released: tuple[HeldEvent, ...] = ()
    refused: tuple[tuple[HeldEvent, ChainFault], ...] = ()
    held: HeldEvent | None = None


APPLY: Final = Offered(OfferKind.APPLY)
DUPLICATE: Final = Offered(OfferKind.DUPLICATE)


@dataclass(slots=True)
class _Waiting:
    """The held events of one object by predecessor, with a heap of the predecessors, and the ids."""

    by_prev: dict[int, HeldEvent] = field(default_factory=dict)
    prevs: list[int] = field(default_factory=list)
    ids: set[int] = field(default_factory=set)

    def add(self, event: HeldEvent) -> None:
        self.by_prev[event.prev] = event
        heapq.heappush(self.prevs, event.prev)
        self.ids.add(event.id)

    @property
    def oldest(self) -> HeldEvent:
        """The event with the smallest predecessor."""
        return self.by_prev[self.prevs[0]]

    def pop(self) -> HeldEvent:
        """Removes and returns the event with the smallest predecessor."""
        event = self.by_prev.pop(heapq.heappop(self.prevs))
        self.ids.remove(event.id)
        return event


class EventChains:
    """The objects of one task. Only their held events are kept in memory.

    The caller stores each event that is held, removes each event that is released or refused, and calls `load` after a
    start or an abort.

    - `states`: the state of each object, written with each applied event, stop and decision. A caller that undoes the
      effects of an event undoes this write, too.
    - `clock`: seconds, on a time scale that a restart does not change.
    """

    def __init__(
        self,
        states: MutableMapping[bytes, ObjectState],
        clock: Callable[[], float],
        start: Start = Start.FROM_START,
    ) -> None:
        self._states = states
        self._clock = clock
        self._accepts_first = start is Start.ACCEPT_FIRST
        self._waiting: dict[bytes, _Waiting] = {}
        self.held_events = 0
        self.held_bytes = 0
        self.duplicates = 0
        """How many copies were dropped."""

    def offer(
        self, name: bytes, number: int, prev: int | None, value: bytes | None, record: Any, position: int
    ) -> Offered:
        """Decides on an event, and updates the object's state as if the caller had carried the decision out.

        - `name`: the name of the object.
        - `number`, `prev`: the ids of the event and its predecessor; `prev` is None for the first event.
        - `value`: distinguishes the event from others with the same id.
        - `record`, `position`: see HeldEvent.
        """
        states = self._states
        state = states.get(name)
        if state is not None and state[0] == prev and number > prev and not state[3]:
            digest = b"" if value is None else blake2b(value, digest_size=_DIGEST_BYTES).digest()
            states[name] = (number, prev, digest, "", 0)
            if self._waiting and name in self._waiting:
                return self._release(name, number)
            return APPLY
        return self._judge(name, number, prev, value, record, position)

    def load(self, held: Iterable[HeldEvent]) -> None:
        """Replaces the held events with the ones that the caller has stored."""
        self._waiting.clear()
        self.held_events = self.held_bytes = 0
        for event in held:
            self._add(event)

    def obey(self, name: bytes, decision: Decision, brought: HeldEvent | None = None) -> Offered | None:
        """Carries out an operator's decision on an object; returns None if it is for another state of the object.

        - `brought`: the accepted event, which the decision carries if it was refused before; None for a held event.

        The events to apply are in `released` of the outcome.
        """
        newest, before, digest, stopped, replaced = self._states.get(name, _NOTHING)
        waiting = self._waiting.get(name)
        if newest != decision.newest:
            return None
        if decision.verb is Verb.RESUME:
            if not stopped:
                return None
            self._states[name] = (newest, before, digest, "", replaced)
            return DUPLICATE
        if brought is not None:
            if not stopped:
                return None
            event = brought
        elif waiting is None or waiting.oldest.id != decision.event:
            return None
        else:
            event = self._pop(name)
        replaced = newest if newest > event.prev else 0
        self._states[name] = (event.id, event.prev, digest_of(event.value), "", replaced)
        found = self._release(name, event.id)
        return Offered(OfferKind.DUPLICATE, None, (event, *found.released), found.refused)

    # Held events.

    def held(self) -> Iterator[HeldEvent]:
        """Yields the held events, object by object."""
        for waiting in self._waiting.values():
            yield from waiting.by_prev.values()

    # Rules.

    def _judge(
        self, name: bytes, number: int, prev: int | None, value: bytes | None, record: Any, position: int
    ) -> Offered:
        """Decides, as `offer` does, on an event that does not simply follow the newest one."""
        state = self._states.get(name, _NOTHING)
        newest, before, digest, stopped, replaced = state
        if stopped:
            return Offered(OfferKind.FAULT, _stopped(name, stopped))
        if number < 1 or (prev is not None and not 1 <= prev < number):
            return self._stop(name, Reason.MALFORMED, f"event {number} after {prev} is not possible: ids grow from 1")
        if number < newest:
            if number > before and number > replaced:
                return self._stop(name, Reason.BACKWARDS, f"event {number} came after {newest}, and was not applied")
            self.duplicates += 1
            return DUPLICATE
        if number == newest:
            return self._compare(name, number, (prev or 0, digest_of(value)), (before, digest))
        accepts = prev == newest or (self._accepts_first and not newest)
        if prev is None or accepts:
            if newest and not accepts:
                return self._stop(name, Reason.FORKED, f"event {number} begins the object again after {newest}")
            self._states[name] = (number, prev or 0, digest_of(value), "", 0)
            return self._release(name, number)
        if prev < newest:
            return self._stop(name, Reason.FORKED, f"event {number} follows {prev}, as another one did: {newest} came")
        return self._hold(HeldEvent(name, number, prev, value, record, position, self._clock()))

    def _compare(self, name: bytes, number: int, found: tuple[int, bytes], known: tuple[int, bytes]) -> Offered:
        """Returns the outcome for an event whose id is known. `found`, `known`: predecessor and digest of each."""
        if found == known:
            self.duplicates += 1
            return DUPLICATE
        what = "value" if found[0] == known[0] else f"predecessor: {found[0]}, and before {known[0]}"
        return self._stop(name, Reason.ALTERED, f"event {number} came again with another {what}")

    def _hold(self, event: HeldEvent) -> Offered:
        waiting = self._waiting.get(event.object)
        if waiting is not None:
            known = waiting.by_prev.get(event.prev)
            if known is not None and known.id != event.id:
                return self._stop(
                    event.object, Reason.FORKED, f"event {event.id} follows {event.prev}, as {known.id} does"
                )
            if event.id in waiting.ids:
                known = known or next(each for each in waiting.by_prev.values() if each.id == event.id)
                found = (event.prev, digest_of(event.value))
                return self._compare(event.object, event.id, found, (known.prev, digest_of(known.value)))
        self._add(event)
        return Offered(OfferKind.HOLD, held=event)

    def _release(self, name: bytes, newest: int) -> Offered:
        """Releases the held events that follow the event just applied; a fork among them stops the object."""
        waiting = self._waiting.get(name)
        if waiting is None:
            return APPLY
        released = []
        while waiting.prevs and waiting.prevs[0] == newest:
            released.append(event := self._pop(name))
            newest = event.id
        if released:
            self._states[name] = (newest, event.prev, digest_of(event.value), "", 0)
        if not waiting.prevs or waiting.prevs[0] > newest:
            return Offered(OfferKind.APPLY, None, tuple(released)) if released else APPLY
        fork = self._pop(name)
        text = f"event {fork.id} follows {fork.prev}, as another one did: {newest} came"
        stop = self._stop(name, Reason.FORKED, text)
        assert stop.fault is not None
        return Offered(OfferKind.APPLY, None, tuple(released), ((fork, stop.fault), *stop.refused))

    def _stop(self, name: bytes, reason: Reason, text: str) -> Offered:
        """Returns the outcome of a fault, which stops the object and refuses its held events."""
        newest, before, digest, _, replaced = self._states.get(name, _NOTHING)
        self._states[name] = (newest, before, digest, reason.value, replaced)
        refused = []
        while name in self._waiting:
            refused.append((self._pop(name), _stopped(name, reason.value)))
        return Offered(OfferKind.FAULT, ChainFault(reason, f"{_shown(name)}: {text}"), (), tuple(refused))

    def _add(self, event: HeldEvent) -> None:
        self._waiting.setdefault(event.object, _Waiting()).add(event)
        self.held_events += 1
        self.held_bytes += event.bytes

    def _pop(self, name: bytes) -> HeldEvent:
        """Removes and returns the held event of an object with the smallest predecessor."""
        waiting = self._waiting[name]
        event = waiting.pop()
        if not waiting.prevs:
            del self._waiting[name]
        self.held_events -= 1
        self.held_bytes -= event.bytes
        return event


def _shown(name: bytes) -> str:
    return name.decode(errors="replace")


def _stopped(name: bytes, reason: str) -> ChainFault:
    return ChainFault(
        Reason.STOPPED,
        f"{_shown(name)} is stopped after a fault of its chain ({reason}): its events are refused until "
        "`kstreams order resume`",
    )
