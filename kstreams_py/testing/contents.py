"""The contents of a TestDriver's topics, sources, states and targets; records and inputs that a test adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kstreams_py.errors import DecodeError, GraphError, did_you_mean
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import Serde, bind
from kstreams_py.graph.declarations import Channel, Processor, Topic
from kstreams_py.graph.names import group_of
from kstreams_py.graph.sink import RowRules, Sink, SinkConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.records import HASH_HEADER, PLACE_HEADER, Headers, Message, Positions, readable_headers
from kstreams_py.state.reading import read_state
from kstreams_py.testing.events import Isolation
from kstreams_py.testing.memory_cluster import MemoryCluster
from kstreams_py.testing.memory_source import MemorySource
from kstreams_py.testing.memory_target import MemoryTarget


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic.

    - `key`, `value`: decoded.
    - `headers`: without the header of the delivery hash.
    - `timestamp`: milliseconds since 1970.
    - `delivery_hash`: the hash of the step that wrote the record; None if no step did.
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    delivery_hash: bytes | None


class Contents:
    """The topics, sources, states and targets of a graph on a cluster in memory."""

    def __init__(self, graph: Graph, cluster: MemoryCluster, registry: Registry) -> None:
        self.cluster = cluster
        """The cluster, with all records as bytes, and `faults` for failures other than a crash.

        `cluster.named(name)` is the other cluster that has the topics with `cluster=name`.
        """
        self._graph = graph
        self._registry = registry
        self._targets: dict[str, MemoryTarget] = {}
        """The target of each sink that stores rows, by `graph.processor`."""
        self._serdes: dict[tuple[str, str], Serde] = {}
        self._sources = {name: cluster.source() for name, each in graph.channels.items() if each.source is not None}

    def send(
        self,
        topic: Topic | str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int = -1,
    ) -> None:
        """Writes a record, which is committed immediately.

        - `value`: None for a tombstone.
        - `timestamp`: milliseconds since 1970; None for the clock's time.
        - `partition`: -1 to choose one by the key.

        Raises the exceptions of the topic's serdes; `cluster.append` writes bytes that they would refuse.
        """
        name = self._topic(topic).name
        raw = [None if part is None else self._serde(name, role).serialize(part) for role, part in _roles(key, value)]
        self._holding(name).append(name, raw[1], raw[0], headers, timestamp, partition)

    def source(self, channel: Channel | str) -> MemorySource:
        """Returns the source in memory that takes the place of the source of a channel.

        `add` adds inputs to it, `left` has the inputs that are not done, `refused` those that failed, with the reasons.
        """
        name = str(channel)
        if name not in self._sources:
            if name in self._graph.channels:
                raise GraphError(f"{name!r} is a channel that tasks write to, not a source: add inputs to a source")
            close = did_you_mean(name, self._sources) or f"it has {', '.join(self._sources) or 'none'}"
            raise GraphError(f"graph {self._graph.name!r} has no source {name!r}: {close}")
        return self._sources[name]

    def read(self, topic: Topic | str, isolation: Isolation | str = Isolation.COMMITTED) -> list[Record]:
        """Returns all records of a topic, by partition and offset. Raises DecodeError if its serdes refuse one."""
        name = self._topic(topic).name
        return [self._record(m) for m in self._holding(name).records(name, isolation)]

    def _holding(self, name: str) -> MemoryCluster:
        """Returns the cluster that has a topic of the graph."""
        return self.cluster.named(self._graph.topics[name].cluster)

    def values(self, topic: Topic | str) -> list[Any]:
        """Returns the values of all committed records of a topic."""
        return [record.value for record in self.read(topic)]

    def dead_letters(self) -> list[Record]:
        """Returns the dead letters of all processors and tasks; each value is a dict, see schemas/dead_letter.avsc."""
        names = [each.errors for each in self._graph.processors]
        names += [each.errors for task in self._graph.tasks for each in task.inputs]
        return [record for name in dict.fromkeys(names) if name is not None for record in self.read(name)]

    def committed(self, processor: str) -> Positions:
        """Returns the committed offsets of a processor, by its id; partitions without one are left out.

        The offsets of tasks that read a topic are under the topic's name.
        """
        if (group := group_of(self._graph.name, processor)) in self._graph.groups:
            return self.cluster.groups[group]
        return self.cluster.groups[self._consumer(self._processor(processor))]

    def rows(self, processor: str) -> list[tuple[Any, ...]]:
        """Returns the rows that a sink has stored, in the order of storing, each with a value per column.

        A target in memory takes the place of the sink's target (`to=`), with its columns and its evidence. It refuses
        rows whose values the table that the sink creates would refuse. It does not know what only an
        existing table has: other types, constraints, triggers.
        """
        tasks = {each.id: each for each in self._graph.tasks}
        found = tasks.get(processor) or self._processor(processor)
        if found.target is None:
            raise GraphError(f"processor {processor!r} stores no rows: declare a target, @graph.sink(..., to=)")
        target = self._targets.get(group_of(self._graph.name, found.id))
        return [row.values for row in target.rows] if target is not None else []

    def state(self, name: str) -> dict[Any, Any]:
        """Returns the committed entries of a state, of all tasks, in the order of the keys' bytes."""
        processors = {each.state.name: each for each in self._graph.processors if each.state is not None}
        if name not in processors:
            close = did_you_mean(name, processors) or f"it has {', '.join(processors) or 'none'}"
            raise GraphError(f"graph {self._graph.name!r} has no state {name!r}: {close}")
        return read_state(self._graph, processors[name], self.cluster, self._registry)

    def _processor(self, name: str) -> Processor:
        processors = {each.id: each for each in self._graph.processors}
        if name in (task.id for task in self._graph.tasks):
            raise GraphError(f"{name!r} is a task over channels: only processors of topics have this")
        if name not in processors:
            others = [*processors, *(task.id for task in self._graph.tasks)]
            close = did_you_mean(name, others) or f"it has {', '.join(others)}"
            raise GraphError(f"graph {self._graph.name!r} has no processor {name!r}: {close}")
        return processors[name]

    def _consumer(self, processor: Processor) -> str:
        return group_of(self._graph.name, processor.id)

    def _open_sink(self, sink: Sink, consumer: str) -> SinkConnection:
        if consumer not in self._targets:
            check = sink.check if isinstance(sink, RowRules) else lambda _: None
            self._targets[consumer] = self.cluster.target(sink.evidence, check=check)
        return self._targets[consumer].connect(consumer)

    def _topic(self, topic: Topic | str) -> Topic:
        found = self._graph.topics.get(str(topic))
        if found is None:
            if str(topic) in self._sources:
                raise GraphError(f"{str(topic)!r} is a source, not a topic: add inputs with `source`")
            if str(topic) in self._graph.channels:
                raise GraphError(f"{str(topic)!r} is a channel, not a topic: it keeps no values; a sink stores `rows`")
            names = self._graph.topics
            close = did_you_mean(str(topic), names) or f"it has {', '.join(names)}; see `cluster`"
            raise GraphError(f"graph {self._graph.name!r} has no topic {str(topic)!r}: {close}")
        return found

    def _serde(self, name: str, role: str) -> Serde:
        if (name, role) not in self._serdes:
            serde: Serde = getattr(self._graph.topics[name], role)
            self._serdes[name, role] = bind(serde, self._registry, f"{name}-{role}")
        return self._serdes[name, role]

    def _record(self, m: Message) -> Record:
        topic, headers = m.topic(), readable_headers(m)
        key, value = (self._decoded(m, role, data) for role, data in _roles(m.key(), m.value()))
        digests = [data for name, data in headers if name == HASH_HEADER]
        kept = tuple((name, data) for name, data in headers if name not in (HASH_HEADER, PLACE_HEADER))
        digest = digests[-1] if digests else None
        return Record(topic, m.partition(), m.offset(), key, value, kept, m.timestamp()[1], digest)

    def _decoded(self, m: Message, role: str, data: bytes | None) -> Any:
        try:
            return None if data is None else self._serde(m.topic(), role).deserialize(data)
        except DecodeError as error:
            place = f"{m.topic()}[{m.partition()}]@{m.offset()}"
            raise DecodeError(f"{role} of {place}: {error}; `cluster.records` has the bytes") from None


def _roles(key: Any, value: Any) -> Sequence[tuple[str, Any]]:
    return (("key", key), ("value", value))


class MemoryRegistry:
    """A formats.registry.Registry in memory; ids count from 1."""

    def __init__(self) -> None:
        self._schemas: list[tuple[str, str]] = []

    def register(self, subject: str, schema: str, /) -> int:
        if (subject, schema) not in self._schemas:
            self._schemas.append((subject, schema))
        return self._schemas.index((subject, schema)) + 1

    def schema(self, schema_id: int, /) -> str:
        if not 0 < schema_id <= len(self._schemas):
            raise LookupError(f"no schema {schema_id} was registered here")
        return self._schemas[schema_id - 1][1]

    def ids(self, subject: str, /) -> list[int]:
        return [number for number, (of, _) in enumerate(self._schemas, 1) if of == subject]
