"""Fields of log records: what they are about, and how the command's log folds many of a kind."""

from __future__ import annotations

from typing import Any, Final

FOLD: Final = "fold"
"""The attribute of a record that may be folded: ("away", who), ("answers", who) or ("repeated", what, newest)."""


def away(who: str, **fields: object) -> dict[str, Any]:
    """Of an attempt that failed, probably because a broker is away; `who` is what tries again."""
    return {FOLD: ("away", who), **fields}


def answers(who: str, **fields: object) -> dict[str, Any]:
    """Of an attempt that succeeded after others of `who` have failed."""
    return {FOLD: ("answers", who), **fields}


def repeated(what: str, newest: str = "", **fields: object) -> dict[str, Any]:
    """Of what may come many times a second.

    - `what`: names it in the plural, and whose it is, as in "dead letters of processor price": each such name is folded
      for itself.
    - `newest`: what is shown of the last one, in a few words; "" if all are the same.
    """
    return {FOLD: ("repeated", what, newest), **fields}
