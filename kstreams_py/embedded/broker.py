"""The embedded broker: a real Apache Kafka (KRaft) of one or more nodes on this machine's loopback.

Each node is a combined broker and controller, a JVM in its own process session. So Ctrl-C in a terminal reaches only
the program that uses the cluster, which first ends its work and then the cluster.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, Self

from kstreams_py.embedded import class_archive, jars
from kstreams_py.embedded.java import find_java
from kstreams_py.embedded.nodes import HOST, Node, open_data_dir, write_settings
from kstreams_py.embedded.post_mortem import check_space, error_in, full_disks, mark_start, why_ended
from kstreams_py.embedded.process_table import await_stopped
from kstreams_py.errors import BrokerUnavailable, MissingSoftware, SettingsError

logger = logging.getLogger(__name__)

READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
ARCHIVE_SECONDS: Final = 120.0

_JVM: Final = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true")

_STOPPED: Final = 128 + signal.SIGTERM
"""The exit status of a JVM that was shut down by SIGTERM."""


class EmbeddedKafka:
    """A cluster that runs from `start` to `stop`, or for a `with` block; brokers are numbered from 0.

    - `classpath`: Kafka's jars; by default those in the user's cache, fetched once.
    - `java`: the path of the program `java`; by default found by `find_java`.
    - `brokers`: the number of brokers.
    - `data_dir`: the directory of the data; by default a temporary one.
    - `port`: the port of the first broker; by default, and for the other brokers, free ports.
    - `settings`: Kafka's server properties, which override the ones in nodes.py.
    - `outlives`: if False, the cluster is killed when this process dies without `stop`.

    Raises MissingSoftware without Java or jars, SettingsError if an argument cannot be satisfied, BrokerUnavailable if
    a broker does not start.
    """

    def __init__(
        self,
        classpath: Sequence[Path] | None = None,
        java: Path | None = None,
        *,
        brokers: int = 1,
        data_dir: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        outlives: bool = False,
    ) -> None:
        if brokers < 1:
            raise SettingsError(f"brokers={brokers}: a cluster has 1 or more brokers")
        classpath = jars.kafka_classpath(logger.info) if classpath is None else classpath
        java = find_java() if java is None else java
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
        """The addresses of all brokers, in the form that clients take."""
        return ",".join(f"{HOST}:{node.port}" for node in self._nodes)

    @property
    def data_dir(self) -> Path:
        """The directory of the cluster's data and logs; only after `start`."""
        return self._nodes[0].directory.parent

    @property
    def pids(self) -> list[int]:
        """The process ids of the running brokers."""
        return [process.pid for process in self._running.values()]

    def start(self) -> None:
        """Starts every broker, and returns once all of them answer."""
        directory = self._data_dir or Path(tempfile.mkdtemp(prefix="kstreams-broker-"))
        if not self._outlives:
            self._guard = _start_guard(None if self._data_dir else directory)
        try:
            self._launch(directory)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops every broker, and deletes temporary data."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM if self._data_dir else signal.SIGKILL)
        deadline = time.monotonic() + STOP_SECONDS
        for index, process in list(self._running.items()):
            _await_end(process, deadline)
            del self._running[index]
            self._tell_guard()  # otherwise it would kill whatever process has the id by then
        if self._guard:
            self._guard.communicate()  # at the end of its input it deletes temporary data and ends
            self._guard = None

    def kill(self, broker: int) -> None:
        """Kills one broker (SIGKILL), as in a crash."""
        self._end(broker, signal.SIGKILL)

    def terminate(self, broker: int, within: float = STOP_SECONDS) -> bool:
        """Shuts one broker down (SIGTERM); it first hands its partitions over.

        Returns False if the broker did not end `within` that many seconds, and was killed.
        """
        return self._end(broker, signal.SIGTERM, within)

    def run_for_classes(self, archive: Path) -> bool:
        """Runs one broker briefly, so that Java archives its classes; returns whether the archive exists."""
        self._to_archive = class_archive.to_write(archive)
        with self:
            return self.terminate(0, ARCHIVE_SECONDS) and archive.exists()

    def restart(self, *brokers: int) -> None:
        """Starts brokers again at the same time, with their ports and data; first shuts down those that run.

        If so few brokers run that one more does not make a quorum of controllers, restarting a single one fails: name
        several.
        """
        for broker in brokers:
            if broker in self._running:
                if self._running[broker].poll() is not None and (why := full_disks(self.data_dir, [broker])):
                    logger.warning("the embedded cluster in %s: %s", self.data_dir, why)
                self.terminate(broker)
        nodes = [self._nodes[broker] for broker in brokers]
        check_space(self.data_dir, len(nodes))
        for node in nodes:
            self._spawn(node)
        self._await_ready(nodes, len(nodes))

    def pause(self, broker: int) -> None:
        """Stops all threads of one broker (SIGSTOP): its connections stay open, and it does not answer."""
        process = self._running[broker]
        process.send_signal(signal.SIGSTOP)
        await_stopped(process.pid)

    def resume(self, broker: int) -> None:
        """Continues a paused broker (SIGCONT)."""
        self._running[broker].send_signal(signal.SIGCONT)

    def release(self) -> None:
        """Lets the brokers run on when this object and this process end."""
        for process in self._running.values():
            process.returncode = 0  # otherwise Popen warns of a child that still runs
        self._running.clear()

    def _launch(self, directory: Path) -> None:
        check_space(directory, self._brokers)
        cluster_id, self._nodes = open_data_dir(directory, self._brokers, self._port)
        for node in self._nodes:
            write_settings(node, self._nodes, self._settings)
        self._format(cluster_id)
        for node in self._nodes:
            self._spawn(node)
        self._await_ready(self._nodes, len(self._nodes))

    def _format(self, cluster_id: str) -> None:
        fresh = [node for node in self._nodes if not (node.directory / "formatted").exists()]
        # "=": an id may start with a dash
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
        # a Ctrl-C between start and assignment would leave a broker that no object knows
        with _interrupt_deferred(), (node.directory / "console.log").open("wb") as console:
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
    """Writes the archive of a broker's classes unless it exists, by running a broker once; later brokers start faster.

    Raises the errors of EmbeddedKafka, MissingSoftware for a Java that cannot write an archive, BrokerUnavailable if
    Java does not write it, and OSError if the cache cannot be written.
    """
    archive = class_archive.path_of(classpath, java)
    if archive.exists():
        return
    if not class_archive.can_write(java):
        raise MissingSoftware(f"{java} has no archive of its own classes; another Java 17 or 21 may")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        written = Path(directory, archive.name)
        if not EmbeddedKafka(classpath, java).run_for_classes(written):
            raise BrokerUnavailable(f"Java did not write {archive} within {ARCHIVE_SECONDS:g} s")
        written.replace(archive)


@contextlib.contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Defers a Ctrl-C inside the block until its end; only the main thread is ever interrupted."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    deferred: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: deferred.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if deferred:
            handler(*deferred[0])


def _start_guard(temporary: Path | None) -> subprocess.Popen[bytes]:
    """Starts a shell that kills the brokers and deletes temporary data when its input ends, as when this process dies.

    Each line of its input has the process ids of all running brokers; the last line counts.
    """
    script = 'while read -r line; do pids=$line; done; [ -z "$pids" ] || kill -9 $pids; [ -z "$1" ] || rm -rf "$1"'
    command = ["/bin/sh", "-c", script, "kstreams-broker-guard", str(temporary or "")]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)


def _await_end(process: subprocess.Popen[bytes], deadline: float) -> None:
    # the last of several controllers cannot shut down by itself: the quorum ended with the others
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    process.kill()
    process.wait()


def _brokers_known_to(node: Node) -> int:
    """Returns the number of brokers that a node's metadata shows (version 1, no topics); 0 without an answer."""
    request = struct.pack(">ihhihi", 14, 3, 1, 0, -1, 0)
    with contextlib.suppress(OSError, struct.error), socket.create_connection((HOST, node.port), 1.0) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as response:
            return int(struct.unpack(">iii", response.read(12))[2])
    return 0
