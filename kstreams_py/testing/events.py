"""The events of a test, as its clients know them at the time.

==============  ====================================================================
Sent            a record was sent
Transaction     a transaction entered a phase, as its producer knows it
Read            a reader has read a record
Assigned        a reader was assigned other positions
ReadOut         a reader has read a partition from its start to its final end
Committed       a group's committed offset was observed
Fault           the test has injected a fault
==============  ====================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Isolation(StrEnum):
    """The isolation level of a reader."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


class Outcome(StrEnum):
    """The outcome of a record as its sender knows it: written, certainly not written, or unknown."""

    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """The phase of a transaction as its producer knows it."""

    BEGUN = "begun"
    COMMIT_ASKED = "commit asked"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event.

    - `at`: nanoseconds of the monotonic clock, by which events are ordered.
    - `wall`: seconds since 1970, for display.
    """

    at: int
    wall: float


@dataclass(frozen=True, slots=True)
class Sent(HistoryEvent):
    """A record was sent.

    - `partition`, `offset`: -1 if not known.
    - `transaction`: its name in the history; "" outside of a transaction.
    """

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
class Transaction(HistoryEvent):
    """A transaction entered a phase."""

    transaction: str
    phase: Phase

    def __str__(self) -> str:
        return f"transaction {self.transaction}: {self.phase}"


@dataclass(frozen=True, slots=True)
class Read(HistoryEvent):
    """A reader has read a record."""

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
class Assigned(HistoryEvent):
    """A reader was assigned other positions: the next records may have lower offsets than the previous ones."""

    reader: str

    def __str__(self) -> str:
        return f"{self.reader} was assigned again"


@dataclass(frozen=True, slots=True)
class ReadOut(HistoryEvent):
    """A final read: a reader has read one partition from its start to `end`, the offset after the last record."""

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
class Committed(HistoryEvent):
    """A group's committed offset, `position`, was observed."""

    group: str
    topic: str
    partition: int
    position: int

    def __str__(self) -> str:
        return f"group {self.group} had committed position {self.position} of {self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Fault(HistoryEvent):
    """The test has injected a fault."""

    what: str

    def __str__(self) -> str:
        return f"fault: {self.what}"


def _record(event: Sent | Read) -> str:
    place = event.topic if event.partition < 0 else f"{event.topic}[{event.partition}]"
    return f"{place}{f'@{event.offset}' if event.offset >= 0 else ''} {show(event.key)}: {show(event.value)}"


def _sender(sender: str) -> str:
    return sender or "the producer"


def show(data: bytes | None) -> str:
    """Formats the first 60 bytes for a sentence, as text where possible."""
    return "None" if data is None else repr(data[:60])[1:] + ("..." if len(data) > 60 else "")
