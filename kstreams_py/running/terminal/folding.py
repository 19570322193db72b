"""Folds the log: one line when a broker goes away, one a minute, one when it is back; some of many similar lines.

Counts are exact: a later line counts the lines that are not written. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MINUTE: Final = 60.0
"""Seconds between two lines about a broker that is away."""

WINDOW: Final = 10.0
"""Seconds over which repeated lines are counted; doubles after each window with counted lines, up to MINUTE."""

WRITTEN: Final = 5
"""The lines of a kind that are written in its first window. Later windows write one. The others are counted."""

NEW_WRITTEN: Final = 5
"""The further lines that each window writes because their text is new to the kind."""

TEXTS: Final = 100
"""The most texts that are remembered of a kind; the oldest is forgotten first."""

_NUMBER: Final = re.compile(r"\d+")
"""Ignored when texts are compared: offsets, times and ids."""


class Folded(NamedTuple):
    """A line that stands for others: its logging level and its text. `what`: the kind; "" for an outage."""

    level: int
    text: str
    what: str = ""


class FoldedOutage:
    """The failed attempts of everything in one process while a broker is away."""

    def __init__(self) -> None:
        self._away: set[str] = set()
        self._since = self._said_at = 0.0
        self._attempts = self._hidden = 0
        self._level = 0
        self._newest = ""

    def failed(self, who: str, level: int, text: str, now: float) -> bool:
        """Counts a failed attempt. Returns whether to write its line: the first, and the first at a higher level."""
        if not self._away:
            self._since = self._said_at = now
            self._attempts = self._hidden = self._level = 0
        self._away.add(who)
        self._attempts += 1
        self._newest = text
        if level > self._level:
            self._level = level
            return True
        self._hidden += 1
        return False

    def answered(self, who: str, now: float) -> Folded | None:
        """Notes a success. Once all that had failed have succeeded, returns the totals if lines were hidden."""
        if who not in self._away:
            return None
        self._away.discard(who)
        return None if self._away else self._end(now, "answers again: a broker was away")

    def due(self, now: float) -> Folded | None:
        """Returns the line that is due once a minute; None if none is due."""
        if not self._away or now - self._said_at < MINUTE:
            return None
        self._said_at = now
        return Folded(self._level, f"broker away for {self._counted(now)}; {self._newest}")

    def finish(self, now: float) -> Folded | None:
        """Returns the totals at the end of the process."""
        return self._end(now, "the process ends: a broker was away") if self._away else None

    def _end(self, now: float, what: str) -> Folded | None:
        self._away.clear()
        return Folded(self._level, f"{what} for {self._counted(now)}") if self._hidden else None

    def _counted(self, now: float) -> str:
        return f"{now - self._since:.0f} s, {self._attempts:,} attempts"


@dataclass(slots=True)
class _Kind:
    since: float
    window: float = WINDOW
    left: int = WRITTEN
    """The lines that may still be written in this window."""
    new_left: int = NEW_WRITTEN
    """The further lines with a new text that may still be written in this window."""
    texts: dict[str, None] = field(default_factory=dict)
    """The texts that were written, without their numbers."""
    level: int = 0
    """The highest level of a line written in this window."""
    hidden: int = 0
    hidden_level: int = 0
    newest: str = ""

    def take(self, newest: str, level: int) -> bool:
        text = _NUMBER.sub("", newest)
        is_new = text not in self.texts and self.new_left > 0
        if not (self.left or is_new or level > self.level):
            self.hidden += 1
            self.hidden_level, self.newest = max(self.hidden_level, level), newest
            return False
        if self.left:
            self.left -= 1
        elif is_new:
            self.new_left -= 1
        self.level = max(self.level, level)
        self.texts[text] = None
        if len(self.texts) > TEXTS:
            del self.texts[next(iter(self.texts))]
        return True


@dataclass
class Repeats:
    """Folds similar lines: some are written, the others counted; the longer they go on, the fewer are written.

    In each window, the first lines with a new text, up to a limit, and the first line at a higher level are written.
    """

    _kinds: dict[str, _Kind] = field(default_factory=dict)

    def take(self, what: str, newest: str, level: int, now: float) -> bool:
        """Counts a line; returns whether to write it."""
        return self._kinds.setdefault(what, _Kind(now)).take(newest, level)

    def due(self, now: float) -> list[Folded]:
        """Returns the counts of the windows that are over. A kind without counted lines is new again."""
        over = {what: kind for what, kind in self._kinds.items() if now - kind.since >= kind.window}
        found = self._end(now, list(over))
        for what, kind in over.items():
            if kind.hidden:
                self._kinds[what] = _Kind(now, min(2 * kind.window, MINUTE), left=1, texts=kind.texts)
        return found

    def finish(self, now: float) -> list[Folded]:
        """Returns all counts, at the end of the process."""
        return self._end(now, list(self._kinds))

    def _end(self, now: float, names: list[str]) -> list[Folded]:
        ended = [(what, self._kinds.pop(what)) for what in names]
        return [
            Folded(kind.hidden_level, f"{kind.hidden:,} more {what} in {now - kind.since:.0f} s{last}", what)
            for what, kind in ended
            for last in [f", last {kind.newest}" if kind.newest else ""]
            if kind.hidden
        ]


def named(message: str, fields: dict[str, object]) -> str:
    """Returns a message with its context in front, unless the message names it itself.

    - `fields`: graph, processor, slot and partition, as far as known.
    """
    graph, processor = fields.get("graph"), fields.get("processor")
    said = processor is not None and message.startswith((f"{processor}:", f"{graph}.{processor}"))
    words = [str(graph)] if graph is not None else []
    words += [str(processor)] if processor is not None and not said else []
    words += [f"{name} {fields[name]}" for name in ("slot", "partition") if fields.get(name) is not None]
    return f"[{' '.join(words)}] {message}" if words else message
