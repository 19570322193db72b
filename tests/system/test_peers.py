"""Peers as processes, over ZeroMQ and a log in Kafka: killed, frozen and joining, each row stored once."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from kstreams_py import Settings
from kstreams_py.graph.loading import load
from kstreams_py.jobs.cluster.commands import JobId
from kstreams_py.jobs.cluster.kafka_log import read_replica
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.operations.clusters import submit_job
from tests.system.app import SHORT
from tests.system.command import RunningCommand, command, kstreams, list_children
from tests.system.harness import Cluster, wait_until
from tests.system.site import Site
from tests.system.test_jobs import Shop

SILENT: Final = 8.0
"""Seconds of a freeze after which the others have found a peer silent."""

WAITS: Final = "more  waiting: 30 % of 5 peers are 1, and it has 3 tasks: start 4 more peers"


@pytest.mark.parametrize(
    ("kills", "freezes"), [(2, 1), pytest.param(12, 4, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_peers_killed_and_frozen_at_random_store_each_row_once(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings], kills: int, freezes: int
) -> None:
    del cluster  # its broker runs
    found = settings(**SHORT)
    rows, environment, kafka = 1_500 * (kills + freezes), found.as_environment(), KafkaCluster(found)
    shop, chance = Shop(tmp_path, rows=rows, seconds=0.003), random.Random(kills)
    peers = ("peer", "--cluster", name, "--allow", shop.file, "--workers", 5, "--scheduler", "percentage")

    def run(*arguments: object, status: int = 0) -> str:
        ended = kstreams(*arguments, "--cluster", name, environment=environment)
        assert (ended.status, ended.error_lines) == (status, []), ended
        return ended.out

    with command(tmp_path, *peers, environment=environment) as running:
        status = ("cluster", "status", "--cluster", name)
        wait_until(lambda: ": 5 peers," in kstreams(*status, environment=environment).out, "all have joined", pause=0.5)
        job = run("job", "submit", shop.file, "--percentage", 70, "--name", "all").strip()
        wait_until(partial(shop.has_stored, 1), "a row is stored")
        assert run("job", "submit", shop.file, "--percentage", 30, "--name", "more") == "more\n"
        assert run("job", "list").splitlines() == ["all  running, 5 peers", WAITS]
        assert run("job", "wait", "more", "--timeout", 0, status=1) == "more is still waiting\n"
        assert run("job", "kill", "more") == "more is killed\n"
        head, *tasks = run("job", "show", job).splitlines()
        assert re.fullmatch(r"all  graph orders \(\w+\): running, epoch \d+", head)
        assert [each.split()[0] for each in tasks] == ["read-rows", "parse", "store"]
        faults = [signal.SIGKILL] * kills + [signal.SIGSTOP] * freezes
        chance.shuffle(faults)

        def members() -> list[int]:
            """The processes that have joined: one that dies before says nothing, and nobody says that it leaves."""
            joined = {member.host.rpartition(" ")[2] for member in read_replica(kafka, name).peers.values()}
            return [pid for pid in list_children(running.process.pid) if str(pid) in joined]

        def find_ends() -> dict[str, int]:
            """How many peers have left for each reason; every peer says of a silent one that it leaves."""
            log = run("cluster", "log", "-n", "1000")
            return {reason: len({*re.findall(rf"peer (\S+) leaves: {reason}", log)}) for reason in ("died", "silent")}

        for number, fault in enumerate(faults):
            wait_until(partial(shop.has_stored, rows * number // (2 * len(faults)) + 1), "rows are stored")
            wait_until(members, "a peer is a member")
            peer = chance.choice(members())
            os.kill(peer, fault)
            if fault is signal.SIGSTOP:
                time.sleep(SILENT)
                os.kill(peer, signal.SIGCONT)
        assert run("job", "wait", job) == f"{job} is completed\n"
        wait_until(lambda: find_ends() == {"died": kills, "silent": freezes}, "the log says who has left", pause=0.5)
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    kafka.close()
    shop.check(rows)


@contextmanager
def job_on_peers(
    shop: Shop, name: str, environment: Mapping[str, str], peers: int
) -> Iterator[tuple[RunningCommand, str]]:
    """Yields peers with a job of the shop, and its id. After the block, SIGTERM ends them."""
    of_cluster = ("--cluster", name)
    run = ("peer", *of_cluster, "--allow", shop.file, "--workers", peers)
    with command(shop.file.parent, *run, environment=environment) as running:
        status, joined = ("cluster", "status", *of_cluster), f": {peers} peers,"
        wait_until(lambda: joined in kstreams(*status, environment=environment).out, "all have joined", pause=0.5)
        yield running, kstreams("job", "submit", shop.file, *of_cluster, environment=environment).out.strip()
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text


def await_completion(job: str, name: str, environment: Mapping[str, str]) -> None:
    waited = kstreams("job", "wait", job, "--cluster", name, environment=environment)
    assert (waited.status, waited.out) == (0, f"{job} is completed\n")


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
    with job_on_peers(shop, name, environment, 3) as (running, job):
        running.await_text(r"slot \d \(process \d+\) is stuck, for longer than stuck_timeout_ms")
        await_completion(job, name, environment)
    shop.check(20)


APART: Final = """
from pathlib import Path

from kstreams_py.jobs.messengers.zmq import ZmqMessenger

send = ZmqMessenger.send


def send_unless_apart(messenger, peer, frame):
    apart = Path({apart!r})
    is_lost = apart.exists() and {{peer, messenger._settings.peer}} == {{*apart.read_text().split()}}
    return is_lost or send(messenger, peer, frame)


ZmqMessenger.send = send_unless_apart
"""
"""Loses what two peers send each other, as their network would."""


@pytest.mark.long
@pytest.mark.parametrize("ends", [("read-rows", "parse"), ("parse", "store")], ids="-".join)
def test_peers_go_around_two_that_reach_kafka_and_not_each_other(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings], ends: tuple[str, str]
) -> None:
    del cluster
    found, rows, apart = settings(**SHORT), 1_000, tmp_path / "apart"
    environment, kafka = found.as_environment(), KafkaCluster(found)
    shop = Shop(tmp_path, rows=rows, seconds=0.02)
    shop.file.write_text(APART.format(apart=str(apart)) + shop.file.read_text(encoding="utf-8"), encoding="utf-8")
    with job_on_peers(shop, name, environment, 6) as (running, job):
        wait_until(partial(shop.has_stored, 100), "rows are stored")
        replica = read_replica(kafka, name)
        apart.write_text(" ".join(replica.peers_of(JobId(job), end)[-1] for end in ends), encoding="utf-8")
        running.await_text(r"peer \S+ at \S+ does not answer, .*: repair the network between the two")
        await_completion(job, name, environment)
        apart.unlink()
    kafka.close()
    shop.check(rows)


def test_page_of_peers_shows_that_a_job_moves_when_a_peer_is_killed(
    cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings]
) -> None:
    del cluster
    found = settings(**SHORT, http="127.0.0.1:0")
    environment, kafka = found.as_environment(), KafkaCluster(found)
    shop = Shop(tmp_path, rows=50, ends=False)
    peer = ("peer", "--cluster", name, "--allow", shop.file)
    with (
        command(tmp_path, *peer, "--workers", 2, environment=environment) as supervised,
        command(tmp_path, *peer, environment=environment) as alone,
    ):
        sites = Site(supervised), Site(alone)

        def seen(site: Site) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(site.get("/status")[1])["cluster"] or {"peers": [], "jobs": []}
            return found

        def covered(site: Site) -> dict[str, list[str]]:
            """The peers of each task of the job, if it runs."""
            jobs = [each for each in seen(site)["jobs"] if each["phase"] == "running"]
            return {task["task"]: task["peers"] for job in jobs for task in job["tasks"]}

        def has_peers(site: Site, count: int) -> bool:
            return len(seen(site)["peers"]) == count

        def runs_without(site: Site, peer: str) -> bool:
            return bool(found := covered(site)) and peer not in str(found)

        for site in sites:
            wait_until(partial(has_peers, site, 3), "the page shows three peers", pause=0.3)
            site.await_page("/readyz", 200)
        submit_job(kafka, name, load(str(shop.file)), None)
        wait_until(lambda: shop.has_stored(49), "the rows are stored", pause=0.3)
        tasks = ["read-rows", "parse", "store"]
        wait_until(lambda: [*covered(sites[0])] == tasks, "the page shows the job", pause=0.3)
        ours = [each for each in seen(sites[0])["peers"] if each["slot"] is not None]
        slots = {slot["slot"]: slot["process"] for slot in json.loads(sites[0].get("/status")[1])["slots"]}
        dead = next(each for each in ours if each["task"] != "read-rows")
        os.kill(slots[dead["slot"]], signal.SIGKILL)
        for site in sites:
            wait_until(partial(runs_without, site, dead["peer"]), "other peers run the job", pause=0.3)
            (job,) = seen(site)["jobs"]
            assert (job["why"], job["deaths"], seen(site)["left"]) == (None, 1, {"ended": 0, "died": 1, "silent": 0})
            assert site.sums("peers") == {(): 3.0}
            assert site.sums("departed_peers_total", "reason")[("died",)] == 1.0
            assert site.sums("tasks_without_peer", "job") == {(job["job"],): 0.0}
        shop.insert(range(50, 90))
        wait_until(lambda: shop.has_stored(89), "the new rows are stored")

        def count_done() -> float:
            return sum(site.sums("done_inputs_total", "source").get(("orders.rows",), 0.0) for site in sites)

        wait_until(lambda: count_done() == 89.0, "each input is counted once", pause=0.3)
        for running in (alone, supervised):
            running.send(signal.SIGTERM)
            assert running.wait() == 0, running.text
    kafka.close()
