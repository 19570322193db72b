"""`kstreams topics`: create and check the topics of a graph."""

from __future__ import annotations

import typer

from kstreams_py.cli.options import Bootstrap, Config, Partitions, Target
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS
from kstreams_py.graph.loading import load
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.settings import Settings

app = typer.Typer(help="The topics of a graph.", no_args_is_help=True)


@app.command()
def create(
    target: Target,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    partitions: Partitions = None,
) -> None:
    """Create the graph's missing topics."""
    graph = load(target)
    graph.validate()
    cluster = KafkaCluster(Settings.load(config, bootstrap_servers=bootstrap_servers))
    created = create_topics(graph, cluster, partitions or DEFAULT_PARTITIONS)
    print("\n".join(f"created {name}" for name in created) or "all topics exist")


@app.command()
def check(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Check that the graph's topics exist and have the settings that it needs."""
    graph = load(target)
    graph.validate()
    found = check_topics(graph, KafkaCluster(Settings.load(config, bootstrap_servers=bootstrap_servers)))
    print(
        "\n".join(
            f"{name}: {info.partitions} partitions, replication {info.replication}" for name, info in found.items()
        )
    )
