"""One Kafka broker in a container: takes its settings from the environment, formats its storage once, runs Kafka.

`kafka_node.py health` instead asks the broker of this container for its cluster, and exits with 0 once it answers.
README.md beside this file lists the variables.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.embedded.nodes import Node, server_properties

DATA = Path("/data")
INSIDE, CONTROLLER, OUTSIDE = 9092, 9093, 29092
"""Ports: for containers, for the brokers' quorum, for clients outside."""

LOG4J2 = """\
<Configuration status="error">
  <Appenders><Console name="console"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
  <Loggers>
    <Root level="WARN"><AppenderRef ref="console"/></Root>
    <Logger name="kafka.server.KafkaRaftServer" level="INFO"/>
  </Loggers>
</Configuration>
"""


def names(environment: Mapping[str, str]) -> list[str]:
    """Host names of all brokers of the cluster; the index of a name is the id of its broker."""
    return environment.get("KAFKA_NODES", socket.gethostname()).split(",")


def properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Kafka's settings: those of the embedded broker, with the listeners of a network of containers."""
    hosts, index = names(environment), int(environment.get("KAFKA_NODE", "0"))
    nodes = [Node(i, INSIDE, CONTROLLER, DATA) for i in range(len(hosts))]
    outside = environment.get("KAFKA_OUTSIDE", f"127.0.0.1:{INSIDE}")
    asked = dict(each.split("=", 1) for each in environment.get("KAFKA_SETTINGS", "").split())
    return {
        **server_properties(nodes[index], nodes),
        "controller.quorum.voters": ",".join(f"{i}@{host}:{CONTROLLER}" for i, host in enumerate(hosts)),
        "listeners": f"INSIDE://:{INSIDE},OUTSIDE://:{OUTSIDE},CONTROLLER://:{CONTROLLER}",
        "advertised.listeners": f"INSIDE://{hosts[index]}:{INSIDE},OUTSIDE://{outside}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "log.dirs": str(DATA / "kafka"),
        **asked,
    }


def cluster_id(hosts: Sequence[str]) -> str:
    """The id of the cluster: each broker computes the same one from the host names."""
    return base64.urlsafe_b64encode(hashlib.blake2b(",".join(hosts).encode(), digest_size=16).digest()).decode()[:22]


def serve() -> None:
    """Replaces this process by the broker, after formatting its storage if that is new."""
    settings, log4j2 = DATA / "server.properties", DATA / "log4j2.xml"
    settings.write_text("".join(f"{name}={value}\n" for name, value in properties(os.environ).items()))
    log4j2.write_text(LOG4J2)
    heap = os.environ.get("KAFKA_HEAP", "512m")
    java = [str(find_java()), "-cp", os.pathsep.join(map(str, kafka_classpath())), f"-Xmx{heap}", "-XX:+UseSerialGC"]
    if not (DATA / "kafka" / "meta.properties").exists():
        named = f"--cluster-id={cluster_id(names(os.environ))}"  # "=", because an id may start with a dash
        tool = ["kafka.tools.StorageTool", "format", named, "--config", str(settings)]
        subprocess.run([*java, "-XX:TieredStopAtLevel=1", *tool], check=True)
    os.execv(java[0], [*java, f"-Dlog4j2.configurationFile={log4j2}", "kafka.Kafka", str(settings)])


def answers() -> bool:
    """Whether the broker of this container answers, and its cluster has it as a broker."""
    from confluent_kafka import KafkaException  # noqa: PLC0415, the broker itself needs no client
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    quiet: dict[str, str | int | float | bool] = {"bootstrap.servers": f"127.0.0.1:{INSIDE}", "log_level": 0}
    try:
        found = AdminClient(quiet).list_topics(timeout=5)
    except KafkaException:
        return False
    return int(os.environ.get("KAFKA_NODE", "0")) in found.brokers


if __name__ == "__main__":
    if sys.argv[1:] == ["health"]:
        sys.exit(0 if answers() else 1)
    serve()
