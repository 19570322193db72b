"""The decorators of a Graph that declare processors, with the types of the functions that each takes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, cast, overload

from kstreams_py.errors import GraphError
from kstreams_py.graph.channels import TaskKind
from kstreams_py.graph.checks import check_join, choose, name_processor
from kstreams_py.graph.declarations import (
    HELD_BYTES_MAX,
    HELD_MAX,
    Channel,
    End,
    KeyedStore,
    Many,
    Options,
    OptionsOfAll,
    Ordered,
    OrderedOptions,
    Start,
)
from kstreams_py.graph.signatures import (
    K1,
    K2,
    K3,
    K4,
    SK,
    SV,
    V1,
    V2,
    V3,
    V4,
    BatchToOne,
    BatchToSeveral,
    BatchToTable,
    Declare,
    Function,
    K,
    Several,
    Single,
    ToKey,
    ToOne,
    ToSeveral,
    ToTable,
    ToValue,
    V,
)
from kstreams_py.graph.sink import Sink
from kstreams_py.records import Step


class Decorators(ABC):
    """The decorators that declare a processor, each with the options of processors.

    No two overloads match the same topics: if two did, mypy would type the function as Any wherever a value is Any, as
    with Json().
    """

    @abstractmethod
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
        """Returns a decorator that declares a processor and returns its function unchanged."""

    @abstractmethod
    def _declare_task(
        self, kind: TaskKind, inputs: Many, outputs: Many, options: Options, target: object = None
    ) -> Callable[[Function], Function]:
        """Returns a decorator that declares a task and returns its function unchanged."""

    @overload
    def map(
        self,
        topic: Single[K, V],
        *,
        to: Single[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToOne[ToValue, ToKey], Step[K], KeyedStore[SK, SV], V]: ...
    @overload
    def map(
        self,
        topic: Single[K, V],
        *,
        to: Several[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToSeveral[ToValue, ToKey], Step[K], KeyedStore[SK, SV], V]: ...
    @overload
    def map(
        self,
        topic: Single[K, V],
        *,
        to: Single[ToKey, ToValue],
        batch: Literal[True],
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[BatchToOne[ToValue, ToKey], list[Step[K]], KeyedStore[SK, SV], list[V]]: ...
    @overload
    def map(
        self,
        topic: Single[K, V],
        *,
        to: Several[ToKey, ToValue],
        batch: Literal[True],
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[BatchToSeveral[ToValue, ToKey], list[Step[K]], KeyedStore[SK, SV], list[V]]: ...
    def map(self, topic: End, *, to: End | Several, **options: Unpack[Options]) -> Callable[[Any], Any]:
        """Declares a processor that reads one record and writes the function's result.

        - `to` (Topic, str, or a list of them): its outputs. With several it is a fork, whose function returns a dict of
          topic to value.

        Raises GraphError.
        """
        return self._declare((topic,), _listed(to), options)

    @overload
    def join(
        self,
        first: Single[K1, V1],
        second: Single[K2, V2],
        /,
        *,
        by: Literal["order"],
        to: Single[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToOne[ToValue, ToKey], Step[K1], KeyedStore[SK, SV], V1, V2]: ...
    @overload
    def join(
        self,
        first: Single[K1, V1],
        second: Single[K2, V2],
        /,
        *,
        by: Literal["order"],
        to: Several[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToSeveral[ToValue, ToKey], Step[K1], KeyedStore[SK, SV], V1, V2]: ...
    @overload
    def join(
        self,
        first: Single[K1, V1],
        second: Single[K2, V2],
        third: Single[K3, V3],
        /,
        *,
        by: Literal["order"],
        to: Single[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToOne[ToValue, ToKey], Step[K1], KeyedStore[SK, SV], V1, V2, V3]: ...
    @overload
    def join(
        self,
        first: Single[K1, V1],
        second: Single[K2, V2],
        third: Single[K3, V3],
        /,
        *,
        by: Literal["order"],
        to: Several[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToSeveral[ToValue, ToKey], Step[K1], KeyedStore[SK, SV], V1, V2, V3]: ...
    @overload
    def join(
        self,
        first: End,
        second: End,
        /,
        *more: End,
        by: Literal["order"],
        to: End | Many,
        batch: Literal[True],
        **options: Unpack[OptionsOfAll],
    ) -> Callable[[Function], Function]: ...
    @overload
    def join(
        self,
        first: End,
        second: End,
        third: End,
        fourth: End,
        /,
        *more: End,
        by: Literal["order"],
        to: End | Many,
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll],
    ) -> Callable[[Function], Function]: ...
    def join(
        self, *topics: End, to: End | Several, by: str | None = None, **options: Unpack[Options]
    ) -> Callable[[Function], Function]:
        """Declares a processor whose step reads one record of each input, and writes the function's result.

        It reads its inputs in step, partition by partition, and an input that is ahead waits for the others:

            forecasts     f1       f2       f3
            measurements  m1       m2       (none yet)
            compare       (f1,m1)  (f2,m2)  f3 waits for m3

        To look up records by their key, use `alts` with a state (docs/how-it-works.md).

        - `to` (Topic, str, or a list of them): its outputs.
        - `by` (str): "order": the n-th record of a partition is joined with the n-th record of the same partition of
          each other input, whatever their keys.

        Raises GraphError.
        """
        check_join(by)
        return self._declare(topics, _listed(to), options, least=2)

    @overload
    def alts(
        self,
        first: Single[K1, V1],
        second: Single[K2, V2],
        third: Single[K3, V3] = ...,
        fourth: Single[K4, V4] = ...,
        /,
        *more: End,
        to: Single[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToOne[ToValue, ToKey], Step[K1 | K2 | K3 | K4], KeyedStore[SK, SV], V1 | V2 | V3 | V4]: ...
    @overload
    def alts(
        self,
        first: Single[K1, V1],
        second: Single[K2, V2],
        third: Single[K3, V3] = ...,
        fourth: Single[K4, V4] = ...,
        /,
        *more: End,
        to: Several[ToKey, ToValue],
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToSeveral[ToValue, ToKey], Step[K1 | K2 | K3 | K4], KeyedStore[SK, SV], V1 | V2 | V3 | V4]: ...
    @overload
    def alts(
        self,
        first: End,
        second: End,
        /,
        *more: End,
        to: End | Many,
        batch: Literal[True],
        **options: Unpack[OptionsOfAll],
    ) -> Callable[[Function], Function]: ...
    def alts(self, *topics: End, to: End | Several, **options: Unpack[Options]) -> Callable[[Function], Function]:
        """Declares a processor that reads one record of any input that is ready, and writes the function's result.

        It merges its inputs, one record at a time, and no input waits for another. The order within an input is kept:

            web    w1  w2          w3
            shop           s1  s2      s3
            merge  w1  w2  s1  s2  w3  s3

        - `to` (Topic, str, or a list of them): its outputs.

        Raises GraphError.
        """
        return self._declare(topics, _listed(to), options, least=2, alts=True)

    def gather(
        self,
        first: Channel | str,
        second: Channel | str,
        /,
        *more: Channel | str,
        to: End | Several,
        **options: Unpack[Options],
    ) -> Callable[[Function], Function]:
        """Declares a task that takes the results of all branches of one segment, and writes the function's result.

        The inputs are channels that come from one common channel. Each has at most one value for each segment of that
        channel. The function is not called for a segment for which a branch returned None.

        Raises GraphError.
        """
        return self._declare_task(TaskKind.GATHER, (first, second, *more), _listed(to), options)

    @overload
    def ordered(
        self,
        topic: Single[K, V],
        *,
        to: Single[ToKey, ToValue],
        start: Start | str = ...,
        held_max: int = ...,
        held_bytes_max: int = ...,
        **options: Unpack[OrderedOptions[SK, SV]],
    ) -> Declare[ToOne[ToValue, ToKey], Step[K], KeyedStore[SK, SV], V]: ...
    @overload
    def ordered(
        self,
        topic: Single[K, V],
        *,
        to: Several[ToKey, ToValue],
        start: Start | str = ...,
        held_max: int = ...,
        held_bytes_max: int = ...,
        **options: Unpack[OrderedOptions[SK, SV]],
    ) -> Declare[ToSeveral[ToValue, ToKey], Step[K], KeyedStore[SK, SV], V]: ...
    def ordered(
        self,
        topic: End,
        *,
        to: End | Several,
        start: Start | str = Start.FROM_START,
        held_max: int = HELD_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        **options: Unpack[Options],
    ) -> Callable[[Function], Function]:
        """Declares a processor that applies the events of `kstreams order`: each once, in the order of its object.

        The function is called with each event after the event's predecessor. A copy is dropped, and an event that
        comes before its predecessor is held. An event that contradicts the order becomes a dead letter and stops its
        object: later events of the object become dead letters too, until `kstreams order resume` (docs/ordering.md).

        - `to` (Topic, str, or a list of them): its outputs.
        - `start` (Start or str): "from_start" (the default) holds an object's events until its first one has come;
          "accept_first" begins with any event.
        - `held_max`, `held_bytes_max` (int): how many events of a partition may be held, and the bytes of their keys
          and values; 10,000 and 64 MiB by default. An event beyond a limit ends the worker.

        Raises GraphError.
        """

        def declare(function: Function) -> Function:
            what = f"processor {name_processor(function, options)!r}"
            for name, limit in (("held_max", held_max), ("held_bytes_max", held_bytes_max)):
                if limit < 1:
                    raise GraphError(f"{what}: {name} is {limit}: give 1 or more")
            takes_state = options.get("state") is not None
            chosen = Ordered(choose(what, Start, "start", start), held_max, held_bytes_max, takes_state)
            return self._declare((topic,), _listed(to), options, ordered=chosen)(function)

        return declare

    @overload
    def sink(
        self,
        topic: Single[K, V],
        /,
        *,
        to: None = ...,
        alts: Literal[False] = ...,
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[object, Step[K], KeyedStore[SK, SV], V]: ...
    @overload
    def sink(
        self,
        topic: Single[K, V],
        /,
        *,
        to: Sink,
        alts: Literal[False] = ...,
        batch: Literal[False] = ...,
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[ToTable, Step[K], KeyedStore[SK, SV], V]: ...
    @overload
    def sink(
        self,
        topic: Single[K, V],
        /,
        *,
        to: None = ...,
        alts: Literal[False] = ...,
        batch: Literal[True],
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[object, list[Step[K]], KeyedStore[SK, SV], list[V]]: ...
    @overload
    def sink(
        self,
        topic: Single[K, V],
        /,
        *,
        to: Sink,
        alts: Literal[False] = ...,
        batch: Literal[True],
        **options: Unpack[OptionsOfAll[SK, SV]],
    ) -> Declare[BatchToTable, list[Step[K]], KeyedStore[SK, SV], list[V]]: ...
    @overload
    def sink(
        self,
        first: End,
        second: End,
        /,
        *more: End,
        to: Sink | None = ...,
        alts: bool = ...,
        **options: Unpack[Options],
    ) -> Callable[[Function], Function]: ...
    def sink(
        self, *topics: End, to: Sink | None = None, alts: bool = False, **options: Unpack[Options]
    ) -> Callable[[Any], Any]:
        """Declares a processor whose step reads one record of each input, and writes to no topic.

        - `to` (Sink or None): the target that stores each returned row once, such as `sinks.SQLite(...)`. A row is a
          tuple with a value for each column, or a dict of column to value. The function returns a row, a list of rows,
          or None for no row; or it yields rows. None by default: results are ignored.
        - `alts` (bool): each step reads one record of any input that is ready; False by default: one of each input.

        Raises GraphError.
        """
        return self._declare(topics, None, options, least=2 if alts else 1, alts=alts, target=to)


def _listed(to: End | Several) -> Many:
    return cast(Many, to if isinstance(to, Sequence) and not isinstance(to, str) else (to,))


def _document_options() -> None:
    """Adds the options to the docstrings of the decorators, where `help()` and the API page show them."""
    of_all = "\n".join(_listed_options(each) for each in (OptionsOfAll, Options))
    decorators: tuple[Any, ...] = (Decorators.map, Decorators.join, Decorators.alts, Decorators.sink)
    for each in decorators:
        each.__doc__ = f"{inspect.getdoc(each)}\n\nThe options:\n\n{of_all}"
    ordered: Any = Decorators.ordered
    ordered.__doc__ = f"{inspect.getdoc(ordered)}\n\nThe options:\n\n{_listed_options(OrderedOptions)}"


def _listed_options(options: Any) -> str:
    return (inspect.getdoc(options) or "").partition("\n\n")[2]


_document_options()
