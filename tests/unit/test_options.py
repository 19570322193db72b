"""The options of graphs and processors are where help() and editors show them."""

from __future__ import annotations

import inspect
import re

from kstreams_py.graph.declarations import Defaults, Options
from kstreams_py.graph.topology import Graph

DECORATORS = (Graph.map, Graph.join, Graph.alts, Graph.ordered, Graph.sink)


def options_in(help_text: str | None) -> list[str]:
    """The names of the options that a docstring lists, each with its type, in the order of the alphabet."""
    lists = re.findall(r"^- (`.+?`) \(.+?\): \S", help_text or "", re.MULTILINE)
    return sorted(name for names in lists for name in re.findall(r"`(\w+)`", names))


def test_help_of_each_decorator_has_every_option_with_its_type() -> None:
    for decorator in DECORATORS:
        assert options_in(inspect.getdoc(decorator)) == sorted(Options.__annotations__)


def test_help_of_a_graph_has_every_option_with_its_type_and_default() -> None:
    text = inspect.getdoc(Graph)
    assert options_in(text) == sorted(["key", "value", *Defaults.__annotations__])
    assert len(re.findall(r"default", text or "")) > len(Defaults.__annotations__)
