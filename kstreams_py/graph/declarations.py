"""The declarations of a graph: its topics, channels and processors, with their states, journals, orders of events."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Final, Generic, Literal, Protocol, TypedDict, overload

from typing_extensions import TypeVar

from kstreams_py.errors import GraphError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.schema_files import shipped_schema
from kstreams_py.formats.serdes import Json, Serde, String
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.names import changelog_topic
from kstreams_py.graph.retry import Retry
from kstreams_py.graph.sink import Evidence, Sink
from kstreams_py.graph.source import Source

HELD_MAX: Final = 10_000
"""The default limit on the number of a task's events that wait for the events before them."""

HELD_BYTES_MAX: Final = 64 << 20
"""The default limit on the bytes of these events' keys and values."""


class Start(StrEnum):
    """Which event may come first for an object without a state."""

    FROM_START = "from_start"
    """Only the object's first event. An event with a predecessor is held."""
    ACCEPT_FIRST = "accept_first"
    """Any event. Its predecessors, if they arrive after it, are dropped as copies."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """How a processor applies events.

    - `start`: which event of an object may be the first.
    - `held_max`, `held_bytes_max`: the limits on the number and the bytes of a task's events that wait for the events
      before them.
    - `takes_state`: the function takes a state of its own.
    """

    start: Start
    held_max: int
    held_bytes_max: int
    takes_state: bool


StateKey = TypeVar("StateKey", default=str)
V = TypeVar("V", default=Any)


def _text() -> Any:
    return String()


@dataclass(frozen=True)  # with slots, State[str, int](...) fails in Python 3.11
class State(Generic[StateKey, V]):
    """A keyed store for the function of a processor: `state=ks.State("totals", value=ks.Json())`.

    Each task, a processor on one partition number, has a store of its own. The function takes it as its last argument,
    `state`, a KeyedStore. Its changes are written to a compacted changelog topic, in the transaction of the outputs and
    offsets. The next worker of the task restores the store from that topic.

    - `name`: the name of the store, unique in its graph.
    - `key`, `value`: the serdes of its keys (text by default) and values (JSON by default).
    - `on_disk`: keep it in RocksDB, in `state_directory` of the settings, instead of in memory.
    """

    name: str
    key: Serde[StateKey] = field(default_factory=_text)
    value: Serde[V] = field(default_factory=Json)
    on_disk: bool = False


Default = TypeVar("Default")


class KeyedStore(Protocol[StateKey, V]):
    """The state of a function: a mapping of keys to values, which has the keys of one task.

    Values are kept as bytes: to change a value that `get` returned, `put` it again.
    """

    __slots__ = ()

    @overload
    def get(self, key: StateKey, default: None = None) -> V | None: ...
    @overload
    def get(self, key: StateKey, default: V) -> V: ...
    @overload
    def get(self, key: StateKey, default: Default) -> V | Default: ...
    def get(self, key: StateKey, default: Any = None) -> Any:
        """Returns the value of a key; `default` if it has none. Raises what the serdes raise."""

    def __contains__(self, key: StateKey) -> bool:
        """Returns whether the key has a value."""

    def put(self, key: StateKey, value: V) -> None:
        """Sets the value of a key.

        Raises what the serdes raise, and ValueError for a value or key that its serde turns into None.
        """

    def delete(self, key: StateKey) -> None:
        """Deletes a key, if it exists."""

    def range(self, first: StateKey | None = None, last: StateKey | None = None) -> Iterator[tuple[StateKey, V]]:
        """Yields keys and values from `first` up to, but not including, `last`, in the order of the keys' bytes.

        - `first`: None for the least key.
        - `last`: None for no end.

        Keys that are put during the iteration may be missing.
        """


BATCH_MAX: Final = 10_000
"""The maximum number of input sets that a journal may deliver together."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Deliveries of an `exactly_once` processor go through a journal: `persistence=Journal()`, or "journal".

    The journal records a task's next offsets before its function is called, and the places of the outputs before
    their transaction is committed. After a crash, the next start reads the outputs back from these places.

    - `batch`: the maximum number of input sets of a task that are delivered together. With 1, each is recorded and
      committed by itself.

    Raises GraphError unless `batch` is a number from 1 to 10,000.
    """

    batch: int = 1_000

    def __post_init__(self) -> None:
        if not isinstance(self.batch, int) or isinstance(self.batch, bool) or not 1 <= self.batch <= BATCH_MAX:
            raise GraphError(f"Journal: batch is {self.batch!r}: give a number from 1 to {BATCH_MAX:,}")


K = TypeVar("K", default=Any)
Classes = type[BaseException] | Iterable[type[BaseException]]


DEFAULT_PARTITIONS: Final = 4
"""Partitions of a new topic if nothing else decides their number. At most that many slots share a processor."""


class ProcessorKind(StrEnum):
    """The kinds of processors, by what a step reads and how many topics it writes to."""

    MAP = "map"
    FORK = "fork"
    JOIN = "join"
    JOIN_FORK = "join_fork"
    ALTS = "alts"
    ALTS_FORK = "alts_fork"
    SINK = "sink"
    ALTS_SINK = "alts_sink"

    @classmethod
    def of(cls, inputs: int, outputs: int, *, alts: bool) -> ProcessorKind:
        """Returns the kind of a processor with this many inputs and outputs."""
        if outputs == 0:
            return cls.ALTS_SINK if alts else cls.SINK
        if alts:
            return cls.ALTS if outputs == 1 else cls.ALTS_FORK
        if inputs == 1:
            return cls.MAP if outputs == 1 else cls.FORK
        return cls.JOIN if outputs == 1 else cls.JOIN_FORK

    @property
    def is_alts(self) -> bool:
        """Whether a step reads one record of any input that is ready, not one of each input."""
        return self in (ProcessorKind.ALTS, ProcessorKind.ALTS_FORK, ProcessorKind.ALTS_SINK)


class Order(StrEnum):
    """Which calls of a processor with `concurrency` wait for one another. Outputs are always in the order of inputs."""

    PARTITION = "partition"
    """Calls for the same partition: one runs at a time."""
    KEY = "key"
    """Calls for the same partition and key; records without a key wait for no call."""
    NONE = "none"
    """No calls."""


class Routing(StrEnum):
    """Which of the peers that run a task gets a value of a channel. In one process, it makes no difference."""

    LEAST_QUEUED = "least_queued"
    """The peer for which the fewest values wait: a slow one gets fewer."""
    ROUND_ROBIN = "round_robin"
    """Each peer in turn: all get the same number."""


@dataclass(frozen=True, slots=True, eq=False)
class Topic(Generic[K, V]):
    """A topic of one graph, with keys of type `K` and values of type `V`. Equal only to itself.

    - `key`, `value`: the serdes of its records.
    - `partitions`, `replication`: how many it has; None accepts any number.
    - `config`: the topic's configuration on the broker.
    - `cluster`: the name, in the settings, of the cluster that has it; "" for the graph's own cluster.
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


@dataclass(frozen=True, slots=True, eq=False)
class Channel(Generic[V]):
    """A channel of one graph, with values of type `V`. Equal only to itself.

    - `source`, `topic`: where its values come from; both are None if tasks write them.
    - `errors`: the dead-letter topic of the records of `topic`; None if there is none.
    - `group_by`: a function that returns the group of a value, a hashable object; None for no groups.
    - `max_pending`: how many inputs of its source may be under way; None for the default.
    - `timeout`: seconds after which an input that is neither complete nor in any task is read again; None for the
      default.
    - `routing`: which peer gets a value, if no group decides it.
    """

    name: str
    source: Source | None = None
    topic: Topic[Any, V] | None = None
    errors: str | None = None
    group_by: Callable[[V], Hashable] | None = None
    max_pending: int | None = None
    timeout: float | None = None
    routing: Routing = Routing.LEAST_QUEUED

    def __str__(self) -> str:
        return self.name

    @property
    def is_filled(self) -> bool:
        """Whether its values come from outside the graph's tasks."""
        return self.source is not None or self.topic is not None


@dataclass(frozen=True, slots=True)
class Processor:
    """A function with its input and output topics.

    - `function`: takes a value of each input, or a single value if the kind is an alts.
    - `wants_step`: the function takes the step as its last argument.
    - `batch`: the function takes lists of values, and of steps.
    - `generator`: the function yields its results.
    - `errors`: the name of its dead-letter topic; None if there is none.
    - `stop_on`: exception classes that stop the worker instead of making a dead letter.
    - `hash_header`: outputs have the delivery hash as a header.
    - `retry`: when a step that raised is run again; None for never.
    - `asynchronous`: the function is a coroutine function, or an asynchronous generator.
    - `concurrency`: how many calls may run concurrently.
    - `order`: which of these calls wait for one another.
    - `journal`: how deliveries are recorded in a journal; None if the transaction is enough.
    - `cluster`: the cluster of its outputs and dead letters, as in Topic.
    - `target`: where the rows of a sink are stored; None if there is none.
    - `state`: the keyed store that the function takes as its last argument; None if there is none.
    - `ordered`: how it applies events in their order; None if its inputs are ordinary records.
    """

    id: str
    kind: ProcessorKind
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
        """The names of its output topics, then the name of its dead-letter topic."""
        outputs = tuple(topic.name for topic in self.outputs)
        return outputs if self.errors is None else (*outputs, self.errors)

    @property
    def uses_marks(self) -> bool:
        """Whether operators write marks: they replay its dead letters, or decide on its objects."""
        return self.errors is not None or self.ordered is not None

    @property
    def overlaps(self) -> bool:
        """Whether calls run while the worker fetches, writes and commits."""
        return not self.batch and (self.asynchronous or self.concurrency > 1)

    @property
    def joins(self) -> bool:
        """Whether a step reads one record of each of several inputs."""
        return len(self.inputs) > 1 and not self.kind.is_alts

    @property
    def ignores_results(self) -> bool:
        """Whether the function's results are neither written nor stored."""
        return not self.outputs and self.target is None

    @property
    def stores_offsets(self) -> bool:
        """Whether the target stores the next offsets of the inputs with the rows."""
        return self.target is not None and self.target.evidence == Evidence.OFFSETS


def changelog_of(graph: str, processor: Processor) -> str | None:
    """Returns the changelog topic of a processor's state; None without a state. `graph`: the graph's name."""
    return None if processor.state is None else changelog_topic(graph, processor.state.name)


End = Topic | Channel | str
Many = Sequence[End]


class TopicOptions(TypedDict, total=False):
    """The options of a topic that do not change its type: `Graph.topic` describes them."""

    partitions: int | None
    replication: int | None
    config: Mapping[str, object] | None
    cluster: str


class Defaults(TypedDict, total=False):
    """The options of a processor for which its graph has the defaults."""

    guarantee: Guarantee | str
    durability: Durability | str
    errors: Topic | str | None
    stop_on: Classes
    hash_header: bool
    retry: Retry | None


KeyOfState = TypeVar("KeyOfState", default=Any)
ValueOfState = TypeVar("ValueOfState", default=Any)


class OptionsOfAll(Defaults, Generic[KeyOfState, ValueOfState], total=False):
    """The options of a processor.

    - `id` (str): its name, unique in the graph; by default the function's name.
    - `guarantee` (Guarantee or str): "exactly_once", "at_least_once" or "at_most_once"; by default the graph's.
    - `durability` (Durability or str): whose acknowledgement its writes wait for: "committed" (all in-sync replicas),
      "leader" or "none"; by default the graph's.
    - `errors` (Topic, str or None): the topic of the dead letters of steps that raise; None to log and drop them; by
      default the graph's.
    - `stop_on` (exception class, or several): exceptions that stop the worker, instead of making a dead letter; by
      default the graph's.
    - `hash_header` (bool): its outputs have the delivery hash in the header `ks-hash`; by default the graph's.
    - `retry` (Retry or None): when a step that raised is run again; by default the graph's.
    - `persistence` (Journal or str): "transaction" (the default), or "journal" or a Journal to record each delivery in
      its own topic before it happens.
    - `concurrency` (int): how many calls may run concurrently; 1 by default, also for an async function.
    - `order` (Order or str): which of these calls wait for one another: calls for the same "partition" (the default),
      for the same "key", or "none".
    - `state` (State or None): a keyed store, which the function takes as its last argument, `state`; None by default.
    """

    id: str
    persistence: Journal | str
    concurrency: int
    order: Order | str
    state: State[KeyOfState, ValueOfState] | None


class OrderedOptions(TypedDict, Generic[KeyOfState, ValueOfState], total=False):
    """The options of a processor that applies events in their order.

    - `id` (str): its name, unique in the graph; by default the function's name.
    - `guarantee` (Guarantee or str): "exactly_once"; to be given if the graph's default is another one.
    - `durability` (Durability or str): "committed"; to be given if the graph's default is another one.
    - `errors` (Topic, str or None): the topic of the dead letters of steps that raise; None to log and drop them; by
      default the graph's.
    - `stop_on` (exception class, or several): exceptions that stop the worker, instead of making a dead letter; by
      default the graph's.
    - `hash_header` (bool): its outputs have the delivery hash in the header `ks-hash`; by default the graph's.
    - `state` (State or None): a keyed store, which the function takes as its last argument, `state`; None by default.
    """

    id: str
    guarantee: Literal[Guarantee.EXACTLY_ONCE, "exactly_once"]
    durability: Literal[Durability.COMMITTED, "committed"]
    errors: Topic | str | None
    stop_on: Classes
    hash_header: bool
    state: State[KeyOfState, ValueOfState] | None


class Options(OptionsOfAll[Any, Any], total=False):
    """The options of a processor, with one more.

    - `batch` (bool): the function takes a list of values of each input, and returns a list with a result for each
      record; False by default.
    """

    batch: bool


@cache
def dead_letters() -> Avro:
    """Returns the serde of every dead letter: schemas/dead_letter.avsc."""
    return Avro(shipped_schema("dead_letter"))


def show_serde(serde: Serde) -> str:
    """Returns the serde's own repr; the name of its class if it has only the default repr, which shows an address."""
    return repr(serde) if type(serde).__repr__ is not object.__repr__ else type(serde).__name__
