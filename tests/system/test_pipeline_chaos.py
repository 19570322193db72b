"""The demo's pipeline: workers are killed, a driver dies at each point of a run, and the table is that of the file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from kstreams_py.demo import data, data_files, flights, flights_graph
from kstreams_py.demo.screen import Screen, open_cluster
from kstreams_py.demo.traffic import Kills, Loader
from kstreams_py.formats.registries import open_registry
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.running.terminal.progress import LockedConsole
from kstreams_py.sinks import Parquet
from tests.system.shop import run_and_die

pytestmark = pytest.mark.long

RECORDS: Final = 12_000
KILLS: Final = 8
SECONDS: Final = 60.0
"""How long departures are written: drivers take about as long to die."""

POINTS: Final = ("after-read", "after-publish", "staged", "before-publish", "after-publish", "before-cut")
"""The points of a run, in an order that lets the third and later drivers find a table."""


@pytest.mark.timeout(900)
def test_pipeline_whose_drivers_and_workers_are_killed_has_the_table_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pipelines.py"
    file.write_text("from kstreams_py.demo.flights_graph import graph\n", encoding="utf-8")
    rows = data_files.read(RECORDS)
    with open_cluster(tmp_path) as (settings, cluster):
        registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
        create_topics(flights_graph.graph, cluster)
        topics = check_topics(flights_graph.graph, cluster)
        loader = Loader(cluster, registry, flights_graph.graph, rows, SECONDS)
        stage = flights.FlightsStage(settings, cluster, tmp_path, Screen(LockedConsole(stderr=False)))
        for name, value in flights._environment(settings, tmp_path).items():
            monkeypatch.setenv(name, value)  # of the drivers

        def die_at_each_point() -> list[int]:
            """The number of published files after each death."""
            files = []
            for point in POINTS:
                run_and_die(file, settings.bootstrap_servers, "delays", point)
                files.append(len(Parquet(tmp_path / "delays").files()))
            return files

        with ThreadPoolExecutor() as pool:
            drivers = pool.submit(die_at_each_point)
            traffic = stage.run(topics, loader, Kills(KILLS, len(rows), seed=2))
            published = drivers.result()
        assert len(traffic.kills) == KILLS
        assert [number > 0 for number in published] == [False, True, True, True, True, True]
        assert flights._run_pipeline(settings, tmp_path) == data.expect(rows).delays
