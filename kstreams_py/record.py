"""Values that cross rooms: TopicPartition, Positions, Message, Out, Step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes | None]]

HASH_HEADER: Final = "ks-hash"
"""Header of every output and dead letter: the delivery hash of the step that made it."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


Positions = dict[TopicPartition, int]
"""Next offset to read, per partition."""


class Message(Protocol):
    """A record as a client hands it out: methods, not attributes, because the C client's are and copying costs.

    `timestamp()` is (type, milliseconds since 1970); type 0 means that there is none.
    """

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class _Keep:
    """Means: as on the input."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final[Any] = _Keep()


@dataclass(frozen=True, slots=True)
class Out:
    """An output with more to say than its value.

    `key`, `headers` (a list of name and bytes) and `timestamp` (milliseconds since 1970) stay as on the input unless
    given; `Out(None)` writes a tombstone, where plain `None` writes nothing.
    """

    value: Any
    key: Any = KEEP
    headers: Headers = KEEP
    timestamp: int = KEEP


class Step:
    """What a function may ask for beside its values: the delivery it is part of.

    Of a join's inputs, the first gives key and headers, and the latest the timestamp. `delivery_hash` (16 bytes) is the
    same on every attempt at this delivery, and no other's; see delivery.py.
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
        """The topic of the (first) record: which input an alts took."""
        return self._messages[0].topic()

    @property
    def key(self) -> Any:
        """The key, decoded; None if there is none."""
        key = self._messages[0].key()
        return key if key is None or self._decode_key is None else self._decode_key(key)

    @property
    def headers(self) -> Headers:
        """Names and bytes, in order."""
        return self._messages[0].headers() or []

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return max(m.timestamp()[1] for m in self._messages)

    @property
    def positions(self) -> tuple[tuple[str, int, int], ...]:
        """(topic, partition, offset) of each record read."""
        return tuple((m.topic(), m.partition(), m.offset()) for m in self._messages)
