"""Retry: which exceptions repeat a step, how often and after what waits, and what follows the last attempt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_py.errors import DecodeError, FunctionExited, GraphError, Stop, UserMistake

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h)"
_BACKOFF: Final = re.compile(rf"{_DURATION}\.\.{_DURATION}")

_NEVER: Final = (Stop, MemoryError, FunctionExited, UserMistake, DecodeError)
"""Errors after which another attempt cannot succeed, or must not be made."""

_DOUBLINGS_MAX: Final = 60
"""2 to this power exceeds every possible longest wait; much larger powers do not fit into a float."""


class Then(StrEnum):
    """The action after the last failed attempt."""

    DEAD_LETTER = "dead_letter"
    STOP = "stop"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Retry:
    """Repeats a step whose function (or serde) raised, while the partition of its records waits.

    - `on`: exception classes, one or several. `stop_on` takes precedence, and a step that raised Stop is never
      repeated.
    - `attempts`: the number of calls of the function, including the first one; 2 or more.
    - `backoff`: the shortest and the longest wait between two attempts, as "200ms..30s", in ms, s, m or h. Each wait is
      twice as long as the one before, less a random part of up to half.
    - `then`: what follows the last attempt. "dead_letter" goes on with the next record; "stop" stops the worker with
      the exception, and its next start reads the record again; "pause" tries again after every longest wait, with a
      warning, until an attempt succeeds or the worker is stopped.

    Raises GraphError if an argument is not usable.
    """

    on: type[Exception] | Iterable[type[Exception]] = (ConnectionError, TimeoutError)
    attempts: int = 8
    backoff: str = "200ms..30s"
    then: Then | str = Then.DEAD_LETTER
    classes: tuple[type[Exception], ...] = field(init=False, repr=False)
    """The classes of `on`."""
    shortest: float = field(init=False, repr=False)
    """The shortest wait, in seconds."""
    longest: float = field(init=False, repr=False)
    """The longest wait, in seconds."""

    def __post_init__(self) -> None:
        shortest, longest = _bounds(self.backoff)
        for name, value in (
            ("classes", _classes(self.on)),
            ("attempts", _checked_attempts(self.attempts)),
            ("then", _checked_then(self.then)),
            ("shortest", shortest),
            ("longest", longest),
        ):
            object.__setattr__(self, name, value)

    def covers(self, error: BaseException) -> bool:
        """Returns whether another attempt may succeed: it cannot after a mistake in the program or with wrong bytes."""
        return isinstance(error, self.classes) and not isinstance(error, _NEVER)

    def is_last(self, attempts: int) -> bool:
        """Returns whether no attempt follows the one with this number."""
        return attempts >= self.attempts and self.then is not Then.PAUSE

    def wait(self, failures: int, chance: float) -> float:
        """Returns the seconds until the next attempt, after 1 or more `failures`; `chance` is between 0 and 1."""
        most = min(self.longest, self.shortest * 2.0 ** min(failures, _DOUBLINGS_MAX))
        least = max(self.shortest, most / 2)
        return least + (most - least) * chance

    def __str__(self) -> str:
        names = ", ".join(each.__name__ for each in self.classes)
        return f"on {names}, {self.attempts} attempts, {self.backoff} apart, then {self.then}"


def _classes(on: object) -> tuple[type[Exception], ...]:
    classes = tuple(on) if isinstance(on, Iterable) else (on,)
    for each in classes:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise GraphError(f"Retry: on has {each!r}: give subclasses of Exception")
        if issubclass(each, Stop):
            raise GraphError("Retry: on has Stop, by which a function stops its worker on purpose: leave it out")
    if not classes:
        raise GraphError("Retry: on has no class: name one, or leave retry= out")
    return classes


def _checked_attempts(attempts: object) -> int:
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 2:
        raise GraphError(f"Retry: attempts is {attempts!r}: give 2 or more: the first call counts")
    return attempts


def _checked_then(then: str) -> Then:
    try:
        return Then(then)
    except ValueError:
        raise GraphError(f"Retry: then {then!r} is not known: choose {', '.join(Then)}") from None


def _bounds(backoff: object) -> tuple[float, float]:
    found = _BACKOFF.fullmatch(backoff) if isinstance(backoff, str) else None
    if found is None:
        raise GraphError(
            f"Retry: backoff {backoff!r} is not a shortest and a longest wait: write them as '200ms..30s', "
            "in ms, s, m or h"
        )
    shortest, longest = float(found[1]) * _UNITS[found[2]], float(found[3]) * _UNITS[found[4]]
    if not 0 < shortest <= longest:
        raise GraphError(
            f"Retry: backoff {backoff!r} is not from a wait above 0 to a longer one: give the shorter first"
        )
    return shortest, longest
