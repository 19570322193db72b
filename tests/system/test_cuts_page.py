"""docs/cuts.md: its graph, its code and its command, run as printed, on a real broker and a real Spark."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from kstreams_py.embedded.java import find_java
from tests.system.command import kstreams
from tests.system.harness import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()

TEXT: Final = (Path(__file__).parents[2] / "docs" / "cuts.md").read_text(encoding="utf-8")
BLOCKS: Final = re.findall(r"(?:<!-- ([\w.]+) -->\n)?```\w*\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.long  # a page of the documentation as printed; that of the quick tier is README
def test_code_of_the_page_shows_each_record_in_one_view_and_the_file_the_same_ones(
    cluster: Cluster, spark: SparkSession, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's session is the running one."""
    assert [block for block, _ in BLOCKS] == ["shop.py", "first", "later", "file", "commands"], "each block is run"
    shop, first, later, file, command = (re.sub(r"\bshop(?=\.[^p]|\")", name, text) for _, text in BLOCKS)
    (tmp_path / "shop.py").write_text(shop, encoding="utf-8")
    environment = {"KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    java = find_java(for_spark=True).resolve().parent.parent
    for variable, value in {**environment, "JAVA_HOME": str(java)}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    topics = [f"{name}.{each}" for each in ("carts", "orders", "lines")]
    cluster.create(*topics)

    def check_out(*carts: str) -> None:
        """A transaction as one of the graph's processor."""
        records = [(topic, cart.encode()) for cart in carts for topic in topics[1:]]
        cluster.transaction(f"{name}.writer", records)
        cluster.await_markers(*topics[1:])

    names: dict[str, Any] = {}
    try:
        check_out("pen", "ink")
        exec(first, names)
        check_out("cup")
        exec(later, names)
        exec(file, names)
        values = {
            each: sorted(row["value"] for row in names[each].select("value").collect())
            for each in ("old_orders", "old_lines", "new_orders", "new_lines", "same_orders")
        }
    finally:
        sys.modules.pop("shop", None)
    assert values == {
        "old_orders": ["ink", "pen"],
        "old_lines": ["ink", "pen"],
        "new_orders": ["cup"],
        "new_lines": ["cup"],
        "same_orders": ["ink", "pen"],
    }
    done = kstreams(*shlex.split(command)[1:], environment=environment, cwd=tmp_path)
    assert done.status == 0, done.err
    assert sorted(json.loads((tmp_path / "cut.json").read_text(encoding="utf-8"))["topics"]) == sorted(topics[1:])
