"""The grid of crash points on a real broker: real processes die by SIGKILL at each point (tests/crash_grid.py).

The quick tier has each kind, each branch of a recovery and each start that dies once: which branch a point leads to is
decided in memory (tests/simulation/test_grid.py), and a real broker can only differ in what a branch reads and writes.
The long tier has cells in which each two factors meet, and all cells. Between two clusters, outputs and dead letters
are on a second broker; of these, the quick tier has own_broker/test_two_clusters.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import kstreams_py as ks
from tests.crash_grid import KINDS
from tests.system.harness import Cluster
from tests.system.kafka_grid import EARLIER, STARTS, Cell, cover_branches, cover_pairs, grid, run_cells, whole_grid

JOURNAL: Final = ks.Journal(1)

BETWEEN_CLUSTERS: Final = [
    cell
    for cell in whole_grid(JOURNAL, "other")
    if (cell.case.kind, cell.case.does) in (("map", "output"), ("alts-sink", "raise"))
    and (cell.case.errors, cell.earlier, cell.start) == (True, (), "")
    and cell.point in ("CP15", "CP16", "CP17", "CP29", "CP30")
]

RunCells = Callable[[list[Cell]], int]


@cache
def sample() -> list[Cell]:
    """Made when it is asked for: each pytest worker imports this file, and one of them runs it."""
    return cover_pairs([*grid(None), *grid(JOURNAL)])


@pytest.fixture
def run(request: pytest.FixtureRequest, cluster: Cluster, name: str, tmp_path: Path) -> RunCells:
    """Runs cells; starts the second broker if one of them needs it."""

    def run_these(cells: list[Cell]) -> int:
        others = {
            each: Cluster(request.getfixturevalue("elsewhere").bootstrap_servers)
            for each in {cell.case.cluster for cell in cells} - {""}
        }
        settings = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "schema_directory": str(tmp_path / "schemas"),
            "clusters": {name: {"bootstrap_servers": other.bootstrap_servers} for name, other in others.items()},
        }
        return run_cells(cells, name, {"": cluster, **others}, settings, tmp_path)

    return run_these


@pytest.mark.long  # as the sample
def test_sample_of_the_grid_has_all_kinds_points_attempts_and_starts() -> None:
    assert {cell.case.kind for cell in sample()} == {*KINDS}
    assert {cell.earlier for cell in sample()} == {*EARLIER}
    assert {cell.start for cell in sample()} == {"", *STARTS}
    assert {cell.point for cell in sample()} == {cell.point for cell in grid(JOURNAL)}


def test_exactly_once_process_killed_on_the_way_to_each_branch_delivers_once(run: RunCells) -> None:
    few = cover_branches([*grid(None), *grid(JOURNAL)])
    assert run(few) == len(few)


@pytest.mark.long
@pytest.mark.parametrize("part", [0, 1])
def test_exactly_once_process_killed_at_a_point_of_the_sample_delivers_once(part: int, run: RunCells) -> None:
    cells = [cell for cell in sample() if (cell.case.journal is None) == part]
    assert run(cells) == len(cells)


@pytest.mark.long
def test_exactly_once_process_killed_between_two_clusters_delivers_once(run: RunCells) -> None:
    assert run(BETWEEN_CLUSTERS) == 10


@pytest.mark.long
@pytest.mark.timeout(1_800)  # up to 150 processes and as many starts of two clusters' clients
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
