"""README's examples, run as printed, except that they use the test's own broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from kstreams_py.formats.file_registry import FileRegistry
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import dead_letters
from tests.system.harness import Cluster, wait_until

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "127.0.0.1:9092"


def read_blocks() -> dict[str, str]:
    """README's Python blocks by their file names."""
    text = README.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", text, flags=re.DOTALL))


def read_command() -> list[str]:
    """README's command that runs the graph, for this interpreter."""
    found = re.search(r"^kstreams (run shop\.py .*)$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found
    return [sys.executable, "-m", "kstreams_py", *found[1].split()]


def test_readme_graph_runs_as_printed_and_spark_reads_it(cluster: Cluster, tmp_path: Path) -> None:
    for name, text in read_blocks().items():
        (tmp_path / name).write_text(text.replace(ADDRESS, cluster.bootstrap_servers), encoding="utf-8")
    environment = {
        **os.environ,
        "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "KSTREAMS_SCHEMA_DIRECTORY": str(tmp_path / "schemas"),
        "PYTHONUNBUFFERED": "1",
    }
    with (tmp_path / "out").open("wb") as out:
        running = subprocess.Popen(read_command(), cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: "shop.orders" in cluster.admin.list_topics(timeout=10).topics, "the topics are created")
            subprocess.run([sys.executable, "orders.py"], cwd=tmp_path, check=True, timeout=60)
            wait_until(
                lambda: sum(cluster.committed("shop.price", "shop.orders").values()) == 10, "all orders are committed"
            )
            wait_until(lambda: len((tmp_path / "out").read_bytes().splitlines()) == 6, "all totals are printed")
        finally:
            running.terminate()
            _, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors.decode()
    priced = {number: (number % 4) * 5 for number in range(10) if number % 4 and number != 7}
    rows = {m.key().decode(): json.loads(m.value()) for m in cluster.read("shop.priced")}
    assert {key: row["total"] for key, row in rows.items()} == {f"order-{n}": total for n, total in priced.items()}
    assert sorted(m.key() for m in cluster.read("shop.refused")) == [b"order-0", b"order-4", b"order-8"]
    (dead_letter,) = cluster.read("shop.errors")
    decoded = bind(dead_letters(), FileRegistry(tmp_path / "schemas"), "shop.errors-value").deserialize(
        dead_letter.value()
    )
    assert (decoded["processor"], decoded["exception_class"]) == ("shop.price", "builtins.KeyError")
    printed = [line.split() for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted((key, int(total)) for _, key, total in printed) == [
        (f"order-{n}", t) for n, t in sorted(priced.items())
    ]
    spark = subprocess.run(
        [sys.executable, "totals.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert spark.returncode == 0, spark.stderr
    assert re.findall(r"key='(order-\d)'", spark.stdout) == [f"order-{n}" for n in priced]


def test_readme_names_only_commands_that_exist() -> None:
    text = README.read_text(encoding="utf-8")
    for line in sorted(
        set(re.findall(r"kstreams (run|topics|graph|broker start|broker|demo flights|spark-options)", text))
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kstreams_py", *line.split(), "--help"], capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, line


def test_example_files_equal_the_code_blocks_of_readme() -> None:
    examples = {
        path.name: path.read_text(encoding="utf-8").split('"""\n\n', 1)[1]
        for path in (README.parent / "examples").glob("*.py")
    }
    assert examples == read_blocks()
