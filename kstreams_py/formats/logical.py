"""Logical types that keep a value unchanged, or refuse it, in place of fastavro's own.

fastavro writes 2**40 as a date and drops what does not fit: a zone, microseconds, a time of day. It rounds a decimal
that has more digits than its type, and takes minutes for a decimal of a megabyte. Custom logical types are its
documented extension: https://fastavro.readthedocs.io/en/latest/logical_types.html
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import cache
from operator import index
from typing import Any, Final, SupportsIndex
from uuid import UUID

from fastavro.read import LOGICAL_READERS
from fastavro.write import LOGICAL_WRITERS

from kstreams_py.formats.schemas import JsonSchema, Names, kind_of, name_of

DIGITS_MAX: Final = 4_300
"""The maximum digits of a decimal, Python's own limit: the time to read them grows with the square of their number."""

_LOGICAL: Final = ("logicalType", "precision", "scale")
"""The keys that make a type a logical type."""

_SAME_ENCODING: Final = {"int": "long"}
"""Another type with the same encoding that a reader may have, by the writer's type."""

_OWN: Final = "ks-"
"""Prefix of the logical types that fastavro gets: programs may have registered other types under names without it."""

_Replace = Callable[[Any], Any]

_NUMBERS: Final = {"float": 1 << 24, "double": 1 << 53}
"""Up to this number, the type represents every whole number exactly."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_LOCAL: Final = _EPOCH.replace(tzinfo=None)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY_SECONDS: Final = 86_400
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EXACT: Final = Context(prec=DIGITS_MAX, Emax=MAX_EMAX, Emin=MIN_EMIN)


class Misfit:
    """A value that does not fit: fastavro neither validates nor writes it, and tries the next branch of a union."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def to_read(schema: JsonSchema) -> JsonSchema:
    """Returns the schema with this module's logical types for reading, in place of fastavro's."""
    found: JsonSchema = _replaced(schema, lambda each: _own_type(each, _READERS))
    return found


def to_write(schema: JsonSchema) -> JsonSchema:
    """Returns the schema with this module's logical types for writing, and checks of numbers and arrays in unions."""
    found: JsonSchema = _replaced(schema, lambda each: _own_type(each, _WRITERS), in_unions=_checked)
    return found


def to_validate(schema: JsonSchema) -> JsonSchema:
    """Returns the schema of `to_write` with checks of all numbers and arrays, to find what a quick check refused."""
    found: JsonSchema = _replaced(schema, lambda each: _checked(_own_type(each, _WRITERS)))
    return found


def adopt(writer: tuple[Any, Names], reader: tuple[Any, Names]) -> Any:
    """Returns the writer's parsed schema, changed in place to the reader's logical types: fastavro reads by it."""
    return _Adoption(writer[1], reader[1], set()).type_of(writer[0], reader[0])


def is_own(schema: Any) -> bool:
    """Returns whether values of a type are checked as they are written."""
    return isinstance(schema, dict) and str(schema.get("logicalType", "")).startswith(_OWN)


def expected_by(schema: Any) -> str:
    """Describes the values that a type takes."""
    if not is_own(schema):
        return name_of(schema)
    name = schema["logicalType"].removeprefix(_OWN)
    if name == "decimal":
        digits = min(schema["precision"], DIGITS_MAX)
        return f"a Decimal of at most {digits} digits, {schema.get('scale', 0)} of them after the point"
    return _EXPECTED.get(name, str(schema["type"]))


def _replaced(schema: Any, replace: _Replace, *, in_unions: _Replace | None = None) -> Any:
    """Returns a schema with each of its types replaced, and with the types in unions replaced once more."""

    def inner(each: Any) -> Any:
        return _replaced(each, replace, in_unions=in_unions)

    if isinstance(schema, list):
        return [inner(each) if in_unions is None else in_unions(inner(each)) for each in schema]
    if not isinstance(schema, dict):
        return replace(schema)
    found = {key: inner(each) if key in ("items", "values") else each for key, each in schema.items()}
    if isinstance(fields := schema.get("fields"), list):
        found["fields"] = [
            {**field, "type": inner(field["type"])} if isinstance(field, dict) and "type" in field else field
            for field in fields  # the parser refuses a field without a type
        ]
    return replace(found)


def _own_type(schema: Any, known: Any) -> Any:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return schema
    name = f"{schema['type']}-{schema['logicalType']}"
    if schema["logicalType"] == "decimal" and not schema.get("precision"):
        return {key: each for key, each in schema.items() if key != "logicalType"}  # as the specification demands
    return {**schema, "logicalType": f"{_OWN}{schema['logicalType']}"} if name in known else schema


def _checked(schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else schema
    if f"{kind}-{kind}" not in _WRITERS or is_own(schema):
        return schema
    return {**(schema if isinstance(schema, dict) else {}), "type": kind, "logicalType": f"{_OWN}{kind}"}


@dataclass(frozen=True, slots=True)
class _Adoption:
    """The named types of a writer's schema and of a reader's, and the names of the changed types."""

    writers: Names
    readers: Names
    changed: set[str]

    def type_of(self, w: Any, r: Any) -> Any:
        """Returns the type `w` as a reader with the type `r` reads it."""
        if isinstance(w, list):
            return [self.type_of(each, r) for each in w]
        kind = kind_of(w, self.writers)
        r = self.readers.get(r, r) if isinstance(r, str) else r
        if isinstance(r, list):
            kinds = (kind, _SAME_ENCODING.get(kind))
            r = next((each for each in r if kind_of(each, self.readers) in kinds), "null")
            r = self.readers.get(r, r) if isinstance(r, str) else r
        found: Any = self.writers.get(w, w) if isinstance(w, str) else w
        if isinstance(found, dict) and "name" in found:
            if found["name"] not in self.changed:
                self.changed.add(found["name"])
                self._change(kind, found, r)
            return w
        now = kind_of(r, self.readers)
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            found[inner] = self.type_of(found[inner], r[inner] if now == kind else "null")
            return found
        logical = {key: r[key] for key in _LOGICAL if key in r} if isinstance(r, dict) else {}
        return {"type": now, **logical} if logical and now in (kind, _SAME_ENCODING.get(kind)) else kind

    def _change(self, kind: str, w: dict[str, Any], r: Any) -> None:
        """Changes a named type as `type_of` changes other types."""
        r = r if isinstance(r, dict) else {}
        if kind == "fixed":
            for key in _LOGICAL:
                w.pop(key, None)
            w |= {key: r[key] for key in _LOGICAL if key in r}
        fields = {alias: field for field in r.get("fields", ()) for alias in field.get("aliases", ())}
        fields |= {field["name"]: field for field in r.get("fields", ())}
        for field in w.get("fields", ()):
            if field["name"] in fields:
                field["type"] = self.type_of(field["type"], fields[field["name"]]["type"])


# Writing: each function gets the value and its type.


def _whole(value: Any, first: int, last: int) -> Any:
    """Returns a whole number from `first` to `last` unchanged, and a Misfit for any other value."""
    is_whole = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    return value if is_whole and first <= index(value) <= last else Misfit(value)


def _write_number(value: Any, schema: Any) -> Any:
    if isinstance(value, bool):
        return Misfit(value)
    if isinstance(value, int) and abs(value) > _NUMBERS[schema["type"]]:
        return value if _is_exact(value, schema["type"]) else Misfit(value)
    if schema["type"] == "float" and isinstance(value, float):
        try:
            packed = struct.pack("<f", value)  # native "f" would make it an infinity
        except OverflowError:
            return Misfit(value)
        return value if any(packed[:3]) or packed[3] & 0x7F or not value else Misfit(value)  # else it would be 0
    return value


def _write_array(value: Any, _: Any) -> Any:
    return Misfit(value) if isinstance(value, bytes | bytearray) else value  # fastavro would write a list of ints


def _is_exact(value: int, kind: str) -> bool:
    code = "<f" if kind == "float" else "<d"
    try:
        return bool(struct.unpack(code, struct.pack(code, value))[0] == value)
    except (OverflowError, struct.error):
        return False


def _write_date(value: Any, _: Any) -> Any:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            return Misfit(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH_DAY
    return _whole(value, -(1 << 31), (1 << 31) - 1)


def _write_time(value: Any, unit: int) -> Any:
    """Converts a time of day; `unit`: the unit of the result, in microseconds."""
    if not isinstance(value, time):
        return _whole(value, 0, _DAY_SECONDS * 1_000_000 // unit - 1)
    if value.tzinfo is not None or value.microsecond % unit:
        return Misfit(value)
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) // unit


def _write_timestamp(value: Any, unit: int, epoch: datetime) -> Any:
    """Converts a datetime; `epoch`: has a zone if values must have one."""
    if not isinstance(value, datetime):
        return _whole(value, -(1 << 63), (1 << 63) - 1)
    cut = value.microsecond % unit or getattr(value, "nanosecond", 0)  # pandas.Timestamp is a datetime, too
    if cut or (value.utcoffset() is None) is not (epoch.tzinfo is None):
        return Misfit(value)
    return (value - epoch) // _MICROSECOND // unit


def _write_uuid(value: Any, _: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return value if isinstance(value, str) and _UUID.fullmatch(value) else Misfit(value)


def _write_decimal(value: Any, schema: Any) -> Any:
    """Converts a decimal. Like fastavro, also takes the number's bytes, if they can be read."""
    if isinstance(value, bytes | bytearray):
        try:
            _read_decimal(bytes(value), schema)
        except ValueError:
            return Misfit(value)
        return value
    if not isinstance(value, Decimal) or not value.is_finite():
        return Misfit(value)
    digits, scale = min(schema["precision"], DIGITS_MAX), schema.get("scale", 0)
    if value and value.adjusted() + scale >= digits:  # before any arithmetic: 1E+999999999 is a gigabyte of digits
        return Misfit(value)
    number = int(value.scaleb(scale, _EXACT)) if value else 0
    if _EXACT.create_decimal(number).scaleb(-scale, _EXACT) != value:
        return Misfit(value)
    size = schema["size"] if schema["type"] == "fixed" else number.bit_length() // 8 + 1
    return number.to_bytes(size, signed=True)


# Reading: each function gets the encoded value and its type, then the reader's type or None.


def _read_decimal(data: bytes, schema: Any, reader: Any = None) -> Decimal:
    wanted = reader if isinstance(reader, dict) else schema
    precision, scale = min(wanted["precision"], DIGITS_MAX), schema.get("scale", 0)
    number = int.from_bytes(data, signed=True)
    if abs(number) >= _power_of_ten(precision):
        raise ValueError(f"a decimal of more than {precision} digits")
    return _EXACT.create_decimal(number).scaleb(-scale, _EXACT)


@cache
def _power_of_ten(digits: int) -> int:
    return int(10**digits)


def _read_time(number: int, unit: int) -> time:
    if not 0 <= number < _DAY_SECONDS * 1_000_000 // unit:
        raise ValueError(f"a time of day of {number}")
    seconds, fraction = divmod(number * unit, 1_000_000)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, fraction)


_READERS: Final[dict[str, Callable[..., Any]]] = {
    "bytes-decimal": _read_decimal,
    "fixed-decimal": _read_decimal,
    "int-time-millis": lambda number, *_: _read_time(number, 1000),
    "long-time-micros": lambda number, *_: _read_time(number, 1),
}

_WRITERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "float-float": _write_number,
    "double-double": _write_number,
    "array-array": _write_array,
    "int-date": _write_date,
    "int-time-millis": lambda value, _: _write_time(value, 1000),
    "long-time-micros": lambda value, _: _write_time(value, 1),
    "long-timestamp-millis": lambda value, _: _write_timestamp(value, 1000, _EPOCH),
    "long-timestamp-micros": lambda value, _: _write_timestamp(value, 1, _EPOCH),
    "long-local-timestamp-millis": lambda value, _: _write_timestamp(value, 1000, _EPOCH_LOCAL),
    "long-local-timestamp-micros": lambda value, _: _write_timestamp(value, 1, _EPOCH_LOCAL),
    "string-uuid": _write_uuid,
    "bytes-decimal": _write_decimal,
    "fixed-decimal": _write_decimal,
}

_EXPECTED: Final = {
    "float": "a float in its range",
    "double": "a double that it equals",
    "date": "a date",
    "time-millis": "a time in whole milliseconds without a zone",
    "time-micros": "a time without a zone",
    "timestamp-millis": "a datetime with a zone in whole milliseconds",
    "timestamp-micros": "a datetime with a zone",
    "local-timestamp-millis": "a datetime in whole milliseconds without a zone",
    "local-timestamp-micros": "a datetime without a zone",
    "uuid": "a UUID",
}

for _name, _function in _READERS.items():
    LOGICAL_READERS[_name.replace("-", f"-{_OWN}", 1)] = _function
for _name, _function in _WRITERS.items():
    LOGICAL_WRITERS[_name.replace("-", f"-{_OWN}", 1)] = _function
