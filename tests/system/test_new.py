"""`kstreams new`: the project that it writes runs on a real broker, by the commands of its README."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable
from pathlib import Path

from kstreams_py import Settings
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
    broker_start, run, priced, unpriced, tail, show, broker_stop = written
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
    assert "  error      builtins.KeyError: 'unit_price'\n" in letter
