"""`kstreams spark-options`: the options by which any Spark job reads a topic's committed records."""

from __future__ import annotations

from typing import Annotated

import typer

from kstreams_py.cli.options import Bootstrap, Config
from kstreams_py.settings import Settings


def spark_options(
    topic: Annotated[str, typer.Argument(help="the topic's name")],
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="for readStream instead of read")] = False,
    secrets: Annotated[bool, typer.Option("--secrets", help="show passwords instead of ***")] = False,
) -> None:
    """Print the options by which any Spark job reads a topic's committed records."""
    from kstreams_py import spark  # noqa: PLC0415, PySpark is optional, and slow to import

    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    print(spark.options(topic, settings, streaming=streaming).lines(secrets=secrets))
