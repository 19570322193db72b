"""`kstreams transactions`: lists and describes transactions, finds hanging ones, and ends them."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from kstreams_py.cli.options import UNITS, AsJson, Bootstrap, Config, DryRun, Yes, check_json, confirm, load_valid
from kstreams_py.cli.streams import echo, echo_lines
from kstreams_py.errors import BrokerUnavailable, SettingsError, UserMistake, did_you_mean
from kstreams_py.kafka.transaction_admin import TransactionAdmin
from kstreams_py.kafka.transactions import STATES, Coordinated, cluster_option
from kstreams_py.operations.transactions.abort import UNCHANGED, Transactions
from kstreams_py.operations.transactions.hanging import (
    as_fields,
    clusters_of,
    consequences,
    describe,
    headline,
    topics_of,
)
from kstreams_py.printable import join_lines
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings

app = typer.Typer(help="Transactions: list and describe them, find hanging ones, and end them.", no_args_is_help=True)

OnTopic = Annotated[str, typer.Option("--topic", help="the topic, as find-hanging prints it")]
OnPartition = Annotated[int, typer.Option("--partition", help="the partition", min=0)]
OnCluster = Annotated[
    str | None, typer.Option("--cluster", help="another cluster of the settings, by its name in [clusters]")
]
StartOffset = Annotated[
    int, typer.Option("--start-offset", help="the offset of the transaction's first record on the partition", min=0)
]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option("--state", help=f"only in this state: {', '.join(STATES)}; can be repeated")
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", help="only of this producer id; can be repeated")
    ] = None,
    contains: Annotated[str, typer.Option("--contains", help="only transactional ids that contain this text")] = "",
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    cluster: OnCluster = None,
) -> None:
    """Print each transactional id on which this user has DESCRIBE: its state, producer id and coordinator."""
    for name in set(state or ()) - {*STATES}:
        raise SettingsError(f"--state {name!r}: {did_you_mean(name, STATES) or 'it is one of ' + ', '.join(STATES)}")
    found = [
        each
        for each in _admin(bootstrap_servers, config, cluster).listed(state or (), producer_id or ())
        if contains in each.transactional_id
    ]
    width = max((len(each.transactional_id) for each in found), default=0)
    for each in found:
        if as_json:
            echo(
                json.dumps(
                    {
                        "transactional_id": each.transactional_id,
                        "state": each.state,
                        "producer_id": each.producer_id,
                        "coordinator": each.coordinator,
                    }
                )
            )
        else:
            echo(
                f"{each.transactional_id:{width}}  {each.state:<14}  producer {each.producer_id}, "
                f"coordinator {each.coordinator}"
            )
    if not found and not as_json:
        echo("no transactional ids")


@app.command("describe")
def describe_transaction(
    transactional_id: Annotated[str, typer.Argument(help="an id that the command list prints")],
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    cluster: OnCluster = None,
) -> None:
    """Print the newest transaction of a transactional id: state, epoch, timeout, start and partitions."""
    found = _admin(bootstrap_servers, config, cluster).described(transactional_id)
    if found is None:
        raise UserMistake(
            f"its coordinator does not know transactional id {transactional_id!r}: `kstreams transactions list` prints "
            "the known ones"
        )
    if as_json:
        echo(json.dumps(_fields(found)))
    else:
        echo_lines(join_lines(_rows(found, time.time())))


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[list[str] | None, typer.Option("--topic", help="only on this topic; can be repeated")] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="TARGET",
            help="only on the topics of this graph (module:name or file): inputs, outputs, dead letters, __ks.*, and "
            "__consumer_offsets",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="also those that are open for longer, such as 90s or 15m, even if they end by themselves; default: "
            "transaction.max.timeout.ms of the brokers, or 15m",
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    cluster: OnCluster = None,
) -> None:
    """Find transactions that never end by themselves, or are open for too long. Exit status 1 if there are any.

    Looks at all topics, and at __consumer_offsets, where such a transaction pins the positions of groups. Prints what
    each transaction holds back and the command that ends it, in the order in which they must be ended. Stop the workers
    of its transactional id first. Needs DESCRIBE on transactional ids and READ on the topics and __transaction_state.
    Exit status 3 if it could not look at a topic and found nothing.
    """
    limit = None if older_than is None else _seconds(older_than)
    places: dict[str, Collection[str]] = {cluster or "": topic or ()}
    if graph is not None:
        loaded = load_valid(graph)
        named = clusters_of(loaded) if cluster is None else [cluster]
        places = {each: {*places.get(each, ()), *topics_of(loaded, each)} for each in named}
    found, refused = False, 0
    for place, topics in places.items():
        transactions = Transactions(_admin(bootstrap_servers, config, place))
        transactions.count_partitions(topic or () if place == (cluster or "") else ())
        findings, now = transactions.find(topics or None, limit), time.time()
        options = _options(bootstrap_servers, config, place)
        for each in findings.found:
            echo_lines(json.dumps(as_fields(each, now, options)) if as_json else describe(each, now, options))
        for partition, reason in findings.refused.items():
            echo(f"not looked at: {partition}: {reason}", file=sys.stderr)
        found, refused = found or bool(findings.found), refused + len(findings.refused)
    if found:
        raise typer.Exit(1)
    if refused:
        raise BrokerUnavailable(
            f"{refused} partitions could not be looked at: see above; on the others, no transaction hangs"
        )
    if not as_json:
        echo("no transaction hangs")


@app.command()
def abort(
    topic: OnTopic,
    partition: OnPartition,
    start_offset: StartOffset,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    cluster: OnCluster = None,
) -> None:
    """Abort a hanging transaction on one partition: discards its records there, and shows the records after it.

    Prints which records become visible and which are discarded, and asks first. Exit status 1 if the answer is no.
    Refuses a transaction that ends by itself, and one that its coordinator has committed. Needs ALTER on the cluster.
    """
    place = TopicPartition(topic, partition)
    _end("abort", place, start_offset, (dry_run, yes, as_json), _admin(bootstrap_servers, config, cluster))


@app.command()
def commit(
    topic: OnTopic,
    partition: OnPartition,
    start_offset: StartOffset,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    cluster: OnCluster = None,
) -> None:
    """Complete a transaction that hangs on one partition and that its coordinator has committed.

    Prints which records become visible, and asks first. Exit status 1 if the answer is no. Refuses other transactions.
    Needs ALTER on the cluster.
    """
    place = TopicPartition(topic, partition)
    _end("commit", place, start_offset, (dry_run, yes, as_json), _admin(bootstrap_servers, config, cluster))


def _end(
    verb: str, place: TopicPartition, start: int, options: tuple[bool, bool, bool], admin: TransactionAdmin
) -> None:
    dry_run, yes, as_json = options
    check_json(dry_run=dry_run, yes=yes, as_json=as_json)
    transactions = Transactions(admin)
    found = transactions.select(place, start, verb)
    now = time.time()
    if not as_json:
        echo_lines(join_lines([headline(found, now), *(f"  {line}" for line in consequences(found))]))
    if not dry_run:
        confirm(f"{verb} it?", yes=yes)
        transactions.end(found, verb)
    if as_json:
        echo(json.dumps(as_fields(found, now) | {"ended": None if dry_run else verb}))
    else:
        ended = "aborted" if verb == "abort" else "committed"
        echo(f"would be {ended}; {UNCHANGED}" if dry_run else f"{ended} on {place}")


def _admin(bootstrap_servers: str | None, config: Path | None, cluster: str | None) -> TransactionAdmin:
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    if not cluster:
        return TransactionAdmin(settings)
    if cluster not in settings.clusters:
        close = did_you_mean(cluster, settings.clusters) or f"write [clusters.{cluster}] into the file of --config"
        raise SettingsError(f"--cluster {cluster!r} is not in the settings: {close}")
    return TransactionAdmin(settings.of_cluster(cluster))


def _options(bootstrap_servers: str | None, config: Path | None, cluster: str | None) -> str:
    """Returns the options that name the cluster in a printed command, as they were given to this command."""
    options = {"--bootstrap-servers": bootstrap_servers, "--config": config}
    given = (f" {name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None)
    return "".join(given) + cluster_option(cluster or "")


def _seconds(text: str) -> float:
    """Returns the seconds of `--older-than`. Raises SettingsError."""
    if found := re.fullmatch(r"(\d+)([smhd])", text):
        return int(found[1]) * UNITS[found[2]]
    raise SettingsError(f"--older-than {text!r}: write a number with s, m, h or d, such as 15m")


def _fields(found: Coordinated) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "coordinator": found.coordinator,
        "timeout_seconds": found.timeout,
        "started_at": None if found.started_at is None else _time(found.started_at),
        "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(found.partitions)],
    }


def _rows(found: Coordinated, now: float) -> Iterator[str]:
    yield f"{found.transactional_id}: {found.state}, coordinator {found.coordinator}"
    yield f"  producer    {found.producer_id} epoch {found.epoch}"
    yield f"  time-out    {found.timeout:g} s"
    if found.started_at is not None:
        yield f"  started     {_time(found.started_at)}, {max(0, now - found.started_at):.0f} s ago"
    yield f"  partitions  {', '.join(map(str, sorted(found.partitions))) or 'none'}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
