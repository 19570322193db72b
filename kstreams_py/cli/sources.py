"""`kstreams sources`: lists the sources of a graph with their refused inputs, and lets these be read again."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from kstreams_py.cli.options import AsJson, DryRun, Target, Yes, confirm, load_valid
from kstreams_py.cli.streams import echo
from kstreams_py.errors import SettingsError
from kstreams_py.operations.sources import RefusedInputs, as_fields, inspect_sources, show_counts
from kstreams_py.printable import count_of

app = typer.Typer(
    help="The sources of a graph: list their inputs that are under way or refused, let refused ones be read again.",
    no_args_is_help=True,
)

SHOWN: Final = 10
"""How many refused inputs are shown before a question."""


@app.command("list")
def list_sources(
    target: Target,
    count: Annotated[int, typer.Option("-n", help="how many refused inputs of each source", min=0)] = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Print for each source how many inputs are under way or refused, and the refused ones with their reasons.

    Those with the highest keys come first. Changes nothing, and asks no broker. Inputs that are done, and those that no
    worker has read, are not counted.
    """
    found = inspect_sources(load_valid(target), count)
    for name, fact in found.items():
        if as_json:
            echo(json.dumps(as_fields(name, fact)))
            continue
        counts = fact.why or "it keeps no inputs" if fact.status is None else show_counts(fact.status)
        echo(f"{name}  {fact.medium}: {counts}")
        for each in () if fact.status is None else fact.status.shown:
            echo(f"  refused: {each.key}  {each.reason}")
        if fact.status is not None and (more := fact.status.refused - len(fact.status.shown)) > 0:
            echo(f"  and {more:,} more: -n {fact.status.refused} prints all")
    if not found and not as_json:
        echo("no sources")


@app.command()
def retry(
    target: Target,
    source: Annotated[str | None, typer.Option("--source", help="this source; the only one by default")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="this refused input; can be repeated")] = None,
    every: Annotated[bool, typer.Option("--all", help="all refused inputs of the source")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let refused inputs be read again, as if they were new. Exit status 1 if the answer is no.

    Fix the cause first: an input that fails again is refused again. What was stored for an input before is not stored a
    second time. Prints the first ten inputs, and asks. Running workers read them within some seconds.
    """
    if bool(key) == every:
        raise SettingsError("name the inputs: one --key for each, or --all of them")
    inputs = RefusedInputs(load_valid(target), source)
    status = inputs.inspect(SHOWN)
    number = status.refused if every else len({*(key or ())})
    if not status.refused:
        echo(f"{inputs.name} has no refused inputs")
        return
    if every and (dry_run or not yes):
        for each in status.shown:
            echo(f"{each.key}  {each.reason}")
        if number > len(status.shown):
            echo(f"and {number - len(status.shown):,} more: `kstreams sources list` prints all")
    what = f"{count_of(number, 'input')} of {inputs.name}"
    if dry_run:
        echo(f"{what} would be read again")
        return
    confirm(f"let {what} be read again?", yes=yes)
    number = inputs.retry(None if every else key)
    echo(f"{count_of(number, 'input')} of {inputs.name} will be read again")
