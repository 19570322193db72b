"""What a type checker knows of a processor's function: the arguments that it gets, and the results that it may return.

A decorator of Graph has the type Declare, which takes only functions that fit; at run time a decorator takes any
function.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Never, Protocol, TypeAlias, overload

from typing_extensions import ParamSpec, TypeVar, TypeVarTuple

from kstreams_py.graph.declarations import Channel, Topic
from kstreams_py.records import Out

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
ToKey = TypeVar("ToKey", default=Any)
ToValue = TypeVar("ToValue", default=Any)
SK = TypeVar("SK", default=Any)
SV = TypeVar("SV", default=Any)
Function = TypeVar("Function", bound=Callable[..., Any])

# key and value of each input of a join or an alts; Never if the input is missing, or is given by its name: the function
# may then declare any type for it
K1 = TypeVar("K1", default=Never)
V1 = TypeVar("V1", default=Never)
K2 = TypeVar("K2", default=Never)
V2 = TypeVar("V2", default=Never)
K3 = TypeVar("K3", default=Never)
V3 = TypeVar("V3", default=Never)
K4 = TypeVar("K4", default=Never)
V4 = TypeVar("V4", default=Never)

KeyGiven_co = TypeVar("KeyGiven_co", default=Any, covariant=True)
ValueGiven_co = TypeVar("ValueGiven_co", default=Any, covariant=True)


class Deserializes(Protocol[ValueGiven_co]):
    """A serde whose values have this type."""

    def deserialize(self, data: bytes, /) -> ValueGiven_co: ...


class TopicOf(Protocol[KeyGiven_co, ValueGiven_co]):
    """A topic whose serdes return these types. Topics of different types in a list have their common type."""

    @property
    def key(self) -> Deserializes[KeyGiven_co]: ...
    @property
    def value(self) -> Deserializes[ValueGiven_co]: ...


class ByTopic(Protocol[ValueGiven_co]):
    """A mapping of topic to value. A Mapping, invariant in its key, would refuse a dict of Topic[str, str]."""

    def items(self) -> Iterable[tuple[Topic | Channel | str, ValueGiven_co]]: ...


Single: TypeAlias = Topic[K, V] | Channel[V] | str
Several: TypeAlias = Sequence[TopicOf[K, V] | Channel[V] | str]

One = TypeVar("One")
ForOne: TypeAlias = ToValue | Out[ToValue, ToKey] | None
ForSeveral: TypeAlias = ByTopic[ForOne[ToValue, ToKey]] | None
TableRow: TypeAlias = tuple[Any, ...] | Mapping[str, Any]

Result: TypeAlias = One | Iterator[One] | Awaitable[One] | AsyncIterator[One]
"""What a call returns: a result, an iterator of results, or the asynchronous form. An Iterable would include text."""

Results: TypeAlias = Sequence[One | BaseException] | None
Batch: TypeAlias = Results[One] | Awaitable[Results[One]]
"""What a function with `batch=True` returns: a result for each record, or the exception that makes its dead letter."""

ToOne: TypeAlias = Result[ForOne[ToValue, ToKey]]
ToSeveral: TypeAlias = Result[ForSeveral[ToValue, ToKey]]
BatchToOne: TypeAlias = Batch[ForOne[ToValue, ToKey]]
BatchToSeveral: TypeAlias = Batch[ForSeveral[ToValue, ToKey]]
ToTable: TypeAlias = Result[TableRow | Sequence[TableRow | None] | None]
BatchToTable: TypeAlias = Batch[TableRow | Sequence[TableRow | None] | None]


Parameters = ParamSpec("Parameters")
Returned_co = TypeVar("Returned_co", covariant=True)
Expected_co = TypeVar("Expected_co", covariant=True)
Values = TypeVarTuple("Values")


class FunctionOf(Protocol[Parameters, Returned_co, Expected_co, *Values]):
    """A function that has these parameters and returns `Returned`, and that takes `Values` and returns `Expected`.

    A function fits if it matches both overloads. A decorator checks the second, and returns a function with the
    signature of the first.
    """

    @overload
    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned_co: ...
    @overload
    def __call__(self, *args: *Values) -> Expected_co: ...


# mypy infers no parameters if they have no names: it falls back to these defaults
P = ParamSpec("P", default=...)
T = TypeVar("T", default=Any)
Result_contra = TypeVar("Result_contra", contravariant=True)
Step_contra = TypeVar("Step_contra", contravariant=True)
Store_contra = TypeVar("Store_contra", contravariant=True)


class Declare(Protocol[Result_contra, Step_contra, Store_contra, *Values]):
    """Declares a function that takes these values, and perhaps step, state, or both. Returns it unchanged."""

    @overload
    def __call__(self, function: FunctionOf[P, T, Result_contra, *Values], /) -> Callable[P, T]: ...
    @overload
    def __call__(self, function: FunctionOf[P, T, Result_contra, *Values, Step_contra], /) -> Callable[P, T]: ...
    @overload
    def __call__(self, function: FunctionOf[P, T, Result_contra, *Values, Store_contra], /) -> Callable[P, T]: ...
    @overload
    def __call__(
        self, function: FunctionOf[P, T, Result_contra, *Values, Step_contra, Store_contra], /
    ) -> Callable[P, T]: ...
