"""Cuts and pipelines while the broker is frozen: its connections stay open, and nothing is answered."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import kstreams_py as ks
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import BrokerUnavailable
from kstreams_py.graph.loading import load
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.spark.pipelines import runner
from kstreams_py.spark.pipelines.parquet import ParquetTable
from tests.system.command import command, kstreams
from tests.system.harness import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()

GRAPH: Final = """
import kstreams_py as ks

graph = ks.Graph({name!r})
orders = graph.topic("{name}.orders", value=ks.String())


@graph.pipeline(orders, to=ks.Parquet({directory!r} + "/added"), mode="append", every="1 second")
def added(orders):
    return orders.select("value")


@graph.pipeline(orders, to=ks.Parquet({directory!r} + "/streamed"), mode="append", every="1 second", streaming=True)
def streamed(orders):
    return orders.select("value")
"""


class Site:
    """A graph with a pipeline of batches and a stream over one topic, and the broker that is frozen."""

    def __init__(self, kafka: EmbeddedKafka, name: str, directory: Path) -> None:
        self.kafka, self.topic, self._cluster = kafka, f"{name}.orders", Cluster(kafka.bootstrap_servers)
        self._cluster.create(self.topic)
        self.file = directory / "frozen.py"
        self.file.write_text(GRAPH.format(name=name, directory=str(directory)), encoding="utf-8")
        self.graph = load(f"{self.file}:graph")
        self.address = kafka.bootstrap_servers
        self.environment = {
            "KSTREAMS_BOOTSTRAP_SERVERS": self.address,
            "KSTREAMS_REQUEST_TIMEOUT_MS": "4000",
            "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
        }
        self.settings = ks.Settings(bootstrap_servers=self.address, request_timeout_ms=5_000)

    def pipeline(self, pipeline_id: str) -> Pipeline:
        (found,) = runner.choose_pipelines(self.graph, [pipeline_id])
        return found

    def write(self, *values: str) -> None:
        self._cluster.transaction(f"{self.topic}.writer", [(self.topic, value.encode()) for value in values])
        self._cluster.await_markers(self.topic)

    def rows(self, pipeline_id: str) -> list[Any]:
        """The published values, read without Spark and without the broker."""
        target = self.pipeline(pipeline_id).target
        assert isinstance(target, ks.Parquet)
        return sorted(row["value"] for path in target.files() for row in pyarrow.parquet.read_table(path).to_pylist())


@pytest.fixture
def site(own_broker: EmbeddedKafka, topic_name: str, tmp_path: Path) -> Site:
    return Site(own_broker, topic_name, tmp_path)


def freeze_before(site: Site, function: Callable[..., Any]) -> Callable[..., Any]:
    def freezing(*arguments: Any, **options: Any) -> Any:
        site.kafka.pause(0)
        return function(*arguments, **options)

    return freezing


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "name", "by_spark"),
    [(runner, "cut", False), (runner, "begin_explaining", True), (ParquetTable, "publish", True)],
    ids=["cut", "plan", "job"],
)
def test_run_whose_broker_freezes_names_it_and_the_remedy_and_the_next_run_goes_on(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, by_spark: bool
) -> None:
    site.write("pen")
    pipeline = site.pipeline("added")
    runner.run_once(pipeline, site.graph, spark, site.settings)
    site.write("ink")
    told = f"no Kafka broker answers at {site.address}: start one"
    if by_spark:
        told = rf"pipeline 'added': the broker of {site.topic} does not answer Spark \(.*\): check it, and run"
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, freeze_before(site, getattr(owner, name)))
        with pytest.raises(BrokerUnavailable, match=told):
            runner.run_once(pipeline, site.graph, spark, site.settings)
    assert site.rows("added") == ["pen"]
    site.kafka.resume(0)
    site.write("cup")
    runner.run_once(pipeline, site.graph, spark, site.settings)
    assert site.rows("added") == ["cup", "ink", "pen"]


@pytest.mark.parametrize(
    "words",
    [
        "cut {}",
        # a run makes a cut first
        pytest.param("pipeline run {} added", marks=pytest.mark.long),
        pytest.param("pipeline run {} --follow", marks=pytest.mark.long),
    ],
)
def test_command_ends_with_the_address_and_the_remedy_while_the_broker_is_frozen(site: Site, words: str) -> None:
    site.kafka.pause(0)
    ended = kstreams(*words.format(f"{site.file}:graph").split(), environment=site.environment)
    told = f"error: BrokerUnavailable: no Kafka broker answers at {site.address}: start one (`kstreams broker start`), "
    assert (ended.status, ended.error_lines[0][: len(told)]) == (3, told)


@pytest.mark.long
@pytest.mark.parametrize(
    ("pipeline_id", "told"),
    [
        ("added", "no Kafka broker answers at {address}: start one.*"),
        # Spark asks three times, each time for twice the time of a request
        ("streamed", r"the broker of {topic} does not answer Spark \(.*\): check it, and .*"),
    ],
)
def test_following_waits_for_a_frozen_broker_and_goes_on(
    site: Site, tmp_path: Path, pipeline_id: str, told: str
) -> None:
    site.write("pen")
    words = ("pipeline", "run", f"{site.file}:graph", pipeline_id, "--follow")
    with command(tmp_path, *words, environment=site.environment) as running:
        running.await_text("run 1: 1 row from 1 record")
        site.kafka.pause(0)
        why = told.format(address=site.address, topic=site.topic)
        running.await_text(f"pipeline '{pipeline_id}': {why}; the last published table stays, and it is tried again")
        assert site.rows(pipeline_id) == ["pen"]
        site.kafka.resume(0)
        site.write("ink", "cup")
        running.await_text(r"run \d+: 2 rows from 2 records")
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    assert site.rows(pipeline_id) == ["cup", "ink", "pen"]
