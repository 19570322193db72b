"""`kstreams new`: the project that it writes runs on a real broker, by the commands of its README."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kstreams_py import Settings
from kstreams_py.development.project import write_project
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.embedded.nodes import Node, server_properties
from tests.system.command import command, kstreams
from tests.system.harness import Cluster, wait_until


def test_new_project_runs_and_its_readme_shows_its_records(
    cluster: Cluster, settings: Callable[..., Settings], tmp_path: Path
) -> None:
    name = f"shop_{uuid.uuid4().hex[:12]}"
    environment = settings().as_environment()
    assert kstreams("new", name, environment=environment, cwd=tmp_path).status == 0
    directory = tmp_path / name
    lines = (directory / "README.md").read_text(encoding="utf-8").splitlines()
    written = [shlex.split(line)[1:] for line in lines if line.startswith("kstreams ")]
    dev, priced, unpriced, tail, show, broker_start, run, broker_stop = written
    assert (dev[0], dev[1]) == ("dev", run[1])
    assert (broker_start[:2], broker_stop) == (["broker", "start"], ["broker", "stop"])
    run[1] = str(directory / run[1])
    with command(tmp_path, *run, environment=environment) as running:
        for send in (priced, unpriced):
            assert kstreams(*send, environment=environment, cwd=directory).status == 0
        wait_until(lambda: len(cluster.values(f"{name}.priced")) == 1, "the first order is priced")
        wait_until(lambda: len(cluster.values(f"{name}.errors")) == 1, "the second is a dead letter")
        (shown,) = kstreams(*tail, environment=environment, cwd=directory).out.splitlines()
        letter = kstreams(*show, environment=environment, cwd=directory).out
        running.process.terminate()
        assert running.wait() == 0, running.text
    assert (json.loads(shown)["key"], json.loads(shown)["value"]["total"]) == ("order-1", 10)
    assert "  error      KeyError: 'unit_price'\n" in letter


@pytest.mark.long  # it starts a broker of its own
def test_broker_of_compose_has_settings_that_kafka_takes(tmp_path: Path) -> None:
    """Kafka's image makes settings of the variables: KAFKA_LOG_DIRS is log.dirs."""
    write_project("billing", tmp_path / "billing")
    written = yaml.safe_load((tmp_path / "billing" / "compose.yaml").read_text(encoding="utf-8"))
    variables = written["services"]["kafka"]["environment"]
    found = {name.removeprefix("KAFKA_").lower().replace("_", "."): value for name, value in variables.items()}
    node = Node(1, 9092, 9093, tmp_path)
    assert set(found) <= {*server_properties(node, [node]), "advertised.listeners"}, "Kafka ignores others"
    found["log.dirs"] = str(tmp_path / "data")
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in found.items()))
    java = [str(find_java()), "-cp", os.pathsep.join(map(str, kafka_classpath()))]
    tool = ["kafka.tools.StorageTool", "format", "--cluster-id=5L6g3nShT-eMCtK--X86sw", "--config", str(file)]
    done = subprocess.run([*java, *tool], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "data" / "meta.properties").exists()
