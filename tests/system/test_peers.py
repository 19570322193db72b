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

import pytest

from kstreams_py import Settings
from tests.system.app import SHORT
from tests.system.command import command, kstreams, list_children
from tests.system.harness import Cluster, wait_until
from tests.system.test_jobs import Shop

SILENT = 8.0
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
