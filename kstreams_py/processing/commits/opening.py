"""The guarantee of a processor, its journal, and the partitions that it writes."""

from __future__ import annotations

from collections.abc import Mapping

from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.processing.commits.committer import Committer
from kstreams_py.processing.commits.guarantees import COMMITTERS
from kstreams_py.processing.commits.journaled import Journaled
from kstreams_py.processing.commits.storing import StoredOffsets
from kstreams_py.processing.journal.choices_journal import ChoicesJournal
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment


def committer_of(processor: Processor) -> type[Committer]:
    """Returns the committer of a processor: by its journal if it has one, by its target if that stores offsets."""
    if processor.journal is not None:
        return Journaled
    return StoredOffsets if processor.stores_offsets else COMMITTERS[processor.guarantee]


def open_journal(
    graph: Graph, processor: Processor, environment: Environment, topics: Mapping[str, TopicInfo], writer: str
) -> ChoicesJournal | DeliveryJournal | None:
    """Returns the journal of a processor, for the choices of an alts or for deliveries; None if it has no such topic.

    - `writer`: the transactional id of this worker's outputs.
    """
    topic = graph.journal_topic(processor)
    if topic is None:
        return None
    if processor.journal is None:
        return ChoicesJournal(topic, environment.cluster)
    group, delivered = group_of(graph.name, processor.id), graph.delivered(processor)
    return DeliveryJournal(topic, processor, environment, topics, group, writer, delivered)


def partitions_written(
    graph: Graph, processor: Processor, topics: Mapping[str, TopicInfo]
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Returns the partitions that the producer of a processor writes, and the partitions of its delivery journal."""
    journal, delivered = graph.journal_topic(processor), graph.delivered(processor)
    counts = {name: info.partitions for name, info in topics.items()}
    if delivered is not None:  # on the cluster of the outputs, with a partition for each task
        counts[delivered] = counts[processor.inputs[0].name]

    def partitions(*names: str | None) -> list[TopicPartition]:
        return [TopicPartition(name, number) for name in names if name for number in range(counts.get(name, 0))]

    if processor.journal is None:
        return partitions(*processor.written, journal, changelog_of(graph.name, processor)), []
    return partitions(*processor.written, delivered), partitions(journal)
