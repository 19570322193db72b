"""Reads the records between two offsets of a partition in pages, so that memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.records import Message, TopicPartition

PAGE: Final = 200
"""Records in the first page; a record may be a megabyte long."""

PAGE_BYTES: Final = 1_000_000
"""The limit of a page doubles after a page of fewer bytes than this."""

PAGE_MAX: Final = 6_400
"""The maximum number of records in a page."""


class Readable(Protocol):
    """A cluster, or another source of records."""

    def read(self, partition: TopicPartition, start: int = 0, limit: int | None = None) -> Sequence[Message]:
        """Same as `Cluster.read`."""


class Pages:
    """Reads pages from a cluster; repeats a request that failed."""

    def __init__(self, cluster: Readable, attempts: Attempts) -> None:
        self._cluster = cluster
        self._attempts = attempts

    def read(self, tp: TopicPartition, start: int, limit: int) -> list[Message]:
        """Returns the committed records from an offset on, at most `limit`."""
        page: list[Message] = []
        self._attempts.call(lambda: page.extend(self._cluster.read(tp, start, limit)))
        return page

    def between(self, tp: TopicPartition, start: int, end: int) -> Iterator[Message]:
        """Yields the committed records from offset `start` up to, but not including, `end`."""
        limit = PAGE
        while start < end:
            found: list[Any] = self.read(tp, start, limit)
            for m in found:
                if m.offset() >= end:
                    return
                yield m
            if len(found) < limit:
                return
            start = found[-1].offset() + 1
            if limit < PAGE_MAX and sum(map(len, found)) < PAGE_BYTES:
                limit *= 2


def open_pages(graph: Graph, cluster: Cluster, attempts: Attempts) -> dict[str, Pages]:
    """Returns a reader of each cluster that has topics of a graph, and of the graph's own, by the cluster's name."""
    places = {"", *(topic.cluster for topic in graph.topics.values())}
    return {place: Pages(cluster.named(place), attempts) for place in places}
