"""Every exception, drawn as a tree; leaves are named by what the caller must do.

::

    KStreamsError
    ├── UserMistake                  correct what the message names, then start again   (exit status 2)
    │   ├── SettingsError            a setting is wrong, or contradicts another
    │   ├── GraphError               the graph does not fit together, or does not import
    │   ├── TopicError               a topic is missing, or has the wrong settings
    │   ├── SchemaError              a schema does not parse, is unknown, or does not fit
    │   ├── RecordRefused            a topic refuses an output on every attempt, and no dead-letter topic is declared
    │   │   └── RecordTooLarge       the output is larger than its topic takes
    │   └── MissingSoftware          Java, jars or an optional package are not there
    ├── Unavailable                  something outside does not answer: mend it, then start again   (exit status 3)
    │   ├── BrokerUnavailable        no broker, or it refuses the credentials
    │   ├── NotAuthorized            a right to a topic, a group or a transactional id is missing
    │   └── SinkUnavailable          a sink's target cannot be written (a full disk, a closed database)
    ├── Replaced                     another worker holds this slot: stop, and do not come back   (exit status 4)
    ├── InputLost                    records were deleted before they were read: decide, then reset   (exit status 5)
    ├── LogError                     what a transaction's caller must do next; see engine/transaction.py
    │   ├── Retriable                call again
    │   ├── Refused                  abort; find the step of the refused output, and write a dead letter in its place
    │   ├── Abortable                abort, go back to the committed positions, go on
    │   ├── OutcomeUnknown           never abort; a new producer, then ask what was committed
    │   ├── Fenced                   a newer epoch exists: ask the group who holds the seat
    │   └── Fatal                    this client is of no further use
    ├── DrainTimeout                 a loop did not end in time: what it had not committed is done again
    ├── WorkerStuck              a loop has not turned for stuck_timeout_ms: start it again
    ├── HistoryError             a test's history cannot be judged: it says too little, or contradicts itself
    ├── WorkersFailed                a worker could not be kept running; ends with that worker's status
    └── DecodeError                  these bytes are not what the serde expects (handled: a dead letter)

    Stop                             raised by the user's function: drain and stop; not an error
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class KStreamsError(Exception):
    """Whatever kstreams_py raises on purpose."""

    exit_status = 1


class UserMistake(KStreamsError):
    """Correct what the message names, then start again."""

    exit_status = 2


class SettingsError(UserMistake):
    """A setting is wrong, or contradicts another."""


class GraphError(UserMistake):
    """The graph does not fit together, or its module does not import."""


class TopicError(UserMistake):
    """A topic is missing, or has the wrong settings."""


class SchemaError(UserMistake):
    """A schema does not parse, is unknown, or does not fit."""


class RecordRefused(UserMistake):
    """A topic refuses an output on every attempt: no key for compaction, a timestamp, a broker's policy."""


class RecordTooLarge(RecordRefused):
    """An output is larger than its topic takes."""


class MissingSoftware(UserMistake):
    """Java, jars or an optional package are not there."""


class Unavailable(KStreamsError):
    """Something outside does not answer: mend it, then start again."""

    exit_status = 3


class BrokerUnavailable(Unavailable):
    """No broker answers at the address, or it refuses the credentials."""


class NotAuthorized(Unavailable):
    """A right to a topic, a group or a transactional id is missing; the message names it."""


class SinkUnavailable(Unavailable):
    """A sink's target cannot be written: a full disk, a closed database."""


class Replaced(KStreamsError):
    """Another worker holds this slot: stop, and do not come back."""

    exit_status = 4


class InputLost(KStreamsError):
    """Records were deleted before they were read; nothing is skipped silently."""

    exit_status = 5


class LogError(KStreamsError):
    """A client call failed; the leaf says what its caller must do next."""


class Retriable(LogError):
    """Call again: nothing has happened yet."""


class Refused(LogError):
    """The broker refuses outputs on every attempt: abort, and write dead letters in place of their steps' outputs.

    `mistake` says which topic and why. `outputs` are those that failed, as they were written: without transactions no
    other record of theirs was written, and the caller may write each of them again.
    """

    def __init__(self, mistake: RecordRefused, outputs: Sequence[Any] = ()) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake
        self.outputs = outputs


class Abortable(LogError):
    """Abort the transaction, go back to the committed positions, go on.

    `outputs` are those that the broker did not take, as they were written, where the caller may write them again.
    """

    def __init__(self, message: str, outputs: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outputs = outputs


class OutcomeUnknown(LogError):
    """The transaction may have been committed or not: never abort, ask with a new producer."""


class Fenced(LogError):
    """A newer epoch of this transactional id or a newer holder of this seat exists."""


class Fatal(LogError):
    """This client is of no further use."""


class DrainTimeout(KStreamsError):
    """Some loop did not end in time; what it had not committed will be done again."""


class WorkerStuck(KStreamsError):
    """A loop has not turned for stuck_timeout_ms; what it had not committed will be done again."""


class HistoryError(KStreamsError):
    """A history that cannot be judged: it says too little, contradicts itself, or cannot be read."""


class WorkersFailed(KStreamsError):
    """A worker ended with a status that a restart cannot mend, or died too often."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = status


class DecodeError(KStreamsError):
    """These bytes are not what the serde expects."""


class Stop(Exception):
    """Raised by a user's function: commit what is done, then stop the worker without an error."""
