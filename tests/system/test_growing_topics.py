"""Inputs that gain partitions: where added partitions are read from, journals that grow, joins that must stop."""

from __future__ import annotations

from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import errors
from tests.system.app import GUARANTEES, SOON, MakeSettings, grow
from tests.system.harness import Cluster, RunningSlot, running

PROMPTLY = 120.0
"""Seconds from the growth to the end of the worker: two refreshes of the default interval, on a slow machine."""


def read_by_partition(cluster: Cluster, topic: str) -> dict[int, list[bytes | None]]:
    """All values of the topic by partition, in order."""
    found: dict[int, list[bytes | None]] = {p: [] for p in cluster.partitions(topic)}
    for m in cluster.read(topic):
        found[m.partition()].append(m.value())
    return found


def map_graph(name: str, guarantee: str, target: str) -> ks.Graph:
    graph = ks.Graph(name, guarantee=guarantee)
    graph.map(graph.topic(f"{name}.in"), to=graph.topic(target), id="step")(lambda value: value)
    return graph


def alts_graph(name: str) -> ks.Graph:
    graph = ks.Graph(name)
    graph.alts(graph.topic(f"{name}.a"), graph.topic(f"{name}.b"), to=graph.topic(f"{name}.out"), id="step")(
        lambda value: value
    )
    return graph


@pytest.mark.parametrize("refresh", [SOON, pytest.param({}, marks=pytest.mark.long)], ids=["soon", "by default"])
def test_join_with_one_input_that_gains_partitions_stops_and_names_both_topics(
    cluster: Cluster, settings: MakeSettings, name: str, refresh: dict[str, str]
) -> None:
    left, right, target = f"{name}.left", f"{name}.right", f"{name}.out"
    cluster.create(left, right, target)
    cluster.partitions(target)
    graph = ks.Graph(name)
    graph.join(graph.topic(left), graph.topic(right), by="order", to=graph.topic(target), id="step")(lambda a, b: a + b)
    cluster.write(left, [b"a", b"b"])
    cluster.write(right, [b"1", b"2"])
    slot = RunningSlot(graph, settings(kafka=refresh))
    try:
        for topic in (left, right):
            cluster.await_committed(f"{name}.step", topic, {0: 2})
        grow(cluster, 2, left)
        slot.thread.join(PROMPTLY)
        assert not slot.thread.is_alive(), "the worker does not end"
    finally:
        slot.stop()
    assert isinstance(slot.failure, errors.UserMistake)
    assert slot.failure.exit_status == 2
    text = str(slot.failure)
    assert [word for word in (repr(left), "2 partitions", repr(right), "with 1") if word not in text] == [], text
    assert cluster.values(target) == [b"a1", b"b2"]
    # the remedy in the message: the other input grows too
    grow(cluster, 2, right)
    cluster.write(left, [b"c"], partition=1)
    cluster.write(right, [b"3"], partition=1)
    with running(graph, settings()):
        for topic in (left, right):
            cluster.await_committed(f"{name}.step", topic, {0: 2, 1: 1})
    assert cluster.values(target) == [b"a1", b"b2", b"c3"]


@pytest.mark.parametrize("while_running", [True, False], ids=["running", "stopped"])
def test_journal_of_an_alts_grows_with_its_inputs(
    cluster: Cluster, settings: MakeSettings, name: str, while_running: bool
) -> None:
    inputs, target = [f"{name}.a", f"{name}.b"], f"{name}.out"
    cluster.create(*inputs, target)
    cluster.partitions(target)
    graph = alts_graph(name)
    (processor,) = graph.processors
    journal = graph.journal_topic(processor)
    assert journal is not None
    expected: dict[str, list[bytes]] = {topic: [] for topic in inputs}

    def write(partition: int) -> None:
        for topic in inputs:
            values = [f"{topic[-1]}{partition}-{len(expected[topic])}-{i}".encode() for i in range(50)]
            cluster.write(topic, values, partition=partition)
            expected[topic] += values

    def await_ends(ends: dict[int, int]) -> None:
        for topic in inputs:
            cluster.await_committed(f"{name}.step", topic, ends)

    write(0)
    with running(graph, settings(kafka=SOON)):
        await_ends({0: 50})
        if while_running:
            grow(cluster, 3, *inputs)
            write(2)
            await_ends({0: 50, 1: 0, 2: 50})
            write(0)
            await_ends({0: 100, 1: 0, 2: 50})
    if not while_running:
        grow(cluster, 3, *inputs)
        write(2)
        write(0)
        with running(graph, settings()):
            await_ends({0: 100, 1: 0, 2: 50})
    assert cluster.partitions(journal) == [0, 1, 2]
    journaled = read_by_partition(cluster, journal)
    assert [p for p in journaled if journaled[p]] == [0, 2], "each partition has its own choices"
    found = cluster.values(target)
    for topic, values in expected.items():
        for partition in (0, 2):
            of_partition = [v for v in values if v.startswith(f"{topic[-1]}{partition}".encode())]
            assert [v for v in found if v in of_partition] == of_partition
    assert len(found) == 300


QUICK = ("exactly_once", "latest")


@pytest.mark.parametrize(
    ("guarantee", "reset"),
    # where an added partition is read from is decided before the guarantee acts; `latest` alone could skip records
    [
        pytest.param(guarantee, reset, marks=() if (guarantee, reset) == QUICK else pytest.mark.long)
        for guarantee in GUARANTEES
        for reset in ("earliest", "latest")
    ],
)
def test_map_reads_added_partitions_from_their_start(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str, reset: str
) -> None:
    """Partitions are added while it runs and while it is stopped; a first start with `latest` skips older records."""
    source, target, group = f"{name}.in", f"{name}.out", f"{name}.step"
    cluster.create(source, target)
    cluster.partitions(target)
    graph = map_graph(name, guarantee, target)
    before = [b"before-0", b"before-1"]
    cluster.write(source, before)
    with running(graph, settings(kafka=SOON, auto_offset_reset=reset)):
        if reset == "latest":
            cluster.await_committed(group, source, {0: 2})  # the group begins there
        cluster.write(source, [b"p0-0"])
        cluster.await_committed(group, source, {0: 3})
        grow(cluster, 2, source)
        cluster.write(source, [b"p1-0", b"p1-1"], partition=1)  # before the consumer knows the partition
        cluster.await_committed(group, source, {0: 3, 1: 2})
        cluster.write(source, [b"p0-1"], partition=0)
        cluster.write(source, [b"p1-2"], partition=1)
        cluster.await_committed(group, source, {0: 4, 1: 3})
    grow(cluster, 4, source)
    cluster.write(source, [b"p3-0", b"p3-1"], partition=3)
    with running(graph, settings(kafka=SOON, auto_offset_reset=reset)):
        cluster.await_committed(group, source, {0: 4, 1: 3, 2: 0, 3: 2})
        grow(cluster, 5, source)
        cluster.write(source, [b"p4-0"], partition=4)
        cluster.await_committed(group, source, {0: 4, 1: 3, 2: 0, 3: 2, 4: 1})
    found: list[Any] = cluster.values(target)
    written = ["p0-0", "p0-1", "p1-0", "p1-1", "p1-2", "p3-0", "p3-1", "p4-0"]
    expected = [*(before if reset == "earliest" else []), *(value.encode() for value in written)]
    assert sorted(found) == sorted(expected)
    for p in range(5):
        of_partition = [value for value in expected if value.startswith(b"p%d-" % p)]
        assert [value for value in found if value in of_partition] == of_partition


def test_partition_added_after_offsets_were_set_by_hand_is_read_from_its_start(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    """With `latest`: the group has offsets of an older version and no recorded beginning; its first commit adds one."""
    source, target, group = f"{name}.in", f"{name}.out", f"{name}.step"
    cluster.create(source, target)
    cluster.partitions(target)
    graph = map_graph(name, "exactly_once", target)
    cluster.write(source, [b"before"])
    cluster.set_committed(group, {(source, 0): 1})
    around = settings(kafka=SOON, auto_offset_reset="latest")
    with running(graph, around):
        cluster.write(source, [b"p0"])
        cluster.await_committed(group, source, {0: 2})
    grow(cluster, 2, source)
    cluster.write(source, [b"p1"], partition=1)
    with running(graph, around):
        cluster.await_committed(group, source, {0: 2, 1: 1})
    assert cluster.values(target) == [b"p0", b"p1"]
