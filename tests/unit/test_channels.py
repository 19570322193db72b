"""Channels and tasks: what is declared, how it is shown, and what is refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import kstreams_py as ks
from kstreams_py import sinks
from kstreams_py.graph.picture import mermaid
from kstreams_py.testing.memory_source import MemorySource


def declared() -> ks.Graph:
    graph = ks.Graph("shop")
    rows = graph.source("rows", MemorySource())
    left, right, both = (graph.channel(name) for name in ("left", "right", "both"))
    graph.map(rows, to=[left, right], id="split", retry=ks.Retry(), concurrency=4)(lambda row: {left: row, right: row})
    graph.gather(left, right, to=both, id="pair")(lambda one, other, step: None)
    graph.sink(both, to=sinks.SQLite("shop.db", table="pairs", columns=["a"]), id="store")(lambda pair: pair)
    return graph


def test_graph_of_channels_is_described_with_its_sources_and_tasks() -> None:
    graph = declared()
    graph.validate()
    assert (
        graph.describe()
        == """\
graph shop

channels
  rows   memory
  left
  right
  both

tasks
  split: fork, at_least_once, 4 calls at once
    reads         rows
    writes        left, right
    retries       on ConnectionError, TimeoutError, 8 attempts, 200ms..30s apart, then dead_letter
  pair: gather, at_least_once, wants_step
    reads         left, right
    writes        both
  store: sink, at_least_once
    reads         both
    stores        shop.db: table pairs, by hash"""
    )


def test_graph_of_channels_is_drawn_from_its_source_to_its_target() -> None:
    lines = mermaid(declared()).splitlines()
    assert [line.strip() for line in lines if "-->" in line] == [
        "n1 --> n0", "n0 --> n5", "n5 --> n2", "n5 --> n3", "n2 --> n6", "n3 --> n6", "n6 --> n4", "n4 --> n7",
        "n7 --> n8",
    ]  # fmt: skip
    assert '    n1(["memory"]):::target' in lines
    assert '    n6["pair<br/>gather, at least once"]:::processor' in lines


def declare_unused_errors(graph: ks.Graph) -> None:
    graph.map(graph.source("rows", MemorySource()), to=graph.topic("orders"), id="f")(lambda v: v)
    graph.validate()


KEEPS_OFFSETS = sinks.SQLite("shop.db", table="pairs", columns=["a"], evidence="offsets")

Declare = Callable[[ks.Graph, Any], object]

REFUSED: dict[str, tuple[str, Declare]] = {
    "a guarantee": (
        "tasks are at_least_once: a sink stores each row once, by its delivery hash; leave guarantee= out",
        lambda graph, rows: graph.map(rows, to=graph.channel("a"), guarantee="exactly_once", id="f")(lambda v: v),
    ),
    "a state": (
        "a channel has no partitions, so its tasks have no state: read and write topics instead",
        lambda graph, rows: graph.sink(rows, state=ks.State("s"), id="f")(lambda v, state: v),
    ),
    "a batch": (
        "task 'f' reads or writes a channel: a task takes one value at a time: leave batch= out",
        lambda graph, rows: graph.sink(rows, batch=True, id="f")(lambda values: values),
    ),
    "a journal": (
        "a channel keeps nothing, so there is nothing to journal: leave persistence= out",
        lambda graph, rows: graph.map(rows, to=graph.channel("a"), persistence="journal", id="f")(lambda v: v),
    ),
    "a durability": (
        "the source keeps an input until everything made from it is done: leave durability= out",
        lambda graph, rows: graph.map(rows, to=graph.channel("a"), durability="committed", id="f")(lambda v: v),
    ),
    "an order": (
        "a channel has neither partitions nor keys: leave order= out",
        lambda graph, rows: graph.sink(rows, order="key", id="f")(lambda v: v),
    ),
    "a hash header": (
        "a channel has no headers, but step.delivery_hash has the hash: leave hash_header= out",
        lambda graph, rows: graph.map(rows, to=graph.channel("a"), hash_header=False, id="f")(lambda v: v),
    ),
    "a target that keeps offsets": (
        "task 'f': shop.db: table pairs keeps offsets, which channels do not have: give it evidence='hash'",
        lambda graph, rows: graph.sink(rows, to=KEEPS_OFFSETS, id="f")(lambda v: v),
    ),
    "a gather with calls that overlap": (
        "task 'f' gathers: its calls do not overlap: gather first, and make these calls in a map after it",
        lambda graph, rows: graph.sink(rows, rows, concurrency=2, id="f")(lambda v, w: v),
    ),
    "an option that there is not": (
        "task 'f' has no option 'retries': did you mean retry?",
        lambda graph, rows: graph.sink(rows, **cast(Any, {"retries": 3}), id="f")(lambda v: v),
    ),
    "an order of events": (
        "rows is a channel, which has no order of events: read a topic",
        lambda graph, rows: graph.ordered(rows, to=graph.channel("a"), id="f")(lambda v: v),
    ),
    "a join": (
        "a join of rows, a: channels have no order to join by: pair the branches of one segment with graph.gather(...)",
        lambda graph, rows: graph.join(rows, graph.channel("a"), by="order", to=graph.channel("b"))(lambda v, w: v),
    ),
    "a topic that is not declared": (
        "task 'f': there is no topic 'orders': declare it first, with graph.topic",
        lambda graph, rows: graph.map(rows, to="orders", id="f")(lambda v: v),
    ),
    "a topic of another cluster": (
        "task 'f' writes to orders, which is on cluster 'west': tasks write to the graph's own cluster",
        lambda graph, rows: graph.map(rows, to=graph.topic("orders", cluster="west"), id="f")(lambda v: v),
    ),
    "a topic that goes round": (
        "task 'f' reads orders and writes to orders: its records would loop for ever",
        lambda graph, rows: graph.map(t := graph.topic("orders"), to=[graph.channel("a"), t], id="f")(lambda v: v),
    ),
    "a processor with the name of a topic": (
        "tasks read topic 'orders', and a processor has the same name, so that they would share a consumer group: give",
        lambda graph, rows: [
            graph.map(orders := graph.topic("orders"), to=graph.topic("copied"), id="orders")(lambda v: v),
            graph.alts(orders, rows, to=graph.topic("more"), id="f")(lambda v: v),
        ],
    ),
    "a source that is written": (
        "task 'f' writes to rows, which a source fills: write to a channel, graph.channel(...)",
        lambda graph, rows: graph.map(graph.channel("a"), to=rows, id="f")(lambda v: v),
    ),
    "a name twice": (
        "'rows' is declared twice: give one of the two another name",
        lambda graph, rows: graph.channel("rows"),
    ),
    "a task twice": (
        "task 'f' is declared twice: give one of the two another id=",
        lambda graph, rows: [graph.sink(rows, id="f")(lambda v: v) for _ in range(2)],
    ),
    "no source": (
        "source 'more': 'file.db' is not a source: give a source, such as sources.SQLite(...)",
        lambda graph, rows: graph.source("more", "file.db"),  # type: ignore[arg-type]
    ),
    "a number of inputs": (
        "source 'more': max_pending=0 is not a number of inputs: give an int above 0",
        lambda graph, rows: graph.source("more", MemorySource(), max_pending=0),
    ),
    "a routing": (
        "source 'more': routing 'round-robin' is not known: did you mean round_robin?",
        lambda graph, rows: graph.source("more", MemorySource(), routing="round-robin"),
    ),
    "a routing of groups": (
        "channel 'a': with group_by=, each group has a peer of its own: leave routing= out",
        lambda graph, rows: graph.channel("a", group_by=abs, routing="round_robin"),
    ),
    "a time": (
        "source 'more': timeout='1s' is not a number of seconds: give a number above 0",
        lambda graph, rows: graph.source("more", MemorySource(), timeout="1s"),  # type: ignore[arg-type]
    ),
    "a function of two values": (
        "task 'f': its function is <lambda>(one, other): write <lambda>(value) or <lambda>(value, step)",
        lambda graph, rows: graph.map(rows, to=graph.channel("a"), id="f")(lambda one, other: one),
    ),
    "a channel that nothing writes": (
        "nothing writes to channel 'a' of graph 'shop': name the channel in a to=",
        lambda graph, rows: graph.sink(graph.channel("a"), id="f")(lambda v: v),
    ),
    "a channel that nothing reads": (
        "nothing reads channel 'a' of graph 'shop': read it, or leave it out",
        lambda graph, rows: graph.map(rows, to=graph.channel("a"), id="f")(lambda v: v),
    ),
    "a cycle": (
        "form a cycle: a segment would never end: repeat inside a function",
        lambda graph, rows: (
            graph.alts(rows, graph.channel("b"), to=graph.channel("a"), id="f")(lambda v: v),
            graph.map("a", to="b", id="g")(lambda v: v),
        ),
    ),
    "branches of two sources": (
        "come from no common channel: gather the branches of one channel, or read each with alts",
        lambda graph, rows: graph.sink(rows, graph.source("more", MemorySource()), id="f")(lambda v, w: v),
    ),
    "dead letters of no topic": (
        "errors='shop.errors' of graph 'shop' is not used, as nothing reads a topic: inputs of sources are refused at",
        lambda *_: declare_unused_errors(ks.Graph("shop", errors="shop.errors")),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_a_channel_is_refused_with_the_remedy(case: str) -> None:
    told, declare = REFUSED[case]
    graph = ks.Graph("shop")

    def declare_and_validate() -> None:
        declare(graph, graph.source("rows", MemorySource()))
        graph.validate()

    with pytest.raises(ks.GraphError) as refused:
        declare_and_validate()
    assert told in str(refused.value)
