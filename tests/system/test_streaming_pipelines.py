"""Streaming pipelines on a real broker and a real Spark: each record has its effect once, whatever Spark runs again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, cast

import psycopg
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import kstreams_py as ks
from bench.servers import Server
from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import GraphError, PipelineFailed, SettingsError
from kstreams_py.graph.loading import load
from kstreams_py.spark import driver, runner, session
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.runs import Run
from kstreams_py.spark.streaming import Streaming
from kstreams_py.spark.targets.opening import open_target
from tests.system.command import command
from tests.system.harness import Cluster
from tests.system.shop import run_and_die

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()

GRAPH: Final = """
from pyspark.sql import functions as sf

import kstreams_py as ks

graph = ks.Graph({name!r})
orders = graph.topic("{name}.orders", key=ks.String(), value=ks.String())
copies = graph.topic("{name}.copies", key=ks.String(), value=ks.String())


@graph.pipeline(orders, to=ks.Parquet({directory!r} + "/added"), mode="append", every="1 second", streaming=True)
def added(orders):
    return orders.select("value", "offset")


@graph.pipeline(orders, to=ks.Parquet({directory!r} + "/windows"), mode="append", streaming=True)
def windows(orders):
    parts = orders.select(sf.split("value", "@").alias("parts"))
    timed = parts.selectExpr("parts[0] AS item", "CAST(parts[1] AS TIMESTAMP) AS at").withWatermark("at", "1 minute")
    counts = timed.groupBy(sf.window("at", "1 minute"), "item").agg(sf.count("*").alias("records"))
    return counts.select("item", sf.date_format("window.start", "HH:mm").alias("minute"), "records")


@graph.pipeline(
    orders, to=ks.PostgreSQL({url!r}, table="{table}_latest"), mode="upsert", key=["item"],
    streaming={directory!r} + "/latest",
)
def latest(orders):
    return orders.groupBy(sf.col("value").alias("item")).agg(sf.count("*").alias("records"))


@graph.pipeline(orders, to=ks.Parquet({directory!r} + "/totals"), key=["item"], streaming=True)
def totals(orders):
    return orders.groupBy(sf.col("value").alias("item")).agg(sf.count("*").alias("records"))


@graph.pipeline(orders, to=copies, mode="append", id="copied", streaming={directory!r} + "/copied")
def copy(orders):
    return orders.select("value")
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    made = session("test_streaming", jars=spark_jars(), java=find_java(for_spark=True), **{"spark.log.level": "ERROR"})
    yield made
    made.stop()


class Shop:
    """A graph with a topic and streaming pipelines over it."""

    def __init__(self, cluster: Cluster, spark: SparkSession, name: str, directory: Path, url: str) -> None:
        self.cluster, self.spark, self.name, self.directory, self.url = cluster, spark, name, directory, url
        self.table = f"t{name.replace('-', '_')}"
        self.file = directory / "shop.py"
        self.file.write_text(GRAPH.format(name=name, directory=str(directory), url=url, table=self.table))
        self.settings = ks.Settings(bootstrap_servers=cluster.bootstrap_servers)
        cluster.create(f"{name}.orders", f"{name}.copies")
        self.graph = load(f"{self.file}:graph")

    def write(self, *values: str, commit: bool = True) -> None:
        topic = f"{self.name}.orders"
        self.cluster.transaction(f"{self.name}.writer", [(topic, value.encode()) for value in values], commit=commit)
        self.cluster.await_markers(topic)

    def run(self, pipeline_id: str, given: Cut | None = None) -> list[Run | None]:
        found: list[Run | None] = []
        chosen = runner.choose_pipelines(self.graph, [pipeline_id])
        driver.run_all(chosen, self.graph, self.spark, self.settings, lambda _, run: found.append(run), given)
        return found

    def run_and_die(self, pipeline_id: str, point: str) -> None:
        """Runs a pipeline in a process that is killed at the point."""
        run_and_die(self.file, self.cluster.bootstrap_servers, pipeline_id, point)

    def declare(self, name: str, *, streaming: bool, **given: Any) -> None:
        """Another graph, with one pipeline into the directory of this name."""
        self.graph = ks.Graph(self.name)
        orders = self.graph.topic(f"{self.name}.orders", value=ks.String())
        options: dict[str, Any] = {"mode": "append", "id": "other", "streaming": streaming, **given}
        self.graph.pipeline(orders, to=ks.Parquet(self.directory / name), **options)(lambda df: df.select("value"))

    def reset(self, pipeline_id: str) -> None:
        (pipeline,) = runner.choose_pipelines(self.graph, [pipeline_id])
        with closing(open_target(pipeline, self.settings, lambda: self.spark)) as target:
            target.reset()

    def rows(self, pipeline_id: str) -> list[tuple[Any, ...]]:
        """The published rows, read without Spark."""
        (pipeline,) = runner.choose_pipelines(self.graph, [pipeline_id])
        target: Any = pipeline.target
        if isinstance(target, ks.PostgreSQL):
            with psycopg.connect(self.url) as connection:
                return sorted(connection.execute(f"SELECT * FROM {target.table}").fetchall())
        tables = [pyarrow.parquet.ParquetFile(path).read() for path in target.files()]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.fixture
def shop(cluster: Cluster, spark: SparkSession, name: str, tmp_path: Path, postgresql: Server) -> Shop:
    return Shop(cluster, spark, name, tmp_path, f"postgresql://postgres:secret@127.0.0.1:{postgresql.port}/postgres")


def test_append_adds_what_is_new_and_nothing_without_new_records(shop: Shop) -> None:
    shop.write("pen", "ink")
    shop.write("cup", commit=False)
    (first,) = shop.run("added")
    shop.write("pen")
    (second,) = shop.run("added")
    assert first is not None
    assert second is not None
    assert [(run.number, run.offsets, run.rows) for run in (first, second)] == [(1, 5, 2), (2, 2, 1)]
    assert shop.rows("added") == [("ink", 1), ("pen", 0), ("pen", 5)]
    assert shop.run("added") == [None]


def test_record_that_does_not_decode_is_left_out_of_a_stream_counted_and_named(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"{shop.name}.orders"
    shop.write("pen")
    shop.run("added")
    shop.cluster.write(topic, [b"\xff", b"ink", b"\xfe"])
    (second,) = shop.run("added")
    shop.write("cup")
    (third,) = shop.run("added")
    assert second is not None
    assert third is not None
    assert (second.offsets, second.records, second.malformed, second.rows) == (3, 3, 2, 1)
    assert (third.records, third.malformed, third.rows) == (1, 0, 1)
    assert [row[0] for row in shop.rows("added")] == ["cup", "ink", "pen"]
    reason = f"{topic}[0] offset 2: its value is not text in UTF-8: read the topic as Bytes()"
    told = f"pipeline 'added': 2 records of {topic} do not decode, and are left out; {reason}"
    assert [message for message in caplog.messages if "decode" in message] == [told]


def test_stream_that_shall_fail_at_a_record_that_does_not_decode_stores_nothing_of_its_batch(shop: Shop) -> None:
    shop.write("pen")
    shop.cluster.write(f"{shop.name}.orders", [b"\xff"])
    shop.declare("strict", streaming=True, malformed="fail")
    with pytest.raises(PipelineFailed, match=r"orders\[0\] offset 2: its value is not text in UTF-8"):
        shop.run("other")
    assert shop.rows("other") == []


def test_window_is_added_once_the_watermark_has_passed_it(shop: Shop) -> None:
    shop.write("pen@2026-05-01 12:00:10", "pen@2026-05-01 12:00:50", "ink@2026-05-01 12:00:30")
    shop.run("windows")
    assert shop.rows("windows") == []
    shop.write("pen@2026-05-01 12:03:00")
    shop.run("windows")
    shop.write("cup@2026-05-01 12:00:20")  # too late
    shop.run("windows")
    assert shop.rows("windows") == [("ink", "12:00", 1), ("pen", "12:00", 2)]


@pytest.mark.parametrize("pipeline_id", ["latest", "totals"])
def test_upsert_and_complete_keep_the_state_of_the_stream(shop: Shop, pipeline_id: str) -> None:
    shop.write("pen", "ink")
    shop.run(pipeline_id)
    shop.write("pen", "cup")
    shop.run(pipeline_id)
    assert shop.rows(pipeline_id) == [("cup", 1), ("ink", 1), ("pen", 2)]


@pytest.mark.parametrize(
    ("pipeline_id", "points"),
    [
        ("added", {"before-publish": 0, "after-publish": 1}),
        pytest.param("latest", {"before-commit": 0, "after-commit": 1}, marks=pytest.mark.long),
        pytest.param("copied", {"written": 0, "after-commit-of-topic": 1}, marks=pytest.mark.long),
    ],
)
def test_driver_killed_around_the_step_that_stores_a_batch_gives_each_record_its_effect_once(
    shop: Shop, pipeline_id: str, points: dict[str, int]
) -> None:
    written = ["pen"]
    shop.write("pen")
    shop.run(pipeline_id)
    for number, point in enumerate(points):
        shop.write(f"item {number}")
        written.append(f"item {number}")
        shop.run_and_die(pipeline_id, point)
    shop.write("cup")
    written.append("cup")
    shop.run(pipeline_id)
    if pipeline_id == "copied":
        found = [m.value().decode() for m in shop.cluster.read(f"{shop.name}.copies")]
    else:
        found = [row[0] for row in shop.rows(pipeline_id)]
    assert sorted(found) == sorted(written)
    if pipeline_id == "latest":
        assert {row[1] for row in shop.rows("latest")} == {1}


def test_batch_that_is_run_again_moves_the_watermark(shop: Shop) -> None:
    """What closes a window is in the rows of a batch that the table has already."""
    shop.write("pen@2026-05-01 12:00:10")
    shop.run("windows")
    shop.write("pen@2026-05-01 12:03:00")
    shop.run_and_die("windows", "after-publish")
    shop.run("windows")
    assert shop.rows("windows") == [("pen", "12:00", 1)]


def test_mutation_that_trusts_the_checkpoint_alone_doubles_a_batch(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("pen")
    shop.run_and_die("added", "after-publish")
    monkeypatch.setattr(Streaming, "_check_place", lambda *_: None)
    shop.run("added")
    assert shop.rows("added") == [("pen", 0), ("pen", 0)]


def test_following_stores_batches_until_it_is_stopped(shop: Shop, tmp_path: Path) -> None:
    environment = {
        "KSTREAMS_BOOTSTRAP_SERVERS": shop.cluster.bootstrap_servers,
        "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
    }
    shop.write("pen")
    arguments = ("pipeline", "run", f"{shop.file}:graph", "added", "--follow")
    with command(tmp_path, *arguments, environment=environment) as running:
        running.await_text("added: run 1: 1 rows of 1 records")
        shop.write("ink", "cup")
        running.await_text(r"added: run \d+: 2 rows")
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    assert [row[0] for row in shop.rows("added")] == ["cup", "ink", "pen"]
    assert shop.run("added") == [None]


# A checkpoint and a table that do not belong together.


def test_checkpoint_that_was_deleted_is_refused_until_both_begin_again(shop: Shop) -> None:
    shop.write("pen")
    shop.run("added")
    shutil.rmtree(cast(ks.Parquet, shop.graph.pipelines[0].target).checkpoint.removeprefix("file://"))
    shop.write("ink")
    with pytest.raises(SettingsError, match=r"is at batch 0 of stream .*added has batch 0 of stream .*: restore"):
        shop.run("added")
    assert [row[0] for row in shop.rows("added")] == ["pen"]
    shop.reset("added")
    shop.run("added")
    assert [row[0] for row in shop.rows("added")] == ["ink", "pen"]


def test_table_that_was_reset_without_its_checkpoint_is_refused(shop: Shop) -> None:
    shop.write("pen")
    shop.run("latest")
    shop.reset("latest")
    shop.write("ink")
    with pytest.raises(SettingsError, match=r"latest is at batch 1 of stream .* has no batch: restore both, or begin"):
        shop.run("latest")
    shutil.rmtree(shop.directory / "latest")
    shop.run("latest")
    assert shop.rows("latest") == [("ink", 1), ("pen", 1)]


def test_entry_of_the_checkpoint_that_was_lost_with_the_disk_is_noticed(shop: Shop) -> None:
    """The batch then has more records under the same number: it is neither left out nor stored twice."""
    shop.write("pen")
    shop.run_and_die("added", "after-publish")
    shutil.rmtree(shop.directory / "added" / "_checkpoint" / "offsets")
    shop.write("ink")
    with pytest.raises(SettingsError, match="is at batch 0 of stream"):
        shop.run("added")
    assert [row[0] for row in shop.rows("added")] == ["pen"]


def test_topic_that_was_created_again_is_noticed_though_it_has_as_many_records(shop: Shop) -> None:
    topic = f"{shop.name}.orders"
    shop.cluster.write(topic, [b"pen"])
    shop.run("added")
    shop.cluster.delete(topic)
    shop.cluster.create(topic)
    shop.cluster.write(topic, [b"cup", b"ink"])
    with pytest.raises(
        SettingsError, match=r"orders' was deleted and created again since the last batch: restore both"
    ):
        shop.run("added")
    assert shop.rows("added") == [("pen", 0)]


def test_table_of_runs_without_a_stream_is_refused_and_so_is_a_cut(shop: Shop) -> None:
    shop.write("pen")
    shop.run("added")
    with pytest.raises(SettingsError, match="pipeline 'added' is a stream, and runs at no cut"):
        shop.run("added", Cut("shop", {}, ()))
    shop.declare("batch", streaming=False)
    shop.run("other")
    shop.declare("batch", streaming=True)
    with pytest.raises(SettingsError, match="batch was made by runs that are no stream: restore both, or begin again"):
        shop.run("other")
    shop.declare("stream", streaming=True)
    shop.run("other")
    shop.declare("stream", streaming=False)
    with pytest.raises(SettingsError, match=r"the last run in .*stream was a stream's, or was changed by hand"):
        shop.run("other")


def test_function_that_returns_no_stream_is_refused(shop: Shop) -> None:
    shop.graph = ks.Graph(shop.name)
    orders = shop.graph.topic(f"{shop.name}.orders", value=ks.String())
    options: dict[str, Any] = {"mode": "append", "id": "other", "streaming": True}
    shop.graph.pipeline(orders, to=ks.Parquet(shop.directory / "other"), **options)(lambda _: shop.spark.range(1))
    with pytest.raises(GraphError, match="pipeline 'other': its function returned no stream: return a DataFrame"):
        shop.run("other")
