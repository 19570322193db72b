"""Schema evolution end to end: writers with several schema versions in one topic, a graph that reads with its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.formats.schemas import canonical
from tests.system.harness import Cluster, running, wait_until

MakeSettings = Callable[..., Settings]


def flight(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Flight", "namespace": "test", "fields": list(fields)}


FIRST = flight({"name": "tail", "type": "string"}, {"name": "delay", "type": "int"})
SECOND = flight(
    {"name": "tail", "type": "string"},
    {"name": "delay", "type": "long"},
    {"name": "carrier", "type": ["null", "string"], "default": None},
)
THIRD = flight(
    {"name": "delay", "type": "double"},
    {"name": "plane", "type": "string", "aliases": ["tail"]},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
)
STRICT = flight({"name": "tail", "type": "string"}, {"name": "seats", "type": "int"})


def writer(name: str, topic: str, schema: dict[str, Any]) -> ks.Graph:
    """Creates a graph that writes the JSON records of `NAME.in` to the topic with one version of the schema."""
    graph = ks.Graph(name)
    graph.map(graph.topic(f"{name}.in", value=ks.Json()), to=graph.topic(topic, value=ks.Avro(schema)), id="write")(
        lambda value: value
    )
    return graph


def feed(cluster: Cluster, graph: str, *values: dict[str, Any]) -> None:
    cluster.write(f"{graph}.in", [json.dumps(value).encode() for value in values])


def test_writers_of_two_versions_are_read_by_a_graph_with_a_third_while_all_run(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    around = settings()
    old, new, reader = f"{name}-old", f"{name}-new", f"{name}-reader"
    topic, target, dead = f"{name}.flights", f"{name}.seen", f"{name}.errors"
    cluster.create(f"{old}.in", f"{new}.in", topic, target, dead)
    graph = ks.Graph(reader, errors=dead)

    @graph.map(graph.topic(topic, value=ks.Avro(THIRD)), to=graph.topic(target, value=ks.Avro(THIRD)))
    def see(value: dict[str, Any]) -> dict[str, Any]:
        value["tags"].append("seen")  # each record has its own copy of the default
        return value

    def seen() -> list[dict[str, Any]]:
        third = parse_schema(THIRD)
        return [schemaless_reader(BytesIO((v or b"")[5:]), third, None) for v in cluster.values(target)]  # type: ignore[misc]

    with running(graph, around), running(writer(old, topic, FIRST), around):
        feed(cluster, old, {"tail": "N1", "delay": 3})
        wait_until(lambda: len(seen()) == 1, "the first version is read")
        with running(writer(new, topic, SECOND), around):
            feed(cluster, new, {"tail": "N2", "delay": 1 << 40, "carrier": "UA"}, {"tail": "N3", "delay": -1})
            wait_until(lambda: len(seen()) == 3, "the second version is read")
            feed(cluster, old, {"tail": "N4", "delay": 0})
            wait_until(lambda: len(seen()) == 4, "the first version again")
    assert seen() == [
        {"plane": "N1", "delay": 3.0, "tags": ["seen"]},
        {"plane": "N2", "delay": float(1 << 40), "tags": ["seen"]},
        {"plane": "N3", "delay": -1.0, "tags": ["seen"]},
        {"plane": "N4", "delay": 0.0, "tags": ["seen"]},
    ]
    assert cluster.read(dead) == []
    registry = FileRegistry(around.schema_directory)
    texts = {subject: {registry.schema(i) for i in registry.ids(f"{subject}-value")} for subject in (topic, target)}
    assert texts == {topic: {canonical(FIRST), canonical(SECOND)}, target: {canonical(THIRD)}}
    assert len({(v or b"")[:5] for v in cluster.values(topic)}) == 2


@pytest.mark.long  # in the quick tier, test_serdes.py has what a reader refuses, test_errors.py its dead letter
def test_record_that_the_reader_cannot_resolve_is_a_dead_letter_until_it_is_mended(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path
) -> None:
    around = settings()
    registry = FileRegistry(around.schema_directory)
    source, target, dead = (f"{name}.{end}" for end in ("in", "out", "errors"))
    cluster.create(source, target, dead)
    first = ks.Avro(FIRST).bind(registry, f"{source}-value").serialize({"tail": "N1", "delay": 1})
    with_seats = (
        ks.Avro(STRICT).bind(FileRegistry(around.schema_directory), "elsewhere").serialize({"tail": "N2", "seats": 100})
    )
    cluster.write(source, [first, with_seats, first])

    def reading(graph_name: str, schema: dict[str, Any]) -> ks.Graph:
        graph = ks.Graph(graph_name, errors=dead)
        read = graph.topic(source, value=ks.Avro(schema))
        graph.map(read, to=graph.topic(target, value=ks.String()), id="tail")(lambda value: value["tail"])
        return graph

    with running(reading(name, STRICT), around):
        cluster.await_committed(f"{name}.tail", source, {0: 3})
    cluster.await_markers(target, dead)
    assert cluster.values(target) == [b"N2"]
    dead_letters = [m.value() for m in cluster.read(dead)]
    assert [first in (value or b"") for value in dead_letters] == [True, True], "the raw bytes can be read again"
    assert all(b"seats" in (value or b"") for value in dead_letters), "each dead letter names the missing field"
    with running(reading(f"{name}-mended", FIRST), around):
        cluster.await_committed(f"{name}-mended.tail", source, {0: 3})
    cluster.await_markers(target, dead)
    assert cluster.values(target) == [b"N2", b"N1", b"N1"]
    assert dict(cluster.read(dead)[-1].headers())["ks-proc"] == f"{name}-mended.tail".encode()
