"""`kstreams dead-letters`: lists, shows, replays and discards the dead letters of a graph."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Annotated

import typer

from kstreams_py.cli.options import (
    AsJson,
    Bootstrap,
    Config,
    DryRun,
    OfProcessor,
    Target,
    Yes,
    confirm,
    open_graph,
    parse_time,
)
from kstreams_py.cli.streams import echo, echo_lines
from kstreams_py.errors import SettingsError
from kstreams_py.operations.dead_letters.discard import Discard, check_reason
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.dead_letters.replay import ReplayOutcome, plan_replay
from kstreams_py.operations.dead_letters.replay import replay as replay_letters
from kstreams_py.operations.dead_letters.text import Describer, group_as_json, groups_as_text, show_class
from kstreams_py.printable import count_of
from kstreams_py.processing.dead_letters.letters import Letter, LetterSelection, group

app = typer.Typer(help="Dead letters of a graph: list, show, replay and discard.", no_args_is_help=True)

Error = Annotated[
    str | None, typer.Option("--error", help="only this exception class, such as KeyError or shop.TooExpensive")
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="only records since then (by timestamp): 30m, 1h, 2d, or 2026-05-01T12:00"),
]
OfTopic = Annotated[str | None, typer.Option("--topic", help="only from this dead-letter topic")]
OfPartition = Annotated[int | None, typer.Option("--partition", help="only from this partition", min=0)]
AtOffset = Annotated[int | None, typer.Option("--offset", help="only the dead letter at this offset", min=0)]
SHOWN = 10
"""How many dead letters a discard shows before it asks."""


@app.command("list")
def list_letters(
    target: Target,
    error: Error = None,
    since: Since = None,
    processor: OfProcessor = None,
    topic: OfTopic = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="only rows with dead letters that are neither replayed nor discarded")
    ] = False,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Count the dead letters by processor and exception class, each with its newest message.

    Those that wait are neither replayed nor discarded; the reasons of the discarded ones are printed.
    """
    selection = LetterSelection(processor, error, parse_time("--since", since, time.time()), topic)
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        reader = LetterReader(graph, environment)
        marks = reader.marks()
        groups = group((letter, marks.get(letter.place)) for letter in reader.selected(selection))
        _warn_unreadable(reader.unreadable)
    if waiting:
        groups = {key: each for key, each in groups.items() if each.waiting}
    if as_json:
        for (of, kind), each in groups.items():
            echo(group_as_json(of, kind, each))
    else:
        echo_lines(groups_as_text(groups) if groups else "no dead letters wait" if waiting else "no dead letters")


@app.command()
def show(
    target: Target,
    error: Error = None,
    since: Since = None,
    processor: OfProcessor = None,
    topic: OfTopic = None,
    partition: OfPartition = None,
    offset: AtOffset = None,
    count: Annotated[int, typer.Option("-n", help="the newest N of each partition", min=1)] = 10,
    replayed: Annotated[bool, typer.Option("--replayed", help="also those that are replayed")] = False,
    discarded: Annotated[bool, typer.Option("--discarded", help="also those that are discarded")] = False,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print the dead letters that wait, with their decoded inputs, the exception and the traceback."""
    selection = _select(processor, error, since, topic, partition, offset)
    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        reader = LetterReader(graph, environment)
        marks = reader.marks()
        kept: dict[tuple[str, int], deque[Letter]] = {}
        for letter in reader.selected(selection):
            mark = marks.get(letter.place)
            if mark is None or offset is not None or (discarded if mark.is_discard else replayed):
                kept.setdefault(letter.place[:2], deque(maxlen=count)).append(letter)
        _warn_unreadable(reader.unreadable)
        describer = Describer(graph, environment.registry)
        describe = describer.as_json if as_json else describer.as_text
        for letters in kept.values():
            for letter in letters:
                echo_lines(describe(letter, marks.get(letter.place)))
    if not kept and not as_json:
        echo("no dead letters")


@app.command()
def replay(
    target: Target,
    error: Error = None,
    since: Since = None,
    processor: OfProcessor = None,
    topic: OfTopic = None,
    partition: OfPartition = None,
    offset: AtOffset = None,
    unverified: Annotated[
        bool,
        typer.Option(
            "--unverified", help="also dead letters with deleted inputs: nobody else may write to their topic"
        ),
    ] = False,
    discarded: Annotated[bool, typer.Option("--discarded", help="also those that are discarded")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be replayed, and run nothing")] = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Process the inputs of dead letters again. Exit status 1 if a dead letter could not be replayed.

    Outputs are committed together with a mark of each dead letter: after a crash, run the command again, and nothing is
    sent twice. Other processors of the input topic are not affected, and the workers may keep running. A dead letter
    that differs from the record that it names is not replayed, nor is a discarded one. Needs the rights to read
    the dead letters and the inputs, to describe the groups, to write the outputs and __ks.GRAPH.replayed, and to use
    the transactional id GRAPH.dead-letters.
    """
    selection = _select(processor, error, since, topic, partition, offset)

    def report(letter: Letter, outcome: ReplayOutcome, why: str) -> None:
        if outcome is not ReplayOutcome.REPLAYED:
            echo(f"{letter.place}  {letter.processor}  {outcome}: {why}")
        elif dry_run:
            echo(f"{letter.place}  {letter.processor}  would be replayed {_show_error(letter)}")

    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        act = plan_replay if dry_run else replay_letters
        summary = act(graph, environment, selection, report, unverified=unverified, takes_discarded=discarded)
    _warn_unreadable(summary.unreadable)
    if summary.stopped:
        echo(f"stopped at {summary.stopped}")
    names = {each: str(each) for each in ReplayOutcome}
    if dry_run:
        names[ReplayOutcome.REPLAYED] = "would be replayed"
    counts = [f"{count:,} {names[outcome]}" for outcome, count in summary.counts.items() if count]
    nothing = "nothing was replayed" if summary.stopped else "no dead letters to replay"
    left_out = f"; {summary.discarded:,} discarded are left out" if summary.discarded else ""
    echo((", ".join(counts) or nothing) + left_out)
    if not summary.is_complete:
        raise typer.Exit(1)


@app.command()
def discard(
    target: Target,
    reason: Annotated[str, typer.Option("--reason", help="why nobody needs them, for those who list them later")],
    error: Error = None,
    since: Since = None,
    processor: OfProcessor = None,
    topic: OfTopic = None,
    partition: OfPartition = None,
    offset: AtOffset = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Mark dead letters that nobody needs as discarded, so that they no longer wait. Exit status 1 if the answer is no.

    Nothing is deleted: list counts them with their reasons, show --discarded prints them, and replay --discarded
    processes them after all. Prints the first ten of them, and asks first. After a crash, run the command again. Needs
    the rights to read the dead letters, to write __ks.GRAPH.replayed, and to use the transactional id
    GRAPH.dead-letters.
    """
    reason = check_reason(reason)
    selection = _select(processor, error, since, topic, partition, offset)

    shown = 0

    def report(letter: Letter) -> None:
        nonlocal shown
        shown += 1
        if dry_run or (not yes and shown <= SHOWN):
            echo(f"{letter.place}  {letter.processor}  would be discarded {_show_error(letter)}")

    with open_graph(target, bootstrap_servers, config) as (graph, environment):
        found = Discard(graph, environment, selection, reason, report)
        _warn_unreadable(found.unreadable)
        letters = count_of(len(found), "dead letter")
        if found and not dry_run:
            if not yes and len(found) > SHOWN:
                echo(f"and {len(found) - SHOWN:,} more: --dry-run prints all")
            confirm(f"discard {letters}?", yes=yes, refusal="nothing was discarded")
            found.run()
    if not found:
        echo("no dead letters to discard")
    else:
        echo(f"{len(found):,} {'would be discarded' if dry_run else 'discarded'}")


def _show_error(letter: Letter) -> str:
    return f"({show_class(letter.error)}: {letter.message[:100]})"


def _select(
    processor: str | None,
    error: str | None,
    since: str | None,
    topic: str | None,
    partition: int | None,
    offset: int | None,
) -> LetterSelection:
    if offset is not None and partition is None:
        raise SettingsError("--offset names a dead letter together with its partition: add --partition")
    return LetterSelection(processor, error, parse_time("--since", since, time.time()), topic, partition, offset)


def _warn_unreadable(reasons: list[str]) -> None:
    for reason in reasons:
        echo(f"not read: {reason}", file=sys.stderr)
