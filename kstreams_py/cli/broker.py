"""`kstreams broker`: a real Kafka on this machine, in the background."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.cli.streams import echo
from kstreams_py.embedded import detached, jars
from kstreams_py.embedded.java import find_java
from kstreams_py.settings import Settings

app = typer.Typer(help="A real Kafka on this machine's loopback, for first steps and tests.", no_args_is_help=True)


@app.command()
def start(
    brokers: Annotated[int, typer.Option(help="1, or 3 for replication", min=1, max=9)] = 1,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="keep the data in this directory; by default it is deleted at the end"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="port of the first broker; a free port by default", min=1, max=65_535)
    ] = None,
) -> None:
    """Start a cluster in the background, and print its address once it is ready."""
    java = find_java()
    classpath = jars.kafka_classpath(lambda line: echo(line, file=sys.stderr))
    started = detached.start(classpath, java, brokers=brokers, data_dir=data_dir, port=port)
    if started.bootstrap_servers != Settings.model_fields["bootstrap_servers"].default:
        echo(f"commands find it by: export KSTREAMS_BOOTSTRAP_SERVERS={started.bootstrap_servers}", file=sys.stderr)
    echo(started.bootstrap_servers)


@app.command()
def stop() -> None:
    """Stop the cluster that `start` has started, and no other."""
    stopped = detached.stop()
    echo("no broker was running" if stopped is None else f"stopped {stopped.bootstrap_servers}")


@app.command()
def status() -> None:
    """Print the address and the state of the cluster. Exit status 1 if it does not run."""
    found = detached.status()
    if found is None or not found.running:
        echo("not running" + (f": {found.full_disk}" if found is not None and found.full_disk else ""))
        raise typer.Exit(1)
    echo(f"{found.bootstrap_servers} ({found.alive} of {found.brokers} brokers, data in {found.data_dir})")
