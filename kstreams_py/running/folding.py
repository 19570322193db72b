"""How the log is folded: one line when a broker goes away, one each minute, one at the end; of many alike, some.

Counts are exact: what is not written is counted by a later line. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

MINUTE: Final = 60.0
"""Seconds between two lines about a broker that is away."""

WINDOW: Final = 10.0
"""Seconds over which lines that repeat are counted."""

WRITTEN: Final = 5
"""Lines of a kind that are written in each WINDOW; the others are counted."""


class Folded(NamedTuple):
    """A line that stands for others: its level as in logging, and its text. `what` is "" for an outage."""

    level: int
    text: str
    what: str = ""


class Outage:
    """The attempts that failed while a broker is away, of all that try in one process."""

    def __init__(self) -> None:
        self._away: set[str] = set()
        self._since = self._said_at = 0.0
        self._attempts = self._hidden = 0
        self._level = 0
        self._newest = ""

    def failed(self, who: str, level: int, text: str, now: float) -> bool:
        """Counts a failed attempt. Returns whether its line is written: the first, and the first at a higher level."""
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
        """Notes a success. Returns the totals, if lines were hidden, once all that had failed have succeeded."""
        if who not in self._away:
            return None
        self._away.discard(who)
        return None if self._away else self._end(now, "answers again: a broker was away")

    def due(self, now: float) -> Folded | None:
        """Returns the line of each minute."""
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
    level: int
    since: float
    written: int = 0
    hidden: int = 0
    newest: str = ""


@dataclass
class Repeats:
    """Lines of which many are alike: WRITTEN of a kind are written in each WINDOW, the others counted."""

    _kinds: dict[str, _Kind] = field(default_factory=dict)

    def take(self, what: str, newest: str, level: int, now: float) -> bool:
        """Counts a line; returns whether it is written."""
        kind = self._kinds.setdefault(what, _Kind(level, now))
        if kind.written < WRITTEN:
            kind.written += 1
            return True
        kind.level, kind.newest = max(kind.level, level), newest
        kind.hidden += 1
        return False

    def due(self, now: float) -> list[Folded]:
        """Returns the counts of the windows that are over."""
        return self._end(now, [what for what, kind in self._kinds.items() if now - kind.since >= WINDOW])

    def finish(self, now: float) -> list[Folded]:
        """Returns all counts, at the end of the process."""
        return self._end(now, list(self._kinds))

    def _end(self, now: float, names: list[str]) -> list[Folded]:
        ended = [(what, self._kinds.pop(what)) for what in names]
        return [
            Folded(kind.level, f"{kind.hidden:,} more {what} in {now - kind.since:.0f} s, last {kind.newest}", what)
            for what, kind in ended
            if kind.hidden
        ]


def named(message: str, fields: dict[str, object]) -> str:
    """A message with what it is about in front, as far as it does not say so itself.

    `fields`: graph, processor, slot and partition, those that are known.
    """
    graph, processor = fields.get("graph"), fields.get("processor")
    said = processor is not None and message.startswith((f"{processor}:", f"{graph}.{processor}"))
    words = [str(graph)] if graph is not None else []
    words += [str(processor)] if processor is not None and not said else []
    words += [f"{name} {fields[name]}" for name in ("slot", "partition") if fields.get(name) is not None]
    return f"[{' '.join(words)}] {message}" if words else message
