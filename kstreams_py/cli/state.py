"""`kstreams state`: shows the committed state of a processor."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from kstreams_py.cli.options import Bootstrap, Config, Target, open_graph
from kstreams_py.cli.streams import echo
from kstreams_py.errors import GraphError, SettingsError, did_you_mean
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.topology import Graph
from kstreams_py.state.reading import read_state

app = typer.Typer(help="The state that processors keep.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The state that processors keep."""


@app.command()
def show(
    target: Target,
    store: Annotated[str, typer.Argument(metavar="STORE", help="the name of the state")],
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="only this key, as the command shows it")] = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print the committed entries of a state, a line of JSON for each key."""
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        found = read_state(graph, find_owner(graph, store), environment.cluster, environment.registry)
    shown = {shown_key: each for each in found if (shown_key := str(_plain(each))) == key or key is None}
    if key is not None and not shown:
        raise SettingsError(f"state {store!r} has no key {key!r}: leave it out to see all")
    for name, each in shown.items():
        echo(json.dumps({"key": name, "value": _plain(found[each])}, ensure_ascii=False, default=str))


def find_owner(graph: Graph, store: str) -> Processor:
    """Returns the processor that has a state of this name. Raises GraphError."""
    owners = {each.state.name: each for each in graph.processors if each.state is not None}
    if store not in owners:
        close = did_you_mean(store, owners) or f"it has {', '.join(owners) or 'none'}"
        raise GraphError(f"graph {graph.name!r} has no state {store!r}: {close}")
    return owners[store]


def _plain(value: Any) -> Any:
    """Returns bytes as text, and other values as they are."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
