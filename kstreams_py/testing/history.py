"""A history: the events of a test (events.py) in one order, over threads and processes, in memory and in files.

A test records the events of its clients as they become known, and `check` (checker.py) finds the anomalies::

    history = History()
    producer.produce("in", b"1", b"key", on_delivery=history.on_delivery())
    history.fault("SIGKILL of slot 0")
    history.final_read("reader", "in", messages_of_in, ends={0: 1})
    history.final_read("reader", "out", messages_of_out, ends={0: 3})
    anomalies = check(history, [Expected("in", to="out")])
    assert not anomalies, explain(anomalies)

Events are ordered by the machine's monotonic clock, which its processes share. Record `commit_asked` before the
request, all other events afterwards. Each process has a History of its own, with a file; the test combines them with
`History.from_files`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter, index
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import HistoryError
from kstreams_py.records import Positions
from kstreams_py.testing.events import (
    Assigned,
    Committed,
    Fault,
    HistoryEvent,
    Isolation,
    Outcome,
    Phase,
    Read,
    ReadOut,
    Sent,
    Transaction,
)

EVENTS: Final[Mapping[str, type[HistoryEvent]]] = {
    each.__name__: each for each in (Sent, Transaction, Read, Assigned, ReadOut, Committed, Fault)
}
_NAMES: Final = {each: tuple(field.name for field in fields(each)) for each in EVENTS.values()}
_FIELDS: Final = {each: attrgetter(*names) for each, names in _NAMES.items()}


class History:
    """The recorded events, in order. May be used by all threads of one process.

    - `path`: a file to which each event is also appended, as a line of JSON, before the call returns, so that it
      survives a SIGKILL. None for no file.
    - `clock`: monotonic nanoseconds.

    Raises OSError if the file cannot be written.
    """

    def __init__(self, path: Path | str | None = None, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._events: list[HistoryEvent] = []
        self._lock = threading.Lock()
        self._clock = clock
        self._last = 0
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[HistoryEvent]:
        return iter(self._events[: len(self)])

    # Events of senders.

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
        """Records that a record was sent.

        - `place`: partition and offset; -1 if not known.
        - `outcome`: as the sender knows it now.
        - `transaction`: the name that `begun` returned; "" outside of a transaction.
        - `sender`: the name of the producer. Records of one sender and one key are expected in this order; producers
          without a name count as one.
        """
        self._add(Sent, [(topic, *place, key, value, Outcome(outcome), transaction, sender)])

    def on_delivery(self, transaction: str = "", sender: str = "") -> Callable[[Any, Any], None]:
        """Returns a callback for confluent_kafka's `produce(..., on_delivery=)`, which records `sent`.

        After an error the outcome is unknown: a record that timed out may have been written.
        """

        def delivered(error: Any, message: Any) -> None:
            outcome = Outcome.ACKNOWLEDGED if error is None else Outcome.UNKNOWN
            place = (message.partition(), message.offset()) if error is None else (-1, -1)
            content = (message.key(), message.value())
            self.sent(message.topic(), *content, place=place, outcome=outcome, transaction=transaction, sender=sender)

        return delivered

    def begun(self, producer: str) -> str:
        """Records that a producer has begun a transaction; returns the transaction's name in this history."""
        with self._lock:
            name = f"{producer}@{self._tick()}"
        self._add(Transaction, [(name, Phase.BEGUN)])
        return name

    def commit_asked(self, transaction: str) -> None:
        """Records that a commit is about to be requested: before this, no committed reader may read the records."""
        self._add(Transaction, [(transaction, Phase.COMMIT_ASKED)])

    def committed(self, transaction: str) -> None:
        """Records that the commit was acknowledged."""
        self._add(Transaction, [(transaction, Phase.COMMITTED)])

    def aborted(self, transaction: str) -> None:
        """Records that the abort was acknowledged, or the commit certainly refused."""
        self._add(Transaction, [(transaction, Phase.ABORTED)])

    def unknown(self, transaction: str) -> None:
        """Records that there was no answer: the transaction is either committed or aborted."""
        self._add(Transaction, [(transaction, Phase.UNKNOWN)])

    # Events of readers.

    def read(self, reader: str, messages: Iterable[Any], isolation: Isolation | str = Isolation.COMMITTED) -> None:
        """Records that a reader has read these records, in this order."""
        asked = Isolation(isolation)
        self._add(Read, [(reader, asked, m.topic(), m.partition(), m.offset(), m.key(), m.value()) for m in messages])

    def assigned(self, reader: str) -> None:
        """Records that a reader was assigned other positions, which may be earlier ones."""
        self._add(Assigned, [(reader,)])

    def read_out(
        self, reader: str, topic: str, ends: Mapping[int, int], isolation: Isolation | str = Isolation.COMMITTED
    ) -> None:
        """Records a final read: the reader has read the whole topic, and no record will be added.

        `ends` has the end (high watermark) of each partition, including empty ones.
        """
        asked = Isolation(isolation)
        self._add(ReadOut, [(reader, asked, topic, partition, end) for partition, end in ends.items()])

    def final_read(
        self,
        reader: str,
        topic: str,
        messages: Iterable[Any],
        ends: Mapping[int, int],
        isolation: Isolation | str = Isolation.COMMITTED,
    ) -> None:
        """Records `read` and `read_out`: a reader has read the whole topic, from its start to these ends."""
        self.read(reader, messages, isolation)
        self.read_out(reader, topic, ends, isolation)

    def positions(self, group: str, positions: Positions) -> None:
        """Records the committed offsets of a group. Let a single observer ask for them, or they may seem to go back."""
        self._add(Committed, [(group, tp.topic, tp.partition, position) for tp, position in positions.items()])

    def fault(self, what: str) -> None:
        """Records that the test has injected a fault."""
        self._add(Fault, [(what,)])

    # Histories of several processes.

    def to_file(self, path: Path | str) -> None:
        """Appends all events to a file, a line of JSON for each."""
        with Path(path).open("ab") as file:
            file.writelines(map(_line, self))

    @classmethod
    def from_files(cls, *paths: Path | str) -> History:
        """Reads the histories of several processes as one.

        Ignores an incomplete last line, left by a process that was killed while it wrote. Raises HistoryError for any
        other line that is not an event, and OSError for a file that cannot be read.
        """
        events: list[HistoryEvent] = []
        for path in paths:
            with Path(path).open("rb") as file:
                events += [
                    _event(line, f"{path}:{number}") for number, line in enumerate(file, 1) if line.endswith(b"\n")
                ]
        history = cls()
        history._events = sorted(events, key=attrgetter("at"))
        history._last = max((event.at for event in events), default=0)
        return history

    def _add(self, kind: type[HistoryEvent], rows: Iterable[tuple[Any, ...]]) -> None:
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


def _line(event: HistoryEvent) -> bytes:
    """Encodes an event as a line of JSON; bytes as Latin-1, which is lossless and keeps text readable."""
    kind = type(event)
    row = dict(zip(_NAMES[kind], _FIELDS[kind](event), strict=True))
    for name in ("key", "value"):
        if isinstance(row.get(name), bytes):
            row[name] = row[name].decode("latin-1")
    return json.dumps({"event": kind.__name__, **row}).encode() + b"\n"


def _event(line: bytes, where: str) -> HistoryEvent:
    """Decodes a line of `_line`. `where`: its place, for messages. Raises HistoryError."""
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
            f"{where} is not an event of a history ({type(error).__name__}: {error}): {line[:80]!r}; give files that a "
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
"""The conversion of each field from its value in a file."""
