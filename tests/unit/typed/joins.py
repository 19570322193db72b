"""The arguments of a function of a join: a value of each input, in their order."""

from __future__ import annotations

from typing import Any, assert_type

import kstreams_py as ks

graph = ks.Graph("joins")
names = graph.topic("names", key=ks.String(), value=ks.String())
photos = graph.topic("photos", key=ks.Json())
notes = graph.topic("notes", value=ks.Json())
more = graph.topic("more", value=ks.String())
to = graph.topic("to", value=ks.String())


@graph.join(names, photos, by="order", to=to)
def two(name: str, photo: bytes) -> str:
    return name


@graph.join(names, photos, notes, by="order", to=to)
def three(name: str, photo: bytes, note: dict[str, int]) -> str | None:
    return name


@graph.join(names, photos, by="order", to=[to, more])
def fork(name: str, photo: bytes, step: ks.Step[str]) -> dict[ks.Topic, str]:
    return {to: step.key}


@graph.join(names, photos, by="order", to=to, state=ks.State("a", value=ks.String()))
def with_state(name: str, photo: bytes, step: ks.Step[str], state: ks.KeyedStore[str, str]) -> str | None:
    return state.get(step.key)


@graph.join("names", photos, by="order", to="to")
def topics_by_name(name: str, photo: bytes) -> int:
    return len(photo)


@graph.join(names, photos, notes, more, by="order", to=to)
def four(name: str, photo: bytes, note: Any, other: str) -> str:
    return name


def calls() -> None:
    assert_type(two("a", b"b"), str)


@graph.join(names, photos, by="order", to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes, str], str]"  [call-overload]
def in_another_order(photo: bytes, name: str) -> str:
    return name


@graph.join(names, photos, by="order", to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, bytes], bytes]"  [call-overload]
def another_result(name: str, photo: bytes) -> bytes:
    return photo


@graph.join(names, notes, photos, by="order", to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, Any, int], str]"  [call-overload]
def another_third_argument(name: str, note: Any, photo: int) -> str:
    return name


@graph.join(names, photos, notes, by="order", to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, str, Any], str]"  [call-overload]
def another_second_argument(name: str, photo: str, note: Any) -> str:
    return name


@graph.join(names, more, by="order", to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, str, Step[bytes]], str]"  [call-overload]
def key_of_the_second_input(name: str, other: str, step: ks.Step[bytes]) -> str:
    return name


@graph.join(names, photos, by="order", to=[to, more])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, bytes], str]"  [call-overload]
def no_dict(name: str, photo: bytes) -> str:
    return name


def wrong_calls() -> None:
    @graph.join(names, photos, by="order", to=to)
    # E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str], str]"  [call-overload]
    def too_few(name: str) -> str:
        return name

    @graph.join(names, photos, by="order", to=to)
    # E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, bytes, str], str]"  [call-overload]
    def too_many(name: str, photo: bytes, note: str) -> str:
        return name

    graph.join(names, photos, to=to)
    # E: No overload variant of "join" of "Decorators" matches argument types "Topic[str, str]", "Topic[Any, bytes]", "Topic[bytes, str]"  [call-overload]
