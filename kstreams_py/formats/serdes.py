"""The protocol of a serde, and the serdes that need no schema: Bytes, String, Json.

A serde is any object with `serialize` and `deserialize`; tombstones (None) never reach it. If it has `bind`, that
method is called once for each topic, and returns the topic's serde. If a value or bytes do not fit (ValueError,
TypeError, DecodeError), the record becomes a dead letter. A wrong schema, or a registry that does not answer, stops
the worker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from reprlib import Repr
from typing import Any, ClassVar, Final, Protocol

from typing_extensions import TypeVar

from kstreams_py.errors import DecodeError, EncodeError, SettingsError
from kstreams_py.formats.registry import Registry
from kstreams_py.printable import show_error

T = TypeVar("T", default=Any)


class Serde(Protocol[T]):
    """Turns values of one type into bytes and back; called for each record, from one thread at a time."""

    __slots__ = ()

    def serialize(self, value: T, /) -> bytes | None:
        """Returns the bytes of a value.

        Any exception, such as EncodeError, fails only this record; a KStreamsError stops the worker.
        """

    def deserialize(self, data: bytes, /) -> T:
        """Returns the value that these bytes encode. Raises DecodeError for bytes that it does not expect."""


def bind(serde: Serde, registry: Registry, subject: str) -> Serde:
    """Returns the serde for one subject: `T-value` or `T-key` of a topic T (TopicNameStrategy)."""
    bound: Serde = serde.bind(registry, subject) if hasattr(serde, "bind") else serde
    return bound


@dataclass(frozen=True, slots=True)
class Bytes(Serde[bytes]):
    """Bytes as they are; the default."""

    identity: ClassVar[bool] = True
    """Whether both directions return their argument, so that a loop may skip the call."""

    def serialize(self, value: Any, /) -> bytes:
        """Returns the same bytes. Raises EncodeError for anything but bytes."""
        if isinstance(value, bytes):
            return value
        raise EncodeError(f"{show(value)} is not bytes: give bytes, or a serde for it, such as ks.Json()")

    def deserialize(self, data: bytes, /) -> bytes:
        """Returns the same bytes."""
        return data


@dataclass(frozen=True, slots=True)
class String(Serde[str]):
    """Text, in UTF-8 by default."""

    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            "a".encode(self.encoding)
        except LookupError:
            raise SettingsError(f"String({self.encoding!r}): there is no such text encoding") from None

    def serialize(self, value: Any, /) -> bytes:
        """Encodes a str. Raises EncodeError for anything else, and for characters outside the encoding."""
        if not isinstance(value, str):
            raise EncodeError(f"{show(value)} is not a str: give a str, or a serde other than ks.String()")
        try:
            return value.encode(self.encoding)
        except UnicodeError as error:
            raise EncodeError(f"{show(value)} has characters that are not in {self.encoding}: {error}") from None

    def deserialize(self, data: bytes, /) -> str:
        """Decodes text. Raises DecodeError for bytes that are not text in the encoding."""
        try:
            return data.decode(self.encoding)
        except ValueError as error:
            raise DecodeError(f"these bytes are not text in {self.encoding}: {error}") from None


def _no_such_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    """Returns the float of a number; json calls it only for numbers with a fraction or an exponent."""
    number = float(text)
    if number - number != 0 or (number == 0 and text.lower().partition("e")[0].strip("-0.")):
        raise ValueError(f"no float is near to {text[:60]}")
    return number


_to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
parse_json: Final = json.JSONDecoder(parse_constant=_no_such_number, parse_float=_finite).decode
"""Parses JSON (RFC 8259). Raises ValueError for NaN, infinities, and numbers outside a float's range, such as 1e400."""


@dataclass(frozen=True, slots=True)
class Json(Serde[Any]):
    """JSON (RFC 8259) in UTF-8, without spaces.

    NaN and infinities are refused, because they are not JSON; so are numbers outside a float's range, such as 1e400. If
    an object has a name twice, the last one counts, as in most parsers. A record whose value is `null` becomes a dead
    letter: a function could not distinguish it from a tombstone. A tuple becomes an array, and a name that is an int, a
    float, a bool or None becomes text, as in Python's `json`.
    """

    has_null: ClassVar[bool] = True
    """Whether some bytes decode to None; a value that is None stands for a tombstone."""

    def serialize(self, value: Any, /) -> bytes:
        """Encodes a value. Raises EncodeError for a value without a JSON form."""
        try:
            return _to_json(value).encode()
        except UnicodeError as error:
            raise EncodeError(f"{show(value)} has characters that are not in UTF-8: {error}") from None
        except (TypeError, ValueError, RecursionError) as error:
            why = show_error(error).removeprefix("Object of type ").replace(" is not JSON serializable", " is not JSON")
            raise EncodeError(f"{show(value)}: {why}: give dict, list, str, int, float, bool or None") from None

    def deserialize(self, data: bytes, /) -> Any:
        """Decodes a value. Raises DecodeError for bytes that are not JSON in UTF-8."""
        try:
            return parse_json(data.decode())
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"these bytes are not JSON in UTF-8: {show_error(error)}") from None


_brief: Final = Repr()
_brief.maxstring = _brief.maxother = 60


def show(value: object) -> str:
    """Returns a value as text for a message, shortened, with its type."""
    return f"{_brief.repr(value)} ({type(value).__name__})"
