"""The two comparisons of every verifier: of counts and of order.

The checker of histories identifies a record by its contents, the flights demo by its delivery hash, the benchmark by
the number in it, and the simulation by the records that its step has read. For all of them, this module decides whether
a record is lost, duplicate, foreign or out of order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kstreams_py.graph.anomalies import Kind
from kstreams_py.testing.events import HistoryEvent

T = TypeVar("T", bound=Hashable)
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Comparison(Generic[T]):
    """The difference between found and expected items: the number of missing or surplus copies of each."""

    lost: Counter[T]
    duplicate: Counter[T]
    foreign: Counter[T]

    def by_kind(self) -> Iterator[tuple[Kind, Counter[T]]]:
        """Yields each kind that has items, with its items."""
        for kind, items in ((Kind.LOST, self.lost), (Kind.DUPLICATE, self.duplicate), (Kind.FOREIGN, self.foreign)):
            if items:
                yield kind, items

    @property
    def totals(self) -> Counter[Kind]:
        """The number of missing or surplus copies by kind; kinds without any are left out."""
        return Counter({kind: items.total() for kind, items in self.by_kind()})


def compare(found: Mapping[T, int], least: Mapping[T, int], most: Mapping[T, float] | None = None) -> Comparison[T]:
    """Compares the number of copies of each item.

    - `found`: how many copies there are.
    - `least`: how many there must be.
    - `most`: how many there may be; None for as many as there must be.

    Equal items are counted together, because it is not known which of them is missing.
    """
    allowed: Mapping[T, float] = least if most is None else most
    lost, duplicate, foreign = Counter[T](), Counter[T](), Counter[T]()
    for item, due in least.items():
        if (number := found.get(item, 0)) < due:
            lost[item] = due - number
    for item, number in found.items():
        limit = allowed.get(item, 0)
        if number > limit:
            (duplicate if limit else foreign)[item] = number - int(limit)
    return Comparison(lost, duplicate, foreign)


def overtaken(found: Iterable[U], line: Callable[[U], Hashable], rank: Callable[[U], Any]) -> Iterator[tuple[U, U]]:
    """Yields pairs: an item, and a later item of the same line with a lower rank.

    - `found`: items in the order of the topic.
    - `line`: the group in which items have an order.
    - `rank`: the place of an item in its line; copies have the same rank.
    """
    highest: dict[Hashable, U] = {}
    for item in found:
        key = line(item)
        before = highest.setdefault(key, item)
        if rank(item) < rank(before):
            yield before, item
        else:
            highest[key] = item


def overtaken_in_every_copy(
    found: Iterable[U], line: Callable[[U], Hashable], rank: Callable[[U], Any]
) -> Iterator[tuple[U, U]]:
    """Like `overtaken`, for items that may be repeated: a line is in order if one copy of each of its items is.

    With at least once, a failed output is written again together with the outputs beside it, which are there already.
    """
    lines: dict[Hashable, list[U]] = {}
    for item in found:
        lines.setdefault(line(item), []).append(item)
    for items in lines.values():
        copies: dict[Any, list[int]] = {}
        for place, item in enumerate(items):
            copies.setdefault(rank(item), []).append(place)
        at = -1
        for each in sorted(copies):
            after = next((place for place in copies[each] if place > at), None)
            if after is None:
                yield items[copies[each][-1]], items[at]
            else:
                at = after


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A violation: its kind, a sentence, and the events that show it."""

    kind: Kind
    sentence: str
    evidence: tuple[HistoryEvent, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"
