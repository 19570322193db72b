"""What a run came to, against what it should have: lost, duplicated, altered, out of order, row by row."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from kstreams_py.demo.data import OUTCOMES, Delays, Expected, Row

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table: a count, and what it should be."""

    what: str
    expected: int
    found: int

    @property
    def ok(self) -> bool:
        """Whether both are the same."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Difference:
    """How a multiset differs from what it should be: missing, there too often, or never expected there."""

    lost: int = 0
    duplicated: int = 0
    alien: int = 0

    def __add__(self, other: Difference) -> Difference:
        return Difference(self.lost + other.lost, self.duplicated + other.duplicated, self.alien + other.alien)

    @property
    def total(self) -> int:
        """All that is wrong."""
        return self.lost + self.duplicated + self.alien


@dataclass(frozen=True, slots=True)
class Found:
    """What was read back once the workers had ended."""

    inputs: int
    """Records in the three airports' topics."""
    merged: int
    """Records in the merged topic."""
    without_key: int
    """Outcomes whose record has no key."""
    rows: Mapping[str, Counter[Row]]
    """Per outcome, each row that was found, and how often."""
    deliveries: Difference
    """Steps of all processors, by delivery hash: without a trace, with two, or of records that are not there."""
    disorder: int
    """Records that came out before an earlier one of the same source."""
    stored: Counter[Row]
    """Rows in SQLite."""
    delays: Delays
    """What Spark made of the departed flights."""


def difference(expected: Counter[T], found: Counter[T]) -> Difference:
    """Both as multisets."""
    lost = expected - found
    extra = found - expected
    alien = sum(n for item, n in extra.items() if item not in expected)
    return Difference(lost.total(), extra.total() - alien, alien)


class Deliveries:
    """Steps by delivery hash: 8 bytes that name their source (a processor's input partition), 8 of the offset there."""

    def __init__(self) -> None:
        self._expected: defaultdict[bytes, array[int]] = defaultdict(lambda: array("q"))
        self._found: defaultdict[bytes, defaultdict[Hashable, array[int]]] = defaultdict(
            lambda: defaultdict(lambda: array("q"))
        )

    def expect(self, source: bytes, offset: int) -> None:
        """A record was read, and a step must have come of it."""
        self._expected[source].append(offset)

    def saw(self, place: Hashable, digest: bytes) -> None:
        """A step left something in this place, after what it left there before."""
        self._found[digest[:8]][place].append(int.from_bytes(digest[8:]))

    def difference(self) -> Difference:
        """Steps without a trace, with two, or of records that are not there."""
        sources = self._expected.keys() | self._found.keys()
        return sum((self._of_source(source) for source in sources), Difference())

    def _of_source(self, source: bytes) -> Difference:
        found = Counter[int]()
        for offsets in self._found[source].values():
            found.update(offsets)
        return difference(Counter(self._expected[source]), found)

    def disorder(self) -> int:
        """Traces that come after that of a later record of the same source, in the same place."""
        return sum(
            later < earlier
            for places in self._found.values()
            for offsets in places.values()
            for earlier, later in pairwise(offsets)
        )


def judge(expected: Expected, found: Found) -> list[Check]:
    """The table."""
    rows = sum((difference(expected.rows[name], found.rows[name]) for name in OUTCOMES), Difference())
    departed, cancelled, errors = (expected.rows[name].total() for name in OUTCOMES)
    stored = difference(expected.rows["departed"], found.stored)
    groups = Counter((*key, *value) for key, value in expected.delays.items())
    of_spark = difference(groups, Counter((*key, *value) for key, value in found.delays.items()))
    return [
        Check("departures read", expected.records, found.inputs),
        Check("merged from three airports", expected.records, found.merged),
        Check("departed", departed, found.rows["departed"].total()),
        Check("cancelled", cancelled, found.rows["cancelled"].total()),
        Check("dead letters", errors, found.rows["errors"].total()),
        Check("without a tail number, so without a key", expected.without_tail_number, found.without_key),
        Check("lost", 0, rows.lost),
        Check("duplicated", 0, rows.duplicated),
        Check("altered", 0, rows.alien),
        Check("out of order", 0, found.disorder),
        Check("deliveries lost, by delivery hash", 0, found.deliveries.lost),
        Check("deliveries repeated, by delivery hash", 0, found.deliveries.duplicated + found.deliveries.alien),
        Check("rows in SQLite", departed, found.stored.total()),
        Check("rows in SQLite that differ from the file", 0, stored.total),
        Check("rows of Spark's table (carrier and month)", len(expected.delays), len(found.delays)),
        Check("rows of Spark's table that differ from the file", 0, of_spark.total),
    ]


def exit_status(checks: Iterable[Check]) -> int:
    """0 if all of them hold, else 1."""
    return 0 if all(check.ok for check in checks) else 1
