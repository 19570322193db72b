"""Fields of log records, by which the command's log folds records of the same kind."""

from __future__ import annotations

from typing import Any, Final

FOLD: Final = "fold"
"""The attribute of a record that may be folded: as `away`, `answers` and `repeated` return it."""


def away(who: str, **fields: object) -> dict[str, Any]:
    """Returns the fields for an attempt that failed, probably because a broker is away. `who`: what tries again."""
    return {FOLD: ("away", who), **fields}


def answers(who: str, **fields: object) -> dict[str, Any]:
    """Returns the fields for an attempt of `who` that succeeded after others had failed."""
    return {FOLD: ("answers", who), **fields}


def repeated(what: str, newest: str = "", *, first: int | None = None, **fields: object) -> dict[str, Any]:
    """Returns the fields for an event that may occur many times a second.

    - `what`: the kind of the event, in the plural and with its owner, as in "failed steps of processor price". Each
      kind is folded on its own.
    - `newest`: what is shown of the latest event, in a few words; "" if all events are the same.
    - `first`: how many are written before the others are counted; None for a few.
    """
    return {FOLD: ("repeated", what, newest, *([] if first is None else [first])), **fields}
