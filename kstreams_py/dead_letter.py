"""A step that failed, and the dead letter that tells of it: what was read, what was raised, where."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.delivery import Output
from kstreams_py.record import HASH_HEADER, Headers, Message

Inputs = tuple[Message, ...]
Content = dict[str, Any]
"""A dead letter's value before it is encoded, by schemas/dead_letter.avsc."""

_TRACEBACK_LIMIT: Final = 16_000
_MESSAGE_LIMIT: Final = 4_000

_KEPT: Final = 1_000
"""Bytes that a dead letter which has to be cut keeps of its own key (its value has the keys of all inputs) and of what
the exception says."""

_ATTEMPTS: Final = 24
"""Encodings of a dead letter that is cut: each halves what is not known of the size that fits."""


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


def dead_letter(
    failure: Failure,
    processor: str,
    topic: str,
    encode: Callable[[Any], bytes | None],
    limit: int | None = None,
) -> Output:
    """The dead letter of a failure of `processor` (graph.processor), as schemas/dead_letter.avsc has it, for `topic`.

    One that would have more than `limit` bytes (see `record_size`) is cut until it fits, and its field `cut` names
    what is missing: first the traceback, then values, then headers, then keys, then what the exception says. Of values
    (headers, keys) the largest are cut first. What remains at the end is written even if it does not fit.
    """
    error, lead = failure.error, failure.inputs[0]
    content: Content = {
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
        "cut": None,
    }
    headers: Headers = [
        (HASH_HEADER, failure.delivery_hash),
        ("ks-type", b"dead-letter"),
        ("ks-proc", processor.encode()),
        ("ks-error", type(error).__name__.encode()),
    ]

    def record(content: Content, key: bytes | None) -> Output:
        return (topic, encode(content), key, -1, None, None, max(lead.timestamp()[1], 0), headers)

    whole = record(content, lead.key())
    return whole if limit is None or record_size(whole) <= limit else _fitting(content, lead.key(), record, limit)


def record_size(output: Output) -> int:
    """Bytes of an output in its batch: key, value and headers, and at most what Kafka adds to each header."""
    _, value, key, _, _, _, _, headers = output
    return len(key or b"") + len(value or b"") + sum(len(n.encode()) + len(v or b"") + 10 for n, v in headers or ())


def _fitting(
    content: Content, key: bytes | None, record: Callable[[Content, bytes | None], Output], limit: int
) -> Output:
    """The record with as much of its content as fits. Its serde may be any: only encoding shows the size."""
    slack, best = limit // 200, None
    kept = _cuttable(content)
    fits, room = -1, 0
    too_much, excess = kept + 1, 0
    for attempt in range(_ATTEMPTS):
        made = record(*_cut(content, key, kept))
        left = limit - record_size(made)
        if left >= 0:
            best, fits, room = made, kept, left
        else:
            too_much, excess = kept, -left
        if too_much - fits <= 1 or 0 <= left <= slack:
            break
        # until one fits, a byte counts as a byte; then sizes lie on a line, or nearly; halving always gets there
        if best is None:
            kept -= excess
        else:
            kept = fits + (too_much - fits) * (room - slack // 2) // (room + excess)
        if attempt % 3 == 2 or not fits < kept < too_much:
            kept = (fits + too_much) // 2
    return best or record(*_cut(content, key, 0))


class _Budget:
    """The bytes that are kept of what can be cut; to be asked first for what is cut last."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked = 0
        self.cut: list[str] = []

    def share(self, names: Sequence[str], sizes: Sequence[int]) -> list[int]:
        """How much each of these keeps: all of it, or the largest are cut to one size."""
        shares = _share(sizes, self.left)
        for name, share, size in zip(names, shares, sizes, strict=True):
            if share < size:
                self.cut.append(f"{name}: {share:,} of {size:,} bytes kept")
        self.left -= sum(shares)
        self.asked += sum(sizes)
        return shares


def _share(sizes: Sequence[int], budget: int) -> list[int]:
    shares = [0] * len(sizes)
    for done, i in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[i] = min(sizes[i], budget // (len(sizes) - done))
        budget -= shares[i]
    return shares


def _cuttable(content: Content) -> int:
    """How many bytes of a dead letter can be cut."""
    budget = _Budget(0)
    _cut_content(content, budget)
    return budget.asked


def _cut(content: Content, key: bytes | None, kept: int) -> tuple[Content, bytes | None]:
    """The content and key with `kept` bytes of what can be cut."""
    budget, message = _Budget(kept), content["exception_message"].encode()
    shortened = _cut_content(content, budget)
    shortened["exception_message"] = message[:_KEPT].decode(errors="ignore")
    for name, size in (("exception message", len(message)), ("own key", _size(key))):
        if size > _KEPT:
            budget.cut.append(f"{name}: {_KEPT:,} of {size:,} bytes kept")
    return {**shortened, "cut": "; ".join(budget.cut)}, key and key[:_KEPT]


def _cut_content(content: Content, budget: _Budget) -> Content:
    """What the budget allows of the content; what is asked for last goes first."""
    inputs = content["inputs"]
    names = [f"{read['topic']}[{read['partition']}]@{read['offset']}" for read in inputs]
    trace = content["traceback"].encode()

    def of_inputs(field: str, size: Callable[[Any], int]) -> list[int]:
        return budget.share([f"{field} of {name}" for name in names], [size(read[field]) for read in inputs])

    keys, headers, values = of_inputs("key", _size), of_inputs("headers", _headers_size), of_inputs("value", _size)
    (of_trace,) = budget.share(["traceback"], [len(trace)])
    return {
        **content,
        "traceback": trace[len(trace) - of_trace :].decode(errors="ignore"),
        "inputs": [
            {
                **read,
                "key": read["key"] and read["key"][:of_key],
                "headers": _cut_headers(read["headers"], of_headers),
                "value": read["value"] and read["value"][:of_value],
            }
            for read, of_key, of_headers, of_value in zip(inputs, keys, headers, values, strict=True)
        ],
    }


def _size(data: bytes | None) -> int:
    return len(data or b"")


def _headers_size(headers: Sequence[dict[str, Any]]) -> int:
    return sum(len(header["name"].encode()) + _size(header["value"]) for header in headers)


def _cut_headers(headers: Sequence[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """As many headers from the first on as there is room for their names; the largest of their values are cut."""
    kept = []
    for header in headers:
        name = len(header["name"].encode())
        if name > size:
            break
        size -= name
        kept.append(header)
    shares = _share([_size(header["value"]) for header in kept], size)
    return [{**h, "value": h["value"] and h["value"][:share]} for h, share in zip(kept, shares, strict=True)]
