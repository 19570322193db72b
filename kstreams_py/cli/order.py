"""`kstreams order`: runs an event-ordering worker, shows and repairs objects, and takes over from a dead worker."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from kstreams_py.cli import order_objects
from kstreams_py.cli.options import AsJson, Bootstrap, Config, Yes, confirm, open_environment
from kstreams_py.cli.streams import echo
from kstreams_py.errors import SettingsError
from kstreams_py.operations.records.topic import find_topic
from kstreams_py.ordering.front_end import open_storage
from kstreams_py.ordering.sending import KafkaSender, check_topic
from kstreams_py.ordering.status import Standing
from kstreams_py.ordering.storage import Storage
from kstreams_py.ordering.worker import OrderingWorker
from kstreams_py.secrets import redact
from kstreams_py.settings import Settings

LANES: Final = 64
BATCH: Final = 100

app = typer.Typer(invoke_without_command=True)

Store = Annotated[
    str, typer.Option("--store", help="where front ends queue events: redis://host:port/0, or the path of a file")
]
Prefix = Annotated[str, typer.Option("--prefix", help="the beginning of the keys of a store in Redis")]
AcceptPartitions = Annotated[
    bool,
    typer.Option(
        "--accept-partitions", help="go on even though the number of partitions has changed: objects move to others"
    ),
]
AcceptTopic = Annotated[
    bool, typer.Option("--accept-topic", help="go on with a topic other than the one that events were sent to before")
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", help="the topic of the events, required to send them; its keys are names of objects"),
]


@app.callback()
def order(
    context: typer.Context,
    topic: Topic = None,
    store: Store = "events.db",
    name: Annotated[
        str, typer.Option("--name", help="name of the worker: a restart under this name continues with its objects")
    ] = "worker",
    lanes: Annotated[int, typer.Option(help="how many objects are processed concurrently", min=1)] = LANES,
    batch: Annotated[int, typer.Option(help="the most events of an object in one step", min=1)] = BATCH,
    prefix: Prefix = "",
    accept_partitions: AcceptPartitions = False,
    accept_topic: AcceptTopic = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Send queued events to a topic, with each object's events in a fixed order, until Ctrl-C or SIGTERM.

    Each event gets an id, and the id of the object's previous event. A killed worker, started again under its name,
    continues where it stopped. If another process takes a worker's name, the older process exits with status 4.
    """
    if context.invoked_subcommand is not None:
        _check_no_options(context)
        return
    events = _require(topic)
    with (
        closing(open_storage(store, prefix)) as storage,
        _open_sender(events, name, bootstrap_servers, config) as sender,
    ):
        check_topic(
            storage,
            events,
            sender.topic.partitions,
            accepts_topic=accept_topic,
            accepts_partitions=accept_partitions,
        )
        worker = OrderingWorker(storage, sender, name, lanes=lanes, batch=batch)

        def stop(signum: int, _: object) -> None:
            signal.signal(signum, signal.SIG_DFL)  # a second signal ends the process immediately
            worker.stop()

        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, stop)
        worker.run()


@app.command()
def status(
    store: Store = "events.db",
    prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Show objects with events, and workers with their objects.

    Exit status 1 if an object waits for a worker that has been silent for 30 s: the worker may be dead.
    """
    with closing(_open_existing(store, prefix)) as storage:
        standing = Standing(storage.objects(), storage.workers())
    for line in map(json.dumps, standing.as_fields()) if as_json else standing.describe():
        echo(line)
    if standing.is_blocked:
        raise typer.Exit(1)


@app.command()
def takeover(
    name: Annotated[str, typer.Argument(help="the name of the worker")],
    topic: Topic = None,
    store: Store = "events.db",
    prefix: Prefix = "",
    yes: Yes = False,
    accept_partitions: AcceptPartitions = False,
    accept_topic: AcceptTopic = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Send the events that a dead worker has taken, and release its objects to other workers.

    If a worker of this name is still alive, it exits with status 4.
    """
    events = _require(topic)
    with closing(_open_existing(store, prefix)) as storage:
        known = {each.name: each for each in storage.workers()}
        if name not in known:
            raise SettingsError(
                f"the store has no worker {name!r}: it has {', '.join(sorted(known)) or 'none'}: correct the name, "
                "--store or --prefix"
            )
        held = ", ".join(sorted(set(known[name].objects.values()))) or "nothing"
        echo(f"worker {name} was last heard from {known[name].seconds:.0f} s ago, and holds: {held}")
        confirm("End it if it is alive, send its events, and release its objects?", yes=yes)
        with _open_sender(events, name, bootstrap_servers, config) as sender:
            check_topic(
                storage,
                events,
                sender.topic.partitions,
                accepts_topic=accept_topic,
                accepts_partitions=accept_partitions,
            )
            worker = OrderingWorker(storage, sender, name, lanes=1, batch=BATCH)
            worker.stop()  # so that it takes no new objects
            worker.run()
    echo(f"worker {name} holds nothing now")


for _command in (order_objects.stopped, order_objects.resume, order_objects.accept):
    app.command()(_command)


def _check_no_options(context: typer.Context) -> None:
    """Raises SettingsError for options before a subcommand, which would ignore them."""
    names = [each.opts[0] for each in context.command.params if each.name is not None]
    given = [
        option
        for option, each in zip(names, context.command.params, strict=True)
        if each.name is not None and str(context.get_parameter_source(each.name)).endswith("COMMANDLINE")
    ]
    if given:
        raise SettingsError(f"write {', '.join(given)} after `kstreams order {context.invoked_subcommand}`")


def _open_existing(store: str, prefix: str) -> Storage:
    """Opens a store. Raises SettingsError for a file that does not exist, because opening would create it."""
    if "://" not in store and not Path(store).exists():
        raise SettingsError(f"the store {redact(store)} does not exist: correct --store")
    return open_storage(store, prefix)


def _require(topic: str | None) -> str:
    if topic is None:
        raise SettingsError("name the topic of the events: --topic NAME")
    return topic


@contextmanager
def _open_sender(topic: str, name: str, bootstrap_servers: str | None, config: Path | None) -> Iterator[KafkaSender]:
    """Yields a sender of events to an existing topic. Raises TopicError, and BrokerUnavailable."""
    with open_environment(Settings.load(config, bootstrap_servers=bootstrap_servers)) as environment:
        found = find_topic(environment, topic)
        with closing(KafkaSender(environment.cluster, found, name, environment.sleep)) as sender:
            yield sender
