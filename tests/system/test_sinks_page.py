"""docs/sinks.md: its declarations store rows in real targets, and Spark reads the Parquet files as it says."""

from __future__ import annotations

import datetime
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import AnalysisException

from bench.servers import Server
from kstreams_py.records import TopicPartition
from kstreams_py.sinks import Row

TEXT = (Path(__file__).parents[2] / "docs" / "sinks.md").read_text(encoding="utf-8")
_, DECLARE, READ = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
INPUT = TopicPartition("flights", 0)


# collect() leaves its socket to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def page(postgresql: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page declares, with the servers of the tests in place of its own."""
    monkeypatch.chdir(tmp_path)
    text = DECLARE.replace(
        "loader:secret@db.example/flights", f"postgres@127.0.0.1:{postgresql.port}/postgres?connect_timeout=60"
    )
    text = text.replace("cache.example:6379", f"127.0.0.1:{redis_server.port}")
    assert "example" not in text
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def store(sink: Any, count: int) -> None:
    """Stores rows as two writers do of which the first died before its offsets were committed."""
    now = datetime.datetime.now(datetime.UTC)
    rows = [Row(number.to_bytes(16, "big"), ("UA", number, now)[: len(sink.columns)]) for number in range(count)]
    for _ in range(2):
        with closing(sink.open("flights.store")) as connection:
            stored = connection.positions([INPUT])
            connection.write(rows[stored.get(INPUT, 0) :], {INPUT: count}, stored)


def test_declarations_of_the_page_store_each_row_once(page: dict[str, Any]) -> None:
    for name in ("departed", "local", "latest", "lake"):
        store(page[name], 5)
    with psycopg.connect(page["departed"].url) as connection:
        assert connection.execute("SELECT carrier, month FROM departed ORDER BY month").fetchall() == [
            ("UA", month) for month in range(5)
        ]


@pytest.mark.long
def test_spark_reads_the_published_files_and_nothing_of_the_directory(spark: Any, page: dict[str, Any]) -> None:
    # the page's directory is relative, and Spark's Java process was started in another working directory
    lake = page["lake"]
    for count in range(1, 21):
        store(lake, count)
    (lake.directory / "_data" / "part-of-a-dead-writer.parquet").write_bytes(lake.files()[0].read_bytes())
    exec(READ, page)
    found = page["flights"].orderBy("month").collect()
    assert [tuple(row) for row in found] == [("UA", month) for month in range(20)]
    with pytest.raises(AnalysisException):
        spark.read.parquet(str(lake.directory)).collect()
