"""Values that cross packages: TopicPartition, Positions, Message, Out, Step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes | None]]

HASH_HEADER: Final = "ks-hash"
"""Header of every output and dead letter: the delivery hash of the step that made it."""

PLACE_HEADER: Final = "ks-step"
"""Header of the outputs and dead letters of a join that is exactly once: the place of the step (graph/hashes.py)."""


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

    `timestamp()` returns (type, milliseconds since 1970); type 0 means no timestamp.
    """

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


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
        """Pairs of name and bytes, in order."""
        return self._messages[0].headers() or []

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return max(m.timestamp()[1] for m in self._messages)

    @property
    def offsets_read(self) -> tuple[tuple[str, int, int], ...]:
        """(topic, partition, offset) of each record that the step reads."""
        return tuple((m.topic(), m.partition(), m.offset()) for m in self._messages)
