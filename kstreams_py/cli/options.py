"""Arguments, options and questions that several commands share; opens the graph and the cluster that they name."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from kstreams_py.cli.streams import echo
from kstreams_py.deployment.slot_number import slot_number
from kstreams_py.errors import SettingsError
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.loading import UNKNOWN, load
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.operations.transactions.abort import UNCHANGED
from kstreams_py.printable import escape
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Target = Annotated[
    str,
    typer.Argument(help="path/to/file.py or module; add :name if it has several graphs"),
]
Bootstrap = Annotated[str | None, typer.Option("--bootstrap-servers", "-b", help="host:port,... of the cluster")]
Partitions = Annotated[
    int | None,
    typer.Option(
        help="partitions of new topics, if neither the graph nor existing topics decide; 4 by default",
        min=1,
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="a TOML file of settings, with librdkafka's under [kafka]")
]
Slot = Annotated[
    int | None,
    typer.Option(
        "--slot",
        parser=lambda text: slot_number(text, os.environ, socket.gethostname()),
        metavar="NUMBER|auto",
        help="run only this slot in this process, under your own supervisor; auto takes the number from KSTREAMS_SLOT, "
        "or from the name of a StatefulSet's pod",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object per line")]
OfProcessor = Annotated[str | None, typer.Option("--processor", help="only this processor, by its id")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print what would change, and change nothing")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
CreateTopics = Annotated[bool, typer.Option("--create-topics", help="create missing topics first")]


def parse_time(option: str, text: str | None, now: float) -> int | None:
    """Returns milliseconds since 1970 for the value of an option. `now`: seconds since 1970. Raises SettingsError."""
    if text is None:
        return None
    if found := re.fullmatch(r"(\d+)([smhd])", text):
        return int((now - int(found[1]) * UNITS[found[2]]) * 1000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise SettingsError(
            f"{option} {text!r}: write a number with s, m, h or d, such as 1h, or a time such as 2026-05-01T12:00"
        ) from None


def check_json(*, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Raises SettingsError if a command would ask a question between its lines of JSON."""
    if as_json and not (dry_run or yes):
        raise SettingsError("--json does not ask: add --yes or --dry-run")


def confirm(question: str, *, yes: bool, refusal: str = UNCHANGED) -> None:
    """Asks the question, unless `yes`. Prints `refusal` and ends with exit status 1 if the answer is no.

    The end of standard input and Ctrl-C are a no.
    """
    try:
        if yes or typer.confirm(escape(question)):
            return
    except typer.Abort:
        print()
    echo(refusal)
    raise typer.Exit(1)


def load_valid(target: str, *, needs_processors: bool = True) -> Graph:
    """Loads a graph, and checks it. `needs_processors`: see `Graph.validate`."""
    graph = load(target)
    graph.validate(needs_processors=needs_processors)
    return graph


@contextmanager
def open_graph(
    target: str, bootstrap_servers: str | None, config: Path | None, *, needs_processors: bool = True
) -> Iterator[tuple[Graph, Environment]]:
    """Yields the graph and a real cluster, closed at the end. `needs_processors`: see `Graph.validate`."""
    graph = load_valid(target, needs_processors=needs_processors)
    with open_environment(Settings.load(config, bootstrap_servers=bootstrap_servers), target) as environment:
        yield graph, environment


@contextmanager
def open_environment(settings: Settings, target: str = UNKNOWN) -> Iterator[Environment]:
    """Yields a real cluster, closed at the end. `target`: how the command names the graph."""
    registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
    cluster = KafkaCluster(settings)
    try:
        yield Environment(cluster, registry, settings, target=shlex.quote(target))
    finally:
        cluster.close()
