"""The command with all its groups, the log on stderr, errors as one message and an exit status."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.logging import RichHandler

import kstreams_py
from kstreams_py.cli import broker, config, dead_letters, demo, deploy, graph, jars, run, slots, spark, topics
from kstreams_py.errors import EXIT_STATUSES, KStreamsError, SettingsError
from kstreams_py.running import pipe
from kstreams_py.running.output import keep_output
from kstreams_py.settings import check_variables


def _exit_statuses() -> str:
    """A paragraph for each exit status, for --help."""
    rows = (
        f"{'Other' if each.status is None else each.status}: {each.meaning}. {each.asks[0].upper()}{each.asks[1:]}."
        for each in EXIT_STATUSES
    )
    return "\n\n".join(("Exit statuses:", *rows))


app = typer.Typer(
    help="Exactly-once stream processing on Kafka in plain Python functions.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # "rich" takes what is in brackets for a style, and leaves it out
    pretty_exceptions_enable=False,
)
app.command(epilog=_exit_statuses())(run.run)
app.command(hidden=True)(run.standby)
app.command()(deploy.k8s)
app.command()(deploy.systemd)
app.command()(graph.graph)
app.command()(jars.jars)
app.command()(spark.spark_options)
app.add_typer(topics.app, name="topics")
app.add_typer(slots.app, name="slots")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(broker.app, name="broker")
app.add_typer(config.app, name="config")
app.add_typer(demo.app, name="demo")

INTERRUPTED: Final = 130
"""The exit status after a Ctrl-C before anything runs, as shells have it."""


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


LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def main() -> None:
    """Run the command; a KStreamsError becomes one message and its exit status."""
    try:
        keep_output()
        check_variables()
        _log_to_stderr()
        app()
    except KStreamsError as error:
        if not pipe.report_error(error):
            Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
            print(error, file=sys.stderr)
        _exit(error.exit_status)
    except (KeyboardInterrupt, SystemExit) as end:  # typer makes a SystemExit of a KeyboardInterrupt
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("interrupted", file=sys.stderr)
        _exit(INTERRUPTED)
    except Exception:  # of a user's function: its traceback shows where it was raised
        traceback.print_exc()
        _exit(1)


def _exit(status: int) -> None:
    """Ends the process at once: it must not wait for a loop that did not drain in time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _log_to_stderr() -> None:
    level = os.environ.get("KSTREAMS_LOG_LEVEL", "INFO").upper()
    if level not in LEVELS:
        raise SettingsError(f"KSTREAMS_LOG_LEVEL={level} is not a log level: use one of {', '.join(LEVELS)}")
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(console=Console(stderr=True), show_path=False)
        logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "DEBUG":
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its errors are raised as well, as one message each
