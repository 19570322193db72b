"""`kstreams spark-options` and `kstreams cut`: print what a Spark job needs to read committed topics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.cli.options import Bootstrap, Config, Target, load_valid
from kstreams_py.cli.streams import echo_lines
from kstreams_py.settings import Settings


def spark_options(
    topic: Annotated[str, typer.Argument(help="the topic's name")],
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="for readStream instead of read")] = False,
    secrets: Annotated[bool, typer.Option("--secrets", help="show passwords instead of ***")] = False,
) -> None:
    """Print the options with which any Spark job reads a topic's committed records."""
    from kstreams_py import spark  # noqa: PLC0415, PySpark is optional, and slow to import

    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    echo_lines(spark.options(topic, settings, streaming=streaming).lines(secrets=secrets))


def cut(
    target: Target,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="a topic of the cut; all by default")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="a file instead of the terminal")] = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Make a cut of a graph's topics: each transaction is inside the cut on all topics, or on none.

    Waits for open transactions, and names one that hangs. Changes nothing. Needs DESCRIBE on the groups and READ on the
    topics.
    """
    from kstreams_py import spark  # noqa: PLC0415, PySpark is optional, and slow to import

    graph = load_valid(target, needs_processors=False)
    made = spark.cut(graph, topic, settings=Settings.load(config, bootstrap_servers=bootstrap_servers))
    if output is None:
        echo_lines(made.encode())
    else:
        spark.write_cut(made, output)
