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
        int | None, typer.Option(help="number of departures, spread over the year; all 336,776 by default", min=1)
    ] = None,
    kills: Annotated[int, typer.Option(help="number of kills of workers, spread over the run", min=0)] = 12,
    seed: Annotated[int, typer.Option(help="seed of the random kills")] = 1,
    output: Annotated[Path, typer.Option(help="directory for the report and its data")] = Path("flights-demo"),
) -> None:
    """Process a year of flights, kill workers at random, and check every row. Exit status 1 if any check fails."""
    try:
        from kstreams_py.demo import flights  # noqa: PLC0415, its libraries are optional
    except ModuleNotFoundError as error:
        raise MissingSoftware.of_extra(error, "demo") from None
    raise typer.Exit(flights.run(records, kills, seed, output))


@app.command("ordering")
def run_ordering(
    flights: Annotated[int, typer.Option(help="number of departures, from the beginning of the year", min=1)] = 6_000,
    kills: Annotated[
        int,
        typer.Option(help="number of kills of workers, and as many of consumer processes, spread over the run", min=0),
    ] = 8,
    seed: Annotated[int, typer.Option(help="seed of the random kills, and of the front ends' random delays")] = 1,
    store: Annotated[
        str | None,
        typer.Option(
            help="where events are queued: redis://host:port/0, or the path of a new file; by default, a file in "
            "--output"
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="directory for the report and its data")] = Path("ordering-demo"),
) -> None:
    """Change aircraft from four processes, kill workers and consumers of the events, and check order and states.

    Three consumer groups apply the events, and pause at random. The same events are also sent without event ordering,
    to count those that overtake others. Exit status 1 if any check fails, such as a group whose state of an aircraft
    differs from the flight data.
    """
    from kstreams_py.demo import ordering  # noqa: PLC0415, its libraries take time to import

    raise typer.Exit(ordering.run(flights, kills, seed, store, output))


@app.command("channels")
def run_channels(
    rows: Annotated[int, typer.Option(help="number of flights, spread over the year, of 336,776", min=1)] = 50_000,
    kills: Annotated[
        int, typer.Option(help="how often a worker is killed, spread over the run; one is frozen, too", min=0)
    ] = 12,
    workers: Annotated[int, typer.Option(help="worker processes", min=1, max=100)] = 2,
    seed: Annotated[int, typer.Option(help="seed of the random kills")] = 1,
    output: Annotated[Path, typer.Option(help="directory for the report and the tables")] = Path("channels-demo"),
) -> None:
    """Store the flights of a table in another one, over channels, kill and freeze workers, and check every row.

    It needs neither Kafka nor Java. Exit status 1 if a row is lost, doubled or wrong.
    """
    from kstreams_py.demo import channels  # noqa: PLC0415, its libraries take time to import

    raise typer.Exit(channels.run(rows, kills, workers, seed, output))


@app.command("jobs")
def run_jobs(
    rows: Annotated[
        int, typer.Option(help="number of flights of each job, spread over the year, of 336,776", min=1)
    ] = 20_000,
    kills: Annotated[int, typer.Option(help="how often a peer is killed, spread over the run", min=0)] = 10,
    freezes: Annotated[int, typer.Option(help="how often a peer is frozen until the others find it silent", min=0)] = 3,
    peers: Annotated[int, typer.Option(help="how many peers start together; two join later", min=10, max=50)] = 12,
    seed: Annotated[int, typer.Option(help="seed of the random faults")] = 1,
    output: Annotated[Path, typer.Option(help="directory for the report and the tables")] = Path("jobs-demo"),
) -> None:
    """Run two jobs on peers, kill, freeze and join peers, kill a job and submit it again, and check every row.

    The peers share the jobs by percentages, over ZeroMQ. Exit status 1 if any check fails.
    """
    try:
        from kstreams_py.demo.jobs import command, stage  # noqa: PLC0415, their libraries are optional
    except ModuleNotFoundError as error:
        raise MissingSoftware.of_extra(error, "demo,peers") from None
    raise typer.Exit(command.run(stage.JobsOptions(rows, kills, freezes, peers, seed), output))
