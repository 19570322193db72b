"""docs/spark.md: its pipelines and its commands, run as printed, on a real broker and a real Spark."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet
import pytest

from kstreams_py.embedded.java import find_java
from kstreams_py.embedded.nodes import free_ports
from kstreams_py.settings import Settings
from kstreams_py.sinks import Parquet
from kstreams_py.spark import Cut, read_cut
from tests.system.command import Finished, kstreams
from tests.system.harness import Cluster
from tests.waiting import WAIT

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
BEGIN: Final = re.findall(r"<!-- begin -->\n```\n(.*)\n(.*)\n```", TEXT)
COMMANDS: Final = [
    line.removeprefix("kstreams ")
    for block in re.findall(r"<!-- commands -->\n```\n(.*?)```", TEXT, flags=re.DOTALL)
    for line in block.splitlines()
]


class Page:
    """The files of the page in a directory, with topics of other names, and its commands."""

    def __init__(self, servers: str, name: str, directory: Path) -> None:
        self._name, self._directory = name, directory
        self._environment = {
            "KSTREAMS_BOOTSTRAP_SERVERS": servers,
            "XDG_DATA_HOME": str(directory / "data"),
            "XDG_STATE_HOME": str(directory / "state"),
            "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
        }
        for file, block in re.findall(r"<!-- (\w+\.\w+) -->\n```\w+\n(.*?)```", TEXT, flags=re.DOTALL):
            text = block.replace('"shop', f'"{name}').replace("`shop.", f"`{name}.")
            (directory / file).write_text(text, encoding="utf-8")

    def command(self, line: str) -> Finished:
        words = [word.replace("shop.orders", f"{self._name}.orders") for word in shlex.split(line)]
        done = kstreams(*words, environment=self._environment, cwd=self._directory)
        assert done.status == 0, done.err
        return done

    def run(self, file: str) -> str:
        """What a script of the page prints."""
        done = subprocess.run(
            [sys.executable, file], cwd=self._directory, env={**os.environ, **self._environment},
            capture_output=True, text=True, timeout=WAIT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def page(name: str, tmp_path: Path) -> Iterator[Page]:
    """The page, with the broker that its second line has started, on a port that is free."""
    [(_, start)] = BEGIN
    (port,) = free_ports([None])
    made = Page(f"127.0.0.1:{port}", name, tmp_path)
    try:
        started = made.command(start.removeprefix("kstreams ").replace("--port 9092", f"--port {port}"))
        assert started.out == f"127.0.0.1:{port}\n"
        yield made
    finally:
        made.command("broker stop")


def test_first_lines_install_what_the_scripts_import_and_start_the_broker() -> None:
    [(install, start)] = BEGIN
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    _, _, ours, *others = shlex.split(install)
    extras = re.findall(r"\w+", ours.partition("[")[2])
    needed = [each for extra in extras for each in project["optional-dependencies"][extra]]
    installed = {re.split(r"[\[<>=]", each)[0] for each in [*project["dependencies"], *needed, *others]}
    blocks = re.findall(r"<!-- (?:\w+\.py|cells) -->\n```(?:python)?\n(.*?)```", TEXT, flags=re.DOTALL)
    imported = set(re.findall(r"^(?:import|from) (\w+)", "\n".join(blocks), flags=re.MULTILINE))
    assert imported == {"kstreams_py", "pandas", "pyspark", "shop"}
    assert imported - {"kstreams_py", "shop"} <= installed
    assert Settings.model_fields["bootstrap_servers"].default == f"127.0.0.1:{start.split()[-1]}"


@pytest.mark.long
def test_commands_and_scripts_of_the_page_make_and_show_its_tables(page: Page, name: str, tmp_path: Path) -> None:
    assert len(COMMANDS) == 11
    outputs = [page.command(line).out.splitlines() for line in COMMANDS]
    created, *sent, listed, ran, status, written, rows, submitted, streamed = outputs
    assert created == [f"created {name}.orders"]
    assert sent == [[], [], []]
    assert listed == [
        f"totals: {name}.orders to tables/totals, complete, every 60 s",
        f"large: {name}.orders to tables/large, append, every 60 s",
    ]
    assert [re.sub(r"[\d.]+ s$", "", line) for line in ran] == [
        "totals: run 1: 2 rows from 3 records in ",
        "large: run 1: 1 row from 3 records in ",
    ]
    assert [line.split()[0] for line in status] == ["totals:", "run", "1", "large:", "run", "1"]
    assert written == ["runs: runs.html"]
    html = (tmp_path / "runs.html").read_text(encoding="utf-8")
    assert re.findall("<h2>(.*?)</h2>|<summary>(.*?)</summary>", html) == [
        ("totals", ""), ("", "the cut of each run"), ("", "the plan of run 1"),
        ("large", ""), ("", "the cut of each run"), ("", "the plan of run 1"),
    ]  # fmt: skip
    assert [json.loads(line) for line in rows] == [{"item": "ink", "quantity": 12}, {"item": "pen", "quantity": 7}]
    assert re.fullmatch(
        r"spark-submit --packages \S+kafka\S+_2\.13:4\S+ --master spark://spark:7077 \S+kstreams_command\.py pipeline "
        r"run shop\.py totals --once",
        submitted[0],
    )
    assert [re.sub(r"[\d.]+ s$", "", line) for line in streamed] == [
        "minutes: run 1: 0 rows from 3 records in ",
        "minutes: run 2: 0 rows from 0 records in ",  # moves the watermark
    ]
    assert page.run("read.py").splitlines() == [
        "[Row(item='ink', quantity=12, orders=1), Row(item='pen', quantity=7, orders=2)]",
        "item,quantity,orders",
        "ink,12,1",
        "pen,7,2",
        "",
    ]
    queried, errors = page.run("query.py").splitlines()
    assert sorted(re.findall(r"item='(\w+)', quantity=(\d+)", queried)) == [("ink", "12"), ("pen", "3"), ("pen", "4")]
    assert errors == "[]"
    detail = page.command("pipeline status shop.py totals --detail").out
    assert re.search(rf"^    {re.escape(name)}\.orders: [\d, ]+\n    == Physical Plan ==$", detail, flags=re.MULTILINE)


@pytest.mark.long
def test_run_at_the_cut_of_the_prose_makes_the_same_table(cluster: Cluster, name: str, tmp_path: Path) -> None:
    page = Page(cluster.bootstrap_servers, name, tmp_path)
    order = """send shop.orders --graph shop.py --value '{"item": "pen", "quantity": 3}'"""
    for line in ("topics create shop.py", order, "pipeline run shop.py totals"):
        page.command(line)
    [first] = map(json.loads, page.command("pipeline status shop.py totals --json").out.splitlines())
    made, again = re.findall(r"`kstreams ((?:cut|pipeline run shop\.py totals --cut) [^`]+)`", TEXT)
    page.command(made)
    assert read_cut(tmp_path / "cut.json") == Cut.decode(json.dumps(first["cut"]), "first")
    table = tmp_path / "tables" / "totals"

    def rows() -> list[dict[str, Any]]:
        tables = [pyarrow.parquet.ParquetFile(path).read() for path in Parquet(table).files()]
        return [row for each in tables for row in each.to_pylist()]

    assert (of_first := rows()) == [{"item": "pen", "quantity": 3, "orders": 1}]
    page.command(order)
    page.command("pipeline run shop.py totals")
    assert rows() == [{"item": "pen", "quantity": 6, "orders": 2}]
    page.command(again)
    assert rows() == of_first
    page.command("pipeline reset shop.py totals --yes")
    assert page.command("pipeline status shop.py totals").out == "totals: tables/totals: no run yet\n"


@pytest.mark.long
def test_submitted_driver_runs_and_publishes_and_its_status_is_passed_on(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(
        f"import kstreams_py as ks\n\ngraph = ks.Graph({name!r})\n"
        f'orders = graph.topic("{name}.orders", value=ks.String())\n\n\n'
        '@graph.pipeline(orders, to=ks.Parquet("table"))\ndef table(df):\n    return df.select("value")\n\n\n'
        '@graph.pipeline(orders, to=ks.Parquet("wrong"))\ndef wrong(df):\n    return df.select("valu")\n',
        encoding="utf-8",
    )
    environment = {
        "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
    }
    cluster.create(f"{name}.orders")
    cluster.write(f"{name}.orders", [b"pen", b"ink"])
    brokers = environment.pop("KSTREAMS_BOOTSTRAP_SERVERS")
    submit = [
        "pipeline", "submit", "shop.py", "--master", "local[1]", "--conf", "spark.app.name=submitted",
        "--bootstrap-servers", brokers, "--run",
    ]  # fmt: skip
    done = kstreams(*submit, "table", environment=environment, cwd=tmp_path)
    assert done.status == 0, done.err
    line, *others = done.out.splitlines()  # spark-submit writes both outputs of the driver to its own
    assert re.fullmatch(
        r"spark-submit --jars \S+ --master 'local\[1\]' --conf spark\.app\.name=submitted \S+ pipeline run shop\.py "
        rf"table --once --bootstrap-servers {brokers}",
        line,
    )
    told = [re.sub(r"[\d.]+ s$", "", each) for each in others if each.startswith("table: ")]
    assert told == ["table: run 1: 2 rows from 2 records in "]
    [file] = Parquet(tmp_path / "table").files()
    assert sorted(row["value"] for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()) == ["ink", "pen"]
    done = kstreams(*submit, "wrong", environment=environment, cwd=tmp_path)
    assert (done.status, "pipeline 'wrong': its function does not fit its topics" in done.out) == (2, True), done.out
    environment["KSTREAMS_BOOTSTRAP_SERVERS"] = brokers
    done = kstreams("pipeline", "run", "shop.py", "wrong", environment=environment, cwd=tmp_path)
    (log, error) = done.err.splitlines()
    assert (done.status, done.error_lines, "INFO" in log) == (2, [error], True), "and no trace of Spark's"


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("SPARK_HOME", "spark-submit does not exist: set SPARK_HOME to the directory of a Spark, or unset it"),
        pytest.param("JAVA_HOME", "java does not run: install it", marks=pytest.mark.long),
    ],
)
def test_submit_without_spark_or_java_names_it_and_the_remedy(tmp_path: Path, variable: str, message: str) -> None:
    (tmp_path / "shop.py").write_text(
        'import kstreams_py as ks\n\ngraph = ks.Graph("shop")\n\n\n'
        '@graph.pipeline(graph.topic("orders"), to=ks.Parquet("table"))\ndef table(df):\n    return df\n',
        encoding="utf-8",
    )
    done = kstreams("pipeline", "submit", "shop.py", "--run", environment={variable: str(tmp_path)}, cwd=tmp_path)
    assert (done.status, len(done.error_lines)) == (2, 1), done.err
    assert message in done.error_lines[0]


def test_setting_that_is_none_of_spark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        'import kstreams_py as ks\n\ngraph = ks.Graph("shop")\n\n\n'
        '@graph.pipeline(graph.topic("orders"), to=ks.Parquet("table"))\ndef table(df):\n    return df\n',
        encoding="utf-8",
    )
    for command in ("submit", "run"):
        done = kstreams("pipeline", command, "shop.py", "--conf", "executor", environment={}, cwd=tmp_path)
        told = "error: SettingsError: --conf 'executor' is not a setting of Spark: write it as spark.name=value"
        assert (done.status, done.error_lines) == (2, [told])


def test_command_without_java_names_it_and_the_remedy(cluster: Cluster, name: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        f"import kstreams_py as ks\n\ngraph = ks.Graph({name!r})\n\n\n"
        f'@graph.pipeline(graph.topic("{name}.orders"), to=ks.Parquet("table"))\ndef table(df):\n    return df\n',
        encoding="utf-8",
    )
    cluster.create(f"{name}.orders")
    environment = {"KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "JAVA_HOME": str(tmp_path)}
    done = kstreams("pipeline", "run", "shop.py", environment=environment, cwd=tmp_path)
    assert (done.status, len(done.error_lines)) == (2, 1)
    assert "does not run; it needs Java 17 or 21" in done.error_lines[0]
