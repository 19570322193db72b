"""Finds what holds readers back or endangers a promise on a cluster, whatever the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from kstreams_py.kafka.described_cluster import TopicDescription
from kstreams_py.kafka.groups import POSITIONS_TOPIC
from kstreams_py.kafka.transactions import command, find_command
from kstreams_py.operations.doctor.findings import Facts, Finding, Severity, show_duration
from kstreams_py.operations.transactions.hanging import headline

LEAST_RETENTION_MINUTES: Final = 7 * 24 * 60
"""Kafka's default for offsets.retention.minutes: with less, a graph that is stopped for days loses its positions."""

TESTED_BROKERS: Final = frozenset({"4.3"})
"""Releases of Kafka with which this package is tested."""


def find_transactions(facts: Facts) -> Iterator[Finding]:
    """Finds transactions that hang, or have been open for long."""
    for each in facts.found:
        transaction, place = each.transaction, each.partition
        held = "the positions of groups" if place.topic == POSITIONS_TOPIC else "all records after it"
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
    for number, address in facts.cluster.silent.items():
        yield Finding(
            Severity.WARNING,
            "broker_away",
            f"broker {number}",
            f"no connection to {address} can be made: its partitions are offline, and its replicas are not in sync",
            "start it, or make it reachable from this machine",
        )
    for topic in facts.cluster.topics.values():
        yield from _of_partitions(facts, topic)
        yield from _of_settings(facts, topic)


def _of_partitions(facts: Facts, topic: TopicDescription) -> Iterator[Finding]:
    """Finds partitions of a topic that are offline or not in sync now."""
    describe = partial(facts.command, "topics", "--describe")
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
            f"start the brokers that have it ({describe('--unavailable-partitions')})",
        )
    if few:
        yield Finding(
            Severity.ERROR,
            "too_few_in_sync",
            f"{topic.name}{few}",
            f"fewer replicas are in sync than min.insync.replicas ({least}): every write with acks=all is refused",
            f"start the brokers that are away, and wait ({describe('--under-min-isr-partitions')})",
        )
    if behind := [number for number in behind if number not in few]:
        yield Finding(
            Severity.WARNING,
            "under_replicated",
            f"{topic.name}{behind}",
            "replicas are not in sync: fewer brokers than planned may fail",
            f"start the brokers that are away, and wait ({describe('--under-replicated-partitions')})",
        )


def _of_settings(facts: Facts, topic: TopicDescription) -> Iterator[Finding]:
    """Finds replication and settings of a topic that endanger its records."""
    replicas = min((each.replicas for each in topic.partitions), default=0)
    brokers = len(facts.cluster.brokers) + len(facts.cluster.silent)
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
            facts.alter(topic.name, "unclean.leader.election.enable=false"),
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
            facts.alter(topic.name, f"min.insync.replicas={max(2, replicas - 1)}"),
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
            facts.alter(topic.name, f"min.insync.replicas={max(1, replicas - 1)}"),
        )


def find_offsets_retention(facts: Facts) -> Iterator[Finding]:
    """Finds brokers that delete the positions of a stopped group early."""
    minutes = facts.least("offsets.retention.minutes")
    if minutes is not None and minutes < LEAST_RETENTION_MINUTES:
        yield Finding(
            Severity.WARNING,
            "offsets_retention",
            "brokers",
            f"offsets.retention.minutes is {minutes}: a graph that is stopped for longer than "
            f"{show_duration(minutes * 60)} loses its positions",
            f"offsets.retention.minutes={LEAST_RETENTION_MINUTES} or more on all brokers",
        )


def find_versions(facts: Facts) -> Iterator[Finding]:
    """Finds a client or brokers whose version is not tested."""
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


OF_CLUSTER: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    find_transactions,
    find_replication,
    find_offsets_retention,
    find_versions,
    find_unseen,
)

OF_OTHER_CLUSTER: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    find_transactions,
    find_replication,
    find_versions,
    find_unseen,
)
