"""Values that `ks.Avro()` decodes and encodes, and the schemas that the ids in records name."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest

import kstreams_py as ks
from kstreams_py.errors import DecodeError, Unavailable
from kstreams_py.formats.bounds import DEPTH_MAX, EMPTY_MAX
from kstreams_py.formats.schemas import canonical
from tests.hostile import Outcome, Place
from tests.unit.test_serdes import MemoryRegistry, array, avro, enum, fixed, of_map, record

OUTPUT, DEAD_LETTER = Outcome.OUTPUT, Outcome.DEAD_LETTER

HEAD: Final = b"\0\0\0\0\1"
"""The wire format's, of the first schema that is registered."""


Rows = dict[str, tuple[Any, ...]]


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def number(value: int) -> bytes:
    """As Avro writes whole numbers."""
    value = value << 1 ^ value >> 63
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def decode(rows: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """An output is encoded to the same bytes again, or to those of the reader's schema, and decoded to the same."""

    def outcome(writer: Any, body: bytes, reader: Any = None) -> Outcome:
        registry = MemoryRegistry(canonical(writer))
        serde = ks.Avro(reader or writer).bind(registry, "t-value")
        try:
            value = serde.deserialize(HEAD + body)
        except DecodeError:
            return DEAD_LETTER
        data = serde.serialize(value)
        assert data is not None
        assert reader is not None or data[5:] == body
        assert serde.deserialize(data) == value
        return OUTPUT

    return {name: outcome(*what) for name, what in rows.items()}


def encode(rows: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """An output is decoded to the value, or to what the row says it is."""

    def outcome(schema: Any, value: Any, *read: Any) -> Outcome:
        serde = avro(record(f=schema))
        try:
            data = serde.serialize({"f": value})
        except (ValueError, TypeError):
            return DEAD_LETTER
        assert data is not None
        expected = read[0] if read else value
        assert repr(serde.deserialize(data)["f"]) == repr(expected)
        return OUTPUT

    return {name: outcome(*what) for name, what in rows.items()}


def change(rows: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """A field `f` that is written with one schema, beside one that is left out, and read with another to a value."""

    def outcome(writer: Any, value: Any, reader: Any, read: Any) -> Outcome:
        for left_out in ({}, {"left_out": "string"}):  # fastavro has another way if the schemas have one encoding
            registry = MemoryRegistry()
            data = (
                ks.Avro(record(f=writer, **left_out))
                .bind(registry, "t-value")
                .serialize({"f": value, **dict.fromkeys(left_out, "x")})
            )
            assert data is not None
            try:
                found = ks.Avro(record(f=reader)).bind(registry, "t-value").deserialize(data)
            except DecodeError:
                found = None
            assert repr(found) == repr(None if read is None else {"f": read})
        return DEAD_LETTER if read is None else OUTPUT

    return {name: outcome(*what) for name, what in rows.items()}


def nested(depth: int) -> bytes:
    """A record in a record in a record, by a field that may be null."""
    return b"\2" * (depth - 1) + b"\0"


def tree(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = {"f": value}
    return value


def loop() -> Any:
    value: dict[str, Any] = {}
    value["f"] = value
    return value


class Nanoseconds(datetime):
    """Has nanoseconds, as a pandas.Timestamp has."""

    nanosecond = 1


CHAIN: Final = record(f=["null", "t.R"])
FLAT: Final = record(a="int")
FIXED_DECIMAL: Final[dict[str, Any]] = {**fixed(4), "logicalType": "decimal", "precision": 9, "scale": 2}
CENTS: Final[dict[str, Any]] = logical("bytes", "decimal", precision=6, scale=2)
LONG: Final = logical("bytes", "decimal", precision=1_000_000, scale=0)
MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL_MILLIS: Final = logical("long", "local-timestamp-millis")
LOCAL_MICROS: Final = logical("long", "local-timestamp-micros")
TIME_MILLIS, TIME_MICROS = logical("int", "time-millis"), logical("long", "time-micros")
DATE, UUID_TEXT = logical("int", "date"), logical("string", "uuid")
NULLS: Final = array("null")
AT: Final = datetime(2013, 1, 1, 10, 0, 0, 250_000, tzinfo=UTC)
ZONE: Final = timezone(timedelta(hours=5))

DECODED: Final[Rows] = {
    "as deep as is allowed": (CHAIN, nested(DEPTH_MAX), OUTPUT),
    "one deeper": (CHAIN, nested(DEPTH_MAX + 1), DEAD_LETTER),
    "10,000 deep": (CHAIN, nested(10_000), DEAD_LETTER),
    "1,000,000 deep, in arrays": (record(a=array("t.R")), b"\2" * 1_000_000, DEAD_LETTER),
    "100,000 deep, in maps": (record(a=of_map("t.R")), b"\2\0" * 100_000, DEAD_LETTER),
    "10,000 deep in a field that the reader lacks": (
        record(a="int", b=["null", "t.R"]),
        b"\0\2" * 10_000 + b"\0\0",
        FLAT,
        DEAD_LETTER,
    ),
    "10,000 deep behind a block with a false size": (
        record(a="int", b=array(record("I", c=["null", "t.I"]))),
        b"\0\1\2" + b"\2" * 10_000 + b"\0\0",
        FLAT,
        DEAD_LETTER,
    ),
    "2^60 nulls": (record(a=NULLS), number(2**60) + b"\0", DEAD_LETTER),
    "2^60 nulls, in a block with a size": (record(a=NULLS), number(-(2**60)) + b"\0\0", DEAD_LETTER),
    "2^60 empty records": (record(a=array(record("I"))), number(2**60) + b"\0", DEAD_LETTER),
    "2^60 records of nulls": (record(a=array(record("I", b="null"))), number(2**60) + b"\0", DEAD_LETTER),
    "2^60 fixed of size 0": (record(a=array(fixed(0))), number(2**60) + b"\0", DEAD_LETTER),
    "many blocks of nulls": (record(a=NULLS), number(EMPTY_MAX // 2) * 3 + b"\0", DEAD_LETTER),
    "many arrays of nulls": (record(a=array(NULLS)), b"\6" + (number(EMPTY_MAX // 2) + b"\0") * 3 + b"\0", DEAD_LETTER),
    "some nulls": (record(a=NULLS), number(3) + b"\0", OUTPUT),
    "2^60 doubles": (record(a=array("double")), number(2**60) + b"\0" * 80, DEAD_LETTER),
    "2^60 doubles in a field that the reader lacks": (
        record(a="int", b=array("double")),
        b"\0" + number(2**60) + b"\0" * 80,
        FLAT,
        DEAD_LETTER,
    ),
    "2^60 booleans in a record that the reader lacks": (
        record(a="int", b=array(record("I", c="boolean"))),
        b"\0" + number(2**60) + b"\1" * 80,
        FLAT,
        DEAD_LETTER,
    ),
    "2^60 entries of a map": (record(a=of_map("null")), number(2**60) + b"\0", DEAD_LETTER),
    "a string of 2^60 bytes": (record(a="string"), number(2**60) + b"x", DEAD_LETTER),
    "a string of -1 bytes": (record(a="string"), number(-1) + b"x", DEAD_LETTER),
    "bytes of 2^60 bytes": (record(a="bytes"), number(2**60) + b"x", DEAD_LETTER),
    "a symbol that there is not": (record(a=enum("A")), number(7), DEAD_LETTER),
    "a branch that there is not": (record(a=["null", "int"]), number(7), DEAD_LETTER),
    "a decimal of 1 MB": (record(a=LONG), number(1_000_000) + b"\x7f" * 1_000_000, DEAD_LETTER),
    "a decimal of more digits than its type": (record(a=CENTS), b"\6\x0f\x42\x40", DEAD_LETTER),
    "a decimal of as many": (record(a=CENTS), b"\6\x0f\x42\x3f", OUTPUT),
    "a negative time of day": (record(a=TIME_MILLIS), number(-1), DEAD_LETTER),
    "a time of day of 24 hours": (record(a=TIME_MICROS), number(86_400_000_000), DEAD_LETTER),
    "a date that Python does not have": (record(a=DATE), number(2**31 - 1), DEAD_LETTER),
    "a UUID that is none": (record(a=UUID_TEXT), b"\4no", DEAD_LETTER),
    "cut off in a field that the reader lacks": (record(a="int", b="double"), b"\0\1\2", FLAT, DEAD_LETTER),
    "a byte too many, and a field that the reader lacks": (record(a="int", b="int"), b"\0\0\0", FLAT, DEAD_LETTER),
    "a field that the reader lacks": (record(a="int", b="double"), b"\0" + bytes(8), FLAT, OUTPUT),
}

WRITTEN: Final[Rows] = {
    "200 deep": (["null", "t.R"], tree(DEPTH_MAX - 1), OUTPUT),
    "10,000 deep": (["null", "t.R"], tree(10_000), DEAD_LETTER),
    "a value that contains itself": (["null", "t.R"], loop(), DEAD_LETTER),
    "too many nulls": (NULLS, [None] * (EMPTY_MAX + 1), DEAD_LETTER),
    "True as an int": ("int", True, DEAD_LETTER),
    "False as a long that may be null": (["null", "long"], False, DEAD_LETTER),
    "True as a double": ("double", True, DEAD_LETTER),
    "True among ints": (array("int"), [1, True], DEAD_LETTER),
    "1e300 as a float": ("float", 1e300, DEAD_LETTER),
    "-1e300 as a float that may be null": (["null", "float"], -1e300, DEAD_LETTER),
    "1e300 among floats": (array("float"), [1e300], DEAD_LETTER),
    "1e-50 as a float": ("float", 1e-50, DEAD_LETTER),
    "-1e-50 as a float that may be null": (["null", "float"], -1e-50, DEAD_LETTER),
    "1e-50 among floats": (array("float"), [1e-50], DEAD_LETTER),
    "the least float": ("float", 2.0**-149, OUTPUT),
    "-0.0 as a float": ("float", -0.0, OUTPUT),
    "a decimal that a double has": ("double", Decimal("0.1"), 0.1, OUTPUT),
    "a decimal that no double has": ("double", Decimal(2**53 + 1), DEAD_LETTER),
    "the same decimal, if it may be null": (["null", "double"], Decimal(2**53 + 1), DEAD_LETTER),
    "an infinite float": ("float", float("-inf"), OUTPUT),
    "NaN as a float": (["null", "float"], float("nan"), OUTPUT),
    "a whole number as a double": ("double", 3, 3.0, OUTPUT),
    "a whole number that no double has": ("double", 2**53 + 1, DEAD_LETTER),
    "the same, if it may be null": (["null", "double"], 2**53 + 1, DEAD_LETTER),
    "the same, if it may be a long": (["double", "long"], 2**53 + 1, OUTPUT),
    "a large whole number that a double has": ("double", 2**60, 2.0**60, OUTPUT),
    "a whole number that no float has": ("float", 2**24 + 1, DEAD_LETTER),
    "a number of 400 digits as a double": ("double", 10**400, DEAD_LETTER),
    "bytes as an array of ints": (array("int"), b"ab", DEAD_LETTER),
    "bytes as bytes, where an array may be": ([array("int"), "bytes"], b"ab", OUTPUT),
    "a list as a fixed": (fixed(2), [1, 2], DEAD_LETTER),
    "a datetime with nanoseconds": (MICROS, Nanoseconds(2020, 1, 1, tzinfo=UTC), DEAD_LETTER),
    "2^40 as a date": (DATE, 2**40, DEAD_LETTER),
    "True as a date": (DATE, True, DEAD_LETTER),
    "True as a date that may be null": (["null", DATE], True, DEAD_LETTER),
    "a datetime as a date": (DATE, AT, DEAD_LETTER),
    "text as a date": (DATE, "2013-01-01", date(2013, 1, 1), OUTPUT),
    "text that is not a date": (DATE, "soon", DEAD_LETTER),
    "days as a date": (DATE, 1, date(1970, 1, 2), OUTPUT),
    "a date among dates": (array(DATE), [date(1, 1, 1), date.max], OUTPUT),
    "a datetime that may be a date": ([DATE, MILLIS], AT, OUTPUT),
    "a datetime": (MILLIS, AT, OUTPUT),
    "a datetime of another zone": (MILLIS, AT.astimezone(ZONE), AT, OUTPUT),
    "a datetime before 1970": (MICROS, datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC), OUTPUT),
    "the last datetime": (MICROS, datetime.max.replace(tzinfo=UTC), OUTPUT),
    "a datetime without a zone": (MILLIS, AT.replace(tzinfo=None), DEAD_LETTER),
    "the same, in microseconds": (MICROS, AT.replace(tzinfo=None), DEAD_LETTER),
    "microseconds in milliseconds": (MILLIS, AT.replace(microsecond=1), DEAD_LETTER),
    "microseconds in milliseconds that may be null": (["null", MILLIS], AT.replace(microsecond=1), DEAD_LETTER),
    "a date as a datetime": (MICROS, date(2013, 1, 1), DEAD_LETTER),
    "2^63 as a datetime": (MICROS, 2**63, DEAD_LETTER),
    "a local datetime": (LOCAL_MICROS, AT.replace(tzinfo=None), OUTPUT),
    "a local datetime with a zone": (LOCAL_MILLIS, AT, DEAD_LETTER),
    "local microseconds in milliseconds": (LOCAL_MILLIS, datetime(2013, 1, 1, 0, 0, 0, 1), DEAD_LETTER),  # noqa: DTZ001
    "a time": (TIME_MICROS, time(23, 59, 59, 999_999), OUTPUT),
    "a time with a zone": (TIME_MICROS, time(1, tzinfo=ZONE), DEAD_LETTER),
    "microseconds in a time of milliseconds": (TIME_MILLIS, time(1, 2, 3, 4), DEAD_LETTER),
    "-1 as a time": (TIME_MILLIS, -1, DEAD_LETTER),
    "24 hours as a time": (TIME_MILLIS, 86_400_000, DEAD_LETTER),
    "a UUID": (UUID_TEXT, UUID(int=7), OUTPUT),
    "the text of a UUID": (UUID_TEXT, str(UUID(int=7)), UUID(int=7), OUTPUT),
    "text that is no UUID": (UUID_TEXT, "not-a-uuid", DEAD_LETTER),
    "a UUID without hyphens": (UUID_TEXT, UUID(int=7).hex, DEAD_LETTER),
    "text beside UUIDs": (array(UUID_TEXT), [UUID(int=7), ""], DEAD_LETTER),
    "a decimal": (CENTS, Decimal("-1234.56"), OUTPUT),
    "a decimal of a fixed size": (FIXED_DECIMAL, Decimal("-1234567.89"), OUTPUT),
    "a decimal of fewer digits": (CENTS, Decimal("1.5"), Decimal("1.50"), OUTPUT),
    "a decimal with zeros at its end": (CENTS, Decimal("1.5000"), Decimal("1.50"), OUTPUT),
    "a decimal with digits behind its scale": (CENTS, Decimal("1.234"), DEAD_LETTER),
    "a decimal with 5,000 of them": (CENTS, Decimal("1." + "0" * 5_000 + "1"), DEAD_LETTER),
    "a decimal with too many digits": (CENTS, Decimal("12345.67"), DEAD_LETTER),
    "digits that the scale makes too many": (CENTS, Decimal(99_999), DEAD_LETTER),
    "1E+999999999 as a decimal": (LONG, Decimal("1E+999999999"), DEAD_LETTER),
    "0E+999999999 as a decimal": (CENTS, Decimal("0E+999999999"), Decimal("0.00"), OUTPUT),
    "a decimal that is not a number": (["null", CENTS], Decimal("NaN"), DEAD_LETTER),
    "a decimal of 10,000 digits": (LONG, Decimal("1" * 10_000), DEAD_LETTER),
    "a float as a decimal": (CENTS, 1.5, DEAD_LETTER),
    "bytes that are too long a decimal": (CENTS, b"\x7f" * 100, DEAD_LETTER),
    "a fraction, of a logical type that nobody knows": (logical("int", "shoe-size"), 3.7, DEAD_LETTER),
}

CHANGED: Final[Rows] = {
    "a decimal whose scale is another": (CENTS, Decimal("1.23"), {**CENTS, "scale": 4}, None, DEAD_LETTER),
    "a fixed decimal whose scale is another": (
        FIXED_DECIMAL,
        Decimal("1.23"),
        {**FIXED_DECIMAL, "scale": 4},
        None,
        DEAD_LETTER,
    ),
    "a decimal of more digits": (CENTS, Decimal("1.23"), {**CENTS, "precision": 9}, Decimal("1.23"), OUTPUT),
    "a decimal of fewer digits": (CENTS, Decimal("1234.56"), {**CENTS, "precision": 4}, None, DEAD_LETTER),
    "a decimal of fewer digits, that has them": (
        CENTS,
        Decimal("1.23"),
        {**CENTS, "precision": 4},
        Decimal("1.23"),
        OUTPUT,
    ),
    "milliseconds as microseconds": (MILLIS, AT, MICROS, None, DEAD_LETTER),
    "microseconds as milliseconds": (["null", MICROS], AT, ["null", MILLIS], None, DEAD_LETTER),
    "a datetime as a local one": (MILLIS, AT, LOCAL_MILLIS, None, DEAD_LETTER),
    "a date as a time": (DATE, date(1970, 1, 2), TIME_MILLIS, None, DEAD_LETTER),
    "a date as milliseconds": (DATE, date(1970, 1, 2), MILLIS, None, DEAD_LETTER),
    "a time of milliseconds as microseconds": (array(TIME_MILLIS), [time(1)], array(TIME_MICROS), None, DEAD_LETTER),
    "nanoseconds as microseconds": (logical("long", "timestamp-nanos"), 1, MICROS, None, DEAD_LETTER),
    "null, beside a datetime of another unit": (["null", MILLIS], None, ["null", MICROS], None, DEAD_LETTER),
    "a datetime, of two": (MILLIS, AT, MILLIS, AT, OUTPUT),
    "a number as a date": ("int", 1, DATE, date(1970, 1, 2), OUTPUT),
    "a date as a number": (DATE, date(1970, 1, 2), "int", 1, OUTPUT),
    "an int as a timestamp": (["null", "int"], 1, ["null", MILLIS], AT.fromtimestamp(0.001, UTC), OUTPUT),
    "a date as a double": (DATE, date(1970, 1, 2), "double", 1.0, OUTPUT),
    "text as a UUID": ("string", str(UUID(int=7)), UUID_TEXT, UUID(int=7), OUTPUT),
    "a logical type that nobody knows as another": (
        logical("string", "shoe"),
        "x",
        logical("string", "boot"),
        "x",
        OUTPUT,
    ),
}


class OddRegistry(MemoryRegistry):
    """Answers for id 1 with what it is given, which it may raise; under `subject`, all that it has is registered."""

    def __init__(self, answer: str | Exception, subject: str) -> None:
        super().__init__(canonical(FLAT))
        self.answer, self.subject = answer, subject

    def schema(self, schema_id: int, /) -> str:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def ids(self, subject: str, /) -> list[int]:
        return [1] if subject == self.subject else []


def ask(rows: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """An output is the number that was written; a registry that is away is waited for, which counts as refused."""

    def outcome(answer: str | Exception, subject: str) -> Outcome:
        serde = ks.Avro(record(a="long")).bind(OddRegistry(answer, subject), "t-value")
        try:
            assert serde.deserialize(HEAD + b"\2") == {"a": 1}
        except DecodeError:
            return DEAD_LETTER
        except Unavailable:
            return Outcome.REFUSED
        return OUTPUT

    return {name: outcome(*what) for name, what in rows.items()}


def deep_schema(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"int"' + "}" * depth


def doubled(times: int) -> dict[str, Any]:
    """A record of nulls that has 2^times of them."""
    found: Any = record("R0", a="null")
    for n in range(1, times):
        found = record(f"R{n}", a=found, b=f"t.R{n - 1}")
    return record(a=found)


ASKED: Final[Rows] = {
    "a writer's of the topic": (canonical(FLAT), "t-value", OUTPUT),
    "a writer's of the record": (canonical(FLAT), "t.R", OUTPUT),
    "a writer's of the topic and record": (canonical(FLAT), "t-t.R", OUTPUT),
    "another topic's": (canonical(FLAT), "other-value", DEAD_LETTER),
    "the reader's own, of another topic": (canonical(record(a="long")), "other-value", OUTPUT),
    "one that is not JSON": ("<html>", "t-value", DEAD_LETTER),
    "one that is no Avro": ('{"type": "such"}', "t-value", DEAD_LETTER),
    "one with a type that is a number": ('{"type": 7}', "t-value", DEAD_LETTER),
    "one with a logical type that is a list": ('{"type": "int", "logicalType": []}', "t-value", DEAD_LETTER),
    "one with a fixed of no size": ('{"type": "fixed", "name": "t.R", "size": "x"}', "t-value", DEAD_LETTER),
    "one that is nested 10,000 deep": (deep_schema(10_000), "t-value", DEAD_LETTER),
    "one that is nested 400 deep": (deep_schema(400), "t-value", DEAD_LETTER),
    "one whose records always contain themselves": (canonical(record(a="t.R")), "t-value", DEAD_LETTER),
    "one with 2^40 nulls": (canonical(doubled(40)), "t-value", DEAD_LETTER),
    "one that the registry does not know": (LookupError("id 1 is not here"), "t-value", DEAD_LETTER),
    "one whose file was changed": (ks.SchemaError("it was changed"), "t-value", DEAD_LETTER),
    "one of the topic, while the registry is away": (Unavailable("no answer"), "t-value", Outcome.REFUSED),
    "one that the registry fails at, of another topic": (Unavailable("500"), "other-value", DEAD_LETTER),
}

Enter = Callable[[Mapping[str, Any], pytest.FixtureRequest], Mapping[str, Outcome]]


def place(name: str, rows: Rows, enter: Enter) -> Place:
    return Place(name, {what: (row[:-1], row[-1]) for what, row in rows.items()}, enter)


PLACES: Final = [
    place("Avro, decoded", DECODED, decode),
    place("Avro, encoded", WRITTEN, encode),
    place("Avro, read with a schema that has changed", CHANGED, change),
    place("Avro, the schema that a record names", ASKED, ask),
]
assert struct.unpack(">xI", HEAD) == (1,)
