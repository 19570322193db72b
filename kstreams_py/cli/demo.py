"""`kstreams demo`: demonstrations on real data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.errors import MissingSoftware

app = typer.Typer(help="Demonstrations on real data.", no_args_is_help=True)


@app.command("flights")
def run_flights(
    records: Annotated[
        int | None, typer.Option(help="so many departures, spread evenly over the year; by default all 336,776", min=1)
    ] = None,
    kills: Annotated[int, typer.Option(help="how often a worker is killed, spread over the run", min=0)] = 12,
    seed: Annotated[int, typer.Option(help="seed of the random kills")] = 1,
    output: Annotated[Path, typer.Option(help="directory for the report and its data")] = Path("flights-demo"),
) -> None:
    """Process a year of flights, kill workers at random, check every row; exit status 1 if one is wrong."""
    try:
        from kstreams_py.demo import flights  # noqa: PLC0415, its libraries are optional
    except ImportError as error:
        raise MissingSoftware(f"{error.name} is not installed: run pip install 'kstreams_py[demo]'") from None
    raise typer.Exit(flights.run(records, kills, seed, output))


@app.command("ordering")
def run_ordering(
    flights: Annotated[int, typer.Option(help="so many departures, the first ones of the year", min=1)] = 6_000,
    kills: Annotated[
        int, typer.Option(help="how often a worker is killed, and a consumer's process, spread over the run", min=0)
    ] = 8,
    seed: Annotated[int, typer.Option(help="seed of the random kills")] = 1,
    store: Annotated[
        str | None, typer.Option(help="where events are queued: redis://host:port/0; by default a file in --output")
    ] = None,
    output: Annotated[Path, typer.Option(help="directory for the report and its data")] = Path("ordering-demo"),
) -> None:
    """Change aircraft from four processes, kill workers and consumers of the events, check order and states.

    Three consumer groups apply the events, and pause at random. The same events are sent without event ordering, too,
    and counted where they overtake each other. Exit status 1 if an aircraft has not the state that the file of flights
    gives it, in one of the groups.
    """
    from kstreams_py.demo import ordering  # noqa: PLC0415, its libraries take time to import

    raise typer.Exit(ordering.run(flights, kills, seed, store, output))
