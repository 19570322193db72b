"""Rights that are missing: each ends the worker with status 3, and one message with the right and what it is for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

import kstreams_py as ks
from kstreams_py import Settings, errors
from tests.system.command import kstreams
from tests.system.harness import Cluster, RunningSlot, asking_for_password, running, wait_until

MakeSettings = Callable[..., Settings]

PASSWORD = "sesame"
BOUND = 20.0
"""Seconds until a worker that lacks a right has ended."""


def rule(kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, permission)


class Guarded:
    """A broker where alice may do everything but what is denied her."""

    def __init__(self, address: str, cluster: Cluster) -> None:
        self.address, self.cluster = address, cluster
        kinds = {ResourceType.TOPIC: "*", ResourceType.GROUP: "*", ResourceType.TRANSACTIONAL_ID: "*"}
        for kind, name in (*kinds.items(), (ResourceType.BROKER, "kafka-cluster")):
            self._create(rule(kind, name, AclOperation.ALL, AclPermissionType.ALLOW))

    def _create(self, binding: AclBinding) -> None:
        for future in self.cluster.admin.create_acls([binding]).values():
            future.result()

    @contextmanager
    def denied(self, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
        binding = rule(kind, name, operation, AclPermissionType.DENY)
        fields = (kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.DENY)
        self._create(binding)
        try:
            wait_until(lambda: self._has(fields), "the rule is known")
            yield
        finally:
            for future in self.cluster.admin.delete_acls([AclBindingFilter(*fields)]).values():
                future.result()
            wait_until(lambda: not self._has(fields), "the rule is gone")

    def _has(self, fields: tuple[Any, ...]) -> bool:
        return bool(self.cluster.admin.describe_acls(AclBindingFilter(*fields)).result())


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with asking_for_password(
        "alice", PASSWORD, authorizer_class_name=authorizer, super_users="User:ANONYMOUS"
    ) as found:
        yield Guarded(*found)


TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
CASES: dict[str, tuple[ResourceType, str, AclOperation]] = {
    "read the input": (TOPIC, "{name}.in", AclOperation.READ),
    "describe the input": (TOPIC, "{name}.in", AclOperation.DESCRIBE),
    "read the settings of the input": (TOPIC, "{name}.in", AclOperation.DESCRIBE_CONFIGS),
    "write the output": (TOPIC, "{name}.out", AclOperation.WRITE),
    "describe the output": (TOPIC, "{name}.out", AclOperation.DESCRIBE),
    "read the group": (GROUP, "{name}.step", AclOperation.READ),
    "describe the group": (GROUP, "{name}.step", AclOperation.DESCRIBE),
    "write the transactional id": (TRANSACTIONAL_ID, "{name}.step.0", AclOperation.WRITE),
    "describe the transactional id": (TRANSACTIONAL_ID, "{name}.step.0", AclOperation.DESCRIBE),
    "write the beginnings": (TOPIC, "__ks.{name}.beginnings", AclOperation.WRITE),
}


def words(kind: ResourceType, name: str, operation: AclOperation) -> tuple[str, str]:
    """What the message must have."""
    kinds = {TOPIC: "topic", GROUP: "group", TRANSACTIONAL_ID: "transactional id"}
    return operation.name, f"{kinds[kind]} {name!r}"


class Place:
    """A map on topics of its own, that alice runs."""

    def __init__(self, guarded: Guarded, name: str, settings: MakeSettings, guarantee: str) -> None:
        self.cluster, self.name = guarded.cluster, name
        self.source, self.target, self.group = f"{name}.in", f"{name}.out", f"{name}.step"
        self.graph = ks.Graph(name, guarantee=guarantee)
        self.graph.map(self.graph.topic(self.source), to=self.graph.topic(self.target), id="step")(lambda value: value)
        self.settings = settings(
            bootstrap_servers=guarded.address,
            leave_on_stop=True,
            kafka={
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "alice",
                "sasl.password": PASSWORD,
            },
        )
        self.cluster.create(self.source, self.target)
        self.cluster.partitions(self.target)
        self.cluster.write(self.source, [b"0", b"1", b"2"])

    def lacks(self, *words: str) -> None:
        """A slot ends with one message of what is missing, and within a bound."""
        started = time.monotonic()
        slot = RunningSlot(self.graph, self.settings)
        try:
            slot.thread.join(BOUND)
            assert not slot.thread.is_alive(), "it does not end"
        finally:
            slot.stop()
        said = f"{time.monotonic() - started:.1f} s: {slot.failure!r}"
        assert isinstance(slot.failure, errors.NotAuthorized), said
        assert slot.failure.exit_status == 3
        wanted = [*words, "kafka-acls"]
        assert [word for word in wanted if word not in str(slot.failure)] == [], said

    def works(self) -> None:
        with running(self.graph, self.settings):
            self.cluster.await_committed(self.group, self.source, {0: 3})
        assert self.cluster.values(self.target) == [b"0", b"1", b"2"]


BOTH = ["exactly_once", "at_least_once"]


@pytest.mark.parametrize(
    ("guarantee", "case"),
    [(each, case) for case in CASES for each in BOTH if each == "exactly_once" or "transactional" not in case],
)
def test_missing_right_is_named_with_its_object(
    guarded: Guarded, settings: MakeSettings, name: str, guarantee: str, case: str
) -> None:
    kind, of, operation = CASES[case]
    place, of = Place(guarded, name, settings, guarantee), of.format(name=name)
    with guarded.denied(kind, of, operation):
        place.lacks(*words(kind, of, operation))
        assert place.cluster.values(place.target) == []
    place.works()


@pytest.mark.parametrize("guarantee", BOTH)
@pytest.mark.parametrize("case", ["read the input", "write the output", "read the group"])
def test_right_that_is_taken_away_while_running_is_named(
    guarded: Guarded, settings: MakeSettings, name: str, guarantee: str, case: str
) -> None:
    kind, of, operation = CASES[case]
    place, of = Place(guarded, name, settings, guarantee), of.format(name=name)
    slot = RunningSlot(place.graph, place.settings)
    try:
        place.cluster.await_committed(place.group, place.source, {0: 3})
        with guarded.denied(kind, of, operation):
            place.cluster.write(place.source, [b"3"])
            slot.thread.join(BOUND)
            assert not slot.thread.is_alive(), "it does not end"
    finally:
        slot.stop()
    assert isinstance(slot.failure, errors.NotAuthorized), slot.failure
    wanted = words(kind, of, operation)
    assert [word for word in wanted if word not in str(slot.failure)] == [], slot.failure


@pytest.mark.parametrize("guarantee", BOTH)
def test_right_to_read_the_beginnings_is_named_at_the_second_start(
    guarded: Guarded, settings: MakeSettings, name: str, guarantee: str
) -> None:
    """There is nothing to read at the first."""
    place = Place(guarded, name, settings, guarantee)
    place.works()
    place.cluster.write(place.source, [b"3"])
    of = f"__ks.{name}.beginnings"
    with guarded.denied(TOPIC, of, AclOperation.READ):
        place.lacks(*words(TOPIC, of, AclOperation.READ))


def test_right_to_create_the_own_topics_is_named(guarded: Guarded, settings: MakeSettings, name: str) -> None:
    place = Place(guarded, name, settings, "exactly_once")
    with (
        guarded.denied(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
        guarded.denied(ResourceType.TOPIC, f"__ks.{name}.beginnings", AclOperation.CREATE),
    ):
        place.lacks("CREATE", f"__ks.{name}.beginnings")
    place.works()


def test_command_that_lacks_a_right_ends_with_status_3_and_one_message(
    guarded: Guarded, settings: MakeSettings, name: str, tmp_path: Path
) -> None:
    place = Place(guarded, name, settings, "exactly_once")
    file = tmp_path / "graph_of_rights.py"
    file.write_text(
        "import kstreams_py as ks\n"
        f"graph = ks.Graph({name!r})\n"
        f"graph.map(graph.topic({place.source!r}), to=graph.topic({place.target!r}), id='step')(lambda value: value)\n"
    )
    environment = {
        **place.settings.as_environment(),
        **{f"KSTREAMS_KAFKA__{k.upper().replace('.', '_')}": v for k, v in place.settings.kafka.items()},
    }
    with guarded.denied(ResourceType.TOPIC, place.target, AclOperation.WRITE):
        done = kstreams("run", f"{file}:graph", "--slot", 0, environment=environment)
    assert done.status == 3, done.err
    assert len(done.mistakes) == 1, done.err
    assert "WRITE" in done.mistakes[0]
    assert repr(place.target) in done.mistakes[0]
