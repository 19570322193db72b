"""The options of processors are where help() and editors show them."""

from __future__ import annotations

import inspect
import re

from kstreams_py.graph.declarations import Options, OptionsOfAll
from kstreams_py.graph.topology import Graph

DECORATORS = (Graph.map, Graph.join, Graph.alts, Graph.ordered, Graph.sink)


def test_help_of_each_decorator_has_every_option_with_its_type() -> None:
    for decorator in DECORATORS:
        listed = re.findall(r"^- `(\w+)` \(.+?\): \S", inspect.getdoc(decorator) or "", re.MULTILINE)
        assert listed == [*OptionsOfAll.__annotations__, *Options.__annotations__.keys() - OptionsOfAll.__annotations__]
