"""Writes records that no client for Python writes: header names that are not text, timestamps of any value."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tests.librdkafka import Declared, load_librdkafka

_PRODUCER: Final = 0
_COPIES: Final = 2
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADERS = 1, 3, 4, 5, 7, 8, 10
_FLUSH_MILLISECONDS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as the broker stores it. `headers` are pairs of bytes; a `timestamp` of 0 is the current time."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp: int = 0


class _Memory(ctypes.Structure):
    _fields_ = [("data", c_char_p), ("size", c_size_t)]


class _Any(ctypes.Union):
    _fields_ = [
        ("text", c_char_p),
        ("int", c_int),
        ("int32", c_int32),
        ("int64", c_int64),
        ("memory", _Memory),
        ("pointer", c_void_p),
        ("padding", c_char * 64),
    ]


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = [("kind", c_int), ("is", _Any)]


def write_raw(bootstrap_servers: str, topic: str, records: Sequence[Raw], partition: int = 0, **settings: str) -> None:
    """Writes records and waits until all are acknowledged; `settings` of librdkafka are named with underscores."""
    library, reason = _library(), ctypes.create_string_buffer(512)
    configuration = library.rd_kafka_conf_new()
    named = {name.replace("_", "."): value for name, value in settings.items()}
    for name, value in {"bootstrap.servers": bootstrap_servers, "log_level": "0", **named}.items():
        assert not library.rd_kafka_conf_set(configuration, name.encode(), value.encode(), reason, len(reason))
    handle = library.rd_kafka_new(_PRODUCER, configuration, reason, len(reason))
    assert handle, reason.value.decode()
    for record in records:
        headers = library.rd_kafka_headers_new(len(record.headers))
        for header, data in record.headers:
            library.rd_kafka_header_add(headers, header, len(header), data, -1 if data is None else len(data))
        given: list[tuple[int, str, Any]] = [
            (_TOPIC, "text", topic.encode()),
            (_PARTITION, "int32", partition),
            (_FLAGS, "int", _COPIES),
            (_VALUE, "memory", _Memory(record.value, len(record.value or b""))),
            (_KEY, "memory", _Memory(record.key, len(record.key or b""))),
            (_TIMESTAMP, "int64", record.timestamp),
            (_HEADERS, "pointer", headers),
        ]
        arguments = (_Argument * len(given))()
        for argument, (kind, field, value) in zip(arguments, given, strict=True):
            argument.kind = kind
            setattr(getattr(argument, "is"), field, value)
        error = library.rd_kafka_produceva(handle, arguments, len(given))
        assert not error, library.rd_kafka_error_string(error).decode()
    assert not library.rd_kafka_flush(handle, _FLUSH_MILLISECONDS), "the records are not acknowledged"
    library.rd_kafka_destroy(handle)


@cache
def _library() -> ctypes.CDLL:
    pointer, text = c_void_p, c_char_p
    declared: Declared = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (c_int, [pointer, text, text, text, c_size_t]),
        "rd_kafka_new": (pointer, [c_int, pointer, text, c_size_t]),
        "rd_kafka_headers_new": (pointer, [c_size_t]),
        "rd_kafka_header_add": (c_int, [pointer, text, c_ssize_t, text, c_ssize_t]),
        "rd_kafka_produceva": (pointer, [pointer, pointer, c_size_t]),
        "rd_kafka_error_string": (text, [pointer]),
        "rd_kafka_flush": (c_int, [pointer, c_int]),
        "rd_kafka_destroy": (None, [pointer]),
    }
    return load_librdkafka(declared)
