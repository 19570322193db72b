"""Makes a cut: asks the cluster in an order that keeps each transaction whole.

1. The last stable offset of each partition (`settled`): transactions with records below it are decided.
2. The committed offsets of the writers; the cut asks readers of an output before its writers. If offsets of a group are
   pending, the cut waits for them, so that a transaction that is decided on an output is also decided in the group.
3. The high watermark of each partition: the records of all transactions whose offsets were read are below it. It is the
   `end`, once the last stable offset has reached it.

Each wait is for the transactions that are open at one moment, never for a moment without any. docs/cuts.md gives the
reason for each order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kstreams_py.errors import BrokerUnavailable, Retriable, TopicError, UserMistake
from kstreams_py.graph.loading import show_command
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.kafka.transactions import find_command, place_options
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.spark.cuts import (
    CommittingWriter,
    Cut,
    CutInput,
    CutTopic,
    CutWriter,
    Span,
    choose_topics,
    choose_writers,
)

GRACE_SECONDS: Final = 15.0
"""Every 10 s, a coordinator looks for transactions that have timed out."""

POLL_SECONDS: Final = 0.02


def cut(
    graph: Graph, topics: Sequence[str] | None = None, *, settings: Settings | None = None, timeout: float | None = None
) -> Cut:
    """Makes a cut of topics of a graph: each transaction of its processors is inside the cut on all topics or on none.

    - `topics`: their names; None for all that are on the graph's own cluster.
    - `settings`: Settings.load() by default.
    - `timeout`: seconds to wait for open transactions. None for `transaction_timeout_ms` plus 15 s: by then, the
      broker has ended every transaction that does not hang.

    Takes about as long as a transaction. Raises UserMistake for a topic that the graph does not have, for a processor
    whose records do not show their transactions, and for a transaction that stays open; TopicError for a topic that
    does not exist; BrokerUnavailable.
    """
    settings = settings or Settings.load()
    limit = settings.transaction_timeout_ms / 1000 + GRACE_SECONDS if timeout is None else timeout
    cluster = KafkaCluster(settings, patient=True)
    try:
        return Cutting(graph, topics, cluster, limit, options=place_options(settings.bootstrap_servers)).make()
    finally:
        cluster.close()


class Cutting:
    """Makes a cut on any cluster."""

    def __init__(
        self,
        graph: Graph,
        topics: Sequence[str] | None,
        cluster: Cluster,
        limit: float,
        *,
        options: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Makes no request. For the other arguments, see `cut`.

        - `limit`: in seconds.
        - `options`: the options of a printed command that name the cluster, see place_options().
        """
        self._graph, self._cluster, self._limit = graph, cluster, limit
        self._options, self._clock, self._sleep = options, clock, sleep
        self._names = choose_topics(graph, topics)
        self._writers = choose_writers(graph, self._names)

    def make(self) -> Cut:
        """Makes the cut; starts again if a topic changes meanwhile, or if a request fails with Retriable."""
        deadline = self._clock() + self._limit
        while True:
            try:
                if (found := self._try(deadline)) is not None:
                    return found
                why = "topics of the cut keep being created or extended"
            except Retriable as error:
                why = str(error)
            if self._clock() > deadline:
                raise BrokerUnavailable(f"no cut of graph {self._graph.name!r} within {self._limit:g} s: {why}")
            self._sleep(POLL_SECONDS)

    def _try(self, deadline: float) -> Cut | None:
        made = time.time()
        topics = self._find_topics()
        partitions = [TopicPartition(name, n) for name in self._names for n in range(topics[name].partitions)]
        starts = self._cluster.starts(partitions)
        settled = self._cluster.ends(partitions)
        writers = [
            self._read_writer(each, topics, deadline) for each in self._writers if topics.keys() >= set(each.inputs)
        ]
        highs = self._cluster.ends(partitions, committed=False)
        ends = {tp: max(highs[tp], settled[tp]) for tp in partitions}
        self._wait_for(ends, deadline)
        if _identity(self._find_topics()) != _identity(topics):
            return None  # a partition that was added meanwhile may have a part of a transaction
        return Cut(
            self._graph.name,
            {
                name: CutTopic(
                    topics[name].topic_id,
                    tuple(Span(starts[tp], settled[tp], ends[tp]) for tp in partitions if tp.topic == name),
                )
                for name in self._names
            },
            tuple(sorted(writers, key=lambda writer: writer.processor)),
            made,
        )

    def _find_topics(self) -> dict[str, TopicInfo]:
        """Returns the topics of the cut and their writers' inputs. A pipeline that has not run may lack inputs."""
        of_processors = {name for each in self._writers if each.processor is not None for name in each.inputs}
        of_pipelines = {name for each in self._writers if each.processor is None for name in each.inputs}
        needed = {*self._names, *of_processors}
        found = self._cluster.topics(needed | of_pipelines)
        if missing := sorted(needed - found.keys()):
            create = show_command(self._graph, "topics create")
            raise TopicError(f"topic {missing[0]!r} does not exist: run `{create}`, or correct its name")
        return found

    def _read_writer(self, writer: CommittingWriter, topics: Mapping[str, TopicInfo], deadline: float) -> CutWriter:
        numbers = {name: range(topics[name].partitions) for name in writer.inputs}
        partitions = [TopicPartition(name, n) for name, each in numbers.items() for n in each]
        committed = self._read_decided(group_of(self._graph.name, writer.id), partitions, deadline)
        inputs = (
            CutInput(name, topics[name].topic_id, tuple(committed.get(TopicPartition(name, n), 0) for n in each))
            for name, each in numbers.items()
        )
        return CutWriter(writer.id, tuple(sorted(writer.outputs & set(self._names))), tuple(inputs))

    def _read_decided(self, group: str, partitions: Sequence[TopicPartition], deadline: float) -> Positions:
        """Returns the committed offsets of a group, once all offsets that were pending at first are decided.

        An offset that stays pending counts as decided once the committed offset has changed: it then belongs to other
        transactions, and the cut need not wait for them.
        """
        first = self._cluster.group_offsets(group, partitions)
        found, left = first, first.pending
        while left:
            if self._clock() > deadline:
                find = find_command(self._options)
                raise UserMistake(self._cluster.pending(group, partitions).describe(time.time(), find))
            self._sleep(POLL_SECONDS)
            found = self._cluster.group_offsets(group, partitions)
            left = frozenset(tp for tp in left & found.pending if found.committed.get(tp) == first.committed.get(tp))
        return found.committed

    def _wait_for(self, ends: Positions, deadline: float) -> None:
        """Waits until the last stable offsets have reached these ends."""
        while True:
            stable = self._cluster.ends(list(ends))
            behind = sorted(tp for tp, end in ends.items() if stable[tp] < end)
            if not behind:
                return
            if self._clock() > deadline:
                tp = behind[0]
                find = find_command(self._options, [tp.topic])
                raise UserMistake(
                    f"{tp}: a transaction below offset {ends[tp]} has been open for {self._limit:g} s (the last stable "
                    f"offset is {stable[tp]}): run `{find}`, which prints how to end those that hang"
                )
            self._sleep(POLL_SECONDS)


def _identity(topics: Mapping[str, TopicInfo]) -> dict[str, tuple[str, int]]:
    return {name: (each.topic_id, each.partitions) for name, each in topics.items()}
