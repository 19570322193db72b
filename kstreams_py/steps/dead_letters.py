"""A step that failed, and its dead letter: the records read, the exception, the traceback."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.kafka.contracts import Output
from kstreams_py.kafka.sizes import RecordLimits
from kstreams_py.records import HASH_HEADER, PLACE_HEADER, Headers, Inputs, Message, Unreadable

Content = dict[str, Any]
"""A dead letter's value before it is encoded, by schemas/dead_letter.avsc."""

ATTEMPTS_HEADER: Final = "ks-attempts"
"""Header of a dead letter that follows retries: how often the step was tried, in decimal digits."""

_TRACEBACK_LIMIT: Final = 16_000
_MESSAGE_LIMIT: Final = 4_000

_KEPT: Final = 1_000
"""Bytes that a cut dead letter keeps of its own key (its value has the keys of all inputs) and of the exception's
message."""

_CALLERS: Final = re.compile(r"(kstreams_py(?!\.demo)|typer|concurrent\.futures)\b")
"""The modules whose calls lead to a user's function; the demos count as the user's."""

_ATTEMPTS: Final = 24
"""How many encodings are tried to cut a dead letter to a size that fits."""


def format_error(error: BaseException) -> str:
    """Returns the message of an exception in valid UTF-8, up to 4,000 characters, even if its `__str__` raises."""
    try:
        return _utf8(str(error))[:_MESSAGE_LIMIT]
    except BaseException:  # anything else would end the worker at each attempt
        return f"<{type(error).__name__}, whose __str__ raised>"


def format_traceback(error: BaseException) -> str:
    """Returns the traceback of an exception in valid UTF-8: its last 16,000 characters.

    It begins at the user's function: the calls of this package that lead to it are left out.
    """
    trace = error.__traceback__
    while trace is not None and _CALLERS.match(trace.tb_frame.f_globals.get("__name__", "")):
        trace = trace.tb_next
    trace = trace or error.__traceback__
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except BaseException:  # such as a SyntaxError whose text is not a str, or __notes__ that raise
        lines = [*traceback.format_tb(trace), f"{type(error).__name__}: {format_error(error)}"]
    return _utf8("".join(lines))[-_TRACEBACK_LIMIT:]


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Failure:
    """A step whose function (or serde) raised: the records read, the delivery hash, the exception, the attempts.

    - `place`: the step's place, if the delivery hash does not name it; None otherwise.
    """

    inputs: Inputs
    delivery_hash: bytes
    error: BaseException
    attempts: int = 1
    place: bytes | None = None

    @property
    def read(self) -> str:
        """The records read, as in orders[0]@5."""
        return ", ".join(f"{m.topic()}[{m.partition()}]@{m.offset()}" for m in self.inputs)

    def __str__(self) -> str:
        error = f"{type(self.error).__name__}: {format_error(self.error)}"
        tried = f", {self.attempts} attempts" if self.attempts > 1 else ""
        return f"{error} (reading {self.read}, delivery {self.delivery_hash.hex()}{tried})"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Makes the dead letters of one processor.

    - `processor`: its full name, `graph.processor`.
    - `topic`: the topic of the dead letters.
    - `encode`: serializes their values.
    - `clock`: returns the seconds since 1970, to which timestamps are compared.
    - `limits`: the limits of the topic for one record; None if it has none.
    - `trace`: returns the headers of the current trace context; None without tracing.
    """

    processor: str
    topic: str
    encode: Callable[[Any], bytes | None]
    clock: Callable[[], float]
    limits: RecordLimits | None = None
    trace: Callable[[], Headers] | None = None

    def of(self, failure: Failure, *, least: bool = False) -> Output:
        """Returns the dead letter of a failure, with the schema schemas/dead_letter.avsc.

        It is changed where its topic would refuse it, and the field `cut` names the changes. If it is too large, it is
        cut until it fits: first the traceback, then values, then headers, then keys, then the exception's message. The
        largest values (headers, keys) are cut first. If the rest still does not fit, it is written anyway. A timestamp
        beyond the topic's limits becomes the time of writing; in a compacted topic, the delivery hash replaces a
        missing key.

        `least`: whether the topic has refused the dead letter before. If so, everything that can be cut is cut,
        whatever the limits.
        """
        error = failure.error
        key, timestamp, changed = self._fitted(failure.inputs[0], failure.delivery_hash, least=least)
        missing = [m.cut for m in failure.inputs if isinstance(m, Unreadable)]
        content: Content = {
            "processor": self.processor,
            "delivery_hash": failure.delivery_hash,
            "exception_class": f"{type(error).__module__}.{type(error).__qualname__}",
            "exception_message": format_error(error),
            "traceback": format_traceback(error),
            "inputs": [_content_of(m) for m in failure.inputs],
            "cut": "; ".join([*missing, *changed]) or None,
        }
        headers: list[tuple[str, bytes | None]] = [
            (HASH_HEADER, failure.delivery_hash),
            ("ks-type", b"dead-letter"),
            ("ks-proc", self.processor.encode()),
            ("ks-error", type(error).__name__.encode()),
        ]
        if failure.place is not None:
            headers.append((PLACE_HEADER, failure.place))
        if failure.attempts > 1:
            headers.append((ATTEMPTS_HEADER, str(failure.attempts).encode()))
        if self.trace is not None:
            headers += self.trace()

        def record(content: Content, key: bytes | None) -> Output:
            return (self.topic, self.encode(content), key, -1, None, None, timestamp, headers)

        if least:
            return record(*_cut(content, key, 0))
        whole = record(content, key)
        if self.limits is None or record_size(whole) <= self.limits.size:
            return whole
        return _fitting(content, key, record, self.limits.size)

    def _fitted(self, lead: Message, digest: bytes, *, least: bool) -> tuple[bytes | None, int, list[str]]:
        """Returns the dead letter's key, its timestamp (0 for the time of writing), and the changes to them."""
        key, timestamp, limits, changed = lead.key(), lead.timestamp()[1], self.limits, list[str]()
        is_taken = limits is None or limits.takes_time(timestamp, self.clock())
        if least or not is_taken or not timestamp:  # the client writes the current time in place of 0
            changed.append(f"own timestamp: that of its writing, as {timestamp} cannot be written")
            timestamp = 0
        if key is None and (least or (limits is not None and limits.needs_key)):
            changed.append("own key: the delivery hash, because the topic is compacted")
            key = digest
        return key, timestamp, changed


def _content_of(m: Message) -> dict[str, Any]:
    read: Message = m.kept if isinstance(m, Unreadable) else m
    return {
        "topic": read.topic(),
        "partition": read.partition(),
        "offset": read.offset(),
        "timestamp": read.timestamp()[1],
        "key": read.key(),
        "value": read.value(),
        "headers": [{"name": name, "value": value} for name, value in read.headers() or ()],
    }


def record_size(output: Output) -> int:
    """Returns the bytes of an output in its batch: key, value, headers, and the most that Kafka adds to each header."""
    _, value, key, _, _, _, _, headers = output
    return len(key or b"") + len(value or b"") + sum(len(n.encode()) + len(v or b"") + 10 for n, v in headers or ())


def _fitting(
    content: Content, key: bytes | None, record: Callable[[Content, bytes | None], Output], limit: int
) -> Output:
    """Returns the record with as much content as fits. Any serde is possible, so only encoding shows the size."""
    slack, best = limit // 200, None
    kept = _cuttable(content)
    fits, spare = -1, 0
    too_much, excess = kept + 1, 0
    for attempt in range(_ATTEMPTS):
        encoded = record(*_cut(content, key, kept))
        left = limit - record_size(encoded)
        if left >= 0:
            best, fits, spare = encoded, kept, left
        else:
            too_much, excess = kept, -left
        if too_much - fits <= 1 or 0 <= left <= slack:
            break
        # until one fits, cut the bytes in excess; then interpolate, because sizes are nearly linear; and
        # halve at every third attempt, which finds a size whatever the serde does
        if best is None:
            kept -= excess
        else:
            kept = fits + (too_much - fits) * (spare - slack // 2) // (spare + excess)
        if attempt % 3 == 2 or not fits < kept < too_much:
            kept = (fits + too_much) // 2
    return best or record(*_cut(content, key, 0))


class _Budget:
    """Distributes the bytes that a cut dead letter keeps; the first shares are cut last."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked = 0
        self.cut: list[str] = []

    def share(self, names: Sequence[str], sizes: Sequence[int]) -> list[int]:
        """Returns how many bytes each of these parts keeps: all, unless the largest have to be cut to one size."""
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
    """Returns how many bytes of a dead letter can be cut."""
    budget = _Budget(0)
    _cut_content(content, budget)
    return budget.asked


def _cut(content: Content, key: bytes | None, kept: int) -> tuple[Content, bytes | None]:
    """Returns the content and the key, with `kept` of the bytes that can be cut."""
    budget, message = _Budget(kept), content["exception_message"].encode()
    shortened = _cut_content(content, budget)
    shortened["exception_message"] = message[:_KEPT].decode(errors="ignore")
    for name, size in (("exception message", len(message)), ("own key", _size(key))):
        if size > _KEPT:
            budget.cut.append(f"{name}: {_KEPT:,} of {size:,} bytes kept")
    missing = [content["cut"], *budget.cut] if content["cut"] else budget.cut
    return {**shortened, "cut": "; ".join(missing)}, key and key[:_KEPT]


def _cut_content(content: Content, budget: _Budget) -> Content:
    """Returns the content within the budget; the fields that ask for a share last are cut first."""
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
    """Returns the first headers whose names fit into `size` bytes; cuts the largest of their values."""
    kept = []
    for header in headers:
        name = len(header["name"].encode())
        if name > size:
            break
        size -= name
        kept.append(header)
    shares = _share([_size(header["value"]) for header in kept], size)
    return [{**h, "value": h["value"] and h["value"][:share]} for h, share in zip(kept, shares, strict=True)]
