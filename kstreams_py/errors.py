"""Every exception, drawn as a tree; leaves are named by what the caller must do.

::

    KStreamsError
    ├── UserMistake                  correct what the message names, then start again   (exit status 2)
    │   ├── SettingsError            a setting is wrong, or contradicts another
    │   ├── GraphError               the graph does not fit together, or does not import
    │   ├── TopicError               a topic is missing, or has the wrong settings
    │   ├── SchemaError              a schema does not parse, is unknown, or does not fit
    │   ├── RecordRefused            a topic refuses an output on every attempt, and no dead-letter topic is declared
    │   │   ├── RecordTooLarge       the output is larger than its topic takes
    │   │   └── RowRefused           a sink's target never takes a row: a constraint, a type
    │   └── MissingSoftware          Java, jars or an optional package is missing
    ├── Unavailable                  an external system does not answer: repair it, then start again   (exit status 3)
    │   ├── BrokerUnavailable        no broker answers, or it refuses the credentials
    │   ├── NotAuthorized            a right to a topic, a group or a transactional id is missing
    │   ├── SinkUnavailable          a sink's target cannot be written (a full disk, a closed database)
    │   ├── SourceUnavailable        a source cannot be read: a database that is away, a file without the right to read
    │   └── StoreUnavailable         a store of queued events does not answer, or cannot be written
    ├── Replaced                     another worker holds this slot: stop, and do not come back   (exit status 4)
    ├── InputLost                    records or the committed offset were deleted: decide, then reset   (exit status 5)
    │   └── RecoveryUndecidable      a journal contradicts what was committed: decide, then reset
    ├── ClientError                  a client call failed: the leaf names the next action (processing/commits/states.py)
    │   ├── Retriable                call again; where a start gives up, start again later   (exit status 3)
    │   │   ├── SinkAway             a sink's target is away: keep the rows, and write them again
    │   │   └── NotRestored          a state is not completely restored yet: poll the group, then go on restoring
    │   ├── Refused                  abort; find the step of the refused output, and write a dead letter in its place
    │   ├── Abortable                abort, go back to the committed offsets, and go on
    │   ├── OutcomeUnknown           never abort; replace the producer, then read the committed offsets
    │   ├── Fenced                   a newer epoch exists: ask the group who holds the membership
    │   └── Fatal                    this client cannot be used any more
    ├── FunctionExited               a function asked its process to end: raise Stop instead
    ├── DrainTimeout                 a worker did not stop in time
    ├── WorkerStuck                  a worker has run no turn for stuck_timeout_ms: start it again
    ├── StaleWriter                  another writer has moved the offsets in a sink's target: read them again
    ├── PipelineFailed               a Spark job failed; the output published last is unchanged
    ├── HistoryError                 a test's history cannot be judged: it is incomplete, or contradicts itself
    ├── WorkersFailed                a worker could not be kept running; the exit status is the worker's
    ├── InputEndsWorkers             workers died too often while this input was under way (handled: a dead letter)
    └── DecodeError                  these bytes are not what the serde expects (handled: a dead letter)
        └── EventFault               an event contradicts the order of its object (handled: a dead letter)

    EncodeError                      a serde cannot encode this value (handled: a dead letter)
    Stop                             raised by the user's function: commit, then stop; not an error
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns "did you mean ...?" with the known name that is most similar to `name`; "" if none is similar.

    Case does not count. `prefix`: the common prefix of all names; it does not count as similarity.
    """
    names = {each.removeprefix(prefix).lower(): each for each in known}
    close = get_close_matches(name.removeprefix(prefix).lower(), names, n=1)
    return f"did you mean {names[close[0]]}?" if close else ""


class KStreamsError(Exception):
    """Base class of the exceptions of kstreams_py, except Stop."""

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
    """A topic refuses an output on every attempt: no key for compaction, its timestamp, a policy of the broker."""


class RecordTooLarge(RecordRefused):
    """An output is larger than its topic takes."""


class RowRefused(RecordRefused):
    """A sink's target will never take a row, because of a constraint or a type. No row of its write is stored.

    `index`: the index of the row in the write.
    """

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class MissingSoftware(UserMistake):
    """Java, jars or an optional package is missing."""

    @classmethod
    def of_extra(cls, error: ModuleNotFoundError, extra: str) -> MissingSoftware:
        """Returns the exception for a package of an extra that is not installed."""
        return cls(f"{error.name} is not installed: run pip install 'kstreams_py[{extra}]'")


class Unavailable(KStreamsError):
    """An external system does not answer: repair it, then start again."""

    exit_status = 3


class BrokerUnavailable(Unavailable):
    """No broker answers at the address, or it refuses the credentials.

    `may_return`: whether another attempt may succeed without intervention; False if the credentials are refused.
    """

    def __init__(self, message: str, *, may_return: bool = True) -> None:
        super().__init__(message)
        self.may_return = may_return


class NotAuthorized(Unavailable):
    """A right to a topic, a group or a transactional id is missing; the message names it."""


class SinkUnavailable(Unavailable):
    """A sink's target cannot be written: a full disk, a closed database.

    `may_return`: whether another attempt may succeed without intervention: the target is away, or locked.
    """

    def __init__(self, message: str, *, may_return: bool = False) -> None:
        super().__init__(message)
        self.may_return = may_return


class SourceUnavailable(Unavailable):
    """A source cannot be read: a database that is away, a file without the right to read it.

    `may_return`: whether another attempt may succeed without intervention; a worker then waits, and goes on.
    """

    def __init__(self, message: str, *, may_return: bool = False) -> None:
        super().__init__(message)
        self.may_return = may_return


class StoreUnavailable(Unavailable):
    """A store of queued events does not answer, or cannot be written: a full disk, a server that is away.

    `may_return`: whether another attempt may succeed without intervention; a worker then waits, and goes on.
    """

    def __init__(self, message: str, *, may_return: bool = False) -> None:
        super().__init__(message)
        self.may_return = may_return


class Replaced(KStreamsError):
    """Another worker holds this slot: stop, and do not come back."""

    exit_status = 4


class InputLost(KStreamsError):
    """Records that were not read yet, or the group's committed offset, were deleted; nothing is skipped silently."""

    exit_status = 5


class RecoveryUndecidable(InputLost):
    """A journal is damaged, or contradicts the outputs or the committed offsets; the message lists the offsets."""


class ClientError(KStreamsError):
    """A client call failed; the subclass names what the caller must do next."""


class Retriable(ClientError):
    """Call again: nothing is lost. If this error ends the process, its limit has passed: start again later."""

    exit_status = Unavailable.exit_status


class NotRestored(Retriable):
    """A processor's state is not completely restored yet: poll the group, then go on restoring."""


class SinkAway(Retriable):
    """A sink's target cannot be used now: keep the rows, and write them again."""


class Refused(ClientError):
    """The broker refuses outputs on every attempt: abort, and write dead letters in place of their steps' outputs.

    - `mistake`: names the topic, the reason and the remedy.
    - `outputs`: all outputs of the refused batches, as they were passed to the producer, if it keeps them. The broker
      has written none of them, so the caller may write each of them again.
    """

    def __init__(self, mistake: RecordRefused, outputs: Sequence[Any] = ()) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake
        self.outputs = outputs


class Abortable(ClientError):
    """Abort the transaction, go back to the committed offsets, and go on.

    - `outputs`: the outputs that the broker has not written, as they were passed to the producer, if it keeps them. The
      caller may write them again.
    - `unanswered`: no broker answers; the caller waits for one, however many attempts fail.
    """

    def __init__(self, message: str, outputs: Sequence[Any] = (), *, unanswered: bool = False) -> None:
        super().__init__(message)
        self.outputs = outputs
        self.unanswered = unanswered


class OutcomeUnknown(ClientError):
    """The transaction may be committed or not: never abort; replace the producer and read the committed offsets."""


class Fenced(ClientError):
    """Another producer has a newer epoch of this transactional id, or another member holds this membership."""


class Fatal(ClientError):
    """This client cannot be used any more."""


class FunctionExited(KStreamsError):
    """A function (or a serde) raised SystemExit or KeyboardInterrupt. Only Stop and signals are clean ends."""


class DrainTimeout(KStreamsError):
    """A worker did not stop within drain_timeout_ms: its last steps are run again, or lost (at_most_once)."""


class WorkerStuck(KStreamsError):
    """A worker has run no turn for stuck_timeout_ms; its uncommitted steps will be run again."""


class StaleWriter(KStreamsError):
    """Another writer has moved the offsets that a sink's target stores: read them again. Nothing is stored."""


class PipelineFailed(KStreamsError):
    """A Spark job failed; the output published last is unchanged."""


class HistoryError(KStreamsError):
    """A history cannot be judged: it is incomplete, contradicts itself, or cannot be read."""


class WorkersFailed(KStreamsError):
    """A worker ended with a status that a restart cannot cure, or died too often; `status` is the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = status


class InputEndsWorkers(KStreamsError):
    """Workers died too often while this input was under way. Handled: the record becomes a dead letter."""


class DecodeError(KStreamsError):
    """These bytes are not what the serde expects."""


class EncodeError(TypeError, ValueError):
    """A serde cannot encode this value. Handled: the record becomes a dead letter."""


class EventFault(DecodeError):
    """An event contradicts its object's order, and the object is stopped. Handled: the record becomes a dead letter."""


class Stop(Exception):
    """Raised by a user's function: commit the steps before, then stop the worker without an error."""


RESTART_SECONDS: Final = 5
"""Seconds that a supervisor waits before it starts the command again."""


@dataclass(frozen=True)
class ExitStatus:
    """An exit status of `kstreams run`, and what the supervisor that started the command must do.

    - `status`: None stands for a signal (such as SIGKILL when memory runs out) and for any other status.
    - `meaning`: what has happened.
    - `restart`: whether another start can succeed without intervention.
    - `asks`: what to do before the restart, or instead of it.
    """

    status: int | None
    meaning: str
    restart: bool
    asks: str


EXIT_STATUSES: Final = (
    ExitStatus(0, "stopped by a signal, or by Stop", False, "nothing: what was processed is committed"),
    ExitStatus(
        1,
        "a function failed, got stuck or did not drain",
        True,
        f"restart after {RESTART_SECONDS} s; the log has the reason",
    ),
    ExitStatus(2, "a mistake", False, "correct what the message names, then start again"),
    ExitStatus(
        3, "an external system does not answer", True, f"restart after {RESTART_SECONDS} s, for as long as it is away"
    ),
    ExitStatus(
        4, "another worker holds the slot", False, "leave the slot to it: after a restart, the two end each other"
    ),
    ExitStatus(
        5,
        "input or committed offsets were deleted, or a journal contradicts them",
        False,
        "decide what is lost, reset, then start again",
    ),
    ExitStatus(
        130,
        "ended at once by a second signal, or by Ctrl-C before it began",
        False,
        "nothing: the next start does again what was open",
    ),
    ExitStatus(None, "a signal, or any other status", True, f"restart after {RESTART_SECONDS} s"),
)
"""The exit statuses of `kstreams run`. Its --help, README, and the printed units and manifests take them from here."""

NOT_RESTARTED: Final = tuple(each.status for each in EXIT_STATUSES if each.status and not each.restart)
"""Statuses of failures that another start cannot remedy; systemd's RestartPreventExitStatus."""
