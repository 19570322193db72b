"""`kstreams recover`: shows tasks, audits outputs, and moves, exports and restores positions of a graph."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.cli.options import (
    AsJson,
    Bootstrap,
    Config,
    DryRun,
    Target,
    Yes,
    check_json,
    confirm,
    open_environment,
    open_graph,
    parse_time,
)
from kstreams_py.cli.streams import echo, echo_lines
from kstreams_py.errors import SettingsError, UserMistake
from kstreams_py.graph.loading import load
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.operations.recover.audit import SHOWN
from kstreams_py.operations.recover.audit import AuditScope as Scope
from kstreams_py.operations.recover.audit import audit as run_audit
from kstreams_py.operations.recover.audit_report import as_fields as as_audit_fields
from kstreams_py.operations.recover.audit_report import describe as describe_audit
from kstreams_py.operations.recover.forget import ForgottenProcessor
from kstreams_py.operations.recover.positions import Move, as_fields, describe, parse_targets
from kstreams_py.operations.recover.reset import BEGINNING, END, GraphPositions
from kstreams_py.operations.recover.reset import ResetTarget as Goal
from kstreams_py.operations.recover.status import find_undeclared, read_status
from kstreams_py.operations.recover.task_status import TaskStatus, describe_undeclared, is_alike, undeclared_as_fields
from kstreams_py.operations.recover.task_status import as_fields as as_status_fields
from kstreams_py.operations.recover.task_status import describe as describe_status
from kstreams_py.operations.transactions.abort import UNCHANGED
from kstreams_py.printable import join_lines
from kstreams_py.settings import Settings

app = typer.Typer(
    help="What a graph has processed: show its tasks, audit its outputs, and move, export, restore and delete its "
    "positions.",
    no_args_is_help=True,
)

AsJsonAlone = Annotated[bool, typer.Option("--json", help="one JSON object per line; needs --yes or --dry-run")]


@app.command()
def status(target: Target, as_json: AsJson = False, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Show where each task stands and what the next start does with it. Exit status 1 if a start would be refused.

    A task is a processor on one partition number. The command changes nothing and fences no worker. It connects to the
    targets of sinks. Needs READ on the groups, the topics and __ks.*.
    """
    refused, said = False, ""
    shown: list[TaskStatus] = []
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        for each in read_status(graph, environment, GroupAdmin(environment.settings)):
            if each.refusal != said and not as_json:
                echo_lines(f"the next start of each worker {each.refusal}")
            refused, said = refused | each.is_refused, each.refusal
            alike = next((other for other in shown if is_alike(each, other)), None)
            shown += [each] if each.is_refused and alike is None else []
            echo_lines(json.dumps(as_status_fields(each)) if as_json else describe_status(each, alike))
        for gone in find_undeclared(graph, environment, GroupAdmin(environment.settings)):
            echo_lines(json.dumps(undeclared_as_fields(gone)) if as_json else describe_undeclared(gone))
    if refused:
        raise typer.Exit(1)


@app.command()
def audit(
    target: Target,
    processor: Annotated[
        list[str] | None, typer.Option("--processor", help="only this processor, by its id; can be repeated")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="only inputs since then: 30m, 1h, 2d ago, or 2026-05-01T12:00")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="only inputs before then: 30m, 1h, 2d ago, or 2026-05-01T12:00")
    ] = None,
    every: Annotated[bool, typer.Option("--every", help="each input must have an output or a dead letter")] = False,
    limit: Annotated[int, typer.Option("--limit", help="anomalies to show of each processor", min=0)] = SHOWN,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Compare outputs with inputs by delivery hash. Exit status 1 for anomalies that a guarantee does not allow.

    Finds outputs that are duplicate, foreign or out of order, outputs of inputs that will be read again, journals that
    a start refuses and, with --every, inputs without output. Reads the whole topics. Workers may keep running; a
    replay of dead letters must not. Needs READ on the groups, the topics and __ks.*.
    """
    now = time.time()
    first, last = parse_time("--since", since, now), parse_time("--until", until, now)
    if first is not None and last is not None and last <= first:
        raise SettingsError(f"--until {until} is not after --since {since}: there are no inputs between them")
    selection = Scope(processor or (), first, last, every)
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        reports = run_audit(graph, environment, selection, limit)
    for each in reports:
        echo_lines(json.dumps(as_audit_fields(each)) if as_json else describe_audit(each))
    if not all(each.is_clean for each in reports):
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
            help="read this offset next; can be repeated; other partitions stay",
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", help="the first record since then: 30m, 1h, 2d ago, or 2026-05-01T12:00"),
    ] = None,
    to_beginning: Annotated[bool, typer.Option("--to-beginning", help="the first available record")] = False,
    to_end: Annotated[bool, typer.Option("--to-end", help="after the last committed record")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJsonAlone = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Move the positions of a processor and its journal. Exit status 1 if the answer is no.

    Prints the old and the new position of each partition and what follows, and asks first. Refused while its group
    has members. One transaction sets everything. Needs READ on the group and the topics, and WRITE on __ks.* and on the
    transactional id GRAPH.recover.
    """
    goal = _goal(to_offset, to_time, to_beginning, to_end)
    check_json(dry_run=dry_run, yes=yes, as_json=as_json)
    with _opened(target, bootstrap_servers, config) as positions:
        _move(positions, positions.plan_reset(processor, goal), (dry_run, yes, as_json))


@app.command()
def forget(
    target: Target,
    processor: Annotated[str, typer.Argument(help="the processor that the graph no longer declares, by its id")],
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Delete the group of a processor that is no longer declared, and what is recorded of its beginnings.

    Prints the positions of the group, and asks first. Exit status 1 if the answer is no. Refused while the group has
    members, and while the framework's topics of the processor are left. If the processor is declared again, it begins
    at auto_offset_reset. Needs DELETE on the group, READ on its topics, and WRITE on __ks.GRAPH.beginnings.
    """
    graph = load(target)  # not validated: an empty graph may have had processors
    with open_environment(Settings.load(config, bootstrap_servers=bootstrap_servers), target) as environment:
        forgotten = ForgottenProcessor(graph, target, environment, GroupAdmin(environment.settings), processor)
        committed = ", ".join(f"{tp}@{at}" for tp, at in sorted(forgotten.found.committed.items()))
        echo_lines(f"{forgotten.found.group}: committed {committed or 'none'}")
        if dry_run:
            echo(f"would be deleted; {UNCHANGED}")
            return
        confirm("delete this group, with its positions?", yes=yes)
        forgotten.forget()
    echo(f"deleted {forgotten.found.group}")


@app.command()
def export(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print the positions of all processors as JSON, with the ids of their topics: `> FILE` saves them.

    Refused while a group has members: the positions would move on.
    """
    with _opened(target, bootstrap_servers, config) as positions:
        echo_lines(positions.export())


@app.command()
def restore(
    target: Target,
    file: Annotated[Path, typer.Argument(help="a file that recover export has written")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJsonAlone = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Set all positions in a file, or none; positions that are not in it stay. Exit status 1 if the answer is no.

    Refused while a group has members, and if a topic has been deleted and created again since.
    """
    check_json(dry_run=dry_run, yes=yes, as_json=as_json)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserMistake(f"{file} cannot be read: {error}") from None
    with _opened(target, bootstrap_servers, config) as positions:
        _move(positions, positions.plan_restore(text, str(file)), (dry_run, yes, as_json))


def _goal(to_offset: list[str] | None, to_time: str | None, to_beginning: bool, to_end: bool) -> Goal:
    """Returns where the options move the positions. Raises SettingsError unless exactly one of them is set."""
    if sum((bool(to_offset), to_time is not None, to_beginning, to_end)) != 1:
        raise SettingsError("write one of --to-offset (any number of them), --to-time, --to-beginning and --to-end")
    if to_offset:
        return Goal(offsets=parse_targets(to_offset))
    return Goal(since=parse_time("--to-time", to_time, time.time()), end=END if to_end else BEGINNING)


def _move(positions: GraphPositions, moves: list[Move], options: tuple[bool, bool, bool]) -> None:
    dry_run, yes, as_json = options
    if not as_json:
        lines = [*describe(moves), *positions.consequences(moves)]
        echo_lines(join_lines(lines) or "the positions are already set")
    if moves and not dry_run:
        confirm("set these positions?", yes=yes)
        positions.move(moves)
    for move in moves if as_json else ():
        echo(json.dumps(as_fields(move) | {"moved": not dry_run}))
    if moves and not as_json:
        echo(f"would be set; {UNCHANGED}" if dry_run else "set")


@contextmanager
def _opened(target: str, bootstrap_servers: str | None, config: Path | None) -> Iterator[GraphPositions]:
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        yield GraphPositions(graph, target, environment, GroupAdmin(environment.settings))
