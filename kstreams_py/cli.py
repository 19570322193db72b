"""The command `kstreams`: run, topics, slots, graph, broker, demo, spark-options, jars."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from kstreams_py import picture
from kstreams_py.config import Settings
from kstreams_py.engine import supervisor
from kstreams_py.engine.target import load
from kstreams_py.engine.topics import check_topics, create_topics
from kstreams_py.errors import KStreamsError, MissingSoftware, SettingsError
from kstreams_py.groups import GroupInfo, describe_slots, members_of, slot_of
from kstreams_py.ports import broker as embedded
from kstreams_py.ports import jars
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.kafka.groups import GroupAdmin
from kstreams_py.topology import Graph

app = typer.Typer(
    help="Exactly-once stream processing on Kafka in plain Python functions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
topics_app = typer.Typer(help="The topics of a graph.", no_args_is_help=True)
slots_app = typer.Typer(
    help="The slots of a graph: which workers hold them, and how to let go of one from outside.", no_args_is_help=True
)
broker_app = typer.Typer(
    help="A real Kafka on this machine, on loopback, for trying out and for tests.", no_args_is_help=True
)
demo_app = typer.Typer(help="Demonstrations on real data.", no_args_is_help=True)
app.add_typer(topics_app, name="topics")
app.add_typer(slots_app, name="slots")
app.add_typer(broker_app, name="broker")
app.add_typer(demo_app, name="demo")

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

Target = Annotated[str, typer.Argument(help="module:graph, or path/to/file.py:graph")]
Bootstrap = Annotated[str | None, typer.Option("--bootstrap-servers", "-b", help="host:port,... of the cluster")]
Config = Annotated[
    Path | None, typer.Option("--config", help="a TOML file of settings, with librdkafka's under [kafka]")
]


def main() -> None:
    """Runs the command; a KStreamsError becomes one message and its exit status."""
    try:
        _log_to_stderr()
        app()
    except KStreamsError as error:
        if not supervisor.told(error):
            Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
            print(error, file=sys.stderr)
        _exit(error.exit_status)
    except Exception:  # a function's own, let through: where it happened matters
        traceback.print_exc()
        _exit(1)


def _exit(status: int) -> None:
    """Ends at once: a loop that did not drain in time must not hold the process up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _log_to_stderr() -> None:
    level = os.environ.get("KSTREAMS_LOG_LEVEL", "INFO").upper()
    if level not in LEVELS:
        raise SettingsError(f"KSTREAMS_LOG_LEVEL={level} is no level: use {', '.join(LEVELS)}")
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(console=Console(stderr=True), show_path=False)
        logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "DEBUG":
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its errors are raised, each as one message


def slots_of(text: str) -> list[int]:
    """`4-7` or `0,2,5` as slots. Raises SettingsError."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += range(int(first), int(last if dash else first) + 1)
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise SettingsError(f"--slots {text!r}: write a range such as 4-7, or numbers such as 0,2,5, each once")
    return found


@app.command()
def run(
    target: Target,
    workers: Annotated[int, typer.Option(help="worker processes, slots 0 to N-1", min=1)] = 1,
    slots: Annotated[str | None, typer.Option(help="slots of this machine, such as 4-7, instead of --workers")] = None,
    slot: Annotated[
        int | None, typer.Option(help="run this one slot in this process, under your own supervisor", min=0)
    ] = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    create_topics: Annotated[bool, typer.Option("--create-topics", help="create missing topics first")] = False,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave",
            help="on stopping, leave the groups for good: partitions move at once instead of waiting for a restart",
        ),
    ] = False,
) -> None:
    """Run a graph until Ctrl-C; a second Ctrl-C ends at once."""
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers, leave_on_stop=leave or None)
    if slot is not None:
        supervisor.run_slot(load(target), slot, settings, create=create_topics)
    else:
        numbers = list(range(workers)) if slots is None else slots_of(slots)
        supervisor.run_slots(target, numbers, settings, create=create_topics)


@app.command(hidden=True)
def standby(target: Target) -> None:
    """Wait for a slot on standard input, then run it: what `run` keeps ready for a worker that dies."""
    settings = Settings.load()
    slot = supervisor.awaited_slot()
    if slot is not None:
        supervisor.run_slot(load(target), slot, settings)


@topics_app.command("create")
def topics_create(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Create the graph's missing topics."""
    graph = load(target)
    graph.validate()
    created = create_topics(graph, KafkaLog(Settings.load(config, bootstrap_servers=bootstrap_servers)))
    print("\n".join(f"created {name}" for name in created) or "all topics exist")


@topics_app.command("check")
def topics_check(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Check that the graph's topics exist and fit."""
    graph = load(target)
    graph.validate()
    found = check_topics(graph, KafkaLog(Settings.load(config, bootstrap_servers=bootstrap_servers)))
    print(
        "\n".join(
            f"{name}: {info.partitions} partitions, replication {info.replication}" for name, info in found.items()
        )
    )


def _groups(graph: Graph, admin: GroupAdmin) -> dict[str, GroupInfo]:
    """The consumer groups of a graph's processors."""
    graph.validate()
    return admin.describe([f"{graph.name}.{processor.id}" for processor in graph.processors])


@slots_app.command("list")
def slots_list(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print the group of each processor: its state, and for each slot the host, the partitions and the member."""
    admin = GroupAdmin(Settings.load(config, bootstrap_servers=bootstrap_servers))
    print(describe_slots(_groups(load(target), admin)))


@slots_app.command("release")
def slots_release(
    target: Target,
    slots: Annotated[list[int], typer.Argument(help="numbers of slots whose workers have ended for good", min=0)],
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Remove the static members of these slots from every group of the graph, so that their partitions move at once.

    For slots that no worker will take again. A slot whose worker still runs is not ended by this: the worker joins its
    groups again, or ends if it was in the middle of a commit.
    """
    graph = load(target)
    admin = GroupAdmin(Settings.load(config, bootstrap_servers=bootstrap_servers))
    for group, members in members_of(graph.name, _groups(graph, admin), slots).items():
        removed = admin.remove(group, {member.instance: "" for member in members})
        for member in members:
            done = "released" if removed[member.instance] else "had left already:"
            held = ", ".join(map(str, member.partitions)) or "no partition"
            print(f"{group}: {done} slot {slot_of(group, member.instance)} on {member.host} ({held})")


class PictureFormat(StrEnum):
    """What `kstreams graph` writes."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


@app.command()
def graph(
    target: Target,
    form: Annotated[PictureFormat, typer.Option("--format", "-f")] = PictureFormat.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="a file instead of the terminal")] = None,
) -> None:
    """Describe a graph as text, Mermaid or SVG."""
    found = load(target)
    found.validate()
    drawn = {"text": picture.text, "mermaid": picture.mermaid, "svg": picture.svg}[form](found)
    if output is None:
        print(drawn)
    else:
        try:
            output.write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise SettingsError(f"--output {output} cannot be written: {error.strerror}: choose another file") from None


@app.command("jars")
def jars_command() -> None:
    """Fetch the broker's and Spark's jars into the cache, and archive the broker's classes: it starts faster then."""
    kafka = jars.kafka_classpath(print)
    jars.spark_jars(print)
    try:
        embedded.archive_classes(kafka, jars.find_java())
    except (KStreamsError, OSError) as error:
        _to_stderr(f"the broker's classes are not archived, so it starts slower: {error}")
    print(f"jars are in {jars.cache_directory()}")


@app.command("spark-options")
def spark_options(
    topic: Annotated[str, typer.Argument(help="the topic's name")],
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    streaming: Annotated[bool, typer.Option("--streaming", help="for readStream instead of read")] = False,
    secrets: Annotated[bool, typer.Option("--secrets", help="show passwords instead of ***")] = False,
) -> None:
    """Print the options with which a Spark job written elsewhere reads a topic's committed records."""
    from kstreams_py.ports import spark  # noqa: PLC0415, PySpark need not be installed, and takes its time

    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    print(spark.options(topic, settings, streaming=streaming).lines(secrets=secrets))


@broker_app.command("start")
def broker_start(
    brokers: Annotated[int, typer.Option(help="1, or 3 for replication", min=1, max=9)] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(help="keep the data here; without it, it is deleted at the stop")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port of the first broker; without it, a free one")] = None,
) -> None:
    """Start it in the background, and print its address once it is ready."""
    started = embedded.start_detached(
        jars.kafka_classpath(_to_stderr), jars.find_java(), brokers=brokers, data_dir=data_dir, port=port
    )
    print(started.bootstrap_servers)


@broker_app.command("stop")
def broker_stop() -> None:
    """Stop what `start` started, and nothing else."""
    stopped = embedded.stop_detached()
    print("no broker was running" if stopped is None else f"stopped {stopped.bootstrap_servers}")


@broker_app.command("status")
def broker_status() -> None:
    """Print address and state; exit status 1 if it does not run, with the reason if its disk was full."""
    found = embedded.status()
    if found is None or not found.running:
        print("not running" + (f": {found.full_disk}" if found is not None and found.full_disk else ""))
        raise typer.Exit(1)
    print(f"{found.bootstrap_servers} ({found.alive} of {found.brokers} brokers, data in {found.data_dir})")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


@demo_app.command("flights")
def demo_flights(
    records: Annotated[
        int | None, typer.Option(help="only the first departures of the year; all 336,776 without it", min=1)
    ] = None,
    kills: Annotated[int, typer.Option(help="how often a worker is killed", min=0)] = 12,
    seed: Annotated[int, typer.Option(help="of the kills")] = 1,
    output: Annotated[Path, typer.Option(help="directory for the report and what was made")] = Path("flights-demo"),
) -> None:
    """A year of flights, workers killed at random, every row checked; exit status 1 if one is wrong."""
    try:
        from kstreams_py.demo import flights  # noqa: PLC0415, its libraries need not be installed
    except ImportError as error:
        raise MissingSoftware(f"{error.name} is not installed: run pip install 'kstreams_py[demo]'") from None
    raise typer.Exit(flights.run(records, kills, seed, output))
