"""What an operator decides of an object that is stopped, or whose events wait: a record of the events' topic.

It is read by the consumer between the object's events, and done in the transaction of its position, so it is done once.
The header CONTROL_HEADER names the consumer group that it is for; all others go past it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kstreams_py.errors import DecodeError
from kstreams_py.kafka.contracts import Output
from kstreams_py.records import Headers

CONTROL_HEADER: Final = "ks-event-control"


class Verb(StrEnum):
    """What is decided."""

    RESUME = "resume"
    """The object is stopped no longer: the event that follows the newest one is applied."""
    ACCEPT = "accept"
    """An event is applied without its predecessor: those between the newest one and it are lost."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What an operator has decided of an object.

    - `group`: the consumer group that it is for.
    - `newest`: the id of the object's newest applied event, 0 for none; with another one, it is for another state.
    - `event`: the id of the event that is accepted; 0 to resume.
    """

    verb: Verb
    group: str
    newest: int
    event: int = 0


def decision_record(topic: str, partition: int, name: bytes, decision: Decision) -> Output:
    """The record of a decision. `name`: the object's."""
    value = {"verb": decision.verb, "group": decision.group, "newest": decision.newest, "event": decision.event}
    return (topic, None, name, partition, None, None, 0, [(CONTROL_HEADER, json.dumps(value).encode())])


def decision_of(headers: Headers) -> Decision | None:
    """The decision that a record has; None if it is no such record. Raises DecodeError."""
    found = dict(headers).get(CONTROL_HEADER)
    if found is None:
        return None
    try:
        value = json.loads(found)
        return Decision(Verb(value["verb"]), str(value["group"]), int(value["newest"]), int(value["event"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DecodeError(f"{found[:80]!r} is no decision of `kstreams order resume` or `accept`: {error}") from None
