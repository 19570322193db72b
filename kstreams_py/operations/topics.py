"""Deletes topics of a graph: those that the framework created and the graph no longer needs, or those that are named.

The topic of beginnings says which processors and states there were. Topics are not searched for by prefix:
another graph's name may begin with the name of this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kstreams_py.errors import UserMistake
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.names import RESERVED, delivered_topic, group_of, id_of, is_own_topic, journal_topic, runs_topic
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.commands import kafka_command
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.kafka.foreign_records import parse_json
from kstreams_py.operations.recover.positions import check_no_members
from kstreams_py.operations.transactions.hanging import clusters_of
from kstreams_py.processing.beginning import changelogs_begun, read_begun
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment


@dataclass(frozen=True, slots=True)
class DeletableTopic:
    """A topic that a deletion would delete.

    - `cluster`: the cluster's name in the settings; "" for the cluster of the graph.
    - `processors`: the ids of the processors whose groups must have no members.
    - `follows`: what follows from its deletion, each a sentence without a full stop.
    - `partitions`: how many it has.
    - `records`: at most how many records it has: markers and aborted records have offsets, too.
    """

    name: str
    cluster: str
    processors: tuple[str, ...]
    follows: tuple[str, ...]
    partitions: int = 0
    records: int = 0


class TopicDeletion:
    """Plans which topics of a graph are deleted, and deletes them."""

    def __init__(self, graph: Graph, name: str, environment: Environment, admin: GroupAdmin) -> None:
        """Reads the topic of beginnings.

        - `name`: the graph's name on the command line, for commands in messages.
        """
        self._graph = graph
        self._name = name
        self._cluster = environment.cluster
        self._servers = environment.settings.bootstrap_servers
        self._admin = admin
        self._clusters = sorted({*clusters_of(graph), *environment.settings.clusters})
        self._declared = {each.id: each for each in graph.processors}
        has_begun = graph.beginnings in self._cluster.topics([graph.beginnings])
        begun = changelogs_begun(read_begun(self._cluster, graph.beginnings)[0]) if has_begun else {}
        self._changelogs = dict.fromkeys(self._declared, frozenset[str]()) | {
            processor: frozenset(each for each in changelogs if is_own_topic(graph.name, each))
            for processor, changelogs in begun.items()
            # whoever may write to the topic of beginnings must not choose what is deleted
            if is_own_topic(graph.name, journal_topic(graph.name, processor))
        }
        """The changelogs that each processor has begun, including processors that are no longer declared."""

    def plan_unused(self) -> list[DeletableTopic]:
        """Returns the framework's topics, also of states and pipelines, that the graph no longer needs."""
        used = self._used(self._declared.values())
        found = [topic for each in self._changelogs for topic in self._own(each) if topic.name not in used]
        if not self._declared:
            lost = "a start of this graph whose committed offsets are lost begins again without a word"
            found.append(DeletableTopic(self._graph.beginnings, "", tuple(self._changelogs), (lost,)))
        if not any(each.uses_marks for each in self._declared.values()):
            lost = "a replay sends dead letters again that were replayed before"
            found.append(DeletableTopic(self._graph.replayed, "", (), (lost,)))
        return self._existing([*found, *self._runs()])

    def plan_processor(self, processor: str) -> list[DeletableTopic]:
        """Returns the framework's topics of one processor, whether it is declared or not. Raises UserMistake."""
        processor = id_of(self._graph.name, processor, self._changelogs)
        if processor in {each.id for each in self._graph.pipelines}:
            raise UserMistake(
                f"{processor!r} is a pipeline: run `kstreams pipeline reset {self._name} {processor}`, which deletes "
                "its runs together with its table"
            )
        if processor not in self._changelogs:
            known = ", ".join(sorted(self._changelogs)) or "none"  # a command that deletes proposes no other name
            raise UserMistake(
                f"graph {self._graph.name!r} has no processor {processor!r}, and never had: it has or had {known}"
            )
        of_others = self._used(each for each in self._declared.values() if each.id != processor)
        return self._existing([each for each in self._own(processor) if each.name not in of_others])

    def plan_named(self, names: Sequence[str]) -> list[DeletableTopic]:
        """Returns topics that the graph declares. Raises UserMistake for any other name, and for a missing topic."""
        topics = self._graph.topics
        for name in names:
            if name.startswith(RESERVED):
                raise UserMistake(
                    f"topic {name!r} is one of the framework: leave --topic out, or name the processor that it belongs "
                    "to, with --processor"
                )
            if name not in topics:
                delete = kafka_command(self._servers, "topics", "--delete", "--topic", name)
                raise UserMistake(
                    f"graph {self._graph.name!r} declares no topic {name!r}, but {', '.join(topics)}: one that it no "
                    f"longer declares is deleted with Kafka's own command, {delete}"
                )
        asked = [
            DeletableTopic(name, topics[name].cluster, self._users(name), tuple(self._follows(name)))
            for name in dict.fromkeys(names)
        ]
        found = self._existing(asked)
        if missing := {each.name for each in asked} - {each.name for each in found}:
            raise UserMistake(f"topic {min(missing)!r} does not exist: leave it out, or correct --bootstrap-servers")
        return found

    def check_members(self, topics: Collection[DeletableTopic]) -> None:
        """Raises UserMistake if a group of a processor that uses one of these topics has members."""
        if processors := sorted({each for topic in topics for each in topic.processors}):
            groups = self._admin.describe([group_of(self._graph.name, each) for each in processors])
            check_no_members(groups, self._name, {group_of(self._graph.name, each) for each in self._declared})

    def delete(self, topics: Collection[DeletableTopic]) -> None:
        """Deletes the topics. Raises the same as `check_members`: a worker may have started since they were shown."""
        self.check_members(topics)
        for place in sorted({each.cluster for each in topics}):
            self._cluster.named(place).delete_topics([each.name for each in topics if each.cluster == place])

    def _used(self, processors: Iterable[Processor]) -> set[str]:
        """Returns the framework's topics that these processors use."""
        found = set[str | None]()
        for each in processors:
            found |= {
                self._graph.journal_topic(each),
                self._graph.delivered(each),
                changelog_of(self._graph.name, each),
            }
        return {name for name in found if name is not None}

    def _own(self, processor: str) -> Iterator[DeletableTopic]:
        """Yields the topics that a processor may have now, or may have had."""
        declared = self._declared.get(processor)
        used = set[str]() if declared is None else self._used([declared])
        again = f"if {processor} is declared with it again, "
        current = None if declared is None else changelog_of(self._graph.name, declared)
        for changelog in sorted({*self._changelogs[processor], *([] if current is None else [current])}):
            yield DeletableTopic(changelog, "", (processor,), tuple(self._follows_of_state(processor, changelog)))
        journal = journal_topic(self._graph.name, processor)
        goes_on = f"{processor} goes on at its committed offsets, and makes an open delivery again"
        yield DeletableTopic(journal, "", (processor,), (goes_on if journal in used else again + goes_on,))
        delivered = delivered_topic(self._graph.name, processor)
        doubled = "a delivery to cluster {!r} whose offsets are not committed yet is doubled"
        for cluster in filter(None, self._clusters):
            told = doubled.format(cluster) if delivered in used else again + doubled.format(cluster)
            shows = f"`kstreams recover status {self._name}` shows it" if delivered in used else ""
            yield DeletableTopic(delivered, cluster, (processor,), (f"{told}: {shows}" if shows else told,))

    def _follows_of_state(self, processor: str, changelog: str) -> Iterator[str]:
        declared = self._declared.get(processor)
        reset = f"`kstreams recover reset {self._name} {processor} --to-beginning`, or --to-offset with where it is"
        if declared is None or declared.state is None or changelog_of(self._graph.name, declared) != changelog:
            yield f"if {processor} is declared with this state again, it begins empty: then set its group: {reset}"
            return
        yield (f"state {declared.state.name!r} begins empty: set the group before the next start: {reset}")
        if declared.state.on_disk:
            directory = f"{self._graph.name}/{declared.state.name}"
            yield f"delete the directory {directory} in state_directory on each machine, too"

    def _runs(self) -> Iterator[DeletableTopic]:
        """Yields the topics with the runs of pipelines that wrote to topics of the graph and are no longer declared."""
        owners = {each.owner for each in self._graph.pipelines}
        written = {str(each.target) for each in self._graph.pipelines}
        asked = {runs_topic(name): name for name in self._graph.topics if name not in written}
        for runs in self._cluster.topics(list(asked)):
            newest = self._cluster.newest(TopicPartition(runs, 0))
            owner = "" if newest is None else _owner_of(newest.value())
            if owner.startswith(f"{self._graph.name}.") and owner not in owners:
                told = f"a pipeline that writes to {asked[runs]} again needs it empty: delete it, too (--topic)"
                yield DeletableTopic(runs, "", (), (told,))

    def _users(self, topic: str) -> tuple[str, ...]:
        """Returns the ids of the processors that read or write a topic."""
        return tuple(
            each.id
            for each in self._declared.values()
            if topic in each.written or topic in {read.name for read in each.inputs}
        )

    def _follows(self, topic: str) -> Iterator[str]:
        """Yields what follows if a topic of the graph is deleted."""
        yield f"its records are lost; `kstreams topics create {self._name}` creates it again, empty"
        for each in self._declared.values():
            if topic not in {read.name for read in each.inputs}:
                continue
            if each.state is None and each.journal is None:
                yield f"{each.id} loses its committed offsets there, and begins at auto_offset_reset"
            else:
                what = "journal" if each.state is None else "state"
                yield (
                    f"{each.id} has a {what} that belongs to its offsets: set its group before the next start: "
                    f"`kstreams recover reset {self._name} {each.id} --to-beginning`"
                )
        for pipeline in self._graph.pipelines:
            if topic in {read.name for read in pipeline.inputs} or topic == str(pipeline.target):
                yield f"{pipeline} has to begin again: run `kstreams pipeline reset {self._name} {pipeline.id}`"

    def _existing(self, wanted: Collection[DeletableTopic]) -> list[DeletableTopic]:
        """Returns the topics that exist, each once, with their sizes."""
        found = dict[tuple[str, str], DeletableTopic]()
        for place in dict.fromkeys(each.cluster for each in wanted):
            cluster, asked = self._cluster.named(place), [each for each in wanted if each.cluster == place]
            infos = cluster.topics({each.name for each in asked})
            for each in asked:
                if each.name in infos:
                    before = found.get((place, each.name), each)  # a state may have belonged to another processor
                    users = tuple(dict.fromkeys([*before.processors, *each.processors]))
                    found[place, each.name] = replace(_sized(before, infos[each.name], cluster), processors=users)
        return list(found.values())


def _sized(topic: DeletableTopic, info: TopicInfo, cluster: Cluster) -> DeletableTopic:
    partitions = [TopicPartition(topic.name, number) for number in range(info.partitions)]
    starts, ends = cluster.starts(partitions), cluster.ends(partitions, committed=False)
    return replace(topic, partitions=len(partitions), records=sum(ends[tp] - starts[tp] for tp in partitions))


def _owner_of(value: bytes | None) -> str:
    """Returns the owner that a record of a pipeline's runs names; "" if it names none."""
    try:
        content = None if value is None else parse_json(value)
    except ValueError:
        return ""
    owner = content.get("owner") if isinstance(content, dict) else None
    return owner if isinstance(owner, str) else ""
