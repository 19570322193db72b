"""What to run: Graph, topics and processors; kinds are inferred, misfits refused; describe().

A graph is built by declarations; each is checked at once and refused with a GraphError that names the thing and the
remedy. `Graph.validate` is for what only the whole shows. What is declared never changes afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from typing import Any, Final, TypedDict, TypeVar, Unpack

from kstreams_py.delivery import PROMISES, Durability, Guarantee
from kstreams_py.errors import GraphError
from kstreams_py.function import is_generator, wants_step
from kstreams_py.serde import Avro, Bytes, Serde

Function = TypeVar("Function", bound=Callable[..., Any])
Choice = TypeVar("Choice", Guarantee, Durability)
Classes = type[BaseException] | Iterable[type[BaseException]]

RESERVED: Final = "__"
"""Topics whose names start so are Kafka's own and kstreams_py's; a graph's user can neither read nor write them."""

_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")
_GRAPH_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}\Z")
_PROCESSOR_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,100}\Z")


class Kind(StrEnum):
    """What a processor reads in one step, and how many topics it writes to."""

    MAP = "map"
    FORK = "fork"
    JOIN = "join"
    JOIN_FORK = "join_fork"
    ALTS = "alts"
    ALTS_FORK = "alts_fork"
    SINK = "sink"
    ALTS_SINK = "alts_sink"

    @classmethod
    def of(cls, inputs: int, outputs: int, *, alts: bool) -> Kind:
        """The kind of a processor with that many inputs and outputs."""
        if outputs == 0:
            return cls.ALTS_SINK if alts else cls.SINK
        if alts:
            return cls.ALTS if outputs == 1 else cls.ALTS_FORK
        if inputs == 1:
            return cls.MAP if outputs == 1 else cls.FORK
        return cls.JOIN if outputs == 1 else cls.JOIN_FORK

    @property
    def is_alts(self) -> bool:
        """A step reads one record of whichever input is ready, not one of each."""
        return self in (Kind.ALTS, Kind.ALTS_FORK, Kind.ALTS_SINK)


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic of one graph: how its records are read and written, and how it is created. Equal to itself alone.

    Where `partitions` or `replication` is None, any number fits; `config` holds the broker's settings of the topic.
    """

    name: str
    key: Serde
    value: Serde
    partitions: int | None
    replication: int | None
    config: Mapping[str, str]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Processor:
    """A function and where its records come from and go to.

    The function gets one value per input, of alts one in all, in lists with `batch`; then, if `wants_step`, the step
    (with `batch`: the steps). A `generator` yields its results. `errors` names the topic of its dead letters.
    """

    id: str
    kind: Kind
    inputs: tuple[Topic, ...]
    outputs: tuple[Topic, ...]
    function: Callable[..., Any]
    wants_step: bool
    batch: bool
    generator: bool
    guarantee: Guarantee
    durability: Durability
    errors: str | None
    unhandled_exceptions: tuple[type[BaseException], ...]
    hash_header: bool

    @property
    def joins(self) -> bool:
        """Each step reads one record of each input."""
        return len(self.inputs) > 1 and not self.kind.is_alts


End = Topic | str
Many = Sequence[End]


class Options(TypedDict, total=False):
    """What every processor may be given beside its topics; what is left out is as for the whole graph."""

    id: str
    batch: bool
    guarantee: Guarantee | str
    durability: Durability | str
    errors: str | None
    unhandled_exceptions: Classes
    hash_header: bool


class Graph:
    """Topics and the processors between them.

    `guarantee`, `durability`, `errors` (the topic of dead letters), `unhandled_exceptions` (classes that stop the
    worker instead of making a dead letter) and `hash_header` (outputs carry the delivery hash; dead letters always do)
    hold for each processor that is not given its own. Raises GraphError.
    """

    def __init__(
        self,
        name: str,
        *,
        errors: str | None = None,
        guarantee: Guarantee | str = Guarantee.EXACTLY_ONCE,
        durability: Durability | str = Durability.COMMITTED,
        unhandled_exceptions: Classes = (),
        hash_header: bool = True,
    ) -> None:
        self.name = name
        self._topics: dict[str, Topic] = {}
        self._letters: dict[str, Topic | None] = {}
        self._processors: dict[str, Processor] = {}
        self._options = Options(
            guarantee=guarantee,
            durability=durability,
            errors=errors,
            unhandled_exceptions=unhandled_exceptions,
            hash_header=hash_header,
        )
        what = f"graph {name!r}"
        if not _GRAPH_NAME.match(name):
            raise GraphError(f"{what}: this name is not usable: use 1 to 100 of a-z A-Z 0-9 . _ -")
        _chosen(what, Guarantee, "guarantee", guarantee)
        _chosen(what, Durability, "durability", durability)
        _exceptions(what, unhandled_exceptions)
        self._name_letters(errors)

    def topic(
        self,
        name: str,
        *,
        key: Serde | None = None,
        value: Serde | None = None,
        partitions: int | None = None,
        replication: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """Declares a topic; key and value are Bytes() unless given. The rest is for its creation, and checked later.

        Again with the same settings, it returns the same Topic. Raises GraphError.
        """
        _check_topic_name(name)
        letters = name in self._letters
        topic = Topic(
            name,
            key=Bytes() if key is None else key,
            value=value if value is not None else dead_letters() if letters else Bytes(),
            partitions=partitions,
            replication=replication,
            config={k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in (config or {}).items()},
        )
        _check_topic(topic)
        if letters:
            _check_letters(topic)
        known = self._topics.get(name) or self._letters.get(name)
        if known is None:
            self._topics[name] = topic
            return topic
        if differing := [f.name for f in fields(Topic) if getattr(known, f.name) != getattr(topic, f.name)]:
            raise GraphError(
                f"topic {name!r} is declared twice with another {differing[0]}: declare it once, "
                "and use the Topic that graph.topic returned"
            )
        return known

    def map(self, topic: End, *, to: End | Many, **options: Unpack[Options]) -> Callable[[Function], Function]:
        """One record in, and what the function returns out; with several topics in `to`, a fork (returns a dict)."""
        return self._declare((topic,), _listed(to), options)

    def join(self, *topics: End, to: End | Many, **options: Unpack[Options]) -> Callable[[Function], Function]:
        """One record of each input in step, and what the function returns out."""
        return self._declare(topics, _listed(to), options, least=2)

    def alts(self, *topics: End, to: End | Many, **options: Unpack[Options]) -> Callable[[Function], Function]:
        """One record of whichever input is ready, and what the function returns out."""
        return self._declare(topics, _listed(to), options, least=2, alts=True)

    def sink(self, *topics: End, alts: bool = False, **options: Unpack[Options]) -> Callable[[Function], Function]:
        """One record of each input in step (with `alts`: of whichever is ready); what is returned is ignored."""
        return self._declare(topics, None, options, least=2 if alts else 1, alts=alts)

    def _declare(
        self, inputs: Many, outputs: Many | None, options: Options, *, least: int = 1, alts: bool = False
    ) -> Callable[[Function], Function]:
        """A decorator that makes a processor of a function, and hands the function back as it is."""

        def declare(function: Function) -> Function:
            chosen = Options(**{**self._options, **options})
            what = f"processor {(name := _id(function, options))!r}"
            if name in self._processors:
                raise GraphError(f"{what} is declared twice: give one of the two another id=")
            reads, writes = self._resolve(what, inputs), self._resolve(what, outputs or ())
            _check_ends(what, reads, None if outputs is None else writes, least)
            kind = Kind.of(len(reads), len(writes), alts=alts)
            batch = chosen.get("batch", False)
            processor = Processor(
                id=name,
                kind=kind,
                inputs=reads,
                outputs=writes,
                function=function,
                wants_step=wants_step(what, function, 1 if kind.is_alts else len(reads), batch=batch),
                batch=batch,
                generator=is_generator(what, function, batch=batch, sink=not writes),
                guarantee=_chosen(what, Guarantee, "guarantee", chosen["guarantee"]),
                durability=_chosen(what, Durability, "durability", chosen["durability"]),
                errors=chosen["errors"],
                unhandled_exceptions=_exceptions(what, chosen["unhandled_exceptions"]),
                hash_header=chosen["hash_header"],
            )
            self._add(what, processor)
            return function

        return declare

    def _add(self, what: str, processor: Processor) -> None:
        if PROMISES[processor.guarantee].transactional and processor.durability is not Durability.COMMITTED:
            raise GraphError(
                f"{what} is {processor.guarantee} with durability {processor.durability}: transactions need the "
                "acknowledgement of all in-sync replicas: choose durability committed, or another guarantee"
            )
        if PROMISES[processor.guarantee].saves_first and processor.durability is Durability.LEADER:
            raise GraphError(
                f"{what} is {processor.guarantee} with durability leader: a batch whose broker leaves is sent again "
                "though it may be written, and only acknowledgements of all in-sync replicas tell: choose durability "
                "committed or none, or another guarantee"
            )
        _check_letter_loops((*self._processors.values(), processor))
        self._name_letters(processor.errors)
        self._processors[processor.id] = processor

    def _name_letters(self, name: str | None) -> None:
        """Makes a topic one for dead letters."""
        if name is None:
            return
        _check_topic_name(name)
        if name in self._topics:
            _check_letters(self._topics[name])
        self._letters.setdefault(name, None)

    def _resolve(self, what: str, given: Many) -> tuple[Topic, ...]:
        """Topics, or names of topics, as this graph's topics."""
        known = self.topics
        for topic in given:
            if not isinstance(topic, Topic | str):
                raise GraphError(f"{what}: {topic!r} is no topic: give what graph.topic returned, or a topic's name")
            if str(topic) not in known:
                raise GraphError(f"{what}: there is no topic {str(topic)!r}: declare it before, with graph.topic")
            if isinstance(topic, Topic) and known[topic.name] is not topic:
                raise GraphError(f"{what}: topic {topic.name!r} is of another graph: declare it in this one too")
        return tuple(known[str(topic)] for topic in given)

    @property
    def topics(self) -> dict[str, Topic]:
        """All topics by name, those of dead letters included; journals are not."""
        for name, letters in self._letters.items():
            if letters is None and name not in self._topics:
                self._letters[name] = Topic(name, Bytes(), dead_letters(), None, None, {})
        return self._topics | {name: letters for name, letters in self._letters.items() if letters is not None}

    @property
    def processors(self) -> tuple[Processor, ...]:
        """All processors, as declared."""
        return tuple(self._processors.values())

    @property
    def beginnings(self) -> str:
        """The topic that keeps which partitions the processors have begun to read."""
        return f"{RESERVED}ks.{self.name}.beginnings"

    def journal(self, processor: Processor) -> str | None:
        """The topic where a processor saves its choices before it acts on them; None if it needs none."""
        if processor.kind.is_alts and PROMISES[processor.guarantee].transactional:
            return f"{RESERVED}ks.{self.name}.{processor.id}.journal"
        return None

    def validate(self) -> None:
        """Raises GraphError for what no single declaration shows; to be called before anything starts."""
        if not self._processors:
            raise GraphError(f"graph {self.name!r} has no processors: declare one with @graph.map or another kind")
        self.check_partitions(_declared_partitions(self.topics))

    def check_partitions(self, counts: Mapping[str, int]) -> None:
        """Raises GraphError if two inputs of one processor have different `counts`; a topic without one fits.

        A task is one processor on one partition number, and reads that partition of each input.
        """
        for processor in self.processors:
            known = [topic.name for topic in processor.inputs if topic.name in counts]
            for name in known[1:]:
                if counts[name] != counts[known[0]]:
                    raise GraphError(
                        f"processor {processor.id!r} ({processor.kind}) reads {known[0]!r} with {counts[known[0]]} "
                        f"partitions and {name!r} with {counts[name]}: give both the same number of partitions"
                    )

    def partitions_like(self, name: str, counts: Mapping[str, int]) -> int:
        """How many partitions a topic should have that is not in `counts` (by name) and declares no number.

        As many as the topics that it is read together with; else as the inputs of whatever writes to these; else 1.
        """
        known = _declared_partitions(self.topics) | dict(counts)
        seen, wave = set[str](), {name}
        while wave:
            wave = self._read_together(wave)
            if found := [known[topic] for topic in wave if topic in known]:
                return max(found)
            seen |= wave
            writers = [p for p in self.processors if wave & {p.errors, *map(str, p.outputs)}]
            wave = {topic.name for writer in writers for topic in writer.inputs} - seen
        return 1

    def _read_together(self, names: set[str]) -> set[str]:
        """These topics and all that must have as many partitions as one of them."""
        inputs = [set(map(str, processor.inputs)) for processor in self.processors]
        while larger := set().union(*(topics for topics in inputs if topics & names)) - names:
            names = names | larger
        return names

    def describe(self) -> str:
        """The graph as text: all topics, then all processors, as declared."""
        guarantee, durability, errors = (self._options[each] for each in ("guarantee", "durability", "errors"))
        lines = [f"graph {self.name}: {guarantee}, {durability}, dead letters {errors or 'none'}", "", "topics"]
        width = max(map(len, self.topics), default=0)
        for topic in self.topics.values():
            words = [f"key {show_serde(topic.key)}", f"value {show_serde(topic.value)}"]
            words += [f"{topic.partitions} partitions"] if topic.partitions else []
            words += [f"replication {topic.replication}"] if topic.replication else []
            words += [f"{setting}={wanted}" for setting, wanted in topic.config.items()]
            lines.append(f"  {topic.name:{width}}  {', '.join(words)}")
        lines += ["", "processors"]
        for processor in self.processors:
            words = [processor.kind, processor.guarantee, processor.durability]
            words += [name for name in ("batch", "generator", "wants_step") if getattr(processor, name)]
            words += [] if processor.hash_header else ["no hash header"]
            rows = {
                "reads": ", ".join(map(str, processor.inputs)),
                "writes": ", ".join(map(str, processor.outputs)),
                "dead letters": processor.errors or "none",
                "stops on": ", ".join(each.__name__ for each in processor.unhandled_exceptions),
                "journal": self.journal(processor),
            }
            lines.append(f"  {processor.id}: {', '.join(words)}")
            lines += [f"    {row:12}  {content}" for row, content in rows.items() if content]
        return "\n".join(lines)


@cache
def dead_letters() -> Avro:
    """The serde of every dead letter: schemas/dead_letter.avsc."""
    return Avro(json.loads((files("kstreams_py") / "schemas" / "dead_letter.avsc").read_text(encoding="utf-8")))


def _declared_partitions(topics: Mapping[str, Topic]) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in topics.values() if topic.partitions is not None}


def show_serde(serde: Serde) -> str:
    """A serde's own repr, or the name of its class: never an address, which would differ from run to run."""
    return repr(serde) if type(serde).__repr__ is not object.__repr__ else type(serde).__name__


# Checks of one declaration. `what` names the thing in the message.


def _check_topic_name(name: str) -> None:
    if not isinstance(name, str) or not _TOPIC_NAME.match(name):
        raise GraphError(f"topic name {name!r} is not usable: use 1 to 249 of a-z A-Z 0-9 . _ -, not . or .. alone")
    if name.startswith(RESERVED):
        raise GraphError(f"topic name {name!r} is reserved: names that start with {RESERVED} are the system's own")


def _check_topic(topic: Topic) -> None:
    for role, serde in (("key", topic.key), ("value", topic.value)):
        if isinstance(serde, type):
            raise GraphError(f"topic {topic.name!r}: {role} is the class {serde.__name__}: write {serde.__name__}()")
        if not callable(getattr(serde, "serialize", None)) or not callable(getattr(serde, "deserialize", None)):
            raise GraphError(f"topic {topic.name!r}: {role} {serde!r} has no serialize and deserialize: give a serde")
    for role, number in (("partitions", topic.partitions), ("replication", topic.replication)):
        if number is not None and number < 1:
            raise GraphError(f"topic {topic.name!r}: {role} is {number}: give 1 or more, or leave it out")


def _check_letters(topic: Topic) -> None:
    if topic.value is not dead_letters():
        raise GraphError(
            f"topic {topic.name!r} takes dead letters, which have a schema of their own: declare it without value=, "
            "after the errors= that names it, or not at all: graph.topics has it"
        )


def _chosen(what: str, choices: type[Choice], role: str, given: str) -> Choice:
    try:
        return choices(given)
    except ValueError:
        raise GraphError(f"{what}: {role} {given!r} is not known: choose {', '.join(choices)}") from None


def _exceptions(what: str, given: Classes) -> tuple[type[BaseException], ...]:
    classes = tuple(given) if isinstance(given, Iterable) else (given,)
    for each in classes:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise GraphError(f"{what}: unhandled_exceptions has {each!r}: give exception classes")
    return classes


def _listed(to: End | Many) -> Many:
    return (to,) if isinstance(to, Topic | str) else to


def _id(function: Callable[..., Any], options: Options) -> str:
    """The processor's id: as given, else the function's name."""
    name = options.get("id", getattr(function, "__name__", ""))
    if not _PROCESSOR_ID.match(name):
        raise GraphError(
            f"processor {name!r}: this name is not usable: give it an id= of 1 to 100 of a-z A-Z 0-9 _ - "
            "(a dot would run into the graph's name)"
        )
    known = Options.__annotations__
    if unknown := sorted(options.keys() - known.keys()):
        raise GraphError(f"processor {name!r} has no option {unknown[0]!r}: choose from {', '.join(known)}")
    return name


def _check_ends(what: str, reads: Sequence[Topic], writes: Sequence[Topic] | None, least: int) -> None:
    """`writes` is None for a sink."""
    if len(reads) < least:
        few = "one topic, and join and alts need two: use graph.map or graph.sink" if reads else "no topic: name one"
        raise GraphError(f"{what} reads {few}")
    if writes is not None and not writes:
        raise GraphError(f"{what} writes no topic: name one in to=, or declare it with graph.sink")
    for role, ends in (("reads", reads), ("writes", writes or ())):
        if twice := [topic for i, topic in enumerate(ends) if topic in ends[:i]]:
            raise GraphError(f"{what} {role} {twice[0].name!r} twice: name it once")
    if both := [topic for topic in writes or () if topic in reads]:
        raise GraphError(f"{what} reads and writes {both[0].name!r}, an endless loop: write to another topic")


def _check_letter_loops(processors: Iterable[Processor]) -> None:
    """Refuses dead letters that would be read by a processor whose own dead letters lead back to it."""
    errors: dict[str, list[str]] = {}
    for processor in processors:
        if processor.errors is not None:
            for topic in processor.inputs:
                errors.setdefault(topic.name, []).append(processor.errors)
    try:
        TopologicalSorter(errors).prepare()
    except CycleError as error:
        raise GraphError(
            f"dead letters go round for ever, {' -> '.join(reversed(error.args[1]))}: "
            "give a processor that reads them errors=None, or another topic"
        ) from None
