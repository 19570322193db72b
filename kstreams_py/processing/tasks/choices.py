"""The choices of alts: which input each of the next steps reads, journaled before the functions run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from kstreams_py.formats.schema_files import shipped_schema


def encode_versioned(version: bytes, schema: Any, content: Mapping[str, Any]) -> bytes:
    """Returns one byte with the version, then the content in Avro; `schema` is already parsed."""
    buffer = BytesIO(version)
    buffer.seek(0, 2)
    schemaless_writer(buffer, schema, content)
    return buffer.getvalue()


def decode_versioned(data: bytes | None, written: Mapping[bytes, Any], schema: Any) -> Any:
    """Decodes what `encode_versioned` returns. Raises ValueError for other bytes.

    - `written`: the parsed schema of each version.
    - `schema`: the parsed schema of this release.
    """
    if not data:
        raise ValueError("it is empty")
    if (writer := written.get(data[:1])) is None:
        raise ValueError(f"it starts with {data[:1]!r}, not with a version up to {max(written)!r}")
    buffer = BytesIO(data[1:])
    try:
        found = schemaless_reader(buffer, writer, schema)
    except (ValueError, ArithmeticError, EOFError, LookupError, MemoryError, TypeError) as error:
        raise ValueError(f"it is cut off, or does not fit its schema: {error!r}") from None
    if buffer.read(1):
        raise ValueError("it has bytes after its record")
    return found


class InputStart(NamedTuple):
    """The state of an input when choices were made: its topic id ("" if the broker has none) and its next offset."""

    topic: str
    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of an alts task for its next steps.

    - `runs`: for each run, in order, its topic and the offset of its last record.
    - `starts`: an entry for each topic in the runs; empty if version 1 wrote the choices.
    """

    runs: tuple[tuple[str, int], ...] = ()
    starts: tuple[InputStart, ...] = ()

    def after(self, committed: Mapping[str, int]) -> Choices:
        """Returns the choices that are not delivered yet; `committed` has the next offset of each topic."""
        runs = tuple(run for run in self.runs if run[1] >= committed.get(run[0], 0))
        named = {topic for topic, _ in runs}
        return Choices(runs, tuple(start for start in self.starts if start.topic in named))

    def still_valid(self, committed: Mapping[str, int], topic_ids: Mapping[str, str]) -> tuple[Choices, list[str]]:
        """Returns the choices that are still valid and not delivered yet, and the reasons why others are dropped.

        - `committed`: the next offset of each input.
        - `topic_ids`: the id of each current input.

        A run is dropped if its topic is no longer an input or was created again. All runs are dropped if a committed
        offset was set back. The records of such runs may never come, and the other inputs would wait for them.
        """
        left = self.after(committed)
        missing = {topic: f"{topic!r} is no longer an input" for topic, _ in left.runs if topic not in topic_ids}
        set_back = []
        for topic, topic_id, offset in left.starts:
            if topic_id and topic_ids.get(topic, "") not in ("", topic_id):
                missing[topic] = f"{topic!r} was deleted and created again"
            elif committed.get(topic, offset) < offset:
                set_back.append(f"the committed offset of {topic!r} was set back from {offset} to {committed[topic]}")
        if set_back:
            return Choices(), set_back
        runs = tuple(run for run in left.runs if run[0] not in missing)
        return Choices(runs, tuple(start for start in left.starts if start.topic not in missing)), [*missing.values()]

    def encode(self) -> bytes:
        """Returns a version byte, then Avro with the schema schemas/alts_choices.avsc."""
        record = {
            "runs": [{"topic": topic, "through": through} for topic, through in self.runs],
            "inputs": [{"topic": t, "topic_id": topic_id, "start": offset} for t, topic_id, offset in self.starts],
        }
        return encode_versioned(_CHOICES_VERSION, _CHOICES_SCHEMA, record)

    @classmethod
    def decode(cls, data: bytes | None) -> Choices:
        """Decodes what `encode` returns, also in version 1. Raises ValueError for other bytes."""
        found = decode_versioned(data, _CHOICES_SCHEMAS, _CHOICES_SCHEMA)
        return cls(
            tuple((run["topic"], run["through"]) for run in found["runs"]),
            tuple(InputStart(each["topic"], each["topic_id"], each["start"]) for each in found["inputs"]),
        )


_CHOICES_VERSION: Final = b"\x02"
_CHOICES: Final[Any] = shipped_schema("alts_choices")
_CHOICES_SCHEMA: Final = parse_schema(_CHOICES)
_CHOICES_SCHEMAS: Final = {
    b"\x01": parse_schema({**_CHOICES, "fields": _CHOICES["fields"][:1]}),  # runs alone
    _CHOICES_VERSION: _CHOICES_SCHEMA,
}
