"""`kstreams send` and `kstreams tail`: write and read the records of a topic as lines of JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from kstreams_py.cli import streams
from kstreams_py.cli.options import Bootstrap, Config, open_environment, parse_time
from kstreams_py.errors import SettingsError
from kstreams_py.graph.loading import load
from kstreams_py.operations.records.lines import Lines
from kstreams_py.operations.records.send import LineSender
from kstreams_py.operations.records.tail import Tail
from kstreams_py.operations.records.topic import find_topic
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment

NEWEST: Final = 10
"""The default number of records that `tail` prints."""

CREATION_SECONDS: Final = 30.0
"""The longest wait in seconds for a topic of a graph: `kstreams run --create-topics` may have just begun."""

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="the topic's name")]
OfGraph = Annotated[
    str | None,
    typer.Option(
        "--graph",
        "-g",
        metavar="TARGET",
        help="path/to/file.py or module of a graph: its serdes read and write keys and values; without --graph, they "
        "are text",
    ),
]


def send(
    topic: Name,
    graph: OfGraph = None,
    value: Annotated[
        str | None,
        typer.Option("--value", help="send one record with this value, instead of lines from standard input"),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="the key for --value")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", help="a header for --value, as name=value; can be repeated"),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(help="the partition for --value; by default, the key decides", min=0)
    ] = None,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Send records to a topic: one from --value and --key, or lines of JSON from standard input.

    A line is an object: {"key": "order-1", "value": {"quantity": 2}}, with optional "headers" (an object, or a list of
    [name, value]), "partition", and "timestamp" (milliseconds, or a time such as 2026-05-01T12:00:00Z). "value": null
    is a tombstone. `kstreams tail` prints such lines. For a topic of bytes, and without --graph, a string is sent as
    its text, {"hex": "00ff"} as the bytes 00 and ff, and anything else as its JSON text.

    All in-sync replicas acknowledge each record, and a repeated request writes no record twice. An invalid line ends
    the command with status 2: the command sends the lines before the invalid line, and no others.
    """
    if value is None and (key is not None or header or partition is not None):
        raise SettingsError(
            "--key, --header and --partition need --value: add --value, or write these fields in the lines"
        )
    with _opened(graph, topic, bootstrap_servers, config) as (lines, environment):
        found = find_topic(environment, topic, 0.0 if graph is None else CREATION_SECONDS)
        with LineSender(environment, found) as sender:
            try:
                if value is None:
                    sender.send(_input_lines(), lines.parse)
                else:
                    sender.send_one(lines.plain(key, value, header or [], partition))
            except KeyboardInterrupt:
                sender.confirm()
                streams.echo(f"{sender.sent:,} sent", file=sys.stderr)
                raise
    streams.echo(f"{sender.sent:,} sent to {topic}", file=sys.stderr)


class _At(NamedTuple):
    """An offset in each partition, or a time in milliseconds since 1970."""

    offset: int | None = None
    since: int | None = None


def tail(
    topic: Name,
    graph: OfGraph = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSET|TIME",
            help="where to start: an offset in each partition; a time of the records, such as 30m, 1h or 2d ago, or "
            "2026-05-01T12:00; beginning; or end",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="continue with new records, until Ctrl-C")] = False,
    count: Annotated[
        int | None,
        typer.Option("-n", help=f"print the newest N records, {NEWEST} by default; with --from, the first N", min=1),
    ] = None,
    partition: Annotated[int | None, typer.Option(help="read only this partition", min=0)] = None,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="also print records of open and aborted transactions")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Print records of a topic, one JSON object per line; without --from, the newest ones.

    Prints only committed records, up to the last stable offset of each partition at the start of the command; with
    --follow, continues with new records. Records are in the order of their partition, and partitions are merged by the
    records' timestamps. A key or value that --graph cannot decode is printed as bytes, with the reason as "undecoded".
    Dead letters are printed with their inputs decoded.

    With --uncommitted, prints all records, up to the last offset of each partition. A record that readers of
    committed records do not see has a "fate": "pending" if its transaction, or an earlier transaction, is open (with
    --follow, the record is printed once, as pending), "aborted" if its transaction was aborted, and "unknown" if its
    topic is compacted, so that the command cannot tell.
    """
    start = None if begin is None else _start(begin, follow=follow)
    with _opened(graph, topic, bootstrap_servers, config) as (lines, environment):
        found = find_topic(environment, topic, 0.0 if graph is None else CREATION_SECONDS)
        reader = Tail(environment, found, partition, uncommitted=uncommitted)
        goes_on = partial(streams.is_read, sys.stdout)  # notice the end of `| head` before the next record
        ends = reader.ends()
        if start is None:
            newest = reader.newest(count or NEWEST, ends)
            shown: Iterable[Message] = chain(newest, reader.follow(ends, goes_on)) if follow else newest
        else:
            starts = _begin(start, reader, ends)
            shown = islice(reader.follow(starts, goes_on) if follow else reader.read(starts, ends), count)
        try:
            for m in shown:
                streams.echo(lines.show(m, reader.take_fate(m)), flush=follow)
            sys.stdout.flush()
        except BrokenPipeError:  # such as `| head`
            streams.discard(sys.stdout)
    if lines.shows_bytes:
        streams.echo("some records are not text: add --graph to decode them with its serdes", file=sys.stderr)


BEGINNING: Final = "beginning"
END: Final = "end"


def _start(text: str, *, follow: bool) -> str | _At:
    """Returns what `--from` means: BEGINNING, END, an offset or a time. Raises SettingsError."""
    if text == END and not follow:
        raise SettingsError("--from end waits for new records: add --follow, or leave --from out")
    if text in (BEGINNING, END):
        return text
    if text.isascii() and text.isdigit():
        return _At(offset=int(text))
    try:
        return _At(since=parse_time("--from", text, time.time()))
    except SettingsError:
        raise SettingsError(
            f"--from {text!r}: write beginning, end, an offset, a number with s, m, h or d, such as 1h, or a time such "
            "as 2026-05-01T12:00"
        ) from None


def _begin(start: str | _At, reader: Tail, ends: Positions) -> Positions:
    """Returns the offset in each partition from which records are read."""
    if start == END:
        return ends
    if isinstance(start, str):
        return reader.starts()
    return reader.starts(start.since) if start.offset is None else _offset(start.offset, reader.starts(), ends)


def _offset(offset: int, starts: Positions, ends: Positions) -> Positions:
    """Returns the offset to read from in each partition; warns on standard error if a partition does not have it."""
    found = dict[TopicPartition, int]()
    for tp, start in starts.items():
        if offset < start:
            streams.echo(f"{tp} begins at offset {start}: earlier records were deleted", file=sys.stderr)
        elif offset > ends[tp]:
            streams.echo(f"{tp} ends at offset {ends[tp]}", file=sys.stderr)
        found[tp] = max(offset, start)
    return found


def _input_lines() -> Iterable[bytes]:
    if sys.stdin.isatty():
        streams.echo('enter lines of JSON such as {"value": "text"}, then Ctrl-D:', file=sys.stderr)
    return sys.stdin.buffer


@contextmanager
def _opened(
    target: str | None, topic: str, bootstrap_servers: str | None, config: Path | None
) -> Iterator[tuple[Lines, Environment]]:
    """Yields the `Lines` of a topic, and the environment of its real cluster."""
    graph = None if target is None else load(target)
    settings = Settings.load(config, bootstrap_servers=bootstrap_servers)
    with open_environment(settings) as environment:
        yield Lines(topic, graph, environment.registry), environment
