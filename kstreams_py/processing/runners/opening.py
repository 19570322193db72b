"""Makes the runner of a processor, with its dead letters and the stores of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.processing.commits.opening import committer_of
from kstreams_py.processing.runners.ordered import OrderedRunner
from kstreams_py.processing.runners.overlapping import OverlappingRunner
from kstreams_py.processing.runners.runner import Runner
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.state.changelog import Changelog
from kstreams_py.state.keyed import Base, MemoryBase, TaskStore
from kstreams_py.state.reading import bind_state, commands_of
from kstreams_py.state.rocks import RocksBase
from kstreams_py.state.stores import Stores
from kstreams_py.steps.calls import wait_for_each
from kstreams_py.steps.dead_letters import DeadLetters
from kstreams_py.steps.environment import Environment, open_dead_letters
from kstreams_py.steps.tracing import Tracing


def make_runner(
    processor: Processor,
    tasks: Tasks,
    environment: Environment,
    dead_letters: DeadLetters | None,
    tracing: Tracing | None = None,
    *,
    traces_outputs: bool = False,
    stores: Mapping[int, TaskStore] | None = None,
) -> Runner:
    """Makes the runner of a processor: with overlapping calls, if it declares them.

    `tracing` makes its spans; `stores` has the states of its tasks.
    """
    if processor.overlaps:
        return OverlappingRunner(processor, tasks, environment, dead_letters, tracing, traces_outputs=traces_outputs)
    if processor.asynchronous:  # a batch: one call at a time
        processor = replace(processor, function=wait_for_each(processor.function), asynchronous=False)
    registry = environment.registry
    if processor.ordered is not None and stores is not None:
        return OrderedRunner(processor, tasks, registry, dead_letters, tracing=tracing, stores=stores)
    return Runner(
        processor, tasks, registry, dead_letters, traces_outputs=traces_outputs, tracing=tracing, stores=stores
    )


def open_runner(
    graph: Graph,
    processor: Processor,
    slot: int,
    tasks: Tasks,
    environment: Environment,
    topics: Mapping[str, TopicInfo],
    tracing: Tracing | None,
) -> tuple[Runner, Stores | None]:
    """Makes the runner of a worker, with its dead letters, and the stores of its state if it has one."""
    dead_letters = open_dead_letters(graph, processor, topics, environment, tracing)
    stores = _open_stores(graph, processor, slot, environment, topics)
    traces = committer_of(processor).traces_outputs
    by_partition = None if stores is None else stores.by_partition
    runner = make_runner(
        processor, tasks, environment, dead_letters, tracing, traces_outputs=traces, stores=by_partition
    )
    return runner, stores


def name_state(processor: Processor) -> str:
    """Returns the name of a processor's state in messages; "" if it has no state."""
    return "" if processor.state is None else f"{processor.id}: state {processor.state.name!r}"


def _open_stores(
    graph: Graph, processor: Processor, slot: int, environment: Environment, topics: Mapping[str, TopicInfo]
) -> Stores | None:
    if processor.state is None:
        return None
    on_disk = processor.state.on_disk
    directory = environment.settings.state_directory / graph.name / processor.state.name / str(slot)

    def open_base(number: int, changelog_id: str) -> Base:
        return RocksBase(directory / str(number), changelog_id) if on_disk else MemoryBase()

    return open_stores(graph, processor, environment, topics, open_base)


def open_stores(
    graph: Graph,
    processor: Processor,
    environment: Environment,
    topics: Mapping[str, TopicInfo],
    open_base: Callable[[int, str], Base],
) -> Stores | None:
    """Returns the stores of a processor's state; None without a state.

    - `open_base`: opens the committed part of a store; takes its partition number and the id of the changelog.
    """
    changelog = changelog_of(graph.name, processor)
    if changelog is None or processor.state is None:
        return None
    inputs = {topic.name: topics[topic.name].topic_id for topic in processor.inputs}
    key, value = bind_state(graph, processor, environment.registry)
    known = Changelog(changelog, topics[changelog].topic_id if changelog in topics else "")

    def open_store(number: int, changelog_id: str) -> TaskStore:
        return TaskStore(open_base(number, changelog_id), key, value)

    name = name_state(processor)
    commands = partial(commands_of, graph, processor, environment.settings.bootstrap_servers)
    return Stores(name, known, inputs, environment.cluster, open_store, environment.clock, commands)
