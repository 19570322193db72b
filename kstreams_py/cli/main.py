"""The command with its groups; logs to stderr, and turns errors into a message and an exit status."""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final, NoReturn

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

import kstreams_py
from kstreams_py.cli import (
    acls,
    broker,
    config,
    dead_letters,
    demo,
    deploy,
    dev,
    doctor,
    graph,
    jars,
    new,
    order,
    peers,
    pipeline,
    records,
    recover,
    run,
    slots,
    sources,
    spark,
    state,
    streams,
    topics,
    transactions,
)
from kstreams_py.cli.usage import improve_help
from kstreams_py.errors import EXIT_STATUSES, KStreamsError, Unavailable
from kstreams_py.printable import indent_rest
from kstreams_py.running import pipe
from kstreams_py.running.output import keep_output
from kstreams_py.running.terminal import logs
from kstreams_py.settings import check_variables


def _exit_statuses() -> str:
    """Returns a paragraph for each exit status, for --help."""
    rows = (
        f"{'Other' if each.status is None else each.status}: {each.meaning}. {each.asks[0].upper()}{each.asks[1:]}."
        for each in EXIT_STATUSES
    )
    return "\n\n".join(("Exit statuses:", *rows))


app = typer.Typer(
    help="Exactly-once stream processing on Kafka in plain Python functions.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # "rich" would take text in brackets for a style, and drop it
    pretty_exceptions_enable=False,
)
app.command(rich_help_panel="Start")(new.new)
app.command(rich_help_panel="Start")(dev.dev)
app.command(rich_help_panel="Start", epilog=_exit_statuses())(run.run)
app.command(rich_help_panel="Start")(records.send)
app.command(rich_help_panel="Peers")(peers.peer)
app.command(rich_help_panel="Inspect")(graph.graph)
app.command(rich_help_panel="Inspect")(doctor.doctor)
app.command(rich_help_panel="Inspect")(records.tail)
app.command(rich_help_panel="Deploy")(deploy.k8s)
app.command(rich_help_panel="Deploy")(deploy.systemd)
app.command(rich_help_panel="Deploy")(acls.acls)
app.command(rich_help_panel="Deploy")(jars.jars)
app.command(rich_help_panel="Spark")(spark.cut)
app.command(rich_help_panel="Spark")(spark.spark_options)
app.command(hidden=True)(run.standby)
app.command(hidden=True)(dev.dev_version)
app.add_typer(topics.app, name="topics", rich_help_panel="Start")
app.add_typer(config.app, name="config", rich_help_panel="Start")
app.add_typer(broker.app, name="broker", rich_help_panel="Start")
app.add_typer(demo.app, name="demo", rich_help_panel="Start")
app.add_typer(state.app, name="state", rich_help_panel="Inspect")
app.add_typer(slots.app, name="slots", rich_help_panel="Inspect")
app.add_typer(recover.app, name="recover", rich_help_panel="Repair")
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel="Repair")
app.add_typer(sources.app, name="sources", rich_help_panel="Repair")
app.add_typer(transactions.app, name="transactions", rich_help_panel="Repair")
app.add_typer(pipeline.app, name="pipeline", rich_help_panel="Spark")
app.add_typer(order.app, name="order", rich_help_panel="Ordering")
app.add_typer(peers.jobs, name="job", rich_help_panel="Peers")
app.add_typer(peers.clusters, name="cluster", rich_help_panel="Peers")
improve_help(app)

logger = logging.getLogger("kstreams_py")

INTERRUPTED: Final = 130
"""The exit status after a Ctrl-C that the command does not handle itself, as in shells."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kstreams_py {kstreams_py.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Exactly-once stream processing on Kafka in plain Python functions."""


def _reduce(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Returns the app with only the command that `words` begin with; the whole app if they begin with none.

    Typer builds each command from its function's annotations: building all costs an eighth of startup CPU time.
    """
    word = next(iter(words), "")
    commands = [each for each in app.registered_commands if _name(each) == word]
    groups = [each for each in app.registered_groups if each.name == word]
    if not commands and not groups:
        return app
    reduced = copy.copy(app)
    reduced.registered_commands, reduced.registered_groups = commands, groups
    return reduced


def _name(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or get_command_name(command.callback.__name__)


def main() -> None:
    """Run the command; a KStreamsError becomes one message and its exit status."""
    streams.repair()
    try:
        keep_output()
        check_variables()
        logs.configure()
        _reduce(app, sys.argv[1:])()
    except KStreamsError as error:
        if not pipe.report_error(error):
            _show(error)
        _exit(error.exit_status)
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns a KeyboardInterrupt into a SystemExit
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            if reason := streams.flush_output():
                _end_without_output(reason)
            raise
        print("interrupted", file=sys.stderr)
        _exit(INTERRUPTED)
    except BaseException as error:  # of a user's function, or a bug here: the traceback shows where
        if streams.is_of_output(error):
            _end_without_output(str(error))
        if _is_json():
            logger.exception("a function stopped the worker")
        else:
            from kstreams_py.steps.dead_letters import format_traceback  # noqa: PLC0415, slow to import

            print(indent_rest(format_traceback(error)), file=sys.stderr)
        _exit(1)


def _show(error: KStreamsError) -> None:
    if _is_json():
        logger.error("%s: %s", type(error).__name__, error)
        return
    from rich.console import Console  # noqa: PLC0415, slow to import

    Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
    print(indent_rest(str(error)), file=sys.stderr)


def _end_without_output(reason: str) -> NoReturn:
    streams.discard(sys.stdout)
    _show(Unavailable(f"standard output cannot be written: {reason}: the printed output is incomplete"))
    _exit(Unavailable.exit_status)


def _is_json() -> bool:
    return os.environ.get(logs.FORMAT_VARIABLE, "").lower() == "json"


def _exit(status: int) -> NoReturn:
    """Ends the process immediately: a loop that did not drain in time must not delay it."""
    logs.finish()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
