"""`kstreams run`, and the hidden `kstreams standby`, a process that replaces a worker that dies."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from kstreams_py.cli.options import Bootstrap, Config, CreateTopics, Partitions, Slot, Target
from kstreams_py.errors import SettingsError
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS
from kstreams_py.graph.loading import load
from kstreams_py.running.terminal import logs
from kstreams_py.running.wiring import SlotRun, SupervisedRun, awaited_slot, check_tracing, run_in_foreground
from kstreams_py.settings import Settings

WORKERS_MAX: Final = 1_000
"""The maximum number of worker processes of one machine; each takes some 70 MB."""


def run(
    target: Target,
    workers: Annotated[
        int | None,
        typer.Option(help="worker processes, slots 0 to N-1; one by default", min=1, max=WORKERS_MAX),
    ] = None,
    slots: Annotated[str | None, typer.Option(help="slots of this machine, such as 4-7, instead of --workers")] = None,
    slot: Slot = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    create_topics: CreateTopics = False,
    partitions: Partitions = None,
    http: Annotated[
        str | None,
        typer.Option(help="serve a page (/), /metrics, /livez, /readyz, /status at host:port, such as 127.0.0.1:8080"),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            help="text or json: one object per line, with graph, processor, slot and partition as fields; default: "
            "KSTREAMS_LOG_FORMAT, or text"
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="log everything, fold nothing; same as KSTREAMS_LOG_LEVEL=DEBUG")
    ] = False,
    quiet: Annotated[
        int,
        typer.Option(
            "--quiet", "-q", count=True, show_default=False, help="log only warnings and errors; twice, only errors"
        ),
    ] = 0,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave",
            help="leave the groups when the workers stop: partitions move immediately instead of waiting for a restart",
        ),
    ] = False,
) -> None:
    """Run a graph until Ctrl-C or SIGTERM. A second Ctrl-C ends it immediately."""
    chosen = [
        name for name, value in (("--slot", slot), ("--slots", slots), ("--workers", workers)) if value is not None
    ]
    if len(chosen) > 1:
        raise SettingsError(f"{' and '.join(chosen)} exclude one another: choose one")
    if partitions is not None and not create_topics:
        raise SettingsError("--partitions is for topics that are created: add --create-topics")
    _configure_log(log_format, verbose=verbose, quiet=quiet)
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers, leave_on_stop=leave or None, http=http)
    number = partitions or DEFAULT_PARTITIONS
    if slot is not None:
        run_in_foreground(SlotRun(load(target), slot, settings, create=create_topics, partitions=number))
    else:
        numbers = list(range(workers or 1)) if slots is None else parse_slots(slots)
        run_in_foreground(SupervisedRun(target, numbers, settings, create=create_topics, partitions=number))


def _configure_log(log_format: str | None, *, verbose: bool, quiet: int) -> None:
    """Sets the environment variables of the log, which workers inherit. Raises SettingsError."""
    if verbose and quiet:
        raise SettingsError("--verbose and --quiet exclude one another: choose one")
    if log_format is not None:
        if log_format not in logs.FORMATS:
            raise SettingsError(f"--log-format {log_format} is not a log format: use one of {', '.join(logs.FORMATS)}")
        os.environ[logs.FORMAT_VARIABLE] = log_format
    if verbose or quiet:
        os.environ[logs.LEVEL_VARIABLE] = "DEBUG" if verbose else "WARNING" if quiet == 1 else "ERROR"
    logs.configure()


def parse_slots(text: str) -> list[int]:
    """Parses slots such as `4-7` or `0,2,5`. Raises SettingsError."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            numbers = range(int(first), int(last if dash else first) + 1)
            if len(found) + numbers.stop - numbers.start > WORKERS_MAX:
                raise SettingsError(f"--slots {text!r}: a machine runs {WORKERS_MAX:,} slots at most: name fewer")
            found += numbers
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise SettingsError(f"--slots {text!r}: write a range such as 4-7, or numbers such as 0,2,5, each once")
    return found


def standby(target: Target) -> None:
    """Read a slot from standard input, then run it. `run` keeps such a process ready to replace a dead worker."""
    settings = Settings.load()
    check_tracing(settings)  # imports the libraries of tracing before the slot arrives
    slot = awaited_slot()
    if slot is not None:
        run_in_foreground(SlotRun(load(target), slot, settings))
