"""Fixtures of the container tests: the images, built from this checkout, and a network with a broker in it."""

from __future__ import annotations

import gc
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.client import DockerClient
from docker.errors import DockerException, ImageNotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

from kstreams_py import Settings
from kstreams_py.embedded.nodes import free_ports
from tests.containers.stage import STARTUP_SECONDS, Broker

ROOT = Path(__file__).parents[2]

BASES = ("python:3.11-slim", "debian:bookworm-slim")
"""The base images: the first of them that the engine has, otherwise the first, which the engine pulls."""

# fixtures remove what they start, so the container that testcontainers starts for this is not needed
testcontainers_config.ryuk_disabled = True


def connect() -> tuple[DockerClient | None, str]:
    """Returns a client of the container engine and "", or None and the reason."""
    try:
        return DockerClient.from_env(), ""
    except DockerException as error:
        return None, str(error)


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    """The container engine at DOCKER_HOST, or at its default address."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker's client does not close a socket that cannot connect
        client, why = connect()
        gc.collect()
    if client is None:
        pytest.skip(f"no container engine answers (start one, or set DOCKER_HOST): {why}")
    yield client
    client.close()


@pytest.fixture(scope="session")
def build(engine: DockerClient) -> list[str]:
    """The script that builds images, followed by options of `docker build`."""
    for base in BASES:
        try:
            engine.images.get(base)
        except ImageNotFound:
            continue
        break
    else:
        base = BASES[0]
    return [str(ROOT / "docker" / "build"), "--network", "host", "--build-arg", f"BASE={base}"]


def build_images(command: list[str], *names: str) -> None:
    """Builds these images by the script of `build`; the engine caches layers that have not changed."""
    script, *options = command
    done = subprocess.run(
        [script, *names, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.fixture(scope="session")
def images(build: list[str]) -> None:
    """Builds the worker's image and the broker's."""
    build_images(build, "worker", "kafka")


@pytest.fixture(scope="session")
def all_images(build: list[str]) -> None:
    """Builds the images of compose.yaml."""
    build_images(build, "worker", "kafka", "spark")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that any user may write: containers have a user of their own."""
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


@pytest.fixture
def network(engine: DockerClient) -> Iterator[Network]:
    """A network for one test, on which containers find each other by name."""
    with Network() as network:
        yield network


@pytest.fixture
def kafka(images: None, network: Network, tmp_path: Path) -> Iterator[Broker]:
    """A broker from its image: its address is `kafka` for containers, and a port of the loopback for the test."""
    (port,) = free_ports([None])
    container = (
        DockerContainer("kstreams-kafka")
        .with_network(network)
        .with_network_aliases("kafka")
        .with_envs(KAFKA_NODES="kafka", KAFKA_OUTSIDE=f"127.0.0.1:{port}")
        .waiting_for(HealthcheckWaitStrategy().with_startup_timeout(STARTUP_SECONDS))
    )
    # with_bind_ports() would bind the port on all interfaces
    container.ports["29092"] = ("127.0.0.1", port)  # type: ignore[assignment]
    with container:
        settings = Settings.load(bootstrap_servers=f"127.0.0.1:{port}", schema_directory=tmp_path / "schemas")
        yield Broker(container, settings)
