"""The grid of crash points on a real broker: real processes die by SIGKILL at each point (tests/crash_grid.py).

The quick tier has each kind, each branch of a recovery and each start that dies once: which branch a point leads to is
decided in memory (tests/simulation/test_grid.py), and a real broker can only differ in what a branch reads and writes.
The long tier has, of each kind, cells in which each two other factors meet; all cells run in memory. Between two
clusters, outputs and dead letters are on a second broker; of these, the quick tier has own_broker/test_two_clusters.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kstreams_py as ks
from tests.crash_grid import KINDS
from tests.system.harness import Cluster
from tests.system.kafka_grid import EARLIER, STARTS, Cell, cover_branches, cover_pairs, grid, run_cells

JOURNAL: Final = ks.Journal(1)

RunCells = Callable[[list[Cell]], int]


def sample(journal: ks.Journal | None, cluster_of_outputs: str, kind: str) -> list[Cell]:
    """Returns cells of a kind in which each two factors meet: a point, the attempts before, a start that dies."""
    return cover_pairs([cell for cell in grid(journal, cluster_of_outputs) if cell.case.kind == kind])


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


@pytest.mark.long  # as the samples
def test_samples_of_the_grid_have_all_points_attempts_and_starts() -> None:
    cells = [cell for kind in KINDS for cell in sample(JOURNAL, "", kind)]
    assert {cell.earlier for cell in cells} == {*EARLIER}
    assert {cell.start for cell in cells} == {"", *STARTS}
    assert {cell.point for cell in cells} == {cell.point for cell in grid(JOURNAL)}


def test_exactly_once_process_killed_on_the_way_to_each_branch_delivers_once(run: RunCells) -> None:
    few = cover_branches([*grid(None), *grid(JOURNAL)])
    assert run(few) == len(few)


@pytest.mark.long
@pytest.mark.timeout(1_800)  # up to 120 deaths, and as many starts of two clusters' clients
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("journal", "cluster_of_outputs"),
    [(JOURNAL, ""), (None, ""), (JOURNAL, "other")],
    ids=["journal", "transaction", "two clusters"],
)
def test_exactly_once_process_killed_at_a_point_of_the_sample_delivers_once(
    journal: ks.Journal | None, cluster_of_outputs: str, kind: str, run: RunCells
) -> None:
    cells = sample(journal, cluster_of_outputs, kind)
    assert run(cells) == len(cells)
