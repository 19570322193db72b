"""Reads everything back once the workers have ended: every topic from start to end, and the table in SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from kstreams_py.delivery import Log, TopicInfo, hash_prefix
from kstreams_py.demo.checks import Deliveries, Found
from kstreams_py.demo.data import OUTCOMES, TAILNUM, Delays, Row
from kstreams_py.errors import Unavailable
from kstreams_py.record import HASH_HEADER, Message, TopicPartition
from kstreams_py.serde import Registry, bind
from kstreams_py.topology import Graph

QUIET_LIMIT = 30
"""Seconds without a record before the end, until reading back is given up."""


class Results:
    """What was found, record by record."""

    def __init__(self, graph: Graph, topics: Mapping[str, TopicInfo], registry: Registry, known: Iterable[Row]) -> None:
        self.counts: Counter[str] = Counter()
        self.rows: dict[str, Counter[Row]] = {outcome: Counter() for outcome in OUTCOMES}
        self.stored: Counter[Row] = Counter()
        self.without_key = 0
        self.deliveries = Deliveries()
        self._known = {row: row for row in known}  # a row that is known need not be kept twice
        self._topics = topics
        self._outcomes = {f"{graph.name}.{outcome}": outcome for outcome in OUTCOMES}
        self._flight = self._decoder(graph, registry, graph.name)
        self._letter = self._decoder(graph, registry, f"{graph.name}.errors")
        self._readers = {
            topic.name: f"{graph.name}.{processor.id}" for processor in graph.processors for topic in processor.inputs
        }
        self._source = cache(self._source_of)

    @staticmethod
    def _decoder(graph: Graph, registry: Registry, topic: str) -> Callable[[bytes], Any]:
        return bind(graph.topics[topic].value, registry, f"{topic}-value").deserialize

    def _source_of(self, topic: str, partition: int) -> bytes:
        return hash_prefix(self._readers[topic], topic, self._topics[topic].topic_id, partition)

    def read(self, log: Log) -> None:
        """Takes every committed record of every topic. Raises Unavailable if some cannot be had."""
        partitions = {TopicPartition(name, p) for name, info in self._topics.items() for p in range(info.partitions)}
        ends = log.ends(partitions)
        consumer = log.consumer("flights.demo.results", "flights.demo.results")
        consumer.assign(dict.fromkeys(partitions, 0))
        quiet = 0
        while any(consumer.ends.get(tp, -1) < end for tp, end in ends.items()):
            records = consumer.consume(10_000, 1.0)
            quiet = 0 if records else quiet + 1
            if quiet > QUIET_LIMIT:
                raise Unavailable("the topics could not be read to their ends: see whether the broker still runs")
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
            value = self._letter(value)["inputs"][0]["value"]
        self.without_key += key is None
        row = self._row(self._flight(value).values())
        if row[TAILNUM] != (None if key is None else key.decode()):
            row = (key, *row)  # a row that the file does not have
        self.rows[outcome][row] += 1

    def _row(self, values: Iterable[Any]) -> Row:
        row = tuple(values)
        return self._known.get(row, row)

    def take_stored(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Takes the rows of the sink's table."""
        for digest, *values in rows:
            self.deliveries.saw("table", digest)
            self.stored[self._row(values)] += 1

    def found(self, inputs: Iterable[str], merged: str, delays: Delays) -> Found:
        """All of it, for the checks."""
        return Found(
            inputs=sum(self.counts[topic] for topic in inputs),
            merged=self.counts[merged],
            without_key=self.without_key,
            rows=self.rows,
            deliveries=self.deliveries.difference(),
            disorder=self.deliveries.disorder(),
            stored=self.stored,
            delays=delays,
        )
