"""The states of a session, and its transitions.

::

                     begin                    commit, abort
            ┌─────── READY ◄──────────────────────────────────────────────┐
            │          ▲ renewed: a new producer of the same id            │
            ▼          │                                                   │
           OPEN ──► RETRIABLE ── each repeat failed: abort ────────────────┤
            ├────────► ABORTABLE ── abort ─────────────────────────────────┘
            ├────────► UNKNOWN ──── never abort: ask the group for the membership, renew, then read what was committed
            ├────────► FENCED ───── ask the group: if the membership is ours, renew; if not, FATAL
            └────────► FATAL ────── this worker ends

A commit is never RETRIABLE: without an answer its outcome is UNKNOWN. `Attempts.call` repeats the other calls.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kstreams_py.errors import Abortable, Fatal, Fenced, OutcomeUnknown, Refused, Retriable


class SessionState(StrEnum):
    """The states of the diagram above; the states after a failure are in order of severity."""

    READY = "ready"
    OPEN = "open"
    RETRIABLE = "retriable"
    ABORTABLE = "abortable"
    UNKNOWN = "unknown"
    FENCED = "fenced"
    FATAL = "fatal"


FAILURES: Final = (
    SessionState.RETRIABLE,
    SessionState.ABORTABLE,
    SessionState.UNKNOWN,
    SessionState.FENCED,
    SessionState.FATAL,
)
"""The states after a failure, from the least to the most severe."""

TRANSITIONS: Final = {
    SessionState.READY: frozenset({SessionState.OPEN, *FAILURES}),
    SessionState.OPEN: frozenset({SessionState.READY, *FAILURES}),
    SessionState.RETRIABLE: frozenset(
        {SessionState.READY, SessionState.ABORTABLE, SessionState.UNKNOWN, SessionState.FENCED, SessionState.FATAL}
    ),
    SessionState.ABORTABLE: frozenset(
        {SessionState.READY, SessionState.UNKNOWN, SessionState.FENCED, SessionState.FATAL}
    ),
    SessionState.UNKNOWN: frozenset({SessionState.READY, SessionState.FENCED, SessionState.FATAL}),
    SessionState.FENCED: frozenset({SessionState.READY, SessionState.FATAL}),
    SessionState.FATAL: frozenset[SessionState](),
}
"""The allowed transitions."""

STATE_OF: Final = {
    Retriable: SessionState.RETRIABLE,
    Abortable: SessionState.ABORTABLE,
    Refused: SessionState.ABORTABLE,
    OutcomeUnknown: SessionState.UNKNOWN,
    Fenced: SessionState.FENCED,
    Fatal: SessionState.FATAL,
}
"""The state to which each error of a client's call leads."""
