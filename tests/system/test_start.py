"""ks.start on a real broker: a graph that runs beside a program, in the program's process or in worker processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

import kstreams_py as ks
from tests.system.harness import Cluster, wait_until
from tests.waiting import WAIT

MakeSettings = Callable[..., ks.Settings]

GRAPH = """
import kstreams_py as ks

class Enough(Exception):
    pass

graph = ks.Graph({name!r}, errors="{name}.errors", stop_on=Enough)

@graph.map(graph.topic("{name}.in", partitions=2), to=graph.topic("{name}.out"))
def copy(value):
    if value == b"enough":
        raise Enough("no more")
    return value
"""


@pytest.fixture
def module(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module with the graph, as in a user's program."""
    file = tmp_path / f"graph_{name.replace('-', '_')}.py"
    file.write_text(GRAPH.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, found)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("workers", [1, 2], ids=["in this process", "in worker processes"])
def test_started_graph_runs_until_the_end_of_the_block(
    workers: int, module: ModuleType, cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    values = [b"%d" % number for number in range(20)]
    with ks.start(module.graph, workers=workers, settings=settings(), create_topics=True) as running:
        for partition in (0, 1):
            cluster.write(f"{name}.in", values, partition=partition)
        wait_until(lambda: len(cluster.values(f"{name}.out")) == 40, "all outputs")
        assert not running.wait(0.0)
    assert running.wait()
    assert Counter(cluster.values(f"{name}.out")) == Counter(values * 2)
    assert cluster.committed(f"{name}.copy", f"{name}.in") == {0: 20, 1: 20}


def test_graph_can_be_started_again_in_the_same_process(
    module: ModuleType, cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    def has_outputs(count: int) -> bool:
        return len(cluster.values(f"{name}.out")) == count

    for count in (1, 2, 3):
        with ks.start(module.graph, settings=settings(), create_topics=True):
            cluster.write(f"{name}.in", [b"%d" % count], partition=0)
            wait_until(partial(has_outputs, count), "the output")
    assert Counter(cluster.values(f"{name}.out")) == Counter([b"1", b"2", b"3"])


def test_exception_that_stops_a_graph_is_raised_at_the_end_of_the_block(
    module: ModuleType, cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    running = ks.start(module.graph, settings=settings(), create_topics=True)
    cluster.write(f"{name}.in", [b"1", b"enough", b"3"], partition=0)
    with pytest.raises(module.Enough, match="no more"), running:
        running.wait(WAIT)
    cluster.await_markers(f"{name}.out")
    assert cluster.values(f"{name}.out") == [b"1"]


FORKING = """
import logging, os, sys, time
import kstreams_py as ks
from graph_{name} import graph

logging.basicConfig(format="%(message)s")
with ks.start(graph, workers=int(sys.argv[1]), create_topics=True) as running:
    while not open(sys.argv[2]).read():
        time.sleep(0.01)
    for way in ("falls out of the block", "exits", "waits"):
        if (child := os.fork()) == 0:
            if way == "exits":
                sys.exit(0)
            if way == "waits":
                running.stop()
                assert running.wait()
            break
        assert (os.waitpid(child, 0)[1], running.wait(0.0)) == (0, False), way
    else:
        print("forked", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize(
    "workers",
    [pytest.param(1, id="in this process"), pytest.param(2, id="in worker processes", marks=pytest.mark.long)],
)
def test_child_that_a_program_forks_ends_and_leaves_its_graph_alone(
    workers: int, module: ModuleType, cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path
) -> None:
    (begun := tmp_path / "begun").touch()
    cluster.create(f"{name}.in", f"{name}.out", partitions=2)
    script = FORKING.format(name=name.replace("-", "_"))
    command = [sys.executable, "-c", script, str(workers), str(begun)]
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | settings().as_environment() | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    try:
        cluster.write(f"{name}.in", [b"1"], partition=0)
        wait_until(lambda: cluster.values(f"{name}.out") == [b"1"], "an output, so that all clients are open")
        begun.write_text("go")
        assert program.stdout is not None
        assert program.stdout.readline() == "forked\n", program.communicate()
        cluster.write(f"{name}.in", [b"2"], partition=0)
        wait_until(lambda: {*cluster.values(f"{name}.out")} == {b"1", b"2"}, "an output after the children")
        _, log = program.communicate()
    finally:
        program.kill()
    assert program.returncode == 0, log
    said = f" is a fork of {program.pid}, where the workers run: they are left alone\n"
    assert [each.partition(" is ")[2] for each in log.splitlines() if " is a fork of " in each] == [
        said.partition(" is ")[2].rstrip()
    ] * 5


@pytest.mark.long  # in the quick tier, tests of the supervisor alone have programs that die in the place of workers
def test_failure_of_worker_processes_is_raised_at_the_end_of_the_block(
    module: ModuleType, cluster: Cluster, settings: MakeSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstreams_py.running.supervised.RESTARTS_MAX", 1)
    running = ks.start(module.graph, workers=2, settings=settings(), create_topics=True)
    cluster.write(f"{name}.in", [b"enough"], partition=0)
    with pytest.raises(ks.WorkersFailed, match="died 2 times in a row, at last by status 1"), running:
        running.wait(WAIT)


def test_start_of_a_graph_whose_topics_are_missing_is_refused(module: ModuleType, settings: MakeSettings) -> None:
    for workers in (1, 2):
        with pytest.raises(ks.TopicError, match="missing topics"):
            ks.start(module.graph, workers=workers, settings=settings())
