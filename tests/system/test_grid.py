"""The grid of crash points on a real broker: real processes die by SIGKILL at each point (tests/crash_grid.py).

The quick tier has each kind, each branch of a recovery and each start that dies once: which branch a point leads to is
decided in memory (tests/simulation/test_grid.py), and a real broker can only differ in what a branch reads and writes.
The long tier has cells in which each two factors meet, and all cells. Between two clusters, outputs and dead letters
are on a second broker.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import kstreams_py as ks
from tests.crash_grid import KINDS
from tests.system.harness import Cluster
from tests.system.kafka_grid import EARLIER, STARTS, Cell, cover_branches, cover_pairs, grid, run_cells, whole_grid

JOURNAL: Final = ks.Journal(1)

SAMPLE: Final = cover_pairs([*grid(None), *grid(JOURNAL)])

BETWEEN_CLUSTERS: Final = [
    cell
    for cell in whole_grid(JOURNAL, "other")
    if (cell.case.kind, cell.case.does) in (("map", "output"), ("alts-sink", "raise"))
    and (cell.case.errors, cell.earlier, cell.start) == (True, (), "")
    and cell.point in ("CP15", "CP16", "CP17", "CP29", "CP30")
]

FEW: Final = cover_branches([*grid(None), *grid(JOURNAL), *BETWEEN_CLUSTERS])

RunCells = Callable[[list[Cell]], int]


@pytest.fixture
def run(cluster: Cluster, elsewhere: Any, name: str, tmp_path: Path) -> RunCells:
    other = Cluster(elsewhere.bootstrap_servers)
    settings = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "schema_directory": str(tmp_path / "schemas"),
        "clusters": {"other": {"bootstrap_servers": other.bootstrap_servers}},
    }
    return lambda cells: run_cells(cells, name, {"": cluster, "other": other}, settings, tmp_path)


def test_sample_of_the_grid_has_all_kinds_points_attempts_and_starts() -> None:
    assert {cell.case.kind for cell in SAMPLE} == {*KINDS}
    assert {cell.earlier for cell in SAMPLE} == {*EARLIER}
    assert {cell.start for cell in SAMPLE} == {"", *STARTS}
    assert {cell.point for cell in SAMPLE} == {cell.point for cell in grid(JOURNAL)}


def test_exactly_once_process_killed_on_the_way_to_each_branch_delivers_once(run: RunCells) -> None:
    assert run(FEW) == len(FEW)


@pytest.mark.long
@pytest.mark.parametrize("part", [0, 1])
def test_exactly_once_process_killed_at_a_point_of_the_sample_delivers_once(part: int, run: RunCells) -> None:
    cells = [cell for cell in SAMPLE if (cell.case.journal is None) == part]
    assert run(cells) == len(cells)


@pytest.mark.long
def test_exactly_once_process_killed_between_two_clusters_delivers_once(run: RunCells) -> None:
    assert run(BETWEEN_CLUSTERS) == 10


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("journal", "cluster_of_outputs"),
    [(JOURNAL, ""), (None, ""), (JOURNAL, "other")],
    ids=["journal", "transaction", "two clusters"],
)
def test_exactly_once_process_killed_at_any_point_delivers_once_by_the_branch_named(
    journal: ks.Journal | None, cluster_of_outputs: str, kind: str, run: RunCells
) -> None:
    cells = [cell for cell in whole_grid(journal, cluster_of_outputs) if cell.case.kind == kind]
    assert run(cells) == len(cells)
