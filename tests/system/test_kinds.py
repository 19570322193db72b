"""Every kind of processor on a real broker: whole topics, headers, committed offsets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings, Step
from kstreams_py.graph.hashes import joined_hash
from tests.clusters import open_cluster
from tests.system.app import MakeSettings
from tests.system.harness import Cluster, running, wait_until


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{i}".encode() for i in range(count)]


def hashes(records: Sequence[Any]) -> list[bytes]:
    return [dict(m.headers())["ks-hash"] for m in records]


def run_until_committed(
    cluster: Cluster, graph: ks.Graph, settings: Settings, processor: str, ends: dict[str, dict[int, int]]
) -> None:
    """Runs slot 0 until the processor's group has committed these offsets."""
    with running(graph, settings):
        for topic, offsets in ends.items():
            cluster.await_committed(f"{graph.name}.{processor}", topic, offsets)


def test_map_passes_key_headers_timestamp_and_adds_the_hash(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    source, target = f"{name}.in", f"{name}.out"
    cluster.create(source, target)
    cluster.write(source, [b"a", b"b"], keys=[b"k", None], headers=[("trace", b"1")], timestamp=1_357_000_000_000)
    graph = ks.Graph(name)

    @graph.map(graph.topic(source), to=graph.topic(target))
    def shout(value: bytes) -> bytes:
        return value.upper()

    run_until_committed(cluster, graph, settings(), "shout", {source: {0: 2}})
    found = cluster.read(target)
    assert [(m.value(), m.key(), m.timestamp()[1]) for m in found] == [
        (b"A", b"k", 1_357_000_000_000),
        (b"B", None, 1_357_000_000_000),
    ]
    assert [m.headers()[0] for m in found] == [("trace", b"1")] * 2
    assert [len(digest) for digest in hashes(found)] == [16, 16]
    assert [struct.unpack(">Q", digest[8:])[0] for digest in hashes(found)] == [0, 1]


def test_map_out_sets_the_given_fields_and_none_writes_nothing(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    source, target = f"{name}.in", f"{name}.out"
    cluster.create(source, target)
    cluster.write(source, [b"drop", b"set", b"tomb"], keys=[b"k"] * 3, headers=[("old", b"1")])
    graph = ks.Graph(name)

    @graph.map(graph.topic(source), to=graph.topic(target, key=ks.String()))
    def change(value: bytes) -> ks.Out | None:
        if value == b"drop":
            return None
        if value == b"tomb":
            return ks.Out(None)
        return ks.Out(b"v", key="new", headers=[("new", b"2")], timestamp=5)

    run_until_committed(cluster, graph, settings(), "change", {source: {0: 3}})
    found = cluster.read(target)
    assert [(m.value(), m.key()) for m in found] == [(b"v", b"new"), (None, b"k")]
    assert [[n for n, _ in m.headers()] for m in found] == [["new", "ks-hash"], ["old", "ks-hash"]]
    assert found[0].timestamp()[1] == 5


def test_fork_sends_each_value_to_the_topic_it_names(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    source, even, odd = f"{name}.in", f"{name}.even", f"{name}.odd"
    cluster.create(source, even, odd)
    cluster.write(source, numbered("", 10))
    graph = ks.Graph(name)
    evens, odds = graph.topic(even), graph.topic(odd)

    @graph.map(graph.topic(source), to=[evens, odds])
    def split(value: bytes) -> dict[ks.Topic, bytes]:
        if value == b"7":
            return {evens: b"both", odds: b"both"}
        return {odds if int(value) % 2 else evens: value}

    run_until_committed(cluster, graph, settings(), "split", {source: {0: 10}})
    assert cluster.values(even) == [b"0", b"2", b"4", b"6", b"both", b"8"]
    assert cluster.values(odd) == [b"1", b"3", b"5", b"both", b"9"]
    assert hashes(cluster.read(even))[4] == hashes(cluster.read(odd))[3]


def test_flat_map_writes_all_that_is_yielded_or_nothing(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    source, target, errors = f"{name}.in", f"{name}.out", f"{name}.errors"
    cluster.create(source, target, errors)
    cluster.write(source, [b"ab", b"", b"c!", b"d"])
    graph = ks.Graph(name, errors=errors)

    @graph.map(graph.topic(source), to=graph.topic(target))
    def letters(value: bytes) -> Any:
        for letter in value:
            if letter == ord("!"):
                raise ValueError("loud")
            yield bytes([letter])

    run_until_committed(cluster, graph, settings(), "letters", {source: {0: 4}})
    assert cluster.values(target) == [b"a", b"b", b"d"]
    assert len(cluster.read(errors)) == 1


def test_join_takes_one_record_of_each_input_per_step(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    left, right, target = f"{name}.left", f"{name}.right", f"{name}.out"
    cluster.create(left, right, target)
    cluster.write(left, numbered("l", 5), keys=[b"key"] * 5)
    cluster.write(right, numbered("r", 3))
    graph = ks.Graph(name)

    @graph.join(graph.topic(left), graph.topic(right), by="order", to=graph.topic(target))
    def zipped(a: bytes, b: bytes) -> bytes:
        return a + b

    run_until_committed(cluster, graph, settings(), "zipped", {left: {0: 3}, right: {0: 3}})
    found = cluster.read(target)
    assert [(m.value(), m.key()) for m in found] == [(f"l{i}r{i}".encode(), b"key") for i in range(3)]
    ids = {topic: info.topic_id for topic, info in open_cluster(settings()).topics([left, right]).items()}
    assert hashes(found) == [
        joined_hash(f"{name}.zipped", [(left, ids[left], 0, i), (right, ids[right], 0, i)]) for i in range(3)
    ]
    cluster.write(right, [b"r3"])
    run_until_committed(cluster, graph, settings(), "zipped", {left: {0: 4}, right: {0: 4}})
    assert cluster.values(target) == [f"l{i}r{i}".encode() for i in range(4)]


@pytest.mark.long  # in the quick tier, test_journal.py has it, and forks and joins are here
def test_join_fork_writes_to_several_topics(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    left, right, low, high = (f"{name}.{end}" for end in ("left", "right", "low", "high"))
    cluster.create(left, right, low, high)
    cluster.write(left, [b"1", b"9"])
    cluster.write(right, [b"5", b"4"])
    graph = ks.Graph(name)

    @graph.join(graph.topic(left), graph.topic(right), by="order", to=[graph.topic(low), graph.topic(high)])
    def sort(a: bytes, b: bytes) -> dict[str, bytes]:
        return {low: min(a, b), high: max(a, b)}

    run_until_committed(cluster, graph, settings(), "sort", {left: {0: 2}, right: {0: 2}})
    assert (cluster.values(low), cluster.values(high)) == ([b"1", b"4"], [b"5", b"9"])


def test_alts_takes_every_record_of_every_input_once(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    inputs, target = [f"{name}.{end}" for end in "abc"], f"{name}.out"
    cluster.create(*inputs, target, partitions=2)
    for topic in inputs:
        for partition in range(2):
            cluster.write(topic, numbered(f"{topic[-1]}{partition}-", 20), keys=[b"k"] * 20, partition=partition)
    graph = ks.Graph(name)

    @graph.alts(*(graph.topic(topic) for topic in inputs), to=graph.topic(target))
    def merge(value: bytes, step: Step) -> bytes:
        assert step.topic[-1] == value.decode()[0]
        return value

    run_until_committed(cluster, graph, settings(), "merge", {topic: {0: 20, 1: 20} for topic in inputs})
    found = cluster.values(target)
    expected = {f"{t}{p}-": numbered(f"{t}{p}-", 20) for t in "abc" for p in range(2)}
    assert {start: [v for v in found if v and v.decode().startswith(start)] for start in expected} == expected
    assert len(found) == 120
    assert len(set(hashes(cluster.read(target)))) == 120


@pytest.mark.long  # in the quick tier, test_journal.py has it, and forks and alts are here
def test_alts_fork_writes_to_the_topics_it_names(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    a, b, x, y = (f"{name}.{end}" for end in "abxy")
    cluster.create(a, b, x, y)
    cluster.write(a, [b"a0", b"a1"])
    cluster.write(b, [b"b0"])
    graph = ks.Graph(name)

    @graph.alts(graph.topic(a), graph.topic(b), to=[graph.topic(x), graph.topic(y)])
    def swap(value: bytes, step: Step) -> dict[str, bytes]:
        return {y if step.topic == a else x: value}

    run_until_committed(cluster, graph, settings(), "swap", {a: {0: 2}, b: {0: 1}})
    assert (cluster.values(x), cluster.values(y)) == ([b"b0"], [b"a0", b"a1"])


@pytest.mark.parametrize("batch", [False, True])
def test_sink_sees_every_record_with_its_hash(cluster: Cluster, settings: MakeSettings, name: str, batch: bool) -> None:
    source = f"{name}.in"
    cluster.create(source)
    cluster.write(source, numbered("", 30))
    graph = ks.Graph(name)
    seen: list[tuple[bytes, int]] = []
    if batch:

        @graph.sink(graph.topic(source), id="store", batch=True)
        def store_all(values: list[bytes], steps: list[Step]) -> None:
            seen.extend((v, struct.unpack(">Q", s.delivery_hash[8:])[0]) for v, s in zip(values, steps, strict=True))
    else:

        @graph.sink(graph.topic(source), id="store")
        def store(value: bytes, step: Step) -> None:
            seen.append((value, struct.unpack(">Q", step.delivery_hash[8:])[0]))

    run_until_committed(cluster, graph, settings(), "store", {source: {0: 30}})
    assert seen == [(str(i).encode(), i) for i in range(30)]


def test_join_sink_and_alts_sink_see_their_inputs(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    a, b = f"{name}.a", f"{name}.b"
    cluster.create(a, b)
    cluster.write(a, [b"a0", b"a1"])
    cluster.write(b, [b"b0", b"b1"])
    graph = ks.Graph(name)
    left, right = graph.topic(a), graph.topic(b)
    pairs: list[tuple[bytes, bytes]] = []
    singles: list[bytes] = []

    @graph.sink(left, right)
    def pair(x: bytes, y: bytes) -> None:
        pairs.append((x, y))

    @graph.sink(left, right, alts=True)
    def single(x: bytes) -> None:
        singles.append(x)

    with running(graph, settings()):
        for group in ("pair", "single"):
            for topic in (a, b):
                cluster.await_committed(f"{name}.{group}", topic, {0: 2})
    assert pairs == [(b"a0", b"b0"), (b"a1", b"b1")]
    assert sorted(singles) == [b"a0", b"a1", b"b0", b"b1"]


def test_batch_map_writes_results_and_dead_letters_in_place(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    source, target, errors = f"{name}.in", f"{name}.out", f"{name}.errors"
    cluster.create(source, target, errors)
    cluster.write(source, numbered("", 6))
    graph = ks.Graph(name, errors=errors)

    @graph.map(graph.topic(source), to=graph.topic(target), batch=True)
    def double(values: list[bytes]) -> list[Any]:
        return [ValueError("three") if v == b"3" else None if v == b"4" else v * 2 for v in values]

    run_until_committed(cluster, graph, settings(), "double", {source: {0: 6}})
    assert cluster.values(target) == [b"00", b"11", b"22", b"55"]
    assert [dict(m.headers())["ks-error"] for m in cluster.read(errors)] == [b"ValueError"]


def test_two_processors_in_a_row_pass_records_on_and_each_adds_its_own_hash(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    first, second, third = (f"{name}.{end}" for end in ("1", "2", "3"))
    cluster.create(first, second, third)
    cluster.write(first, numbered("", 50))
    graph = ks.Graph(name)
    middle = graph.topic(second)

    @graph.map(graph.topic(first), to=middle)
    def one(value: bytes) -> bytes:
        return value + b"."

    @graph.map(middle, to=graph.topic(third))
    def two(value: bytes) -> bytes:
        return value + b"!"

    with running(graph, settings()):
        wait_until(lambda: len(cluster.values(third)) == 50, "50 records at the end")
    assert cluster.values(third) == [f"{i}.!".encode() for i in range(50)]
    through, out = cluster.read(second), cluster.read(third)
    assert [[n for n, _ in m.headers()] for m in out] == [["ks-hash"]] * 50
    assert not set(hashes(through)) & set(hashes(out))
