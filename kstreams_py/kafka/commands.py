"""Kafka's own commands, as a person types them."""

from __future__ import annotations

import shlex


def kafka_command(servers: str, tool: str, *arguments: str) -> str:
    """Returns a command such as kafka-topics.sh --bootstrap-server kafka:9092 --delete --topic orders.

    - `servers`: bootstrap servers of the cluster.
    - `tool`: the subject of the command: "topics", "configs", "consumer-groups".
    """
    return shlex.join([f"kafka-{tool}.sh", "--bootstrap-server", servers, *arguments])
