"""The nodes of a data directory: their ports, their files, and Kafka's settings for them.

The files of a data directory::

    cluster.json        cluster id and ports, so that a kept directory starts as the same cluster again
    broker-0/           server.properties, log4j2.xml, server.log, console.log, began, data/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import random
import socket
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SettingsError

HOST: Final = "127.0.0.1"

# below the range for outgoing connections, so that no other program takes the port of a node that is down
_PORTS: Final = range(20_000, 32_000)

_LOG4J2: Final = """\
<Configuration status="error">
  <Appenders>
    <RollingFile name="file" fileName="{directory}/server.log" filePattern="{directory}/server.log.%i">
      <PatternLayout pattern="%d %p %c{{1}} %m%n"/><SizeBasedTriggeringPolicy size="20 MB"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="INFO"><AppenderRef ref="file"/></Root>
    <Logger name="org.apache.kafka.common.config" level="WARN"/>
    <Logger name="org.apache.kafka.storage.internals.log" level="WARN"/>
  </Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class Node:
    """One broker of a cluster: its ports and its directory."""

    index: int
    port: int
    controller_port: int
    directory: Path


def open_data_dir(directory: Path, brokers: int, port: int | None) -> tuple[str, list[Node]]:
    """Returns the cluster id and the nodes of a data directory; creates it if it does not exist.

    `port` is the port of the first broker, None for any free port. Raises SettingsError if the directory or the port
    cannot be used, or the directory holds a cluster of another size.
    """
    directory = directory.resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{directory} cannot be a data directory: {error.strerror}; choose another") from error
    cluster = directory / "cluster.json"
    kept = json.loads(cluster.read_text()) if cluster.exists() else None
    if kept and len(kept["ports"]) != brokers:
        raise SettingsError(
            f"{directory} holds a cluster of {len(kept['ports'])} broker(s), not {brokers}: ask for "
            f"{len(kept['ports'])}, or for another data directory"
        )
    if _in_use(directory):
        raise SettingsError(f"{directory} is in use by a running broker: stop that one, or choose another directory")
    if port is not None and not 1 <= port <= 65_535:
        raise SettingsError(f"port {port} does not exist: choose one from 1 to 65535")
    if port is not None and not _is_free(port):
        raise SettingsError(f"port {port} of {HOST} is taken: choose another")
    cluster_id = kept["cluster_id"] if kept else base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    wanted = [number for pair in kept["ports"] for number in pair] if kept else [None] * (2 * brokers)
    numbers = free_ports([port or wanted[0], *wanted[1:]])
    ports = list(zip(numbers[::2], numbers[1::2], strict=True))
    write_whole(cluster, {"cluster_id": cluster_id, "ports": ports})
    return cluster_id, [Node(i, *pair, directory / f"broker-{i}") for i, pair in enumerate(ports)]


def _in_use(directory: Path) -> bool:
    """Returns whether a broker holds Kafka's lock on its data; waits up to 2 s: a killed broker releases it late."""
    deadline = time.monotonic() + 2.0
    while any(map(_is_locked, directory.glob("broker-*/data/.lock"))):
        if time.monotonic() > deadline:
            return True
        time.sleep(0.05)
    return False


def _is_locked(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            # not filelock: Java takes a POSIX lock, and the two kinds do not exclude each other
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def free_ports(wanted: Sequence[int | None]) -> list[int]:
    """Returns the wanted ports that are free, and other free ports for the rest and for None.

    No other process gets these other ports until this one ends, because a server binds its port only seconds later.
    """
    others = (port for port in random.SystemRandom().sample(_PORTS, len(_PORTS)) if port not in wanted)
    mine = (port for port in others if _is_free(port) and _claim(port))
    return [port if port and _is_free(port) else next(mine) for port in wanted]


def _claim(port: int) -> bool:
    """Locks the byte of a port in a file, until this process ends; False if another process has it."""
    if (claims := _claims()) is None:
        return True
    try:
        fcntl.lockf(claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _claims() -> int | None:
    """Returns the file of the locks; None if it cannot be opened, or somebody else has replaced it.

    It stays open: closing it would release the locks.
    """
    path = Path(tempfile.gettempdir(), f"kstreams-ports-{os.getuid()}")
    try:
        # all users of the machine may write there: a link could lead to any file of this user
        claims = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        return None
    found = os.fstat(claims)
    if found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return claims
    os.close(claims)
    return None


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def write_settings(node: Node, nodes: Sequence[Node], settings: Mapping[str, str]) -> None:
    node.directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}={value}" for name, value in {**server_properties(node, nodes), **settings}.items()]
    (node.directory / "server.properties").write_text("\n".join(lines) + "\n")
    (node.directory / "log4j2.xml").write_text(_LOG4J2.format(directory=node.directory))


def server_properties(node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    """Returns Kafka's settings for one node of a small cluster on one machine."""
    replicas, in_sync = str(min(3, len(nodes))), str(min(2, len(nodes)))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.index),
        "controller.quorum.voters": ",".join(f"{each.index}@{HOST}:{each.controller_port}" for each in nodes),
        "listeners": f"BROKER://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(node.directory / "data"),
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "8",
        # by default every 10 s: the open transaction of a dead worker would block readers for that much longer
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # a killed broker cannot register again before its old session has ended
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        # by default an idle controller writes a record every 500 ms: a third of an idle broker's CPU time
        "metadata.max.idle.interval.ms": "5000",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        # retention follows the records' timestamps, and records loaded here are often years old
        "log.retention.ms": "-1",
        # by default 7 days: if the data directory was unused for longer, its groups would begin again
        "offsets.retention.minutes": str(365 * 24 * 60),
        # the default of 128 MB is a quarter of the heap
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """Replaces a JSON file by a rename, so that no reader sees a part of it, even after a crash."""

    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=2) + "\n")
    new.replace(path)
