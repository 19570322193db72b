"""`kstreams run --http` on a real broker: the sums of /metrics, and health as workers start, hang and end."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.running.pipe import REPORT_FD
from tests.system.command import command, kstreams
from tests.system.harness import Cluster, wait_until
from tests.system.site import Found, Site

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    if value == b"not good":
        raise ValueError("no")
    return value
"""

WAITING = """
import os, time

while {report!r} in os.environ and not os.path.exists({goes_on!r}):  # in a worker
    time.sleep(0.02)
"""


def create_topics(cluster: Cluster, name: str, partitions: int) -> None:
    cluster.create(f"{name}.in", f"{name}.out", partitions=partitions)
    cluster.create(f"{name}.errors")


@pytest.fixture
def graph(tmp_path: Path, name: str) -> Path:
    file = tmp_path / "copying_graph.py"
    file.write_text(GRAPH.format(name=name))
    return file


def test_metrics_agree_with_the_topics_and_health_follows_the_workers(
    graph: Path, name: str, cluster: Cluster, settings: Callable[..., Settings], tmp_path: Path
) -> None:
    create_topics(cluster, name, 4)
    goes_on = tmp_path / "goes_on"
    graph.write_text(graph.read_text() + WAITING.format(report=REPORT_FD, goes_on=str(goes_on)))
    environment = settings(livez_timeout_ms=5_000, session_timeout_ms=60_000).as_environment()
    with command(tmp_path, "run", graph, "--workers", 2, "--http", "127.0.0.1:0", environment=environment) as running:
        try:
            site = Site(running)
            status, text = site.get("/readyz")
        finally:
            goes_on.touch()
        assert (status, "starting" in text) == (503, True), "before the workers have started"
        site.await_page("/readyz", 200, "^ok$")
        wait_until(lambda: site.sums("partitions", "slot") == {("0",): 2, ("1",): 2}, "the partitions are shared")
        for partition in range(4):
            values = [b"%08d" % number for number in range(100)] + [b"not good"]
            cluster.write(f"{name}.in", values, partition=partition)
        wait_until(lambda: len(cluster.values(f"{name}.out")) == 400, "400 outputs")
        expected = {
            "records_in_total": 404, "records_out_total": 400, "dead_letters_total": 4, "bytes_in_total": 404 * 8,
            "step_seconds_count": 404,
        }  # fmt: skip
        wait_until(lambda: {each: site.sums(each)[()] for each in expected} == expected, "the sums of what was written")
        wait_until(lambda: site.sums("commit_seconds_count") == site.sums("commits_total"), "each commit has its time")
        wait_until(
            lambda: site.sums("lag_records", "topic", "partition") == {(f"{name}.in", str(p)): 0 for p in range(4)},
            "every partition is read",
        )
        assert site.sums("partitions") == {(): 4}
        shown = json.loads(site.get("/status")[1])
        assert (shown["live"], shown["ready"], shown["problems"]) == (True, True, [])
        assert {each["text"].partition(" (")[0] for each in shown["dead_letters"]} == {"ValueError: no"}

        stopped = site.slot(1)["process"]
        os.kill(stopped, signal.SIGSTOP)
        line = rf"(?m)^slot 1: its process \({stopped}\) has not reported since \S+Z \(\d+ s\)$"
        site.await_page("/livez", 503, line)
        os.kill(stopped, signal.SIGCONT)
        site.await_page("/livez", 200)
        site.await_page("/readyz", 200)

        os.kill(stopped, signal.SIGKILL)
        wait_until(lambda: site.sums("restarts_total", "slot") == {("0",): 0, ("1",): 1}, "slot 1 is restarted")
        site.await_page("/readyz", 200)
        site.await_page("/livez", 200, "^ok$")
        assert [end["why"] for end in site.slot(1)["ends"]] == ["SIGKILL"]
        assert site.sums("records_out_total") == {(): 400}, "the counts of the killed process are kept"
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text


def test_spare_slot_is_ready(
    graph: Path, name: str, cluster: Cluster, settings: Callable[..., Settings], tmp_path: Path
) -> None:
    create_topics(cluster, name, 1)
    environment = settings(session_timeout_ms=60_000).as_environment()
    http = ("--http", "127.0.0.1:0")
    with (
        command(tmp_path, "run", graph, "--slot", 0, environment=environment) as other,
        command(tmp_path, "run", graph, "--slot", 1, *http, environment=environment) as running,
    ):
        other.await_text("copy: holds")
        site = Site(running)
        site.await_page("/readyz", 200)
        wait_until(lambda: site.sums("worker_state", "state") == {("spare",): 1}, "the second is a spare")
        assert site.get("/readyz") == (200, "ok\n")
        what = "slot 1: copy has no partition: its inputs have fewer than it has workers"
        found = [Found("note", "spare", "copy", what)]  # at first also that the lag is not known yet
        wait_until(lambda: site.findings() == found, "the spare is the only finding")


def test_address_that_is_taken_ends_the_command_with_one_message(
    graph: Path, settings: Callable[..., Settings]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = kstreams("run", graph, environment={**settings().as_environment(), "KSTREAMS_HTTP": address})
    message = f"http: {address} cannot be served: Address already in use: choose another address with "
    message += "--http or KSTREAMS_HTTP"
    assert (done.status, done.error_lines) == (2, [f"error: SettingsError: {message}"])
