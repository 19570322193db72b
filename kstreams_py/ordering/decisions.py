"""An operator's decision on an object that is stopped, or whose events wait: a record of the events' topic.

The consumer reads the record between the object's events, and carries the decision out in the transaction that commits
the record's offset, so it is carried out once. The header CONTROL_HEADER names the consumer group that the decision is
for; other groups ignore it.

If the group has refused the event that a decision names, the record carries it: its value, its timestamp and its
headers. Its place in the order is in CONTROL_HEADER instead, so other groups do not judge the event a second time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kstreams_py.errors import DecodeError
from kstreams_py.kafka.contracts import Output
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER
from kstreams_py.records import Headers, Message

CONTROL_HEADER: Final = "ks-event-control"

_NUMBER_MAX: Final = 2**63 - 1


class Verb(StrEnum):
    """The kind of decision."""

    RESUME = "resume"
    """Let the object go on: apply the event that follows the newest one."""
    ACCEPT = "accept"
    """Apply an event without its predecessor: the events between the newest one and this one are lost."""
    OFFER = "offer"
    """Judge an event again, as if it arrived now: it was refused while the object was stopped."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An operator's decision on an object. It has no effect if `newest` or `stop` has changed since.

    - `group`: the consumer group that it is for.
    - `newest`: the id of the object's newest applied event, 0 if there is none.
    - `event`: the id of the event that is accepted or offered; 0 to resume.
    - `stop`: the offset of the record that has stopped the object, -1 if there is none.
    - `prev`: the predecessor of the event that the record carries, 0 if there is none; None if it carries no event.
    """

    verb: Verb
    group: str
    newest: int
    event: int = 0
    stop: int = -1
    prev: int | None = None


def decision_record(
    topic: str, partition: int, name: bytes, decision: Decision, brought: Message | None = None
) -> Output:
    """Returns the record of a decision.

    - `name`: the name of the object.
    - `brought`: the record of the event that the decision carries.
    """
    value = {
        "verb": decision.verb,
        "group": decision.group,
        "newest": decision.newest,
        "event": decision.event,
        "stop": decision.stop,
        "prev": decision.prev,
    }
    headers: list[tuple[str, bytes | None]] = [(CONTROL_HEADER, json.dumps(value, separators=(",", ":")).encode())]
    if brought is None:
        return (topic, None, name, partition, None, None, 0, headers)
    headers += [each for each in brought.headers() or () if each[0] not in (ID_HEADER, PREV_HEADER, CONTROL_HEADER)]
    return (topic, brought.value(), name, partition, None, None, max(0, brought.timestamp()[1]), headers)


def decision_of(headers: Headers) -> Decision | None:
    """Reads the decision from the headers of a record; None if it has none. Raises DecodeError."""
    found = dict(headers).get(CONTROL_HEADER)
    if found is None:
        return None
    try:
        return _decision(json.loads(found))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DecodeError(f"{found[:80]!r} is not a decision of `kstreams order resume` or `accept`: {error}") from None


def event_headers(headers: Headers, decision: Decision) -> tuple[tuple[str, bytes | None], ...]:
    """Returns the headers of the event that a decision carries."""
    place = [(ID_HEADER, b"%d" % decision.event)] + ([(PREV_HEADER, b"%d" % decision.prev)] if decision.prev else [])
    return (*place, *(each for each in headers if each[0] != CONTROL_HEADER))


def _decision(value: Mapping[str, Any]) -> Decision:
    """Reads a decision. Raises KeyError, TypeError, or ValueError for numbers that no object can have."""
    verb, newest, event, stop, prev = Verb(value["verb"]), value["newest"], value["event"], value["stop"], value["prev"]
    numbers = (newest, event, stop, 0 if prev is None else prev)
    if not isinstance(value["group"], str) or any(type(each) is not int for each in numbers):
        raise TypeError("group has to be text, and newest, event, stop and prev numbers")
    if not (0 <= newest <= _NUMBER_MAX and -1 <= stop <= _NUMBER_MAX and event <= _NUMBER_MAX):
        raise ValueError("newest, event or stop is out of range")
    if verb is Verb.RESUME and (event != 0 or prev is not None):
        raise ValueError("resume has no event")
    if verb is not Verb.RESUME and event <= newest:
        raise ValueError("event has to be behind newest")
    if (prev is None and verb is Verb.OFFER) or (prev is not None and not 0 <= prev < event):
        raise ValueError("prev has to be before event")
    return Decision(verb, value["group"], newest, event, stop, prev)
