"""Reads the committed state from its changelog, while workers write it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from kstreams_py.errors import DecodeError, TopicError
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import Serde, bind, show
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.loading import UNKNOWN, show_command, show_target
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.kafka.foreign_records import foreign
from kstreams_py.kafka.transactions import find_command_at
from kstreams_py.records import Message, TopicPartition
from kstreams_py.state.changelog import READ_AT_ONCE, Commands
from kstreams_py.state.keyed import RESERVED

logger = logging.getLogger(__name__)


def bind_state(graph: Graph, processor: Processor, registry: Registry) -> tuple[Serde, Serde]:
    """Returns the serdes of the keys and values of a processor's state, bound to their subjects in the registry."""
    state, changelog = processor.state, changelog_of(graph.name, processor)
    assert state is not None, f"{processor.id} has no state"
    return bind(state.key, registry, f"{changelog}-key"), bind(state.value, registry, f"{changelog}-value")


def commands_of(graph: Graph, processor: Processor, bootstrap_servers: str | None = None) -> Commands:
    """Returns the commands for messages about a processor's state; without an address, `find` names no changelog."""
    found = Commands()
    if bootstrap_servers is not None:
        changelog = changelog_of(graph.name, processor) or ""
        found = found._replace(find=find_command_at(bootstrap_servers, [changelog]))
    if show_target(graph) == UNKNOWN:
        return found
    reset = show_command(graph, "recover reset", processor.id)
    return found._replace(reset=reset, delete=show_command(graph, "topics delete", "--processor", processor.id))


def read_state(graph: Graph, processor: Processor, cluster: Cluster, registry: Registry) -> dict[Any, Any]:
    """Returns the committed keys and values of all tasks, in the order of the keys' bytes.

    Raises TopicError if the changelog does not exist or has a record that is not a change of a state, DecodeError if a
    serde cannot read a key or value, and ClientError.
    """
    key, value = bind_state(graph, processor, registry)
    tasks = _read_tasks(graph, processor, cluster, reserved=False)
    found = {key: data for task in tasks.values() for key, data in task.items()}
    split = {each: [n for n, task in tasks.items() if each in task] for each in found}
    for each, numbers in split.items():
        if len(numbers) > 1:
            logger.warning(
                "%s: key %s of the state has a value in each of partitions %s, each made from the records of its "
                "partition only: the records do not have the key of the state, or partitions were added to the input: "
                "write the records to a new topic with the key of the state, and read the new topic from the start",
                processor.id, show(key.deserialize(each)), ", ".join(map(str, numbers)),
            )  # fmt: skip
            break
    return {key.deserialize(each): value.deserialize(found[each]) for each in sorted(found)}


def read_reserved(graph: Graph, processor: Processor, cluster: Cluster) -> dict[int, dict[bytes, bytes]]:
    """Returns, by partition, the committed keys and values that the framework keeps for itself in the changelog.

    Raises TopicError if the changelog does not exist or has a record that is not a change of a state, and ClientError.
    """
    return _read_tasks(graph, processor, cluster, reserved=True)


def _read_tasks(
    graph: Graph, processor: Processor, cluster: Cluster, *, reserved: bool
) -> dict[int, dict[bytes, bytes]]:
    changelog = changelog_of(graph.name, processor) or ""
    topic = cluster.topics([changelog]).get(changelog)
    if topic is None:
        raise TopicError(f"changelog {changelog!r} does not exist: start a worker of the graph, which creates it")
    found: dict[int, dict[bytes, bytes]] = {}
    for number in range(topic.partitions):
        task = found[number] = {}
        for m in _records(cluster, TopicPartition(changelog, number)):
            try:
                data, key = m.value(), m.key()
            except DecodeError as error:
                raise _foreign(graph, processor, m, error) from None
            if key is None:
                raise _foreign(graph, processor, m, "it has no key")
            if key.startswith(RESERVED) is not reserved:
                continue
            if data is None:
                task.pop(key, None)
            else:
                task[key] = data
    return found


def _foreign(graph: Graph, processor: Processor, m: Message, why: object) -> TopicError:
    remedy = commands_of(graph, processor).start_over(m.topic())
    return TopicError(f"{foreign(m, 'a change of a state', why)}: {remedy}")


def _records(cluster: Cluster, tp: TopicPartition) -> Iterator[Message]:
    at, records = 0, cluster.read(tp, 0, READ_AT_ONCE)
    while records:
        yield from records
        at = records[-1].offset() + 1
        records = cluster.read(tp, at, READ_AT_ONCE) if len(records) == READ_AT_ONCE else ()
