"""Values that cross packages: TopicPartition, Positions, Message, Out, Step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol

from typing_extensions import TypeVar

from kstreams_py.errors import DecodeError

Headers = Sequence[tuple[str, bytes | None]]

HASH_HEADER: Final = "ks-hash"
"""Header of every output and dead letter: the delivery hash of the step that made it."""

PLACE_HEADER: Final = "ks-step"
"""Header of the outputs and dead letters of an exactly-once join: the place of the step (graph/hashes.py)."""


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


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A copy of a record that serves as a Message where the client's own Message is not kept.

    - `place`: topic, partition and offset.
    - `stamp`: the type and the value of its timestamp.
    - `content`: key and value.
    """

    place: tuple[str, int, int]
    stamp: tuple[int, int]
    content: tuple[bytes | None, bytes | None]
    header_list: Headers

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.place[2]

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def key(self) -> bytes | None:
        return self.content[0]

    def value(self) -> bytes | None:
        return self.content[1]

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self.header_list)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A Message for a record with a part that cannot be read: asking for that part raises DecodeError.

    - `kept`: the part that a dead letter can have.
    - `cut`: the missing part, as a dead letter names it: `headers of orders[0]@5: ...`.
    - `headers_fault`, `value_fault`: why this part cannot be read; "" if it can.
    """

    kept: KeptRecord
    cut: str
    headers_fault: str
    value_fault: str = ""

    def __len__(self) -> int:
        return len(self.kept.value() or b"")

    def topic(self) -> str:
        return self.kept.topic()

    def partition(self) -> int:
        return self.kept.partition()

    def offset(self) -> int:
        return self.kept.offset()

    def timestamp(self) -> tuple[int, int]:
        return self.kept.timestamp()

    def key(self) -> bytes | None:
        """Returns the part of the key that is kept."""
        return self.kept.key()

    def value(self) -> bytes | None:
        """Returns the value. Raises DecodeError if it cannot be read."""
        if self.value_fault:
            raise DecodeError(self.value_fault)
        return self.kept.value()

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Returns the headers. Raises DecodeError if they cannot be read."""
        if self.headers_fault:
            raise DecodeError(self.headers_fault)
        return self.kept.headers()


KEPT_BYTES: Final = 1_000
"""The number of bytes of the key, and of the value, that are kept from a record that is too large."""


def with_bad_headers(m: Message, reason: object) -> Unreadable:
    """Returns a record without headers, in place of a record with a header name that is not UTF-8.

    Clients other than the Java client can write such names.
    """
    place = m.topic(), m.partition(), m.offset()
    fault = f"its headers cannot be read, because a name is not UTF-8: {reason}"
    cut = f"headers of {place[0]}[{place[1]}]@{place[2]}: a name is not UTF-8, none is kept"
    return Unreadable(KeptRecord(place, m.timestamp(), (m.key(), m.value()), ()), cut, fault)


def too_large(m: Message, limit: int) -> Unreadable:
    """Returns a record with only the first bytes of a value that exceeds `limit` bytes, so that its memory is freed."""
    place, size = (m.topic(), m.partition(), m.offset()), len(m.value() or b"")
    fault = f"a value of {size:,} bytes: value_bytes_max is {limit:,}; raise it if the worker has the memory"
    name = f"{place[0]}[{place[1]}]@{place[2]}"
    key, value = (each and each[:KEPT_BYTES] for each in (m.key(), m.value()))
    cut = f"value of {name}: {KEPT_BYTES:,} of {size:,} bytes kept; headers of {name}: none is kept"
    return Unreadable(KeptRecord(place, m.timestamp(), (key, value), ()), cut, fault, fault)


def undecompressed(partition: TopicPartition, first: int, last: int, reason: object) -> Unreadable:
    """Returns one record in place of all at offsets `first` to `last`, whose batch the client cannot decompress."""
    place, name = (*partition, last), f"{partition}@{last}"
    fault = f"the batch of the offsets {first} to {last} cannot be decompressed: {reason}"
    cut = f"key of {name}: none is kept; value of {name}: none is kept; headers of {name}: none is kept"
    return Unreadable(KeptRecord(place, (NO_TIMESTAMP, -1), (None, None), ()), cut, fault, fault)


def readable_headers(m: Message) -> Headers:
    """Returns the headers of a record; none where they cannot be read."""
    try:
        return m.headers() or ()
    except DecodeError:
        return ()


Inputs = tuple[Message, ...]
"""The records of one step: one record, or for a join one record from each input."""


class _Keep:
    """The type of KEEP, the default in an Out: the output takes the part from the input record."""

    def __repr__(self) -> str:
        return "KEEP"

    def __reduce__(self) -> str:
        return "KEEP"  # a copy of an Out has the same object, which is recognized by its identity


KEEP: Final[Any] = _Keep()


OutValue_co = TypeVar("OutValue_co", default=Any, covariant=True)
OutKey_co = TypeVar("OutKey_co", default=Any, covariant=True)


@dataclass(frozen=True)  # with slots, Out[str](...) fails in Python 3.11
class Out(Generic[OutValue_co, OutKey_co]):
    """An output with its own key, headers or timestamp; by default each is the input's.

    - `value`: None writes a tombstone, whereas a function that returns a plain `None` writes nothing.
    - `headers`: pairs of name and bytes.
    - `timestamp`: milliseconds since 1970.
    """

    value: OutValue_co | None
    key: OutKey_co | None = KEEP
    headers: Headers = KEEP
    timestamp: int = KEEP


KeyRead_co = TypeVar("KeyRead_co", default=Any, covariant=True)


class Step(Generic[KeyRead_co]):
    """The delivery to which a call of a processor's function belongs; functions take it as the argument `step`.

    For a join, topic, key and headers come from the first input, and the timestamp is the latest of all inputs.
    `delivery_hash` (16 bytes) is unique to this delivery, and the same on every attempt at it: see graph/hashes.py.
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
    def key(self) -> KeyRead_co:
        """The decoded key, or None if the record has none; only `Step[K | None]` tells a type checker so."""
        key: Any = self._messages[0].key()
        return key if key is None or self._decode_key is None else self._decode_key(key)  # type: ignore[no-any-return]

    @property
    def headers(self) -> Headers:
        """Pairs of name and bytes, in order. Raises DecodeError if a name is not UTF-8."""
        # a copy: a change by the function must not reach its next attempt, its outputs or its dead letter
        return [*(self._messages[0].headers() or ())]

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return max(m.timestamp()[1] for m in self._messages)

    @property
    def offsets_read(self) -> tuple[tuple[str, int, int], ...]:
        """(topic, partition, offset) of each record that the step reads."""
        return tuple((m.topic(), m.partition(), m.offset()) for m in self._messages)
