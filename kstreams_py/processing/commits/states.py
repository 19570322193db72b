"""The states of a session, and its transitions.

::

                     begin                    commit, abort
            ┌─────── READY ◄──────────────────────────────────────────────┐
            │          ▲ renewed: a new producer of the same id            │
            ▼          │                                                   │
           OPEN ──► RETRIABLE ── the call was repeated in vain: abort ──────┤
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


class State(StrEnum):
    """The states of the diagram above; the states after a failure are in order of severity."""

    READY = "ready"
    OPEN = "open"
    RETRIABLE = "retriable"
    ABORTABLE = "abortable"
    UNKNOWN = "unknown"
    FENCED = "fenced"
    FATAL = "fatal"


FAILURES: Final = (State.RETRIABLE, State.ABORTABLE, State.UNKNOWN, State.FENCED, State.FATAL)
"""The states after a failure, from the least to the most severe."""

TRANSITIONS: Final = {
    State.READY: frozenset({State.OPEN, *FAILURES}),
    State.OPEN: frozenset({State.READY, *FAILURES}),
    State.RETRIABLE: frozenset({State.READY, State.ABORTABLE, State.UNKNOWN, State.FENCED, State.FATAL}),
    State.ABORTABLE: frozenset({State.READY, State.UNKNOWN, State.FENCED, State.FATAL}),
    State.UNKNOWN: frozenset({State.READY, State.FENCED, State.FATAL}),
    State.FENCED: frozenset({State.READY, State.FATAL}),
    State.FATAL: frozenset[State](),
}
"""The allowed transitions."""

STATE_OF: Final = {
    Retriable: State.RETRIABLE,
    Abortable: State.ABORTABLE,
    Refused: State.ABORTABLE,
    OutcomeUnknown: State.UNKNOWN,
    Fenced: State.FENCED,
    Fatal: State.FATAL,
}
"""The state that each error of a client's call leads to."""
