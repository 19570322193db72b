"""Graph: topics and the processors between them.

Each declaration is checked immediately, and refused with a GraphError that names the thing and the remedy.
`Graph.validate` checks the graph as a whole. A declaration never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from typing import Any, Final, Generic, Unpack, overload

from typing_extensions import TypeVar

from kstreams_py.errors import GraphError, did_you_mean
from kstreams_py.formats.serdes import Bytes, Serde
from kstreams_py.graph.channels import (
    JobTask,
    TaskKind,
    check_source,
    check_task_options,
    check_tasks,
    describe_channels,
    describe_tasks,
    kind_of_task,
    make_task,
)
from kstreams_py.graph.checks import (
    check_calls,
    check_clusters,
    check_concurrency,
    check_dead_letter_loops,
    check_dead_letters,
    check_ends,
    check_graph_name,
    check_journal,
    check_options,
    check_retry,
    check_serdes,
    check_state,
    check_stores,
    check_target,
    check_topic,
    check_topic_name,
    choose,
    choose_journal,
    is_target,
    list_exceptions,
    name_processor,
)
from kstreams_py.graph.declarations import (
    DEFAULT_PARTITIONS,
    Channel,
    Defaults,
    End,
    Many,
    Options,
    Order,
    Ordered,
    Processor,
    ProcessorKind,
    Routing,
    State,
    Topic,
    TopicOptions,
    changelog_of,
    dead_letters,
    show_serde,
)
from kstreams_py.graph.decorators import Decorators
from kstreams_py.graph.functions import is_asynchronous, is_generator, wants_step
from kstreams_py.graph.guarantees import RULES, Durability, Guarantee
from kstreams_py.graph.names import beginnings_topic, delivered_topic, group_of, journal_topic, replayed_topic
from kstreams_py.graph.pipelines import Pipeline, PipelineOptions, Table, make_pipeline
from kstreams_py.graph.signatures import Function, K, V
from kstreams_py.graph.source import Source

GraphKey = TypeVar("GraphKey", default=Any)
GraphValue = TypeVar("GraphValue", default=Any)

DEFAULTS: Final = Defaults(
    guarantee=Guarantee.EXACTLY_ONCE,
    durability=Durability.COMMITTED,
    errors=None,
    stop_on=(),
    hash_header=True,
    retry=None,
)
"""The defaults of a graph that sets none."""


class Graph(Decorators, Generic[GraphKey, GraphValue]):
    """Topics and the processors between them. Raises GraphError.

    - `key`, `value` (Serde): the serdes of its topics that declare none; Bytes() by default.

    The other options are the defaults of its processors:

    - `errors` (Topic, str or None): the dead-letter topic; None (the default) for no topic.
    - `guarantee` (Guarantee or str): "exactly_once" (the default), "at_least_once" or "at_most_once".
    - `durability` (Durability or str): "committed" (the default), "leader" or "none".
    - `stop_on` (exception class, or several): exceptions that stop the worker, instead of making a dead letter; none
      by default.
    - `hash_header` (bool): outputs have the delivery hash as a header, as dead letters always do; True by default.
    - `retry` (Retry or None): when a step that raised is run again; None (the default) for never.
    """

    @overload
    def __init__(
        self: Graph[bytes, bytes], name: str, *, key: None = ..., value: None = ..., **defaults: Unpack[Defaults]
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[K, bytes], name: str, *, key: Serde[K], value: None = ..., **defaults: Unpack[Defaults]
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[bytes, V], name: str, *, key: None = ..., value: Serde[V], **defaults: Unpack[Defaults]
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[K, V], name: str, *, key: Serde[K], value: Serde[V], **defaults: Unpack[Defaults]
    ) -> None: ...
    def __init__(
        self, name: str, *, key: Serde | None = None, value: Serde | None = None, **defaults: Unpack[Defaults]
    ) -> None:
        self.name = name
        self._key: Serde = Bytes() if key is None else key
        self._value: Serde = Bytes() if value is None else value
        self.beginnings = beginnings_topic(name)
        """The topic that records which partitions the processors have begun to read."""
        self.replayed = replayed_topic(name)
        """The topic that marks dead letters as replayed or discarded: processing/dead_letters/marks.py."""
        self._topics: dict[str, Topic] = {}
        self._dead_letters: dict[str, Topic | str] = {}
        """The dead-letter topics by name; until a topic is declared or asked for, only the name of its cluster."""
        self._processors: dict[str, Processor] = {}
        self.channels: dict[str, Channel] = {}
        """All channels by name, including those that a source fills."""
        self._read: dict[str, Channel] = {}
        """The channel that a topic fills for the tasks that read it, by the topic's name."""
        self._tasks: dict[str, JobTask] = {}
        self.pipelines: tuple[Pipeline, ...] = ()
        """All pipelines, in the order of their declaration."""
        what = f"graph {name!r}"
        check_graph_name(what, name)
        check_options(what, defaults, Defaults)
        check_serdes(what, self._key, self._value)
        self._options = Defaults(**{**DEFAULTS, **defaults})
        choose(what, Guarantee, "guarantee", self._options["guarantee"])
        choose(what, Durability, "durability", self._options["durability"])
        list_exceptions(what, self._options["stop_on"])
        check_retry(what, self._options["retry"])
        errors = self._options["errors"]
        self._options["errors"] = None if errors is None else str(errors)
        if isinstance(errors, Topic):  # another graph's: it gets the dead letters of both
            check_dead_letters(errors)
            self._dead_letters[errors.name] = errors
        else:
            self._reserve_for_dead_letters(errors, "")

    @overload
    def topic(
        self, name: str, *, key: None = ..., value: None = ..., **options: Unpack[TopicOptions]
    ) -> Topic[GraphKey, GraphValue]: ...
    @overload
    def topic(
        self, name: str, *, key: Serde[K], value: None = ..., **options: Unpack[TopicOptions]
    ) -> Topic[K, GraphValue]: ...
    @overload
    def topic(
        self, name: str, *, key: None = ..., value: Serde[V], **options: Unpack[TopicOptions]
    ) -> Topic[GraphKey, V]: ...
    @overload
    def topic(self, name: str, *, key: Serde[K], value: Serde[V], **options: Unpack[TopicOptions]) -> Topic[K, V]: ...
    def topic(
        self,
        name: str,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        partitions: int | None = None,
        replication: int | None = None,
        config: Mapping[str, object] | None = None,
        cluster: str = "",
    ) -> Topic:
        """Declares a topic. A second declaration with the same settings returns the same Topic. Raises GraphError.

        - `key`, `value` (Serde or None): serdes; None (the default) for the graph's serdes, or in a dead-letter topic
          for those of dead letters.
        - `partitions` (int or None): None (the default) for any number. A missing topic is then created with as many
          partitions as the topics that are read together with it, or else the inputs of its writers; with 4 if none of
          these exists.
        - `replication` (int or None): of a topic that is created; None (the default) for the broker's default.
        - `config` (mapping or None): the topic's configuration on the broker; None (the default) for the broker's.
        - `cluster` (str): the name of another cluster in the settings (`clusters`), which a processor with a journal
          may write to; "" (the default) for the graph's own. Processors read only from the graph's own cluster.

        The partitions and settings of an existing topic are checked before a worker starts.
        """
        check_topic_name(name)
        of_dead_letters = name in self._dead_letters
        reserved = self._dead_letters.get(name, "")
        topic: Topic = Topic(
            name,
            key=key if key is not None else Bytes() if of_dead_letters else self._key,
            value=value if value is not None else dead_letters() if of_dead_letters else self._value,
            partitions=partitions,
            replication=replication,
            config={k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in (config or {}).items()},
            cluster=cluster or (reserved if isinstance(reserved, str) else reserved.cluster),
        )
        check_topic(topic)
        if of_dead_letters:
            check_dead_letters(topic)
        known = self._topics.get(name) or (None if isinstance(reserved, str) else reserved)
        if known is None:
            if of_dead_letters and topic.cluster != reserved:
                raise GraphError(
                    f"topic {name!r} takes dead letters from a processor that writes to another cluster: omit cluster="
                )
            self._topics[name] = topic
            return topic
        if differing := [f.name for f in fields(Topic) if getattr(known, f.name) != getattr(topic, f.name)]:
            raise GraphError(
                f"topic {name!r} is declared twice, differing in {differing[0]}: declare it once, "
                "and use the Topic that graph.topic returned"
            )
        return known

    def source(
        self,
        name: str,
        source: Source,
        *,
        max_pending: int | None = None,
        timeout: float | None = None,
        routing: Routing | str = Routing.LEAST_QUEUED,
    ) -> Channel:
        """Declares a channel that a source fills. The tasks get an input again until everything made from it is done.

        - `source`: such as `sources.SQLite(...)`.
        - `max_pending`: how many of its inputs may be under way in a worker: 10,000 by default. At this limit, the
          source is not read.
        - `timeout`: seconds after which an input is read again if it is neither complete nor in a task: 60 by default.
        - `routing`: see `channel`.

        Raises GraphError.
        """
        check_source(f"source {name!r}", source, max_pending, timeout)
        chosen = choose(f"source {name!r}", Routing, "routing", routing)
        return self._add_channel(Channel(name, source, max_pending=max_pending, timeout=timeout, routing=chosen))

    def channel(
        self,
        name: str,
        *,
        group_by: Callable[[Any], Hashable] | None = None,
        routing: Routing | str = Routing.LEAST_QUEUED,
    ) -> Channel:
        """Declares a channel, which carries values between tasks in memory. Raises GraphError.

        - `group_by`: returns the group of a value. In a task whose calls overlap, the calls for one group run one after
          another, in the order of the values; a value that is read again after a death, or tried again, comes later.
        - `routing`: which of the peers of a task gets a value: "least_queued" (the default), the one for which the
          fewest values wait, or "round_robin", each in turn. With `group_by`, each group has a peer of its own.
        """
        if group_by is not None and not callable(group_by):
            raise GraphError(f"channel {name!r}: group_by={group_by!r} is not a function: give a function of a value")
        chosen = choose(f"channel {name!r}", Routing, "routing", routing)
        if group_by is not None and chosen is Routing.ROUND_ROBIN:
            raise GraphError(f"channel {name!r}: with group_by=, each group has a peer of its own: leave routing= out")
        return self._add_channel(Channel(name, group_by=group_by, routing=chosen))

    def _add_channel(self, channel: Channel) -> Channel:
        check_topic_name(channel.name)
        if channel.name in self.channels or channel.name in self.topics:
            raise GraphError(f"{channel.name!r} is declared twice: give one of the two another name")
        self.channels[channel.name] = channel
        return channel

    def pipeline(
        self,
        *topics: End,
        to: Table | End,
        **options: Unpack[PipelineOptions],
    ) -> Callable[[Function], Function]:
        """Declares a function that takes a Spark DataFrame of each topic and returns the rows of a table.

        `kstreams pipeline run` calls it, and stores its rows once, even if the process dies at any point.

        - `to` (Table, Topic or str): a table of `kstreams_py.sinks`, such as `ks.Parquet(directory)` or
          `ks.Delta(path)`, or a topic that nothing else writes to.
        - `id` (str): its name, unique in the graph; by default the function's name.
        - `mode` (str): "complete" (the default) reads all of history and replaces the table. "append" and "upsert" read
          the records since the last run; "append" adds their rows, "upsert" also replaces rows with the same key.
        - `key` (list of str): the columns that tell rows apart, which "upsert" needs; none by default.
        - `every` (str): the time between two runs with `--follow`, such as "30 seconds"; "1 minute" by default.
        - `streaming` (bool or str): the function takes and returns streams (Structured Streaming), and the mode is
          Spark's output mode: "append", "complete", or "update" for an upsert. Give the directory of the checkpoint, on
          a file system that all Spark processes share, or True for one beside the files of the table.
          False by default: the function takes and returns the rows of a run.
        - `malformed` (str): "drop" (the default) leaves out records that do not decode, counts them in the history and
          warns of the first one. "fail" fails the run at the first one.

        Raises GraphError.
        """

        def declare(function: Function) -> Function:
            named = Options(id=options["id"]) if "id" in options else Options()
            what = f"pipeline {(name := name_processor(function, named, 'pipeline'))!r}"
            if name in self._names():
                raise GraphError(f"{what} is declared twice: give one of the two another id=")
            reads = self._resolve(what, topics)
            check_ends(what, reads, None, 1)
            target: object = to
            if isinstance(to, Topic) or (isinstance(to, str) and to in self.topics):
                (target,) = self._resolve(what, (to,))
            made = make_pipeline(name, f"{self.name}.{name}", reads, function, target, options)
            if taken := next((other for other in self.pipelines if other.target == made.target), None):
                raise GraphError(f"{what} writes to {made.target}, as {taken} does: give each a target of its own")
            self.pipelines += (made,)
            return function

        return declare

    def _declare(
        self,
        inputs: Many,
        outputs: Many | None,
        options: Options,
        *,
        least: int = 1,
        alts: bool = False,
        target: object = None,
        ordered: Ordered | None = None,
    ) -> Callable[[Function], Function]:
        if any(str(each) in self.channels for each in (*inputs, *(outputs or ()))):
            kind = kind_of_task(inputs, outputs, alts=alts, ordered=ordered is not None)
            return self._declare_task(kind, inputs, outputs or (), options, target)

        def declare(function: Function) -> Function:
            chosen = Options(**{**self._options, **options})
            what = f"processor {(name := name_processor(function, options))!r}"
            if name in self._names():
                raise GraphError(f"{what} is declared twice: give one of the two another id=")
            reads, writes = self._resolve(what, inputs), self._resolve(what, outputs or ())
            check_ends(what, reads, None if outputs is None else writes, least)
            kind = ProcessorKind.of(len(reads), len(writes), alts=alts)
            errors = self._resolve_errors(what, chosen["errors"])
            written = self._written(writes, errors) if target is None else writes
            batch, state, values = chosen.get("batch", False), chosen.get("state"), 1 if kind.is_alts else len(reads)
            processor = Processor(
                id=name,
                kind=kind,
                inputs=reads,
                outputs=writes,
                function=function,
                wants_step=wants_step(what, function, values, batch=batch, state=state is not None),
                batch=batch,
                generator=is_generator(what, function, batch=batch, sink=not writes and target is None),
                guarantee=choose(what, Guarantee, "guarantee", chosen["guarantee"]),
                durability=choose(what, Durability, "durability", chosen["durability"]),
                errors=errors,
                stop_on=list_exceptions(what, chosen["stop_on"]),
                hash_header=chosen["hash_header"],
                retry=check_retry(what, chosen["retry"]),
                asynchronous=is_asynchronous(function),
                concurrency=chosen.get("concurrency", 1),
                order=choose(what, Order, "order", chosen.get("order", Order.PARTITION)),
                journal=choose_journal(what, chosen.get("persistence"), written),
                cluster=written[0].cluster if written else "",
                target=check_target(what, target),
                state=State[Any, Any](f"{name}-order") if ordered is not None and state is None else state,
                ordered=ordered,
            )
            check_concurrency(processor, chosen.get("order"))
            check_clusters(processor, self.topics)
            check_stores(processor)
            check_journal(processor)
            self._add(what, processor)
            return function

        return declare

    def _declare_task(
        self, kind: TaskKind, inputs: Many, outputs: Many, options: Options, target: object = None
    ) -> Callable[[Function], Function]:
        def declare(function: Function) -> Function:
            what = f"task {(name := name_processor(function, options, 'task'))!r}"
            if name in self._names():
                raise GraphError(f"{what} is declared twice: give one of the two another id=")
            check_task_options(what, options)
            chosen = Options(**{**self._options, **options})
            self._tasks[name] = make_task(
                name,
                kind,
                [self._read_channel(what, each) for each in inputs],
                [self._resolve_end(what, each) for each in outputs],
                function,
                target=check_target(what, target),
                stop_on=list_exceptions(what, chosen["stop_on"]),
                retry=check_retry(what, chosen["retry"]),
                concurrency=check_calls(what, options.get("concurrency", 1)),
            )
            return function

        return declare

    def _resolve_end(self, what: str, end: End) -> Channel | Topic:
        """Returns a channel or a topic of this graph. Raises GraphError."""
        if (channel := self.channels.get(str(end))) is not None:
            return channel
        return self._resolve(what, (end,))[0]

    def _read_channel(self, what: str, end: End) -> Channel:
        """Returns a channel of this graph; for a topic, the one that it fills. Raises GraphError."""
        found = self._resolve_end(what, end)
        if isinstance(found, Channel):
            return found
        if found.cluster:
            raise GraphError(
                f"{what} reads {found}, which is on cluster {found.cluster!r}: tasks read the graph's own cluster"
            )
        if found.name not in self._read:
            errors = self._resolve_errors(what, self._options["errors"])
            # a dead letter that fails would come back to this topic, and fail again
            errors = None if errors == found.name else errors
            self._reserve_for_dead_letters(errors, "")
            self._read[found.name] = Channel(found.name, topic=found, errors=errors)
        return self._read[found.name]

    @property
    def uses_topics(self) -> bool:
        """Whether the graph needs a Kafka cluster: it may have only channels."""
        return bool(self._processors or self._read) or any(task.topics for task in self.tasks)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The consumer groups of the graph, each with the topics that it reads."""
        found = {each.id: tuple(map(str, each.inputs)) for each in self.processors} | {
            each: (each,) for each in self._read
        }
        return {group_of(self.name, each): topics for each, topics in found.items()}

    @property
    def tasks(self) -> tuple[JobTask, ...]:
        """All tasks, in the order of their declaration."""
        return tuple(self._tasks.values())

    def _names(self) -> set[str]:
        return {*self._processors, *self._tasks, *(pipeline.id for pipeline in self.pipelines)}

    def _add(self, what: str, processor: Processor) -> None:
        if (why := RULES[processor.guarantee].refused.get(processor.durability)) is not None:
            raise GraphError(f"{what} is {processor.guarantee} with durability {processor.durability}: {why}")
        check_state(processor, self.processors)
        check_dead_letter_loops((*self._processors.values(), processor))
        self._reserve_for_dead_letters(processor.errors, processor.cluster)
        self._processors[processor.id] = processor

    def _reserve_for_dead_letters(self, name: str | None, cluster: str) -> None:
        """Reserves a topic for dead letters; on this cluster, unless the topic is known already."""
        if name is None:
            return
        check_topic_name(name)
        if name in self._topics:
            check_dead_letters(self._topics[name])
        self._dead_letters.setdefault(name, cluster)

    def _resolve(self, what: str, ends: Many) -> tuple[Topic, ...]:
        """Returns this graph's topics for topics or names. Raises GraphError."""
        known = self.topics
        for topic in ends:
            if is_target(topic):
                raise GraphError(f"{what} writes to topics and to {topic!r}: store its rows with graph.sink(to=...)")
            if not isinstance(topic, Topic | str):
                raise GraphError(f"{what}: {topic!r} is not a topic: give what graph.topic returned, or a topic's name")
            if str(topic) not in known:
                close = did_you_mean(str(topic), known) or "declare it first, with graph.topic"
                raise GraphError(f"{what}: there is no topic {str(topic)!r}: {close}")
            if isinstance(topic, Topic) and known[topic.name] is not topic:
                raise GraphError(f"{what}: topic {topic.name!r} is of another graph: declare it in this one too")
        return tuple(known[str(topic)] for topic in ends)

    def _resolve_errors(self, what: str, errors: Topic | str | None) -> str | None:
        """Returns the name of a dead-letter topic. A name may be undeclared; a Topic must belong to this graph."""
        return self._resolve(what, (errors,))[0].name if isinstance(errors, Topic) else errors

    def _written(self, writes: tuple[Topic, ...], errors: str | None) -> tuple[Topic, ...]:
        """Returns the topics that decide which cluster a processor writes to; for a sink, its dead-letter topic."""
        known = self.topics
        return writes or ((known[errors],) if errors in known else ())

    @property
    def topics(self) -> dict[str, Topic]:
        """All topics by name, including dead-letter topics, but not journals."""
        for name, topic in self._dead_letters.items():
            if isinstance(topic, str) and name not in self._topics:
                self._dead_letters[name] = Topic(name, Bytes(), dead_letters(), None, None, {}, topic)
        return self._topics | {name: topic for name, topic in self._dead_letters.items() if isinstance(topic, Topic)}

    @property
    def processors(self) -> tuple[Processor, ...]:
        """All processors, in the order of their declaration."""
        return tuple(self._processors.values())

    def journal_topic(self, processor: Processor) -> str | None:
        """Returns the topic where a processor records deliveries, or an alts its choices, before its functions run.

        Returns None if the processor needs none.
        """
        if processor.journal is not None or (processor.kind.is_alts and RULES[processor.guarantee].journals_choices):
            return journal_topic(self.name, processor.id)
        return None

    def delivered(self, processor: Processor) -> str | None:
        """Returns the topic that records the committed attempt beside outputs on another cluster, or None."""
        return delivered_topic(self.name, processor.id) if processor.cluster else None

    def validate(self, *, needs_processors: bool = True) -> None:
        """Checks the graph as a whole, before anything starts. Raises GraphError.

        - `needs_processors`: refuse a graph that has only pipelines.
        """
        if self._tasks or self.channels:
            check_tasks(self.name, self.channels.values(), self.tasks)
            if not self._processors and not self._read and self._options["errors"] is not None:
                raise GraphError(
                    f"errors={self._options['errors']!r} of graph {self.name!r} is not used, as nothing reads a topic: "
                    "inputs of sources are refused at their source, with the reason, and `kstreams sources list` "
                    "prints them: leave errors= out"
                )
        elif not self._processors and (needs_processors or not self.pipelines):
            raise GraphError(f"graph {self.name!r} has no processors: declare one with @graph.map or another kind")
        for name in self._read.keys() & self._processors.keys():
            raise GraphError(
                f"tasks read topic {name!r}, and a processor has the same name, so that they would share a consumer "
                "group: give the processor another id="
            )
        for pipeline in self.pipelines:
            writers = [each for each in self.processors if str(pipeline.target) in each.written]
            if isinstance(pipeline.target, Topic) and writers:
                raise GraphError(
                    f"{pipeline} writes to {pipeline.target.name!r}, as processor {writers[0].id!r} does: give it a "
                    "topic of its own"
                )
        self.check_partitions(_declared_partitions(self.topics))

    def check_partitions(self, counts: Mapping[str, int]) -> None:
        """Raises GraphError if the inputs of a processor differ in their number of partitions.

        A task is one processor on one partition number, and reads that partition of each input.

        - `counts`: the number of partitions by topic; topics that are missing from it are not checked.
        """
        for processor in self.processors:
            known = [topic.name for topic in processor.inputs if topic.name in counts]
            for name in known[1:]:
                if counts[name] != counts[known[0]]:
                    raise GraphError(
                        f"processor {processor.id!r} ({processor.kind}) reads {known[0]!r} with {counts[known[0]]} "
                        f"partitions, but {name!r} with {counts[name]}: give both the same number of partitions"
                    )

    def partitions_like(self, name: str, counts: Mapping[str, int], default: int = DEFAULT_PARTITIONS) -> int:
        """Returns the number of partitions for a new topic that declares none.

        It is the largest number that a topic read together with it has; if none is known, the largest that an input of
        their writers has, and so on; otherwise `default`.

        - `counts`: the number of partitions of existing topics, by name.
        """
        known = _declared_partitions(self.topics) | dict(counts)
        seen, wave = set[str](), {name}
        while wave:
            wave = self._read_together(wave)
            if found := [known[topic] for topic in wave if topic in known]:
                return max(found)
            seen |= wave
            writers = [p for p in self.processors if not wave.isdisjoint(p.written)]
            wave = {topic.name for writer in writers for topic in writer.inputs} - seen
        return default

    def _read_together(self, names: set[str]) -> set[str]:
        """Returns these topics, and all that must have as many partitions as one of them."""
        inputs = [set(map(str, processor.inputs)) for processor in self.processors]
        while larger := set().union(*(topics for topics in inputs if topics & names)) - names:
            names = names | larger
        return names

    def describe(self) -> str:
        """Returns the graph as text: all topics, then all processors, in the order of their declaration."""
        guarantee, durability, errors = (self._options[each] for each in ("guarantee", "durability", "errors"))
        lines = [f"graph {self.name}: {guarantee}, {durability}, dead letters {errors or 'none'}"]
        if not self.uses_topics and self._tasks:
            lines = [f"graph {self.name}"]
        lines += ["", "topics"] if self.topics or not self._tasks else []
        width = max(map(len, self.topics), default=0)
        for topic in self.topics.values():
            words = [f"key {show_serde(topic.key)}", f"value {show_serde(topic.value)}"]
            words += [f"{topic.partitions} partitions"] if topic.partitions else []
            words += [f"replication {topic.replication}"] if topic.replication else []
            words += [f"cluster {topic.cluster}"] if topic.cluster else []
            words += [f"{setting}={wanted}" for setting, wanted in topic.config.items()]
            lines.append(f"  {topic.name:{width}}  {', '.join(words)}")
        lines += describe_channels(self.channels.values())
        lines += ["", "processors"] if self._processors or not self._tasks else []
        for processor in self.processors:
            words = [processor.kind, processor.guarantee, processor.durability]
            words += [name for name in ("asynchronous", "batch", "generator", "wants_step") if getattr(processor, name)]
            if processor.concurrency > 1:
                words.append(f"{processor.concurrency} calls at once, in order by {processor.order}")
            words += [] if processor.journal is None else [f"deliveries of {processor.journal.batch} journaled"]
            words += [] if processor.hash_header else ["no hash header"]
            rows = {
                "reads": ", ".join(map(str, processor.inputs)),
                "writes": ", ".join(map(str, processor.outputs)),
                "dead letters": processor.errors or "none",
                "stops on": ", ".join(each.__name__ for each in processor.stop_on),
                "retries": processor.retry and str(processor.retry),
                "journal": self.journal_topic(processor),
                "state": processor.state and _describe_state(processor.state),
                "changelog": changelog_of(self.name, processor),
                "stores": processor.target and f"{processor.target}, by {processor.target.evidence}",
            }
            lines.append(f"  {processor.id}: {', '.join(words)}")
            lines += [f"    {row:12}  {content}" for row, content in rows.items() if content]
        lines += describe_tasks(self.tasks)
        lines += ["", "pipelines"] if self.pipelines else []
        for pipeline in self.pipelines:
            lines.append(f"  {pipeline.id}: {pipeline.mode}, every {pipeline.every} s")
            lines.append(f"    {'reads':12}  {', '.join(map(str, pipeline.inputs))}")
            lines.append(f"    {'keeps':12}  {pipeline.target}")
        return "\n".join(lines)


def _describe_state(state: State[Any, Any]) -> str:
    place = "on disk" if state.on_disk else "in memory"
    return f"{state.name}, key {show_serde(state.key)}, value {show_serde(state.value)}, {place}"


def _declared_partitions(topics: Mapping[str, Topic]) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in topics.values() if topic.partitions is not None}
