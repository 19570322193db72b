"""Pipelines into topics, on a real broker and a real Spark: what readers of committed records find, and once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kstreams_py as ks
from kstreams_py.errors import (
    OutcomeUnknown,
    PipelineFailed,
    RecordTooLarge,
    RowRefused,
    SettingsError,
    StaleWriter,
    TopicError,
)
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.partitioner import partition_of
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.records import HASH_HEADER, TopicPartition
from kstreams_py.spark.pipelines import kafka, runner
from kstreams_py.spark.pipelines.kafka import encode_runs
from kstreams_py.spark.pipelines.runs import PipelineRun, Published, decode_published
from tests.system.harness import Cluster
from tests.system.shop import Pipelines, run_and_die
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()

GRAPH: Final = """
from pyspark.sql import functions as sf

import kstreams_py as ks

graph = ks.Graph({name!r})
orders = graph.topic("{name}.orders", key=ks.String(), value=ks.String())
added = graph.topic("{name}.added", key=ks.String(), value=ks.Json())
latest = graph.topic("{name}.latest", key=ks.String(), value=ks.Json())


@graph.pipeline(orders, to=added, mode="append", id="added")
def add(orders):
    return orders.select(sf.col("value").alias("key"), "value", "offset").withColumnRenamed("value", "item")


@graph.pipeline(orders, to=latest, mode="upsert", key=["item"], id="latest")
def find_latest(orders):
    return orders.groupBy(sf.col("value").alias("item")).agg(sf.max("offset").alias("at"))
"""

AVRO: Final = ks.Avro(
    {
        "type": "record",
        "name": "Total",
        "fields": [{"name": "item", "type": "string"}, {"name": "records", "type": ["null", "int"]}],
    }
)


class Shop(Pipelines):
    """A graph with pipelines into topics."""

    spark: SparkSession

    def __init__(self, cluster: Cluster, spark: SparkSession, name: str, directory: Path) -> None:
        schemas = directory / "schemas"
        super().__init__(cluster, spark, name, directory, GRAPH.format(name=name), schema_directory=schemas)
        cluster.create(f"{name}.orders")
        cluster.create(f"{name}.added", f"{name}.latest", f"{name}.other", partitions=3)

    run = Pipelines.run_once

    def write(self, *values: str) -> None:
        self.cluster.write(f"{self.name}.orders", [value.encode() for value in values])

    def declare(self, function: Any, *, value: Any = None, **given: Any) -> None:
        """A pipeline from the orders to the topic `other`, of a graph of its own."""
        self.graph = ks.Graph(f"{self.name}.more")
        orders = self.graph.topic(f"{self.name}.orders", key=ks.String(), value=ks.String())
        other = self.graph.topic(f"{self.name}.other", key=ks.String(), value=value or ks.Json())
        self.graph.pipeline(orders, to=other, id="other", **{"mode": "append", **given})(function)

    def records(self, topic: str, isolation: str = "read_committed") -> list[tuple[str | None, Any]]:
        """The keys and decoded values of a topic, without Spark."""
        read = self.cluster.read(f"{self.name}.{topic}", isolation)
        return sorted(((m.key() and m.key().decode(), json.loads(m.value())) for m in read), key=repr)


@pytest.fixture
def shop(cluster: Cluster, spark: SparkSession, name: str, tmp_path: Path) -> Shop:
    return Shop(cluster, spark, name, tmp_path)


def test_append_writes_a_record_of_each_new_row_with_a_hash_of_its_own(shop: Shop) -> None:
    shop.write("pen", "ink")
    shop.run("added")
    shop.write("pen")
    second = shop.run("added")
    assert second is not None
    assert (second.number, second.rows) == (2, 1)
    assert shop.run("added") is None
    assert shop.records("added") == [
        ("ink", {"item": "ink", "offset": 1}),
        ("pen", {"item": "pen", "offset": 0}),
        ("pen", {"item": "pen", "offset": 2}),
    ]
    hashes = [dict(m.headers())[HASH_HEADER] for m in shop.cluster.read(f"{shop.name}.added")]
    assert ([len(each) for each in hashes], len(set(hashes))) == ([16, 16, 16], 3)


def test_upsert_writes_keys_where_java_clients_do_and_its_table_has_the_newest(shop: Shop) -> None:
    shop.write("pen", "ink")
    shop.run("latest")
    shop.write("pen")
    shop.run("latest")
    assert shop.records("latest") == [
        ("ink", {"item": "ink", "at": 1}),
        ("pen", {"item": "pen", "at": 0}),
        ("pen", {"item": "pen", "at": 2}),
    ]
    found = {m.key(): m.partition() for m in shop.cluster.read(f"{shop.name}.latest")}
    assert found == {key: partition_of(key, 3) for key in (b"ink", b"pen")}
    pipeline = shop.pipeline("latest")
    with shop.open(pipeline.id) as target:
        rows = target.table(shop.spark).select("key", "value").collect()
    assert sorted((row.key, json.loads(row.value)["at"]) for row in rows) == [("ink", 1), ("pen", 2)]


@pytest.mark.long
@pytest.mark.parametrize("point", ["written", "after-commit-of-topic"])
def test_driver_killed_before_or_after_its_commit_writes_each_row_once(shop: Shop, point: str) -> None:
    shop.write("pen")
    shop.run("added")
    shop.write("ink", "cup")
    run_and_die(shop.file, shop.cluster.bootstrap_servers, "added", point)
    if point != "written":  # which leaves a transaction open
        shop.cluster.await_markers(f"{shop.name}.added", f"__ks.{shop.name}.added.runs")
    items = [value["item"] for _, value in shop.records("added")]
    assert items == (["pen"] if point == "written" else ["cup", "ink", "pen"])
    shop.write("nib", "ink")
    shop.run("added")
    assert [value["item"] for _, value in shop.records("added")] == ["cup", "ink", "ink", "nib", "pen"]
    read = shop.cluster.read(f"{shop.name}.added", "read_uncommitted")
    written = Counter(dict(message.headers())[HASH_HEADER] for message in read)
    # the rows of the run that was aborted have the hashes of the one that made them again
    assert sorted(written.values()) == ([1, 1, 1, 2, 2] if point == "written" else [1] * 5)


@pytest.mark.parametrize(
    ("call", "takes_place"),
    [
        pytest.param("send_offsets", False, marks=pytest.mark.long),
        pytest.param("commit_transaction", False, marks=pytest.mark.long),
        ("commit_transaction", True),  # the one that must not write its rows again
    ],
)
def test_request_whose_outcome_is_unknown_is_made_again_and_each_row_is_written_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, call: str, takes_place: bool
) -> None:
    request, failures = getattr(KafkaProducer, call), ["first"]

    def lose(*arguments: Any) -> None:
        if takes_place or not failures:
            request(*arguments)
        if failures:
            failures.clear()
            raise OutcomeUnknown("the client did not return")

    shop.write("pen")
    shop.run("added")
    shop.write("ink", "cup")
    monkeypatch.setattr(KafkaProducer, call, lose)
    second = shop.run("added")
    assert second is not None
    assert (failures, second.number, second.rows) == ([], 2, 2)
    assert [key for key, _ in shop.records("added")] == ["cup", "ink", "pen"]
    assert shop.run("added") is None


@pytest.mark.long
def test_run_that_another_one_has_overtaken_writes_nothing(shop: Shop) -> None:
    shop.write("pen")
    pipeline = shop.pipeline("added")

    def slow(orders: DataFrame) -> DataFrame:
        runner.run_once(pipeline, shop.graph, shop.spark, shop.settings)
        return pipeline.function(orders)  # type: ignore[no-any-return]

    overtaken = replace(pipeline, function=slow)
    with pytest.raises(StaleWriter, match="another run was published meanwhile: run it again"):
        runner.run_once(overtaken, shop.graph, shop.spark, shop.settings)
    assert [key for key, _ in shop.records("added", "read_uncommitted")] == ["pen"]


def test_avro_and_text_are_written_as_processors_write_them(shop: Shop) -> None:
    shop.write("pen", "ink", "pen")

    def totals(orders: DataFrame) -> DataFrame:
        counts = orders.groupBy(sf.col("value").alias("item")).agg(sf.count("*").alias("records"))
        return counts.withColumn("records", sf.when(sf.col("item") == "pen", sf.col("records")))

    shop.declare(totals, value=AVRO, mode="upsert", key=["item"])
    shop.run("other")
    serde = ks.Avro(json.loads(AVRO.schema), registry=FileRegistry(shop.directory / "schemas"))
    found = sorted((m.key(), serde.deserialize(m.value())["records"]) for m in shop.cluster.read(f"{shop.name}.other"))
    assert found == [(b"ink", None), (b"pen", 2)]


def test_value_that_is_null_is_a_tombstone(shop: Shop) -> None:
    shop.write("pen")
    shop.declare(
        lambda df: df.select(sf.col("value").alias("key"), sf.lit(None).cast("string").alias("value")),
        value=ks.String(),
    )
    shop.run("other")
    assert [(m.key(), m.value()) for m in shop.cluster.read(f"{shop.name}.other")] == [(b"pen", None)]


def test_json_has_fields_that_are_null_and_all_microseconds(shop: Shop) -> None:
    shop.write("pen")
    at = "TIMESTAMP_NTZ '2026-05-01 12:30:00.123456' AS at, TIMESTAMP '2026-05-01 12:30:00.000001Z' AS then"
    shop.declare(lambda df: df.selectExpr("value AS key", f"struct(CAST(NULL AS INT) AS note, {at}) AS value"))
    shop.run("other")
    ((key, value),) = shop.records("other")
    assert (key, value["note"], value["at"]) == ("pen", None, "2026-05-01T12:30:00.123456")
    assert datetime.fromisoformat(value["then"]) == datetime(2026, 5, 1, 12, 30, 0, 1, tzinfo=UTC)


UNFIT: Final[list[tuple[Any, dict[str, Any], type[Exception], str]]] = [
    (
        lambda df: df.select("offset"), {"value": ks.String()}, SettingsError,
        "its rows have no column `value`, and values of topic .*other are String.*: return `key` and `value`",
    ),
    (
        lambda df: df.select("value", "offset"), {"value": ks.String()}, SettingsError,
        "its rows have a column 'offset' beside `value`",
    ),
    (lambda df: df.select("offset"), {"value": AVRO}, SettingsError, r"no column 'item', which Avro\(Total\) has"),
    (
        lambda df: df.selectExpr("value AS item", "1 AS records", "offset"), {"value": AVRO}, SettingsError,
        r"Avro\(Total\) has no field 'offset': leave that column out",
    ),
    (
        lambda df: df.selectExpr("value AS item", "'1' AS records"), {"value": AVRO}, SettingsError,
        r"column 'records' is string, and Avro\(Total\) takes int: cast it to that",
    ),
    (
        lambda df: df.selectExpr("value AS item", "1L << 40 AS records"), {"value": AVRO}, PipelineFailed,
        "Spark failed: .*overflow",
    ),
    (
        lambda df: df.selectExpr("value AS item", "NULL AS note"), {}, SettingsError,
        "column 'note' is void: nulls without a type, which Delta Lake drops: cast them to one",
    ),
    (
        lambda df: df.selectExpr("value AS item", "offset AS item"), {}, SettingsError,
        "two of its columns have the same name: item, item: rename one of them",
    ),
    (
        lambda df: df.selectExpr("offset AS key", "value AS item"), {}, SettingsError,
        r"column 'key' is bigint, and the key of topic .*other is String.*: return it as string",
    ),
    (
        lambda df: df.select("value"), {"mode": "upsert", "key": ["value"], "value": ks.String()}, RowRefused,
        "2 rows have the key value='pen'",
    ),
    (
        lambda df: df.select(sf.repeat("value", sf.lit(1_000_000)).alias("item")), {}, RecordTooLarge,
        "other",
    ),
]  # fmt: skip
"""Rows that a topic does not take, with what is declared, and the error."""


def test_rows_that_a_topic_does_not_take_are_named_and_nothing_is_written(shop: Shop) -> None:
    shop.write("pen", "pen")
    for function, given, error, message in UNFIT:
        shop.declare(function, **given)
        with pytest.raises(error, match=message):
            shop.run("other")
    assert shop.records("other") == []


def test_topic_that_is_missing_or_that_others_write_is_refused(shop: Shop) -> None:
    shop.write("pen")
    shop.declare(lambda df: df.selectExpr("value AS item"))
    shop.cluster.write(f"{shop.name}.other", [b'{"item": "cup"}'])
    with pytest.raises(SettingsError, match=r"other has records that no pipeline has written: name another topic for"):
        shop.run("other")
    shop.cluster.delete(f"{shop.name}.other")
    with pytest.raises(TopicError, match=r"other' does not exist: run `kstreams topics create`"):
        shop.run("other")


def test_topic_that_was_created_again_stops_its_pipeline_until_it_is_reset(shop: Shop) -> None:
    """What its earlier runs have written is gone: the next run would add what is new to nothing."""
    shop.write("pen")
    shop.run("added")
    shop.write("ink")
    shop.cluster.delete(f"{shop.name}.added")
    with pytest.raises(TopicError, match=r"added' does not exist: run `kstreams topics create`"):
        shop.run("added")
    shop.cluster.create(f"{shop.name}.added", partitions=3)
    told = (
        r"'added': topic .*added was deleted and created again since its last run, .* `kstreams pipeline reset.*` lets"
    )
    pipeline = shop.pipeline("added")
    with shop.open(pipeline.id) as target:
        for step in (lambda: shop.run("added"), lambda: target.table(shop.spark)):
            with pytest.raises(SettingsError, match=told):
                step()
        assert shop.records("added") == []
        target.reset()
    shop.run("added")
    assert [key for key, _ in shop.records("added")] == ["ink", "pen"]


@pytest.mark.long
def test_runs_that_an_earlier_release_has_written_without_the_id_are_the_topics(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("pen")
    with monkeypatch.context() as patch:
        patch.setattr(kafka, "encode_runs", lambda published, _: json.dumps(published.as_content()).encode())
        shop.run("added")
    shop.write("ink")
    shop.run("added")
    assert [key for key, _ in shop.records("added")] == ["ink", "pen"]


@pytest.mark.long  # quick is the topic that was created again
def test_topic_whose_runs_were_deleted_is_refused_with_or_without_its_records(shop: Shop) -> None:
    """Readers have had those records: to begin again would give them each record twice."""
    shop.write("pen")
    shop.run("added")
    shop.cluster.delete(f"__ks.{shop.name}.added.runs")
    with pytest.raises(
        SettingsError, match=r"no pipeline has written: .*runs was deleted, delete .*, and create it ag"
    ):
        shop.run("added")
    cluster = KafkaCluster(shop.settings)
    try:
        for tp, end in cluster.ends([TopicPartition(f"{shop.name}.added", n) for n in range(3)]).items():
            cluster.truncate(tp, end)
    finally:
        cluster.close()
    with pytest.raises(
        SettingsError, match=r"had records, which were deleted, and .*runs has no runs: .*: delete the top"
    ):
        shop.run("added")
    shop.cluster.delete(f"{shop.name}.added")
    shop.cluster.create(f"{shop.name}.added", partitions=3)
    shop.run("added")
    assert [key for key, _ in shop.records("added")] == ["pen"]


@pytest.mark.long
def test_newest_row_of_a_key_is_of_the_last_run_though_added_partitions_moved_it(shop: Shop) -> None:
    items = [f"item {number}" for number in range(12)]
    shop.write(*items)
    shop.run("latest")
    futures = shop.cluster.admin.create_partitions([NewPartitions(f"{shop.name}.latest", 7)])
    futures[f"{shop.name}.latest"].result(30)
    cluster = KafkaCluster(shop.settings)
    try:
        wait_until(
            lambda: cluster.topics([f"{shop.name}.latest"])[f"{shop.name}.latest"].partitions == 7, "it has grown"
        )
    finally:
        cluster.close()
    shop.write(*items)
    shop.run("latest")
    pipeline = shop.pipeline("latest")
    with shop.open(pipeline.id) as target:
        rows = target.table(shop.spark).select("key", "value").collect()
    found = {row.key: json.loads(row.value)["at"] for row in rows}
    assert (len(rows), found) == (12, {item: 12 + number for number, item in enumerate(items)})


@pytest.mark.long
def test_topic_of_another_pipeline_is_refused_and_reset_lets_its_own_begin_again(shop: Shop) -> None:
    shop.write("pen")
    shop.run("added")
    mine = shop.graph
    pipeline = shop.pipeline("added")
    shop.graph = ks.Graph("rival")
    orders, added = (shop.graph.topic(f"{shop.name}.{each}", value=ks.String()) for each in ("orders", "added"))
    shop.graph.pipeline(orders, to=added, mode="append", id="rival")(lambda df: df.select("value"))
    with pytest.raises(SettingsError, match=rf"is the table of pipeline '{shop.name}\.added': name another target"):
        shop.run("rival")
    shop.graph = mine
    with shop.open(pipeline.id) as target:
        target.reset()
        assert target.read() is None
    assert shop.records("added") == []
    shop.write("ink")
    shop.run("added")
    assert [key for key, _ in shop.records("added")] == ["ink", "pen"]


def test_reset_that_was_interrupted_holds_runs_off_until_it_is_continued(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("pen")
    shop.run("added")
    pipeline = shop.pipeline("added")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, shop.open(pipeline.id) as target:
        patch.setattr(KafkaCluster, "truncate", die)
        with pytest.raises(KeyboardInterrupt):
            target.reset()
    with pytest.raises(
        SettingsError, match=r"a reset of topic .*added was interrupted: run `kstreams pipeline reset.*`"
    ):
        shop.run("added")
    with shop.open(pipeline.id) as target:
        target.reset()
    assert shop.records("added") == []
    shop.run("added")
    assert [key for key, _ in shop.records("added")] == ["pen"]


def test_run_that_fails_while_it_writes_holds_up_no_reader(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("pen")
    write = KafkaProducer.write

    def fail(self: KafkaProducer, outputs: list[Any]) -> None:
        write(self, outputs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KafkaProducer, "write", fail)
        with pytest.raises(KeyboardInterrupt):
            shop.run("added")
    shop.cluster.await_markers(f"{shop.name}.added")
    assert shop.records("added") == []
    shop.run("added")
    assert [key for key, _ in shop.records("added")] == ["pen"]


def test_record_of_the_runs_has_as_many_as_a_record_takes() -> None:
    run = PipelineRun(1, "x" * 300_000, 1, 1, 1.0, 1.0)
    kept = Published("shop.totals", {}, tuple(run._replace(number=number) for number in range(1, 6)))
    assert [each.number for each in decode_published(json.loads(encode_runs(kept, "id"))).runs] == [4, 5]
    huge = kept._replace(runs=(run._replace(cut="x" * 2_000_000),))
    assert len(decode_published(json.loads(encode_runs(huge, "id"))).runs) == 1
