"""Reads the results back after the workers have ended: every topic from start to end, and the table in SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from kstreams_py.demo.checks import Deliveries, ReadBack
from kstreams_py.demo.data import OUTCOMES, TAILNUM, Delays, Row
from kstreams_py.errors import Unavailable
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.hashes import hash_prefix
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.operations.dead_letters.letters import Letter, parse
from kstreams_py.records import HASH_HEADER, Message, TopicPartition

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
