"""`kstreams pipeline`: the brokers are asked before Spark starts, and Spark prints only where it is asked to."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyspark.errors import AnalysisException
from typer.testing import CliRunner

import kstreams_py as ks
from kstreams_py import spark
from kstreams_py.cli import pipeline
from kstreams_py.errors import BrokerUnavailable, GraphError, SettingsError, TopicError
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.spark import sessions
from kstreams_py.spark.pipelines.frames import call

PIPELINES = """
import kstreams_py as ks

graph = ks.Graph("shop")
orders = graph.topic("orders", value=ks.String())

@graph.pipeline(orders, to=ks.Parquet("tables/totals"))
def totals(df):
    return df

@graph.pipeline(graph.topic("clicks"), to=ks.Parquet("tables/clicks"))
def clicks(df):
    return df
"""


OF_JSON = (
    ": the JSON of orders is one column, value: make its fields columns with kstreams_py.spark.json_columns(df, "
    '"item STRING, quantity INT"), then name them'
)


class Started(Exception):
    """Spark would start now."""


class Command:
    """`kstreams pipeline` of a graph with two pipelines; Spark does not start."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = directory / "shop.py"
        self.file.write_text(PIPELINES)
        self.found: dict[str, object] | BrokerUnavailable = {"orders": ..., "clicks": ...}
        self.looked: list[set[str]] = []
        self.sessions: list[dict[str, object]] = []
        monkeypatch.setattr(KafkaCluster, "topics", self._look)
        monkeypatch.setattr(spark, "session", self._start)

    def _look(self, names: set[str]) -> dict[str, object]:
        assert self.sessions == []
        self.looked.append(names)
        if isinstance(self.found, BrokerUnavailable):
            raise self.found
        return {name: info for name, info in self.found.items() if name in names}

    def _start(self, _: str, **options: object) -> NoReturn:
        self.sessions.append(options)
        raise Started

    def run(self, *words: str) -> BaseException | None:
        before, *rest = words
        return CliRunner().invoke(pipeline.app, [before, str(self.file), *rest]).exception


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tmp_path, monkeypatch)


@pytest.mark.parametrize("words", [(), ("--follow",), ("totals",)])
def test_brokers_are_asked_for_the_inputs_before_spark_starts(command: Command, words: tuple[str, ...]) -> None:
    assert isinstance(command.run("run", *words), Started)
    assert command.looked == [{"orders"} if "totals" in words else {"orders", "clicks"}]
    command.sessions.clear()
    command.found = BrokerUnavailable("no Kafka broker answers")
    assert command.run("run", *words) is command.found
    assert command.sessions == []


def test_missing_input_is_named_before_spark_starts(command: Command) -> None:
    command.found = {"orders": ...}
    error = command.run("run")
    assert isinstance(error, TopicError)
    told = rf"topic 'clicks' does not exist: run `kstreams topics create \S*{command.file.name}`"  # near, or absolute
    assert re.fullmatch(told, str(error))
    assert command.sessions == []
    assert isinstance(command.run("run", "totals"), Started)


def test_wrong_option_is_named_before_the_brokers_are_asked(command: Command) -> None:
    assert isinstance(command.run("run", "--conf", "executor"), SettingsError)
    assert (command.looked, command.sessions) == ([], [])


@pytest.mark.parametrize("words", [("run",), ("run", "--follow"), ("sql", "SELECT 1")])
@pytest.mark.parametrize(("option", "quiet"), [((), True), (("-v",), False), (("--verbose",), False)])
def test_spark_prints_only_where_it_is_asked_to(
    command: Command, words: tuple[str, ...], option: tuple[str, ...], quiet: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert isinstance(command.run(*words, *option), Started)
    assert caplog.messages == ["starting Spark: this takes a few seconds"]
    assert [each["quiet"] for each in command.sessions] == [quiet]


@pytest.mark.parametrize("submitted", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
def test_quiet_session_hides_its_start_and_logs_errors_only_unless_submitted(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, submitted: bool
) -> None:
    done: list[str] = []

    class Builder:
        def appName(self, _: str) -> Builder:  # noqa: N802, of PySpark
            return self

        def config(self, name: str, value: str) -> Builder:
            done.extend([f"{name}={value}"] * (name == "spark.log.level"))
            return self

        def getOrCreate(self) -> None:  # noqa: N802, of PySpark
            done.append("started")

    @contextmanager
    def hide() -> Iterator[None]:
        done.append("hidden")
        yield
        done.append("shown")

    monkeypatch.setattr(sessions, "SparkSession", SimpleNamespace(builder=Builder()))
    monkeypatch.setattr(sessions, "hidden_start", hide)
    for name in ("_map_classes", "_check_scala"):
        monkeypatch.setattr(sessions, name, lambda: None)
    monkeypatch.setattr(sessions, "_choose_java", lambda _: None)
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    py4j = logging.getLogger("py4j")
    monkeypatch.setattr(py4j, "level", logging.NOTSET)
    names = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    of_plans = [sessions.PySparkLogger.getLogger(name) for name in names]
    for each in of_plans:
        each.setLevel(logging.WARNING)
    sessions.session(quiet=quiet)
    hides = quiet and not submitted
    assert py4j.level == (logging.WARNING if hides else logging.NOTSET)
    assert [each.isEnabledFor(logging.ERROR) for each in of_plans] == [not hides] * 2
    assert done == (["spark.log.level=ERROR", "hidden", "started", "shown"] if hides else ["started"])


@pytest.mark.parametrize(
    ("serde", "error", "remedy"),
    [
        (ks.Json(), "A column with name `item` cannot be resolved. Did you mean `value`?\nJVM stack", OF_JSON),
        (ks.Json(), "[ATTRIBUTE_NOT_SUPPORTED] Attribute `item` is not supported.", OF_JSON),
        (ks.Json(), "condition should be a Column", ""),
        (ks.String(), "A column with name `item` cannot be resolved.", ""),
    ],
)
def test_column_that_is_a_field_of_json_is_named_with_what_makes_it_one(
    serde: ks.Serde[Any], error: str, remedy: str
) -> None:
    graph = ks.Graph("shop")
    orders = graph.topic("orders", value=serde)

    @graph.pipeline(orders, to=ks.Parquet("tables/totals"))
    def totals(_: object) -> NoReturn:
        raise AnalysisException(error)

    with pytest.raises(GraphError) as raised:
        call(graph.pipelines[0], [None])
    shown = error.partition("\n")[0]
    assert str(raised.value) == f"pipeline 'totals': its function does not fit its topics: {shown}{remedy}"
