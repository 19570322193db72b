"""Peers as processes, over ZeroMQ and a log in Kafka: killed, frozen and joining, each row stored once."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from kstreams_py import Settings
from tests.system.app import SHORT
from tests.system.command import command, kstreams, list_children
from tests.system.harness import Cluster, wait_until
from tests.system.test_jobs import Shop

SILENT: Final = 8.0
"""Seconds of a freeze after which the others have found a peer silent."""


@pytest.mark.parametrize(
    ("kills", "freezes"), [(2, 1), pytest.param(12, 4, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_peers_killed_and_frozen_at_random_store_each_row_once(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings], kills: int, freezes: int
) -> None:
    del cluster  # its broker runs
    rows, environment = 1_500 * (kills + freezes), settings(**SHORT).as_environment()
    shop, chance = Shop(tmp_path, rows=rows, seconds=0.003), random.Random(kills)
    peers = ("peer", "--cluster", name, "--allow", shop.file, "--workers", 5)

    def run(*arguments: object) -> str:
        ended = kstreams(*arguments, "--cluster", name, environment=environment)
        assert (ended.status, ended.error_lines) == (0, []), ended
        return ended.out

    with command(tmp_path, *peers, environment=environment) as running:
        status = ("cluster", "status", "--cluster", name)
        wait_until(lambda: ": 5 peers," in kstreams(*status, environment=environment).out, "all have joined", pause=0.5)
        job = run("job", "submit", shop.file).strip()
        faults = [signal.SIGKILL] * kills + [signal.SIGSTOP] * freezes
        chance.shuffle(faults)
        for number, fault in enumerate(faults):
            wait_until(partial(shop.has_stored, rows * number // (2 * len(faults)) + 1), "rows are stored")
            peer = chance.choice(list_children(running.process.pid))
            with suppress(ProcessLookupError):
                os.kill(peer, fault)
            if fault is signal.SIGSTOP:
                time.sleep(SILENT)
                os.kill(peer, signal.SIGCONT)
        assert run("job", "wait", job) == f"{job} is completed\n"
        log = run("cluster", "log", "-n", "1000")
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    # every peer says of a silent one that it leaves
    ends = {reason: len(set(re.findall(rf"peer (\S+) leaves: {reason}", log))) for reason in ("died", "silent")}
    assert ends == {"died": kills, "silent": freezes}
    shop.check(rows)


HANGING: Final = """
import os
import time

import kstreams_py as ks
from kstreams_py import sinks, sources

graph = ks.Graph("orders")
rows = graph.source("rows", sources.SQLite({source!r}, table="orders", key="id", ends=True, lease=1.0))
parsed = graph.channel("parsed")


@graph.map(rows, to=parsed)
def parse(row):
    if row["id"] == 7 and not os.path.exists({hung!r}):
        open({hung!r}, "w").close()
        time.sleep(1_000)
    if row["id"] == 13:
        raise ValueError("no 13")
    return row


@graph.sink(parsed, to=sinks.SQLite({target!r}, table="stored", columns={{"id": int, "item": str}}))
def store(row):
    return row["id"], row["item"]
"""


def test_peer_whose_function_never_returns_is_named_and_replaced(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings]
) -> None:
    del cluster
    environment = settings(**SHORT, stuck_timeout_ms=2_000).as_environment()
    shop = Shop(tmp_path, rows=20)
    places = {"source": str(shop.source), "target": str(shop.target), "hung": str(tmp_path / "hung")}
    shop.file.write_text(HANGING.format(**places), encoding="utf-8")
    of_cluster = ("--cluster", name)
    with command(
        tmp_path, "peer", *of_cluster, "--allow", shop.file, "--workers", 3, environment=environment
    ) as running:
        status = ("cluster", "status", *of_cluster)
        wait_until(lambda: ": 3 peers," in kstreams(*status, environment=environment).out, "all have joined", pause=0.5)
        job = kstreams("job", "submit", shop.file, *of_cluster, environment=environment).out.strip()
        running.await_text(r"slot \d \(process \d+\) is stuck, for longer than stuck_timeout_ms")
        waited = kstreams("job", "wait", job, *of_cluster, environment=environment)
        assert (waited.status, waited.out) == (0, f"{job} is completed\n")
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    shop.check(20)
