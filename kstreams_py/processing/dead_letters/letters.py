"""A dead letter as it is read back, its mark, the selection of dead letters, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kstreams_py.errors import DecodeError
from kstreams_py.records import Message


class LetterPlace(NamedTuple):
    """The topic, partition and offset of a dead letter."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Input:
    """A record that the failed step read, as its dead letter keeps it. Implements records.Message.

    - `milliseconds`: its timestamp; negative if it has none.
    """

    name: str
    number: int
    at: int
    milliseconds: int
    own_key: bytes | None
    data: bytes | None
    pairs: tuple[tuple[str, bytes | None], ...]

    def topic(self) -> str:
        return self.name

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.own_key

    def value(self) -> bytes | None:
        return self.data

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self.pairs) or None

    def timestamp(self) -> tuple[int, int]:
        return (int(self.milliseconds >= 0), self.milliseconds)

    def __str__(self) -> str:
        return f"{self.name}[{self.number}]@{self.at}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    - `timestamp`: of the failed record, in milliseconds since 1970; with LogAppendTime, of the dead letter's append.
    - `processor`: the names of the graph and the processor, as `graph.processor`.
    - `error`: module and name of the exception's class.
    - `cut`: what was left out or changed so that the topic accepts the dead letter; "" if nothing.
    """

    place: LetterPlace
    timestamp: int
    processor: str
    delivery_hash: bytes
    error: str
    message: str
    traceback: str
    inputs: tuple[Input, ...]
    cut: str

    @property
    def processor_id(self) -> str:
        """The id of the processor in its graph."""
        return self.processor.rpartition(".")[2]

    def is_of(self, graph: str) -> bool:
        """Returns whether a processor of this graph has written it: graphs may share a dead-letter topic."""
        return self.processor.rpartition(".")[0] == graph

    @property
    def has_whole_inputs(self) -> bool:
        """Whether no key, value or header of its inputs was cut."""
        return not any(part.startswith(("key of ", "value of ", "headers of ")) for part in self.cut.split("; "))


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of a dead letter.

    - `timestamp`: when the mark was written, in milliseconds since 1970.
    - `reason`: why it was discarded; None if it was replayed.
    """

    timestamp: int
    reason: str | None = None

    @property
    def is_discard(self) -> bool:
        return self.reason is not None


def parse(m: Message, deserialize: Callable[[bytes], Any]) -> Letter:
    """Returns the dead letter that a record holds. Raises DecodeError if it holds none."""
    place = LetterPlace(m.topic(), m.partition(), m.offset())
    try:
        data = m.value()
        content: Mapping[str, Any] = {} if data is None else deserialize(data)
    except DecodeError as error:
        raise DecodeError(f"{place} is not a dead letter: {error}") from None
    if data is None:
        raise DecodeError(f"{place} is a tombstone, not a dead letter")
    inputs = tuple(
        Input(
            read["topic"],
            read["partition"],
            read["offset"],
            read["timestamp"],
            read["key"],
            read["value"],
            tuple((header["name"], header["value"]) for header in read["headers"]),
        )
        for read in content["inputs"]
    )
    if not inputs or any(min(each.number, each.at) < 0 for each in inputs):  # workers write no such dead letter
        raise DecodeError(f"{place} is not a dead letter: it names no record that was read")
    return Letter(
        place=place,
        timestamp=m.timestamp()[1],
        processor=content["processor"],
        delivery_hash=content["delivery_hash"],
        error=content["exception_class"],
        message=content["exception_message"],
        traceback=content["traceback"],
        inputs=inputs,
        cut=content["cut"] or "",
    )


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Selects the dead letters that match every field that is not None.

    - `processor`: the id of the processor, or the name of its group.
    - `error`: the name of the exception's class, with or without its module.
    - `since`: milliseconds since 1970; older dead letters do not match.
    - `topic`, `partition`, `offset`: the place of the dead letter.
    """

    processor: str | None = None
    error: str | None = None
    since: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    def fits(self, letter: Letter) -> bool:
        """Returns whether the dead letter matches."""
        return (
            self.processor in (None, letter.processor_id, letter.processor)
            and self.error in (None, letter.error, letter.error.rpartition(".")[2])
            and (self.since is None or letter.timestamp >= self.since)
            and self.topic in (None, letter.place.topic)
            and self.partition in (None, letter.place.partition)
            and self.offset in (None, letter.place.offset)
        )


@dataclass(slots=True)
class LetterGroup:
    """Dead letters of one processor with one exception class.

    - `first`, `last`: the oldest and newest timestamp.
    - `example`: the newest one that waits; the newest of all if none waits.
    - `waiting`, `replayed`: how many have no mark, and how many are replayed.
    - `reasons`: how many are discarded, by reason.
    """

    first: int
    last: int
    example: Letter
    waiting: int = 0
    replayed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def discarded(self) -> int:
        return self.reasons.total()


def group(letters: Iterable[tuple[Letter, Mark | None]]) -> dict[tuple[str, str], LetterGroup]:
    """Groups dead letters by processor and exception class; each comes with its mark, None if it waits."""
    found: dict[tuple[str, str], LetterGroup] = {}
    for letter, mark in letters:
        key = letter.processor, letter.error
        each = found.get(key)
        if each is None:
            each = found[key] = LetterGroup(letter.timestamp, letter.timestamp, letter)
        if mark is None or not each.waiting:
            each.example = letter
        if mark is None:
            each.waiting += 1
        elif mark.reason is None:
            each.replayed += 1
        else:
            each.reasons[mark.reason] += 1
        each.first = min(each.first, letter.timestamp)
        each.last = max(each.last, letter.timestamp)
    return dict(sorted(found.items()))
