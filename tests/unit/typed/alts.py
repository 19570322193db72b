"""The argument of a function of an alts: a value of any of the inputs."""

from __future__ import annotations

from typing import Any, assert_type

import kstreams_py as ks

graph = ks.Graph("alts")
names = graph.topic("names", key=ks.String(), value=ks.String())
photos = graph.topic("photos")
notes = graph.topic("notes", value=ks.Json())
to = graph.topic("to", value=ks.String())
more = graph.topic("more", value=ks.String())


@graph.alts(names, photos, to=to)
def either(value: str | bytes, step: ks.Step[str | bytes]) -> str:
    assert_type(step.key, str | bytes)
    return step.topic


@graph.alts(names, photos, to=to)
def anything(value: object) -> str | None:
    return str(value)


@graph.alts(names, photos, notes, to=[to, more])
def any_of_three(value: str | bytes | dict[str, Any]) -> dict[ks.Topic, str]:
    return {to: str(value)}


@graph.alts(names, "photos", to=to)
def topic_by_name(value: str | int) -> str:
    return str(value)


@graph.alts(*(graph.topic(f"names.{number}", value=ks.String()) for number in range(9)), to=to)
def topics_in_a_list(value: str) -> str:
    return value


def calls() -> None:
    assert_type(either("a", step=ks.Step((), b"")), str)


@graph.alts(names, photos, to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str], str]"  [call-overload]
def one_of_them(value: str) -> str:
    return value


@graph.alts(names, photos, more, to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str], str]"  [call-overload]
def two_of_three(value: str) -> str:
    return value


@graph.alts(names, photos, to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str | bytes], bytes]"  [call-overload]
def another_result(value: str | bytes) -> bytes:
    return b""


@graph.alts(names, photos, to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str | bytes, Step[str]], str]"  [call-overload]
def keys_of_one(value: str | bytes, step: ks.Step[str]) -> str:
    return step.key


def wrong_calls() -> None:
    @graph.alts(names, photos, to=to)
    # E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, bytes], str]"  [call-overload]
    def as_of_a_join(name: str, photo: bytes) -> str:
        return name
