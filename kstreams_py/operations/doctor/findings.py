"""Rules that find what holds readers back or endangers a promise, from facts of a cluster and a graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.described_cluster import ClusterDescription, GroupPositions, LogInfo, Logs, TopicDescription
from kstreams_py.kafka.groups import POSITIONS_TOPIC, GroupInfo, slot_of
from kstreams_py.kafka.transactions import cluster_option, command, find_command
from kstreams_py.operations.transactions.hanging import FoundTransaction, headline
from kstreams_py.printable import join_lines
from kstreams_py.records import TopicPartition

LEAST_RETENTION_MINUTES: Final = 7 * 24 * 60
"""Kafka's default of offsets.retention.minutes: with less, a graph that stands still for days loses its positions."""

TRANSACTIONS_TOPIC: Final = "__transaction_state"

TESTED_BROKERS: Final = frozenset({"4.3"})
"""Releases of Kafka with which this package is tested."""


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """A processor stands still, or will after its next start; or records are lost."""
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
class Facts:
    """The facts of a cluster that this user may see.

    - `groups`, `positions`: by the name of the group.
    - `expired`: input partitions that a processor has begun to read and that have no position, by the processor's id.
    - `found`: transactions that hang or are open for long.
    - `client`, `tested_clients`: versions of librdkafka.
    - `now`: seconds since 1970.
    - `unseen`: the missing right, by the subject that could not be seen.
    - `name`: the cluster's name in the settings; "" for the graph's own.
    - `others`: the other clusters to which the graph writes.
    - `away`: those of them that do not answer, and why.
    """

    cluster: ClusterDescription
    now: float
    logs: Logs = field(default_factory=dict)
    groups: Mapping[str, GroupInfo] = field(default_factory=dict)
    positions: GroupPositions = field(default_factory=dict)
    expired: Mapping[str, Collection[TopicPartition]] = field(default_factory=dict)
    found: Sequence[FoundTransaction] = ()
    client: str = ""
    tested_clients: Collection[str] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    others: Sequence[Facts] = ()
    away: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> str:
        """The options of a command that name the cluster."""
        return cluster_option(self.name)


@dataclass(frozen=True, slots=True)
class Examined:
    """A graph, its name on the command line, and the timeout of its transactions in milliseconds."""

    graph: Graph
    name: str
    transaction_timeout_ms: int

    def group(self, processor: Processor) -> str:
        return group_of(self.graph.name, processor.id)

    @property
    def journals(self) -> list[str]:
        return [name for each in self.graph.processors if (name := self.graph.journal_topic(each)) is not None]


def diagnose(facts: Facts, examined: Examined | None) -> list[Finding]:
    """Returns all findings, the worst first; without a graph only those of the cluster."""
    found = [finding for rule in OF_CLUSTER for finding in rule(facts)]
    if examined is not None:
        found += [finding for of_graph in OF_GRAPH for finding in of_graph(facts, examined)]
        found += [finding for other in facts.others for finding in _diagnose_other(other, examined)]
    order = list(Severity)
    return sorted(found, key=lambda each: (order.index(each.severity), each.kind, each.subject))


def _diagnose_other(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Yields the findings of a cluster that has only outputs of the graph; their subjects name the cluster."""
    found = [finding for rule in OF_OTHER_CLUSTER for finding in rule(facts)]
    found += [finding for of_graph in OF_OUTPUTS for finding in of_graph(facts, examined)]
    for each in found:
        yield replace(each, subject=f"cluster {facts.name!r}: {each.subject}")


def is_well(findings: Iterable[Finding]) -> bool:
    """Returns whether no finding is worse than a note."""
    return all(each.severity is Severity.NOTE for each in findings)


# Rules of the cluster.


def find_transactions(facts: Facts) -> Iterator[Finding]:
    """Finds transactions that hang, or are open for long."""
    for each in facts.found:
        transaction, place = each.transaction, each.partition
        held = "the positions of groups" if place.topic == POSITIONS_TOPIC else "all records behind it"
        if transaction.hangs is False:
            yield Finding(
                Severity.WARNING,
                "open_transaction",
                str(place),
                f"{headline(each, facts.now)}; readers of committed records wait for it",
                "find out why its producer does not end it; a shorter transaction_timeout_ms ends it earlier",
            )
        else:
            yield Finding(
                Severity.ERROR if transaction.hangs else Severity.WARNING,
                "hanging_transaction",
                str(place),
                f"{headline(each, facts.now)}; it hides {held} from readers",
                f"{find_command(facts.options)}, then {command(each.verb, place, transaction.start)}{facts.options}",
            )


def find_replication(facts: Facts) -> Iterator[Finding]:
    """Finds partitions without a leader or out of sync, and topics with too few replicas."""
    brokers, silent = facts.cluster.brokers, facts.cluster.silent
    for number, address in silent.items():
        yield Finding(
            Severity.WARNING,
            "broker_away",
            f"broker {number}",
            f"no connection to {address} can be made: its partitions are offline, and its replicas are not in sync",
            "start it, or make it reachable from this machine",
        )
    for topic in facts.cluster.topics.values():
        yield from _of_partitions(topic)
        yield from _of_settings(topic, len(brokers) + len(silent))


def _of_partitions(topic: TopicDescription) -> Iterator[Finding]:
    """Finds partitions of a topic that are offline or not in sync now."""
    offline = [number for number, each in enumerate(topic.partitions) if each.leader < 0]
    behind = [n for n, each in enumerate(topic.partitions) if each.leader >= 0 and each.in_sync < each.replicas]
    least = int(topic.settings.get("min.insync.replicas", 1))
    few = [n for n in behind if topic.partitions[n].in_sync < least]
    if offline:
        yield Finding(
            Severity.ERROR,
            "offline",
            f"{topic.name}{offline}",
            "the partition has no leader: it can be neither read nor written",
            "start the brokers that have it (kafka-topics.sh --describe --unavailable-partitions)",
        )
    if few:
        yield Finding(
            Severity.ERROR,
            "too_few_in_sync",
            f"{topic.name}{few}",
            f"fewer replicas are in sync than min.insync.replicas ({least}): every write with acks=all is refused",
            "start the brokers that are away, and wait (kafka-topics.sh --describe --under-min-isr-partitions)",
        )
    if behind := [number for number in behind if number not in few]:
        yield Finding(
            Severity.WARNING,
            "under_replicated",
            f"{topic.name}{behind}",
            "replicas are not in sync: fewer brokers than planned may fail",
            "start the brokers that are away, and wait (kafka-topics.sh --describe --under-replicated-partitions)",
        )


def _of_settings(topic: TopicDescription, brokers: int) -> Iterator[Finding]:
    """Finds replication and settings of a topic that endanger its records."""
    replicas = min((each.replicas for each in topic.partitions), default=0)
    alter = f"kafka-configs.sh --alter --topic {topic.name} --add-config"
    if replicas == 1 and brokers > 1:
        yield Finding(
            Severity.WARNING,
            "replication",
            topic.name,
            f"it has one replica in a cluster of {brokers} brokers: its broker's disk holds the only copy",
            "kafka-reassign-partitions.sh with 3 replicas, or replication=3 of a topic that is created again",
        )
    if topic.settings.get("unclean.leader.election.enable") == "true":
        yield Finding(
            Severity.WARNING,
            "unclean_election",
            topic.name,
            "a replica that is behind may become the leader: committed records are lost then",
            f"{alter} unclean.leader.election.enable=false",
        )
    if replicas < 2 or "min.insync.replicas" not in topic.settings:
        return
    least = int(topic.settings["min.insync.replicas"])
    if least == 1:
        yield Finding(
            Severity.WARNING,
            "min_isr",
            topic.name,
            f"min.insync.replicas is 1 of {replicas} replicas: a write may be acknowledged by one broker and lost "
            "with it",
            f"{alter} min.insync.replicas={max(2, replicas - 1)}",
        )
    elif least >= replicas:
        severity, meaning = Severity.WARNING, "one broker that is away stops all writes"
        if least > replicas:
            severity, meaning = Severity.ERROR, "every write with acks=all is refused"
        yield Finding(
            severity,
            "min_isr",
            topic.name,
            f"min.insync.replicas is {least} of {replicas} replicas: {meaning}",
            f"{alter} min.insync.replicas={max(1, replicas - 1)}",
        )


def find_offsets_retention(facts: Facts) -> Iterator[Finding]:
    """Finds brokers that delete the positions of a stopped group early."""
    minutes = _least(facts, "offsets.retention.minutes")
    if minutes is not None and minutes < LEAST_RETENTION_MINUTES:
        yield Finding(
            Severity.WARNING,
            "offsets_retention",
            "brokers",
            f"offsets.retention.minutes is {minutes}: a graph that is stopped for longer than {_time(minutes * 60)} "
            "loses its positions",
            f"offsets.retention.minutes={LEAST_RETENTION_MINUTES} or more on all brokers",
        )


def find_versions(facts: Facts) -> Iterator[Finding]:
    """Finds a client or brokers of a version that is not tested."""
    if facts.client and facts.client not in facts.tested_clients:
        yield Finding(
            Severity.WARNING,
            "librdkafka",
            facts.client,
            "this version of librdkafka is not tested: late requests are recognized by the wording of its log",
            f"pip install confluent-kafka=={', '.join(sorted(facts.tested_clients))}",
        )
    if facts.cluster.release and facts.cluster.release not in TESTED_BROKERS:
        yield Finding(
            Severity.NOTE,
            "broker_release",
            facts.cluster.release,
            f"this package is tested with brokers of Kafka {', '.join(sorted(TESTED_BROKERS))}",
            "run the tests of your graph against these brokers (KSTREAMS_TEST_BOOTSTRAP)",
        )


def find_unseen(facts: Facts) -> Iterator[Finding]:
    """Finds what this user may not see."""
    for subject, remedy in facts.unseen.items():
        yield _unseen(subject, remedy)
    if hidden := [f"broker {number}" for number, settings in facts.cluster.brokers.items() if not settings]:
        yield _unseen(f"settings of {', '.join(hidden)}", "grant this user DESCRIBE_CONFIGS on the cluster")
    for name, topic in facts.cluster.topics.items():
        if not topic.settings:
            yield _unseen(f"settings of topic {name}", f"grant this user DESCRIBE_CONFIGS on topic {name}")
    for name in facts.cluster.hidden:
        yield _unseen(f"topic {name}", f"grant this user DESCRIBE on topic {name}")


def _unseen(subject: str, remedy: str) -> Finding:
    return Finding(Severity.NOTE, "not_seen", subject, "not seen: problems there are not found", remedy)


# Rules of a graph.


def find_missing(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds topics that the graph declares on the cluster and that do not exist there."""
    declared = {topic.name for topic in examined.graph.topics.values() if topic.cluster == facts.name}
    for name in sorted(declared - facts.cluster.topics.keys() - {*facts.cluster.hidden}):
        yield Finding(
            Severity.ERROR,
            "missing_topic",
            name,
            "the graph declares it and it does not exist: no worker starts",
            f"kstreams topics create {examined.name}",
        )


def find_partitions(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds inputs of one processor that differ in their numbers of partitions, and slots without a partition."""
    for processor in examined.graph.processors:
        counts = {
            topic.name: len(facts.cluster.topics[topic.name].partitions)
            for topic in processor.inputs
            if topic.name in facts.cluster.topics
        }
        if len({*counts.values()}) > 1:
            shown = ", ".join(f"{name} has {count}" for name, count in counts.items())
            yield Finding(
                Severity.ERROR,
                "partitions_differ",
                processor.id,
                f"its inputs differ in partitions ({shown}): no worker starts",
                "kafka-topics.sh --alter --partitions on the smaller ones; records keep their partitions",
            )
        members = len(_members(facts, examined, processor))
        if counts and members > max(counts.values()):
            yield Finding(
                Severity.NOTE,
                "spare_slots",
                processor.id,
                f"{members} slots share {max(counts.values())} partition(s): the others only stand by",
                "run fewer slots, or add partitions to the inputs",
            )


def find_positions(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds positions with which the next start ends with InputLost."""
    for processor, tp, position, log in _positions(facts, examined):
        if log.start <= position <= log.stable:
            continue
        which = f"the log begins at {log.start}" if position < log.start else f"the log ends at {log.stable}"
        yield Finding(
            Severity.ERROR,
            "input_lost",
            f"{processor.id}: {tp}",
            f"its position is {position} and {which}: the next start ends with InputLost",
            f"stop its workers, then kstreams recover reset {examined.name} {processor.id} --to-offset "
            f"{tp.topic}:{tp.partition}:{log.start if position < log.start else log.stable}",
        )
    for name, partitions in facts.expired.items():
        for tp in sorted(partitions):
            yield Finding(
                Severity.ERROR,
                "position_expired",
                f"{name}: {tp}",
                "it was read before and its position no longer exists: the next start ends with InputLost",
                f"kstreams recover reset {examined.name} {name} --to-offset {tp.topic}:{tp.partition}:OFFSET",
            )


def find_retention(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds unread records that retention will delete."""
    for processor, tp, position, log in _positions(facts, examined):
        settings = facts.cluster.topics[tp.topic].settings
        if not log.start <= position < log.stable or "delete" not in settings.get("cleanup.policy", ""):
            continue
        yield from _of_time(processor, tp, position, log, int(settings["retention.ms"]))
        yield from _of_bytes(processor, tp, position, log, int(settings["retention.bytes"]))


def _of_time(
    processor: Processor, tp: TopicPartition, position: int, log: LogInfo, retention: int
) -> Iterator[Finding]:
    """Compares the next record with retention.ms. `log.since` has the first offsets within all and half of it."""
    shares = zip(("all", "half"), sorted(log.since.items()), strict=False)
    if ages := [share for share, (_, young) in shares if position < young]:
        yield Finding(
            Severity.ERROR if "all" in ages else Severity.WARNING,
            "retention_time",
            f"{processor.id}: {tp}",
            f"the next record, at offset {position}, is older than {ages[0]} of retention.ms "
            f"({_time(retention / 1000)}): it is deleted before it is read",
            f"kafka-configs.sh --alter --topic {tp.topic} --add-config retention.ms=-1, until the lag is gone",
        )


def _of_bytes(
    processor: Processor, tp: TopicPartition, position: int, log: LogInfo, retention: int
) -> Iterator[Finding]:
    """Compares the unread bytes, estimated by their share of the offsets, with retention.bytes."""
    if retention < 0 or log.size is None:
        return
    unread = round(log.size * (log.stable - position) / max(1, log.stable - log.start))
    if unread * 2 >= retention:
        yield Finding(
            Severity.ERROR if unread >= retention else Severity.WARNING,
            "retention_bytes",
            f"{processor.id}: {tp}",
            f"about {unread:,} bytes are not read, and retention.bytes is {retention:,}: the oldest of them "
            "are deleted before they are read",
            f"kafka-configs.sh --alter --topic {tp.topic} --add-config retention.bytes=-1, until the lag is gone",
        )


def find_own_topics(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds journals whose records are compacted or expire."""
    for name in examined.journals:
        settings = facts.cluster.topics[name].settings if name in facts.cluster.topics else {}
        wrong = {
            setting: value
            for setting, value in settings.items()
            if (setting == "cleanup.policy" and value != "delete")
            or (setting in ("retention.ms", "retention.bytes") and value != "-1")
        }
        if wrong:
            yield Finding(
                Severity.ERROR,
                "journal_settings",
                name,
                f"{', '.join(f'{key} is {value}' for key, value in sorted(wrong.items()))}: the newest record of a "
                "journal may be deleted",
                f"kafka-configs.sh --alter --topic {name} --add-config "
                "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1",
            )


def find_delivered(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds topics beside outputs on another cluster that may lose the record of the newest delivery."""
    for processor in examined.graph.processors:
        name = examined.graph.delivered(processor)
        if name is None or processor.cluster != facts.name or name not in facts.cluster.topics:
            continue
        policy = facts.cluster.topics[name].settings.get("cleanup.policy", "compact")
        if policy != "compact":
            yield Finding(
                Severity.ERROR,
                "delivered_settings",
                name,
                f"cleanup.policy is {policy}: the record of the newest delivery may be deleted",
                f"kafka-configs.sh --alter --topic {name} --add-config cleanup.policy=compact",
            )


def find_away(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds other clusters that do not answer."""
    for name, why in facts.away.items():
        writers = ", ".join(each.id for each in examined.graph.processors if each.cluster == name)
        yield Finding(
            Severity.ERROR,
            "cluster_away",
            f"cluster {name!r}",
            f"it does not answer, and is not examined: {writers} can deliver nothing: {why}",
            f"repair it, or correct [clusters.{name}] in the settings",
        )


def find_timeouts(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds brokers that refuse the timeout of the graph's transactions."""
    longest = _least(facts, "transaction.max.timeout.ms")
    if longest is not None and longest < examined.transaction_timeout_ms:
        yield Finding(
            Severity.ERROR,
            "transaction_timeout",
            "brokers",
            f"transaction.max.timeout.ms is {longest}, and transaction_timeout_ms of the graph is "
            f"{examined.transaction_timeout_ms}: no worker starts",
            f"KSTREAMS_TRANSACTION_TIMEOUT_MS={longest}, or a larger transaction.max.timeout.ms on all brokers",
        )


def find_sizes(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds outputs that accept only smaller records than the inputs."""
    for processor in examined.graph.processors:
        sizes = {
            name: size
            for each in (facts, *facts.others)
            for name in each.cluster.topics
            if (size := _setting(each, name, "max.message.bytes"))
        }
        largest = max((sizes[topic.name] for topic in processor.inputs if topic.name in sizes), default=0)
        for topic in processor.outputs:
            if topic.name in sizes and sizes[topic.name] < largest:
                yield Finding(
                    Severity.NOTE,
                    "max_message_bytes",
                    f"{processor.id}: {topic.name}",
                    f"it takes records of {sizes[topic.name]} bytes and an input has up to {largest}: larger ones "
                    "become dead letters, or stop the worker",
                    f"kafka-configs.sh --alter --topic {topic.name} --add-config max.message.bytes={largest}",
                )


def find_members(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds groups with foreign members, and groups that are stopped."""
    for processor in examined.graph.processors:
        group = examined.group(processor)
        others = [each for each in _members(facts, examined, processor) if slot_of(group, each.instance) is None]
        if others:
            shown = ", ".join(f"{each.instance or each.client_id} on {each.host}" for each in others)
            yield Finding(
                Severity.ERROR,
                "foreign_member",
                group,
                f"members that are no slot of this graph take partitions, whose records no worker reads: {shown}",
                "stop them, or give them another group.id",
            )
        minutes = _least(facts, "offsets.retention.minutes")
        info = facts.groups.get(group)
        if info is not None and not info.members and facts.positions.get(group):
            kept = "offsets.retention.minutes of the brokers" if minutes is None else _time(minutes * 60)
            yield Finding(
                Severity.NOTE,
                "stopped",
                group,
                f"it has no members: its positions are kept for {kept} after it has stopped",
                f"start it before, or kstreams recover export {examined.name} > FILE",
            )


def find_dropping(facts: Facts, examined: Examined) -> Iterator[Finding]:  # noqa: ARG001
    """Finds processors without a dead-letter topic."""
    for processor in examined.graph.processors:
        if processor.errors is None:
            yield Finding(
                Severity.NOTE,
                "dropped",
                processor.id,
                "a record for which its function raises is dropped with a warning: it has no dead-letter topic",
                f'declare errors="{examined.graph.name}.errors" for it or its graph, and the record is kept there',
            )


OF_CLUSTER: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    find_transactions,
    find_replication,
    find_offsets_retention,
    find_versions,
    find_unseen,
)

OF_GRAPH: Final[tuple[Callable[[Facts, Examined], Iterator[Finding]], ...]] = (
    find_missing,
    find_partitions,
    find_positions,
    find_retention,
    find_own_topics,
    find_away,
    find_timeouts,
    find_sizes,
    find_members,
    find_dropping,
)

OF_OTHER_CLUSTER: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    find_transactions,
    find_replication,
    find_versions,
    find_unseen,
)

OF_OUTPUTS: Final[tuple[Callable[[Facts, Examined], Iterator[Finding]], ...]] = (
    find_missing,
    find_delivered,
    find_timeouts,
)


def _positions(facts: Facts, examined: Examined) -> Iterator[tuple[Processor, TopicPartition, int, LogInfo]]:
    """Yields the positions of all processors, each with its log."""
    for processor in examined.graph.processors:
        inputs = {topic.name for topic in processor.inputs}
        for tp, position in sorted(facts.positions.get(examined.group(processor), {}).items()):
            if tp.topic in inputs and tp in facts.logs:
                yield processor, tp, position, facts.logs[tp]


def _members(facts: Facts, examined: Examined, processor: Processor) -> Sequence[Any]:
    info = facts.groups.get(examined.group(processor))
    return () if info is None else info.members


def _least(facts: Facts, name: str) -> int | None:
    """Returns the smallest value of a setting among the brokers; None if none shows it."""
    return min((int(each[name]) for each in facts.cluster.brokers.values() if name in each), default=None)


def _setting(facts: Facts, topic: str, name: str) -> int:
    """Returns a setting of a topic as a number; 0 if it was not seen."""
    return int(facts.cluster.topics[topic].settings.get(name, 0))


def _time(seconds: float) -> str:
    """Returns seconds as text in the largest unit that divides them."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


# As text and as JSON.


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
