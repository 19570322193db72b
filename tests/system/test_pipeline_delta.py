"""Pipelines into tables of Delta Lake, on a real broker and a real Spark.

A look at a table costs a second of CPU. The quick tier has the test in which two runs want to commit the same number;
that a commit is whole is Delta's own promise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kstreams_py as ks
from kstreams_py.errors import SettingsError, StaleWriter
from kstreams_py.spark.pipelines import runner
from tests.system.harness import Cluster
from tests.system.shop import Pipelines
from tests.system.test_pipeline_deaths import read_delta

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # of collect()
    pytest.mark.filterwarnings("ignore:.*is_datetime64tz_dtype:DeprecationWarning"),
]

GRAPH: Final = """
from pyspark.sql import functions as sf

import kstreams_py as ks

graph = ks.Graph({name!r})
orders = graph.topic("{name}.orders", key=ks.String(), value=ks.String())


@graph.pipeline(orders, to=ks.Delta({directory!r} + "/totals"), key=["item"])
def totals(orders):
    return orders.groupBy(sf.col("value").alias("item")).agg(sf.count("*").alias("records"))


@graph.pipeline(orders, to=ks.Delta({directory!r} + "/added"), mode="append")
def added(orders):
    return orders.select("value", "offset")


@graph.pipeline(orders, to=ks.Delta({directory!r} + "/latest"), mode="upsert", key=["item"])
def latest(orders):
    return orders.groupBy(sf.col("value").alias("item")).agg(sf.max("offset").alias("at"))


@graph.pipeline(orders, to=ks.Delta({directory!r} + "/streamed"), mode="append", streaming=True)
def streamed(orders):
    return orders.select("value", "offset")
"""


CHANGED: Final = r": the directory was changed by hand: restore it, or begin again with `kstreams pipeline reset.*`$"


class Shop(Pipelines):
    """A graph with a topic and pipelines into tables of Delta Lake."""

    spark: SparkSession

    def __init__(self, cluster: Cluster, spark: SparkSession, name: str, directory: Path) -> None:
        super().__init__(cluster, spark, name, directory, GRAPH.format(name=name, directory=str(directory)))
        cluster.create(f"{name}.orders")

    run = Pipelines.run_all

    def write(self, *values: str) -> None:
        self.cluster.write(f"{self.name}.orders", [value.encode() for value in values])

    def rows(self, pipeline_id: str) -> list[tuple[Any, ...]]:
        read = self.spark.read.format("delta").load(str(self.directory / pipeline_id))
        return sorted(map(tuple, read.collect()))


@pytest.fixture
def shop(cluster: Cluster, spark: SparkSession, name: str, tmp_path: Path) -> Shop:
    return Shop(cluster, spark, name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("pipeline_id", "expected"),
    [
        ("totals", [("cup", 1), ("ink", 1), ("pen", 2)]),
        ("added", [("cup", 3), ("ink", 1), ("pen", 0), ("pen", 2)]),
        ("latest", [("cup", 3), ("ink", 1), ("pen", 2)]),
        ("streamed", [("cup", 3), ("ink", 1), ("pen", 0), ("pen", 2)]),
    ],
)
def test_table_has_what_its_mode_says(shop: Shop, pipeline_id: str, expected: list[tuple[Any, ...]]) -> None:
    shop.write("pen", "ink")
    (first,) = shop.run(pipeline_id)
    shop.write("pen", "cup")
    (second,) = shop.run(pipeline_id)
    assert first is not None
    assert second is not None
    assert (first.number, first.rows, second.number) == (1, 2, 2)
    assert shop.rows(pipeline_id) == expected
    if pipeline_id != "totals":
        assert shop.run(pipeline_id) == [None]


@pytest.mark.long
@pytest.mark.parametrize("pipeline_id", ["added", "latest"])
def test_run_without_rows_is_published_too(shop: Shop, pipeline_id: str) -> None:
    shop.write("pen")
    shop.run(pipeline_id)
    pipeline = shop.pipeline(pipeline_id)
    nothing = replace(pipeline, function=lambda df: pipeline.function(df).where("false"))
    shop.write("ink")
    run = runner.run_once(nothing, shop.graph, shop.spark, shop.settings)
    assert run is not None
    assert (run.number, run.rows) == (2, 0)
    assert shop.run(pipeline_id) == [None]


@pytest.mark.long
def test_directory_named_like_a_pattern_and_columns_with_spaces_are_those_of_a_table(shop: Shop) -> None:
    graph = ks.Graph(shop.name)
    orders = graph.topic(f"{shop.name}.orders", value=ks.String())
    target = ks.Delta(shop.directory / "o[d]d {a,b}*")
    graph.pipeline(orders, to=target, mode="append", id="odd")(lambda df: df.selectExpr("value AS `the item`"))
    shop.graph = graph
    for number in range(1, 4):
        shop.write("pen")
        assert [run and (run.number, run.rows) for run in shop.run("odd")] == [(number, 1)]
    (file, *_) = Path(target.path).rglob("part-*.parquet")
    file.unlink()
    shop.write("pen")
    with pytest.raises(SettingsError, match=rf": its file {file.name} is missing{CHANGED}"):
        shop.run("odd")


@pytest.mark.parametrize("moment", [pytest.param("read", marks=pytest.mark.long), "written"])
def test_run_that_another_one_has_overtaken_publishes_nothing(
    shop: Shop, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run is published before this one looks, or after."""
    shop.write("pen")
    pipeline = shop.pipeline("added")
    shop.run("added")
    shop.write("ink")

    def overtake() -> None:
        monkeypatch.undo()
        shop.run("added")

    def slow(orders: DataFrame) -> DataFrame:
        overtake()
        return pipeline.function(orders)  # type: ignore[no-any-return]

    if moment == "written":
        from kstreams_py.spark.pipelines.delta import DeltaLakeTable  # noqa: PLC0415

        write = DeltaLakeTable._write

        def late(self: DeltaLakeTable, spark: SparkSession, rows: DataFrame, *, is_new: bool) -> None:
            conf = {name: spark.conf.get(name, "") for name in _CONF}
            overtake()
            for name, value in conf.items():
                spark.conf.set(name, value or "")
            write(self, spark, rows, is_new=is_new)

        monkeypatch.setattr(DeltaLakeTable, "_write", late)
    mine = replace(pipeline, function=slow) if moment == "read" else pipeline
    with pytest.raises(StaleWriter, match="another run was published meanwhile: run it again"):
        runner.run_once(mine, shop.graph, shop.spark, shop.settings)
    assert [row[0] for row in read_delta(shop.directory / "added")] == ["ink", "pen"]


_CONF: Final = [
    f"spark.databricks.delta.{name}" for name in ("commitInfo.userMetadata", "write.txnAppId", "write.txnVersion")
]


@pytest.mark.long
def test_table_that_others_have_changed_is_refused_and_optimizing_it_is_not(shop: Shop) -> None:
    from delta.tables import DeltaTable  # noqa: PLC0415

    shop.write("pen")
    shop.run("added")
    path = str(shop.directory / "added")
    DeltaTable.forPath(shop.spark, path).optimize().executeCompaction()
    shop.write("ink")
    shop.run("added")
    DeltaTable.forPath(shop.spark, path).delete(sf.col("value") == "pen")
    with pytest.raises(
        SettingsError, match=r"version \d+ of .*added, a DELETE, is not of pipeline 'added': name another"
    ):
        shop.run("added")
    shop.reset("added")
    shop.run("added")
    assert [row[0] for row in shop.rows("added")] == ["ink", "pen"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("cut_off", "message"), [(None, "is missing"), (8, "has a size other than in its log")], ids=["missing", "replaced"]
)
def test_data_file_that_is_missing_or_was_replaced_stops_runs_until_it_is_restored(
    shop: Shop, cut_off: int | None, message: str
) -> None:
    """Delta itself notices neither: it would commit the next run beside them."""
    shop.write("pen")
    shop.run("added")
    (file,) = (shop.directory / "added").glob("part-*.parquet")
    crc = file.with_name(f".{file.name}.crc")
    content, sum_of_file = file.read_bytes(), crc.read_bytes()
    shop.write("cup")
    pipeline = shop.pipeline("added")
    for each in (file, crc):
        each.unlink()
    if cut_off is not None:
        file.write_bytes(content[:-cut_off])
    told = rf"added: its file {file.name} {message}{CHANGED}"
    with pytest.raises(SettingsError, match=told):
        shop.run("added")
    with shop.open(pipeline.id) as target:
        with pytest.raises(SettingsError, match=told):
            target.table(shop.spark)
        file.write_bytes(content)
        crc.write_bytes(sum_of_file)
        shop.run("added")
        assert shop.rows("added") == [("cup", 1), ("pen", 0)]
        file.unlink()
        target.reset()
    shop.run("added")
    assert shop.rows("added") == [("cup", 1), ("pen", 0)]


@pytest.mark.long
def test_log_that_was_removed_or_edited_stops_runs_until_the_directory_is_moved_away(shop: Shop) -> None:
    path, kept = shop.directory / "added", shop.directory / "kept"
    for value in ("pen", "ink", "cup"):
        shop.write(value)
        shop.run("added")
    shutil.copytree(path, kept)
    log = path / "_delta_log"
    first, *_, last = sorted(log.glob("*.json"))

    def remove(*files: Path) -> None:
        for file in files:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    def edit() -> None:
        remove(last)
        last.write_text("{nonsense\n")

    changes: dict[str, tuple[Callable[[], None], ...]] = {
        "changed": (lambda: remove(first), lambda: remove(sorted(log.glob("*.json"))[1]), edit),
        "removed": (lambda: remove(*log.glob("*.json")), lambda: shutil.rmtree(log)),
    }
    shop.write("cap")
    for word, each in ((word, each) for word, several in changes.items() for each in several):
        each()
        told = (
            rf"the log of .*added, _delta_log, was {word} by hand: restore it, or move the directory away: then pipel"
        )
        with pytest.raises(SettingsError, match=told):
            shop.run("added")
        with pytest.raises(SettingsError, match=told):
            shop.reset("added")
        shutil.rmtree(path)
        shutil.copytree(kept, path)
    remove(last)  # the table is that of the run before, with its cut
    shop.run("added")
    expected = [("cap", 3), ("cup", 2), ("ink", 1), ("pen", 0)]
    assert shop.rows("added") == expected
    path.rename(shop.directory / "away")
    shop.run("added")
    assert shop.rows("added") == expected


@pytest.mark.long
def test_table_that_no_pipeline_has_made_is_refused_and_an_empty_log_is_none(shop: Shop) -> None:
    path = shop.directory / "added"
    shop.spark.range(3).write.format("delta").save(str(path))
    pipeline = shop.pipeline("added")
    shop.write("pen")
    with pytest.raises(SettingsError, match=r"version 0 of .*added, a WRITE, is not of pipeline 'added': name another"):
        shop.run("added")
    with shop.open(pipeline.id) as target:
        with pytest.raises(SettingsError, match="added is a table that no pipeline has made: name another one"):
            target.reset()
        assert shop.spark.read.format("delta").load(str(path)).count() == 3
    latest = shop.directory / "latest" / "_delta_log"
    latest.mkdir(parents=True)
    shop.run("latest")
    assert shop.rows("latest") == [("pen", 0)]
