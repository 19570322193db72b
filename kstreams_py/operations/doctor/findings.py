"""What a finding is, as text and as JSON, and the facts from which the rules derive it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from kstreams_py.graph.channels import topic_readers
from kstreams_py.graph.declarations import Processor, Topic
from kstreams_py.graph.names import group_of
from kstreams_py.graph.source import SourceStatus
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.commands import kafka_command
from kstreams_py.kafka.described_cluster import ClusterDescription, GroupPositions, Logs
from kstreams_py.kafka.groups import GroupInfo
from kstreams_py.kafka.transactions import cluster_option
from kstreams_py.operations.recover.task_status import TaskStatus, UndeclaredProcessor
from kstreams_py.operations.transactions.hanging import FoundTransaction
from kstreams_py.printable import join_lines
from kstreams_py.records import TopicPartition


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """A processor is stuck, or will be after its next start; or records are lost."""
    WARNING = "warning"
    """It becomes an error with time, or with one more fault."""
    NOTE = "note"
    """Information; nothing has to be changed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem: its subject, what it means, and a command or a setting that helps."""

    severity: Severity
    kind: str
    subject: str
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class LettersFact:
    """The dead letters of a topic that wait.

    - `count`: how many were counted.
    - `is_whole`: whether all were counted.
    - `since`: the time of the first, as text; None if it has none.
    """

    count: int
    is_whole: bool
    since: str | None


@dataclass(frozen=True, slots=True)
class SourceFact:
    """The status of the inputs of a source.

    - `medium`: what the source reads, as text.
    - `status`: None if the source could not be inspected.
    - `why`: why the source could not be inspected; "" if it keeps nothing to inspect, such as a source of requests.
    """

    medium: str
    status: SourceStatus | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a cluster that this user may see, and of the sources of a graph.

    - `groups`, `positions`: by the name of the group.
    - `expired`: input partitions that a processor has begun to read and that have no position, by the processor's id;
      with the first offset of each.
    - `tasks`: the status of each task, see `kstreams recover status`.
    - `undeclared`: processors that the graph no longer declares.
    - `found`: transactions that hang or have been open for long.
    - `letters`: the dead letters that wait, by topic.
    - `client`, `tested_clients`: versions of librdkafka.
    - `now`: seconds since 1970.
    - `unseen`: why a subject could not be seen, such as a missing right, by subject.
    - `name`: the cluster's name in the settings; "" for the graph's own.
    - `others`: the other clusters to which the graph writes.
    - `away`: why other clusters do not answer, by name.
    - `sources`: the sources of the graph, by name.
    """

    cluster: ClusterDescription
    now: float
    logs: Logs = field(default_factory=dict)
    groups: Mapping[str, GroupInfo] = field(default_factory=dict)
    positions: GroupPositions = field(default_factory=dict)
    expired: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    tasks: Sequence[TaskStatus] = ()
    undeclared: Sequence[UndeclaredProcessor] = ()
    found: Sequence[FoundTransaction] = ()
    letters: Mapping[str, LettersFact] = field(default_factory=dict)
    client: str = ""
    tested_clients: Collection[str] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    others: Sequence[Facts] = ()
    away: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, SourceFact] = field(default_factory=dict)

    @property
    def options(self) -> str:
        """The options of a command that name the cluster."""
        return cluster_option(self.name)

    def command(self, tool: str, *arguments: str) -> str:
        """Returns one of Kafka's own commands about this cluster: see kafka_command()."""
        return kafka_command(self.cluster.servers, tool, *arguments)

    def alter(self, topic: str, settings: str) -> str:
        """Returns the command that changes settings of a topic, such as "retention.ms=-1"."""
        return self.command("configs", "--alter", "--topic", topic, "--add-config", settings)

    def least(self, setting: str) -> int | None:
        """Returns the smallest value of a setting among the brokers; None if no broker shows it."""
        return min((int(each[setting]) for each in self.cluster.brokers.values() if setting in each), default=None)


class TopicReader(NamedTuple):
    """A reader of topics with a group: a processor, or the tasks that read a topic.

    - `name`: the id of the processor, or the ids of the tasks.
    - `outputs`: the topics that it writes.
    - `errors`: its dead-letter topic; None if there is none.
    - `is_processor`: whether `kstreams recover` moves its positions; it does not move the positions of tasks.
    """

    name: str
    group: str
    inputs: tuple[Topic, ...]
    outputs: tuple[Topic, ...]
    errors: str | None
    is_processor: bool


@dataclass(frozen=True, slots=True)
class Examined:
    """A graph, its name on the command line, and the timeout of its transactions in milliseconds."""

    graph: Graph
    name: str
    transaction_timeout_ms: int

    def group(self, processor: Processor) -> str:
        return group_of(self.graph.name, processor.id)

    @property
    def readers(self) -> list[TopicReader]:
        """The readers of the graph, one for each group."""
        found = [
            TopicReader(each.id, self.group(each), each.inputs, each.outputs, each.errors, is_processor=True)
            for each in self.graph.processors
        ]
        for channel, tasks in topic_readers(self.graph.tasks).items():
            written = tuple(topic for task in tasks for topic in task.topics)
            name, group = ", ".join(task.id for task in tasks), group_of(self.graph.name, channel.name)
            assert channel.topic is not None
            found.append(TopicReader(name, group, (channel.topic,), written, channel.errors, is_processor=False))
        return found

    @property
    def journals(self) -> list[str]:
        return [name for each in self.graph.processors if (name := self.graph.journal_topic(each)) is not None]


def show_duration(seconds: float) -> str:
    """Returns seconds as text in the largest unit that divides them."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def describe(finding: Finding) -> str:
    """Returns a finding as text, with its remedy on a second line."""
    return join_lines([f"{finding.severity}: {finding.subject}: {finding.meaning}", f"  {finding.remedy}"])


def as_fields(finding: Finding) -> dict[str, Any]:
    """Returns a finding as fields for JSON."""
    return {
        "severity": str(finding.severity),
        "kind": finding.kind,
        "subject": finding.subject,
        "meaning": finding.meaning,
        "remedy": finding.remedy,
    }
