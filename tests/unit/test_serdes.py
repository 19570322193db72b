"""Serdes: round trips, refusals with their messages, and how Avro schemas evolve."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema

from kstreams_py.errors import DecodeError, EncodeError, SchemaError, SettingsError, Unavailable
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.schemas import canonical, content_id
from kstreams_py.formats.serdes import Bytes, Json, Serde, String, bind
from tests.tables import each_case

SCHEMAS = Path(__file__).parents[2] / "schemas"

FLIGHT: dict[str, Any] = {
    "year": 2013,
    "month": 1,
    "day": 1,
    "dep_time": 517,
    "sched_dep_time": 515,
    "dep_delay": 2,
    "arr_time": 830,
    "sched_arr_time": 819,
    "arr_delay": 11,
    "carrier": "UA",
    "flight": 1545,
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "air_time": 227,
    "distance": 1400,
    "hour": 5,
    "minute": 15,
    "time_hour": "2013-01-01T10:00:00Z",
}
CANCELLED = {**FLIGHT, **dict.fromkeys(["dep_time", "dep_delay", "arr_time", "arr_delay", "tailnum", "air_time"])}


class MemoryRegistry:
    """Ids 1, 2, ... in the order of registration; `down` makes it unreachable."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.subjects: list[str] = []
        self.lookups = 0
        self.down = False

    def register(self, subject: str, schema: str, /) -> int:
        self._answer()
        self.subjects.append(subject)
        if schema not in self.texts:
            self.texts.append(schema)
        return self.texts.index(schema) + 1

    def schema(self, schema_id: int, /) -> str:
        self._answer()
        self.lookups += 1
        if 1 <= schema_id <= len(self.texts):
            return self.texts[schema_id - 1]
        raise LookupError(f"id {schema_id} is not here")

    def ids(self, subject: str, /) -> list[int]:
        self._answer()
        return list(range(1, len(self.texts) + 1))

    def _answer(self) -> None:
        if self.down:
            raise Unavailable("no answer")


def record(name: str = "R", /, **fields: Any) -> dict[str, Any]:
    """A record schema; a field's type, or a tuple of its type and more attributes."""
    of = [
        {"name": n, "type": f[0], **f[1]} if isinstance(f, tuple) else {"name": n, "type": f} for n, f in fields.items()
    ]
    return {"type": "record", "name": name, "namespace": "t", "fields": of}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def of_map(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def enum(*symbols: str, **more: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def avro(schema: Any) -> Serde:
    return Avro(schema).bind(MemoryRegistry(), "t-value")


def write_and_read(writer: Any, value: Any, reader: Any) -> Any:
    """Encodes a value with the schema `writer`, and decodes it with the schema `reader`."""
    registry = MemoryRegistry()
    data = Avro(writer).bind(registry, "t-value").serialize(value)
    assert data is not None
    return Avro(reader).bind(registry, "t-value").deserialize(data)


def message(kind: type[Exception], call: Callable[..., object], *arguments: object) -> str:
    """The text of the exception that the call raises; its class must be exactly `kind`."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert type(caught.value) is kind
    return str(caught.value)


# Bytes, strings, JSON.


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (Bytes(), b"\x00\xff", b"\x00\xff"),
        (Bytes(), b"", b""),
        (String(), "grüße", "grüße".encode()),
        (String("utf-16-le"), "a", b"a\x00"),
        (Json(), {"b": [1, 2.5, None, True], "a": "ü"}, '{"b":[1,2.5,null,true],"a":"ü"}'.encode()),
        (Json(), None, b"null"),
    ],
)
def test_serde_value_is_encoded_to_these_bytes_and_decoded_back(serde: Serde, value: Any, data: bytes) -> None:
    assert (serde.serialize(value), serde.deserialize(data)) == (data, value)


def test_serde_without_bind_is_used_as_it_is() -> None:
    serde = Json()
    assert bind(serde, MemoryRegistry(), "t-value") is serde


def test_serde_identity_is_true_for_bytes_only() -> None:
    assert [getattr(each, "identity", False) for each in (Bytes(), String(), Json(), avro({"type": "int"}))] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("serde", "value", "expected"),
    [
        (Bytes(), {"a": 1}, "{'a': 1} (dict) is not bytes: give bytes, or a serde for it, such as ks.Json()"),
        (String(), b"a", "b'a' (bytes) is not a str: give a str, or a serde other than ks.String()"),
        (
            String("ascii"),
            "ü",
            (
                "'ü' (str) has characters that are not in ascii: 'ascii' codec can't encode character '\\xfc' in "
                "position 0: ordinal not in range(128)"
            ),
        ),
        (Json(), {1}, "{1} (set): set is not JSON: give dict, list, str, int, float, bool or None"),
    ],
)
def test_serde_value_of_another_type_is_refused(serde: Serde, value: Any, expected: str) -> None:
    assert message(EncodeError, serde.serialize, value) == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_json_number_that_json_does_not_have_is_refused(value: Any) -> None:
    assert "Out of range float values are not JSON compliant" in message(EncodeError, Json().serialize, value)


NOT_UTF8 = "'utf-8' codec can't decode byte 0xff in position 1: invalid start byte"


@pytest.mark.parametrize(
    ("serde", "data", "expected"),
    [
        (String(), b"a\xff", f"text in utf-8: {NOT_UTF8}"),
        (Json(), b'"\xff"', f"JSON in UTF-8: {NOT_UTF8}"),
        (Json(), b"{", "JSON in UTF-8: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (Json(), b"1 2", "JSON in UTF-8: Extra data: line 1 column 3 (char 2)"),
        (Json(), b"", "JSON in UTF-8: Expecting value: line 1 column 1 (char 0)"),
        (Json(), b"9" * 5_000, "JSON in UTF-8: it has an integer of more than 4,300 digits"),
        (Json(), b"[NaN]", "JSON in UTF-8: NaN is not a JSON number"),
    ],
)
def test_serde_bytes_that_do_not_decode_are_refused_with_the_reason(serde: Serde, data: bytes, expected: str) -> None:
    assert message(DecodeError, serde.deserialize, data) == f"these bytes are not {expected}"


def test_json_nested_too_deeply_is_a_decode_error() -> None:
    assert message(DecodeError, Json().deserialize, b"[" * 200_000).startswith("these bytes are not JSON in UTF-8: ")


def test_string_of_unknown_encoding_is_refused_at_construction() -> None:
    assert message(SettingsError, String, "utf-9") == "String('utf-9'): there is no such text encoding"


# Avro: the wire format, binding, registration.


def test_avro_value_is_a_zero_byte_the_schema_id_and_the_body() -> None:
    registry = MemoryRegistry(*(f'"{n}"' for n in range(299)))
    serde = bind(Avro(record(a="int", b=["null", "string"])), registry, "t-value")
    data = serde.serialize({"a": -2, "b": "x"})
    assert data == b"\x00" + b"\x00\x00\x01\x2c" + b"\x03" + b"\x02\x02x"
    assert serde.deserialize(data) == {"a": -2, "b": "x"}


@each_case(
    ("schema", "value"),
    [
        (SCHEMAS / "flight.avsc", FLIGHT),
        (str(SCHEMAS / "flight.avsc"), CANCELLED),
        ({"type": "string"}, "key"),
        (["null", "long", record(a="int")], {"a": 1}),
        (["null", "long", record(a="int")], 7),
        (record(), {}),
        (record(a="null", b="boolean", c="double", d="float"), {"a": None, "b": True, "c": 1.5, "d": 2}),
        (record(a=array("int"), b=of_map("boolean"), c=of_map("string")), {"a": [1], "b": {"x": False}, "c": {}}),
        (record(a=enum("A", "B"), b=fixed(2)), {"a": "B", "b": b"xy"}),
        (record(value="int", next=["null", "t.R"]), {"value": 1, "next": {"value": 2, "next": None}}),
        (record(children=array("t.R")), {"children": [{"children": []}]}),
        (record(a=record("I", n="int"), b="t.I"), {"a": {"n": 1}, "b": {"n": 2}}),
    ],
)
def test_avro_value_round_trips(schema: Any, value: Any) -> None:
    serde = avro(schema)
    data = serde.serialize(value)
    assert data is not None
    assert serde.deserialize(data) == value


def test_avro_field_with_a_default_may_be_left_out() -> None:
    schema = record(
        a="int", b=("int", {"default": 3}), c=("bytes", {"default": "\u00ff"}), d=("boolean", {"default": True})
    )
    assert write_and_read(schema, {"a": 1}, schema) == {"a": 1, "b": 3, "c": b"\xff", "d": True}


def test_avro_schema_is_registered_at_the_first_value_written_and_only_then() -> None:
    registry = MemoryRegistry()
    schema = Avro(record(a="int"))
    value, key = schema.bind(registry, "t-value"), schema.bind(registry, "t-key")
    data = Avro(record(a="int"), registry=MemoryRegistry(canonical(record(a="int")))).serialize({"a": 1})
    assert registry.subjects == []
    for _ in range(3):
        value.serialize({"a": 1})
    assert registry.subjects == ["t-value"]
    assert data is not None
    key.deserialize(data)
    assert registry.subjects == ["t-value"]
    key.serialize({"a": 1})
    assert registry.subjects == ["t-value", "t-key"]


def test_avro_value_that_does_not_fit_registers_nothing() -> None:
    registry = MemoryRegistry()
    with pytest.raises(EncodeError, match="does not fit"):
        Avro(record(a="string")).bind(registry, "t-value").serialize({"a": 1})
    assert registry.subjects == []


def test_avro_schema_is_looked_up_once_per_id() -> None:
    registry = MemoryRegistry()
    writer = Avro(record(a="int")).bind(registry, "t-value")
    reader = Avro(record(a="long")).bind(registry, "t-value")
    data = [writer.serialize({"a": n}) for n in range(5)]
    assert [reader.deserialize(each) for each in data if each] == [{"a": n} for n in range(5)]
    assert registry.lookups == 1


def test_avro_with_a_registry_of_its_own_uses_that_one() -> None:
    own, workers = MemoryRegistry(), MemoryRegistry()
    serde = Avro(record(a="int"), registry=own)
    bound = serde.bind(workers, "t-value")
    assert bound.serialize({"a": 1}) == serde.serialize({"a": 1})
    assert serde.deserialize(b"\x00\x00\x00\x00\x01\x02") == {"a": 1}
    assert (own.subjects, workers.subjects) == (["t-value", "t.R"], [])


@pytest.mark.parametrize("call", ["serialize", "deserialize"])
def test_avro_without_a_registry_is_refused_with_the_remedy(call: str) -> None:
    expected = "Avro(t.R) has no registry: give it one, Avro(..., registry=...), or use its bind()"
    assert message(SchemaError, getattr(Avro(record(a="int")), call), b"") == expected


# Avro: values that do not fit.


@each_case(
    ("field", "value", "expected"),
    [
        ("int", 3.7, "field t.R.f is 3.7 (float), not int"),
        ("int", 2**31, "field t.R.f is 2147483648 (int), not int"),
        ("int", -(2**31) - 1, "field t.R.f is -2147483649 (int), not int"),
        ("int", "3", "field t.R.f is '3' (str), not int"),
        ("int", None, "field t.R.f is None or missing, not int"),
        ("long", 2**63, "field t.R.f is 9223372036854775808 (int), not long"),
        ("double", "1.5", "field t.R.f is '1.5' (str), not double"),
        ("float", None, "field t.R.f is None or missing, not float"),
        ("boolean", "false", "field t.R.f is 'false' (str), not boolean"),
        ("boolean", 1, "field t.R.f is 1 (int), not boolean"),
        ("null", 0, "field t.R.f is 0 (int), not null"),
        ("string", b"x", "field t.R.f is b'x' (bytes), not string"),
        ("string", "\ud800", "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"),
        ("bytes", "x", "field t.R.f is 'x' (str), not bytes"),
        (array("string"), "abc", "field t.R.f is 'abc' (str), not array"),
        (array("int"), [1, 2.5], "field t.R.f is 2.5 (float), not int"),
        (of_map("int"), {"a": 2.5}, "field t.R.f is 2.5 (float), not int"),
        (of_map("int"), [1], "field t.R.f is [1] (list), not map"),
        (of_map("string"), {1: "a"}, "field t.R.f is {1: 'a'} (dict), not map"),
        (enum("A"), "B", "field t.R.f is 'B' (str), not t.E"),
        (fixed(2), b"xyz", "field t.R.f is b'xyz' (bytes), not t.F"),
        (["null", "int"], 3.7, "field t.R.f is 3.7 (float), not null or int"),
        (["null", array("int")], "abc", "field t.R.f is 'abc' (str), not null or array"),
        (record("I", n="int"), {"n": 3.7}, "field t.I.n is 3.7 (float), not int"),
        (record("I", n="string"), {"n": 3}, "field t.I.n is 3 (int), not string"),
        (record("I", n="string"), {"n": "a", "m": 1}, "record contains more fields than the schema specifies: m"),
        (array("t.R"), [{"f": [], "g": 1}], "record contains more fields than the schema specifies: g"),
        (array("t.R"), [{"f": "abc"}], "field t.R.f is 'abc' (str), not array"),
        ({"type": "int", "logicalType": "date"}, "soon", "field t.R.f is 'soon' (str), not a date"),
        ("string", 7 * 10**80, "field t.R.f is 700000000000000000...0000000000000000000 (int), not string"),
    ],
)
def test_avro_value_that_does_not_fit_is_refused_by_field_and_schema(field: Any, value: Any, expected: str) -> None:
    found = message(EncodeError, avro(record(f=field)).serialize, {"f": value})
    assert found == f"value does not fit schema t.R: {expected}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1}, "field t.R.b is None or missing, not long"),
        ({"b": 2, "c": "x"}, "field t.R.a is None or missing, not int"),
        ({"a": 1, "b": 2}, "field t.R.c is None or missing, not string"),
        ({"a": 1, "b": 2, "c": "x"}, "Field d is specified in the schema but missing from the record"),
        ({"a": 1, "b": 2, "c": "x", "d": None, "e": 0}, "record contains more fields than the schema specifies: e"),
        (None, "it is None or missing, not t.R"),
        ("abc", "it is 'abc' (str), not t.R"),
        ([("a", 1)], "it is [('a', 1)] (list), not t.R"),
    ],
)
def test_avro_record_without_exactly_the_schemas_fields_is_refused(value: Any, expected: str) -> None:
    found = message(EncodeError, avro(record(a="int", b="long", c="string", d=["null", "int"])).serialize, value)
    assert found == f"value does not fit schema t.R: {expected}"


def test_avro_value_of_a_schema_that_is_no_record_is_checked_too() -> None:
    serde = avro({"type": "int"})
    assert message(EncodeError, serde.serialize, 3.7) == "value does not fit schema int: it is 3.7 (float), not int"
    assert serde.serialize(3) == b"\x00\x00\x00\x00\x01\x06"


def test_avro_sequence_that_is_no_list_is_written_as_an_array() -> None:
    schema = record(a=array("int"))
    assert write_and_read(schema, {"a": deque([1, 2])}, schema) == {"a": [1, 2]}


def test_avro_value_that_does_not_fit_leaves_nothing_in_the_next_one() -> None:
    serde = avro(record(a="string", b="string"))
    before = serde.serialize({"a": "x", "b": "y"})
    with pytest.raises(EncodeError, match="does not fit"):
        serde.serialize({"a": "long enough to matter", "b": 1})
    assert serde.serialize({"a": "x", "b": "y"}) == before


# Avro: bytes that do not decode.


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\x01", b'{"a": 1}', b"\x01\x00\x00\x00\x01\x02"])
def test_avro_bytes_of_another_format_are_refused_with_their_first_bytes(data: bytes) -> None:
    found = message(DecodeError, avro(record(a="int")).deserialize, data)
    assert found == f"not Avro in the wire format: starts with {data[:5]!r}, not with a zero byte and a schema id"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x02\x06ab", "EOFError: Expected 3 bytes, read 2"),
        (b"", "EOFError: "),
        (b"\x02\x02\xff", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_avro_bytes_that_do_not_decode_are_refused_with_the_reason(body: bytes, expected: str) -> None:
    schema = record(a="int", b="string")
    serde = Avro(schema).bind(MemoryRegistry(canonical(schema)), "t-value")
    found = message(DecodeError, serde.deserialize, b"\x00\x00\x00\x00\x01" + body)
    assert found == f"these bytes (schema id 1) are not a value of schema t.R: {expected}"


def test_avro_bytes_after_a_whole_value_are_refused() -> None:
    serde = avro(record(a="int"))
    data = serde.serialize({"a": 1})
    assert data is not None
    assert message(DecodeError, serde.deserialize, data + b"xy") == "2 bytes too many after a value of schema t.R"


def test_avro_bytes_with_an_unknown_schema_id_are_refused() -> None:
    found = message(DecodeError, avro(record(a="int")).deserialize, b"\x00\x00\x00\x00\x09\x02")
    assert found == "written with an unknown schema: id 9 is not here"


def test_avro_bytes_of_another_record_do_not_decode() -> None:
    found = message(DecodeError, write_and_read, record("Other", a="int"), {"a": 1}, record(a="int"))
    assert found == "written with schema 1, which Avro(t.R) cannot read: t.R was t.Other and is t.R"


def test_avro_bytes_damaged_anywhere_decode_or_are_a_decode_error() -> None:
    serde = avro(SCHEMAS / "dead_letter.avsc")
    whole = serde.serialize(DEAD_LETTER)
    assert whole is not None
    seeded, outcomes = random.Random(17), {"value": 0, "refused": 0}
    for _ in range(3_000):
        data = bytearray(whole)
        for _ in range(seeded.randint(1, 3)):
            data[seeded.randrange(len(data))] = seeded.randrange(256)
        try:
            serde.deserialize(bytes(data[: seeded.choice([len(data), seeded.randrange(len(data))])]))
            outcomes["value"] += 1
        except DecodeError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def test_avro_registry_out_of_reach_is_unavailable_and_no_decode_error() -> None:
    registry = MemoryRegistry()
    serde = Avro(record(a="int")).bind(registry, "t-value")
    registry.down = True
    assert message(Unavailable, serde.serialize, {"a": 1}) == "no answer"
    assert message(Unavailable, serde.deserialize, b"\x00\x00\x00\x00\x01\x02") == "no answer"
    registry.down = False
    assert serde.serialize({"a": 1}) == b"\x00\x00\x00\x00\x01\x02"
    assert serde.deserialize(b"\x00\x00\x00\x00\x01\x02") == {"a": 1}


def test_avro_own_schema_is_known_by_its_content_id_without_the_registry() -> None:
    schema = record(a="int")
    data = b"\x00" + content_id(canonical(schema)).to_bytes(4) + b"\x02"
    assert Avro(schema).bind(MemoryRegistry(), "t-value").deserialize(data) == {"a": 1}


# Avro: invalid schemas.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ('"no"', "an Avro schema: unknown type 'no': correct it, or define it in the same schema"),
        ('[{"type": "no"}]', "an Avro schema: unknown type 'no': correct it, or define it in the same schema"),
        ('{"name": "R"}', "an Avro schema: 'type' is missing"),
        ('{"type": "array"}', "an Avro schema: 'items' is missing"),
        ('{"type": "fixed", "name": "F"}', "an Avro schema: 'size' is missing"),
        ("3", "an Avro schema: a type in it is neither a name, an object nor a list"),
        ('{"type": ["null", "int"]}', "an Avro schema: a type in it is neither a name, an object nor a list"),
        (
            '{"type": "record"}',
            "an Avro schema: \"name\" is a required field missing from the schema: {'type': 'record'}",
        ),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}',
            "an Avro schema: Default value <x> must match schema type: int",
        ),
    ],
)
def test_schema_file_that_does_not_parse_is_refused_by_name_with_the_reason(
    text: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "broken.avsc"
    file.write_text(text)
    assert message(SchemaError, Avro, file) == f"schema file {file} is not {expected}"


def test_schema_file_that_does_not_exist_is_refused_by_name() -> None:
    file = SCHEMAS / "missing.avsc"
    expected = (
        f"schema file {file} does not exist: correct the path, or start from the directory that it is relative to"
    )
    assert message(SchemaError, Avro, str(file)) == expected


def test_schema_file_that_is_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    assert message(SchemaError, Avro, tmp_path) == f"schema file {tmp_path} cannot be read: Is a directory"


def test_schema_given_as_json_that_is_invalid_is_refused_with_the_reason() -> None:
    assert (
        message(SchemaError, Avro, {"type": "enum", "name": "E"})
        == "the schema is not an Avro schema: 'symbols' is missing"
    )
    fields: list[Any] = [{}, 1, {"name": "a"}]
    why = ["is missing 'name': {}", "must be a dict, not int: 1", "'a' is missing 'type'"]
    for field, expected in zip(fields, why, strict=True):
        found = message(SchemaError, Avro, {"type": "record", "name": "R", "fields": [field]})
        assert found == f"the schema is not an Avro schema: Record field {expected}"


def test_writer_schema_that_does_not_parse_is_a_decode_error_of_its_records() -> None:
    serde = Avro(record(a="int")).bind(MemoryRegistry(canonical(record(a="somewhere.Else"))), "t-value")
    assert message(DecodeError, serde.deserialize, b"\x00\x00\x00\x00\x01\x02") == (
        "written with a schema that cannot be used: the schema with id 1 is not an Avro schema: "
        "unknown type 'somewhere.Else': correct it, or define it in the same schema"
    )


def test_schema_parsed_by_fastavro_is_equal_to_its_source() -> None:
    for schema in (record(a="int"), ["null", record(a="int")]):
        parsed: Any = parse_schema(schema)
        registry = MemoryRegistry()
        data = Avro(parsed).bind(registry, "t-value").serialize({"a": 1})
        assert data is not None
        assert Avro(schema).bind(registry, "t-value").deserialize(data) == {"a": 1}
        assert [each for each in registry.texts if "__" in each] == []


def test_content_id_of_a_schema_is_the_same_everywhere() -> None:
    text = canonical({"type": "record", "name": "R", "fields": []})
    assert (text, content_id(text)) == ('{"fields":[],"name":"R","type":"record"}', 1_942_513_804)
    assert 0 <= content_id(text) < 2**31


# Evolution: values that a reader decodes with a schema other than the writer's, and why some cannot be decoded.

SAME_FIELD: list[tuple[Any, Any, Any, Any]] = [
    ("int", 1, "int", 1),
    ("int", 1, "long", 1),
    ("int", 1, "float", 1.0),
    ("int", 1, "double", 1.0),
    ("long", 1, "float", 1.0),
    ("long", 1, "double", 1.0),
    ("float", 1.5, "double", 1.5),
    ("string", "ü", "bytes", "ü".encode()),
    ("bytes", b"x", "string", "x"),
    ("int", 1, ["null", "int"], 1),
    ("int", 1, ["null", "long"], 1),
    (["null", "int"], None, ["string", "null", "long"], None),
    (["null", "int"], 1, ["string", "null", "long"], 1),
    (["int"], 1, "long", 1),
    (array("int"), [1], array("double"), [1.0]),
    (of_map("int"), {"x": 1}, of_map(["null", "int"]), {"x": 1}),
    (enum("A"), "A", enum("B", "A"), "A"),
    (enum("A", "B"), "B", enum("A", default="A"), "A"),
    (fixed(2), b"xy", fixed(2), b"xy"),
    (record("I", n="int"), {"n": 1}, record("I", n="long", m=("int", {"default": 0})), {"n": 1, "m": 0}),
    (["null", record("I", n="int")], {"n": 1}, ["null", record("I", n="long")], {"n": 1}),
    (["null", "t.R"], {"f": {"f": None}}, ["t.R", "null"], {"f": {"f": None}}),
    ({"type": "int", "doc": "x"}, 1, {"type": "int", "doc": "y"}, 1),
]


@each_case(("writer", "value", "reader", "expected"), SAME_FIELD)
def test_avro_reader_with_another_field_type_reads_the_writers_value(
    writer: Any, value: Any, reader: Any, expected: Any
) -> None:
    found = write_and_read(record(f=writer), {"f": value}, record(f=reader))
    assert repr(found) == repr({"f": expected})
    assert unreadable(record(f=reader), record(f=writer)) is None


@each_case(
    ("writer", "reader", "expected"),
    [
        ("long", "int", " was long and is int"),
        ("double", "float", " was double and is float"),
        ("int", "string", " was int and is string"),
        ("int", array("int"), " was int and is array"),
        (["null", "int"], "int", " was null and is int"),
        ("string", ["null", "int"], " was string and is null or int"),
        (["null", "int", "string"], ["null", "int"], " was string and is null or int"),
        (["null", record("I", n="long")], ["null", record("I", n="int")], ".n was long and is int"),
        (array("long"), array("int"), ".items was long and is int"),
        (of_map("long"), of_map("string"), ".values was long and is string"),
        (enum("A", "C", "B"), enum("A"), " has lost the symbol B and has no default"),
        (fixed(2), fixed(3), " had 2 bytes and has 3"),
        (record("E", n="int"), enum("A"), " was t.E and is t.E"),
        (record("I", n="int"), record("J", n="int"), " was t.I and is t.J"),
        (record("I", n="int"), record("I", n="int", m="int"), ".m is new and has no default"),
        (["null", "t.R"], ["null", array("t.R")], " was t.R and is null or array"),
    ],
)
def test_avro_reader_field_that_cannot_read_the_writers_is_named(writer: Any, reader: Any, expected: str) -> None:
    assert unreadable(record(f=reader), record(f=writer)) == f"t.R.f{expected}"


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (record(a="int", b="string"), {"a": 1, "b": "x"}),
        (record(b="string", a="int"), {"a": 1, "b": "x"}),
        (record(a="int"), {"a": 1}),
        (record(a="int", c=("string", {"default": "new"})), {"a": 1, "c": "new"}),
        (record(a="int", c=("bytes", {"default": "\u00ff"})), {"a": 1, "c": b"\xff"}),
        (record(a="int", c=(fixed(1), {"default": "\u00ff"})), {"a": 1, "c": b"\xff"}),
        (record(a="int", c=(["bytes", "null"], {"default": "y"})), {"a": 1, "c": b"y"}),
        (record(c=("int", {"aliases": ["a"]})), {"c": 1}),
        ({**record("New", a="int"), "aliases": ["R"]}, {"a": 1}),
        ({**record("New", a="int"), "aliases": ["t.R"]}, {"a": 1}),
    ],
)
def test_avro_reader_with_other_fields_reads_the_writers_record(reader: Any, expected: Any) -> None:
    writer = record(a="int", b="string")
    assert write_and_read(writer, {"a": 1, "b": "x"}, reader) == expected
    assert unreadable(reader, writer) is None


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (record(a="int", c="string"), "t.R.c is new and has no default"),
        (record(c=("long", {"aliases": ["b"]})), "t.R.c was string and is long"),
        (record("New", a="int"), "t.New was t.R and is t.New"),
        ({"type": "int"}, "int was t.R and is int"),
    ],
)
def test_avro_reader_record_that_cannot_read_the_writers_is_named(reader: Any, expected: str) -> None:
    assert unreadable(reader, record(a="int", b="string")) == expected


def test_avro_writers_default_that_fastavro_refuses_is_ignored() -> None:
    writer = canonical(record(a=({"type": "double"}, {"default": 0}), b="int"))
    serde = Avro(record(a="double")).bind(MemoryRegistry(writer), "t-value")
    assert serde.deserialize(b"\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\xf8\x3f\x02") == {"a": 1.5}


def test_avro_logical_type_of_the_reader_is_used_where_nothing_else_differs() -> None:
    found = write_and_read(record(a="int"), {"a": 1}, record(a={"type": "int", "logicalType": "date"}))
    assert str(found["a"]) == "1970-01-02"


def test_avro_default_list_that_a_function_changes_is_fresh_in_the_next_record() -> None:
    registry = MemoryRegistry()
    data = Avro(record(a="int")).bind(registry, "t-value").serialize({"a": 1})
    reader = Avro(record(a="int", tags=(array("string"), {"default": []}))).bind(registry, "t-value")
    assert data is not None
    reader.deserialize(data)["tags"].append("mine")
    assert reader.deserialize(data) == {"a": 1, "tags": []}


# The schemas of this repository.

DEAD_LETTER = {
    "processor": "flights.split",
    "delivery_hash": bytes(range(16)),
    "exception_class": "builtins.ValueError",
    "exception_message": "no arrival",
    "traceback": "Traceback ...",
    "inputs": [
        {
            "topic": "flights",
            "partition": 3,
            "offset": 2**40,
            "timestamp": 1357034400000,
            "key": None,
            "value": b"\x00raw",
            "headers": [{"name": "h", "value": b"v"}, {"name": "h", "value": None}],
        },
        {"topic": "planes", "partition": 3, "offset": 0, "timestamp": -1, "key": b"k", "value": None, "headers": []},
    ],
    "cut": "value of planes[3]@0: 0 of 2,000,000 bytes kept",
}


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("flight.avsc", "kstreams.demo.Flight", FLIGHT),
        ("flight.avsc", "kstreams.demo.Flight", CANCELLED),
        ("dead_letter.avsc", "kstreams.DeadLetter", DEAD_LETTER),
    ],
)
def test_schema_of_this_repository_round_trips_its_records(file: str, name: str, value: Any) -> None:
    schema = Avro(SCHEMAS / file)
    assert (schema.name, repr(schema), write_and_read(SCHEMAS / file, value, SCHEMAS / file)) == (
        name,
        f"Avro({name})",
        value,
    )
    assert json.loads(schema.schema) == json.loads((SCHEMAS / file).read_text())


def test_schema_of_flights_has_the_columns_of_the_data_in_order() -> None:
    fields = json.loads((SCHEMAS / "flight.avsc").read_text())["fields"]
    assert [field["name"] for field in fields] == list(FLIGHT)
    assert [f["name"] for f in fields if "default" in f] == [name for name, value in CANCELLED.items() if value is None]


@pytest.mark.parametrize("file", sorted(SCHEMAS.glob("*.avsc")), ids=lambda file: file.name)
def test_schema_of_this_repository_documents_every_field(file: Path) -> None:
    def undocumented(schema: Any) -> list[str]:
        if isinstance(schema, list):
            return [name for each in schema for name in undocumented(each)]
        if not isinstance(schema, dict):
            return []
        inner = [schema.get("items"), schema.get("values"), *(field["type"] for field in schema.get("fields", ()))]
        return [f["name"] for f in schema.get("fields", ()) if not f.get("doc")] + undocumented(inner)

    assert undocumented(json.loads(file.read_text())) == []
