"""A job of real processes over HTTP: workers killed while clients wait, who send again with their keys."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from kstreams_py.embedded.nodes import free_ports
from tests.system.command import command, kstreams, list_children
from tests.system.harness import wait_until

NO_BROKER: Final = {"KSTREAMS_BOOTSTRAP_SERVERS": "127.0.0.1:1"}

GRAPH: Final = """
import time

import kstreams_py as ks
from kstreams_py import sinks, sources

graph = ks.Graph("orders")
orders = graph.source("orders", sources.HTTP(port={port}, path="/orders"))
parsed = graph.channel("parsed")


@graph.map(orders, to=parsed)
def parse(order):
    time.sleep({seconds})
    return order


@graph.sink(parsed, to=sinks.SQLite({target!r}, table="stored", columns={{"id": int, "item": str}}))
def store(order):
    return order["id"], order["item"]
"""


class Orders:
    """A graph that stores what clients send, and the clients."""

    def __init__(self, directory: Path, seconds: float = 0.0) -> None:
        self.file, self.target = directory / "orders.py", directory / "target.db"
        (self.port,) = free_ports([None])
        text = GRAPH.format(port=self.port, seconds=seconds, target=str(self.target))
        self.file.write_text(text, encoding="utf-8")

    def send(self, number: int) -> int:
        """Sends an order; returns the status code, 0 if there is no answer."""
        body = json.dumps({"id": number, "item": f"item {number}"})
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"order-{number}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)) as connection:
            try:
                connection.request("POST", "/orders", body, headers)
                return connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return 0

    def send_until_done(self, number: int) -> list[int]:
        """Sends an order until it is done; returns all status codes."""
        codes = [self.send(number)]
        while codes[-1] != 200:
            time.sleep(0.02)
            codes.append(self.send(number))
        return codes

    def rows(self) -> list[tuple[int, str]]:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.target, timeout=10.0)) as connection:
            return connection.execute("SELECT id, item FROM stored ORDER BY id").fetchall()
        return []  # the table is not there yet

    def has_stored(self, least: int) -> bool:
        return len(self.rows()) >= least


def kill_worker(supervisor: int) -> None:
    wait_until(lambda: list_children(supervisor), "a worker runs")
    with suppress(ProcessLookupError):
        os.kill(list_children(supervisor)[0], signal.SIGKILL)


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.long)])
def test_requests_that_are_sent_again_after_kills_are_stored_once(tmp_path: Path, kills: int) -> None:
    orders, count = Orders(tmp_path, seconds=0.002), 300 * kills
    expected = [(each, f"item {each}") for each in range(count)]
    with command(tmp_path, "run", orders.file, environment=NO_BROKER) as running, ThreadPoolExecutor(16) as clients:
        sent = [clients.submit(orders.send_until_done, each) for each in range(count)]
        for number in range(kills):
            wait_until(partial(orders.has_stored, 300 * number + 100), "rows are stored")
            kill_worker(running.process.pid)
        codes = {code for each in sent for code in each.result()}
        assert (orders.rows(), codes - {503}) == (expected, {0, 200}), running.text
        kill_worker(running.process.pid)  # the next one remembers no key
        for each in clients.map(orders.send_until_done, range(count)):
            assert each[-1] == 200
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    assert orders.rows() == expected


def test_run_that_is_stopped_answers_those_who_wait_and_ends(tmp_path: Path) -> None:
    orders = Orders(tmp_path, seconds=0.05)
    with command(tmp_path, "run", orders.file, environment=NO_BROKER) as running, ThreadPoolExecutor(32) as clients:
        assert orders.send_until_done(0)[-1] == 200
        sent = [clients.submit(orders.send, each) for each in range(1, 200)]
        wait_until(partial(orders.has_stored, 3), "rows are stored")
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
        answers = [each.result() for each in sent]
    done = [number for number, code in enumerate([200, *answers]) if code == 200]
    assert {*answers} == {0, 200, 503}  # 0: those that were sent after the end
    assert {*done} <= {number for number, _ in orders.rows()}


def test_two_workers_for_one_port_are_refused_with_the_remedy(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    ended = kstreams("run", orders.file, "--workers", 2, environment=NO_BROKER)
    assert ended.status == 2
    assert f"port {orders.port} is in use: end the program" in ended.err
    assert "--workers 1" in ended.err
