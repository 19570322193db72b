"""Fixtures of the tests on containers: the images, built from this tree, and a network with a broker in it."""

from __future__ import annotations

import gc
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

from kstreams_py import Settings
from tests.containers.stage import STARTUP_SECONDS, Broker, free_port

ROOT = Path(__file__).parents[2]

BASES = ("python:3.11-slim", "debian:bookworm-slim")
"""What the images may stand on: the first that the engine has, else it has to get the first."""

# What is started here is removed by fixtures; the container that testcontainers adds for this need not be there.
testcontainers_config.ryuk_disabled = True


def connected() -> tuple[docker.DockerClient | None, str]:
    """A client of the engine that answers, or why there is none."""
    try:
        return docker.from_env(), ""
    except DockerException as error:
        return None, str(error)


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The container engine that DOCKER_HOST names, or the one at its usual place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker's client forgets the socket that does not connect
        client, why = connected()
        gc.collect()
    if client is None:
        pytest.skip(f"no container engine answers (start one, or set DOCKER_HOST): {why}")
    yield client
    client.close()


@pytest.fixture(scope="session")
def build(engine: docker.DockerClient) -> list[str]:
    """The command that builds images; their names go after it, the options of `docker build` after those."""
    for base in BASES:
        try:
            engine.images.get(base)
        except ImageNotFound:
            continue
        break
    else:
        base = BASES[0]
    return [str(ROOT / "docker" / "build"), "--network", "host", "--build-arg", f"BASE={base}"]


def built(command: list[str], *names: str) -> None:
    """Builds images; what has not changed since is in the engine's cache."""
    script, *options = command
    done = subprocess.run(
        [script, *names, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.fixture(scope="session")
def images(build: list[str]) -> None:
    """The worker's image and the broker's."""
    built(build, "worker", "kafka")


@pytest.fixture(scope="session")
def all_images(build: list[str]) -> None:
    """The images of compose.yaml."""
    built(build, "worker", "kafka", "spark")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that containers may write, under a user of their own."""
    made = tmp_path / "data"
    made.mkdir()
    made.chmod(0o777)
    return made


@pytest.fixture
def network(engine: docker.DockerClient) -> Iterator[Network]:
    """A network of the test's own, on which containers know each other by name."""
    with Network() as made:
        yield made


@pytest.fixture
def kafka(images: None, network: Network, tmp_path: Path) -> Iterator[Broker]:
    """A broker from its image: `kafka` for containers, a port of loopback for the test."""
    port = free_port()
    container = (
        DockerContainer("kstreams-kafka")
        .with_network(network)
        .with_network_aliases("kafka")
        .with_envs(KAFKA_NODES="kafka", KAFKA_OUTSIDE=f"127.0.0.1:{port}")
        .waiting_for(HealthcheckWaitStrategy().with_startup_timeout(STARTUP_SECONDS))
    )
    container.ports["29092"] = ("127.0.0.1", port)  # with_bind_ports() would bind it everywhere
    with container:
        settings = Settings.load(bootstrap_servers=f"127.0.0.1:{port}", schema_directory=tmp_path / "schemas")
        yield Broker(container, settings)
