"""Writes the archive of Spark's classes by running pipelines once, in a process whose JVM writes it when it exits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kstreams_py.embedded import EmbeddedKafka, class_archive
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import MissingSoftware
from kstreams_py.formats.serdes import Json
from kstreams_py.graph.topology import Graph
from kstreams_py.settings import Settings
from kstreams_py.sinks import Delta, Parquet
from kstreams_py.spark.pipelines.driver import run_all
from kstreams_py.spark.pipelines.targets import conf_of
from kstreams_py.spark.sessions import OF_DRIVER, path_of_archive, session

ARCHIVE_SECONDS: Final = 300.0

_TOPIC: Final = "records"
_RUNS: Final = 2
"""The runs of each pipeline: the second run reads the table that the first one wrote."""

_PROGRAM: Final = "kstreams_py.spark.archiving"


def archive_classes() -> None:
    """Writes the archive of Spark's classes unless it exists (200 MB); later sessions start faster.

    Raises MissingSoftware without PySpark, without a Java that can write an archive, or if Java does not write it, and
    OSError if the cache cannot be written.
    """
    archive = path_of_archive()
    if archive.exists():
        return
    if not class_archive.can_write(java := find_java(for_spark=True)):
        raise MissingSoftware(f"{java} has no archive of its own classes; another Java 17 or 21 may")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        written = Path(directory, archive.name)
        options = [*class_archive.to_write(written), "-XX:TieredStopAtLevel=1"]  # only the fast compiler
        environment = {**os.environ, OF_DRIVER: " ".join(options)}
        try:
            # its output ends only with the JVM, which outlives the process
            done = subprocess.run(
                [sys.executable, "-P", "-m", _PROGRAM],
                cwd=directory, env=environment, capture_output=True, text=True, timeout=ARCHIVE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MissingSoftware(f"Java did not write {archive} within {ARCHIVE_SECONDS:g} s") from None
        if done.returncode or not written.exists():
            raise MissingSoftware(f"Java did not write {archive}: {done.stderr.strip().rpartition(chr(10))[2]}")
        written.replace(archive)


def declare(directory: Path) -> Graph:
    """Returns a graph of pipelines that make Spark do different kinds of work."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    graph = Graph("archiving")
    topic = graph.topic(_TOPIC, value=Json())

    def count(records: Any) -> Any:
        value = sf.get_json_object("value", "$.item")
        return records.groupBy(value.alias("item")).agg(sf.count("*").alias("records"))

    def choose(records: Any) -> Any:
        return records.select("value", "offset")

    graph.pipeline(topic, id="counted", to=Parquet(directory / "counted"), key=["item"])(count)
    streamed = Parquet(directory / "streamed")
    graph.pipeline(topic, id="streamed", to=streamed, mode="append", streaming=True)(choose)
    with suppress(MissingSoftware):  # left out if delta-spark is not installed
        Delta.spark_needs.jars()
        upserted = Delta(str(directory / "upserted"))
        graph.pipeline(topic, id="upserted", to=upserted, mode="upsert", key=["item"])(count)
    return graph


def main() -> None:
    graph = declare(Path.cwd())
    conf: dict[str, Any] = conf_of(graph.pipelines)
    spark = session("archiving", **conf)
    # started after Spark, which forks: no client of librdkafka may exist then
    with EmbeddedKafka(settings={"auto.create.topics.enable": "true"}) as kafka:
        settings = Settings(bootstrap_servers=kafka.bootstrap_servers)
        for _ in range(_RUNS):
            _write_record(kafka.bootstrap_servers)
            run_all(graph.pipelines, graph, spark, settings, lambda *_: None, None)
    spark.stop()


def _write_record(bootstrap_servers: str) -> None:
    import confluent_kafka as ck  # noqa: PLC0415

    producer = ck.Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(_TOPIC, b'{"item": "pen"}')
    producer.flush()


if __name__ == "__main__":
    main()
