"""The decoders, each with what its errors are and valid encodings; a byte 0 divides the parts of a record."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import kstreams_py as ks
from kstreams_py import printable, secrets
from kstreams_py.errors import DecodeError, RecoveryUndecidable, UserMistake
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.messengers.frames import (
    PROTOCOL,
    Acks,
    ControlFrame,
    Granted,
    Hello,
    Received,
    decode_frame,
    encode_frame,
)
from kstreams_py.jobs.messengers.values import decode_values, encode_values
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.records.lines import Lines
from kstreams_py.ordering import held
from kstreams_py.ordering.chain import decode_state, encode_state
from kstreams_py.ordering.decisions import CONTROL_HEADER, Decision, Verb, decision_of, decision_record
from kstreams_py.ordering.events import place_of
from kstreams_py.processing.beginning import _decode as decode_beginning
from kstreams_py.processing.dead_letters import letters
from kstreams_py.processing.dead_letters.marks import marked_place, read_mark
from kstreams_py.processing.journal.records import (
    RecordType,
    attempt_record,
    choices_record,
    newest_unit,
    snapshot_record,
)
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.records import Headers, KeptRecord, Message
from kstreams_py.spark.cuts import Cut, CutTopic, Span
from kstreams_py.spark.pipelines.kafka import _decode as decode_runs
from kstreams_py.spark.pipelines.kafka import encode_runs
from kstreams_py.state.changelog import Position, read_positions, write_positions
from kstreams_py.state.keyed import RESERVED
from kstreams_py.testing import MemoryRegistry
from tests.hostile import own_topics as own


class Target(NamedTuple):
    """A decoder.

    - `decode`: takes any bytes. What is wrong is an exception beside `errors`, or an AssertionError.
    - `errors`: what it documents.
    - `seeds`: encodings that it decodes without one.
    """

    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes]


ODD: Final = (
    b"[" * 3_000,
    b'{"a":' * 800,
    b"\0" + b"[" * 3_000,
    b"[" + b"9" * 4_000 + b", -1e400, NaN, true, null, [[]], {}]",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" * 2,
    b"\x01\xff\xff\xff\xff\x0f",
    b'"\\ud800"\xff\xfe\xef\xbb\xbf',
)
"""Pieces that chance would not make: the fuzzer puts them into encodings."""


def message(value: bytes | None, key: bytes | None = None, headers: Headers = ()) -> Message:
    return KeptRecord(("t", 0, 0), (1, 1), (key, value), headers)


def parts(data: bytes) -> tuple[bytes, bytes]:
    first, _, rest = data.partition(b"\0")
    return first, rest


# Serdes.

OWN: Final[dict[str, Any]] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": ["null", "long"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "items", "type": {"type": "array", "items": ["null", "string", "double"]}},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "by", "type": {"type": "map", "values": "bytes"}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "four", "type": {"type": "fixed", "name": "F", "size": 4}},
        {"name": "next", "type": ["null", "R"], "default": None},
    ],
}
READER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": ["null", "double", "string"], "default": None},
        {"name": "more", "type": {"type": "array", "items": "int"}, "default": [1]},
        {"name": "items", "type": {"type": "array", "items": ["string", "null", "double"]}},
        {"name": "next", "type": ["null", "R"], "default": None},
    ],
}
VALUE: Final[dict[str, Any]] = {
    "n": 7,
    "at": datetime(2026, 5, 1, tzinfo=UTC),
    "price": Decimal("1.25"),
    "id": UUID(int=7),
    "day": datetime(2026, 5, 1, tzinfo=UTC).date(),
    "items": ["a", None, 1.5],
    "nothing": [None, None],
    "by": {"k": b"v"},
    "kind": "B",
    "four": b"four",
    "next": None,
}


def avro(reader: Any) -> Target:
    registry = MemoryRegistry()
    written = ks.Avro(OWN).bind(registry, "t-value")
    serde = ks.Avro(reader).bind(registry, "t-value")
    seeds = [written.serialize(each) or b"" for each in (VALUE, VALUE | {"n": None, "next": VALUE})]

    def decode(body: bytes) -> None:
        value = serde.deserialize(seeds[0][:5] + body)
        if reader is OWN:  # what is read can be written, and is the same then; NaN is not itself
            assert repr(serde.deserialize(serde.serialize(value) or b"")) == repr(value)

    return Target(decode, (DecodeError,), [seed[5:] for seed in seeds])


def of_json(data: bytes) -> None:
    value = ks.Json().deserialize(data)
    assert ks.Json().deserialize(ks.Json().serialize(value)) == value


# Records of the framework's own.

LETTER: Final = {
    "processor": "g.p",
    "delivery_hash": b"h" * 16,
    "exception_class": "E",
    "exception_message": "m",
    "traceback": "t",
    "inputs": [
        {
            "topic": "in",
            "partition": 0,
            "offset": 1,
            "timestamp": 2,
            "key": None,
            "value": b"v",
            "headers": [{"name": "a", "value": b"b"}],
        }
    ],
    "cut": None,
}
_letters: Final = dead_letters().bind(MemoryRegistry(), "t-value")
_letter: Final = _letters.serialize(LETTER) or b""
_topics: Final = {"dead": TopicInfo("dead", "ID", 1, 1, {})}


def mark(data: bytes) -> None:
    key, value = parts(data)
    m = message(value, key)
    marked_place(m, _topics)
    read_mark(m)


def beginning(data: bytes) -> None:
    key, value = parts(data)
    decode_beginning(message(value, key))


_records: Final = [
    snapshot_record(own.JOURNAL, own.SNAPSHOT),
    choices_record(own.JOURNAL, 0, own.CHOICES),
    attempt_record(own.JOURNAL, 0, own.ATTEMPT),
]
_types: Final = [*RecordType, ""]


def journal(data: bytes) -> None:
    """A record of the type that the first byte names, behind a snapshot."""
    kind = _types[data[0] % len(_types)] if data else ""
    read = [message(data[1:], None, [("ks-type", kind.encode())])]
    newest_unit([message(_records[0][1], None, [("ks-type", b"snapshot")]), *read], 0)


_states: Final = [(2, 1, b"digest__", "", 0), (9, 1, b"digest__", "forked", 4)]
_control: Final = dict(decision_record("t", 0, b"o", Decision(Verb.RESUME, "g.p", 1, stop=2))[7] or ())[CONTROL_HEADER]
_offer: Final = dict(decision_record("t", 0, b"o", Decision(Verb.OFFER, "g.p", 1, 5, 2, 3))[7] or ())[CONTROL_HEADER]


def task(data: bytes) -> None:
    key, value = parts(data)
    kind, _, name = key.partition(b".")
    for event in held.read_task({RESERVED + kind + b"." + name: value}, 0).held:
        assert event.prev < event.id < 2**63
        assert event.record.partition() == 0
        str(event.record.headers()).encode()


_CUT: Final = Cut("g", {"t": CutTopic("id", (Span(0, 1, 2),))}, (), 1.0)

# Lines of commands, and texts.

_graph: Final = ks.Graph("g")
_graph.topic("t", key=ks.String(), value=ks.Json())
_lines: Final = [Lines("t", _graph, MemoryRegistry()), Lines("t", None, MemoryRegistry())]


def line(data: bytes) -> None:
    for each in _lines:
        each.parse(data)


def tailed(data: bytes) -> None:
    key, value = parts(data)
    for each in _lines:
        shown = each.show(message(value, key, [(key.decode(errors="replace"), value)]))
        json.loads(shown)
        assert "\n" not in shown


PASSWORD: Final = "hunter2_marker"


def redacted(data: bytes) -> None:
    """Whatever is around a password: in a URL, or behind its name."""
    before, after = (part.decode(errors="replace") for part in parts(data))
    urls = f"redis://user:{before}{PASSWORD}@{after}", f"redis://user:{PASSWORD}{before}@{after}"
    for text in (*urls, f"{before}&password={PASSWORD}{after}", f"a=b&password=x{before}{PASSWORD}"):
        assert PASSWORD not in secrets.redact(text), text


def escaped(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    shown = printable.escape(text)
    assert printable.escape(shown) == shown
    assert shown.isprintable() or not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in shown)
    shown.encode()
    assert b"\n" not in printable.clean_line(data)


TARGETS: Final = {
    "avro": avro(OWN),
    "avro_of_another_writer": avro(READER),
    "json": Target(
        of_json, (DecodeError,), [b'{"a": [1, 2.5, "b\\u00e9", null, true], "c": {"d": -1e5}}', b"[" * 500 + b"]" * 500]
    ),
    "dead_letters": Target(
        lambda data: letters.parse(message(_letter[:5] + data), _letters.deserialize), (DecodeError,), [_letter[5:]]
    ),
    "marks": Target(
        mark,
        (ValueError,),
        [own.MARK_KEY + b"\0" + value for value in (own.MARK_VALUE, own.MARK_VALUE[:-1] + b', "discarded": "why"}')],
    ),
    "beginnings": Target(
        beginning,
        (ValueError,),
        [own.BEGUN_KEY + b'\0{"partitions": 3}', b'["p start", "in", "id", 0]\0{"start": 1, "policy": "latest"}'],
    ),
    "choices": Target(Choices.decode, (ValueError,), [own.CHOICES.encode(), b"\x01\x04\x02a\x06\x02b\x02\x00"]),
    "journal": Target(
        journal,
        (RecoveryUndecidable,),
        [bytes([at]) + (_records[at][1] or b"") for at in range(2)] + [b"\4" + (_records[2][1] or b"")],
    ),
    "frames": Target(
        decode_frame,
        (DecodeError,),
        [
            encode_frame(Hello(PROTOCOL, "shop", "a", "b")),
            encode_frame(Received(3, 1, 2, 2_000, [Granted("job", "enrich", 2_500)])),
            encode_frame(ControlFrame(1, [Acks("job", [SegmentId(bytes(24))], [1 << 63])])),
        ],
    ),
    "values": Target(
        decode_values,
        (DecodeError,),
        [encode_values([None, 1 << 70, ("a", {1, b"c"}), Decimal("1.10"), datetime(2024, 1, 2, tzinfo=UTC), 1j]).data],
    ),
    "positions": Target(read_positions, (ValueError,), [write_positions("id", {"in": Position("id", 7)})]),
    "objects": Target(
        task,
        (DecodeError,),
        [
            b"held." + b"\1" * 8 + b"b\0" + own.held(id=2**60),
            b'stop.b\0["why", 1, 2.0]',
            *(b"object.b\0" + encode_state(each) for each in _states),
        ],
    ),
    "states": Target(decode_state, (DecodeError,), [encode_state(each) for each in _states]),
    "decisions": Target(
        lambda data: decision_of([(CONTROL_HEADER, data)]),
        (DecodeError,),
        [each for each in (_control, _offer) if each],
    ),
    "places": Target(
        lambda data: place_of([("ks-event-id", parts(data)[0]), ("ks-event-prev", parts(data)[1])]),
        (DecodeError,),
        [b"7\x005"],
    ),
    "runs": Target(decode_runs, (ValueError,), [encode_runs(own.RUN, "id"), b'{"reset_by": "g.sums"}']),
    "cuts": Target(
        lambda data: Cut.decode(data.decode(), "cut"), (UserMistake, UnicodeDecodeError), [_CUT.encode().encode()]
    ),
    "lines": Target(
        line,
        (UserMistake,),
        [
            b'{"value": {"a": 1}, "key": "k", "headers": {"h": "x"}, "partition": 0}',
            b'{"value": {"hex": "00ff"}, "timestamp": "2026-05-01T12:00:00Z"}',
        ],
    ),
    "tail": Target(tailed, (), [b'k\0{"a": 1}', b"\xff\0\xff"]),
    "secrets": Target(redacted, (), [b"a\0host:6379/0", b"a/?#\0b?password=x,redis://u:p@h"]),
    "texts": Target(escaped, (), ["a\x1b[2J\u202eb\n".encode()]),
}
