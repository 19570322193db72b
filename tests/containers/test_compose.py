"""The services of docker/compose.yaml, run as the file declares them, except that the published ports are free ones.

The test starts them through the engine's API, since an engine may lack `docker compose`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import HealthcheckWaitStrategy

from kstreams_py import Settings
from kstreams_py.demo.data import ARR_DELAY, CARRIER, expect
from kstreams_py.demo.data_files import read
from kstreams_py.embedded.nodes import free_ports
from tests.containers.stage import LIMIT, STARTUP_SECONDS, Flights, stop_container

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

FILE = Path(__file__).parents[2] / "docker" / "compose.yaml"
RECORDS = 3_000
BROKERS = ("kafka-0", "kafka-1", "kafka-2")
WORKERS = ("worker-0", "worker-1")


class Services:
    """Starts services by their names in the file; `close` ends all of them."""

    def __init__(self, network: Network, data: Path) -> None:
        self._services: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
        self._network = network
        self._data = data
        self._started = ExitStack()
        self.ports = dict(zip(BROKERS, free_ports([None] * len(BROKERS)), strict=True))
        self.containers: dict[str, DockerContainer] = {}

    def start(self, name: str, *arguments: str) -> DockerContainer:
        """Starts the container of a service; the arguments follow its command."""
        service = self._services[name]
        container = (
            DockerContainer(service["image"])
            .with_network(self._network)
            .with_network_aliases(name)
            .with_envs(**service["environment"])
        )
        if name in self.ports:
            container.with_env("KAFKA_OUTSIDE", f"127.0.0.1:{self.ports[name]}")
            container.ports["29092"] = ("127.0.0.1", self.ports[name])  # type: ignore[assignment]
        if "state:/data" in service["volumes"]:
            container.with_volume_mapping(self._data, "/data", "rw")
        more = {"entrypoint": service["entrypoint"]} if "entrypoint" in service else {}
        if "restart" in service:
            more["restart_policy"] = {"Name": service["restart"]}
        container.with_kwargs(**more)
        command = service.get("command", [])
        container.with_command([*(command.split() if isinstance(command, str) else command), *arguments])
        self.containers[name] = self._started.enter_context(container)
        return container

    def output(self, name: str, *arguments: str) -> str:
        """Runs a service that ends by itself, and returns its output; its exit status must be 0."""
        wrapped = self.start(name, *arguments).get_wrapped_container()
        status = wrapped.wait(timeout=LIMIT)["StatusCode"]
        output: str = wrapped.logs().decode()
        assert status == 0, output
        return output

    def close(self) -> None:
        self._started.close()


@pytest.fixture
def services(all_images: None, network: Network, data: Path) -> Iterator[Services]:
    services = Services(network, data)
    yield services
    for name, container in services.containers.items():  # pytest shows this output if the test has failed
        sys.stdout.write(f"--- {name}\n{container.get_wrapped_container().logs(tail=20).decode()}\n")
    services.close()


def test_compose_services_deliver_every_flight_once_and_spark_reads_them(
    services: Services, data: Path, tmp_path: Path
) -> None:
    healthy = HealthcheckWaitStrategy().with_startup_timeout(STARTUP_SECONDS)
    for broker in [services.start(name) for name in BROKERS]:
        healthy.wait_until_ready(broker)
    workers = [services.start(name) for name in WORKERS]
    assert services.output("departures", str(RECORDS)) == f"{RECORDS:,} departures written\n"
    outside = ",".join(f"127.0.0.1:{port}" for port in services.ports.values())
    flights = Flights(Settings.load(bootstrap_servers=outside, schema_directory=tmp_path / "schemas"), RECORDS)
    with flights.running():
        flights.await_all()
    assert {info.replication for info in flights.topics.values()} == {3}
    table = re.findall(r"^\|\s*(\w\w)\|\s*(\d+)\|\s*(-?[\d.]+)\|$", services.output("spark"), flags=re.MULTILINE)
    assert {carrier: (int(number), float(minutes)) for carrier, number, minutes in table} == by_airline()
    assert [stop_container(worker) for worker in workers] == [0, 0]
    assert flights.failed_checks(data) == []


def by_airline() -> dict[str, tuple[int, float]]:
    """Computes the departed flights of each airline and their mean delay, over all months, from the file."""
    flights, minutes = Counter[str](), Counter[str]()
    for row, number in expect(read(RECORDS)).rows["departed"].items():
        flights[row[CARRIER]] += number
        minutes[row[CARRIER]] += number * row[ARR_DELAY]
    return {carrier: (flights[carrier], round(minutes[carrier] / flights[carrier], 2)) for carrier in flights}
