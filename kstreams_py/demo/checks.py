"""Reads the results of a run, and compares them with the expected ones: lost, duplicated, altered, out of order."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from kstreams_py.demo.data import OUTCOMES, TAILNUM, Delays, ExpectedResults, Row
from kstreams_py.errors import Unavailable
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.anomalies import Kind
from kstreams_py.graph.hashes import hash_prefix
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.processing.dead_letters.letters import Letter, parse
from kstreams_py.records import HASH_HEADER, Message, TopicPartition
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
    """The number of wrong steps of all processors by kind, found by their delivery hashes."""
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
        """Takes a record of an input; it must have exactly one step."""
        self._expected[source].append(offset)

    def saw(self, place: Hashable, digest: bytes) -> None:
        """Takes the delivery hash of an output; `place` is its partition or table, read in order."""
        self._found[digest[:8]][place].append(int.from_bytes(digest[8:]))

    def judge(self) -> Counter[Kind]:
        """Counts the steps that have no output, have several, belong to no existing record, or are out of order."""
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


QUIET_LIMIT = 30
"""Reading fails after this many seconds without a record before the end of a topic."""


class Results:
    """Collects the results of a run, record by record."""

    def __init__(self, graph: Graph, topics: Mapping[str, TopicInfo], registry: Registry, known: Iterable[Row]) -> None:
        self.counts: Counter[str] = Counter()
        self.rows: dict[str, Counter[Row]] = {outcome: Counter() for outcome in OUTCOMES}
        self.stored: Counter[Row] = Counter()
        self.without_key = 0
        self.letters: list[Letter] = []
        self.deliveries = Deliveries()
        self._known = {row: row for row in known}  # equal rows are kept once
        self._topics = topics
        self._outcomes = {f"{graph.name}.{outcome}": outcome for outcome in OUTCOMES}
        self._flight = self._decoder(graph, registry, graph.name)
        self._dead_letter = self._decoder(graph, registry, f"{graph.name}.errors")
        self._readers = {
            topic.name: group_of(graph.name, processor.id)
            for processor in graph.processors
            for topic in processor.inputs
        }
        self._source = cache(self._source_of)

    @staticmethod
    def _decoder(graph: Graph, registry: Registry, topic: str) -> Callable[[bytes], Any]:
        return bind(graph.topics[topic].value, registry, f"{topic}-value").deserialize

    def _source_of(self, topic: str, partition: int) -> bytes:
        return hash_prefix(self._readers[topic], topic, self._topics[topic].topic_id, partition)

    def read(self, cluster: Cluster) -> None:
        """Reads every committed record of every topic. Raises Unavailable if some cannot be read."""
        partitions = {TopicPartition(name, p) for name, info in self._topics.items() for p in range(info.partitions)}
        ends = cluster.ends(partitions)
        consumer = cluster.consumer("flights.demo.results", "flights.demo.results")
        consumer.assign(dict.fromkeys(partitions, 0))
        quiet = 0
        while any(consumer.ends.get(tp, -1) < end for tp, end in ends.items()):
            records = consumer.consume(10_000, 1.0)
            quiet = 0 if records else quiet + 1
            if quiet > QUIET_LIMIT:
                raise Unavailable("the topics could not be read to their ends: check whether the broker still runs")
            for m in records:
                self._take(m)
        consumer.close()

    def _take(self, m: Message) -> None:
        topic, partition = m.topic(), m.partition()
        self.counts[topic] += 1
        if topic in self._readers:
            self.deliveries.expect(self._source(topic, partition), m.offset())
        headers = dict(m.headers() or ())
        if HASH_HEADER in headers:
            self.deliveries.saw((topic, partition), headers[HASH_HEADER] or b"")
        if topic in self._outcomes:
            self._take_outcome(self._outcomes[topic], m)

    def _take_outcome(self, outcome: str, m: Message) -> None:
        key, value = m.key(), m.value() or b""
        if outcome == "errors":
            letter = parse(m, self._dead_letter)
            self.letters.append(letter)
            value = letter.inputs[0].data or b""
        self.without_key += key is None
        row = self._row(self._flight(value).values())
        if row[TAILNUM] != (None if key is None else key.decode()):
            row = (key, *row)  # the key is wrong: the file has no such row, so it counts as altered
        self.rows[outcome][row] += 1

    def _row(self, values: Iterable[Any]) -> Row:
        row = tuple(values)
        return self._known.get(row, row)

    def take_stored(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Takes the rows of the sink's table: delivery hash, then the values."""
        for digest, *values in rows:
            self.deliveries.saw("table", digest)
            self.stored[self._row(values)] += 1

    def found(self, inputs: Iterable[str], merged: str, delays: Delays) -> ReadBack:
        """Returns the collected results for the checks.

        - `inputs`: names of the airports' topics.
        - `merged`: name of the merged topic.
        - `delays`: the rows of the pipeline's table.
        """
        return ReadBack(
            inputs=sum(self.counts[topic] for topic in inputs),
            merged=self.counts[merged],
            without_key=self.without_key,
            rows=self.rows,
            deliveries=self.deliveries.judge(),
            stored=self.stored,
            delays=delays,
        )
