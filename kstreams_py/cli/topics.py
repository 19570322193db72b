"""`kstreams topics`: creates and checks the topics of a graph."""

from __future__ import annotations

import typer

from kstreams_py.cli.options import Bootstrap, Config, Partitions, Target, open_graph
from kstreams_py.cli.streams import echo_lines
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS, Topic
from kstreams_py.graph.names import runs_topic
from kstreams_py.graph.pipelines import RUNS_SETTINGS
from kstreams_py.kafka.own_topics import ensure_topics
from kstreams_py.operations.dead_letters.marks import MARKS_SETTINGS
from kstreams_py.printable import join_lines
from kstreams_py.processing.topics import check_topics, create_own_topics, create_topics, find_topics

app = typer.Typer(help="The topics of a graph.", no_args_is_help=True)


@app.command()
def create(
    target: Target,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    partitions: Partitions = None,
) -> None:
    """Create the graph's missing topics, and the framework's own topics (__ks.*).

    Workers and a replay of dead letters then need no right to create topics.
    """
    with open_graph(target, bootstrap_servers, config, needs_processors=False) as (graph, environment):
        cluster = environment.cluster
        created = create_topics(graph, cluster, partitions or DEFAULT_PARTITIONS)
        created += create_own_topics(graph, cluster, find_topics(graph, cluster))
        if any(processor.errors for processor in graph.processors):
            created += ensure_topics(cluster, {graph.replayed: (1, MARKS_SETTINGS)})
        runs = {
            runs_topic(each.target.name): (1, RUNS_SETTINGS)
            for each in graph.pipelines
            if isinstance(each.target, Topic)
        }
        created += ensure_topics(cluster, runs)
    echo_lines(join_lines(f"created {name}" for name in created) or "all topics exist")


@app.command()
def check(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Check that the graph's topics exist and have the settings that it needs."""
    with open_graph(target, bootstrap_servers, config, needs_processors=False) as (graph, environment):
        found = check_topics(graph, environment.cluster)
    echo_lines(
        join_lines(
            f"{name}: {info.partitions} partitions, replication {info.replication}" for name, info in found.items()
        )
    )
