"""Encodes the values that peers send each other: a value arrives exactly as it was, or is refused before it is sent.

MessagePack has None, booleans, 64-bit integers, floats, strings, bytes, lists and dicts. All other types travel as
extensions with the codes below: msgspec by itself would turn tuples into lists, and decimals into strings.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice
from struct import Struct
from typing import Any, Final, NamedTuple, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from msgspec.msgpack import Ext

from kstreams_py.errors import DecodeError, EncodeError

DEPTH_MAX: Final = 100
"""The most levels of a value: a list within a list has two."""

ITEMS_MAX: Final = 1 << 23
"""The most items in the values of one call. Each takes at least a byte, and by default a frame has no more bytes."""

SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""The types that MessagePack has, except lists and dicts."""

PLAIN: Final = SCALARS | {list, dict}

_PART_OF_MESSAGEPACK: Final = SCALARS - {int, str}
"""The scalars that MessagePack always accepts: an int may be too large, and a str may have lone surrogates."""

INT, TEXT, TUPLE, SET, FROZENSET, DECIMAL, IDENTIFIER, DATE, DATETIME, TIME, TIMEDELTA, COMPLEX, DICT = range(1, 14)
"""The codes of the extensions."""

_DATE: Final = Struct(">HBB")
_TIME: Final = Struct(">BBBIB")
_DATETIME: Final = Struct(">HBBBBBIB")
_TIMEDELTA: Final = Struct(">iii")
_COMPLEX: Final = Struct(">dd")

_encode: Final = msgspec.msgpack.Encoder().encode

_UTC: Final = _encode([0])


class EncodedValues(NamedTuple):
    """Values as bytes.

    - `data`: the values that are not refused.
    - `refused`: the reason, by the index of each value that cannot be sent.
    """

    data: bytes
    refused: dict[int, EncodeError]


def encode_values(values: Sequence[Any]) -> EncodedValues:
    """Returns values as bytes. Refuses types that this module does not list, subclasses, and recursive values."""
    whole = values if type(values) is list else [*values]
    # measured: the check costs a third of the encoding, and another 2 us for each value that has an extension
    if _are_plain(whole):
        try:
            return EncodedValues(_encode(whole), {})
        except (OverflowError, UnicodeEncodeError):
            return _convert(whole, _PART_OF_MESSAGEPACK)
    try:
        return _convert(whole, SCALARS)
    except (OverflowError, UnicodeEncodeError):
        return _convert(whole, _PART_OF_MESSAGEPACK)


def decode_values(data: bytes) -> list[Any]:
    """Returns the values that `encode_values` encoded. Raises DecodeError, and nothing else, for any other bytes."""
    try:
        values = msgspec.msgpack.decode(data, ext_hook=_Extensions().decode)
    except Exception as error:  # constructors raise ValueError, OverflowError, ArithmeticError, KeyError, OSError
        raise DecodeError(f"values of a peer cannot be read: {type(error).__name__}: {error}") from None
    if type(values) is not list:
        raise DecodeError(f"values of a peer cannot be read: they are a {type(values).__name__} and not a list")
    return values


def _are_plain(values: Collection[Any]) -> bool:
    """Returns whether values consist of MessagePack's types. Looks at one level after another, with functions in C."""
    level = values
    for _ in range(DEPTH_MAX):
        kinds = {*map(type, level)}
        if kinds <= SCALARS:
            return True
        if not kinds <= PLAIN:
            return False
        dicts = level if kinds == {dict} else [each for each in level if type(each) is dict]
        lists = level if kinds == {list} else [each for each in level if type(each) is list]
        if not SCALARS.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        below = chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists))
        level = [*islice(below, ITEMS_MAX + 1)]
        if len(level) > ITEMS_MAX:
            return False
    return False


def _convert(values: Sequence[Any], passed: frozenset[type]) -> EncodedValues:
    """Encodes values one by one. `passed`: the types that MessagePack gets without a look at the value."""
    converter = _Converter(passed)
    made, refused = list[Any](), dict[int, EncodeError]()
    for index, value in enumerate(values):
        try:
            made.append(value if type(value) in passed else converter.convert(value, 0))
        except EncodeError as error:
            refused[index] = error
        except RecursionError:
            refused[index] = _too_deep()
    return EncodedValues(_encode(made), refused)


def _too_deep() -> EncodeError:
    return EncodeError(
        f"a value has more than {DEPTH_MAX} levels, or contains itself: a channel cannot send it to another peer: "
        "return a flatter one"
    )


class _Converter:
    """Replaces values of types that MessagePack lacks with extensions."""

    def __init__(self, passed: frozenset[type]) -> None:
        self._passed = passed
        self._items = 0

    def convert(self, value: Any, depth: int) -> Any:
        """Returns what MessagePack encodes in place of a value. Raises EncodeError."""
        kind, passed = type(value), self._passed
        if kind is dict:
            self._enter(value, depth)
            if not passed.issuperset(map(type, value)):  # dicts of MessagePack have no extensions as keys here
                pairs = chain.from_iterable(value.items())
                return Ext(DICT, _encode(self._all(pairs, depth)))
            depth += 1
            return {key: each if type(each) in passed else self.convert(each, depth) for key, each in value.items()}
        if kind is list or kind in _COLLECTIONS:
            self._enter(value, depth)
            items = self._all(value, depth)
            return items if kind is list else Ext(_COLLECTIONS[kind], _encode(items))
        if kind in SCALARS:
            return _convert_scalar(value)
        found = _LEAVES.get(kind)
        if found is None:
            raise EncodeError(
                f"a channel cannot send a value of type {kind.__module__}.{kind.__qualname__} to another peer: "
                f"{_remedy(kind)}"
            )
        return Ext(found[0], found[1](value))

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        passed = self._passed
        return [each if type(each) in passed else self.convert(each, depth + 1) for each in values]

    def _enter(self, values: Collection[Any], depth: int) -> None:
        """Counts a level and its items: if each level contains the same list twice, a small value expands endlessly."""
        self._items += len(values)
        if depth >= DEPTH_MAX:
            raise _too_deep()
        if self._items > ITEMS_MAX:
            raise EncodeError(f"values of a channel have more than {ITEMS_MAX} items: return smaller ones")


def _convert_scalar(value: Any) -> Any:
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return Ext(INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return Ext(TEXT, value.encode(errors="surrogatepass"))
    return value


def _remedy(kind: type) -> str:
    """Returns advice on what to return instead of a value of a type that cannot be sent."""
    if issubclass(kind, enum.Enum):
        return "return its value"
    if issubclass(kind, tuple) and hasattr(kind, "_asdict"):
        return "return its fields as a dict, or a tuple of them"
    plain = next((each for each in kind.__mro__ if each in PLAIN or each in _COLLECTIONS or each in _LEAVES), None)
    if plain is not None and not dataclasses.is_dataclass(kind):
        return f"return a {plain.__name__} with the same content"
    return "return its fields as a dict"


def _encode_zone(zone: tzinfo | None) -> bytes:
    """Returns a time zone as bytes: no bytes for None. Raises EncodeError."""
    if zone is None:
        return b""
    if zone is UTC:
        return _UTC
    if type(zone) is timezone:
        of_zone: Any = zone
        offset, *name = of_zone.__getinitargs__()
        return _encode([offset // timedelta(microseconds=1), *name])
    if type(zone) is ZoneInfo and zone.key is not None:
        return _encode(zone.key)
    raise EncodeError(
        f"a channel cannot send a time with a zone of type {type(zone).__qualname__} to another "
        "peer: use timezone.utc, or a zoneinfo.ZoneInfo with a key"
    )


@lru_cache(64)
def _decode_zone(data: bytes) -> tzinfo | None:
    if not data:
        return None
    found = msgspec.msgpack.decode(data, type=str | list[int | str])
    if isinstance(found, str):
        return ZoneInfo(found)
    offset, *name = found
    return timezone(timedelta(microseconds=cast(int, offset)), *cast(list[str], name)) if offset or name else UTC


def _encode_date(value: date) -> bytes:
    return _DATE.pack(value.year, value.month, value.day)


def _encode_datetime(value: datetime) -> bytes:
    day = value.year, value.month, value.day
    fields = _DATETIME.pack(*day, value.hour, value.minute, value.second, value.microsecond, value.fold)
    return fields + _encode_zone(value.tzinfo)


def _decode_datetime(data: bytes) -> datetime:
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack_from(data)
    zone = _decode_zone(data[_DATETIME.size :])
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _encode_time(value: time) -> bytes:
    fields = _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)
    return fields + _encode_zone(value.tzinfo)


def _decode_time(data: bytes) -> time:
    hour, minute, second, microsecond, fold = _TIME.unpack_from(data)
    return time(hour, minute, second, microsecond, _decode_zone(data[_TIME.size :]), fold=fold)


def _decode_decimal(data: bytes) -> Decimal:
    return Decimal(data.decode("ascii"))


def _decode_int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


_COLLECTIONS: Final[dict[type, int]] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}

_LEAVES: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    Decimal: (DECIMAL, lambda value: str(value).encode("ascii")),
    UUID: (IDENTIFIER, lambda value: value.bytes),
    date: (DATE, _encode_date),
    datetime: (DATETIME, _encode_datetime),
    time: (TIME, _encode_time),
    timedelta: (TIMEDELTA, lambda value: _TIMEDELTA.pack(value.days, value.seconds, value.microseconds)),
    complex: (COMPLEX, lambda value: _COMPLEX.pack(value.real, value.imag)),
}

_DECODERS: Final[dict[int, Callable[[bytes], Any]]] = {
    INT: _decode_int,
    TEXT: lambda data: data.decode(errors="surrogatepass"),
    DECIMAL: _decode_decimal,
    IDENTIFIER: lambda data: UUID(bytes=data),
    DATE: lambda data: date(*_DATE.unpack(data)),
    DATETIME: _decode_datetime,
    TIME: _decode_time,
    TIMEDELTA: lambda data: timedelta(*_TIMEDELTA.unpack(data)),
    COMPLEX: lambda data: complex(*_COMPLEX.unpack(data)),
}


def _pair(items: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


_KINDS: Final[dict[int, Callable[[Any], Any]]] = {TUPLE: tuple, SET: set, FROZENSET: frozenset, DICT: _pair}


class _Extensions:
    """Decodes the extensions of one call. Counts nested ones, because nothing else bounds their depth."""

    def __init__(self) -> None:
        self._depth = 0

    def decode(self, code: int, data: memoryview) -> Any:
        """Returns the value of an extension. Raises what the constructors raise."""
        kind = _KINDS.get(code)
        if kind is None:
            return _DECODERS[code](bytes(data))
        if self._depth >= DEPTH_MAX:
            raise ValueError(f"there are more than {DEPTH_MAX} levels")
        self._depth += 1
        items = msgspec.msgpack.decode(data, ext_hook=self.decode)
        self._depth -= 1
        if type(items) is not list:
            raise ValueError(f"the items of a {kind} are a {type(items).__name__}")
        return kind(items)
