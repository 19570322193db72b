"""A step that failed, and the dead letter that tells of it: what was read, what was raised, where."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.delivery import Output
from kstreams_py.record import HASH_HEADER, Headers, Message

Inputs = tuple[Message, ...]

_TRACEBACK_LIMIT: Final = 16_000
_MESSAGE_LIMIT: Final = 4_000


def said(error: BaseException) -> str:
    """What an exception says, in UTF-8 and not for ever, whatever its own `__str__` does."""
    try:
        return _utf8(str(error))[:_MESSAGE_LIMIT]
    except Exception:
        return f"<{type(error).__name__}, whose __str__ raised>"


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Failure:
    """A step whose function (or serde) raised: what was read, its hash, the exception."""

    inputs: Inputs
    delivery_hash: bytes
    error: Exception

    def __str__(self) -> str:
        read = ", ".join(f"{m.topic()}[{m.partition()}]@{m.offset()}" for m in self.inputs)
        return f"{type(self.error).__name__}: {said(self.error)} (reading {read}, delivery {self.delivery_hash.hex()})"


def dead_letter(failure: Failure, processor: str, topic: str, encode: Callable[[Any], bytes | None]) -> Output:
    """The letter of a failure of `processor` (graph.processor), as schemas/dead_letter.avsc has it, for `topic`."""
    error, lead = failure.error, failure.inputs[0]
    letter = {
        "processor": processor,
        "delivery_hash": failure.delivery_hash,
        "exception_class": f"{type(error).__module__}.{type(error).__qualname__}",
        "exception_message": said(error),
        "traceback": _utf8("".join(traceback.format_exception(error)))[-_TRACEBACK_LIMIT:],
        "inputs": [
            {
                "topic": m.topic(),
                "partition": m.partition(),
                "offset": m.offset(),
                "timestamp": m.timestamp()[1],
                "key": m.key(),
                "value": m.value(),
                "headers": [{"name": name, "value": value} for name, value in m.headers() or []],
            }
            for m in failure.inputs
        ],
    }
    headers: Headers = [
        (HASH_HEADER, failure.delivery_hash),
        ("ks-type", b"dead-letter"),
        ("ks-proc", processor.encode()),
        ("ks-error", type(error).__name__.encode()),
    ]
    return (topic, encode(letter), lead.key(), -1, None, None, max(lead.timestamp()[1], 0), headers)
