"""Records that other programs write, through each kind of processor under each guarantee, in memory.

On a broker: tests/system/test_hostile_records.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

import kstreams_py as ks
from kstreams_py.records import TopicPartition
from kstreams_py.testing import TestDriver
from tests.hostile import Outcome, Place

OUTPUT, DEAD_LETTER = Outcome.OUTPUT, Outcome.DEAD_LETTER
LIMIT: Final = 10_000
"""value_bytes_max of the clusters in memory."""


class Record(NamedTuple):
    """A record as another program writes it. A name with lone surrogates stands for bytes that are not UTF-8."""

    value: bytes | None = b"odd"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


BAD_NAME: Final = b"\xff\xfe".decode(errors="surrogateescape")

CARRIED: Final = {
    "a header whose name is not UTF-8": (Record(headers=(("a", b"1"), (BAD_NAME, b"2"))), DEAD_LETTER),
    "a value that is too large": (Record(b"x" * (LIMIT + 1)), DEAD_LETTER),
    "a value of the limit": (Record(b"x" * LIMIT), OUTPUT),
    "the timestamp 0": (Record(timestamp=0), DEAD_LETTER),
    "no timestamp": (Record(timestamp=-1), OUTPUT),
    "a timestamp before 1970": (Record(timestamp=-(2**40)), OUTPUT),
    "a timestamp that no calendar has": (Record(timestamp=2**62), OUTPUT),
    "two headers of one name, without values": (Record(headers=(("a", None), ("a", None), ("", b""))), OUTPUT),
}
"""Of processors whose outputs carry headers and timestamp of the record."""

NOT_USED: Final = {
    **CARRIED,
    "a header whose name is not UTF-8": (CARRIED["a header whose name is not UTF-8"][0], OUTPUT),
    "the timestamp 0": (Record(timestamp=0), OUTPUT),
}
"""Of those that use neither."""

ONLY_EXACTLY_ONCE: Final = {"a state", "a journal"}

Declare = Callable[[ks.Graph, list[bytes]], object]


def same(value: bytes) -> bytes:
    return value


async def awaited(value: bytes) -> bytes:
    return value


def counted(value: bytes, state: Any) -> bytes:
    state.put("n", state.get("n", 0) + 1)
    return value


def asks(value: bytes, step: ks.Step) -> ks.Out:
    return ks.Out(value, headers=[("first", step.headers[0][1] if step.headers else None)], timestamp=1)


def each(value: bytes) -> Iterator[bytes]:
    yield value


def map_with(function: Callable[..., Any], **options: Any) -> Declare:
    return lambda graph, _: graph.map("a", to="x", id="p", **options)(function)


def join(graph: ks.Graph, _: list[bytes]) -> None:
    graph.join("a", "b", by="order", to="x", id="p")(lambda value, _: value)


def alts(graph: ks.Graph, _: list[bytes]) -> None:
    graph.alts("a", "b", to="x", id="p")(same)


def fork(graph: ks.Graph, _: list[bytes]) -> None:
    graph.map("a", to=["x", "y"], id="p")(lambda value: {"x": value, "y": value})


def sink(graph: ks.Graph, seen: list[bytes]) -> None:
    graph.sink("a", id="p")(seen.append)


def own(graph: ks.Graph, _: list[bytes]) -> None:
    graph.map("a", to="x", id="p")(lambda value: ks.Out(value, headers=[], timestamp=1))


KINDS: Final[Mapping[str, tuple[Declare, Mapping[str, tuple[Record, Outcome]]]]] = {
    "a map": (map_with(same), CARRIED),
    "a batch": (map_with(lambda values: values, batch=True), CARRIED),
    "a generator": (map_with(each), CARRIED),
    "calls that overlap": (map_with(same, concurrency=3), CARRIED),
    "coroutines that overlap": (map_with(awaited, concurrency=3), CARRIED),
    "a state": (map_with(counted, state=ks.State("s", key=ks.String(), value=ks.Json())), CARRIED),
    "retries": (map_with(same, retry=ks.Retry(attempts=3)), CARRIED),
    "a journal": (map_with(same, persistence=ks.Journal()), CARRIED),
    "a join": (join, {**CARRIED, "the timestamp 0": (Record(timestamp=0), OUTPUT)}),  # the latest of all inputs
    "an alts": (alts, CARRIED),
    "a fork": (fork, CARRIED),
    "a sink": (sink, NOT_USED),
    "outputs with headers and timestamp of their own": (own, NOT_USED),
}


def outcome(declare: Declare, record: Record, guarantee: str) -> Outcome:
    """Sends the record between two others; all three come to an output or a dead letter."""
    seen = list[bytes]()
    graph = ks.Graph("g", errors="dead", guarantee=guarantee)
    for topic in ("a", "b", "x", "y"):
        graph.topic(topic)
    declare(graph, seen)
    is_join = graph.processors[0].joins
    with TestDriver(graph, settings=ks.Settings(value_bytes_max=LIMIT)) as driver:
        for value, headers, timestamp in (Record(b"before"), record, Record(b"after")):
            driver.cluster.append("a", value, b"k", headers, timestamp)
            if is_join:
                driver.cluster.append("b", b"beside", b"k")
        driver.run()
        assert driver.cluster.groups["g.p"][TopicPartition("a", 0)] == 3
        outputs = [m.value() for m in driver.cluster.records("x")] or seen
        letters = driver.read("dead")
    if outputs == [b"before", record.value, b"after"] and not letters:
        return OUTPUT
    (letter,) = letters
    (read, *_) = letter.value["inputs"]
    assert (outputs, read["offset"]) == ([b"before", b"after"], 1)
    return DEAD_LETTER


def enter_into(
    declare: Declare, guarantees: Iterable[ks.Guarantee]
) -> Callable[[Mapping[str, Record], pytest.FixtureRequest], dict[str, Outcome]]:
    def enter(records: Mapping[str, Record], _: pytest.FixtureRequest) -> dict[str, Outcome]:
        found = {}
        for name, record in records.items():
            (found[name],) = {outcome(declare, record, guarantee) for guarantee in guarantees}
        return found

    return enter


PLACES: Final = [
    Place(
        f"a record, read by {kind}",
        rows,
        enter_into(declare, [ks.Guarantee.EXACTLY_ONCE] if kind in ONLY_EXACTLY_ONCE else [*ks.Guarantee]),
    )
    for kind, (declare, rows) in KINDS.items()
]
