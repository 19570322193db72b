"""`kstreams run` on a real broker: what workers print and log, as lines with their slot and as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kstreams_py import Settings
from tests.system.command import command
from tests.system.harness import Cluster, wait_until

GRAPH = """
import logging
import os
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
os.makedirs({place!r}, exist_ok=True)
open(f"{place}/{{os.getpid()}}", "w").close()

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    if {prints}: print("saw", value.decode(), "x" * 100)
    if value.startswith(b"bad"):
        raise KeyError("price")
    if value.endswith(b"-0"): logging.getLogger("shop").warning("the first: %s", value.decode())
    return value
"""

MakeSettings = Callable[..., Settings]


def write_graph(directory: Path, name: str, *, prints: bool) -> Path:
    file = directory / "graph.py"
    file.write_text(GRAPH.format(name=name, place=str(directory / "workers"), prints=prints))
    return file


def environment_of(settings: MakeSettings) -> dict[str, str]:
    return settings(drain_timeout_ms=60_000, session_timeout_ms=6_000, transaction_timeout_ms=5_000).as_environment()


@pytest.mark.long  # quick is the log of two workers in JSON, one of them killed
def test_prints_of_two_workers_one_of_them_killed_are_whole_lines_with_their_slot(
    tmp_path: Path, name: str, cluster: Cluster, settings: MakeSettings
) -> None:
    cluster.create(f"{name}.in", f"{name}.out", partitions=2)
    cluster.create(f"{name}.errors")
    first, second = ([f"{part}-{p}-{i}" for p in range(2) for i in range(500)] for part in ("a", "b"))
    file = write_graph(tmp_path, name, prints=True)
    with command(tmp_path, "run", file, "--workers", 2, environment=environment_of(settings)) as running:
        for slot in (0, 1):  # one that joins late would find nothing left to do
            running.await_text(rf"(?m)^\[{slot}\] .* copy: holds \S+\[\d\]$")
        cluster.write(f"{name}.in", [v.encode() for v in first if "-0-" in v], partition=0)
        cluster.write(f"{name}.in", [v.encode() for v in first if "-1-" in v], partition=1)
        wait_until(lambda: len(cluster.values(f"{name}.out")) >= 1_000, "the first outputs")
        supervisor = running.process.pid
        workers = [int(path.name) for path in (tmp_path / "workers").iterdir() if int(path.name) != supervisor]
        os.kill(workers[0], signal.SIGKILL)
        cluster.write(f"{name}.in", [v.encode() for v in second if "-0-" in v], partition=0)
        cluster.write(f"{name}.in", [v.encode() for v in second if "-1-" in v], partition=1)
        wait_until(lambda: len(cluster.values(f"{name}.out")) >= 2_000, "the outputs after the kill")
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    lines = running.text.splitlines()
    saw = [found for line in lines if (found := re.fullmatch(r"\[([01])\] saw (\S+) x{100}", line))]
    assert len(saw) == sum("saw" in line for line in lines), "each is whole and has its slot"
    assert {found[2] for found in saw} == {*first, *second}
    assert {found[1] for found in saw} == {"0", "1"}
    assert re.search(r"slot \d ended by SIGKILL: restarting it", running.text)


def count_letters(text: str) -> int:
    """How many dead letters the complete lines of a log write or count."""
    messages: list[str] = [json.loads(line)["message"] for line in text.split("\n")[:-1]]
    counted = [re.match(r"([\d,]+) more failed steps of processor copy in", message) for message in messages]
    written = sum(message.startswith("copy: dead letter: ") for message in messages)
    return written + sum(int(found[1].replace(",", "")) for found in counted if found)


@pytest.mark.long  # in the quick tier, test_folding.py has such lines
def test_json_log_of_two_workers_is_an_object_a_line_with_what_it_is_about(
    tmp_path: Path, name: str, cluster: Cluster, settings: MakeSettings
) -> None:
    cluster.create(f"{name}.in", f"{name}.out", partitions=2)
    cluster.create(f"{name}.errors")
    for partition in (0, 1):
        values = [f"{partition}-0".encode(), *(f"bad{i}".encode() for i in range(100))]
        cluster.write(f"{name}.in", values, partition=partition)
    file = write_graph(tmp_path, name, prints=False)
    options = ("--workers", 2, "--log-format", "json")
    with command(tmp_path, "run", file, *options, environment=environment_of(settings)) as running:
        wait_until(lambda: len(cluster.values(f"{name}.errors")) >= 200, "the dead letters")
        wait_until(lambda: count_letters(running.text) >= 200, "each dead letter is written or counted")
        workers = [int(p.name) for p in (tmp_path / "workers").iterdir() if int(p.name) != running.process.pid]
        os.kill(workers[0], signal.SIGKILL)
        running.await_text(r"restarting it")
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    records = [json.loads(line) for line in running.text.splitlines()]
    assert all({"timestamp", "level", "logger", "message"} <= record.keys() for record in records)
    (restart,) = [record for record in records if "restarting it" in record["message"]]
    assert (restart["level"], restart["slot"] in (0, 1), "graph" in restart) == ("WARNING", True, False)
    users = [record for record in records if record["logger"] == "shop"]
    about = {(record["graph"], record["processor"], record["slot"] in (0, 1)) for record in users}
    assert (about, {record["message"][-3:] for record in users}) == ({(name, "copy", True)}, {"0-0", "1-0"})
    letters = [record for record in records if record["message"].startswith("copy: dead letter: KeyError: 'price'")]
    assert {(r["level"], r["graph"], r["processor"]) for r in letters} == {("WARNING", name, "copy")}
    assert {r["partition"] for r in letters} <= {0, 1}
    assert all(re.search(r"`kstreams dead-letters list \S+\.py`", record["message"]) for record in letters)
