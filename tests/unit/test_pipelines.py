"""Pipelines: what a graph takes and refuses, what a target refuses, and when runs follow one another."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import GraphError, MissingSoftware, SettingsError
from kstreams_py.graph.pipelines import Mode, Pipeline
from kstreams_py.sinks.manifest import Manifest, decode_manifest, encode_manifest
from kstreams_py.spark import session, sessions
from kstreams_py.spark.pipelines import runner
from kstreams_py.spark.pipelines.runs import (
    KEPT_RUNS,
    PipelineRun,
    Published,
    check_columns,
    check_owner,
    decode_published,
)
from kstreams_py.spark.pipelines.targets import open_target
from tests.tables import each_case


def one(df: Any) -> Any:
    return df


def two(left: Any, right: Any) -> Any:
    return left, right


def declared(function: Any = one, *topics: str, **options: Any) -> Pipeline:
    graph = ks.Graph("shop")
    graph.topic("orders")
    graph.topic("returns")
    graph.topic("far", cluster="west")
    table = ks.Parquet("tables/totals")
    graph.pipeline(*(topics or ("orders",)), **{"to": table, **options})(function)
    (pipeline,) = graph.pipelines
    return pipeline


def test_pipeline_has_what_was_declared_and_the_defaults_of_the_rest() -> None:
    found = declared()
    assert (found.id, found.owner, [topic.name for topic in found.inputs]) == ("one", "shop.one", ["orders"])
    assert (found.mode, found.key, found.every, str(found.target)) == (Mode.COMPLETE, (), 60, "tables/totals")
    found = declared(two, "orders", "returns", id="both", mode="upsert", key=["item"], every="2 hours")
    assert (found.id, found.mode, found.key, found.every) == ("both", Mode.UPSERT, ("item",), 7200)


@each_case(
    ("function", "topics", "options", "message"),
    [
        (two, ("orders",), {}, "pipeline 'two': its function is two.*: write two\\(df\\)"),
        (one, ("orders", "returns"), {}, "write one\\(df_1, df_2\\)"),
        (one, ("missing",), {}, "there is no topic 'missing'"),
        (one, ("far",), {}, "topic 'far' is on cluster 'west': name one of the graph's own"),
        (one, ("orders",), {"mode": "upsrt"}, "mode 'upsrt' is not known: did you mean upsert\\?"),
        (one, ("orders",), {"mode": "upsert"}, "is an upsert without a key: name the columns"),
        (one, ("orders",), {"key": "item"}, "key='item' is a string: write key=\\['item'\\]"),
        (one, ("orders",), {"key": ["item", "item"]}, "key has column 'item' twice: name it once"),
        (one, ("orders",), {"every": "soon"}, "every='soon' is not an interval: write a number and second, minute"),
        (one, ("orders",), {"to": "tables"}, "to='tables' is not a target of a pipeline: give ks.Parquet"),
        (one, ("orders",), {"to": ks.Parquet}, "is not a target of a pipeline"),
        (one, ("orders",), {"to": "returns"}, "is complete, which returns does not take: choose append or upsert"),
        (
            one,
            ("orders",),
            {"to": "orders", "mode": "append"},
            "reads 'orders' and writes to it: give it another topic",
        ),
        (one, ("orders",), {"to": "far", "mode": "append"}, "topic 'far' is on cluster 'west'"),
        (
            one,
            ("orders",),
            {"to": "returns", "mode": "upsert", "key": ["item", "day"]},
            "the key of a record in 'returns' is one column, and key= has item, day: return a column",
        ),
        (one, ("orders",), {"to": ks.Graph("other").topic("totals")}, "there is no topic 'totals': declare it first"),
        (one, ("orders",), {"malformed": "skip"}, "malformed='skip' is not known: choose 'fail' or 'drop'"),
        (
            one,
            ("orders",),
            {"to": ks.PostgreSQL("postgresql://db/shop", table="totals"), "streaming": True},
            "totals has no place for the checkpoint of a stream: give its directory, streaming='checkpoints/...'",
        ),
        (one, ("orders",), {"id": "a.b"}, "pipeline 'a.b': this name is not usable"),
    ],
)
def test_declaration_that_does_not_fit_is_refused_with_its_remedy(
    function: Any, topics: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        declared(function, *topics, **options)


def test_two_pipelines_need_names_and_targets_of_their_own() -> None:
    graph = ks.Graph("shop")
    orders = graph.topic("orders")
    graph.pipeline(orders, to=ks.Parquet("tables/a"))(one)
    with pytest.raises(GraphError, match="pipeline 'one' is declared twice: give one of the two another id="):
        graph.pipeline(orders, to=ks.Parquet("tables/b"))(one)
    with pytest.raises(GraphError, match="'other' writes to tables/a, as pipeline 'one' does: give each a target"):
        graph.pipeline(orders, to=ks.Parquet("tables/a"), id="other")(one)


def test_graph_describes_its_pipelines() -> None:
    graph = ks.Graph("shop")
    graph.pipeline(graph.topic("orders"), to=ks.Parquet("tables/a"))(one)
    assert graph.describe().splitlines()[-4:] == [
        "pipelines",
        "  one: complete, every 60 s",
        "    reads         orders",
        "    keeps         tables/a",
    ]


@pytest.mark.parametrize(
    ("options", "drops"), [({}, True), ({"malformed": "drop"}, True), ({"malformed": "fail"}, False)]
)
def test_records_that_do_not_decode_are_left_out_unless_they_shall_fail_the_run(
    options: dict[str, Any], drops: bool
) -> None:
    for streaming in (False, True):
        graph = ks.Graph("shop")
        graph.pipeline(graph.topic("orders"), to=ks.Parquet("tables/a"), streaming=streaming, **options)(one)
        assert graph.pipelines[0].drops_malformed is drops


def test_parquet_takes_no_url() -> None:
    with pytest.raises(SettingsError, match="'s3a://bucket/t' is a URL: give Parquet the path of a directory, or use"):
        ks.Parquet("s3a://bucket/t")


RUN = PipelineRun(3, "{}", 10, 4, 1700000000.0, 1.5)
PUBLISHED = Published("shop.one", {"item": "string", "records": "bigint"}, (RUN,))


def test_published_runs_are_read_as_they_were_written_in_a_manifest() -> None:
    manifest = Manifest(PUBLISHED.columns, {}, (), PUBLISHED.as_content())
    read = decode_manifest(encode_manifest(manifest))
    assert read.pipeline is not None
    assert decode_published(read.pipeline) == PUBLISHED


def test_runs_of_an_older_release_have_no_lag_and_no_plan() -> None:
    content = PUBLISHED.as_content() | {"runs": [list(RUN)[:6]]}
    assert decode_published(content) == PUBLISHED


def test_published_keeps_the_last_runs_and_plans_where_more_than_numbers_changed() -> None:
    published = None
    for number in range(1, KEPT_RUNS + 3):
        kind = "scan" if number < 20 else "join"
        run = RUN._replace(number=number, plan=f"{kind} from {number} to {number + 1}")
        published = Published.after(published, PUBLISHED.owner, PUBLISHED.columns, run)
    assert published is not None
    assert [run.number for run in published.runs] == list(range(3, KEPT_RUNS + 3))
    assert [run.plan for run in published.runs if run.plan] == ["scan from 19 to 20", "join from 52 to 53"]


@pytest.mark.parametrize("content", [{}, {"owner": "a", "columns": {}, "runs": []}, {"owner": "a", "runs": [[1]]}])
def test_content_that_is_no_run_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it has no runs of a pipeline"):
        decode_published(content)


def test_target_of_another_pipeline_is_refused() -> None:
    check_owner(declared(), PUBLISHED)
    check_owner(declared(), None)
    with pytest.raises(SettingsError, match=r"tables/totals is the table of pipeline 'shop\.one': name another target"):
        check_owner(declared(id="two"), PUBLISHED)


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"key": ["item"]}, [("records", "bigint")], "its rows have no column 'item' of the key, but records: correct"),
        ({}, [("item", "string"), ("Item", "string")], "two of its columns have the same name: item, Item: rename"),
        ({}, [("item", "string"), ("item", "bigint")], "two of its columns have the same name: item, item: rename"),
        ({}, [("item", "void")], "column 'item' is void: nulls without a type, which Delta Lake drops: cast them to"),
        ({}, [("item", "struct<x:int,y:void>")], "column 'item' is struct<x:int,y:void>: nulls without a type"),
        ({}, [("item", "array<void>")], "column 'item' is array<void>: nulls without a type"),
        ({}, [("item", "string collate UNICODE")], "column 'item' is string collate UNICODE, and Spark finds no rows"),
        (
            {"mode": "append"},
            [("item", "string")],
            r"has \(item string, records bigint\): return the columns of the table, or begin",
        ),
    ],
)
def test_columns_that_the_target_does_not_take_are_refused(
    options: dict[str, Any], columns: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_columns(declared(**options), columns, PUBLISHED, "kstreams pipeline reset")


def test_complete_table_takes_other_columns_with_each_run() -> None:
    check_columns(declared(), [("item", "string"), ("nested", "struct<void:int>")], PUBLISHED, "")


def test_following_runs_each_pipeline_at_its_interval_until_it_is_stopped() -> None:
    now, ran = [0.0], list[tuple[str, float]]()
    pipelines = [declared(id="fast", every="10 seconds"), declared(id="slow", every="25 seconds")]

    def run(pipeline: Pipeline) -> None:
        ran.append((pipeline.id, round(now[0])))
        now[0] += 1

    def sleep(seconds: float) -> None:
        now[0] += seconds

    runner.follow(pipelines, run, lambda: now[0] > 45, clock=lambda: now[0], sleep=sleep)
    fast, slow = ([at for name, at in ran if name == each] for each in ("fast", "slow"))
    assert (fast, slow) == ([0, 10, 20, 30, 40], [1, 26])


def test_names_choose_pipelines_and_unknown_ones_are_refused() -> None:
    graph = ks.Graph("shop")
    with pytest.raises(SettingsError, match=r"graph 'shop' has no pipelines: declare one with @graph\.pipeline"):
        runner.choose_pipelines(graph, [])
    orders = graph.topic("orders")
    for name in ("a", "b"):
        graph.pipeline(orders, to=ks.Parquet(Path("tables") / name), id=name)(one)
    assert [each.id for each in runner.choose_pipelines(graph, [])] == ["a", "b"]
    assert [each.id for each in runner.choose_pipelines(graph, ["b"])] == ["b"]
    with pytest.raises(SettingsError, match="graph 'shop' has no pipeline 'c': it has a, b"):
        runner.choose_pipelines(graph, ["c"])


def test_graph_of_pipelines_alone_is_drawn_and_cut_and_has_nothing_to_run() -> None:
    graph = ks.Graph("shop")
    with pytest.raises(GraphError, match="has no processors"):
        graph.validate(needs_processors=False)
    graph.pipeline(graph.topic("orders"), to=ks.Parquet("tables/a"))(one)
    graph.validate(needs_processors=False)
    with pytest.raises(GraphError, match="has no processors"):
        graph.validate()


def test_spark_that_cannot_fetch_its_jars_names_the_command_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        def appName(self, _: str) -> Builder:  # noqa: N802 Spark's name
            return self

        def config(self, *_: str) -> Builder:
            return self

        def getOrCreate(self) -> None:  # noqa: N802
            raise RuntimeError("[JAVA_GATEWAY_EXITED] unresolved dependency\nmore")

    monkeypatch.setattr(sessions, "cached", lambda _: [])
    monkeypatch.setattr(sessions, "_check_java", lambda _: None)
    monkeypatch.setattr(sessions, "SparkSession", SimpleNamespace(builder=Builder()))
    with pytest.raises(
        MissingSoftware, match=r"spark-sql-kafka.*`kstreams jars`: \[JAVA_GATEWAY_EXITED\] unresolved .*y$"
    ):
        session()


@pytest.mark.parametrize(
    ("is_terminal", "modules", "shown"),
    [(True, {}, "true"), (False, {"ipykernel": None}, "true"), (False, {}, "false")],
)
def test_progress_bar_of_spark_is_shown_in_terminal_and_notebook_not_in_a_log(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, modules: dict[str, Any], shown: str
) -> None:
    chosen: dict[str, str] = {}

    class Builder:
        def appName(self, name: str) -> Builder:  # noqa: N802 Spark's name
            return self

        def config(self, name: str, value: str) -> Builder:
            chosen[name] = value
            return self

        def getOrCreate(self) -> None:  # noqa: N802
            pass

    monkeypatch.setattr(sessions, "SparkSession", SimpleNamespace(builder=Builder()))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: is_terminal))
    others = {name: module for name, module in sys.modules.items() if name != "ipykernel"}
    monkeypatch.setattr(sys, "modules", others | modules)
    session(jars=[])
    assert chosen["spark.ui.showConsoleProgress"] == shown
    given: dict[str, Any] = {"spark.ui.showConsoleProgress": "true"}
    session(jars=[], **given)
    assert chosen["spark.ui.showConsoleProgress"] == "true"


@pytest.mark.parametrize(
    ("table", "package", "message"),
    [
        (
            ks.Parquet("tables/a"),
            "pyarrow",
            "a table of Parquet files needs pyarrow: pip install 'kstreams_py[parquet]'",
        ),
        (
            ks.PostgreSQL("postgresql://db/shop", table="totals"),
            "psycopg",
            "a table in PostgreSQL needs psycopg: pip install 'kstreams_py[postgresql]'",
        ),
        (
            ks.Delta("tables/a"),
            "delta.tables",
            "a table of Delta Lake needs delta-spark: pip install 'kstreams_py[delta]'",
        ),
    ],
    ids=["Parquet", "PostgreSQL", "Delta"],
)
def test_target_without_its_package_names_it(
    monkeypatch: pytest.MonkeyPatch, table: Any, package: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingSoftware) as caught:
        open_target(declared(to=table), ks.Settings(), lambda: None)
    assert str(caught.value) == message


@pytest.mark.parametrize("target", [ks.Parquet, ks.Delta])
def test_table_in_a_directory_takes_a_path_as_well_as_its_text(target: Any, tmp_path: Path) -> None:
    assert target(tmp_path) == target(str(tmp_path))
    assert (str(target(tmp_path)), target(tmp_path).checkpoint) == (str(tmp_path), target(str(tmp_path)).checkpoint)


def test_url_that_is_none_of_postgresql_is_refused_without_its_password() -> None:
    pipeline = declared(to=ks.PostgreSQL("postgresql://me:secret@db:x:y/shop?nothing=1", table="totals"))
    with pytest.raises(SettingsError, match="is not a PostgreSQL URL: correct it") as caught:
        open_target(pipeline, ks.Settings(), lambda: None)
    assert "secret" not in str(caught.value)


def test_spark_for_another_scala_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "scala-library-2.12.18.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(MissingSoftware, match=r"is for Scala 2\.12\.18, and .* Scala 2\.13: unset SPARK_HOME"):
        session()


def test_topic_that_a_processor_writes_too_is_no_target() -> None:
    graph = ks.Graph("shop")
    graph.topic("orders")
    graph.topic("totals")
    graph.map("orders", to="totals")(one)
    graph.pipeline("orders", to="totals", mode="append", id="added")(one)
    with pytest.raises(
        GraphError, match=r"pipeline 'added' writes to 'totals', as processor 'one' does: give it a topic"
    ):
        graph.validate()
