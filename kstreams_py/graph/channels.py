"""Tasks: functions that read or write channels, which carry values in memory; and the options that tasks refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from kstreams_py.errors import GraphError
from kstreams_py.graph.declarations import Channel, Topic
from kstreams_py.graph.functions import is_asynchronous, is_generator, wants_step
from kstreams_py.graph.retry import Retry
from kstreams_py.graph.sink import Evidence, Sink


class TaskKind(StrEnum):
    """The kinds of tasks, by what a step reads."""

    MAP = "map"
    ALTS = "alts"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class JobTask:
    """A function with its input and output channels; the fields are as in Processor.

    - `inputs`: channels; if the task reads a topic, the channel that the topic fills.
    - `topics`: the topics that it writes to.
    - `target`: where the rows of a sink are stored; None if it has no target.
    """

    id: str
    kind: TaskKind
    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    function: Callable[..., Any]
    wants_step: bool = False
    generator: bool = False
    asynchronous: bool = False
    concurrency: int = 1
    retry: Retry | None = None
    stop_on: tuple[type[BaseException], ...] = ()
    target: Sink | None = None
    topics: tuple[Topic, ...] = ()

    @property
    def word(self) -> str:
        """The word for the task in pictures and texts."""
        written = len(self.written)
        if self.kind is TaskKind.MAP:
            return "map" if written == 1 else "fork" if written else "sink"
        return str(self.kind) if written else f"{self.kind} sink"

    @property
    def written(self) -> tuple[Channel | Topic, ...]:
        """The channels and topics that it writes to."""
        return *self.outputs, *self.topics

    @property
    def overlaps(self) -> bool:
        """Whether calls run at the same time as other tasks."""
        return self.asynchronous or self.concurrency > 1


REFUSED: Final = {
    "guarantee": "tasks are at_least_once: a sink stores each row once, by its delivery hash; leave guarantee= out",
    "state": "a channel has no partitions, so its tasks have no state: read and write topics instead",
    "persistence": "a channel keeps nothing, so there is nothing to journal: leave persistence= out",
    "durability": "the source keeps an input until everything made from it is done: leave durability= out",
    "batch": "a task takes one value at a time: leave batch= out",
    "order": "a channel has neither partitions nor keys: leave order= out",
    "errors": "an input that fails is refused at its source, with the reason; a record of a topic goes to the errors= "
    "of its graph: leave errors= out",
    "hash_header": "a channel has no headers, but step.delivery_hash has the hash: leave hash_header= out",
}
"""The options of processors that tasks refuse, each with the reason and the remedy."""


def check_task_options(what: str, options: Mapping[str, object]) -> None:
    """Raises GraphError for an option that tasks do not have."""
    for name in options:
        if name in REFUSED and not (name == "guarantee" and options[name] == "at_least_once"):
            raise GraphError(f"{what} reads or writes a channel: {REFUSED[name]}")


def kind_of_task(inputs: Sequence[object], outputs: Sequence[object] | None, *, alts: bool, ordered: bool) -> TaskKind:
    """Returns the kind of a task, from its declaration. Raises GraphError for a join, and for ordered events."""
    if ordered:
        raise GraphError(f"{inputs[0]} is a channel, which has no order of events: read a topic")
    if alts or len(inputs) == 1:
        return TaskKind.ALTS if alts else TaskKind.MAP
    if outputs is not None:
        raise GraphError(
            f"a join of {', '.join(map(str, inputs))}: channels have no order to join by: pair the branches of one "
            "segment with graph.gather(...)"
        )
    return TaskKind.GATHER


def describe_channels(channels: Iterable[Channel]) -> list[str]:
    """Returns the lines that describe channels in the text of a graph."""
    named = [*channels]
    width = max((len(channel.name) for channel in named), default=0)
    lines = [f"  {each.name:{width}}  {'' if each.source is None else each.source}".rstrip() for each in named]
    return ["", "channels", *lines] if lines else []


def describe_tasks(tasks: Iterable[JobTask]) -> list[str]:
    """Returns the lines that describe tasks in the text of a graph."""
    lines = list[str]()
    for task in tasks:
        features = [name for name in ("asynchronous", "generator", "wants_step") if getattr(task, name)]
        features += [f"{task.concurrency} calls at once"] if task.concurrency > 1 else []
        rows = {
            "reads": ", ".join(map(str, task.inputs)),
            "writes": ", ".join(map(str, task.written)),
            "dead letters": ", ".join({each.errors: None for each in task.inputs if each.errors}),
            "stops on": ", ".join(each.__name__ for each in task.stop_on),
            "retries": task.retry and str(task.retry),
            "stores": task.target and f"{task.target}, by {task.target.evidence}",
        }
        lines.append(f"  {task.id}: {', '.join([task.word, 'at_least_once', *features])}")
        lines += [f"    {row:12}  {content}" for row, content in rows.items() if content]
    return ["", "tasks", *lines] if lines else []


def check_source(what: str, source: object, max_pending: object, timeout: object) -> None:
    """Raises GraphError if `source` is not a source, or if a limit is not a number above 0."""
    if max_pending is not None and not (isinstance(max_pending, int) and max_pending > 0):
        raise GraphError(f"{what}: max_pending={max_pending!r} is not a number of inputs: give an int above 0")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise GraphError(f"{what}: timeout={timeout!r} is not a number of seconds: give a number above 0")
    if isinstance(source, type) or not callable(getattr(source, "open", None)):
        raise GraphError(f"{what}: {source!r} is not a source: give a source, such as sources.SQLite(...)")


def make_task(
    name: str,
    kind: TaskKind,
    inputs: Sequence[Channel],
    written: Sequence[Channel | Topic],
    function: Callable[..., Any],
    **fields: Any,
) -> JobTask:
    """Returns a task on these channels. `fields`: the other fields. Raises GraphError if the function does not fit."""
    what = f"task {name!r}"
    outputs = tuple(each for each in written if isinstance(each, Channel))
    topics = tuple(each for each in written if isinstance(each, Topic))
    for channel in outputs:
        if channel.is_filled:
            raise GraphError(
                f"{what} writes to {channel}, which a source fills: write to a channel, graph.channel(...)"
            )
    for topic in topics:
        _check_topic(what, topic, inputs)
    concurrency, target = fields["concurrency"], fields["target"]
    if kind is TaskKind.GATHER and (concurrency > 1 or is_asynchronous(function)):
        raise GraphError(
            f"{what} gathers: its calls do not overlap: gather first, and make these calls in a map after it"
        )
    if target is not None and target.evidence is not Evidence.HASH:
        raise GraphError(f"{what}: {target} keeps offsets, which channels do not have: give it evidence='hash'")
    values = len(inputs) if kind is TaskKind.GATHER else 1
    return JobTask(
        name,
        kind,
        tuple(inputs),
        outputs,
        function,
        wants_step=wants_step(what, function, values, batch=False),
        generator=is_generator(what, function, batch=False, sink=not written and target is None),
        asynchronous=is_asynchronous(function),
        topics=topics,
        **fields,
    )


def _check_topic(what: str, topic: Topic, inputs: Sequence[Channel]) -> None:
    """Raises GraphError for a topic that a task cannot write to."""
    if topic.cluster:
        raise GraphError(
            f"{what} writes to {topic}, which is on cluster {topic.cluster!r}: tasks write to the graph's own cluster"
        )
    for channel in inputs:
        if topic in (channel.topic, channel.errors) or topic.name == channel.errors:
            raise GraphError(f"{what} reads {channel} and writes to {topic}: its records would loop for ever")


def check_tasks(graph: str, channels: Iterable[Channel], tasks: Sequence[JobTask]) -> None:
    """Raises GraphError for channels without a reader or a writer, and for tasks that form a cycle."""
    read = {channel for task in tasks for channel in task.inputs}
    written = {channel for task in tasks for channel in task.outputs}
    for channel in sorted(read - written, key=str):
        if not channel.is_filled:
            raise GraphError(
                f"nothing writes to channel {channel.name!r} of graph {graph!r}: name the channel in a to="
            )
    for channel in sorted({*channels} - read, key=str):
        raise GraphError(f"nothing reads channel {channel.name!r} of graph {graph!r}: read it, or leave it out")
    ordered = sort_tasks(tasks)
    for task in tasks:
        if task.kind is TaskKind.GATHER:
            common_channel(task, ordered)


def common_channel(gather: JobTask, tasks: Sequence[JobTask]) -> Channel:
    """Returns the last channel from which all inputs of a gather come. Raises GraphError if there is none.

    - `tasks`: the tasks of its graph, each after the tasks that write its inputs.
    """
    origins: dict[Channel, list[Channel]] = {}
    for task in tasks:
        for channel in task.inputs:
            origins.setdefault(channel, [channel])
        before = [each for channel in task.inputs for each in origins[channel]]
        for channel in task.outputs:
            origins[channel] = [*dict.fromkeys([*(origins.get(channel) or ()), *before]), channel]
    shared = [channel for channel in origins if all(channel in origins[each] for each in gather.inputs)]
    if not shared:
        raise GraphError(
            f"task {gather.id!r} gathers {', '.join(map(str, gather.inputs))}, which come from no common channel: "
            "gather the branches of one channel, or read each with alts"
        )
    return shared[-1]


def filled_channels(tasks: Iterable[JobTask]) -> list[Channel]:
    """Returns the channels of tasks that a source, or a topic, fills."""
    return [*dict.fromkeys(channel for task in tasks for channel in task.inputs if channel.is_filled)]


def topic_readers(tasks: Sequence[JobTask]) -> dict[Channel, list[JobTask]]:
    """Returns the channels that topics fill, each with the tasks that read it, which form one consumer group."""
    filled = (channel for channel in filled_channels(tasks) if channel.topic is not None)
    return {channel: [task for task in tasks if channel in task.inputs] for channel in filled}


def sort_tasks(tasks: Sequence[JobTask]) -> list[JobTask]:
    """Sorts tasks so that each comes after the tasks that write its inputs. Raises GraphError if they form a cycle."""
    writers: dict[Channel, list[str]] = {}
    for task in tasks:
        for channel in task.outputs:
            writers.setdefault(channel, []).append(task.id)
    before = {task.id: {writer for channel in task.inputs for writer in writers.get(channel, ())} for task in tasks}
    by_id = {task.id: task for task in tasks}
    try:
        return [by_id[each] for each in TopologicalSorter(before).static_order()]
    except CycleError as error:
        raise GraphError(
            f"tasks {' → '.join(error.args[1])} form a cycle: a segment would never end: repeat inside a function"
        ) from None
