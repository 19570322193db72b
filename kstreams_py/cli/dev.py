"""`kstreams dev`, and the hidden `kstreams dev-version`, which runs one version of a graph's code."""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer

from kstreams_py.cli.options import Bootstrap, Config, Partitions, Target
from kstreams_py.development.broker import open_broker
from kstreams_py.development.changes import Changes
from kstreams_py.development.session import DevSession
from kstreams_py.development.version import run_version
from kstreams_py.development.versions import Version, version_command
from kstreams_py.errors import GraphError
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS
from kstreams_py.printable import clean_line
from kstreams_py.running.terminal import logs
from kstreams_py.settings import Settings, explain

logger = logging.getLogger(__name__)

PORT: Final = 9092
"""The default port of every command, so that `kstreams send` needs no --bootstrap-servers."""

SOURCE: Final = "dev"
"""The name in brackets before the lines of this command. Other lines have their slot or topic there."""


def dev(
    target: Target,
    workers: Annotated[int, typer.Option(help="worker processes", min=1)] = 1,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    partitions: Partitions = None,
    port: Annotated[
        int, typer.Option(help="port of the broker that is started on this machine", min=1, max=65_535)
    ] = PORT,
    http: Annotated[
        str | None, typer.Option(help="serve a page (/), /metrics and the health of the workers at host:port")
    ] = None,
) -> None:
    """Run a graph while you write it: starts a broker, topics and workers, and prints outputs, until Ctrl-C.

    When you save the graph's file, or another Python file or Avro schema beside or below it, the new code is loaded:
    missing topics are created, the old workers commit what they have processed, and new workers go on from there, so
    that no record is lost or doubled. If the code does not load, one message says why, with the line of a syntax error;
    the old workers go on, and the next save tries again. A worker that ends with an exception stops the run until the
    next save.

    Each line has its source in brackets: `[dev]` for this command, `[0]` for the worker in slot 0, or a topic. Outputs
    are printed once they are committed, as `kstreams tail` prints them, and dead letters as `kstreams dead-letters
    show` does.

    Without --bootstrap-servers (or its setting), a Kafka broker runs on this machine while the command runs. Its data
    stays in the directory .kstreams beside the graph: remove it to start without data. Needs watchfiles: pip install
    'kstreams_py[broker,reload]'.
    """
    from kstreams_py.running.terminal.progress import Progress  # noqa: PLC0415, Rich is slow to import

    directory = _directory(target)
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers, http=http)
    changes = Changes(directory, settings.schema_directory)
    named = {each.name: each for each in explain(config, bootstrap_servers=bootstrap_servers)}["bootstrap_servers"]
    opened = open_broker(directory, port) if named.origin == "default" else nullcontext(named.value)
    os.environ.setdefault(logs.FORMAT_VARIABLE, logs.SHORT)  # of all processes of the run
    logs.configure(SOURCE)
    with opened as address:
        environment = {**settings.as_environment(), "KSTREAMS_BOOTSTRAP_SERVERS": address}
        command = version_command(target, workers, partitions)
        # the version has prefixed its lines already
        screen = Progress(live=False, dress=lambda _output, _slot, line: clean_line(line))
        what = f"{target}, {workers} worker{'s' if workers > 1 else ''},"
        DevSession(lambda report: Version(command, environment, report, screen.write), changes, what).run()


def dev_version(
    target: Target,
    workers: Annotated[int, typer.Option(min=1)] = 1,
    partitions: Partitions = None,
) -> None:
    """Check a version of a graph, then run it when standard input says so. `dev` starts this process at each change."""
    logs.configure(SOURCE)
    run_version(target, workers, Settings.load(), partitions or DEFAULT_PARTITIONS)


def _directory(target: str) -> Path:
    """Returns the directory to watch: that of the graph's file, or the current one. Raises GraphError."""
    place = target.partition(":")[0]
    if not place.endswith(".py"):
        return Path.cwd()
    if not Path(place).is_file():
        raise GraphError(f"{place} does not exist: correct the path, or write a graph with `kstreams new`")
    return Path(place).resolve().parent
