"""The files in docker/: checks that need no container engine, so they always run."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from kstreams_py.embedded.nodes import Node, server_properties
from kstreams_py.errors import Replaced
from kstreams_py.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
BROKERS = [f"kafka-{i}" for i in range(3)]


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return services


@pytest.fixture(scope="module")
def kafka_node() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kafka_node", DOCKER / "kafka_node.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def search(pattern: str, text: str) -> str:
    """Returns the group of the pattern in the text."""
    match = re.search(pattern, text)
    assert match is not None, pattern
    return match[1]


def test_compose_has_three_brokers_two_workers_and_the_jobs(services: dict[str, dict[str, Any]]) -> None:
    assert {name: service["image"] for name, service in services.items()} == {
        **dict.fromkeys(BROKERS, "kstreams-kafka"),
        **dict.fromkeys(("worker-0", "worker-1"), "kstreams-worker"),
        **dict.fromkeys(("departures", "spark"), "kstreams-spark"),
    }
    assert {name for name, service in services.items() if service.get("profiles")} == {"departures", "spark"}


def test_compose_images_are_those_that_docker_build_builds_and_are_never_pulled(
    services: dict[str, dict[str, Any]],
) -> None:
    script = (DOCKER / "build").read_text()
    assert {service["image"] for service in services.values()} == {
        f"kstreams-{name}" for name in search(r"images=\((\w+(?: \w+)*)\)", script).split()
    }
    assert {service["pull_policy"] for service in services.values()} == {"never"}


def test_compose_publishes_ports_on_loopback_only_at_the_advertised_addresses(
    services: dict[str, dict[str, Any]],
) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {name: [f"{services[name]['environment']['KAFKA_OUTSIDE']}:29092"] for name in BROKERS}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_compose_gives_each_broker_its_index_and_each_worker_its_slot(services: dict[str, dict[str, Any]]) -> None:
    for name in BROKERS:
        nodes = services[name]["environment"]["KAFKA_NODES"].split(",")
        assert (nodes, nodes[int(services[name]["environment"]["KAFKA_NODE"])]) == (BROKERS, name)
        assert services[name]["volumes"] == [f"{name}:/data"]
    slots = [search(r"--slot (\d+)", services[f"worker-{i}"]["command"]) for i in range(2)]
    assert slots == ["0", "1"]


def test_compose_waits_for_brokers_and_gives_workers_time_to_drain(services: dict[str, dict[str, Any]]) -> None:
    others = {name: service for name, service in services.items() if name not in BROKERS}
    for service in others.values():
        assert service["depends_on"] == {name: {"condition": "service_healthy"} for name in BROKERS}
        assert service["environment"]["KSTREAMS_BOOTSTRAP_SERVERS"] == ",".join(f"{name}:9092" for name in BROKERS)
    drain = Settings.model_fields["drain_timeout_ms"].default / 1000
    assert all(int(services[f"worker-{i}"]["stop_grace_period"].removesuffix("s")) > drain for i in range(2))


def test_compose_does_not_restart_a_worker_whose_slot_was_taken(services: dict[str, dict[str, Any]]) -> None:
    """`on-failure` restarts nothing that exits with 0. tini's -e maps one status to 0, and passes on all others."""
    entrypoint = json.loads(
        re.findall(r"^ENTRYPOINT (.+)$", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)[-1]
    )
    assert entrypoint[0] == "tini"
    mapped = [entrypoint[0], "-e", str(Replaced.exit_status), *entrypoint[1:]]
    for name in ("worker-0", "worker-1"):
        assert (services[name]["entrypoint"], services[name]["restart"]) == (mapped, "on-failure")
    assert f"tini -e {Replaced.exit_status}" in (DOCKER / "README.md").read_text()


def test_broker_in_a_container_has_the_settings_of_the_embedded_one_except_listeners(kafka_node: ModuleType) -> None:
    variables = {"KAFKA_NODES": ",".join(BROKERS), "KAFKA_NODE": "1", "KAFKA_OUTSIDE": "127.0.0.1:9093"}
    nodes = [Node(i, 9092, 9093, Path("/data")) for i in range(3)]
    assert kafka_node.properties(variables | {"KAFKA_SETTINGS": "a.b=1 c=d=e"}) == {
        **server_properties(nodes[1], nodes),
        "controller.quorum.voters": "0@kafka-0:9093,1@kafka-1:9093,2@kafka-2:9093",
        "listeners": "INSIDE://:9092,OUTSIDE://:29092,CONTROLLER://:9093",
        "advertised.listeners": "INSIDE://kafka-1:9092,OUTSIDE://127.0.0.1:9093",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "log.dirs": "/data/kafka",
        "a.b": "1",
        "c": "d=e",
    }


def test_brokers_of_a_cluster_compute_the_same_cluster_id_and_other_clusters_another(kafka_node: ModuleType) -> None:
    assert re.fullmatch(r"[\w-]{22}", kafka_node.cluster_id(BROKERS))
    assert kafka_node.cluster_id(BROKERS) != kafka_node.cluster_id(BROKERS[:1])


@pytest.mark.parametrize("name", ["Dockerfile", "kafka.Dockerfile", "spark.Dockerfile"])
def test_images_do_not_run_as_root_and_pass_signals_on(name: str) -> None:
    text = (DOCKER / name).read_text()
    assert re.findall(r"^USER (\w+)$", text, flags=re.MULTILINE)[-1] == "kstreams"
    assert re.search(r'^ENTRYPOINT \["tini", "--", ', text, flags=re.MULTILINE)


def test_images_install_only_extras_that_the_project_has() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.findall(r"'(?:\.|kstreams_py)\[([\w,]+)\]'", "".join(p.read_text() for p in DOCKER.glob("*Dockerfile")))
    assert asked
    assert not {extra for names in asked for extra in names.split(",")} - set(extras)


def test_readme_lists_every_variable_that_the_broker_reads() -> None:
    read = set(re.findall(r'environ(?:ment)?\.get\("(\w+)"', (DOCKER / "kafka_node.py").read_text()))
    listed = set(re.findall(r"^\| `(KAFKA_\w+)` \|", (DOCKER / "README.md").read_text(), flags=re.MULTILINE))
    assert listed == read
