"""The grid of crash points on a real broker: real processes die by SIGKILL at each point (tests/crash_grid.py).

`scripts/test` runs cells in which each two factors meet, `scripts/test-long` all of them. Between two clusters, outputs
and dead letters are on a second broker.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import kstreams_py as ks
from kstreams_py.embedded import EmbeddedKafka
from tests.crash_grid import KINDS
from tests.system.harness import Cluster
from tests.system.kafka_grid import EARLIER, STARTS, Cell, cover_pairs, grid, run_cells, whole_grid

JOURNAL: Final = ks.Journal(1)

SAMPLE: Final = cover_pairs([*grid(None), *grid(JOURNAL)])

BETWEEN_CLUSTERS: Final = [
    cell
    for cell in whole_grid(JOURNAL, "other")
    if (cell.case.kind, cell.case.does) in (("map", "output"), ("alts-sink", "raise"))
    and (cell.case.errors, cell.earlier, cell.start) == (True, (), "")
    and cell.point in ("CP15", "CP16", "CP17", "CP29", "CP30")
]

RunCells = Callable[[list[Cell]], int]


@pytest.fixture
def run(cluster: Cluster, elsewhere: EmbeddedKafka, name: str, tmp_path: Path) -> RunCells:
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


@pytest.mark.parametrize("part", [0, 1])
def test_exactly_once_process_killed_at_a_point_of_the_sample_delivers_once_by_the_branch_named(
    part: int, run: RunCells
) -> None:
    cells = [cell for cell in SAMPLE if (cell.case.journal is None) == part]
    assert run(cells) == len(cells)


def test_exactly_once_process_killed_between_two_clusters_delivers_once_by_the_branch_named(run: RunCells) -> None:
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
