"""`kstreams recover`: moves the positions of a graph's processors, keeps them in a file, and restores them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.cli.options import Bootstrap, Config, Target, open_environment, parse_time
from kstreams_py.errors import SettingsError, UserMistake
from kstreams_py.graph.loading import load
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.operations.ending import UNCHANGED
from kstreams_py.operations.moving import BEGINNING, END, GraphPositions
from kstreams_py.operations.moving import Target as Goal
from kstreams_py.operations.positions import Move, as_fields, describe, parse_targets
from kstreams_py.operations.standing import read_status
from kstreams_py.operations.task_status import as_fields as as_status_fields
from kstreams_py.operations.task_status import describe as describe_status
from kstreams_py.settings import Settings

app = typer.Typer(
    help="The positions of a graph's processors: show them, move them, keep them in a file, restore them.",
    no_args_is_help=True,
)

AsJsonLines = Annotated[bool, typer.Option("--json", help="a JSON object a line")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print what would change, and change nothing")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
AsJson = Annotated[bool, typer.Option("--json", help="a JSON object a line; needs --yes or --dry-run")]


@app.command()
def status(
    target: Target, as_json: AsJsonLines = False, bootstrap_servers: Bootstrap = None, config: Config = None
) -> None:
    """Show where each task stands and what the next start does with it; exit status 1 if a start would be refused.

    A task is a processor on one partition number. Changes nothing, and fences nobody. Needs READ on the groups, the
    topics and __ks.*.
    """
    graph = load(target)
    graph.validate()
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    refused = False
    with open_environment(settings) as environment:
        for each in read_status(graph, environment, GroupAdmin(settings)):
            print(json.dumps(as_status_fields(each)) if as_json else describe_status(each))
            refused |= each.is_refused
    if refused:
        raise typer.Exit(1)


@app.command()
def reset(
    target: Target,
    processor: Annotated[str, typer.Argument(help="the processor, by its id")],
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--to-offset",
            metavar="TOPIC:PARTITION:OFFSET",
            help="read this offset next; can be repeated, the other partitions stay",
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", help="the first record of then or later: 30m, 1h, 2d ago, or 2026-05-01T12:00"),
    ] = None,
    to_beginning: Annotated[bool, typer.Option("--to-beginning", help="the first record that there is")] = False,
    to_end: Annotated[bool, typer.Option("--to-end", help="after the last committed record")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Move the positions of a processor, with its journal; exit status 1 if the answer is no.

    Prints the old and the new position of each partition, and asks first. Refused while members are in its group. All
    is set in one transaction. Needs READ on the group and the topics, and WRITE on __ks.* and on transactional id
    GRAPH.recover.
    """
    goal = _goal(to_offset, to_time, to_beginning, to_end)
    _check_options(dry_run, yes, as_json)
    with _opened(target, bootstrap_servers, config) as positions:
        _move(positions, positions.plan_reset(processor, goal), (dry_run, yes, as_json))


@app.command()
def export(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print the positions of all processors as JSON, with the ids of their topics: `> FILE` keeps them.

    Refused while members are in a group: the positions would move on.
    """
    with _opened(target, bootstrap_servers, config) as positions:
        print(positions.export())


@app.command()
def restore(
    target: Target,
    file: Annotated[Path, typer.Argument(help="a file that recover export has written")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Set the positions in a file, all or none; positions that it does not have stay. Exit status 1 if answered no.

    Refused while members are in a group, and if a topic was deleted and created again since.
    """
    _check_options(dry_run, yes, as_json)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"{file} cannot be read: {error}") from None
    with _opened(target, bootstrap_servers, config) as positions:
        _move(positions, positions.plan_restore(text, str(file)), (dry_run, yes, as_json))


def _goal(to_offset: list[str] | None, to_time: str | None, to_beginning: bool, to_end: bool) -> Goal:
    """Where the options say to go. Raises SettingsError unless one of them is there."""
    if sum((bool(to_offset), to_time is not None, to_beginning, to_end)) != 1:
        raise SettingsError("write one of --to-offset (any number of them), --to-time, --to-beginning and --to-end")
    if to_offset:
        return Goal(offsets=parse_targets(to_offset))
    return Goal(since=parse_time("--to-time", to_time, time.time()), end=END if to_end else BEGINNING)


def _check_options(dry_run: bool, yes: bool, as_json: bool) -> None:
    if as_json and not (dry_run or yes):
        raise SettingsError("--json does not ask: add --yes or --dry-run")


def _move(positions: GraphPositions, moves: list[Move], options: tuple[bool, bool, bool]) -> None:
    dry_run, yes, as_json = options
    if not as_json:
        print("\n".join(describe(moves)) or "the positions are there already")
    if moves and not dry_run:
        if not yes and not _is_confirmed():
            print(UNCHANGED)
            raise typer.Exit(1)
        positions.move(moves)
    for move in moves if as_json else ():
        print(json.dumps(as_fields(move) | {"moved": not dry_run}))
    if moves and not as_json:
        print(f"would be set; {UNCHANGED}" if dry_run else "set")


def _is_confirmed() -> bool:
    try:
        return typer.confirm("set these positions?")
    except typer.Abort:  # standard input has ended, or Ctrl-C
        print(file=sys.stdout)
        return False


@contextmanager
def _opened(target: str, bootstrap_servers: str | None, config: Path | None) -> Iterator[GraphPositions]:
    graph = load(target)
    graph.validate()
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    with open_environment(settings) as environment:
        yield GraphPositions(graph, target, environment, GroupAdmin(settings))
