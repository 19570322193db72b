"""Channels and topics on a real broker: one graph over both, workers killed at random, equal results."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from kstreams_py import Settings
from kstreams_py.sources.suspects import REASON
from tests.system.app import SHORT
from tests.system.command import command, kstreams, list_children
from tests.system.harness import Cluster, wait_until
from tests.system.site import Site

GRAPH: Final = """
import kstreams_py as ks
from kstreams_py import sinks, sources

def parse(order):
    if order["id"] % 50 == 7:
        raise ValueError(order["id"])
    return {{**order, "total": order["price"] * order["count"]}}

def price(order):
    return {{"id": order["id"], "total": order["total"] * 2}}

def store(order):
    return order["id"], order["total"]

def declare(name, between, target):
    graph = ks.Graph(name, value=ks.Json(), errors=name + ".errors")
    parsed, priced = between(graph, "parsed"), between(graph, "priced")
    graph.map(graph.topic("{name}.in"), to=parsed)(parse)
    graph.map(parsed, to=priced)(price)
    graph.sink(priced, to=sinks.SQLite(target, table="stored", columns=["id", "total"]))(store)
    return graph

over_topics = declare("{name}-t", lambda graph, name: graph.topic("{name}." + name), {directory!r} + "/topics.db")
over_channels = declare("{name}-c", lambda graph, name: graph.channel(name), {directory!r} + "/channels.db")

mixed = ks.Graph("{name}-m", value=ks.Json(), errors="{name}-m.errors")
rows = mixed.source("rows", sources.SQLite({directory!r} + "/orders.db", table="orders", key="id", lease=1.0))
orders, doubled = mixed.topic("{name}.orders", key=ks.String()), mixed.topic("{name}.doubled", key=ks.String())

@mixed.map(rows, to=orders)
def publish(row):
    return ks.Out(row, key=str(row["id"]))

@mixed.map(orders, to=doubled)
def double(order):
    return {{**order, "count": order["count"] * 2}}
"""

DEADLY: Final = """
import os
import signal
import time

import kstreams_py as ks

graph = ks.Graph("{name}", value=ks.Json(), errors="{name}.errors")
parsed = graph.channel("parsed")

@graph.map(graph.topic("{name}.in"), to=parsed)
def parse(value):
    while os.path.exists({hold!r}):
        time.sleep(0.05)
    if value == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return value

graph.map(parsed, to=graph.topic("{name}.out"), id="write")(lambda value: value)
"""

RECORDS: Final = 600

BAD: Final = [number for number in range(RECORDS) if number % 50 == 7]


def order(number: int) -> dict[str, int]:
    return {"id": number, "price": number % 13, "count": number % 5}


def kill_worker(supervisor: int, worker: int) -> None:
    """Kills a worker, and waits until its supervisor has seen that: it must not take it for a worker that drains."""
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in list_children(supervisor), "the supervisor has collected the worker")


def has_stored(path: Path, least: int) -> bool:
    return len(stored(path)) >= least


def stored(path: Path) -> list[tuple[int, int]]:
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=10.0)) as connection:
        return sorted(connection.execute("SELECT id, total FROM stored"))
    return []


def has_letters(cluster: Cluster, topic: str) -> bool:
    return len({dict(m.headers())["ks-hash"] for m in cluster.read(topic)}) == len(BAD)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_same_functions_over_topics_and_channels_store_equal_rows(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings], kills: int
) -> None:
    file, chance, environment = tmp_path / "orders.py", random.Random(kills), settings(**SHORT).as_environment()
    file.write_text(GRAPH.format(name=name, directory=str(tmp_path)))
    cluster.create(f"{name}.in", partitions=4)
    for graph, table in (("over_topics", "topics.db"), ("over_channels", "channels.db")):
        options = ("--create-topics", "--workers", 2)
        with command(tmp_path, "run", f"{file}:{graph}", *options, environment=environment) as run:
            for number in range(kills):
                part = [order(n) for n in range(number * RECORDS // kills, (number + 1) * RECORDS // kills)]
                if graph == "over_topics":
                    values: list[bytes | None] = [json.dumps(each).encode() for each in part]
                    cluster.write(f"{name}.in", values, keys=values)
                least = (number * RECORDS + chance.randrange(RECORDS)) // kills - len(BAD)
                wait_until(partial(has_stored, tmp_path / table, least), "rows are stored")
                if workers := list_children(run.process.pid):
                    kill_worker(run.process.pid, chance.choice(workers))
            wait_until(partial(has_stored, tmp_path / table, RECORDS - len(BAD)), "all rows are stored")
            # a worker may have died between the rows and the dead letters of its records
            wait_until(partial(has_letters, cluster, f"{name}-{graph[5]}.errors"), "all dead letters are written")
            run.send(signal.SIGTERM)
            assert run.wait() == 0, run.text
    expected = [(n, order(n)["price"] * order(n)["count"] * 2) for n in range(RECORDS) if n not in BAD]
    assert stored(tmp_path / "topics.db") == stored(tmp_path / "channels.db") == expected
    for graph in ("t", "c"):
        letters = cluster.read(f"{name}-{graph}.errors")
        assert {dict(m.headers())["ks-proc"] for m in letters} == {f"{name}-{graph}.parse".encode()}
    of_tasks = f"{file}:over_channels"
    listed = kstreams("dead-letters", "list", of_tasks, "--json", environment=environment)
    found = [json.loads(line) for line in listed.out.splitlines()]
    assert (listed.status, {each["processor"] for each in found}) == (0, {f"{name}-c.parse"})
    replayed = kstreams("dead-letters", "replay", of_tasks, "--processor", "parse", environment=environment)
    why = "task 'parse' has no transaction for it and its mark: send its record again by `kstreams tail"
    assert (replayed.status, why in replayed.out) == (1, True), replayed


def test_rows_of_a_table_go_to_a_topic_which_a_processor_of_the_same_graph_reads(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings]
) -> None:
    file, environment = tmp_path / "orders.py", settings(**SHORT).as_environment()
    file.write_text(GRAPH.format(name=name, directory=str(tmp_path)))
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price INTEGER, count INTEGER)")
        connection.executemany("INSERT INTO orders VALUES (:id, :price, :count)", map(order, range(RECORDS)))

    def is_there(topic: str) -> bool:
        return len({m.key() for m in cluster.read(topic)}) == RECORDS

    cluster.create(f"{name}.orders", f"{name}.doubled", partitions=2)
    with command(tmp_path, "run", f"{file}:mixed", "--create-topics", "--workers", 2, environment=environment) as run:
        wait_until(partial(is_there, f"{name}.doubled"), "all rows are doubled")
        run.send(signal.SIGTERM)
        assert run.wait() == 0, run.text
    published = cluster.read(f"{name}.orders")
    hashes = {m.key(): dict(m.headers())["ks-hash"] for m in published}
    assert Counter(json.loads(m.value())["id"] for m in published) == Counter(range(RECORDS))
    assert len({*hashes.values()}) == RECORDS
    doubled = {json.loads(m.value())["id"]: json.loads(m.value())["count"] for m in cluster.read(f"{name}.doubled")}
    assert doubled == {n: order(n)["count"] * 2 for n in range(RECORDS)}


def test_lag_and_group_of_tasks_are_shown_and_a_record_that_kills_becomes_a_letter(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings]
) -> None:
    file, hold, topic, group = tmp_path / "deadly.py", tmp_path / "hold", f"{name}.in", f"{name}.{name}.in"
    traced = {"KSTREAMS_TRACING": "true", "OTEL_TRACES_EXPORTER": "none"}
    environment = {**settings(**SHORT).as_environment(), "KSTREAMS_HTTP": "127.0.0.1:0", **traced}
    file.write_text(DEADLY.format(name=name, hold=str(hold)))
    hold.touch()
    cluster.create(topic)
    began = {"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    cluster.write(topic, [str(number).encode() for number in range(10)], headers=began)
    with command(tmp_path, "run", file, "--create-topics", environment=environment) as run:
        site = Site(run)
        wait_until(lambda: site.sums("lag_records", "processor", "topic") == {("parse", topic): 10.0}, "it lags")
        shown = {each["processor"]: (each["lag"], each["partitions"]) for each in site.slot(0)["workers"]}
        assert shown == {"parse": (10, [{"topic": topic, "partition": 0, "lag": 10}]), "write": (0, [])}
        hold.unlink()
        others = {str(number).encode() for number in range(10) if number != 4}
        # the record kills five times: to read the topic all that time would take a core
        wait_until(
            lambda: {m.value() for m in cluster.read(f"{name}.out")} == others, "the others are written", pause=1
        )
        of_trace = {dict(m.headers())["traceparent"][:35] for m in cluster.read(f"{name}.out")}
        assert of_trace == {began["traceparent"][:35]}
        wait_until(lambda: site.sums("lag_records", "topic") == {(topic,): 0.0}, "it has caught up")
        run.send(signal.SIGTERM)
        assert run.wait() == 0, run.text
    listed = kstreams("dead-letters", "list", file, "--json", environment=environment)
    (letters,) = map(json.loads, listed.out.splitlines())
    assert (letters["processor"], letters["message"]) == (f"{name}.parse", REASON)
    cluster.write(topic, [b"11"])
    cluster.delete_records(topic)
    wait_until(lambda: not cluster.members(group), "its session has timed out")
    doctor = kstreams("doctor", file, "--json", environment=environment)
    found = {each["kind"]: each for each in map(json.loads, doctor.out.splitlines())}
    assert (found["stopped"]["subject"], found["input_lost"]["subject"]) == (group, f"parse: {topic}[0]")
    assert f"--group {group} --topic {topic}:0 --to-offset 11" in found["input_lost"]["remedy"]
    stands = kstreams("recover", "status", file, environment=environment)
    assert (stands.status, "parse[0]: committed" in stands.out, "ends with InputLost" in stands.out) == (1, True, True)
    with command(tmp_path, "run", file, environment=environment) as run:
        assert run.wait() == 5, run.text
    assert "kafka-consumer-groups.sh --reset-offsets" in run.text
