"""What kstreams_py uses of PySpark's private attributes: each is there, and one that is not is one message."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kstreams_py as ks
from kstreams_py.errors import MissingSoftware
from kstreams_py.spark import private_api
from kstreams_py.spark.pipelines import driver
from kstreams_py.spark.pipelines.frames import evaluate
from tests.waiting import WAIT

PACKAGE: Final = Path(private_api.__file__).parent

USES: Final[dict[str, tuple[Callable[[Any, Any], object], tuple[str, ...]]]] = {
    "explain": (
        lambda _, rows: private_api.explain(rows), ("_jvm", "_jdf", "queryExecution", "explainString"),
    ),
    "optimized_plan": (lambda _, rows: private_api.optimized_plan(rows), ("_jdf", "queryExecution", "optimizedPlan")),
    "start_observation": (
        lambda spark, rows: private_api.start_observation("rows", spark, rows),
        ("_jvm", "Observation", "_jsparkSession", "observationManager", "_jdf"),
    ),
    "silence": (
        lambda spark, _: private_api.silence(spark, "org.example"), ("_jvm", "Configurator", "Level"),
    ),
    "open_path": (
        lambda spark, _: private_api.open_path(spark, "file:///"), ("_jvm", "_jsc", "hadoopConfiguration", "Path"),
    ),
}  # fmt: skip
"""How each function is called, and what it uses."""

OF_BATCH: Final = ("_jsq", "streamingQuery", "lastExecution", "observedMetrics")


class Lacking:
    """An object of PySpark, and all that it returns, without one attribute."""

    def __init__(self, real: Any, name: str) -> None:
        self._real, self._name = real, name

    def __getattr__(self, attribute: str) -> Any:
        if attribute == self._name:
            raise AttributeError(f"no {attribute}")
        return Lacking(getattr(self._real, attribute), self._name)

    def __call__(self, *given: Any) -> Any:
        return Lacking(self._real(*(each._real if isinstance(each, Lacking) else each for each in given)), self._name)


def message(name: str) -> str:
    version = re.escape(pyspark.__version__)
    remedy = re.escape("install PySpark 4.0: pip install 'pyspark==4.0.*'")
    return rf"^PySpark {version} lacks one of .*{name}.* \(no {name}\): {remedy}$"


def test_each_attribute_is_there_and_without_it_is_named_with_version_and_remedy(spark: SparkSession) -> None:
    rows = spark.range(1).observe("rows", sf.count("*"))
    for use, names in USES.values():
        use(spark, rows)
        for name in names:
            with pytest.raises(MissingSoftware, match=message(name)):
                use(Lacking(spark, name), Lacking(rows, name))


def test_each_attribute_that_a_batch_of_a_stream_uses_is_there_and_named_without(spark: SparkSession) -> None:
    found: list[int] = []
    told: list[str] = []

    def store(batch: DataFrame, _: int) -> None:
        evaluate(batch)
        row = private_api.observed_by_batch(query, ["records", "other"])["records"]
        found.append(row.getLong(0))
        for name in OF_BATCH:
            try:
                private_api.observed_by_batch(Lacking(query, name), ["records"])  # type: ignore[arg-type]
            except MissingSoftware as error:
                told.append(str(error))

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    counted = rows.observe("records", sf.count(sf.lit(1)))
    query = counted.writeStream.foreachBatch(store).trigger(availableNow=True).start()
    assert query.awaitTermination(int(WAIT))
    assert found == [3]
    assert [bool(re.search(message(name), line)) for name, line in zip(OF_BATCH, told, strict=True)] == [True] * 4


def test_class_or_method_of_java_that_is_not_there_is_named(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    calls: tuple[Callable[[], object], ...] = (
        lambda: java.org.apache.spark.sql.NoSuch("rows"),
        lambda: java.PythonSQLUtils.noSuch("rows"),
        lambda: java.PythonSQLUtils.explainString("rows"),
    )
    told = r"lacks one of the class, which kstreams_py uses \(.+\): install PySpark 4\.0"
    for call in calls:
        with pytest.raises(MissingSoftware, match=told), private_api._needed("the class"):
            call()


def test_run_looks_for_all_of_it_before_it_reads(spark: SparkSession) -> None:
    graph = ks.Graph("shop")
    graph.pipeline(graph.topic("orders"), to=ks.Parquet("table"), id="table")(lambda df: df)
    away = ks.Settings(bootstrap_servers="127.0.0.1:9")
    for function, name in (("explain", "_jvm"), ("start_observation", "observationManager")):
        session_of_other = Lacking(spark, name)
        with pytest.raises(MissingSoftware, match=message(name)):
            driver.run_all(graph.pipelines, graph, session_of_other, away, lambda *_: None, None)
        with pytest.raises(MissingSoftware, match=message(name)):
            driver.follow_all(graph.pipelines, graph, session_of_other, away, lambda *_: None, lambda: True)
        assert name in USES[function][1]


def test_no_other_module_uses_private_attributes_of_pyspark() -> None:
    """The names that the messages have are those that the tests take away."""
    found = {
        path.relative_to(PACKAGE).as_posix(): used
        for path in PACKAGE.rglob("*.py")
        if (
            used := set(
                re.findall(r"(?<!self)\._(?:j[a-z]+\w*|sc|session|gateway)\b", path.read_text(encoding="utf-8"))
            )
        )
    }
    assert found == {"private_api.py": {"._jvm", "._jdf", "._jsparkSession", "._jsq", "._jsc"}}
    text = (PACKAGE / "private_api.py").read_text(encoding="utf-8")
    named = {name for names in re.findall(r"with _needed\(([^)]*)\)", text) for name in re.findall(r"(\w+)\"", names)}
    assert named == {name for _, names in USES.values() for name in names} | {*OF_BATCH}
