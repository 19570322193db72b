"""Views in a session of Spark Connect: a client in a process of its own, since a session of it replaces others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.formats.serdes import bind
from tests.system.harness import Cluster
from tests.waiting import WAIT

pytestmark = pytest.mark.long  # a session, and a server of Connect, in a process of its own

CLIENT: Final = """
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import kstreams_py as ks
from kstreams_py import spark
from kstreams_py.formats.registries import FileRegistry

name, directory, jars = sys.argv[1:]
graph = ks.Graph(name)
orders = graph.topic(f"{name}.orders", value=ks.Avro(f"{directory}/order.avsc"))
conf = {"spark.jars": jars, "spark.sql.globalTempDatabase": "kstreams", "spark.sql.shuffle.partitions": "2"}
builder = SparkSession.builder.remote("local[2]")
for option, value in conf.items():
    builder = builder.config(option, value)
session, registry = builder.getOrCreate(), FileRegistry(Path(directory))
view = spark.view(session, orders, registry=registry, malformed="drop", end=spark.cut(graph))
found = {
    "session": type(session).__module__,
    "database": spark.create_views(session, graph, registry=registry),
    "view": [row.asDict() for row in view.select("item", "quantity", "offset").collect()],
    "sql": [row.asDict() for row in session.sql(f"SELECT item FROM kstreams.`{name}.orders`").collect()],
    "errors": [row.asDict() for row in session.sql(f"SELECT offset FROM kstreams.`{name}.orders_errors`").collect()],
}
print(json.dumps(found))
session.stop()
"""


def test_views_are_decoded_in_a_session_of_spark_connect(cluster: Cluster, name: str, tmp_path: Path) -> None:
    fields = [{"name": "item", "type": "string"}, {"name": "quantity", "type": "int"}]
    (tmp_path / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    serde = bind(Avro(tmp_path / "order.avsc"), FileRegistry(tmp_path), f"{name}.orders-value")
    cluster.create(f"{name}.orders")
    cluster.write(f"{name}.orders", [serde.serialize({"item": "pen", "quantity": 3}), b"broken"])
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, name, str(tmp_path), ",".join(map(str, spark_jars()))],
        env={
            **os.environ,
            "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
        },
        cwd=tmp_path, capture_output=True, text=True, timeout=WAIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "session": "pyspark.sql.connect.session",
        "database": "kstreams",
        "view": [{"item": "pen", "quantity": 3, "offset": 0}],
        "sql": [{"item": "pen"}],
        "errors": [{"offset": 1}],
    }
