"""Pipelines on executors that are processes of their own: these are killed in the middle of runs, and drivers too."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import pytest

from bench.servers import Server
from tests.system.harness import Cluster
from tests.system.shop import Driver, Shop, list_offspring

MASTER: Final = "local-cluster[2,1,1024]"
"""Two workers with a core and 1024 MB each."""


@pytest.fixture
def shop(cluster: Cluster, name: str, tmp_path: Path, postgresql: Server) -> Shop:
    return Shop(cluster, None, name, tmp_path, postgresql)


def kill_executor(shop: Shop, running: Driver, gate: str, *, is_busy: bool) -> None:
    """Kills an executor while a task of the run waits at the gate: the one that runs this task, or the other one."""
    executors = running.await_executors()
    task = shop.await_task(gate)
    (busy,) = [pid for pid in executors if task in list_offspring(pid)]
    os.kill(busy if is_busy else sum(executors) - busy, signal.SIGKILL)


FEW: Final = [("added", "first", True), ("totals", "last", True)]
TEN: Final = [
    ("totals", "first", True),
    ("totals", "last", True),
    ("totals", "last", False),
    ("added", "first", True),
    ("latest", "first", True),
    ("latest", "last", False),
    ("added_rows", "first", True),
    ("latest_rows", "last", True),
    ("totals_rows", "first", True),
    ("totals_rows", "last", False),
]
"""Executors to kill: in which pipeline, at which gate, and whether it is the one whose task waits there."""


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(FEW, id="two"),
        pytest.param(TEN, id="ten", marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_executor_killed_in_the_middle_of_a_run_changes_no_row(shop: Shop, kills: list[tuple[str, str, bool]]) -> None:
    with shop.driver(MASTER) as running:
        for number, (pipeline_id, gate, is_busy) in enumerate(kills):
            shop.write("orders:pen", f"orders:{number}", "returns:pen")
            running.run(pipeline_id)
            assert shop.rows(pipeline_id) == shop.model(pipeline_id)
            shop.write("orders:pen", "orders:ink", "returns:ink")
            with shop.gate(gate):
                running.begin(pipeline_id)
                kill_executor(shop, running, gate, is_busy=is_busy)
            assert running.result() != [None]
            assert shop.rows(pipeline_id) == shop.model(pipeline_id), (pipeline_id, gate)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("pipeline_id", "points"),
    [
        ("totals", {"staged": 0, "before-publish": 0, "after-publish": 1}),
        ("latest", {"staged": 0, "before-publish": 0, "after-publish": 1}),
        ("added_rows", {"copied": 0, "before-commit": 0, "after-commit": 1}),
    ],
)
def test_driver_of_executors_killed_at_each_point_gives_each_record_its_effect_once(
    shop: Shop, pipeline_id: str, points: dict[str, int]
) -> None:
    """Its executors end by themselves: `run_and_die` waits for that."""
    shop.write("orders:pen", "returns:pen")
    with shop.driver(MASTER) as running:
        running.run(pipeline_id)
    table = shop.model(pipeline_id)
    for number, (point, is_published) in enumerate(points.items()):
        shop.write(f"orders:{number}", "orders:ink", "returns:ink")
        shop.run_and_die(pipeline_id, point, MASTER)
        table = shop.model(pipeline_id) if is_published else table
        assert shop.rows(pipeline_id) == table, point
    shop.write("orders:cup")
    with shop.driver(MASTER) as running:
        running.run(pipeline_id)
    assert shop.rows(pipeline_id) == shop.model(pipeline_id)
