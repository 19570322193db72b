"""Compares the results of a run with the expected ones, row by row: lost, duplicated, altered, out of order."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from kstreams_py.demo.data import OUTCOMES, Delays, ExpectedResults, Row
from kstreams_py.graph.anomalies import Kind
from kstreams_py.testing.verdicts import compare, overtaken


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table: a count, and the expected count."""

    what: str
    expected: int
    found: int

    @property
    def ok(self) -> bool:
        """Whether both counts are the same."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The results of a run, read back after the workers have ended."""

    inputs: int
    """Records in the three airports' topics."""
    merged: int
    """Records in the merged topic."""
    without_key: int
    """Outcomes whose record has no key."""
    rows: Mapping[str, Counter[Row]]
    """The number of copies of each row, by outcome."""
    deliveries: Mapping[Kind, int]
    """The number of wrong steps of all processors by kind, judged by delivery hash."""
    stored: Counter[Row]
    """Rows in SQLite."""
    delays: Delays
    """The rows of the pipeline's table."""


class Deliveries:
    """Steps by delivery hash: 8 bytes for the source (a processor and an input partition), 8 for the offset."""

    def __init__(self) -> None:
        self._expected: defaultdict[bytes, array[int]] = defaultdict(lambda: array("q"))
        self._found: defaultdict[bytes, defaultdict[Hashable, array[int]]] = defaultdict(
            lambda: defaultdict(lambda: array("q"))
        )

    def expect(self, source: bytes, offset: int) -> None:
        """Takes a record of an input, which must have had exactly one step."""
        self._expected[source].append(offset)

    def saw(self, place: Hashable, digest: bytes) -> None:
        """Takes the delivery hash of an output; `place` is its partition or table, read in order."""
        self._found[digest[:8]][place].append(int.from_bytes(digest[8:]))

    def judge(self) -> Counter[Kind]:
        """Counts steps without an output, with several, of records that do not exist, and out of order."""
        sources = self._expected.keys() | self._found.keys()
        return sum((self._judge_source(source) for source in sources), Counter[Kind]())

    def _judge_source(self, source: bytes) -> Counter[Kind]:
        """Compares counts over all places, and the order within each."""
        places = self._found[source].values()
        judged = compare(Counter(chain(*places)), Counter(self._expected[source])).totals
        judged[Kind.ORDER_BROKEN] = sum(
            1 for place in places for _ in overtaken(place, line=lambda _: source, rank=int)
        )
        return judged


def judge(expected: ExpectedResults, found: ReadBack) -> list[Check]:
    """Returns the table of checks."""
    rows = sum((compare(found.rows[name], expected.rows[name]).totals for name in OUTCOMES), Counter[Kind]())
    deliveries = Counter(found.deliveries)
    departed, cancelled, errors = (expected.rows[name].total() for name in OUTCOMES)
    stored = compare(found.stored, expected.rows["departed"]).totals
    groups, groups_found = (Counter((*key, *value) for key, value in each.delays.items()) for each in (expected, found))
    of_spark = compare(groups_found, groups).totals
    return [
        Check("departures read", expected.records, found.inputs),
        Check("merged from three airports", expected.records, found.merged),
        Check("departed", departed, found.rows["departed"].total()),
        Check("cancelled", cancelled, found.rows["cancelled"].total()),
        Check("dead letters", errors, found.rows["errors"].total()),
        Check("without a tail number, so without a key", expected.without_tail_number, found.without_key),
        Check("lost", 0, rows[Kind.LOST]),
        Check("duplicated", 0, rows[Kind.DUPLICATE]),
        Check("altered", 0, rows[Kind.FOREIGN]),
        Check("out of order", 0, deliveries[Kind.ORDER_BROKEN]),
        Check("deliveries lost, by delivery hash", 0, deliveries[Kind.LOST]),
        Check("deliveries repeated, by delivery hash", 0, deliveries[Kind.DUPLICATE] + deliveries[Kind.FOREIGN]),
        Check("rows in SQLite", departed, found.stored.total()),
        Check("rows in SQLite that differ from the file", 0, stored.total()),
        Check("rows of Spark's table (carrier and month)", len(expected.delays), len(found.delays)),
        Check("rows of Spark's table that differ from the file", 0, of_spark.total()),
    ]


def exit_status(checks: Iterable[Check]) -> int:
    """Returns 0 if all checks hold, otherwise 1."""
    return 0 if all(check.ok for check in checks) else 1
