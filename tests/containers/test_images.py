"""Runs the images: the broker serves this machine and its network, the worker keeps its guarantee and drains."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests.containers.stage import TARGET, Broker, Flights, stop_container
from tests.system.command import command

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

RECORDS = 6_000
COMPOSE = Path(__file__).parents[2] / "docker" / "compose.yaml"


@pytest.fixture
def workers(kafka: Broker, network: Network, data: Path) -> Iterator[list[DockerContainer]]:
    """Slots 0 and 1 of the flights graph, each in a container from the worker's image."""
    with ExitStack() as started:
        yield [
            started.enter_context(
                DockerContainer("kstreams-worker")
                .with_network(network)
                .with_envs(KSTREAMS_BOOTSTRAP_SERVERS="kafka:9092", KSTREAMS_DEMO_DIRECTORY="/data")
                .with_volume_mapping(data, "/data", "rw")
                .with_command(["run", TARGET, "--slot", str(slot), "--create-topics"])
            )
            for slot in range(2)
        ]


def test_broker_image_serves_workers_outside_containers_that_deliver_flights_once(
    kafka: Broker, data: Path, tmp_path: Path
) -> None:
    environment = {**kafka.settings.as_environment(), "KSTREAMS_DEMO_DIRECTORY": str(data)}
    asked = ("run", TARGET, "--workers", 2, "--create-topics")
    flights = Flights(kafka.settings, RECORDS)
    with command(tmp_path, *asked, environment=environment) as workers, flights.running(write_in=2):
        flights.await_all()
        workers.send(signal.SIGTERM)
        assert workers.wait() == 0, workers.text
    assert flights.failed_checks(data) == []


def test_worker_image_drains_on_sigterm_and_started_again_delivers_each_flight_once(
    kafka: Broker, workers: list[DockerContainer], data: Path
) -> None:
    flights = Flights(kafka.settings, RECORDS)
    with flights.running(write_in=12):
        flights.await_departed(RECORDS // 4)
        drained = workers[0].get_wrapped_container()
        assert stop_container(workers[0]) == 0, drained.logs().decode()
        drained.start()  # the same slot again: it continues at its committed offsets
        flights.await_all()
    assert [stop_container(worker) for worker in workers] == [0, 0]
    assert flights.failed_checks(data) == []


def test_worker_of_compose_exits_with_0_if_its_slot_was_taken_else_with_its_status(images: None) -> None:
    entrypoint = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["worker-0"]["entrypoint"]
    *tini, program = entrypoint
    assert program == "kstreams"
    statuses = []
    for status in (0, 1, 3, 4):
        ends = {"entrypoint": [*tini, "sh", "-c", f"exit {status}"]}
        with DockerContainer("kstreams-worker").with_kwargs(**ends) as container:
            statuses.append(container.get_wrapped_container().wait()["StatusCode"])
    assert statuses == [0, 1, 3, 0]


def test_worker_image_does_not_run_as_root(images: None) -> None:
    with DockerContainer("kstreams-worker").with_kwargs(entrypoint=["id", "-u"]) as container:
        container.get_wrapped_container().wait()
        assert container.get_wrapped_container().logs() == b"10001\n"
