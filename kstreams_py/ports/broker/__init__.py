"""The embedded broker: a real Apache Kafka (KRaft) of one or more nodes on this machine's loopback.

Each node is a combined broker and controller in a JVM and a session of its own, so that Ctrl-C in a terminal reaches
only the program that uses the cluster, which stops its work first and the cluster last. A cluster lives in one data
directory::

    cluster.json        cluster id and ports: a kept directory comes back as the same cluster
    broker-0/           server.properties, log4j2.xml, server.log, console.log, began, data/

`EmbeddedKafka` is a cluster that ends with this process, whatever ends it; `start_detached`, `stop_detached` and
`status` handle the one cluster per user that outlives the command which started it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import platformdirs

from kstreams_py.errors import BrokerUnavailable, SettingsError
from kstreams_py.ports.broker import class_archive
from kstreams_py.ports.broker.post_mortem import check_room, error_in, full_disks, mark_start, why_ended

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
ARCHIVE_SECONDS: Final = 120.0

# Below the range from which systems take ports for outgoing connections, so that a node that is down keeps its port.
_PORTS: Final = range(20_000, 32_000)

_JVM: Final = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true")

_STOPPED: Final = 128 + signal.SIGTERM
"""The exit status of a JVM that a SIGTERM has ended in order."""

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
    """One broker of a cluster: where it listens and where its files are."""

    index: int
    port: int
    controller_port: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Status:
    """The detached cluster: its addresses, its data, how many of its brokers are alive, and whom a full disk ended."""

    bootstrap_servers: str
    data_dir: Path
    brokers: int
    alive: int
    full_disk: str = ""

    @property
    def running(self) -> bool:
        """Whether every broker is alive."""
        return self.alive == self.brokers


class EmbeddedKafka:
    """A cluster between `start` and `stop`, or for the length of a `with`; brokers are named by index, from 0.

    `classpath` and `java` come from `ports/jars.py`. Without a `data_dir` the data is temporary. `port` is the first
    broker's; others, and all by default, are free ones. `settings` are Kafka's own server properties and win over
    those chosen here. If this process dies without `stop`, its cluster is killed, unless it `outlives` it.
    Raises SettingsError if something asked for cannot be, BrokerUnavailable if a broker does not come up.
    """

    def __init__(
        self,
        classpath: Sequence[Path],
        java: Path,
        *,
        brokers: int = 1,
        data_dir: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        outlives: bool = False,
    ) -> None:
        if brokers < 1:
            raise SettingsError(f"there is no cluster of {brokers} brokers: ask for 1 or more")
        archived = class_archive.to_use(class_archive.path_of(classpath, java))
        self._java = [str(java), "-cp", os.pathsep.join(map(str, classpath)), *_JVM, *archived]
        self._to_archive: list[str] = []
        self._brokers = brokers
        self._outlives = outlives
        self._data_dir = data_dir
        self._port = port
        self._settings = dict(settings or {})
        self._nodes: list[Node] = []
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, as clients take them."""
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes)

    @property
    def data_dir(self) -> Path:
        """Where the cluster's data and logs are, once it was started."""
        return self._nodes[0].directory.parent

    @property
    def pids(self) -> list[int]:
        """Process ids of the brokers that run."""
        return [process.pid for process in self._running.values()]

    def start(self) -> None:
        """Start every broker and return once all of them answer."""
        directory = self._data_dir or Path(tempfile.mkdtemp(prefix="kstreams-broker-"))
        if not self._outlives:
            self._guard = _start_guard(None if self._data_dir else directory)
        try:
            self._launch(directory)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop every broker; temporary data goes with them."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM if self._data_dir else signal.SIGKILL)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._running.values():
            _await_end(process, deadline)
        self._running.clear()
        if self._guard:
            self._guard.communicate()  # end of input: it removes temporary data and ends
            self._guard = None

    def kill(self, broker: int) -> None:
        """End one broker at once (SIGKILL), as a crash would."""
        self._end(broker, signal.SIGKILL)

    def terminate(self, broker: int, within: float = STOP_SECONDS) -> bool:
        """Stop one broker in order (SIGTERM): it hands its partitions over first. False if it was killed after all."""
        return self._end(broker, signal.SIGTERM, within)

    def run_for_classes(self, archive: Path) -> bool:
        """Start one broker and stop it in order, so that Java archives its classes; False if it did not."""
        self._to_archive = class_archive.to_write(archive)
        with self:
            return self.terminate(0, ARCHIVE_SECONDS) and archive.exists()

    def restart(self, broker: int) -> None:
        """Start one broker again on its old port and data; stops it in order first if it runs."""
        node = self._nodes[broker]
        if broker in self._running:
            if self._running[broker].poll() is not None and (why := full_disks(self.data_dir, [broker])):
                logger.warning("the embedded cluster in %s: %s", self.data_dir, why)
            self.terminate(broker)
        check_room(self.data_dir, 1)
        self._spawn(node)
        self._await_ready([node], 1)

    def pause(self, broker: int) -> None:
        """Freeze one broker (SIGSTOP), all its threads: its connections stay open and nothing answers."""
        process = self._running[broker]
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # the signal stops no thread at once

    def resume(self, broker: int) -> None:
        """Let a frozen broker go on (SIGCONT)."""
        self._running[broker].send_signal(signal.SIGCONT)

    def release(self) -> None:
        """Let the brokers run on when this object and this process end."""
        for process in self._running.values():
            process.returncode = 0  # else Popen warns of a child that nobody waited for
        self._running.clear()

    def _launch(self, directory: Path) -> None:
        check_room(directory, self._brokers)
        cluster_id, self._nodes = _open_data_dir(directory, self._brokers, self._port)
        for node in self._nodes:
            _write_settings(node, self._nodes, self._settings)
        self._format(cluster_id)
        for node in self._nodes:
            self._spawn(node)
        self._await_ready(self._nodes, len(self._nodes))

    def _format(self, cluster_id: str) -> None:
        fresh = [node for node in self._nodes if not (node.directory / "formatted").exists()]
        # "=", because an id may start with a dash.
        options = ["format", "--ignore-formatted", f"--cluster-id={cluster_id}", "--config"]
        tool = [*self._java, "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", *options]
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        started = [
            subprocess.Popen([*tool, node.directory / "server.properties"], stdout=pipe, stderr=both, text=True)
            for node in fresh
        ]
        outputs = [process.communicate()[0] for process in started]
        for node, process, output in zip(fresh, started, outputs, strict=True):
            if process.returncode:
                raise BrokerUnavailable(f"the embedded broker {node.index} could not be set up: {error_in(output)}")
            (node.directory / "formatted").touch()

    def _spawn(self, node: Node) -> None:
        log4j = f"-Dlog4j2.configurationFile={node.directory / 'log4j2.xml'}"
        mark_start(node.directory)
        command = [*self._java, *self._to_archive, log4j, "kafka.Kafka", str(node.directory / "server.properties")]
        null, both = subprocess.DEVNULL, subprocess.STDOUT
        with (node.directory / "console.log").open("wb") as console:
            process = subprocess.Popen(command, stdin=null, stdout=console, stderr=both, start_new_session=True)
        self._running[node.index] = process
        self._tell_guard()

    def _end(self, broker: int, how: signal.Signals, within: float = STOP_SECONDS) -> bool:
        process = self._running.pop(broker)
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        _await_end(process, time.monotonic() + within)
        self._tell_guard()
        return process.returncode == _STOPPED

    def _tell_guard(self) -> None:
        if self._guard and self._guard.stdin:
            self._guard.stdin.write(" ".join(map(str, self.pids)).encode() + b"\n")
            self._guard.stdin.flush()

    def _await_ready(self, nodes: Sequence[Node], brokers: int) -> None:
        deadline = time.monotonic() + READY_SECONDS
        for node in nodes:
            while _brokers_known_to(node) < brokers:
                ended = self._running[node.index].poll() is not None
                if ended or time.monotonic() > deadline:
                    what = "ended while it started" if ended else f"was not ready within {READY_SECONDS:.0f} s"
                    raise BrokerUnavailable(f"the embedded broker {node.index} {what}: {why_ended(node.directory)}")
                time.sleep(0.02)


def archive_classes(classpath: Sequence[Path], java: Path) -> None:
    """Run a broker once for an archive of its classes, with which all others start faster; nothing if it is there.

    Raises as EmbeddedKafka does, BrokerUnavailable if Java does not write the archive, OSError if the cache does not
    take it.
    """
    archive = class_archive.path_of(classpath, java)
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        written = Path(directory, archive.name)
        if not EmbeddedKafka(classpath, java).run_for_classes(written):
            raise BrokerUnavailable(f"Java did not write {archive} within {ARCHIVE_SECONDS:g} s")
        written.replace(archive)


def start_detached(
    classpath: Sequence[Path],
    java: Path,
    *,
    brokers: int = 1,
    data_dir: Path | None = None,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Status:
    """Start the user's detached cluster and return once it is ready; if it runs already, only say where.

    Arguments and errors as for EmbeddedKafka; SettingsError also if the running cluster is not the one asked for.
    """
    before = status()
    if before and before.alive:
        _refuse_another(before, brokers, data_dir, port)
        return before
    if before and before.full_disk:
        logger.warning("the cluster in %s: %s", before.data_dir, before.full_disk)
    stop_detached()
    directory = (data_dir or Path(tempfile.mkdtemp(prefix="kstreams-broker-"))).resolve()
    kafka = EmbeddedKafka(
        classpath, java, brokers=brokers, data_dir=directory, port=port, settings=settings, outlives=True
    )
    try:
        kafka.start()
        state = {"data_dir": str(directory), "temporary": data_dir is None, "pids": kafka.pids}
        _write_whole(_state_file(), state | {"bootstrap_servers": kafka.bootstrap_servers})
    except BaseException:
        kafka.stop()
        if data_dir is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    kafka.release()
    return Status(kafka.bootstrap_servers, directory, brokers, brokers)


def stop_detached() -> Status | None:
    """Stop the user's detached cluster, and only what belongs to it; returns what was there, None if nothing was."""
    before, state = status(), _read_state()
    if before is None or state is None:
        return None
    for how in (signal.SIGKILL,) if state["temporary"] else (signal.SIGTERM, signal.SIGKILL):
        for pid in _alive(state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + STOP_SECONDS
        while _alive(state) and time.monotonic() < deadline:
            time.sleep(0.02)
    if state["temporary"]:
        shutil.rmtree(before.data_dir, ignore_errors=True)
    _state_file().unlink()
    return before


def status() -> Status | None:
    """The user's detached cluster, None if none was started."""
    state = _read_state()
    if state is None:
        return None
    pids, alive, directory = state["pids"], _alive(state), Path(state["data_dir"])
    full = full_disks(directory, (index for index, pid in enumerate(pids) if pid not in alive))
    return Status(state["bootstrap_servers"], directory, len(pids), len(alive), full)


def _state_file() -> Path:
    return Path(platformdirs.user_state_dir("kstreams_py"), "broker.json")


def _read_state() -> dict[str, Any] | None:
    path = _state_file()
    return json.loads(path.read_text()) if path.exists() else None


def _alive(state: dict[str, Any]) -> list[int]:
    """Process ids of a detached cluster's living brokers: a number alone could by now be another program's."""
    return [pid for pid in state["pids"] if f"{state['data_dir']}/broker-" in _command_line(pid)]


def _command_line(pid: int) -> str:
    if not Path("/proc/self").exists():
        ps = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        return subprocess.run(ps, capture_output=True, text=True, check=False).stdout
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def _refuse_another(running: Status, brokers: int, data_dir: Path | None, port: int | None) -> None:
    first = running.bootstrap_servers.split(",")[0]
    as_asked = (
        brokers == running.brokers
        and (data_dir is None or data_dir.resolve() == running.data_dir)
        and (port is None or f"{HOST}:{port}" == first)
    )
    if not as_asked:
        raise SettingsError(
            f"a different cluster runs already: {running.brokers} broker(s) at {running.bootstrap_servers}, data in "
            f"{running.data_dir}; use that one, or stop it first: kstreams broker stop"
        )


def _start_guard(temporary: Path | None) -> subprocess.Popen[bytes]:
    """A shell that reads process ids, one line replacing the other, and kills the last ones when its input ends."""
    script = 'while read -r line; do pids=$line; done; [ -z "$pids" ] || kill -9 $pids; [ -z "$1" ] || rm -rf "$1"'
    command = ["/bin/sh", "-c", script, "kstreams-broker-guard", str(temporary or "")]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)


def _await_end(process: subprocess.Popen[bytes], deadline: float) -> None:
    # The last of several controllers cannot shut down in order: the quorum went with the others.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    process.kill()
    process.wait()


def _open_data_dir(directory: Path, brokers: int, port: int | None) -> tuple[str, list[Node]]:
    """The cluster id and the nodes of a data directory, which is made if it is not there."""
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
    if port is not None and not _is_free(port):
        raise SettingsError(f"port {port} of {HOST} is taken: choose another")
    cluster_id = kept["cluster_id"] if kept else base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    wanted = [number for pair in kept["ports"] for number in pair] if kept else [None] * (2 * brokers)
    numbers = _free_ports([port or wanted[0], *wanted[1:]])
    ports = list(zip(numbers[::2], numbers[1::2], strict=True))
    _write_whole(cluster, {"cluster_id": cluster_id, "ports": ports})
    return cluster_id, [Node(i, *pair, directory / f"broker-{i}") for i, pair in enumerate(ports)]


def _in_use(directory: Path) -> bool:
    """Whether a broker holds the lock that Kafka takes on its data; one that was just killed lets go a moment later."""
    deadline = time.monotonic() + 2.0
    while any(map(_is_locked, directory.glob("broker-*/data/.lock"))):
        if time.monotonic() > deadline:
            return True
        time.sleep(0.05)
    return False


def _is_locked(path: Path) -> bool:
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _free_ports(wanted: Sequence[int | None]) -> list[int]:
    """The ports asked for where they are free, other free ones where not."""
    others = (port for port in random.SystemRandom().sample(_PORTS, len(_PORTS)) if port not in wanted)
    return [port if port and _is_free(port) else next(filter(_is_free, others)) for port in wanted]


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def _write_settings(node: Node, nodes: Sequence[Node], settings: Mapping[str, str]) -> None:
    node.directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}={value}" for name, value in {**server_properties(node, nodes), **settings}.items()]
    (node.directory / "server.properties").write_text("\n".join(lines) + "\n")
    (node.directory / "log4j2.xml").write_text(_LOG4J2.format(directory=node.directory))


def server_properties(node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    """Kafka's settings for one node of a small cluster on one machine."""
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
        # The default looks every 10 s: a transaction without a worker would block its readers for so much longer.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # A broker that was killed may not come back before its old session is over.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        # Retention goes by the records' own time, and what people load here is often years old.
        "log.retention.ms": "-1",
        # Its default of 128 MB would be a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }


def _brokers_known_to(node: Node) -> int:
    """How many brokers a node names in answer to a metadata request (version 1, no topics); 0 if it does not answer."""
    request = struct.pack(">ihhihi", 14, 3, 1, 0, -1, 0)
    with contextlib.suppress(OSError, struct.error), socket.create_connection((HOST, node.port), 1.0) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as response:
            return int(struct.unpack(">iii", response.read(12))[2])
    return 0


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file so that no reader, and no crash, ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=2) + "\n")
    new.replace(path)
