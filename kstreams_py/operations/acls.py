"""The rights of a graph by role: exactly what the users of its processes and tools need from Kafka.

READ, WRITE, DELETE and ALTER imply DESCRIBE (Kafka's `StandardAuthorizer`), so DESCRIBE is not listed with them. An
idempotent producer needs no right of its own since Kafka 2.8 (KIP-679).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kstreams_py.graph.declarations import Processor, Topic, changelog_of, dead_letters
from kstreams_py.graph.limits import why_not_replayed
from kstreams_py.graph.names import group_of, member_of, recorder_id, recover_id, replay_id, runs_topic
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.groups import POSITIONS_TOPIC
from kstreams_py.kafka.transactions import TRANSACTIONS_TOPIC
from kstreams_py.operations.transactions.hanging import clusters_of


class Role(StrEnum):
    """The role of a Kafka user in a graph; each role has its own rights.

    A pipeline is a role of its own: it runs in Spark, mostly elsewhere and as another user. A worker needs none of its
    rights, and a pipeline must not join a worker's group.
    """

    WORKER = "worker"
    OPERATOR = "operator"
    READER = "reader"
    PIPELINE = "pipeline"


class Resource(StrEnum):
    """The kind of resource that a right is for, named like the option of `kafka-acls`."""

    CLUSTER = "cluster"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    TOPIC = "topic"


class Operation(StrEnum):
    """An operation that a right allows."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"


READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS = Operation

_IMPLY_DESCRIBE: Final = {READ, WRITE, DELETE, ALTER}

KAFKA_CLUSTER: Final = "kafka-cluster"
"""The name that Kafka gives the cluster as a resource."""

NOTES: Final[Mapping[Role, str]] = {
    Role.WORKER: "CREATE is not needed once `kstreams topics create` has run, ALTER while inputs gain no partitions, "
    "READ on __ks.*.replayed while no page (--http) counts the dead letters that wait",
    Role.OPERATOR: "`kstreams transactions abort` and `commit` need ALTER on the cluster, too: it grants any right, so "
    "it is left to an administrator; so is DELETE on the topics, for `kstreams topics delete`, and on the groups, for "
    "`kstreams recover forget`",
    Role.READER: "a reader that is a member of a group needs READ on that group, too",
    Role.PIPELINE: "CREATE is not needed once `kstreams topics create` has run, DELETE without `kstreams pipeline "
    "reset`",
}
"""A remark on the rights of each role."""


@dataclass(frozen=True, slots=True)
class Right:
    """The operations that are allowed on one resource.

    - `cluster`: the name of the cluster in the settings; "" for the cluster of the graph.
    - `is_prefix`: the right is for all resources whose names begin with `name`.
    """

    cluster: str
    resource: Resource
    name: str
    is_prefix: bool
    operations: tuple[Operation, ...]


class _Rights:
    """Collects rights; `slots` are the numbers of the workers' slots, None for any slot."""

    def __init__(self, graph: Graph, slots: Collection[int] | None) -> None:
        self._graph = graph
        self._slots = slots
        self._found: dict[tuple[str, Resource, str, bool], set[Operation]] = {}

    def add(
        self, resource: Resource, name: str, *operations: Operation, cluster: str = "", is_prefix: bool = False
    ) -> None:
        self._found.setdefault((cluster, resource, name, is_prefix), set()).update(operations)

    def topic(self, name: str, *operations: Operation) -> None:
        """Adds rights on a topic of the graph. Every user of a topic reads its settings first."""
        self.add(Resource.TOPIC, name, DESCRIBE_CONFIGS, *operations, cluster=self._graph.topics[name].cluster)

    def own(self, name: str | None, *operations: Operation, cluster: str = "") -> None:
        """Adds rights on a topic of the framework; adds nothing for None."""
        if name is not None:
            self.add(Resource.TOPIC, name, DESCRIBE_CONFIGS, *operations, cluster=cluster)

    def ids_of_workers(self, processor: Processor, *operations: Operation) -> None:
        """Adds rights on the transactional ids of a processor's workers, which end with the numbers of their slots.

        Outputs may be on another cluster; the journal, whose producer has its own id, is on the graph's cluster.
        """
        if not processor.guarantee.is_transactional:
            return
        group, kind = group_of(self._graph.name, processor.id), Resource.TRANSACTIONAL_ID
        if self._slots is None:
            for cluster in {processor.cluster} if processor.journal is None else {processor.cluster, ""}:
                self.add(kind, f"{group}.", *operations, cluster=cluster, is_prefix=True)
            return
        for slot in self._slots:
            self.add(kind, member_of(group, slot), *operations, cluster=processor.cluster)
            if processor.journal is not None:
                self.add(kind, recorder_id(member_of(group, slot)), *operations)

    def all(self) -> list[Right]:
        """Returns all rights, sorted by cluster and resource."""
        found = []
        for (cluster, resource, name, is_prefix), operations in self._found.items():
            needed = operations - {DESCRIBE} if operations & _IMPLY_DESCRIBE else operations
            found.append(Right(cluster, resource, name, is_prefix, tuple(each for each in Operation if each in needed)))
        kinds = list(Resource)
        return sorted(found, key=lambda each: (each.cluster, kinds.index(each.resource), each.name))


def rights_of(graph: Graph, role: Role, slots: Collection[int] | None = None) -> list[Right]:
    """Returns the rights that a role needs for its work on a graph; none if the graph has no work for it.

    - `slots`: the numbers of the slots that run. None: rights on transactional ids are by prefix, for any slot.
    """
    found = _Rights(graph, slots)
    _COLLECT[role](graph, found)
    return found.all()


def _collect_worker(graph: Graph, found: _Rights) -> None:
    """Collects the rights that `kstreams run` needs.

    Exactly once needs READ on outputs: without it a worker could not detect hanging transactions there, and its next
    commit would make their records visible (docs/exactly-once.md). With a journal, a worker reads outputs back when it
    starts. The page of `kstreams run` counts the dead letters that wait.
    """
    if not graph.uses_topics:
        return
    for name in graph.topics:  # a worker checks all of them when it starts
        found.topic(name, DESCRIBE)
    for group, topics in graph.groups.items():
        found.add(Resource.GROUP, group, READ)
        for name in topics:
            found.topic(name, READ)
    for task in graph.tasks:
        for name in (*map(str, task.topics), *(each.errors for each in task.inputs if each.errors)):
            found.topic(name, WRITE)
    found.own(graph.beginnings if graph.processors else None, READ, WRITE, CREATE)
    for processor in graph.processors:
        found.ids_of_workers(processor, WRITE)
        for name in processor.written:
            found.topic(name, WRITE, *([READ] if processor.guarantee.is_transactional else []))
        found.own(graph.journal_topic(processor), READ, WRITE, CREATE, ALTER, DELETE)
        found.own(changelog_of(graph.name, processor), READ, WRITE, CREATE)
        found.own(graph.delivered(processor), READ, WRITE, CREATE, ALTER, cluster=processor.cluster)
    for name in [name for name, topic in graph.topics.items() if topic.value is dead_letters()]:
        found.topic(name, READ)
        found.own(graph.replayed, READ)


def _collect_operator(graph: Graph, found: _Rights) -> None:
    """Collects the rights for dead-letters, order, recover, slots, state, transactions find-hanging and doctor."""
    for name in graph.topics:
        found.topic(name, READ)
    for cluster in clusters_of(graph):
        found.add(Resource.CLUSTER, KAFKA_CLUSTER, DESCRIBE, DESCRIBE_CONFIGS, cluster=cluster)
        found.own(TRANSACTIONS_TOPIC, READ, cluster=cluster)
    found.own(POSITIONS_TOPIC, READ)
    if graph.processors:
        found.own(graph.beginnings, READ, WRITE, CREATE)
        found.add(Resource.TRANSACTIONAL_ID, recover_id(graph.name), WRITE)
    for processor in graph.processors:
        found.add(Resource.GROUP, group_of(graph.name, processor.id), READ)
        found.ids_of_workers(processor, DESCRIBE)
        found.own(graph.journal_topic(processor), READ, WRITE, CREATE, ALTER)
        found.own(changelog_of(graph.name, processor), READ, CREATE)
        found.own(graph.delivered(processor), READ, WRITE, CREATE, ALTER, cluster=processor.cluster)
        if processor.uses_marks:
            _add_replay(graph, processor, found)
    for pipeline in graph.pipelines:
        if isinstance(pipeline.target, Topic):
            found.own(runs_topic(pipeline.target.name), READ)
            found.add(Resource.TRANSACTIONAL_ID, runs_topic(pipeline.target.name), DESCRIBE)


def _add_replay(graph: Graph, processor: Processor, found: _Rights) -> None:
    """Adds the rights that a replay of dead letters and a decision of `kstreams order` need."""
    found.own(graph.replayed, READ, WRITE, CREATE)
    found.add(Resource.TRANSACTIONAL_ID, replay_id(graph.name), WRITE)
    if processor.ordered is not None:
        found.topic(processor.inputs[0].name, WRITE)
    elif not why_not_replayed(processor):
        for topic in processor.outputs:
            found.topic(topic.name, WRITE)


def _collect_reader(graph: Graph, found: _Rights) -> None:
    """Collects the rights that consumers of the results and `kstreams tail` need."""
    for processor in graph.processors:
        for name in processor.written:
            found.topic(name, READ)
    for pipeline in graph.pipelines:
        if isinstance(pipeline.target, Topic):
            found.topic(pipeline.target.name, READ)


def _collect_pipeline(graph: Graph, found: _Rights) -> None:
    """Collects the rights that `kstreams pipeline` and its Spark need.

    A run reads up to a cut, at which no writer's offset is pending. Spark's consumers use random group names, and
    need no rights to these groups: they join no group and commit no offset.
    """
    for pipeline in graph.pipelines:
        read = {topic.name for topic in pipeline.inputs}
        for name in read:
            found.topic(name, READ)
        for processor in graph.processors:
            if not read.isdisjoint(processor.written) and processor.guarantee.is_transactional:
                found.add(Resource.GROUP, group_of(graph.name, processor.id), DESCRIBE)
                for topic in processor.inputs:
                    found.topic(topic.name, DESCRIBE)
        if isinstance(pipeline.target, Topic):
            runs = runs_topic(pipeline.target.name)
            found.topic(pipeline.target.name, READ, WRITE, DELETE)
            found.own(runs, READ, WRITE, CREATE)
            found.add(Resource.GROUP, pipeline.owner, READ)
            found.add(Resource.TRANSACTIONAL_ID, runs, WRITE)


_COLLECT: Final[Mapping[Role, Callable[[Graph, _Rights], None]]] = {
    Role.WORKER: _collect_worker,
    Role.OPERATOR: _collect_operator,
    Role.READER: _collect_reader,
    Role.PIPELINE: _collect_pipeline,
}


def commands(
    rights: Collection[Right], principal: str, servers: str, command_config: str | None = None
) -> Iterator[str]:
    """Yields the commands that grant rights on one cluster, a line each.

    Resources of one kind with the same operations share a command.

    - `servers`: bootstrap servers of the cluster.
    - `command_config`: the file with the settings of the administrator's client.
    """
    signed_in = [] if command_config is None else ["--command-config", command_config]
    alike: dict[tuple[Resource, bool, tuple[Operation, ...]], list[str]] = {}
    for each in rights:
        alike.setdefault((each.resource, each.is_prefix, each.operations), []).append(each.name)
    for (resource, is_prefix, operations), names in alike.items():
        words = ["kafka-acls", "--bootstrap-server", servers, *signed_in, "--add", "--allow-principal", principal]
        for operation in operations:
            words += ["--operation", "".join(part.title() for part in operation.split("_"))]
        for name in names:
            words += [f"--{resource}", *([] if resource is Resource.CLUSTER else [name])]
        yield shlex.join([*words, *(["--resource-pattern-type", "prefixed"] if is_prefix else [])])


def as_fields(right: Right, role: Role, principal: str) -> dict[str, Any]:
    """Returns a right as fields for JSON."""
    return {
        "role": role,
        "principal": principal,
        "cluster": right.cluster,
        "resource": right.resource,
        "name": right.name,
        "pattern": "prefixed" if right.is_prefix else "literal",
        "operations": list(right.operations),
    }
