"""The records of a journal: a snapshot, the choices of an alts, an attempt; and the newest unit that they form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fastavro import parse_schema

from kstreams_py.errors import DecodeError, RecoveryUndecidable
from kstreams_py.formats.schema_files import shipped_schema
from kstreams_py.graph.hashes import snapshot_hash
from kstreams_py.kafka.contracts import Output
from kstreams_py.kafka.foreign_records import foreign
from kstreams_py.processing.tasks.choices import Choices, InputStart, decode_versioned, encode_versioned
from kstreams_py.records import Message, readable_headers

TYPE_HEADER: Final = "ks-type"

NEWEST: Final = b"newest"
"""The key of attempts that are recorded beside their outputs: compaction keeps the newest in each partition."""

_VERSION: Final = b"\x01"


class RecordType(StrEnum):
    """The type of a journal's record, in its header `ks-type`."""

    SNAPSHOT = "snapshot"
    CHOICES = "snapshot-alts"
    OUTPUT = "attempt-output"
    """An attempt that writes outputs."""
    ERROR = "attempt-error"
    """An attempt that writes dead letters but no output."""
    NIL = "attempt-nil"
    """A delivery that writes nothing: this record commits it."""


CHOICES_ALONE: Final = "alts-choices"
"""The type of choices without a snapshot; an alts processor without journal persistence records them."""


class OutputPlace(NamedTuple):
    """Where a record is, or will be once its transaction is committed, and the delivery hash in its header."""

    topic: str
    partition: int
    offset: int
    delivery_hash: bytes

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The next offsets of a task's inputs before a delivery; `processor` is `graph.processor`."""

    processor: str
    partition: int
    inputs: tuple[InputStart, ...]

    @property
    def hash(self) -> bytes:
        """16 bytes that name the snapshot."""
        return snapshot_hash(self.processor, ((at.topic, at.topic_id, self.partition, at.offset) for at in self.inputs))

    @property
    def offsets(self) -> dict[str, int]:
        """The next offset of each input."""
        return {at.topic: at.offset for at in self.inputs}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A delivery that is about to be committed (schemas/attempt.avsc). If its type is NIL, this record commits it.

    `writer` is the transactional id of the producer of its outputs, `cluster` the name of their cluster.
    """

    type: RecordType
    snapshot: bytes
    delivery_hash: bytes
    steps: int
    writer: str
    inputs: tuple[InputStart, ...]
    outputs: tuple[OutputPlace, ...] = ()
    cluster: str = ""

    @property
    def offsets(self) -> dict[str, int]:
        """The next offset of each input, after the delivery."""
        return {at.topic: at.offset for at in self.inputs}


@dataclass(frozen=True, slots=True)
class Unit:
    """The records of a task's newest delivery in a journal: its snapshot, its choices, its last attempt."""

    snapshot: Snapshot
    choices: Choices | None = None
    attempt: Attempt | None = None


def snapshot_record(topic: str, snapshot: Snapshot) -> Output:
    inputs = [at._asdict() for at in snapshot.inputs]
    content = {"processor": snapshot.processor, "inputs": inputs}
    return _record(topic, snapshot.partition, RecordType.SNAPSHOT, encode_versioned(_VERSION, _SNAPSHOT, content))


def choices_record(topic: str, partition: int, choices: Choices, kind: str = RecordType.CHOICES) -> Output:
    """Returns a record of choices; `kind` is CHOICES_ALONE if no snapshot precedes it."""
    return _record(topic, partition, kind, choices.encode())


def attempt_record(topic: str, partition: int, attempt: Attempt, key: bytes | None = None) -> Output:
    """Returns a record of an attempt; `key` is needed in a topic where newer attempts replace older ones."""
    content = {
        "snapshot": attempt.snapshot,
        "delivery_hash": attempt.delivery_hash,
        "steps": attempt.steps,
        "writer": attempt.writer,
        "cluster": attempt.cluster,
        "inputs": [at._asdict() for at in attempt.inputs],
        "outputs": [place._asdict() for place in attempt.outputs],
    }
    return _record(topic, partition, attempt.type, encode_versioned(_VERSION, _ATTEMPT, content), key)


def forgotten_record(topic: str, partition: int) -> Output:
    """Returns the tombstone of a task's newest attempt, in a topic where newer attempts replace older ones."""
    return (topic, None, NEWEST, partition, None, None, 0, None)


def newest_unit(messages: Sequence[Message], partition: int) -> Unit | None:
    """Returns the unit of the newest snapshot among the records of a task, which are given in offset order.

    Returns None if there is none. Raises RecoveryUndecidable for a record that has no snapshot before it, names another
    snapshot, or cannot be read.
    """
    unit: Unit | None = None
    for m in messages:
        kind = type_of(m)
        if kind == CHOICES_ALONE:
            continue
        found = read(m, partition)
        if isinstance(found, Snapshot):
            unit = Unit(found)
        elif unit is None:
            raise RecoveryUndecidable(f"offset {m.offset()}: it is of type {kind}, and there is no snapshot before it")
        elif isinstance(found, Choices):
            unit = Unit(unit.snapshot, found)
        elif found.snapshot != unit.snapshot.hash:
            raise RecoveryUndecidable(
                f"offset {m.offset()}: it is an attempt at a snapshot other than {unit.snapshot.offsets}, which is the "
                "one before it"
            )
        else:
            unit = Unit(unit.snapshot, unit.choices, found)
    return unit


def type_of(m: Message) -> str:
    """Returns the type of a journal's record, even if this release does not know it."""
    return (dict(readable_headers(m)).get(TYPE_HEADER) or b"").decode(errors="replace")


def _record(topic: str, partition: int, kind: str, value: bytes, key: bytes | None = None) -> Output:
    return (topic, value, key, partition, None, None, 0, [(TYPE_HEADER, kind.encode())])


def read(m: Message, partition: int) -> Snapshot | Choices | Attempt:
    """Decodes as `decode` does, but raises RecoveryUndecidable in place of ValueError."""
    try:
        return decode(m, partition)
    except ValueError as error:
        raise RecoveryUndecidable(foreign(m, "a record of a journal", error)) from None


def decode(m: Message, partition: int) -> Snapshot | Choices | Attempt:
    """Decodes a record of a journal by its type. Raises ValueError for a foreign or truncated record."""
    try:
        kind, data = (dict(m.headers() or ()).get(TYPE_HEADER) or b"").decode(errors="replace"), m.value()
    except DecodeError as error:
        raise ValueError(error) from None
    if kind == RecordType.SNAPSHOT:
        found = decode_versioned(data, {_VERSION: _SNAPSHOT}, _SNAPSHOT)
        return Snapshot(found["processor"], partition, tuple(InputStart(**at) for at in found["inputs"]))
    if kind in (RecordType.CHOICES, CHOICES_ALONE):
        return Choices.decode(data)
    if kind not in set(RecordType):
        raise ValueError(f"its type is {kind[:40]!r}")
    found = decode_versioned(data, {_VERSION: _ATTEMPT}, _ATTEMPT)
    return Attempt(
        RecordType(kind),
        found["snapshot"],
        found["delivery_hash"],
        found["steps"],
        found["writer"],
        tuple(InputStart(**at) for at in found["inputs"]),
        tuple(OutputPlace(**place) for place in found["outputs"]),
        found["cluster"],
    )


_SNAPSHOT: Final[Any] = parse_schema(shipped_schema("snapshot"))
_ATTEMPT: Final[Any] = parse_schema(shipped_schema("attempt"))
