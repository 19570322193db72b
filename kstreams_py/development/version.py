"""The process of one version of a graph's code: checks it, runs it when told to, then drains it.

Each version has a process of its own, because a process cannot import changed code a second time. The process reports
to `kstreams dev` by lines of JSON in the pipe of reports: `ready` with the topics that it has created, `positions` up
to which it has shown outputs, and at last `error`. A line on its standard input tells it to run, with the positions
from which to show outputs. At the end of its standard input it drains, or ends if that line has not come yet.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.development.following import Following
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.loading import load
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.processing.environment import Environment
from kstreams_py.processing.topics import check_topics, create_topics, describe_idle_slots
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.running.output import READ_MAX, STDOUT
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.wiring import observing, open_progress, worker_command
from kstreams_py.settings import Settings

if TYPE_CHECKING:
    from kstreams_py.running.terminal.progress import Progress

logger = logging.getLogger(__name__)

DRAIN_EXTRA: Final = 5.0
"""Seconds beyond drain_timeout_ms after which workers are killed."""

SHOW_SECONDS: Final = 5.0
"""Seconds after which it gives up showing the last outputs: a request without an answer takes request_timeout_ms."""


def run_version(target: str, workers: int, settings: Settings, partitions: int) -> None:
    """Runs a version of a graph from its check to its end.

    - `workers`: the number of worker processes. A worker that ends is not restarted, so its error is not repeated.
    - `partitions`: the number of partitions of new topics, if nothing else decides it.

    Raises UserMistake for a mistake in the graph or its topics, and WorkersFailed for a worker that died.
    """
    told = queue.SimpleQueue[bytes]()
    # before the import, which may never return: `kstreams dev` may have ended by then
    threading.Thread(target=lambda: told.put(_read_line()), name="go", daemon=True).start()
    graph = load(target)
    graph.validate()
    registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
    cluster = KafkaCluster(settings)
    try:
        created = create_topics(graph, cluster, partitions)
        found = check_topics(graph, cluster)
        with open_progress(background=True) as screen:
            following = Following(Environment(cluster, registry, settings), graph, found, _shower(screen))
            idle = describe_idle_slots(graph, found, workers)
            _say(ready=created, idle=idle)
            following.go_on(positions_of(json.loads(told.get())["positions"]))
            _run(graph, target, workers, settings, following, screen)
    finally:
        cluster.close()


def _read_line() -> bytes:
    """Reads a line of standard input. Ends this process if standard input ends before."""
    line = b""
    while not line.endswith(b"\n"):
        if not (data := os.read(sys.stdin.fileno(), READ_MAX)):
            os._exit(0)
        line += data
    return line


def _run(graph: Graph, target: str, workers: int, settings: Settings, following: Following, screen: Progress) -> None:
    supervisor = Supervisor(
        worker_command(target),
        range(workers),
        drain_seconds=settings.drain_timeout_ms / 1000 + DRAIN_EXTRA,
        environment=settings.as_environment(),
        stuck_timeout_ms=settings.stuck_timeout_ms,
    )
    supervisor.forbid_restarts()
    _own_process(supervisor)
    with observing(graph, settings) as observe, showing(following):
        supervisor.run(lambda _: None, observe, screen.write)


@contextmanager
def showing(following: Following) -> Iterator[None]:
    """Shows outputs inside the block, and at its end the last ones, which the drain commits."""
    stopped = threading.Event()
    thread = threading.Thread(
        target=following.run,
        args=(lambda: _say(positions=list_of(following.positions)), stopped),
        name="outputs",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(SHOW_SECONDS)
        if thread.is_alive():
            logger.warning("the last outputs are not shown: the broker has not given them within %g s", SHOW_SECONDS)


def _own_process(supervisor: Supervisor) -> None:
    """Drains on a first SIGTERM and at the end of standard input. Kills the workers on a second SIGTERM."""

    def ask(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: supervisor.kill())
        supervisor.stop()

    def await_end() -> None:
        while os.read(sys.stdin.fileno(), 1):  # not sys.stdin.read(): Python would wait for it at exit
            pass
        supervisor.stop()

    signal.signal(signal.SIGTERM, ask)
    threading.Thread(target=await_end, name="stdin", daemon=True).start()


def _shower(screen: Progress) -> Callable[[str, bytes], None]:
    return lambda topic, line: screen.write(STDOUT, topic, [line])


def _say(**fields: Any) -> None:
    """Writes a line to the process of `kstreams dev`, unless it has ended. Waits while the pipe is full."""
    data, fd = json.dumps(fields).encode() + b"\n", int(os.environ[REPORT_FD])
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        pass


def list_of(positions: Positions) -> list[tuple[str, int, int]]:
    """Returns positions as JSON values."""
    return [(*tp, at) for tp, at in positions.items()]


def positions_of(listed: Iterable[tuple[str, int, int]]) -> Positions:
    """Returns the positions of `list_of`, as read from JSON."""
    return {TopicPartition(topic, number): at for topic, number, at in listed}
