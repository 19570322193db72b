"""What a graph declares: its topics, its processors, and their options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypedDict

from typing_extensions import TypeVar

from kstreams_py.formats.avro import Avro
from kstreams_py.formats.schema_files import shipped_schema
from kstreams_py.formats.serdes import Serde
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.names import changelog_topic
from kstreams_py.graph.ordered import Ordered
from kstreams_py.graph.persistence import Journal
from kstreams_py.graph.retry import Retry
from kstreams_py.graph.sink import Evidence, Sink
from kstreams_py.graph.state import State

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
Value = TypeVar("Value")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")
Classes = type[BaseException] | Iterable[type[BaseException]]


DEFAULT_PARTITIONS: Final = 4
"""Partitions of a new topic where nothing else decides: as many slots can share a processor."""


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
        """A step reads one record of an input that is ready, not one of each input."""
        return self in (Kind.ALTS, Kind.ALTS_FORK, Kind.ALTS_SINK)


class Order(StrEnum):
    """Which calls of a processor with `concurrency` wait for one another. Outputs are always in the order of inputs."""

    PARTITION = "partition"
    """Those of a partition: one at a time."""
    KEY = "key"
    """Those of a partition whose records have the same key; records without a key wait for none."""
    NONE = "none"
    """None."""


@dataclass(frozen=True, slots=True, eq=False)
class Topic(Generic[K, V]):
    """A topic of one graph, with keys of type `K` and values of type `V`. Equal only to itself.

    - `key`, `value`: the serdes by which its records are read and written.
    - `partitions`, `replication`: their numbers; None accepts any number.
    - `config`: the broker's settings of the topic.
    - `cluster`: the cluster where it is, by its name in the settings; "" for that of the graph.
    """

    name: str
    key: Serde[K]
    value: Serde[V]
    partitions: int | None
    replication: int | None
    config: Mapping[str, str]
    cluster: str = ""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Processor:
    """A function with its input and output topics.

    - `function`: takes a value of each input, or a single value if the kind is an alts.
    - `wants_step`: the function takes the step as its last argument.
    - `batch`: the function takes lists of values, and of steps.
    - `generator`: the function yields its results.
    - `errors`: the name of the topic of its dead letters; None for none.
    - `stop_on`: exception classes that stop the worker instead of making a dead letter.
    - `hash_header`: outputs have the delivery hash as a header.
    - `retry`: when a step that raised is run again; None for never.
    - `asynchronous`: the function is a coroutine function, or an asynchronous generator.
    - `concurrency`: how many calls may be under way at once.
    - `order`: which of these calls wait for one another.
    - `journal`: how deliveries are recorded in a journal; None where the transaction is enough.
    - `cluster`: the cluster of its outputs and dead letters, as in Topic.
    - `target`: where the rows of a sink are stored; None for none.
    - `state`: the keyed store that the function takes as its last argument; None for none.
    - `ordered`: how it applies events in their order; None for any records.
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
    stop_on: tuple[type[BaseException], ...]
    hash_header: bool
    retry: Retry | None = None
    asynchronous: bool = False
    concurrency: int = 1
    order: Order = Order.PARTITION
    journal: Journal | None = None
    cluster: str = ""
    target: Sink | None = None
    state: State[Any, Any] | None = None
    ordered: Ordered | None = None

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the topics of its outputs, then that of its dead letters."""
        outputs = tuple(topic.name for topic in self.outputs)
        return outputs if self.errors is None else (*outputs, self.errors)

    @property
    def overlaps(self) -> bool:
        """Calls go on while the worker fetches, writes and commits."""
        return not self.batch and (self.asynchronous or self.concurrency > 1)

    @property
    def joins(self) -> bool:
        """A step reads one record of each of several inputs."""
        return len(self.inputs) > 1 and not self.kind.is_alts

    @property
    def ignores_results(self) -> bool:
        """What the function returns is neither written nor stored."""
        return not self.outputs and self.target is None

    @property
    def stores_offsets(self) -> bool:
        """The next offsets of the inputs are stored in the target, with the rows."""
        return self.target is not None and self.target.evidence == Evidence.OFFSETS


def changelog_of(graph: str, processor: Processor) -> str | None:
    """The topic of the changes of a processor's state, in the graph of a name; None if it has none."""
    return None if processor.state is None else changelog_topic(graph, processor.state.name)


End = Topic | str
Many = Sequence[End]


class OptionsOfAll(TypedDict, total=False):
    """The options of a processor: `id` is by default the name of the function, most others are those of the graph.

    The graph has none for `concurrency`, how many calls may be under way at once (1 by default, also of an async
    function), for `order`, which of them wait for one another, for `persistence`: "transaction" (the default), or
    "journal" or a Journal, to record each delivery in a topic of its own, and for `state`: a State, which the function
    takes as its last argument.
    """

    id: str
    guarantee: Guarantee | str
    durability: Durability | str
    errors: End | None
    stop_on: Classes
    hash_header: bool
    retry: Retry | None
    persistence: Journal | str
    concurrency: int
    order: Order | str
    state: State[Any, Any] | None


class Options(OptionsOfAll, total=False):
    """The same, and whether the function takes lists."""

    batch: bool


class OfOne(Protocol[Value]):
    """Decorates a function of one value (and the step), and returns it unchanged."""

    def __call__(
        self, function: Callable[Concatenate[Value, Rest], Result], /
    ) -> Callable[Concatenate[Value, Rest], Result]: ...


@cache
def dead_letters() -> Avro:
    """The serde of every dead letter: schemas/dead_letter.avsc."""
    return Avro(shipped_schema("dead_letter"))


def show_serde(serde: Serde) -> str:
    """A serde's own repr, otherwise the name of its class: the default repr has an address, which differs each run."""
    return repr(serde) if type(serde).__repr__ is not object.__repr__ else type(serde).__name__
