"""The consumers of `kstreams demo ordering`: worker processes of three groups, and the result of each group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from threading import Event
from typing import Final

from kstreams_py.demo.order_checks import Consumed
from kstreams_py.demo.ordering_graph import NAME, PAUSES, graph, processor_of, topic_of
from kstreams_py.demo.recoveries import are_running
from kstreams_py.formats.registries import open_registry
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.operations.order import find_objects
from kstreams_py.records import Message, TopicPartition
from kstreams_py.running.status import RunStatus
from kstreams_py.running.terminal import logs
from kstreams_py.running.wiring import supervise
from kstreams_py.settings import Settings
from kstreams_py.state.reading import read_state
from kstreams_py.steps.environment import Environment

TARGET: Final = "kstreams_py.demo.ordering_graph:graph"
SLOTS: Final = (0, 1)

STEP_HEADER: Final = "ks-proc"
"""The header of a dead letter that names graph and processor."""


class OrderConsumers:
    """Runs the worker processes of the groups from `start` to `close`, and starts them again after each kill."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self._log = log
        self._joined = Event()
        self._run: Future[None] | None = None
        self._supervisor = supervise(TARGET, SLOTS, settings)

    def start(self, pool: Executor) -> None:
        """Starts the processes. `pool`: must have a free thread for their supervisor."""
        self._run = pool.submit(self._supervisor.run, lambda _: None, self._note, self._write)

    @property
    def have_joined(self) -> bool:
        """Whether each process has joined its groups. Raises the failure that ended the processes."""
        if self._run is not None and self._run.done():
            self._run.result()
        return self._joined.is_set()

    @property
    def pids(self) -> dict[int, int]:
        """The process ids by slot."""
        return self._supervisor.pids

    def close(self) -> None:
        """Stops the processes. Raises the failure that has ended them."""
        self._supervisor.stop()
        if self._run is not None:
            self._run.result()

    def _note(self, status: RunStatus) -> None:
        if are_running(status, PAUSES, len(SLOTS)):
            self._joined.set()

    def _write(self, output: int, slot: str, lines: Sequence[bytes]) -> None:
        """Appends lines of the processes to the log."""
        with self._log.open("ab") as file:
            file.write(b"".join(logs.dress(output, slot, line) + b"\n" for line in lines))


def read_groups(settings: Settings, cluster: Cluster) -> dict[str, Consumed]:
    """Reads each group's committed result: states, events in the order applied, and counts of refused and held ones."""
    registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
    environment = Environment(cluster, registry, settings)
    faults = [dict(m.headers() or ()).get(STEP_HEADER) for m in read_topic(cluster, f"{NAME}.errors")]
    found = {}
    for group in PAUSES:
        processor = processor_of(group)
        each = Consumed(states=read_state(graph, processor, cluster, registry))
        for m in read_topic(cluster, topic_of(group)):
            each.events.setdefault((m.key() or b"").decode(), []).append(json.loads(m.value() or b""))
        each.faults = faults.count(f"{NAME}.{group}".encode())
        each.held = sum(len(one.held) for one in find_objects(graph, processor, environment))
        found[group] = each
    return found


def read_topic(cluster: Cluster, topic: str) -> Iterator[Message]:
    """Yields the committed records of a topic, partition by partition."""
    for info in cluster.topics([topic]).values():
        for partition in range(info.partitions):
            yield from cluster.read(TopicPartition(topic, partition))
