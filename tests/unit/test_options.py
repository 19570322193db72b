"""The options of graphs, topics, processors and pipelines are where help() and editors show them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import GraphError
from kstreams_py.graph.declarations import Defaults, Options, OrderedOptions, TopicOptions
from kstreams_py.graph.pipelines import PipelineOptions
from kstreams_py.graph.topology import Graph
from tests.tables import each_case

OF_ALL = [*Options.__annotations__, "to"]
OPTIONS: dict[str, tuple[object, list[str]]] = {
    "map": (Graph.map, OF_ALL),
    "join": (Graph.join, [*OF_ALL, "by"]),
    "alts": (Graph.alts, OF_ALL),
    "sink": (Graph.sink, [*OF_ALL, "alts"]),
    "ordered": (Graph.ordered, [*OrderedOptions.__annotations__, "to", "start", "held_max", "held_bytes_max"]),
    "pipeline": (Graph.pipeline, [*PipelineOptions.__annotations__, "to"]),
    "topic": (Graph.topic, [*TopicOptions.__annotations__, "key", "value"]),
    "graph": (Graph, [*Defaults.__annotations__, "key", "value"]),
}
"""What takes options, and those that it takes."""


@each_case("name", OPTIONS)
def test_help_has_every_option_with_its_type_and_default(name: str) -> None:
    described, options = OPTIONS[name]
    items = re.findall(r"^- (`.+?`) \(.+?\): (\S.*(?:\n  .+)*)", inspect.getdoc(described) or "", re.MULTILINE)
    found = {each: text for names, text in items for each in re.findall(r"`(\w+)`", names)}
    assert sorted(found) == sorted(options)
    required = {"by"} if name == "sink" else {"by", "to"}
    assert [each for each, text in found.items() if "default" not in text and each not in required] == []


def test_options_that_help_does_not_list_for_ordered_are_refused() -> None:
    refused: dict[str, Any] = {
        "batch": True,
        "concurrency": 2,
        "order": "key",
        "persistence": "journal",
        "retry": ks.Retry(),
    }
    assert refused.keys() == Options.__annotations__.keys() - OrderedOptions.__annotations__.keys()
    of_others = [{"guarantee": "at_least_once"}, {"durability": "leader"}]
    for options in (*({name: value} for name, value in refused.items()), *of_others):
        graph: Any = ks.Graph("g")
        with pytest.raises(GraphError):
            graph.ordered(graph.topic("a"), to=graph.topic("b"), id="apply", **options)(bytes)
