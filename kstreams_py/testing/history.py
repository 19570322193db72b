"""What happened in a test: sends, transactions, reads, positions and faults, in one order, over processes.

A test records what its clients saw, each event once it is known, and `check` (checker.py) names what must not be::

    history = History()
    producer.produce("in", b"1", b"key", on_delivery=history.on_delivery())
    history.fault("SIGKILL of slot 0")
    history.final_read("reader", "in", messages_of_in, ends={0: 1})
    history.final_read("reader", "out", messages_of_out, ends={0: 3})
    anomalies = check(history, [Expected("in", to="out")])
    assert not anomalies, explain(anomalies)

Events are ordered by the machine's monotonic clock, which its processes share: record what a client is about to ask
(`commit_asked`) before it asks, and all else afterwards. Each process has a History of its own, with a file; the test
brings them together with `History.from_files`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter, index
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import HistoryError
from kstreams_py.record import Message, Positions


class Isolation(StrEnum):
    """What a reader asked for."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


class Outcome(StrEnum):
    """What a sender knows of a record: it is written, it certainly is not, or nobody can say."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """What a transaction came to, as its producer knows it."""

    BEGUN = "begun"
    COMMIT_ASKED = "commit asked"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: `at` (nanoseconds of the monotonic clock) orders it, `wall` is for people."""

    at: int
    wall: float


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """A record was sent; partition and offset are -1 where they are not known, transaction is "" outside of one."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    outcome: Outcome
    transaction: str
    sender: str

    def __str__(self) -> str:
        within = f" in transaction {self.transaction}" if self.transaction else ""
        return f"{_sender(self.sender)} sent {_record(self)} ({self.outcome}){within}"


@dataclass(frozen=True, slots=True)
class Transaction(Event):
    """A transaction entered a phase."""

    transaction: str
    phase: Phase

    def __str__(self) -> str:
        return f"transaction {self.transaction}: {self.phase}"


@dataclass(frozen=True, slots=True)
class Read(Event):
    """A reader was handed a record."""

    reader: str
    isolation: Isolation
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    def __str__(self) -> str:
        return f"{self.reader} ({self.isolation}) read {_record(self)}"


@dataclass(frozen=True, slots=True)
class Assigned(Event):
    """A reader starts anew at other positions: what it reads from here on may be earlier than what it has read."""

    reader: str

    def __str__(self) -> str:
        return f"{self.reader} was assigned anew"


@dataclass(frozen=True, slots=True)
class ReadOut(Event):
    """A reader has read one partition of a topic from its start to `end` (a position), for good: a final read."""

    reader: str
    isolation: Isolation
    topic: str
    partition: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.reader} ({self.isolation}) has read all of {self.topic}[{self.partition}], to position {self.end}"
        )


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """A group's committed position was seen."""

    group: str
    topic: str
    partition: int
    position: int

    def __str__(self) -> str:
        return f"group {self.group} had committed position {self.position} of {self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Fault(Event):
    """Something was broken on purpose."""

    what: str

    def __str__(self) -> str:
        return f"fault: {self.what}"


def _record(event: Sent | Read) -> str:
    place = event.topic if event.partition < 0 else f"{event.topic}[{event.partition}]"
    return f"{place}{f'@{event.offset}' if event.offset >= 0 else ''} {show(event.key)}: {show(event.value)}"


def _sender(sender: str) -> str:
    return sender or "the producer"


def show(data: bytes | None) -> str:
    """Bytes in a sentence: text where they are, and not for ever."""
    return "None" if data is None else repr(data[:60])[1:] + ("..." if len(data) > 60 else "")


EVENTS: Final[Mapping[str, type[Event]]] = {
    each.__name__: each for each in (Sent, Transaction, Read, Assigned, ReadOut, Committed, Fault)
}
_NAMES: Final = {each: tuple(field.name for field in fields(each)) for each in EVENTS.values()}
_FIELDS: Final = {each: attrgetter(*names) for each, names in _NAMES.items()}


class History:
    """What was recorded, in order; may be used from all threads of one process. Nothing is ever taken back.

    With a path, each event is also appended to that file, a line of JSON, before the call returns, so that it outlasts
    a SIGKILL. Raises OSError where the file cannot be written.
    """

    def __init__(self, path: Path | str | None = None, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._clock = clock
        self._last = 0
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events[: len(self)])

    # What senders know.

    def sent(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        place: tuple[int, int] = (-1, -1),
        outcome: Outcome | str = Outcome.ACKNOWLEDGED,
        transaction: str = "",
        sender: str = "",
    ) -> None:
        """A record was sent, and this is what its sender knows now; `place` is its partition and offset, if known.

        `transaction` is what `begun` returned. What one `sender` sent with one key is expected in this order: give
        each producer a name, or all count as one.
        """
        self._add(Sent, [(topic, *place, key, value, Outcome(outcome), transaction, sender)])

    def on_delivery(self, transaction: str = "", sender: str = "") -> Callable[[object, Message], None]:
        """A callback for confluent_kafka's `produce(..., on_delivery=)`: records `sent` with what the client says.

        After an error the outcome is unknown: a record that timed out may have been written.
        """

        def delivered(error: object, message: Message) -> None:
            outcome = Outcome.ACKNOWLEDGED if error is None else Outcome.UNKNOWN
            place = (message.partition(), message.offset()) if error is None else (-1, -1)
            content = (message.key(), message.value())
            self.sent(message.topic(), *content, place=place, outcome=outcome, transaction=transaction, sender=sender)

        return delivered

    def begun(self, producer: str) -> str:
        """A producer has begun a transaction; returns the name that it goes by here."""
        with self._lock:
            name = f"{producer}@{self._tick()}"
        self._add(Transaction, [(name, Phase.BEGUN)])
        return name

    def commit_asked(self, transaction: str) -> None:
        """To be recorded before the commit is asked for: no committed reader may see the records earlier."""
        self._add(Transaction, [(transaction, Phase.COMMIT_ASKED)])

    def committed(self, transaction: str) -> None:
        """The commit was acknowledged."""
        self._add(Transaction, [(transaction, Phase.COMMITTED)])

    def aborted(self, transaction: str) -> None:
        """The abort was acknowledged, or the commit refused for certain."""
        self._add(Transaction, [(transaction, Phase.ABORTED)])

    def unknown(self, transaction: str) -> None:
        """No answer: committed or aborted, but the one or the other."""
        self._add(Transaction, [(transaction, Phase.UNKNOWN)])

    # What readers see.

    def read(self, reader: str, messages: Iterable[Message], isolation: Isolation | str = Isolation.COMMITTED) -> None:
        """A reader was handed these records, in this order."""
        asked = Isolation(isolation)
        self._add(Read, [(reader, asked, m.topic(), m.partition(), m.offset(), m.key(), m.value()) for m in messages])

    def assigned(self, reader: str) -> None:
        """A reader starts anew at other positions, which may be earlier ones."""
        self._add(Assigned, [(reader,)])

    def read_out(
        self, reader: str, topic: str, ends: Mapping[int, int], isolation: Isolation | str = Isolation.COMMITTED
    ) -> None:
        """What this reader has read of a topic is all there is, and nothing will be added: its final read.

        `ends` has the end of each partition (its high watermark), of the empty ones too.
        """
        asked = Isolation(isolation)
        self._add(ReadOut, [(reader, asked, topic, partition, end) for partition, end in ends.items()])

    def final_read(
        self,
        reader: str,
        topic: str,
        messages: Iterable[Message],
        ends: Mapping[int, int],
        isolation: Isolation | str = Isolation.COMMITTED,
    ) -> None:
        """`read` and `read_out` in one: a reader has read the whole of a topic, from its start to these ends."""
        self.read(reader, messages, isolation)
        self.read_out(reader, topic, ends, isolation)

    def positions(self, group: str, positions: Positions) -> None:
        """The committed positions of a group, as they are now; asked for by one observer, or they seem to go back."""
        self._add(Committed, [(group, tp.topic, tp.partition, position) for tp, position in positions.items()])

    def fault(self, what: str) -> None:
        """Something was broken on purpose."""
        self._add(Fault, [(what,)])

    # Over processes.

    def to_file(self, path: Path | str) -> None:
        """Appends all events to a file, a line of JSON each."""
        with Path(path).open("ab") as file:
            file.writelines(map(_line, self))

    @classmethod
    def from_files(cls, *paths: Path | str) -> History:
        """The history that several processes recorded, in one order.

        A last line without an end is that of a process that was killed while it wrote: it was not recorded. Raises
        HistoryError for any other line that is no event, OSError for a file that cannot be read.
        """
        events: list[Event] = []
        for path in paths:
            with Path(path).open("rb") as file:
                events += [
                    _event(line, f"{path}:{number}") for number, line in enumerate(file, 1) if line.endswith(b"\n")
                ]
        history = cls()
        history._events = sorted(events, key=attrgetter("at"))
        history._last = max((event.at for event in events), default=0)
        return history

    def _add(self, kind: type[Event], rows: Iterable[tuple[Any, ...]]) -> None:
        with self._lock:
            wall = time.time()
            events = [kind(self._tick(), wall, *row) for row in rows]
            self._events += events
            if self._file is not None:
                for event in events:
                    os.write(self._file, _line(event))

    def _tick(self) -> int:
        self._last = max(self._clock(), self._last + 1)
        return self._last


def _line(event: Event) -> bytes:
    """An event as a line of JSON; bytes are Latin-1, so that text stays readable and nothing is lost."""
    kind = type(event)
    row = dict(zip(_NAMES[kind], _FIELDS[kind](event), strict=True))
    for name in ("key", "value"):
        if isinstance(row.get(name), bytes):
            row[name] = row[name].decode("latin-1")
    return json.dumps({"event": kind.__name__, **row}).encode() + b"\n"


def _event(line: bytes, where: str) -> Event:
    """The inverse of `_line`."""
    try:
        row = json.loads(line)
        kind = EVENTS[row.pop("event")]
        if row.keys() != set(_NAMES[kind]):
            raise ValueError(f"has the fields {', '.join(row)}")
        for name, value in row.items():
            row[name] = _TYPES[name](value)
        return kind(**row)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HistoryError(
            f"{where} is no event of a history ({type(error).__name__}: {error}): {line[:80]!r}; give files that a "
            "History of this version has written"
        ) from None


def _text(value: str) -> str:
    return value + ""


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode("latin-1")


_TYPES: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("at", "partition", "offset", "end", "position"), index),
    **dict.fromkeys(("topic", "transaction", "sender", "reader", "group", "what"), _text),
    **dict.fromkeys(("key", "value"), _bytes),
    "wall": float,
    "isolation": Isolation,
    "outcome": Outcome,
    "phase": Phase,
}
"""Each field as it is read from a file."""
