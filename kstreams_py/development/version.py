"""The process of one version of a graph's code: checks it, runs it when told to, then drains it.

Each version has a process of its own, because a process cannot import changed code a second time. The process reports
to `kstreams dev` in lines of JSON on the report pipe: `ready` with the topics that it has created, `positions` up to
which it has shown outputs, and finally `error`, if it fails. A line on its standard input tells it to run, with the
positions from which to show outputs. At the end of its standard input it drains, or ends if it was not told to run yet.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import BrokerUnavailable, KStreamsError, Retriable, TopicError
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.loading import load
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.records.lines import Lines
from kstreams_py.operations.records.tail import POLL_SECONDS, Tail
from kstreams_py.processing.topics import ask_clusters, check_topics, create_topics, describe_idle_slots
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.running.output import READ_MAX, STDOUT
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.terminal.logs import log_format
from kstreams_py.running.wiring import observing, open_progress, supervise
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment

if TYPE_CHECKING:
    from kstreams_py.running.terminal.progress import Progress

logger = logging.getLogger(__name__)

Show = Callable[[str, Sequence[str]], None]
"""Takes a topic and the lines of a record in it."""


def written_topics(graph: Graph) -> list[str]:
    """Returns the topics that a graph writes to, dead-letter topics last."""
    outputs = [topic.name for processor in graph.processors for topic in processor.outputs]
    letters = [processor.errors for processor in graph.processors if processor.errors is not None]
    return list(dict.fromkeys([*outputs, *letters]))


class Following:
    """Shows the records of a graph's outputs and dead letters, once they are committed.

    It begins at the ends that the topics had when it was created, or at the offsets given to `go_on`.
    """

    def __init__(
        self,
        environment: Environment,
        graph: Graph,
        found: Mapping[str, TopicInfo],
        show: Show,
        *,
        as_json: bool = False,
    ) -> None:
        """Starts at the ends of the topics. Raises the exceptions of Lines.

        - `found`: the graph's topics.
        - `show`: takes the lines of a record.
        - `as_json`: shows a dead letter as one line, too.
        """
        names = written_topics(graph)
        self._graph, self._cluster = graph, environment.cluster
        self._tails = {
            name: Tail(replace(environment, cluster=self._cluster.named(graph.topics[name].cluster)), found[name])
            for name in names
        }
        self._lines = {name: Lines(name, graph, environment.registry) for name in names}
        self._as_json = as_json
        self._show = show
        self.positions: Positions = self._ends()
        """The next offset to show of each partition."""

    def go_on(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continues at these offsets, except in partitions that end before them.

        Such a partition belongs to a topic that was created again.
        """
        ends = self._ends()
        self.positions |= {tp: at for tp, at in positions.items() if at <= ends.get(tp, -1)}

    def _ends(self) -> Positions:
        partitions = [tp for tail in self._tails.values() for tp in tail.partitions]
        return ask_clusters(self._graph, self._cluster, partitions, lambda cluster, each: cluster.ends(each))

    def look(self) -> bool:
        """Shows the new records, topic by topic. Returns whether there were any."""
        ends = {tp: end for tp, end in self._ends().items() if end > self.positions[tp]}
        for name, tail in self._tails.items():
            mine = {tp: end for tp, end in ends.items() if tp.topic == name}
            for m in tail.read(self.positions, mine):
                self._show(name, self._describe(name, m))
                self.positions[TopicPartition(m.topic(), m.partition())] = m.offset() + 1
        self.positions |= ends
        return bool(ends)

    def _describe(self, topic: str, m: Message) -> list[str]:
        """Returns the lines of a record; for a readable dead letter, as `kstreams dead-letters show` prints it."""
        lines = self._lines[topic]
        text = None if self._as_json else lines.show_letter(m)
        return [lines.show(m)] if text is None else text.split("\n")

    def run(self, looked: Callable[[], None], stopped: threading.Event) -> None:
        """Looks until `stopped` is set, and once more after that. Calls `looked` after each look that found records.

        Waits for a broker that does not answer. On any other error, logs a warning and returns: the workers do not
        depend on the display of outputs.
        """
        is_away, is_last = False, False
        while not is_last:
            is_last = stopped.is_set()
            try:
                if self.look():
                    looked()
                is_away = False
            except TopicError as error:
                logger.warning("outputs are not shown any more: %s", error)
                return
            except (Retriable, BrokerUnavailable) as error:
                if not is_away:
                    logger.warning("%s; outputs are shown once it answers", error)
                is_away = True
            except KStreamsError as error:  # for example, the schema registry does not answer
                logger.warning("outputs are not shown any more: %s: %s", type(error).__name__, error)
                return
            if not is_last:
                stopped.wait(POLL_SECONDS)


SHOW_SECONDS: Final = 5.0
"""Seconds that a version waits to show its last outputs: a request without an answer takes request_timeout_ms."""


def run_version(target: str, workers: int, settings: Settings, partitions: int) -> None:
    """Runs a version of a graph from its check to its end.

    - `workers`: the number of worker processes. A worker that ends is not restarted, so its error is not repeated.
    - `partitions`: the number of partitions of new topics, if nothing else decides it.

    Raises UserMistake for a mistake in the graph or its topics, and WorkersFailed for a worker that died.
    """
    told = queue.SimpleQueue[bytes]()
    # before the import, which may never return: this process has to end with `kstreams dev` even then
    threading.Thread(target=lambda: told.put(_read_line()), name="go", daemon=True).start()
    graph = load(target)
    graph.validate()
    registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
    cluster = KafkaCluster(settings)
    try:
        created = create_topics(graph, cluster, partitions)
        found = check_topics(graph, cluster)
        with open_progress(background=True) as screen:
            environment, as_json = Environment(cluster, registry, settings), log_format() == "json"
            following = Following(environment, graph, found, _shower(screen), as_json=as_json)
            idle = describe_idle_slots(graph, found, workers)
            _say(ready=created, idle=idle)
            following.go_on(positions_of(json.loads(told.get())["positions"]))
            _run(graph, target, workers, settings, following, screen)
    finally:
        cluster.close()


def _read_line() -> bytes:
    """Reads a line of standard input. Ends this process if standard input ends first."""
    line = b""
    while not line.endswith(b"\n"):
        if not (data := os.read(sys.stdin.fileno(), READ_MAX)):
            os._exit(0)
        line += data
    return line


def _run(graph: Graph, target: str, workers: int, settings: Settings, following: Following, screen: Progress) -> None:
    supervisor = supervise(target, range(workers), settings, has_standby=False)
    supervisor.forbid_restarts()
    _own_process(supervisor)
    with observing(graph, settings) as observe, showing(following):
        supervisor.run(lambda _: None, observe, screen.write)


@contextmanager
def showing(following: Following) -> Iterator[None]:
    """Shows outputs inside the block, and at its end the last outputs, which the drain commits."""
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


def _shower(screen: Progress) -> Show:
    return lambda topic, lines: screen.write(STDOUT, topic, [line.encode() for line in lines])


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
