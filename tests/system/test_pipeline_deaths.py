"""Drivers and executors die while runs store rows in each kind of target: each record has its effect once.

The pipelines beside those of `Shop`: into Delta Lake and topics, and streams. Executors are processes of their own.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

import kstreams_py as ks
from bench.servers import Server
from kstreams_py.graph.declarations import Topic
from tests.system.harness import Cluster
from tests.system.shop import Shop, read_files

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()

LOCAL: Final = "local[2]"
CLUSTER: Final = "local-cluster[2,1,1024]"
"""Two workers with a core and 1024 MB each."""

MORE: Final = """

def count_orders(orders):
    found = orders.select(gate("first", sf.col("value"))).groupBy("item").agg(sf.count("*").alias("records"))
    return found.select(gate("last", sf.col("item")), "records")


copies, newest, streamed = (
    graph.topic("{name}." + topic, key=ks.String(), value=ks.Json()) for topic in ("copies", "newest", "streamed")
)
tables, checkpoints = {directory!r} + "/delta_", {directory!r} + "/checkpoint_"
declare("_delta", lambda name: ks.Delta(tables + name))
graph.pipeline(orders, to=copies, id="added_topic", mode="append")(select)
graph.pipeline(orders, to=newest, id="latest_topic", mode="upsert", key=["item"])(find_last)


def declare_stream(pipeline_id, to, function=select, **options):
    given = {{"mode": "append", **options}}
    graph.pipeline(orders, to=to, id=pipeline_id, streaming=checkpoints + pipeline_id, **given)(function)


declare_stream("added_stream", ks.Parquet({directory!r} + "/added_stream"))
declare_stream("counted_stream", ks.Parquet({directory!r} + "/counted"), count_orders, mode="upsert", key=["item"])
declare_stream("added_stream_delta", ks.Delta(tables + "stream"))
declare_stream(
    "counted_stream_rows", ks.PostgreSQL({url!r}, table="{table}_counted"), count_orders, mode="upsert", key=["item"]
)
declare_stream("added_stream_rows", ks.PostgreSQL({url!r}, table="{table}_stream"))
declare_stream("added_stream_topic", streamed)
"""


class Stores(Shop):
    """A shop with a pipeline into each kind of target."""

    def __init__(
        self, cluster: Cluster, spark: SparkSession | None, name: str, directory: Path, postgresql: Server
    ) -> None:
        super().__init__(cluster, spark, name, directory, postgresql, more=MORE)
        cluster.create(f"{name}.copies", f"{name}.newest", f"{name}.streamed")

    def rows(self, pipeline_id: str) -> list[tuple[Any, ...]]:
        pipeline = self.pipeline(pipeline_id)
        target: Any = pipeline.target
        if isinstance(target, ks.Delta):
            return read_delta(Path(target.path))
        if not isinstance(target, Topic):
            return super().rows(pipeline_id)
        written = [tuple(json.loads(m.value()).values()) for m in self.cluster.read(target.name)]
        return sorted(written if pipeline.mode == "append" else {row[0]: row for row in written}.values())

    def model(self, pipeline_id: str) -> list[tuple[Any, ...]]:
        if pipeline_id.startswith("counted_stream"):
            return sorted(Counter(value for topic, value, _ in self.written if topic == "orders").items())
        return super().model(pipeline_id.partition("_")[0])


def read_delta(directory: Path) -> list[tuple[Any, ...]]:
    """The rows of a table of Delta Lake, by its log, without Spark."""
    found: dict[str, None] = {}
    for log in sorted(directory.glob("_delta_log/*.json")):
        for action in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
            if "remove" in action:
                found.pop(action["remove"]["path"], None)
            if "add" in action:
                found[action["add"]["path"]] = None
    return read_files(directory / path for path in found)


@pytest.fixture
def stores(cluster: Cluster, name: str, tmp_path: Path, postgresql: Server) -> Stores:
    return Stores(cluster, None, name, tmp_path, postgresql)


OF_DELTA: Final = ("before-delta", "after-delta")
OF_TOPIC: Final = ("written", "after-commit-of-topic")
OF_PARQUET: Final = ("staged", "before-publish", "after-publish")
OF_POSTGRESQL: Final = ("copied", "before-commit", "after-commit")
PUBLISHED: Final = {"after-delta", "after-commit-of-topic", "after-publish", "after-commit"}


STANDS: Final = {
    "latest": "before-publish",
    "latest_rows": "after-commit",
    "added_rows": "before-commit",
    "added_topic": "after-commit-of-topic",
    "latest_topic": "written",
    "added_stream": "after-publish",
}
"""Runs into each kind of target, before and after its atomic step, and a stream whose checkpoint is behind its table. A
commit of Delta Lake is one file of its log, as that of a directory."""


def test_driver_killed_while_runs_stand_at_each_step_gives_each_effect_once(
    cluster: Cluster, spark: SparkSession, name: str, tmp_path: Path, postgresql: Server
) -> None:
    """One process, in which each run stands still at its point, dies once."""
    stores = Stores(cluster, spark, name, tmp_path, postgresql)
    stores.write("orders:pen", "returns:pen")
    for pipeline_id in STANDS:
        stores.run_all(pipeline_id)
    before = {pipeline_id: stores.model(pipeline_id) for pipeline_id in STANDS}
    stores.write("orders:ink", "orders:pen", "returns:ink")
    with stores.driver(LOCAL) as dying:
        dying.begin(*(word for each in STANDS.items() for word in each))
        assert dying.await_end() == -signal.SIGKILL
    for pipeline_id, point in STANDS.items():
        expected = stores.model(pipeline_id) if point in PUBLISHED else before[pipeline_id]
        assert stores.rows(pipeline_id) == expected, (pipeline_id, point)
    stores.write("orders:cup", "orders:pen")
    for pipeline_id in STANDS:
        stores.run_all(pipeline_id)
        assert stores.rows(pipeline_id) == stores.model(pipeline_id), pipeline_id


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("pipeline_id", "points", "master"),
    [
        *((each, ("before-cut", "after-read", *OF_PARQUET), LOCAL) for each in ("added", "totals", "latest")),
        *((each, OF_PARQUET, CLUSTER) for each in ("totals", "latest")),
        *((each, OF_POSTGRESQL, LOCAL) for each in ("totals_rows", "added_rows", "latest_rows")),
        ("added_rows", OF_POSTGRESQL, CLUSTER),
        ("totals_delta", OF_DELTA, LOCAL),
        ("added_delta", ("before-cut", "after-read", *OF_DELTA), CLUSTER),
        ("latest_delta", OF_DELTA, LOCAL),
        ("added_topic", ("before-cut", "after-read", *OF_TOPIC), CLUSTER),
        ("latest_topic", OF_TOPIC, LOCAL),
        ("added_stream", OF_PARQUET, LOCAL),
        ("counted_stream", OF_PARQUET, CLUSTER),
        ("added_stream_delta", OF_DELTA, LOCAL),
        ("added_stream_rows", OF_POSTGRESQL, LOCAL),
        ("counted_stream_rows", OF_POSTGRESQL, LOCAL),
        ("added_stream_topic", OF_TOPIC, LOCAL),
    ],
)
def test_driver_killed_at_each_point_of_each_target_gives_each_effect_once(
    stores: Stores, pipeline_id: str, points: tuple[str, ...], master: str
) -> None:
    """Its executors end by themselves: `run_and_die` waits for that.

    A stream stores first the batch that a death has left planned.
    """
    stores.write("orders:pen", "returns:pen")
    with stores.driver(master) as running:
        running.run(pipeline_id)
    table, planned = stores.model(pipeline_id), None
    for number, point in enumerate(points):
        stores.write(f"orders:{number}", "orders:ink", "returns:ink")
        stores.run_and_die(pipeline_id, point, master)
        batch = planned or stores.model(pipeline_id)
        if point in PUBLISHED:
            table, planned = batch, None
        elif "stream" in pipeline_id:
            planned = batch
        assert stores.rows(pipeline_id) == table, point
    stores.write("orders:cup")
    with stores.driver(master) as running:
        running.run(pipeline_id)
    assert stores.rows(pipeline_id) == stores.model(pipeline_id)


KILLED: Final = [
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
    ("totals_delta", "last", True),
    ("added_delta", "first", True),
    ("latest_delta", "first", True),
    ("added_topic", "first", True),
    ("latest_topic", "last", True),
    ("added_stream", "first", True),
    ("counted_stream", "last", True),
    ("added_stream_delta", "first", True),
    ("added_stream_rows", "first", True),
    ("added_stream_topic", "first", True),
]
"""Executors to kill: in which pipeline, at which gate, and whether it is the one whose task waits there."""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_executor_killed_in_the_middle_of_a_run_into_each_target_changes_no_row(stores: Stores) -> None:
    with stores.driver(CLUSTER) as running:
        for number, (pipeline_id, gate, is_busy) in enumerate(KILLED):
            stores.write("orders:pen", f"orders:{number}", "returns:pen")
            running.run(pipeline_id)
            assert stores.rows(pipeline_id) == stores.model(pipeline_id)
            stores.write("orders:pen", "orders:ink", "returns:ink")
            with stores.gate(gate):
                running.begin(pipeline_id)
                stores.kill_executor(running, gate, is_busy=is_busy)
            assert running.result() != [None]
            assert stores.rows(pipeline_id) == stores.model(pipeline_id), (pipeline_id, gate)
