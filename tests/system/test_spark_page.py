"""docs/spark.md: its pipelines and its commands, run as printed, on a real broker and a real Spark."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

import pyarrow.parquet
import pytest

from kstreams_py.embedded.java import find_java
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.file_registry import FileRegistry
from kstreams_py.formats.serdes import bind
from kstreams_py.sinks import Parquet
from kstreams_py.spark import Cut, read_cut
from tests.system.command import Finished, kstreams
from tests.system.harness import Cluster

TEXT: Final = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
COMMANDS: Final = [
    line.removeprefix("kstreams ")
    for block in re.findall(r"<!-- commands -->\n```\n(.*?)```", TEXT, flags=re.DOTALL)
    for line in block.splitlines()
]


def test_commands_of_the_page_make_and_show_its_tables(cluster: Cluster, name: str, tmp_path: Path) -> None:
    for file, block in re.findall(r"<!-- (\w+\.\w+) -->\n```\w+\n(.*?)```", TEXT, flags=re.DOTALL):
        (tmp_path / file).write_text(block.replace('"shop', f'"{name}'), encoding="utf-8")
    environment = {
        "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "KSTREAMS_SCHEMA_DIRECTORY": str(tmp_path / "schemas"),
        "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
    }
    cluster.create(f"{name}.orders")
    serde = bind(Avro(tmp_path / "order.avsc"), FileRegistry(tmp_path / "schemas"), f"{name}.orders-value")

    def send(*orders: tuple[str, int]) -> None:
        values = [serde.serialize({"item": item, "quantity": quantity}) or b"" for item, quantity in orders]
        cluster.transaction(f"{name}.writer", [(f"{name}.orders", value) for value in values])
        cluster.await_markers(f"{name}.orders")

    send(("pen", 3), ("ink", 12), ("pen", 4))

    def command(line: str) -> Finished:
        done = kstreams(*shlex.split(line), environment=environment, cwd=tmp_path)
        assert done.status == 0, done.err
        return done

    assert len(COMMANDS) == 6
    listed, ran, status, paged, rows, submitted = [command(line).out.splitlines() for line in COMMANDS]
    assert listed == [
        f"totals: complete of {name}.orders to tables/totals, every 60 s",
        f"large: append of {name}.orders to tables/large, every 60 s",
    ]
    assert [re.sub(r"[\d.]+ s$", "", line) for line in ran] == [
        "totals: run 1: 2 rows of 4 offsets in ",
        "large: run 1: 1 rows of 4 offsets in ",
    ]
    assert [line.split()[0] for line in status] == ["totals:", "run", "1", "large:", "run", "1"]
    assert paged == ["runs: runs.html"]
    page = (tmp_path / "runs.html").read_text(encoding="utf-8")
    assert re.findall("<h2>(.*?)</h2>|<summary>(.*?)</summary>", page) == [
        ("totals", ""), ("", "the plan of run 1"), ("large", ""), ("", "the plan of run 1"),
    ]  # fmt: skip
    assert [json.loads(line) for line in rows] == [{"item": "ink", "quantity": 12}, {"item": "pen", "quantity": 7}]
    assert re.fullmatch(
        r"spark-submit --packages \S+kafka\S+_2\.13:4\S+ --master spark://spark:7077 \S+kstreams_command\.py pipeline "
        r"run shop\.py totals --once",
        submitted[0],
    )

    [first] = map(json.loads, command("pipeline status shop.py totals --json").out.splitlines())
    command("cut shop.py -o cut.json")
    assert read_cut(tmp_path / "cut.json") == Cut.decode(json.dumps(first["cut"]), "first")
    send(("cup", 1))
    again = json.loads(command("pipeline run shop.py totals --cut cut.json --json").out)
    assert (again["run"], again["rows"]) == (2, 2)
    tables = [pyarrow.parquet.ParquetFile(path).read() for path in Parquet(tmp_path / "tables" / "totals").files()]
    assert sorted(row["item"] for table in tables for row in table.to_pylist()) == ["ink", "pen"]

    command("pipeline reset shop.py totals --yes")
    assert command("pipeline status shop.py totals").out == "totals: tables/totals: no run yet\n"


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
    submit = ("pipeline", "submit", "shop.py", "--master", "local[1]", "--run")
    done = kstreams(*submit, "table", environment=environment, cwd=tmp_path)
    assert done.status == 0, done.err
    line, *others = done.out.splitlines()  # spark-submit writes both outputs of the driver to its own
    assert re.fullmatch(r"spark-submit --jars \S+ --master 'local\[1\]' \S+ pipeline run shop\.py table --once", line)
    told = [re.sub(r"[\d.]+ s$", "", each) for each in others if each.startswith("table: ")]
    assert told == ["table: run 1: 2 rows of 2 offsets in "]
    [file] = Parquet(tmp_path / "table").files()
    assert sorted(row["value"] for row in pyarrow.parquet.ParquetFile(file).read().to_pylist()) == ["ink", "pen"]
    done = kstreams(*submit, "wrong", environment=environment, cwd=tmp_path)
    assert (done.status, "pipeline 'wrong': its function does not fit its topics" in done.out) == (2, True), done.out


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("SPARK_HOME", "spark-submit does not exist: set SPARK_HOME to the directory of a Spark, or unset it"),
        ("JAVA_HOME", "java does not run: install it"),
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


def test_command_without_java_names_it_and_the_remedy(cluster: Cluster, name: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        f"import kstreams_py as ks\n\ngraph = ks.Graph({name!r})\n\n\n"
        f'@graph.pipeline(graph.topic("{name}.orders"), to=ks.Parquet("table"))\ndef table(df):\n    return df\n',
        encoding="utf-8",
    )
    environment = {"KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "JAVA_HOME": str(tmp_path)}
    done = kstreams("pipeline", "run", "shop.py", environment=environment, cwd=tmp_path)
    assert (done.status, len(done.error_lines)) == (2, 1)
    assert "does not run; it needs Java 17 or 21" in done.error_lines[0]
