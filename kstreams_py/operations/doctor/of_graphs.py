"""Finds what stops a graph, makes its next start fail, or endangers what it reads and writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from kstreams_py.graph.names import show_retry
from kstreams_py.graph.source import SourceStatus
from kstreams_py.kafka.described_cluster import LogInfo
from kstreams_py.kafka.groups import slot_of
from kstreams_py.operations.doctor.findings import Examined, Facts, Finding, Severity, TopicReader, show_duration
from kstreams_py.operations.recover.task_status import TaskStatus, reset_command
from kstreams_py.printable import count_are, count_of
from kstreams_py.records import TopicPartition
from kstreams_py.sources.suspects import DEATHS_MAX


def find_missing(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds topics that the graph declares on the cluster and that do not exist there."""
    declared = {topic.name for topic in examined.graph.topics.values() if topic.cluster == facts.name}
    for name in sorted(declared - facts.cluster.topics.keys() - {*facts.cluster.hidden}):
        yield Finding(
            Severity.ERROR,
            "missing_topic",
            name,
            "the graph declares it, but it does not exist: no worker starts",
            f"kstreams topics create {examined.name}",
        )


def find_partitions(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds inputs of one processor that differ in their numbers of partitions, and slots without a partition."""
    for reader in examined.readers:
        counts = {
            topic.name: len(facts.cluster.topics[topic.name].partitions)
            for topic in reader.inputs
            if topic.name in facts.cluster.topics
        }
        if len({*counts.values()}) > 1:
            shown = ", ".join(f"{name} has {count}" for name, count in counts.items())
            most = max(counts.values())
            grow = [
                facts.command("topics", "--alter", "--topic", name, "--partitions", str(most))
                for name, count in counts.items()
                if count < most
            ]
            yield Finding(
                Severity.ERROR,
                "partitions_differ",
                reader.name,
                f"its inputs differ in partitions ({shown}): no worker starts",
                f"{'; '.join(grow)}; records keep their partitions",
            )
        members = len(_members(facts, reader))
        if counts and members > max(counts.values()):
            yield Finding(
                Severity.NOTE,
                "spare_slots",
                reader.name,
                f"{members} slots share {max(counts.values())} partition(s): the other slots stay idle",
                "run fewer slots, or, if it has no state, add partitions to the inputs",
            )


def find_positions(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds positions that make the next start end with InputLost."""
    for reader, tp, position, log in _positions(facts, examined):
        if log.start <= position <= log.stable:
            continue
        offset = log.start if position < log.start else log.stable
        reset = f"kstreams recover reset {examined.name} {reader.name} --to-offset {tp.topic}:{tp.partition}:{offset}"
        if not reader.is_processor:
            reset = reset_command(facts.cluster.servers, reader.group, tp, offset)
        which = f"the log begins at {log.start}" if position < log.start else f"the log ends at {log.stable}"
        yield Finding(
            Severity.ERROR,
            "input_lost",
            f"{reader.name}: {tp}",
            f"its position is {position} and {which}: the next start ends with InputLost",
            f"stop its workers, then {reset}",
        )
    for name, partitions in facts.expired.items():
        for tp, first in sorted(partitions.items()):
            yield Finding(
                Severity.ERROR,
                "position_expired",
                f"{name}: {tp}",
                "it was read before and its position no longer exists: the next start ends with InputLost",
                f"stop its workers, then kstreams recover reset {examined.name} {name} --to-offset "
                f"{tp.topic}:{tp.partition}:{first} reads all that is kept; a later offset leaves out what was done",
            )


def find_refusals(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds tasks whose next start ends with an error, unless another finding says so with a command to type."""
    known = {each.subject for rule in (find_partitions, find_positions) for each in rule(facts, examined)}
    inputs = {each.name: [topic.name for topic in each.inputs] for each in examined.readers}
    refused: dict[str, list[TaskStatus]] = {}
    for task in facts.tasks:
        subjects = {f"{task.processor}: {topic}[{task.partition}]" for topic in inputs[task.processor]}
        if task.is_refused and known.isdisjoint(subjects | {task.processor}):
            # errors that differ only in numbers (of partitions and offsets) are one finding
            refused.setdefault(re.sub(r"\d+", "0", task.ends), []).append(task)
    for tasks in refused.values():
        yield Finding(
            Severity.ERROR,
            "refused_start",
            ", ".join(f"{task.processor}[{task.partition}]" for task in tasks),
            f"the next start {tasks[0].ends}",
            f"kstreams recover status {examined.name} shows all tasks",
        )


def find_doubts(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds processors that the next start does not refuse but may treat in an unintended way."""
    for processor in examined.graph.processors:
        tasks = [each for each in facts.tasks if each.processor == processor.id and not each.is_refused]
        if others := ", ".join(dict.fromkeys(name for each in tasks for name in each.new_name_of)):
            yield Finding(
                Severity.WARNING,
                "new_name",
                processor.id,
                f"the next start begins it as a processor that is new: it may be the new name of {others}",
                f"kstreams recover status {examined.name} shows where it begins, and prints what to do if it is",
            )
        if empty := [each for each in tasks if each.begins_empty]:
            yield Finding(
                Severity.WARNING,
                "empty_state",
                ", ".join(f"{processor.id}[{each.partition}]" for each in empty),
                f"the next start {empty[0].next}",
                f"if the name of the state has changed, give it the previous one; to make it again of all records, "
                f"kstreams recover reset {examined.name} {processor.id} --to-beginning",
            )
        if away := next((each.away for each in tasks if each.away), ""):
            yield Finding(
                Severity.ERROR,
                "target_away",
                processor.id,
                f"its target cannot be used, and the next start waits: {away}",
                f"kstreams recover status {examined.name} shows all tasks",
            )
        if growth := next((each.growth for each in tasks if each.growth), ""):
            yield Finding(
                Severity.WARNING,
                "grown_input",
                processor.id,
                growth,
                "unless no key has such records, copy the input to a new topic, read that one, and make the state "
                f"again: kstreams topics delete {examined.name} --processor {processor.id}, then kstreams recover "
                f"reset {examined.name} {processor.id} --to-beginning",
            )


def find_undeclared(facts: Facts, examined: Examined) -> Iterator[Finding]:  # noqa: ARG001, as all rules of a graph
    """Finds processors that have read inputs and that the graph no longer declares."""
    for each in facts.undeclared:
        held = f"; {', '.join(each.members)} still runs it" if each.members else ""
        yield Finding(
            Severity.WARNING if each.members else Severity.NOTE,
            "undeclared",
            each.group,
            f"the graph no longer declares {each.processor!r}, which has read its inputs{held}",
            each.remedy,
        )


def find_retention(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds unread records that retention will delete."""
    for reader, tp, position, log in _positions(facts, examined):
        settings = facts.cluster.topics[tp.topic].settings
        if not log.start <= position < log.stable or "delete" not in settings.get("cleanup.policy", ""):
            continue
        alter = partial(facts.alter, tp.topic)
        yield from _of_time(reader, tp, position, log, int(settings["retention.ms"]), alter)
        yield from _of_bytes(reader, tp, position, log, int(settings["retention.bytes"]), alter)


def _of_time(
    reader: TopicReader, tp: TopicPartition, position: int, log: LogInfo, retention: int, alter: Callable[[str], str]
) -> Iterator[Finding]:
    """Compares the next record's age with retention.ms.

    `log.since` has the first offset within all of retention.ms, and the first offset within half of it.
    """
    shares = zip(("all", "half"), sorted(log.since.items()), strict=False)
    if ages := [share for share, (_, young) in shares if position < young]:
        yield Finding(
            Severity.ERROR if "all" in ages else Severity.WARNING,
            "retention_time",
            f"{reader.name}: {tp}",
            f"the next record, at offset {position}, is older than {ages[0]} of retention.ms "
            f"({show_duration(retention / 1000)}): it is deleted before it is read",
            f"{alter('retention.ms=-1')}, until the lag is gone",
        )


def _of_bytes(
    reader: TopicReader, tp: TopicPartition, position: int, log: LogInfo, retention: int, alter: Callable[[str], str]
) -> Iterator[Finding]:
    """Compares the unread bytes, estimated by their share of the offsets, with retention.bytes."""
    if retention < 0 or log.size is None:
        return
    unread = round(log.size * (log.stable - position) / max(1, log.stable - log.start))
    if unread * 2 >= retention:
        yield Finding(
            Severity.ERROR if unread >= retention else Severity.WARNING,
            "retention_bytes",
            f"{reader.name}: {tp}",
            f"about {unread:,} bytes are not read, and retention.bytes is {retention:,}: the oldest of them "
            "are deleted before they are read",
            f"{alter('retention.bytes=-1')}, until the lag is gone",
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
                facts.alter(name, "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1"),
            )


def find_delivered(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds topics of deliveries to another cluster that may lose the record of the newest delivery."""
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
                facts.alter(name, "cleanup.policy=compact"),
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
    longest = facts.least("transaction.max.timeout.ms")
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
    owners = {name: each for each in (facts, *facts.others) for name in each.cluster.topics}
    for reader in examined.readers:
        sizes = {name: size for name, each in owners.items() if (size := _setting(each, name, "max.message.bytes"))}
        largest = max((sizes[topic.name] for topic in reader.inputs if topic.name in sizes), default=0)
        for topic in reader.outputs:
            if topic.name in sizes and sizes[topic.name] < largest:
                yield Finding(
                    Severity.NOTE,
                    "max_message_bytes",
                    f"{reader.name}: {topic.name}",
                    f"it takes records of {sizes[topic.name]} bytes and an input has up to {largest}: larger ones "
                    "become dead letters, or stop the worker",
                    owners[topic.name].alter(topic.name, f"max.message.bytes={largest}"),
                )


def find_members(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds groups with foreign members, and groups that are stopped."""
    for reader in examined.readers:
        group = reader.group
        others = [each for each in _members(facts, reader) if slot_of(group, each.instance) is None]
        if others:
            shown = ", ".join(map(str, others))
            yield Finding(
                Severity.ERROR,
                "foreign_member",
                group,
                f"members that are not slots of this graph take partitions, whose records no worker reads: {shown}",
                "stop them, or give them another group.id",
            )
        minutes = facts.least("offsets.retention.minutes")
        info = facts.groups.get(group)
        if info is not None and not info.members and facts.positions.get(group):
            kept = "offsets.retention.minutes of the brokers" if minutes is None else show_duration(minutes * 60)
            yield Finding(
                Severity.NOTE,
                "stopped",
                group,
                f"it has no members: its positions are kept for {kept} after it has stopped",
                f"start it before, or kstreams recover export {examined.name} > FILE"
                if reader.is_processor
                else f"start it before: without its positions, {reader.name} reads the topic from its beginning",
            )


def find_letters(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds dead letters that nobody has replayed or discarded."""
    for topic, each in facts.letters.items():
        if each.count:
            number = f"{'' if each.is_whole else 'at least '}{each.count:,} dead letter"
            wait = " waits" if each.count == 1 else "s wait"
            since = f", the first of {each.since}" if each.since else ""
            yield Finding(
                Severity.WARNING,
                "dead_letters",
                topic,
                f"{number}{wait}{since}: nobody has replayed or discarded {'it' if each.count == 1 else 'them'}",
                f"kstreams dead-letters list {examined.name}; fix the cause, then kstreams dead-letters replay "
                f"{examined.name}; or kstreams dead-letters discard {examined.name} --reason TEXT",
            )


def find_sources(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Finds sources that cannot be read, refused inputs, and inputs that wait for a worker."""
    for name, fact in facts.sources.items():
        subject, status = f"{name} ({fact.medium})", fact.status
        if status is not None:
            yield from _of_inputs(subject, name, status, examined)
        elif fact.why:
            yield Finding(
                Severity.ERROR,
                "source_away",
                subject,
                f"it cannot be read: {fact.why}",
                "repair it, or correct its declaration; what was read before stays claimed",
            )


def _inputs_were(count: int) -> str:
    return f"{count_of(count, 'input')} {_were(count)}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _of_inputs(subject: str, name: str, status: SourceStatus, examined: Examined) -> Iterator[Finding]:
    if status.refused:
        some = "; ".join(f"{each.key}: {each.reason}" for each in status.shown)
        more = ", ..." if status.refused > len(status.shown) else ""
        yield Finding(
            Severity.WARNING,
            "refused_inputs",
            subject,
            f"{_inputs_were(status.refused)} refused, and no worker reads {_them(status.refused)} again ({some}{more})",
            f"kstreams sources list {examined.name}; fix the cause, then {show_retry(examined.name, name)}",
        )
    if status.claimed_suspects:
        yield Finding(
            Severity.WARNING,
            "suspected_inputs",
            subject,
            f"{count_are(status.claimed_suspects, 'input')} under way, and {_were(status.claimed_suspects)} so at "
            f"several deaths of workers before: at {DEATHS_MAX} deaths an input is refused",
            f"read in the log of kstreams run {examined.name} why its workers end, and fix that",
        )
    alone = f"; {status.suspects:,} of the inputs were so at several deaths, and are read by themselves"
    alone = alone if status.suspects else ""
    if status.abandoned:
        yield Finding(
            Severity.WARNING,
            "abandoned_inputs",
            subject,
            f"{_inputs_were(status.abandoned)} under way when a worker ended without giving its inputs back{alone}",
            f"kstreams run {examined.name} reads them again, and stores what is stored already no second time",
        )
    elif status.free and not status.claimed:
        yield Finding(
            Severity.NOTE,
            "waiting_inputs",
            subject,
            f"{_inputs_were(status.free)} given back, and no worker has read {_them(status.free)} again{alone}",
            f"kstreams run {examined.name} reads them again",
        )


def find_dropping(facts: Facts, examined: Examined) -> Iterator[Finding]:  # noqa: ARG001, as all rules of a graph
    """Finds processors, and tasks that read a topic, without a dead-letter topic."""
    for reader in examined.readers:
        if reader.errors is None:
            yield Finding(
                Severity.NOTE,
                "dropped",
                reader.name,
                "a record for which its function raises is dropped with a warning: it has no dead-letter topic",
                f'declare errors="{examined.graph.name}.errors" for it or its graph, and the record is kept there',
            )


OF_GRAPH: Final[tuple[Callable[[Facts, Examined], Iterator[Finding]], ...]] = (
    find_missing,
    find_partitions,
    find_positions,
    find_refusals,
    find_doubts,
    find_undeclared,
    find_retention,
    find_own_topics,
    find_away,
    find_timeouts,
    find_sizes,
    find_members,
    find_letters,
    find_sources,
    find_dropping,
)

OF_OUTPUTS: Final[tuple[Callable[[Facts, Examined], Iterator[Finding]], ...]] = (
    find_missing,
    find_delivered,
    find_timeouts,
)


def _positions(facts: Facts, examined: Examined) -> Iterator[tuple[TopicReader, TopicPartition, int, LogInfo]]:
    """Yields the positions of all groups, each with its log."""
    for reader in examined.readers:
        inputs = {topic.name for topic in reader.inputs}
        for tp, position in sorted(facts.positions.get(reader.group, {}).items()):
            if tp.topic in inputs and tp in facts.logs:
                yield reader, tp, position, facts.logs[tp]


def _members(facts: Facts, reader: TopicReader) -> Sequence[Any]:
    info = facts.groups.get(reader.group)
    return () if info is None else info.members


def _setting(facts: Facts, topic: str, name: str) -> int:
    """Returns a setting of a topic as a number; 0 if it was not seen."""
    return int(facts.cluster.topics[topic].settings.get(name, 0))
