"""Pipelines on a real broker and a real Spark: each record has its effect once, at whatever point the driver dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import psycopg
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kstreams_py as ks
from bench.servers import Server
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import (
    GraphError,
    InputLost,
    PipelineFailed,
    RowRefused,
    SettingsError,
    SinkUnavailable,
    StaleWriter,
)
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.sinks import Parquet
from kstreams_py.spark import Cut, options, views
from kstreams_py.spark.pipelines import inputs, parquet, runner
from kstreams_py.spark.pipelines.parquet import ParquetTable
from kstreams_py.spark.pipelines.runs import Published
from kstreams_py.spark.pipelines.targets import open_target
from kstreams_py.spark.reader_options import ReaderOptions
from tests.system.command import command
from tests.system.harness import Cluster, metadata
from tests.system.shop import Shop
from tests.waiting import WAIT, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()


@pytest.fixture
def shop(cluster: Cluster, spark: SparkSession, name: str, tmp_path: Path, postgresql: Server) -> Shop:
    return Shop(cluster, spark, name, tmp_path, postgresql)


def values(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    return sorted(row[0] for row in rows)


LONG: Final = pytest.mark.long
"""Of the targets, the quick tier has all modes of Parquet here, and each kind of target in the contract tests."""


@pytest.mark.parametrize("pipeline_id", ["totals", pytest.param("totals_rows", marks=LONG)])
def test_complete_table_is_that_of_all_committed_records(shop: Shop, pipeline_id: str) -> None:
    shop.write("orders:pen", "orders:ink", "returns:pen")
    shop.write("orders:cup", "returns:cup", commit=False)
    first = shop.run(pipeline_id)
    assert first is not None
    assert (first.number, first.rows, shop.rows(pipeline_id)) == (1, 2, [("ink", 1), ("pen", 2)])
    assert shop.run(pipeline_id, since=time.time()) is None
    shop.write("orders:ink")
    second = shop.run(pipeline_id)
    assert second is not None
    assert (second.number, shop.rows(pipeline_id)) == (2, [("ink", 2), ("pen", 2)])


@pytest.mark.long  # in the quick tier those are the increments of the next test
@pytest.mark.parametrize("pipeline_id", ["added", "added_rows"])
def test_append_adds_only_what_is_new_since_the_cut_in_the_target(shop: Shop, pipeline_id: str) -> None:
    shop.write("orders:pen", "orders:ink")
    shop.run(pipeline_id)
    shop.write("orders:pen", "orders:cup")
    second = shop.run(pipeline_id)
    assert second is not None
    assert (second.rows, values(shop.rows(pipeline_id))) == (2, values(shop.model(pipeline_id)))
    assert shop.run(pipeline_id) is None


@pytest.mark.parametrize(
    "increments",
    [("a5", "a5 c1 c1 a1 c2 a3", "c2 a3 c2"), pytest.param(("a5 c3", "c3 a5", "c1 c1 a1 c2"), marks=LONG)],
    ids=" ".join,
)
def test_increments_have_the_committed_records_wherever_aborted_ones_and_markers_lie(
    shop: Shop, increments: tuple[str, ...]
) -> None:
    """All records of an increment are aborted, the first, the last, or those in the middle; or markers lie between."""
    shop.run("added")
    assert shop.run("added") is None
    for increment in increments:
        before = shop.model("added")
        for word in increment.split():
            shop.write(*["orders:pen"] * int(word[1:]), commit=word[0] == "c")
        made = shop.run("added")
        assert made is not None
        assert (made.rows, shop.rows("added")) == (len(shop.model("added")) - len(before), shop.model("added"))


@pytest.mark.long  # quick is the table at a cut, which is that of the model before
@pytest.mark.parametrize("pipeline_id", ["latest", "latest_rows"])
def test_upsert_replaces_the_rows_of_the_same_key(shop: Shop, pipeline_id: str) -> None:
    shop.write("orders:pen", "orders:ink")
    shop.run(pipeline_id)
    shop.write("orders:pen", "orders:cup")
    shop.run(pipeline_id)
    assert shop.rows(pipeline_id) == shop.model(pipeline_id) == [("cup", 4), ("ink", 1), ("pen", 3)]


@pytest.mark.long  # the quick tier has a command that follows a stream, too: test_streaming_pipelines
def test_following_publishes_what_is_new_until_it_is_stopped(shop: Shop, tmp_path: Path) -> None:
    environment = {
        "KSTREAMS_BOOTSTRAP_SERVERS": shop.cluster.bootstrap_servers,
        "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
    }
    shop.write("orders:pen")
    arguments = ("pipeline", "run", f"{shop.file}:graph", "added", "--follow")
    with command(tmp_path, *arguments, environment=environment) as running:
        running.await_text("added: run 1: 1 row from 1 record")
        shop.write("orders:ink", "orders:cup")
        running.await_text(r"added: run \d+: 2 rows")  # a run between the records and their marker has none
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    assert values(shop.rows("added")) == ["cup", "ink", "pen"]


@pytest.mark.long
def test_lag_is_from_the_cut_before_or_the_last_look_and_a_changed_plan_is_kept(shop: Shop) -> None:
    shop.write("orders:pen")
    first = shop.run("added")
    shop.write("orders:ink")
    second = shop.run("added")
    looked = time.time()
    shop.write("orders:cup")
    third = shop.run("added", since=looked)
    assert first is not None
    assert second is not None
    assert third is not None
    made = Cut.decode(first.cut, "cut").made
    assert made is not None
    assert [first.lag, second.lag, third.lag] == [None, second.ended - made, third.ended - looked]
    pipeline = shop.pipeline("added")
    published = runner.read_published(pipeline, shop.settings, lambda: shop.spark)
    assert published is not None
    # it did not change: no transaction was open at a cut, whose records then pass no filter of their own
    plans = [run.plan for run in published.runs]
    assert [plan[:20] for plan in plans] == ["", "", "== Physical Plan ==\n"], plans
    assert plans[-1].count("Filter (") == 1, "that of records that do not decode"


# Mutations: what the tests above would show if the pipeline were made another way.


def test_mutation_that_keeps_the_cut_outside_the_target_doubles_rows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OutsideTarget:
        """Rows go to the target, and the runs to this object, one after the other."""

        stored: Published | None = None

        def __init__(self, pipeline: Pipeline, *_: object) -> None:
            self.target = ParquetTable(pipeline, cast(ks.Parquet, pipeline.target))

        def read(self) -> Published | None:
            return self.stored

        def publish(self, rows: Any, previous: Published | None, finish: Any) -> Published:
            made = self.target.publish(rows, self.target.read(), finish)
            if is_dying:
                raise KeyboardInterrupt
            type(self).stored = made
            return made

        def close(self) -> None:
            self.target.close()

    monkeypatch.setattr(runner, "open_target", OutsideTarget)
    shop.write("orders:pen")
    is_dying = True
    with pytest.raises(KeyboardInterrupt):
        shop.run("added")
    is_dying = False
    shop.run("added")
    assert values(shop.rows("added")) == ["pen", "pen"]


def test_mutation_that_reads_uncommitted_records_has_those_of_aborted_transactions(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncommitted(*arguments: Any, **named: Any) -> ReaderOptions:
        return ReaderOptions(options(*arguments, **named) | {"kafka.isolation.level": "read_uncommitted"})

    monkeypatch.setattr(views, "options", uncommitted)
    shop.write("orders:pen")
    shop.write("orders:cup", commit=False)
    shop.write("orders:ink")
    shop.run("added")
    assert values(shop.rows("added")) == ["cup", "ink", "pen"]


# What does not fit: one message, and the last published table stays.


def declare(
    shop: Shop, function: Any, graph: ks.Graph | None = None, topics: Sequence[str] = ("orders",), **given: Any
) -> Pipeline:
    """A pipeline over topics of the shop, of another graph than those of the file."""
    graph = graph or ks.Graph(f"{shop.name}.more")
    inputs = [graph.topic(f"{shop.name}.{each}", key=ks.String(), value=ks.String()) for each in topics]
    graph.pipeline(*inputs, **{"to": ks.Parquet(shop.directory / "other"), "id": "other", **given})(function)
    shop.graph = graph
    return graph.pipelines[-1]


UNFIT: Final[list[tuple[Any, dict[str, Any], type[Exception], str]]] = [
    (lambda df: df.collect(), {}, GraphError, "its function returned list: return a DataFrame"),
    (lambda df: df.select("valu"), {}, GraphError, "its function does not fit its topics: .*`valu` cannot be"),
    (lambda df: df.select(df.valu), {}, GraphError, "its function does not fit its topics: .*`valu` is not"),
    (lambda df: df.where(7), {}, GraphError, "its function does not fit its topics: .*should be"),
    (
        lambda df: df.select(sf.raise_error(sf.lit("no price"))).collect(),
        {}, PipelineFailed, "Spark failed: .*no price.*; the last published table stays",
    ),
    (lambda df: df, {"key": ["item"]}, SettingsError, "its rows have no column 'item' of the key"),
    (lambda df: df.select("value"), {"key": ["value"]}, RowRefused, "2 rows have the key value='pen'"),
    (
        lambda df: df.select(sf.raise_error(sf.lit("no price")).cast("string").alias("price")),
        {}, PipelineFailed, "Spark failed: .*no price.*; the last published table stays",
    ),
]  # fmt: skip
"""Functions that do not fit, with what is declared, and the error."""


@pytest.mark.long  # in the quick tier, a failed run leaves the table: test_pipeline_targets.py
def test_function_that_does_not_fit_is_named_and_the_last_table_stays(shop: Shop) -> None:
    shop.write("orders:pen")
    declare(shop, lambda df: df.select("value"))
    shop.run("other")
    shop.write("orders:pen")
    for function, given, error, message in UNFIT:
        declare(shop, function, **given)
        with pytest.raises(error, match=f"pipeline 'other': {message}"):
            shop.run("other")
        assert shop.rows("other") == [("pen",)], message


@pytest.mark.parametrize("mode", [pytest.param("complete", marks=LONG), "append"])
def test_record_that_does_not_decode_fails_the_run_or_is_left_out_and_counted(
    shop: Shop, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.write("orders:pen")
    shop.cluster.write(f"{shop.name}.orders", [b"\xff", b"ink"])
    declare(shop, lambda df: df.select("value"), mode=mode, malformed="fail")
    with pytest.raises(PipelineFailed, match=r"orders\[0\] offset 2: its value is not text in UTF-8"):
        shop.run("other")
    declare(shop, lambda df: df.select("value"), mode=mode)
    first = shop.run("other")
    shop.write("orders:cup")
    second = shop.run("other")
    assert first is not None
    assert second is not None
    assert (first.offsets, first.records, first.malformed, first.rows) == (4, 3, 1, 2)
    assert (second.records, second.malformed) == ((4, 1) if mode == "complete" else (1, 0))
    assert values(shop.rows("other")) == ["cup", "ink", "pen"]
    name = f"{shop.name}.orders"
    assert f"1 records of {name} do not decode, and are left out; {name}[0] offset 2: its value is not" in caplog.text


@pytest.mark.long  # quick are the counts of each run in the other tests
def test_records_are_counted_once_whatever_the_function_does_with_them(shop: Shop) -> None:
    shop.write("orders:pen", "orders:ink", "orders:cup", "returns:pen")
    seen = list[int]()

    def twice(orders: DataFrame, returns: DataFrame) -> DataFrame:
        seen.append(orders.limit(1).count())  # a job of its own, which does not count
        again = orders.select("value")
        return orders.select("value").union(again).distinct().union(returns.select("value"))

    declare(shop, twice, topics=("orders", "returns"))
    found = shop.run("other")
    assert found is not None
    assert (seen, found.records, found.rows) == ([1], 4, 4)
    declare(shop, lambda orders, returns: orders.select("value"), topics=("orders", "returns"))
    found = shop.run("other")
    assert found is not None
    assert (found.records, found.rows) == (3, 3)  # of returns nothing is read


@pytest.mark.parametrize(
    "pipeline_id", ["latest", *(pytest.param(each, marks=LONG) for each in ("totals", "added", "totals_rows"))]
)
def test_run_at_a_cut_makes_the_same_rows_again(shop: Shop, pipeline_id: str) -> None:
    shop.write("orders:pen", "orders:ink", "returns:pen")
    shop.write("orders:pen", "returns:cup")
    shop.run(pipeline_id)
    cut, rows = shop.published(pipeline_id).last.cut, shop.rows(pipeline_id)
    shop.write("orders:cup", "orders:pen", "returns:nib")
    shop.run(pipeline_id)
    assert shop.rows(pipeline_id) == shop.model(pipeline_id) != rows
    if pipeline_id in ("added", "latest"):
        with pytest.raises(
            SettingsError, match=r"exchange them, or make the other one again; `kstreams pipeline reset.*`"
        ):
            shop.run(pipeline_id, given=Cut.decode(cut, "cut"))
        shop.reset(pipeline_id)
    shop.run(pipeline_id, given=Cut.decode(cut, "cut"))
    assert shop.rows(pipeline_id) == rows


@pytest.mark.long
def test_compacted_topic_is_warned_of_at_the_first_run(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    name = f"{shop.name}.prices"
    shop.cluster.create(name, config={"cleanup.policy": "compact"})
    declare(shop, lambda df: df.select("value"), topics=("prices",))
    shop.cluster.write(name, [b"1"])
    shop.run("other")
    shop.cluster.write(name, [b"2"])
    shop.run("other")
    told = [message for message in caplog.messages if "is compacted" in message]
    made = "its table is made of what compaction has left when a run reads it"
    assert told == [f"pipeline 'other': topic '{name}' is compacted: {made}"]


@pytest.mark.long  # a session of its own, for a message
def test_delta_without_its_settings_in_the_session_is_named(shop: Shop) -> None:
    shop.write("orders:pen")
    shop.file.write_text(
        f"import kstreams_py as ks\n\ngraph = ks.Graph({shop.name!r})\n"
        f"graph.pipeline(graph.topic('{shop.name}.orders', value=ks.String()), to=ks.Delta('{shop.directory}/delta'), "
        "id='other')(lambda df: df.select('value'))\n"
        "if __name__ == '__main__':\n"
        "    from kstreams_py.spark import session\n"
        "    from kstreams_py.spark.pipelines import runner\n"
        f"    settings = ks.Settings(bootstrap_servers={shop.cluster.bootstrap_servers!r})\n"
        "    runner.run_once(graph.pipelines[0], graph, session(), settings)\n"
    )
    environment = {**os.environ, "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent)}
    done = subprocess.run(
        [sys.executable, str(shop.file)], env=environment, capture_output=True, text=True, timeout=WAIT, check=False
    )
    told = r"MissingSoftware: .*has no Delta Lake: make it with spark\.session\(\*\*spark\.delta_conf"
    assert re.search(told, done.stderr), done.stderr


@pytest.mark.long  # executors of other machines, which no quick test has
def test_rows_that_do_not_arrive_in_the_directory_fail_the_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with executors that have disks of their own."""
    shop.write("orders:pen")
    shop.run("added")
    shop.write("orders:ink")
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "_uri", lambda path: f"file://{path}-elsewhere")
        with pytest.raises(
            SinkUnavailable, match="Spark wrote 1 rows, but 0 are there: the directory must be on a file"
        ):
            shop.run("added")
    assert values(shop.rows("added")) == ["pen"]
    shop.run("added")
    assert values(shop.rows("added")) == ["ink", "pen"]


@pytest.mark.long
def test_directory_is_a_local_one_whatever_the_file_system_of_the_session_is(shop: Shop) -> None:
    assert shop.spark is not None
    hadoop = shop.spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        for pipeline_id in ("added", "latest"):  # what adds files, and what reads those that are there
            shop.write("orders:pen")
            shop.run(pipeline_id)
            shop.write("orders:pen")
            shop.run(pipeline_id)
            assert shop.rows(pipeline_id) == shop.model(pipeline_id)
    finally:
        hadoop.set("fs.defaultFS", before)


def test_target_of_another_pipeline_or_of_nobody_is_refused(shop: Shop) -> None:
    shop.write("orders:pen")
    shop.run("added")
    mine = shop.graph
    declare(shop, lambda df: df, to=ks.Parquet(shop.directory / "added"))
    with pytest.raises(SettingsError, match=rf"is the table of pipeline '{shop.name}\.added': name another target"):
        shop.run("other")
    photos = shop.directory / "photos"
    (photos / "pen").mkdir(parents=True)
    declare(shop, lambda df: df, to=ks.Parquet(photos))
    with pytest.raises(SettingsError, match="has 'pen', which no pipeline has written: name another directory"):
        shop.run("other")
    with pytest.raises(SettingsError, match=r"is the table of pipeline .*: name another directory"):
        Parquet(shop.directory / "added", columns={"value": str}).open("shop.store")
    shop.graph = mine
    assert values(shop.rows("added")) == ["pen"]


def test_directory_that_was_edited_by_hand_stops_the_pipeline_until_it_is_reset(shop: Shop) -> None:
    shop.write("orders:pen")
    shop.run("added")
    pipeline = shop.pipeline("added")
    (file,) = cast(ks.Parquet, pipeline.target).files()
    content = file.read_bytes()
    for broken in (b"", content[:-8]):
        file.write_bytes(broken)
        with pytest.raises(SettingsError, match=r"is not the file that was published: .* `kstreams pipeline reset.*`"):
            shop.run("added")
    file.unlink()
    with pytest.raises(SettingsError, match=r"is not the file that was published"):
        shop.run("added")
    with shop.open(pipeline.id) as target:
        target.reset()
    shop.run("added")
    assert values(shop.rows("added")) == ["pen"]


@pytest.mark.long  # quick is a directory that was edited by hand
def test_manifest_removed_by_hand_stops_runs_until_the_directory_is_moved_away(shop: Shop) -> None:
    """Without it the directory looks new: a run would begin again at what the topics have kept."""
    shop.write("orders:pen")
    shop.run("added")
    pipeline = shop.pipeline("added")
    manifest = shop.directory / "added" / "_manifest.json"
    content = manifest.read_bytes()
    manifest.unlink()
    told = r"_manifest\.json: it was removed by hand: restore it, or move the directory away, then start again$"
    for step in (shop.run, shop.reset, shop.rows):
        with pytest.raises(SinkUnavailable, match=told):
            step("added")
    manifest.write_bytes(content)
    shop.write("orders:ink")
    shop.run("added")
    assert shop.rows("added") == shop.model("added")
    manifest.unlink()
    cast(ks.Parquet, pipeline.target).directory.rename(shop.directory / "away")
    shop.run("added")
    assert shop.rows("added") == shop.model("added")


@pytest.mark.long  # quick is a file of another size
@pytest.mark.parametrize("pipeline_id", ["added", "totals", "latest"])
def test_file_that_was_replaced_by_another_with_as_many_rows_stops_runs_and_readers(
    shop: Shop, pipeline_id: str
) -> None:
    """The other file has even the same footer: its columns have the same least and greatest values."""
    shop.write("orders:pen", "orders:ink")
    pipeline = shop.pipeline(pipeline_id)
    shop.run(pipeline_id)
    rows, (file, *_) = shop.rows(pipeline_id), cast(ks.Parquet, pipeline.target).files()
    content, table = file.read_bytes(), pq.ParquetFile(file).read()
    backwards = table.column(0).take(list(reversed(range(len(table)))))
    pq.write_table(table.set_column(0, table.column_names[0], backwards), file)
    shop.write("orders:cup")
    message = rf"{file.name} is not the file that was published: .*: restore it, or .* `kstreams pipeline reset.*`"
    with pytest.raises(SettingsError, match=message):
        shop.run(pipeline_id)
    target = open_target(pipeline, shop.settings, lambda: shop.spark)
    with closing(target), pytest.raises(SettingsError, match=message):
        target.table(shop.spark)
    file.write_bytes(content)
    assert shop.rows(pipeline_id) == rows
    shop.run(pipeline_id)
    assert shop.rows(pipeline_id) == shop.model(pipeline_id)


@pytest.mark.long
def test_files_that_an_earlier_release_published_without_digests_are_the_tables(shop: Shop) -> None:
    shop.write("orders:pen")
    shop.run("added")
    path = shop.directory / "added" / "_manifest.json"
    manifest = json.loads(path.read_text())
    assert len(manifest.pop("digests")) == 1
    path.write_text(json.dumps(manifest))
    shop.write("orders:ink")
    shop.run("added")
    assert shop.rows("added") == shop.model("added")
    assert len(json.loads(path.read_text())["digests"]) == 1


def test_other_columns_are_refused_where_rows_stay(shop: Shop) -> None:
    shop.write("orders:pen")
    for to, mode in ((ks.Parquet(shop.directory / "b"), "append"), (shop.postgresql("b"), "complete")):
        declare(shop, lambda df: df.select("value"), to=to, mode=mode)
        shop.run("other")
        declare(shop, lambda df: df.select("value", "offset"), to=to, mode=mode)
        shop.write("orders:ink")
        words = "its rows (do not )?have the columns .*: return the columns of the table, or begin again with"
        with pytest.raises(SettingsError, match=words):
            shop.run("other")
        assert values(shop.rows("other")) == ["ink", "pen"][-len(shop.rows("other")) :]
        assert ("pen",) in shop.rows("other")


def test_table_in_postgresql_refuses_an_unknown_type_a_foreign_and_a_dropped_table(shop: Shop) -> None:
    shop.write("orders:pen")
    target = shop.postgresql("c")
    declare(shop, lambda df: df.select("headers"), to=target)
    with pytest.raises(SettingsError, match=r"column 'headers' is array.*: return it as one of string"):
        shop.run("other")
    with psycopg.connect(shop.url) as connection:
        connection.execute(f"CREATE TABLE {target.table} (item text)")
    declare(shop, lambda df: df.select("value"), to=target)
    for step in (shop.run, shop.reset):
        with pytest.raises(SettingsError, match=r"exists, and no pipeline has made it, or .*: name another table"):
            step("other")
    with psycopg.connect(shop.url) as connection:
        connection.execute(f"DROP TABLE {target.table}")
    shop.run("other")
    with psycopg.connect(shop.url) as connection:
        connection.execute(f"DROP TABLE {target.table}")
    with pytest.raises(SettingsError, match=r"was dropped by hand: restore it, or begin again with"):
        shop.run("other")


@pytest.mark.long  # in the quick tier those of the contract
@pytest.mark.parametrize("pipeline_id", ["added", "added_rows"])
def test_run_that_another_one_has_overtaken_publishes_nothing(shop: Shop, pipeline_id: str) -> None:
    shop.write("orders:pen")
    mine = shop.graph
    pipeline = shop.pipeline(pipeline_id)

    def slow(orders: DataFrame) -> DataFrame:
        runner.run_once(pipeline, mine, shop.spark, shop.settings)
        return pipeline.function(orders)  # type: ignore[no-any-return]

    overtaken = replace(pipeline, function=slow)
    with pytest.raises(StaleWriter, match="another run was published meanwhile: run it again"):
        runner.run_once(overtaken, mine, shop.spark, shop.settings)
    assert values(shop.rows(pipeline_id)) == ["pen"]


# Topics that have changed between two runs.


def test_deleted_records_stop_what_is_incremental_and_are_named_of_a_complete_table(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.write("orders:pen")
    shop.run("added")
    shop.run("totals")
    shop.cluster.write(f"{shop.name}.orders", [b"ink"])  # no transaction, whose marker may come after the deletion
    shop.cluster.delete_records(f"{shop.name}.orders")
    shop.write("orders:cup")
    with pytest.raises(InputLost, match=r"^pipeline 'added': .*\[0\]: the records from offset 2 to 2 .* reset[^`]*`"):
        shop.run("added")
    assert values(shop.rows("added")) == ["pen"]
    shop.run("totals")
    assert shop.rows("totals") == [("cup", 1)]
    assert f"pipeline 'totals': {shop.name}.orders[0]: the records from offset 0 to 2 were deleted" in caplog.text


def test_topic_that_was_created_again_stops_what_is_incremental(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.write("orders:pen")
    shop.run("added")
    shop.run("totals")
    topic = f"{shop.name}.orders"
    shop.cluster.admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in metadata(shop.cluster.admin).topics, "the topic is deleted")
    shop.cluster.create(topic)
    shop.write("orders:ink")
    with pytest.raises(SettingsError, match=r"^pipeline 'added': .* deleted and created again .* pipeline reset[^`]*`"):
        shop.run("added")
    assert values(shop.rows("added")) == ["pen"]
    shop.run("totals")
    assert shop.rows("totals") == [("ink", 1)]
    assert f"pipeline 'totals': topic '{topic}' was created again since the last run" in caplog.text


def test_partitions_that_were_added_are_read_from_their_start(shop: Shop) -> None:
    shop.write("orders:pen")
    shop.run("added")
    topic = f"{shop.name}.orders"
    shop.cluster.admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
    wait_until(lambda: shop.cluster.partitions(topic) == [0, 1], "the partition is known")
    shop.cluster.write(topic, [b"ink", b"cup"], partition=1)
    shop.run("added")
    assert values(shop.rows("added")) == ["cup", "ink", "pen"]


@pytest.mark.long
@pytest.mark.parametrize("is_small", [True, False])
def test_few_new_records_are_read_by_no_more_tasks_than_run_at_once(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    at_once = spark.sparkContext.defaultParallelism
    numbers = range(at_once + 3)
    topic = f"{shop.name}.orders"
    shop.cluster.admin.create_partitions([NewPartitions(topic, len(numbers))])[topic].result()
    wait_until(lambda: shop.cluster.partitions(topic) == [*numbers], "the partitions are known")
    monkeypatch.setattr(inputs, "TASK_OFFSETS", 1 + 3 / at_once if is_small else 1)
    seen, made = set[Path](), list[int]()
    for turn in range(2):
        for number in numbers:
            shop.cluster.write(topic, [b"%d-%d" % (turn, number)], partition=number)
        shop.run("added")
        files = set(shop.directory.glob("added/**/part-*.parquet"))
        made.append(len({path.name.split("-")[1] for path in files - seen}))
        seen |= files
    assert made == [at_once if is_small else len(numbers)] * 2
    assert values(shop.rows("added")) == sorted(f"{turn}-{number}" for turn in range(2) for number in numbers)
