"""`kstreams doctor` while too few of three brokers run: it gets its answers from the one that is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from kstreams_py.embedded import EmbeddedKafka
from tests.system.command import kstreams
from tests.system.recorder import Recorder

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"), errors=None)
def copy(value):
    return value
"""


def examine(file: Path, servers: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status, and what is found worse than a note."""
    ended = kstreams("doctor", f"{file}:graph", "--json", environment={"KSTREAMS_BOOTSTRAP_SERVERS": servers})
    # a slow machine may wait for the broker that is left
    assert [line for line in ended.err.splitlines() if "waiting for a Kafka broker" not in line] == []
    rows = [json.loads(line) for line in ended.out.splitlines()]
    return ended.status, [row for row in rows if row["severity"] != "note"]


@pytest.mark.long
def test_two_of_three_brokers_killed_leave_too_few_replicas_until_they_are_back(
    brokers: EmbeddedKafka, name: str, tmp_path: Path
) -> None:
    recorder, topics = Recorder(brokers.bootstrap_servers), [f"{name}.in", f"{name}.out"]
    led_by_first = [NewTopic(topic, 2, replica_assignment=[[0, 1, 2]] * 2) for topic in topics]
    for future in recorder.admin.create_topics(led_by_first).values():
        future.result()
    recorder.await_in_sync()
    file = tmp_path / "graph.py"
    file.write_text(GRAPH.format(name=name), encoding="utf-8")
    assert examine(file, brokers.bootstrap_servers) == (0, [])
    addresses = brokers.bootstrap_servers.split(",")
    for broker in (1, 2):
        brokers.kill(broker)
    status, found = examine(file, brokers.bootstrap_servers)
    assert status == 1
    assert [row for row in found if row["kind"] == "too_few_in_sync" and row["subject"].startswith(name)] == [
        {
            "severity": "error",
            "kind": "too_few_in_sync",
            "subject": f"{topic}[0, 1]",
            "meaning": (
                "fewer replicas are in sync than min.insync.replicas (2): every write with acks=all is refused"
            ),
            "remedy": (
                f"start the brokers that are away, and wait (kafka-topics.sh --bootstrap-server "
                f"{brokers.bootstrap_servers} --describe --under-min-isr-partitions)"
            ),
        }
        for topic in topics
    ]
    assert [(row["subject"], row["meaning"].partition(" can")[0]) for row in found if row["kind"] == "broker_away"] == [
        (f"broker {broker}", f"no connection to {addresses[broker]}") for broker in (1, 2)
    ]
    brokers.restart(1, 2)
    recorder.await_in_sync()
    assert examine(file, brokers.bootstrap_servers) == (0, [])
