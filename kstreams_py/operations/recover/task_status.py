"""Where a task stands and what its next start does, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kstreams_py.kafka.commands import kafka_command
from kstreams_py.printable import join_lines
from kstreams_py.processing.journal.recovery import show
from kstreams_py.records import Positions, TopicPartition

_WORD: Final = re.compile(r"--to-offset [^\s`]+|[^\s`]+")
"""A word of a message, or an option with its value."""


class JournalTail(NamedTuple):
    """The newest committed record of a task in its journal: its type, "" if it has none, and its offset."""

    type: str
    offset: int


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of a task: of one processor on one partition number.

    - `committed`: the committed offset by input; inputs without one are left out.
    - `lag`: the number of unprocessed committed records, by offsets; None if an input has no committed offset.
    - `holder`: the member that has the task; "" if there is none.
    - `hidden`: the open transactions on its inputs, its journal and the outputs of its processor.
    - `next`: what the next start does; with `refusal`, once that is corrected.
    - `tail`: the end of its journal; None if it is empty or there is none.
    - `branch`: the branch that the next start takes by its journal of deliveries; "" without a journal, and if the
      start is refused or cannot be decided yet.
    - `is_refused`: the next start ends with an error.
    - `refusal`: the error that ends the next start of each worker of the graph, such as a missing topic; "" if none.
    - `new_name_of`: if its processor begins as a new one, the undeclared processors whose new name it may be.
    - `begins_empty`: its state begins empty although it has read records.
    - `growth`: what follows for its state from partitions that were added to an input; "" if none were.
    - `away`: why its target is away, for which the next start waits; "" if it is not.
    """

    processor: str
    partition: int
    committed: Mapping[str, int]
    lag: int | None
    holder: str
    hidden: tuple[str, ...]
    next: str
    tail: JournalTail | None = None
    branch: str = ""
    is_refused: bool = False
    refusal: str = ""
    new_name_of: tuple[str, ...] = ()
    begins_empty: bool = False
    growth: str = ""
    away: str = ""

    @property
    def ends(self) -> str:
        """What the next start does if nothing is corrected."""
        return self.refusal or self.next


@dataclass(frozen=True, slots=True)
class UndeclaredProcessor:
    """A processor that has begun to read inputs, and that the graph no longer declares.

    - `committed`: the committed offsets of its group.
    - `members`: the members of its group.
    - `move`: the commands that give these offsets to each processor that may be its new name; in words if none may.
    - `forget`: the command that deletes what is kept of it.
    - `unseen`: why its offsets and members cannot be read; "" if they were.
    - `heirs`: the processors that may be its new name, if each of them has these offsets, or later ones.
    """

    processor: str
    group: str
    committed: Positions
    members: tuple[str, ...]
    move: str
    forget: str
    unseen: str = ""
    heirs: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """What to do, as text."""
        stop = "stop its workers, then " if self.members else ""
        if self.heirs:
            has = "has" if len(self.heirs) == 1 else "have"
            return (
                f"{', '.join(self.heirs)} {has} its positions, or later ones: once you will not go back to it, {stop}"
                f"forget it (`{self.forget}`)"
            )
        return (
            f"if it has a new name, give it the id {self.processor!r} back, or {stop}give the new one its positions "
            f"({self.move}); if it is gone, {stop}forget it (`{self.forget}`)"
        )


def reset_command(servers: str, group: str, tp: TopicPartition, offset: int) -> str:
    """Returns the command that sets an offset of a group of tasks over channels."""
    partition, at = ("--topic", f"{tp.topic}:{tp.partition}"), ("--to-offset", str(offset))
    return kafka_command(servers, "consumer-groups", "--reset-offsets", "--group", group, *partition, *at, "--execute")


def describe(status: TaskStatus, before: TaskStatus | None = None) -> str:
    """Returns the status as lines of text.

    - `before`: a task for which `is_alike` holds and whose refusal was shown; only differing numbers are shown then.
    """
    lag = "" if status.lag is None else f", lag {status.lag:,}"
    held = f"held by {status.holder}" if status.holder else "held by no member"
    head = f"{status.processor}[{status.partition}]: committed {show(status.committed)}{lag}, {held}"
    tail = status.tail
    journal = (
        [] if tail is None else [f"  newest record of its journal: {tail.type or 'no type'}, offset {tail.offset}"]
    )
    start = "next start, once that is corrected" if status.refusal else "next start"
    shown = status.next if before is None else _like(status, before)
    planned = [] if status.next == status.refusal else [f"  {start}: {shown}"]
    return join_lines([head, *(f"  {each}" for each in status.hidden), *journal, *planned])


def is_alike(status: TaskStatus, other: TaskStatus) -> bool:
    """Returns whether two tasks of a processor are refused by messages that differ only in their numbers."""
    same = status.processor == other.processor and status.is_refused and other.is_refused
    return same and re.sub(r"\d+", "0", status.next) == re.sub(r"\d+", "0", other.next)


def _like(status: TaskStatus, before: TaskStatus) -> str:
    pairs = zip(_WORD.findall(status.next), _WORD.findall(before.next), strict=True)
    others = ", ".join(dict.fromkeys(mine.strip("(`,:") for mine, first in pairs if mine != first))
    return f"ends as that of {before.processor}[{before.partition}]{f', with {others}' if others else ''}"


def describe_undeclared(found: UndeclaredProcessor) -> str:
    """Returns a processor that is no longer declared as lines of text, with what to do."""
    committed = show({str(tp): at for tp, at in sorted(found.committed.items())})
    held = ", ".join(found.members) or "no member"
    seen = f"its group cannot be read: {found.unseen}" if found.unseen else f"committed {committed}, held by {held}"
    head = f"{found.processor}: not declared, {seen}"
    return join_lines([head, f"  {found.remedy}"])


def undeclared_as_fields(found: UndeclaredProcessor) -> dict[str, Any]:
    """Returns a processor that is no longer declared as fields for JSON."""
    return {
        "undeclared": found.processor,
        "group": found.group,
        "committed": {str(tp): at for tp, at in sorted(found.committed.items())},
        "members": list(found.members),
        "unseen": found.unseen,
    }


def as_fields(status: TaskStatus) -> dict[str, Any]:
    """Returns the status as fields for JSON."""
    return {
        "processor": status.processor,
        "partition": status.partition,
        "committed": dict(status.committed),
        "lag": status.lag,
        "holder": status.holder,
        "hidden": list(status.hidden),
        "tail": None if status.tail is None else status.tail._asdict(),
        "branch": status.branch,
        "next": status.ends,
        **({"once_corrected": status.next} if status.refusal else {}),
        "refused": status.is_refused,
    }
