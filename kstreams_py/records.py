"""Values that cross packages: TopicPartition, Positions, Message, Out, Step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from kstreams_py.errors import DecodeError

Headers = Sequence[tuple[str, bytes | None]]

HASH_HEADER: Final = "ks-hash"
"""Header of every output and dead letter: the delivery hash of the step that made it."""

PLACE_HEADER: Final = "ks-step"
"""Header of the outputs and dead letters of a join that is exactly once: the place of the step (graph/hashes.py)."""


NO_TIMESTAMP: Final = 0
"""The type in `Message.timestamp()` of a record that has none."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


Positions = dict[TopicPartition, int]
"""Next offset to read, per partition."""


class Message(Protocol):
    """A record as confluent-kafka returns it; it has methods, not attributes, because copying the fields costs time.

    `timestamp()` returns (type, milliseconds since 1970); type 0 means no timestamp. `value()` and `headers()` raise
    DecodeError where the record is Unreadable.
    """

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class Unreadable:
    """A record of which a part cannot be read, as a Message: to ask for that part raises DecodeError.

    - `cut`: what is missing of it, as a dead letter names it: `headers of orders[0]@5: ...`.
    """

    __slots__ = ("_headers", "_headers_fault", "_key", "_place", "_timestamp", "_value", "_value_fault", "cut")

    def __init__(
        self,
        place: tuple[str, int, int],
        timestamp: tuple[int, int],
        kept: tuple[bytes | None, bytes | None, Headers],
        *,
        headers_fault: str,
        value_fault: str = "",
        cut: str,
    ) -> None:
        """Keeps what a dead letter can have of the record.

        - `place`: topic, partition and offset.
        - `kept`: key, value and headers.
        - `headers_fault`, `value_fault`: why this part cannot be read; "" if it can.
        """
        self._place, self._timestamp = place, timestamp
        self._key, self._value, self._headers = kept
        self._headers_fault, self._value_fault, self.cut = headers_fault, value_fault, cut

    def __len__(self) -> int:
        return len(self._value or b"")

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def key(self) -> bytes | None:
        """What is kept of the key."""
        return self._key

    def value(self) -> bytes | None:
        """Raises DecodeError if it cannot be read."""
        if self._value_fault:
            raise DecodeError(self._value_fault)
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Raises DecodeError if they cannot be read."""
        if self._headers_fault:
            raise DecodeError(self._headers_fault)
        return [*self._headers]

    @property
    def kept(self) -> tuple[bytes | None, bytes | None, Headers]:
        """What there is of key, value and headers."""
        return self._key, self._value, self._headers


def with_bad_headers(m: Message, reason: object) -> Unreadable:
    """A record whose headers have a name that is not UTF-8; clients that are not Java write such names."""
    place = m.topic(), m.partition(), m.offset()
    fault = f"its headers cannot be read, as a name is not UTF-8: {reason}"
    cut = f"headers of {place[0]}[{place[1]}]@{place[2]}: a name is not UTF-8, none is kept"
    return Unreadable(place, m.timestamp(), (m.key(), m.value(), ()), headers_fault=fault, cut=cut)


def too_large(m: Message, limit: int) -> Unreadable:
    """A record whose value is larger than `limit` bytes; its first bytes are kept, and the memory is given back."""
    place, size = (m.topic(), m.partition(), m.offset()), len(m.value() or b"")
    fault = f"a value of {size:,} bytes: value_bytes_max is {limit:,}; raise it if the worker has the memory"
    name = f"{place[0]}[{place[1]}]@{place[2]}"
    key, value = (each and each[:KEPT_BYTES] for each in (m.key(), m.value()))
    cut = f"value of {name}: {KEPT_BYTES:,} of {size:,} bytes kept; headers of {name}: none is kept"
    return Unreadable(place, m.timestamp(), (key, value, ()), headers_fault=fault, value_fault=fault, cut=cut)


def undecompressed(partition: TopicPartition, first: int, last: int, reason: object) -> Unreadable:
    """In place of the records from offset `first` to `last`, of a batch that the client cannot decompress."""
    place, name = (*partition, last), f"{partition}@{last}"
    fault = f"the batch of the offsets {first} to {last} cannot be decompressed: {reason}"
    cut = f"key of {name}: none is kept; value of {name}: none is kept; headers of {name}: none is kept"
    return Unreadable(place, (NO_TIMESTAMP, -1), (None, None, ()), headers_fault=fault, value_fault=fault, cut=cut)


def readable_headers(m: Message) -> Headers:
    """The headers of a record; none where they cannot be read."""
    try:
        return m.headers() or ()
    except DecodeError:
        return ()


KEPT_BYTES: Final = 1_000
"""Bytes of key and value that are kept of a record that is too large."""

Inputs = tuple[Message, ...]
"""The records of one step: one, or of a join one of each input."""


class _Keep:
    """The type of KEEP, the default of an Out: the value that the input record has."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final[Any] = _Keep()


@dataclass(frozen=True, slots=True)
class Out:
    """An output with its own key, headers or timestamp; each is that of the input by default.

    - `value`: None writes a tombstone, where a function that returns a plain `None` writes nothing.
    - `headers`: pairs of name and bytes.
    - `timestamp`: milliseconds since 1970.
    """

    value: Any
    key: Any = KEEP
    headers: Headers = KEEP
    timestamp: int = KEEP


class Step:
    """The delivery that a call of a processor's function is part of; functions take it as the argument `step`.

    For a join, topic, key and headers are those of the first input, and the timestamp is the latest of all inputs.
    `delivery_hash` (16 bytes) is the same on every attempt at this delivery, and unique to it: graph/hashes.py.
    """

    __slots__ = ("_decode_key", "_messages", "delivery_hash")

    def __init__(
        self, messages: tuple[Message, ...], delivery_hash: bytes, decode_key: Callable[[bytes], Any] | None = None
    ) -> None:
        self._messages = messages
        self._decode_key = decode_key
        self.delivery_hash = delivery_hash

    @property
    def topic(self) -> str:
        """The topic of the (first) record; for an alts, the input that the step reads."""
        return self._messages[0].topic()

    @property
    def key(self) -> Any:
        """The decoded key; None if the record has none."""
        key = self._messages[0].key()
        return key if key is None or self._decode_key is None else self._decode_key(key)

    @property
    def headers(self) -> Headers:
        """Pairs of name and bytes, in order. Raises DecodeError if a name is not UTF-8."""
        # a copy: what a function changes must not be changed for its next attempt, its outputs and its dead letter
        return [*(self._messages[0].headers() or ())]

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return max(m.timestamp()[1] for m in self._messages)

    @property
    def offsets_read(self) -> tuple[tuple[str, int, int], ...]:
        """(topic, partition, offset) of each record that the step reads."""
        return tuple((m.topic(), m.partition(), m.offset()) for m in self._messages)
