"""The image and the workers of a project that `kstreams new` has written, as its Dockerfile and compose.yaml say.

Its dependency kstreams_py comes from a package index of this checkout's wheel. The broker is the one of `docker/`: the
engine may have no registry to pull Kafka's own image from; tests/system/test_new.py has Kafka check its settings.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

from kstreams_py.development.project import write_project
from tests.containers.stage import STARTUP_SECONDS, Broker, stop_container
from tests.system.command import kstreams
from tests.system.harness import Cluster, wait_until
from tests.system.test_wheel import list_files, run

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NAME = "kstreams_test_project"
OF_PIP = ("PIP_INDEX_URL", "PIP_TRUSTED_HOST")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package index on this machine with this checkout's wheel."""
    tree, packages = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("index")
    for path in list_files():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, tree / path, follow_symlinks=False)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", packages / "kstreams-py", cwd=tree)
    handler = functools.partial(Quiet, directory=str(packages))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("new") / NAME
    write_project(NAME, directory)
    (directory / "venv").mkdir()
    (directory / "venv" / "large").touch()
    return directory


@pytest.fixture(scope="module")
def services(build: list[str], index: str, project: Path) -> dict[str, Any]:
    """The services of the project, whose image is built as `docker compose build` does."""
    _, *options = build
    for name in OF_PIP:
        options += ["--build-arg", name] if name in os.environ else []
    services: dict[str, Any] = yaml.safe_load((project / "compose.yaml").read_text(encoding="utf-8"))["services"]
    image = services["worker-0"]["image"]
    done = subprocess.run(
        ["docker", "build", "-t", image, *options, "--build-arg", f"PIP_EXTRA_INDEX_URL={index}", "."],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return services


def worker(service: dict[str, Any], network: Network, data: Path) -> DockerContainer:
    """The container of a worker, as its service declares it, without published ports."""
    check = service["healthcheck"]
    seconds = {name: int(check[name].removesuffix("s")) * 10**9 for name in ("interval", "timeout", "start_period")}
    return (
        DockerContainer(service["image"])
        .with_network(network)
        .with_envs(**service["environment"])
        .with_volume_mapping(data, "/data", "rw")
        .with_command(service["command"])
        .with_kwargs(
            entrypoint=service["entrypoint"],
            restart_policy={"Name": service["restart"]},
            healthcheck={"test": check["test"], "retries": check["retries"], **seconds},
        )
    )


def test_workers_of_a_new_project_are_healthy_process_its_records_and_drain(
    services: dict[str, Any], project: Path, kafka: Broker, network: Network, data: Path
) -> None:
    environment = kafka.settings.as_environment()
    cluster = Cluster(kafka.settings.bootstrap_servers)
    lines = (project / "README.md").read_text(encoding="utf-8").splitlines()
    with ExitStack() as started:
        workers = [started.enter_context(worker(services[f"worker-{i}"], network, data)) for i in range(2)]
        for each in workers:
            HealthcheckWaitStrategy().with_startup_timeout(STARTUP_SECONDS).wait_until_ready(each)
        for value in ('{"quantity": 2, "unit_price": 5}', '{"quantity": 1}'):
            assert any(value in line for line in lines)
            sent = kstreams("send", f"{NAME}.orders", "--value", value, environment=environment, cwd=project)
            assert sent.status == 0, sent.err
        wait_until(lambda: len(cluster.values(f"{NAME}.priced")) == 1, "the first order is priced")
        wait_until(lambda: len(cluster.values(f"{NAME}.errors")) == 1, "the second is a dead letter")
        logs = [each.get_wrapped_container().logs().decode() for each in workers]
        assert [stop_container(each) for each in workers] == [0, 0], logs
    (priced,) = cluster.values(f"{NAME}.priced")
    assert json.loads(priced or b"")["total"] == 10


def test_image_of_a_new_project_has_the_graph_and_no_user_rights_but_its_own(services: dict[str, Any]) -> None:
    listed = {"entrypoint": ["sh", "-c", "id -u; ls -A /graph"]}
    with DockerContainer(services["worker-0"]["image"]).with_kwargs(**listed) as container:
        container.get_wrapped_container().wait()
        user, *files = container.get_wrapped_container().logs().decode().split()
    assert (user, files) == ("10001", [f"{NAME}.py", "pyproject.toml"])
