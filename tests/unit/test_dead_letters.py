"""steps/dead_letters.py: a dead letter that is too large for its topic is cut, and names what was cut."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.kafka.contracts import Output
from kstreams_py.kafka.sizes import RecordLimits
from kstreams_py.steps.dead_letters import DeadLetters, Failure, record_size
from kstreams_py.testing import MemoryRegistry
from tests.unit.fakes import Read

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "dead_letter.avsc").read_text("utf-8"))
SERDE = bind(dead_letters(), MemoryRegistry(), "errors-value")
LIMIT = 1_000_000
DIGEST = b"0123456789abcdef"
NOW = 1_700_000_000_000


def now() -> float:
    return NOW / 1000


def write(*inputs: Read, error: Exception | None = None, limit: int | None = LIMIT, encode: Any = None) -> Output:
    failure = Failure(inputs, DIGEST, error or LookupError("no"))
    limits = None if limit is None else RecordLimits(limit)
    return DeadLetters("g.p", "errors", encode or SERDE.serialize, now, limits).of(failure)


def read(output: Output) -> dict[str, Any]:
    """Decodes a dead letter, checks the fields that are never cut, and returns the others."""
    assert output[1] is not None
    found = dict(SERDE.deserialize(output[1]))
    assert (found.pop("processor"), found.pop("delivery_hash"), output[7]) == ("g.p", DIGEST, [
        ("ks-hash", DIGEST), ("ks-type", b"dead-letter"), ("ks-proc", b"g.p"), ("ks-error", b"LookupError"),
    ])  # fmt: skip
    assert found.pop("exception_class") == "builtins.LookupError"
    return found


def assert_fits_and_is_full(output: Output, limit: int = LIMIT) -> None:
    assert limit * 0.99 < record_size(output) <= limit


def as_read(m: Read, **changed: Any) -> dict[str, Any]:
    """Returns an input in the form of a dead letter, with `changed` fields."""
    headers = [{"name": name, "value": value} for name, value in m.headers() or []]
    return {
        "topic": m.topic(), "partition": m.partition(), "offset": m.offset(), "timestamp": m.timestamp()[1],
        "key": m.key(), "value": m.value(), "headers": headers, **changed,
    }  # fmt: skip


def test_dead_letter_that_fits_is_not_cut() -> None:
    m = Read("in", 17, b"v" * 999_000, key=b"k", headers=[("h", b"1")], timestamp=5)
    output = write(m)
    assert output == write(m, limit=None)
    found = read(output)
    assert found.pop("traceback") == "LookupError: no\n"
    assert found == {"exception_message": "no", "inputs": [as_read(m)], "cut": None}
    assert (output[0], output[2], output[6]) == ("errors", b"k", 5)


def test_traceback_is_cut_before_the_inputs() -> None:
    m = Read("in", 17, b"v" * 998_500, key=b"k")
    output = write(m, error=LookupError("x" * 990 + "y" * 10))
    found = read(output)
    kept = len(found["traceback"])
    assert found == {
        "exception_message": "x" * 990 + "y" * 10,
        "traceback": ("x" * 990 + "yyyyyyyyyy\n")[-kept:],
        "inputs": [as_read(m)],
        "cut": f"traceback: {kept:,} of 1,014 bytes kept",
    }
    assert 0 < kept < 500
    assert_fits_and_is_full(output)


def test_value_of_two_megabytes_is_cut_to_the_limit() -> None:
    m = Read("in", 17, bytes(range(250)) * 8_000, key=b"k", headers=[("h", b"1")])
    output = write(m)
    found = read(output)
    kept = len(found["inputs"][0]["value"])
    assert found == {
        "exception_message": "no",
        "traceback": "",
        "inputs": [as_read(m, value=(m.value() or b"")[:kept])],
        "cut": f"value of in[0]@17: {kept:,} of 2,000,000 bytes kept; traceback: 0 of 16 bytes kept",
    }
    assert 999_000 < kept < LIMIT
    assert_fits_and_is_full(output)


def test_dead_letter_of_a_join_cuts_the_largest_values_first() -> None:
    small, large, larger = Read("a", 1, b"a" * 100), Read("b", 2, b"b" * 1_500_000), Read("c", 3, b"c" * 2_000_000)
    output = write(small, large, larger)
    found = read(output)
    of_b, of_c = (len(found["inputs"][i]["value"]) for i in (1, 2))
    assert found["inputs"] == [as_read(small), as_read(large, value=b"b" * of_b), as_read(larger, value=b"c" * of_c)]
    assert abs(of_b - of_c) <= 1
    assert found["cut"] == (
        f"value of b[0]@2: {of_b:,} of 1,500,000 bytes kept; value of c[0]@3: {of_c:,} of 2,000,000 bytes kept; "
        "traceback: 0 of 16 bytes kept"
    )
    assert_fits_and_is_full(output)


def test_headers_are_cut_after_the_value() -> None:
    m = Read("in", 17, b"v" * 1_000, key=b"k", headers=[("trace", b"1"), ("blob", b"b" * 1_500_000), ("n", None)])
    output = write(m)
    found = read(output)
    kept = len(found["inputs"][0]["headers"][1]["value"])
    headers = [{"name": "trace", "value": b"1"}, {"name": "blob", "value": b"b" * kept}, {"name": "n", "value": None}]
    assert found["inputs"] == [as_read(m, value=b"", headers=headers)]
    assert found["cut"] == (
        f"headers of in[0]@17: {kept + 11:,} of 1,500,011 bytes kept; value of in[0]@17: 0 of 1,000 bytes kept; "
        "traceback: 0 of 16 bytes kept"
    )
    assert_fits_and_is_full(output)


def test_many_headers_are_cut_from_the_last() -> None:
    m = Read("in", 17, None, headers=[(f"name-{i:07}", b"") for i in range(10_000)])
    output = write(m, limit=LIMIT // 10)
    found = read(output)
    (headers,) = (each["headers"] for each in found["inputs"])
    assert found["inputs"] == [as_read(m, headers=as_read(m)["headers"][: len(headers)])]
    assert 6_000 < len(headers) < 10_000
    assert found["cut"].startswith("headers of in[0]@17: ")
    assert_fits_and_is_full(output, LIMIT // 10)


@pytest.mark.parametrize("size", [600_000, 3_000_000])
def test_huge_key_is_cut_to_1000_bytes_and_kept_longer_in_its_input(size: int) -> None:
    m = Read("in", 17, b"v" * 100, key=b"k" * size, headers=[("h", b"1")])
    output = write(m)
    found = read(output)
    own = f"own key: 1,000 of {size:,} bytes kept"
    assert output[2] == b"k" * 1_000
    if size < LIMIT:
        assert (found["inputs"], found["traceback"], found["cut"]) == ([as_read(m)], "LookupError: no\n", own)
        return
    kept = len(found["inputs"][0]["key"])
    assert found["inputs"] == [as_read(m, key=b"k" * kept, value=b"", headers=[])]
    assert found["cut"] == (
        f"key of in[0]@17: {kept:,} of 3,000,000 bytes kept; headers of in[0]@17: 0 of 2 bytes kept; "
        f"value of in[0]@17: 0 of 100 bytes kept; traceback: 0 of 16 bytes kept; {own}"
    )
    assert_fits_and_is_full(output)


def test_null_and_a_short_key_are_not_cut() -> None:
    output = write(Read("a", 1, None, key=b"key"), Read("b", 2, b"b" * 2_000_000, key=None))
    found = read(output)
    assert output[2] == b"key"
    assert [(each["key"], each["value"] and each["value"][:1]) for each in found["inputs"]] == [
        (b"key", None), (None, b"b"),
    ]  # fmt: skip


def test_huge_exception_message_is_cut_before_the_inputs() -> None:
    m = Read("in", 17, b"v" * 3_000, key=b"k" * 900)
    output = write(m, error=LookupError("ä" * 600 + "x" * 1_000_000), limit=8_000)
    found = read(output)
    kept = len(found["traceback"])
    assert found == {
        "exception_message": "ä" * 500,
        "traceback": "x" * (kept - 1) + "\n",
        "inputs": [as_read(m)],
        "cut": f"traceback: {kept:,} of 16,000 bytes kept; exception message: 1,000 of 4,600 bytes kept",
    }
    assert_fits_and_is_full(output, 8_000)


def to_json(content: dict[str, Any]) -> bytes:
    """A serde whose output is larger than the bytes of its input: base64."""
    return json.dumps(content, default=lambda data: base64.b64encode(data).decode()).encode()


def escape(content: dict[str, Any]) -> bytes:
    """A serde whose output depends on the bytes: JSON escapes."""
    return json.dumps(content, default=lambda data: data.decode("latin-1")).encode()


def compress(content: dict[str, Any]) -> bytes:
    """A serde that compresses."""
    return zlib.compress(to_json(content), 1)


@pytest.mark.parametrize("encode", [to_json, escape, compress])
def test_dead_letter_fits_with_a_serde_that_changes_its_size(encode: Callable[[Any], bytes]) -> None:
    value = Random(1).randbytes(1_500_000)
    output = write(Read("in", 17, value, key=b"k"), encode=encode)
    data = output[1] or b""
    content = json.loads(zlib.decompress(data) if encode is compress else data)
    kept = content["inputs"][0]["value"]
    raw = kept.encode("latin-1") if encode is escape else base64.b64decode(kept)
    assert (raw, 0 < len(raw) < len(value)) == (value[: len(raw)], True)
    assert content["cut"].startswith(f"value of in[0]@17: {len(raw):,} of 1,500,000 bytes kept; traceback: 0 of ")
    assert_fits_and_is_full(output)


def test_dead_letter_that_its_serde_compresses_below_the_limit_is_not_cut() -> None:
    m = Read("in", 17, b"v" * 5_000_000)
    output = write(m, encode=compress)
    assert output == write(m, encode=compress, limit=None)


def test_dead_letter_that_cannot_fit_is_cut_to_its_minimum() -> None:
    found = read(write(Read("in", 17, b"v" * 50, key=b"k", headers=[("h", b"1")]), limit=10))
    assert found == {
        "exception_message": "no",
        "traceback": "",
        "inputs": [as_read(Read("in", 17, b"", key=b"", headers=[]))],
        "cut": (
            "key of in[0]@17: 0 of 1 bytes kept; headers of in[0]@17: 0 of 2 bytes kept; "
            "value of in[0]@17: 0 of 50 bytes kept; traceback: 0 of 16 bytes kept"
        ),
    }


def test_dead_letters_written_without_the_cut_field_are_readable() -> None:
    old = {**SCHEMA, "fields": [field for field in SCHEMA["fields"] if field["name"] != "cut"]}
    found = read(write(Read("in", 17, b"v", key=b"k")))
    content = {**found, "processor": "g.p", "delivery_hash": DIGEST, "exception_class": "builtins.LookupError"}
    buffer = BytesIO()
    schemaless_writer(buffer, parse_schema(old), content)
    buffer.seek(0)
    assert schemaless_reader(buffer, parse_schema(old), parse_schema(SCHEMA)) == content


def test_size_of_a_record_is_at_least_what_the_client_counts() -> None:
    headers: Any = [("ä", b"12"), ("n", None)]
    assert record_size(("t", b"123", b"45", -1, None, None, 0, headers)) == 3 + 2 + (2 + 2 + 10) + (1 + 10)
    assert record_size(("t", None, None, -1, None, None, 0, None)) == 0


@pytest.mark.parametrize(
    ("limits", "timestamp", "key", "expected", "cut"),
    [
        (RecordLimits(LIMIT, after_ms=3_600_000), NOW + 3_000_000, b"k", (b"k", NOW + 3_000_000), None),
        (
            RecordLimits(LIMIT, after_ms=3_600_000),
            NOW + 3_600_000,
            b"k",
            (b"k", 0),
            f"own timestamp: that of its writing, as {NOW + 3_600_000} cannot be written",
        ),
        (RecordLimits(LIMIT, before_ms=3_600_000), NOW - 3_000_000, b"k", (b"k", NOW - 3_000_000), None),
        (
            RecordLimits(LIMIT, before_ms=3_600_000),
            NOW - 3_600_000,
            b"k",
            (b"k", 0),
            f"own timestamp: that of its writing, as {NOW - 3_600_000} cannot be written",
        ),
        (RecordLimits(LIMIT), 0, b"k", (b"k", 0), "own timestamp: that of its writing, as 0 cannot be written"),
        (RecordLimits(LIMIT), -5, None, (None, -5), None),
        (
            RecordLimits(LIMIT, needs_key=True),
            NOW,
            None,
            (DIGEST, NOW),
            "own key: the delivery hash, because the topic is compacted",
        ),
    ],
)
def test_key_and_timestamp_are_those_of_the_input_unless_the_topic_refuses_them(
    limits: RecordLimits, timestamp: int, key: bytes | None, expected: tuple[bytes | None, int], cut: str | None
) -> None:
    failure = Failure((Read("in", 17, b"v", key=key, timestamp=timestamp),), DIGEST, LookupError("no"))
    output = DeadLetters("g.p", "errors", SERDE.serialize, now, limits).of(failure)
    assert ((output[2], output[6]), read(output)["cut"]) == (expected, cut)


def test_least_dead_letter_has_nothing_that_can_be_cut() -> None:
    failure = Failure((Read("in", 17, b"v", key=b"k", timestamp=NOW),), DIGEST, LookupError("no"))
    output = DeadLetters("g.p", "errors", SERDE.serialize, now, RecordLimits(LIMIT)).of(failure, least=True)
    assert (output[2], output[6]) == (b"k", 0)
    assert [(each["key"], each["value"]) for each in read(output)["inputs"]] == [(b"", b"")]
