"""The notebook of docs/spark.md, run by a real kernel: what its cells show, with Spark's progress bar."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import nbformat
import pytest
from nbclient import NotebookClient

from kstreams_py.embedded.java import find_java
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.formats.serdes import bind
from tests.system.harness import Cluster
from tests.waiting import WAIT

pytestmark = pytest.mark.long  # a page of the documentation as printed, with a kernel and a session of its own

TEXT: Final = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")

SLOW: Final = """
import time

from pyspark.sql import functions as sf

slow = sf.udf(lambda item: time.sleep(2) or item, "string")
view = spark.view(session, graph.topics["{name}.orders"], malformed="drop")
view.select(slow("item").alias("item")).distinct().count()
"""

ERRORS: Final = "session.sql('SELECT error, offset FROM kstreams.`{name}.orders_errors`').toPandas()"


def make_notebook(cells: list[str]) -> Any:
    made = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    made.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]  # type: ignore[no-untyped-call]
    return made


def shown(cell: Any) -> str:
    """The value of a cell, and what it has printed to standard output, as text without the terminal's codes."""
    texts = [output["data"]["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    printed = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
    return re.sub(r"\x1b\[[\d;]*m|\r", "", "".join([*printed, *texts])).strip()


def errors_of(cell: Any) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stderr")


def test_cells_show_decoded_views_a_pipeline_its_table_and_the_progress_of_a_query(
    cluster: Cluster, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, block in re.findall(r"<!-- (shop\.py|order\.avsc) -->\n```\w+\n(.*?)```", TEXT, flags=re.DOTALL):
        (tmp_path / file).write_text(block.replace('"shop', f'"{name}'), encoding="utf-8")
    (block,) = re.findall(r"<!-- cells -->\n```\n(.*?)```", TEXT, flags=re.DOTALL)
    cells = block.replace("`shop.", f"`{name}.").split("# next cell\n")
    registry = FileRegistry(tmp_path / "schemas")
    serde = bind(Avro(tmp_path / "order.avsc"), registry, f"{name}.orders-value")
    cluster.create(f"{name}.orders")
    orders = [("pen", 3), ("ink", 12), ("pen", 4)]
    cluster.write(
        f"{name}.orders", [serde.serialize({"item": item, "quantity": n}) for item, n in orders] + [b"broken"]
    )
    environment = {
        **{
            key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")
        },  # the kernel looks for them
        "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "KSTREAMS_SCHEMA_DIRECTORY": str(tmp_path / "schemas"),
        "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
        "JUPYTER_PLATFORM_DIRS": "1",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = make_notebook([*cells, ERRORS.format(name=name), SLOW.format(name=name), "session.stop()"])
    client = NotebookClient(
        notebook,
        timeout=int(WAIT),
        iopub_timeout=int(WAIT),
        startup_timeout=int(WAIT),
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    )
    client.execute(env=environment)
    created, view, ran, table, errors, counted, _ = notebook.cells
    assert shown(created) == "'kstreams'"
    assert [line.split() for line in shown(view).splitlines()] == [
        ["item", "quantity"], ["0", "pen", "3"], ["1", "pen", "4"], ["2", "ink", "12"],
    ]  # fmt: skip
    told = [re.sub(r"[\d.]+ s$", "", line) for line in shown(ran).splitlines() if line.startswith("totals")]
    assert told == ["totals: run 1: 2 rows from 4 records in "]
    assert [line.split() for line in shown(table).splitlines()] == [
        ["item", "quantity", "orders"], ["0", "ink", "12", "1"], ["1", "pen", "7", "2"],
    ]  # fmt: skip
    assert "its value is not in the Avro wire format" in shown(errors)
    assert shown(counted) == "2"
    assert re.search(r"\[Stage \d+:[=> ]+\(\d+ \+ \d+\) / \d+\]", errors_of(counted)), errors_of(counted)
