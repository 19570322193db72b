"""A record as a line of JSON, and a line of JSON as a record.

A line is an object with the fields that `kstreams tail` prints: `value`, and optionally `key`, `headers`, `partition`
and `timestamp`. `topic` and `offset` name the place where a record was read; `kstreams send` ignores them. The serdes
of the graph encode and decode keys and values. For a topic of bytes, and for every topic without a graph, a string
stands for its text in UTF-8, `{"hex": "00ff"}` for these bytes, and anything else for its JSON text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final, TypeVar

from kstreams_py.errors import DecodeError, KStreamsError, TopicError, UserMistake, did_you_mean
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import Bytes, Json, Serde, String, bind, parse_json
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Output
from kstreams_py.operations.dead_letters.text import Describer
from kstreams_py.processing.dead_letters.letters import parse
from kstreams_py.records import HASH_HEADER, NO_TIMESTAMP, PLACE_HEADER, Message
from kstreams_py.steps.outputs import check_header_name

P = TypeVar("P")

FIELDS: Final = ("value", "key", "headers", "partition", "timestamp", "topic", "offset")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
HEX: Final = "hex"
"""The key of the object that stands for bytes."""


class Lines:
    """Converts between the records of one topic and lines."""

    def __init__(self, topic: str, graph: Graph | None, registry: Registry) -> None:
        """Raises TopicError for a topic that is not in the graph."""
        self._topic = topic
        declared = None if graph is None else graph.topics.get(topic)
        if graph is not None and declared is None:
            close = did_you_mean(topic, graph.topics) or f"it has {', '.join(sorted(graph.topics))}"
            raise TopicError(f"graph {graph.name!r} has no topic {topic!r}: {close}")
        self._letters = None
        serdes: tuple[Serde, Serde] = (Bytes(), Bytes()) if declared is None else (declared.key, declared.value)
        self._key, self._value = (
            _Column(role, serde, bind(serde, registry, f"{topic}-{role}"))
            for role, serde in zip(("key", "value"), serdes, strict=True)
        )
        if declared is not None and graph is not None and declared.value is dead_letters():
            self._letters = Describer(graph, registry)
        self.shows_bytes = False
        """Whether a line had bytes that are not text, and no serde to decode them."""
        self._has_graph = graph is not None

    def parse(self, line: bytes) -> Output:
        """Returns the record of a line, ready to be written. Raises UserMistake, which names the fault of the line."""
        try:
            record = parse_json(line.decode())
        except (ValueError, RecursionError) as error:
            raise UserMistake(f"not JSON in UTF-8: {error}") from None
        if not isinstance(record, dict):
            raise UserMistake('not a JSON object: write {"value": ...}, with key, headers, partition and timestamp')
        if "undecoded" in record:
            raise UserMistake(f"`kstreams tail` could not decode this record: {record['undecoded']}")
        if "fate" in record:
            raise UserMistake(f'this record is not committed ({record["fate"]}): leave the line out, or its "fate"')
        for name in record:
            if name not in FIELDS:
                close = did_you_mean(name, FIELDS) or f"there are {', '.join(FIELDS)}"
                raise UserMistake(f"field {name!r} does not exist: {close}")
        if "value" not in record:
            raise UserMistake('it has no value: add "value", which is null for a tombstone')
        return self._output(
            self._key.encode(record.get("key")),
            self._value.encode(record["value"]),
            _headers(record.get("headers")),
            _partition(record.get("partition")),
            _timestamp(record.get("timestamp")),
        )

    def plain(self, key: str | None, value: str, headers: Sequence[str], partition: int | None) -> Output:
        """Returns the record for a key and a value as text, and headers as name=value. Raises UserMistake.

        A serde of text or bytes takes the text itself; for any other serde the text is JSON.
        """
        pairs = [header.partition("=") for header in headers]
        if odd := [name for name, equals, _ in pairs if not equals or not name]:
            raise UserMistake(f"header {odd[0]!r}: write name=value")
        return self._output(
            None if key is None else self._key.encode(self._key.read(key)),
            self._value.encode(self._value.read(value)),
            [(name, os.fsencode(text)) for name, _, text in pairs],
            -1 if partition is None else partition,
            0,
        )

    def _output(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int,
        timestamp: int,
    ) -> Output:
        if self._letters is not None:
            raise UserMistake(
                f"topic {self._topic!r} has the dead letters of the graph, which its workers write: send to the input, "
                "or use `kstreams dead-letters replay`"
            )
        for name, _ in headers:
            try:
                check_header_name(name)
            except ValueError as error:
                raise UserMistake(str(error)) from None
        return (self._topic, value, key, partition, None, None, timestamp, headers or None)

    def show(self, m: Message, fate: str | None = None) -> str:
        """Returns the line of a record. A dead letter is shown with its inputs decoded.

        - `fate`: why readers of committed records do not see it; None if they do.
        """
        undecoded: dict[str, str] = {}
        kind, milliseconds = m.timestamp()
        headers = _part("headers", m.headers, undecoded) or ()
        content = {
            "topic": m.topic(),
            "partition": m.partition(),
            "offset": m.offset(),
            "timestamp": None if kind == NO_TIMESTAMP else show_instant(milliseconds),
            "key": self._key.decode(m.key(), undecoded),
            "value": self._show_value(m, undecoded),
            "headers": [(name, _show_header(name, data)) for name, data in headers],
        }
        if fate is not None:
            content["fate"] = fate
        if undecoded:
            content["undecoded"] = undecoded
        elif not self._has_graph:
            self.shows_bytes |= _is_hex(content["key"]) or _is_hex(content["value"])
        text = json.dumps(content, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON may contain half of a surrogate pair, which UTF-8 cannot encode
            return json.dumps(content)
        return text

    def show_letter(self, m: Message) -> str | None:
        """Returns a dead letter as `kstreams dead-letters show` prints it; None for any other record."""
        if self._letters is None:
            return None
        try:
            return self._letters.as_text(parse(m, self._value.bound.deserialize))
        except DecodeError:
            return None

    def _show_value(self, m: Message, undecoded: dict[str, str]) -> Any:
        if self._letters is not None:
            try:
                return self._letters.content(parse(m, self._value.bound.deserialize))
            except DecodeError as error:
                undecoded["value"] = str(error)
                data = _part("value", m.value, undecoded)
                return None if data is None else show_data(data)
        return self._value.decode(_part("value", m.value, undecoded), undecoded)


def _part(name: str, read: Callable[[], P | None], undecoded: dict[str, str]) -> P | None:
    """Returns the result of `read`. Returns None, and notes the reason in `undecoded`, if it raises DecodeError."""
    try:
        return read()
    except DecodeError as error:
        undecoded[name] = str(error)
        return None


class _Column:
    """The keys, or the values, of a topic."""

    def __init__(self, role: str, serde: Serde, bound: Serde) -> None:
        self._role = role
        self._serde = serde
        self.bound = bound

    def read(self, text: str) -> Any:
        """Returns the content that a line would have for text from the command line. Raises UserMistake."""
        if isinstance(self._serde, Bytes | String):
            return text
        try:
            return parse_json(text)
        except (ValueError, RecursionError) as error:
            raise UserMistake(f"{self._role} {text!r} is not JSON, as {self._serde!r} asks: {error}") from None

    def encode(self, content: Any) -> bytes | None:
        """Returns the bytes for the content of a line. Raises UserMistake if the serde refuses it."""
        if content is None:
            return None
        try:
            if isinstance(self._serde, Bytes):
                content = _data_of(content)
            elif not isinstance(self._serde, String | Json):
                content = _with_bytes(content)
            return self.bound.serialize(content)
        except KStreamsError:
            raise
        except Exception as error:  # a user's own serde may raise anything
            raise UserMistake(f"{self._role}: {error}") from None

    def decode(self, data: bytes | None, undecoded: dict[str, str]) -> Any:
        """Returns the content of a line for bytes; if decoding fails, the bytes, with the reason in `undecoded`."""
        if data is None:
            return None
        if isinstance(self._serde, Bytes):
            return show_data(data)
        try:
            return _plain(self.bound.deserialize(data))
        except DecodeError as error:
            undecoded[self._role] = str(error)
        except KStreamsError:  # the registry failed, and these bytes may be valid
            raise
        except Exception as error:  # a user's own serde may raise anything
            undecoded[self._role] = f"{type(error).__name__}: {error}"
        return show_data(data)


def show_data(data: bytes) -> Any:
    """Returns bytes as a value of a line: the text if they are UTF-8, otherwise `{"hex": ...}`."""
    try:
        return data.decode()
    except ValueError:
        return {HEX: data.hex()}


def show_instant(milliseconds: int) -> Any:
    """Returns a timestamp as ISO 8601 in UTC; the number itself if it is out of a date's range."""
    try:
        shown = (EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        return milliseconds
    return shown.replace("+00:00", "Z")


def _show_header(name: str, data: bytes | None) -> Any:
    if data is None:
        return None
    return {HEX: data.hex()} if name in (HASH_HEADER, PLACE_HEADER) else show_data(data)


def _plain(value: Any) -> Any:
    """Returns a value that JSON can represent."""
    if isinstance(value, bytes):
        return {HEX: value.hex()}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _is_hex(content: Any) -> bool:
    return isinstance(content, dict) and list(content) == [HEX] and isinstance(content[HEX], str)


def _data_of(content: Any) -> bytes:
    """Returns the bytes of a line's content for a serde of bytes. Raises ValueError."""
    if isinstance(content, str):
        return content.encode()
    if _is_hex(content):
        return bytes.fromhex(content[HEX])
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _with_bytes(content: Any) -> Any:
    """Replaces `{"hex": ...}` with bytes at any depth of the content. Raises ValueError."""
    if _is_hex(content):
        return bytes.fromhex(content[HEX])
    if isinstance(content, dict):
        return {name: _with_bytes(each) for name, each in content.items()}
    return [_with_bytes(each) for each in content] if isinstance(content, list) else content


def _headers(content: Any) -> list[tuple[str, bytes | None]]:
    """Returns the headers of an object, or of a list of pairs. Raises UserMistake."""
    pairs = list(content.items()) if isinstance(content, dict) else content or []
    try:
        if not all(isinstance(name, str) and len(pair) == 2 for pair in pairs for name in pair[:1]):
            raise TypeError
        return [(name, None if value is None else _data_of(value)) for name, value in pairs]
    except (TypeError, ValueError, KeyError):
        raise UserMistake(f"headers {content!r}: write an object, or a list of [name, value]") from None


def _partition(content: Any) -> int:
    """Returns the partition number; -1 for None: the key decides. Raises UserMistake."""
    if content is None:
        return -1
    if isinstance(content, bool) or not isinstance(content, int) or content < 0:
        raise UserMistake(f"partition {content!r}: write a number from 0 on, or leave it out")
    return content


def _timestamp(content: Any) -> int:
    """Returns milliseconds since 1970; 0 for None, which means now. Raises UserMistake."""
    if content is None:
        return 0
    if isinstance(content, str):
        try:
            instant = datetime.fromisoformat(content)
            if instant.tzinfo is None:
                raise UserMistake(f"timestamp {content!r} has no time zone: add Z, or an offset such as +02:00")
            content = (instant - EPOCH) // timedelta(milliseconds=1)
        except ValueError:
            content = None
    if isinstance(content, bool) or not isinstance(content, int) or not 0 < content < 2**63:
        raise UserMistake(
            "timestamp: write milliseconds since 1970, above 0, or a time such as 2026-05-01T12:00:00Z, or leave it out"
        )
    return content
