"""Streaming pipelines on a real broker and a real Spark: each record has its effect once, whatever Spark runs again."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any, Final, cast

import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from typer.testing import CliRunner

import kstreams_py as ks
from bench.servers import Server
from kstreams_py.cli.main import app
from kstreams_py.errors import GraphError, InputLost, PipelineFailed, SettingsError
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.loading import load
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.pipelines import streaming
from kstreams_py.spark.pipelines.frames import start_query
from kstreams_py.spark.pipelines.runs import PipelineRun
from kstreams_py.spark.pipelines.streaming import Streaming
from tests.system.harness import Cluster
from tests.system.shop import Pipelines, run_and_die, run_and_raise, url_of
from tests.waiting import wait_until

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


@graph.pipeline(orders, to=ks.Parquet({directory!r} + "/batches"), mode="append", every="1 second")
def batches(orders):
    return orders.select("value", "offset")


@graph.pipeline(orders, to=copies, mode="append", id="copied", streaming={directory!r} + "/copied")
def copy(orders):
    return orders.select("value")
"""


TWO: Final = """
import kstreams_py as ks

graph = ks.Graph("two")
orders, copies = (graph.topic(name, value=ks.String()) for name in ({orders!r}, {copies!r}))


@graph.pipeline(orders, copies, to=ks.Parquet({directory!r} + "/both"), mode="append", streaming=True)
def both(orders, copies):
    return orders.select("value").union(copies.select("value"))
"""


class Shop(Pipelines):
    """A graph with a topic and streaming pipelines over it."""

    spark: SparkSession

    def __init__(self, cluster: Cluster, spark: SparkSession, name: str, directory: Path, url: str) -> None:
        table = f"t{name.replace('-', '_')}"
        text = GRAPH.format(name=name, directory=str(directory), url=url, table=table)
        super().__init__(cluster, spark, name, directory, text)
        cluster.create(f"{name}.orders", f"{name}.copies")

    run = Pipelines.run_all

    def write(self, *values: str, commit: bool = True) -> None:
        topic = f"{self.name}.orders"
        self.cluster.transaction(f"{self.name}.writer", [(topic, value.encode()) for value in values], commit=commit)
        self.cluster.await_markers(topic)

    def run_and_die(self, pipeline_id: str, point: str, death: str) -> None:
        """Runs a pipeline up to the point: in a process that is killed, or in this one, where it fails."""
        if death == "killed":
            run_and_die(self.file, self.cluster.bootstrap_servers, pipeline_id, point)
        else:
            run_and_raise(point, lambda: self.run(pipeline_id))

    def declare(
        self,
        name: str,
        *,
        streaming: bool,
        function: Any = lambda df: df.select("value"),
        topics: Sequence[str] = ("orders",),
        value: Any = None,
        **given: Any,
    ) -> None:
        """Another graph, with one pipeline into the directory of this name."""
        self.graph = ks.Graph(self.name)
        inputs = [self.graph.topic(f"{self.name}.{each}", value=value or ks.String()) for each in topics]
        options: dict[str, Any] = {"mode": "append", "id": "other", "streaming": streaming, **given}
        self.graph.pipeline(*inputs, to=ks.Parquet(self.directory / name), **options)(function)


PARTITIONS: Final = "spark.sql.shuffle.partitions"

DEATHS: Final = pytest.mark.parametrize("death", ["failed", pytest.param("killed", marks=pytest.mark.long)])
"""Quick is a failure in the process of the test: what matters is what it leaves, the checkpoint behind the table. The
kill itself is that of test_pipeline_deaths."""


@pytest.fixture
def shop(cluster: Cluster, spark: SparkSession, name: str, tmp_path: Path, postgresql: Server) -> Iterator[Shop]:
    made = Shop(cluster, spark, name, tmp_path, url_of(postgresql))
    yield made
    del made.cluster  # Spark keeps the streams of a session, and those keep their errors, with the frames of the test


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


@pytest.mark.long
def test_stream_that_fails_at_a_record_that_does_not_decode_stores_no_batch(shop: Shop) -> None:
    shop.write("pen")
    shop.cluster.write(f"{shop.name}.orders", [b"\xff"])
    shop.declare("strict", streaming=True, malformed="fail")
    with pytest.raises(PipelineFailed, match=r"orders\[0\] offset 2: its value is not text in UTF-8"):
        shop.run("other")
    assert shop.rows("other") == []


@pytest.mark.parametrize(
    ("follows", "malformed"),
    [
        pytest.param(False, "drop", id="once-drop"),
        pytest.param(True, "fail", id="follow-fail", marks=pytest.mark.long),
        pytest.param(False, "fail", id="once-fail", marks=pytest.mark.long),
        pytest.param(True, "drop", id="follow-drop", marks=pytest.mark.long),
    ],
)
def test_records_of_a_schema_that_is_registered_while_a_stream_runs_are_in_its_table(
    shop: Shop, malformed: str, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query knows the schemas of its start; records of a later one would be left out, or end it."""
    reader, first, later = (
        {
            "type": "record",
            "name": "Order",
            "fields": [{"name": each, "type": "string", "default": ""} for each in names],
        }
        for names in (("item", "size"), ("item",), ("item", "from"))
    )
    shop.settings = shop.settings.model_copy(update={"schema_directory": shop.directory / "schemas"})
    shop.declare(
        "items",
        streaming=True,
        every="1 second",
        value=ks.Avro(reader),
        function=lambda df: df.select("item"),
        malformed=malformed,
    )
    topic, registry = f"{shop.name}.orders", FileRegistry(shop.directory / "schemas")

    def write(schema: Any, **value: str) -> None:
        shop.cluster.write(topic, [bind(ks.Avro(schema), registry, f"{topic}-value").serialize(value)])

    write(first, item="pen")
    (pipeline,) = shop.graph.pipelines
    runs = list[PipelineRun]()
    if follows:
        stream = Streaming(pipeline, shop.spark, shop.settings, runs.append, follows=True)
        wait_until(lambda: stream.is_running() and [run.rows for run in runs] == [1], "the first batch is stored")
        write(later, item="ink", **{"from": "EWR"})
        wait_until(lambda: stream.is_running() and sum(run.rows for run in runs) == 2, "the new record is stored")
        stream.stop()
    else:
        begin = Streaming._start

        def begin_late(self: Streaming) -> None:
            """The schema is new when the query has chosen what it reads."""
            monkeypatch.undo()

            def start_late(*given: Any) -> Any:
                write(later, item="ink", **{"from": ""})
                return start_query(*given)

            with monkeypatch.context() as patch:
                patch.setattr(streaming, "start_query", start_late)
                begin(self)

        monkeypatch.setattr(Streaming, "_start", begin_late)
        stream = Streaming(pipeline, shop.spark, shop.settings, runs.append, follows=False)
    stream.join()
    assert sorted(row[0] for row in shop.rows("other")) == ["ink", "pen"]
    assert [(run.records, run.malformed) for run in runs if run.records] == ([(1, 0), (1, 0)] if follows else [(2, 0)])


@pytest.mark.long  # in the quick tier, a batch that is run again closes a window
def test_window_is_added_once_the_watermark_has_passed_it(shop: Shop) -> None:
    shop.write("pen@2026-05-01 12:00:10", "pen@2026-05-01 12:00:50", "ink@2026-05-01 12:00:30")
    shop.run("windows")
    assert shop.rows("windows") == []
    shop.write("pen@2026-05-01 12:03:00")
    shop.run("windows")
    shop.write("cup@2026-05-01 12:00:20")  # too late
    shop.run("windows")
    assert shop.rows("windows") == [("ink", "12:00", 1), ("pen", "12:00", 2)]


@pytest.mark.parametrize("pipeline_id", ["latest", pytest.param("totals", marks=pytest.mark.long)])
def test_upsert_and_complete_keep_the_state_of_the_stream(shop: Shop, pipeline_id: str) -> None:
    shop.write("pen", "ink")
    shop.run(pipeline_id)
    shop.write("pen", "cup")
    shop.run(pipeline_id)
    assert shop.rows(pipeline_id) == [("cup", 1), ("ink", 1), ("pen", 2)]


@DEATHS
def test_batch_that_is_run_again_moves_the_watermark(shop: Shop, death: str) -> None:
    """What closes a window is in the rows of a batch that the table has already."""
    shop.write("pen@2026-05-01 12:00:10")
    shop.run("windows")
    shop.write("pen@2026-05-01 12:03:00")
    shop.run_and_die("windows", "after-publish", death)
    shop.run("windows")
    assert shop.rows("windows") == [("pen", "12:00", 1)]


@DEATHS
def test_mutation_that_trusts_the_checkpoint_alone_doubles_a_batch(
    shop: Shop, death: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("pen")
    shop.run_and_die("added", "after-publish", death)
    monkeypatch.setattr(Streaming, "_check_place", lambda *_: None)
    shop.run("added")
    assert shop.rows("added") == [("pen", 0), ("pen", 0)]


def test_command_that_follows_stores_runs_and_batches_until_it_is_stopped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, whose session it takes: the long tier has a command that starts one."""
    shop.write("pen")
    followed, ended = ("added", "batches"), list[SparkSession]()

    def stop(session: SparkSession) -> None:
        ended.append(session)

    monkeypatch.setattr(SparkSession, "stop", stop)
    handlers = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGINT)}

    def await_values(*values: str) -> None:
        for each in followed:
            wait_until(lambda: [row[0] for row in shop.rows(each)] == [*values], f"{each} has {values}")  # noqa: B023

    def write_and_stop() -> None:
        try:
            await_values("pen")
            shop.write("ink", "cup")
            await_values("cup", "ink", "pen")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    arguments = ["pipeline", "run", f"{shop.file}:graph", *followed, "--follow"]
    arguments += ["-b", shop.cluster.bootstrap_servers, "--conf", f"{PARTITIONS}={shop.spark.conf.get(PARTITIONS)}"]
    try:
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_and_stop)
            ran = CliRunner().invoke(app, arguments, catch_exceptions=False)
            writing.result()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert (ran.exit_code, ended) == (0, [shop.spark])
    for each in followed:
        assert f"{each}: run 1: 1 row from 1 record" in ran.output
        assert re.search(rf"{each}: run \d+: 2 rows", ran.output)  # one between the records and their marker has none
    monkeypatch.undo()
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


@pytest.mark.long
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


@DEATHS
def test_entry_of_the_checkpoint_that_was_lost_with_the_disk_is_noticed(shop: Shop, death: str) -> None:
    """The batch then has more records under the same number: it is neither left out nor stored twice."""
    shop.write("pen")
    shop.run_and_die("added", "after-publish", death)
    shutil.rmtree(shop.directory / "added" / "_checkpoint" / "offsets")
    shop.write("ink")
    with pytest.raises(SettingsError, match="is at batch 0 of stream"):
        shop.run("added")
    assert [row[0] for row in shop.rows("added")] == ["pen"]


@pytest.mark.long
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


@pytest.mark.long
def test_records_that_were_deleted_before_a_stream_has_read_them_stop_it(shop: Shop) -> None:
    topic = f"{shop.name}.orders"
    shop.write("pen")
    shop.run("added")
    shop.cluster.write(topic, [b"ink", b"cup"])  # no transaction, whose marker may come after the deletion
    shop.cluster.delete_records(topic)
    shop.write("nib")
    with pytest.raises(InputLost, match="pipeline 'added': records were deleted while it read them: run it again with"):
        shop.run("added")
    assert shop.rows("added") == [("pen", 0)]
    shop.reset("added")
    shop.run("added")
    assert shop.rows("added") == [("nib", 4)]


@pytest.mark.long
def test_partitions_added_to_the_topic_of_a_stream_are_read_from_their_start(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"{shop.name}.orders"
    shop.write("pen")
    shop.run("added")
    shop.cluster.admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    wait_until(lambda: shop.cluster.partitions(topic) == [0, 1], "the partition is known")
    shop.cluster.write(topic, [b"ink", b"\xff", b"cup"], partition=1)
    (second,) = shop.run("added")
    assert second is not None
    assert (second.records, second.malformed, second.rows) == (3, 1, 2)
    assert shop.rows("added") == [("cup", 2), ("ink", 0), ("pen", 0)]
    assert f"{topic}[1] offset 1: its value is not text in UTF-8" in caplog.text


@pytest.mark.long
def test_batches_have_the_committed_records_wherever_aborted_ones_and_markers_lie(shop: Shop) -> None:
    """All records of a batch are aborted, or the first, the last, those in the middle; or markers lie between."""
    written = list[str]()
    for batch in ("c1", "a5", "a5 c3", "c3 a5", "c2 a3 c2", "c1 c1 a1 c2"):
        for number, word in enumerate(batch.split()):
            values = [f"{batch}.{number}.{each}" for each in range(int(word[1:]))]
            shop.write(*values, commit=word[0] == "c")
            written += values if word[0] == "c" else []
        shop.run("added")
        assert sorted(row[0] for row in shop.rows("added")) == sorted(written)


@pytest.mark.long  # quick is the stream of one topic
@DEATHS
def test_stream_of_two_topics_goes_on_in_both_and_is_left_out_where_it_is_there(shop: Shop, death: str) -> None:
    orders, copies = (f"{shop.name}.{each}" for each in ("orders", "copies"))
    shop.file.write_text(TWO.format(orders=orders, copies=copies, directory=str(shop.directory)), encoding="utf-8")
    shop.graph = load(f"{shop.file}:graph")
    shop.cluster.write(orders, [b"pen"])
    shop.cluster.write(copies, [b"ink", b"cup"])
    (first,) = shop.run("both")
    assert first is not None
    assert (first.offsets, first.records, first.rows) == (3, 3, 3)
    shop.cluster.write(copies, [b"nib"])
    shop.run_and_die("both", "after-publish", death)
    shop.cluster.write(orders, [b"cap"])
    shop.run("both")
    assert [row[0] for row in shop.rows("both")] == ["cap", "cup", "ink", "nib", "pen"]
    assert shop.run("both") == [None]


@pytest.mark.long  # a refusal before anything runs
def test_table_of_runs_without_a_stream_is_refused_and_so_is_a_cut(shop: Shop) -> None:
    shop.write("pen")
    shop.run("added")
    with pytest.raises(SettingsError, match="pipeline 'added' is a stream, and runs at no cut"):
        shop.run("added", Cut("shop", {}, ()))
    shop.declare("batch", streaming=False)
    shop.run("other")
    shop.declare("batch", streaming=True)
    with pytest.raises(SettingsError, match="batch was not made by a stream: restore both, or begin again"):
        shop.run("other")
    shop.declare("stream", streaming=True)
    shop.run("other")
    shop.declare("stream", streaming=False)
    with pytest.raises(SettingsError, match=r"the last run in .*stream was a stream's, or was changed by hand"):
        shop.run("other")


def pass_on(*inputs: DataFrame) -> DataFrame:
    return reduce(DataFrame.union, inputs).select(sf.col("value").alias("item"), sf.col("offset").alias("n"))


def drop_copies(by: str) -> Callable[[DataFrame], DataFrame]:
    return lambda df: pass_on(df.dropDuplicates([by]))


def aggregate(found: str) -> Callable[[DataFrame], DataFrame]:
    return lambda df: df.groupBy(sf.col("value").alias("item")).agg(sf.expr(found).alias("n"))


LONG: Final = pytest.mark.long

COLUMNS: Final = "the state has other columns: restore the function, "
OPERATIONS: Final = "it has other stateful operations: restore it, "
BEGUN: Final = "it keeps a state now, which Spark has begun: "


@pytest.mark.long  # a refusal before anything runs
@pytest.mark.parametrize(
    ("mode", "before", "after", "change"),
    [
        pytest.param("upsert", aggregate("count(*)"), aggregate("sum(offset)"), COLUMNS, id="aggregate"),
        pytest.param("append", drop_copies("value"), drop_copies("offset"), COLUMNS, id="key", marks=LONG),
        pytest.param("upsert", aggregate("count(*)"), drop_copies("value"), OPERATIONS, id="operation", marks=LONG),
        pytest.param("append", drop_copies("value"), pass_on, OPERATIONS, id="no-state-any-more", marks=LONG),
        pytest.param("append", pass_on, drop_copies("value"), BEGUN, id="no-state-before", marks=LONG),
    ],
)
def test_stream_whose_function_keeps_another_state_is_refused_until_it_is_reset(
    shop: Shop, mode: str, before: Any, after: Any, change: str
) -> None:
    options: dict[str, Any] = {"streaming": True, "mode": mode, "key": ["item"] if mode == "upsert" else []}
    shop.declare("changed", function=before, **options)
    shop.write("pen")
    shop.run("other")
    rows = shop.rows("other")
    shop.declare("changed", function=after, **options)
    shop.write("ink")
    with pytest.raises(SettingsError) as raised:
        shop.run("other")
    remedy = (
        "declare another pipeline with a target of its own, or begin again: delete the checkpoint, and run `kstreams "
        "pipeline reset`"
    )
    checkpoint = f"file://{shop.directory}/changed/_checkpoint"
    told = f"pipeline 'other': its checkpoint {checkpoint} belongs to another function: {change}{remedy}"
    assert (str(raised.value), raised.value.exit_status, shop.rows("other")) == (told, 2, rows)
    if "restore" in change:
        shop.declare("changed", function=before, **options)
        shop.run("other")
        assert [item for item, _ in shop.rows("other")] == ["ink", "pen"]
    shop.reset("other")
    shop.declare("changed", function=after, **options)
    shop.run("other")
    assert [item for item, _ in shop.rows("other")] == ["ink", "pen"]


@pytest.mark.long
@pytest.mark.parametrize("topics", [("orders", "copies"), ("orders",)])
def test_stream_that_reads_another_number_of_topics_is_refused(shop: Shop, topics: Sequence[str]) -> None:
    one, two = ("orders",), ("orders", "copies")
    shop.declare("changed", function=pass_on, streaming=True, topics=one if topics == two else two)
    shop.write("pen")
    shop.run("other")
    shop.declare("changed", function=pass_on, streaming=True, topics=topics)
    told = "belongs to another function: it reads another number of topics: restore it"
    with pytest.raises(SettingsError, match=told):
        shop.run("other")
    assert shop.rows("other") == [("pen", 0)]


def test_function_that_returns_no_stream_is_refused(shop: Shop) -> None:
    shop.graph = ks.Graph(shop.name)
    orders = shop.graph.topic(f"{shop.name}.orders", value=ks.String())
    options: dict[str, Any] = {"mode": "append", "id": "other", "streaming": True}
    shop.graph.pipeline(orders, to=ks.Parquet(shop.directory / "other"), **options)(lambda _: shop.spark.range(1))
    with pytest.raises(GraphError, match="pipeline 'other': its function returned no stream: return a DataFrame"):
        shop.run("other")
