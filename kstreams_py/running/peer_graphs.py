"""The graphs that the peers of a machine may run: loads them, and shows them as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kstreams_py.errors import SettingsError
from kstreams_py.graph.channels import JobTask, filled_channels
from kstreams_py.graph.declarations import Channel, Processor
from kstreams_py.graph.loading import UNKNOWN, load, show_target
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.source import NeedsSoftware
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.peers.routes import check_graph
from kstreams_py.running.reports import in_graph


@dataclass(frozen=True)
class PeerGraphs:
    """Several graphs, which the page and the series show like one graph.

    - `name`: the name of the cluster of peers.
    """

    name: str
    graphs: Sequence[Graph]

    @property
    def topics(self) -> list[str]:
        """The topics of all graphs."""
        return list(dict.fromkeys(topic for graph in self.graphs for topic in graph.topics))

    @property
    def processors(self) -> Sequence[Processor]:
        """Always empty: peers run no processors of topics."""
        return ()

    @property
    def pipelines(self) -> Sequence[Pipeline]:
        """The pipelines of all graphs."""
        return [each for graph in self.graphs for each in graph.pipelines]


Shown = Graph | PeerGraphs
"""What a page shows."""


def graphs_of(shown: Shown) -> Sequence[Graph]:
    """Returns the graphs that a page shows."""
    return shown.graphs if isinstance(shown, PeerGraphs) else (shown,)


def prefix_of(shown: Shown, graph: Graph) -> str:
    """Returns the prefix of the names of a graph's tasks and sources in reports."""
    return in_graph(graph.name, "") if isinstance(shown, PeerGraphs) else ""


def name_tasks(shown: Shown) -> dict[str, JobTask]:
    """Returns the tasks of all graphs, by their names in reports."""
    return {prefix_of(shown, graph) + task.id: task for graph in graphs_of(shown) for task in graph.tasks}


def name_sources(shown: Shown) -> dict[str, Channel]:
    """Returns the channels of all graphs that a source or a topic fills, by their names in reports."""
    return {
        prefix_of(shown, graph) + channel.name: channel
        for graph in graphs_of(shown)
        for channel in filled_channels(graph.tasks)
    }


def target_of(shown: Shown) -> str:
    """Returns how a command names the graph; UNKNOWN for several."""
    graphs = graphs_of(shown)
    return show_target(graphs[0]) if len(graphs) == 1 else UNKNOWN


def load_graphs(targets: Sequence[str]) -> dict[str, Graph]:
    """Returns the graphs that peers may run, by name.

    Raises GraphError, MissingSoftware, and SettingsError if two graphs have the same name or peers cannot run a graph.
    """
    found: dict[str, Graph] = {}
    for graph in map(load, targets):
        graph.validate()
        if found.setdefault(graph.name, graph) is not graph:
            raise SettingsError(f"two graphs are called {graph.name!r}: rename one")
        check_graph(graph)
        check_software(graph)
    return found


def check_software(graph: Graph) -> None:
    """Raises MissingSoftware if a source or a target of a graph needs a package that is not installed.

    A peer without the package would end each job of the graph, even for the peers that have it.
    """
    needed: list[object] = [channel.source for channel in filled_channels(graph.tasks)]
    needed += [task.target for task in graph.tasks]
    for each in needed:
        if isinstance(each, NeedsSoftware):
            each.check_software()
