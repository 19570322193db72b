"""What several files of tests run and read: a copying graph with its topics and workers, and dead letters."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.testing import Expected
from tests.system.command import Finished, RunningCommand, command, kstreams
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.recorder import Recorder

MakeSettings = Callable[..., Settings]

GUARANTEES: Final = [str(guarantee) for guarantee in ks.Guarantee]

DEAD_LETTER: Final = Path(__file__).parents[2] / "schemas" / "dead_letter.avsc"

SHORT: Final = {"session_timeout_ms": 3_000, "transaction_timeout_ms": 2_500, "commit_interval_ms": 50}
"""Time-outs of workers that are killed and frozen. A machine with an eighth of its CPU keeps this session."""

SOON: Final = {"topic.metadata.refresh.interval.ms": "1000"}
"""Settings of consumers that look for new partitions every second; the default is every 10 s."""


@cache
def _dead_letter_schema() -> Any:
    from fastavro import parse_schema  # noqa: PLC0415 most tests read no dead letter

    return parse_schema(json.loads(DEAD_LETTER.read_text(encoding="utf-8")))


def decode_dead_letter(m: Any) -> dict[str, Any]:
    """The content of a dead letter, without its traceback."""
    from fastavro import schemaless_reader  # noqa: PLC0415

    found: Any = schemaless_reader(BytesIO(m.value()[5:]), _dead_letter_schema(), None)
    del found["traceback"]
    return dict(found)


def read_dead_letters(cluster: Cluster, topic: str) -> list[tuple[str, list[bytes | None]]]:
    """The exception's class and the input values of each dead letter."""
    found = [decode_dead_letter(m) for m in cluster.read(topic)]
    return [(each["exception_class"].rpartition(".")[2], [i["value"] for i in each["inputs"]]) for each in found]


def grow(cluster: Cluster, partitions: int, *topics: str) -> None:
    """Adds partitions to all topics in one request, so that no client sees only some of them grown."""
    from confluent_kafka.admin import NewPartitions  # noqa: PLC0415

    for future in cluster.admin.create_partitions([NewPartitions(topic, partitions) for topic in topics]).values():
        future.result()

    def has_grown(topic: str) -> bool:
        return len(cluster.partitions(topic)) == partitions

    for topic in topics:
        wait_until(partial(has_grown, topic), f"{topic} has grown")


GRAPH: Final = """
import time
from pathlib import Path
import kstreams_py as ks

graph = ks.Graph({name!r})
place = Path({place!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"{topic}), errors="{name}.errors"{options})
def copy(value):
    if value == b"wait" and not (place / "open").exists():
        (place / "waiting").touch()
        while not (place / "open").exists():
            time.sleep(0.01)
    if value == b"bad":
        raise ValueError("on purpose")
    return value
"""


class App:
    """A copying graph, its topics and its workers.

    The function waits at the value `wait` until the file `gate` exists, and raises at the value `bad`.

    - `cluster`, `outputs`: the clusters of the inputs, and of outputs and dead letters.
    """

    def __init__(
        self, directory: Path, name: str, settings: Settings, *, partitions: int = 1, options: str = "", other: str = ""
    ) -> None:
        """Creates the topics and writes the file.

        - `options`: of the processor, as Python source: "guarantee='at_least_once'".
        - `other`: the cluster of outputs and dead letters, by its name in the settings.
        """
        self.name, self.directory = name, directory
        self.recorder = Recorder(settings.bootstrap_servers)
        self.cluster: Cluster = self.recorder.cluster
        self.outputs = Cluster(settings.clusters[other].bootstrap_servers) if other else self.cluster
        self.source, self.target, self.errors = f"{name}.in", f"{name}.out", f"{name}.errors"
        self.group, self.journal = f"{name}.copy", f"__ks.{name}.copy.journal"
        self.cluster.create(self.source, partitions=partitions)
        self.outputs.create(self.target, partitions=partitions)
        self.outputs.create(self.errors)
        self.file = directory / "copying_graph.py"
        self.graph = f"{self.file}:graph"
        topic, options = f", cluster={other!r}" if other else "", f", {options}" if options else ""
        text = GRAPH.format(name=name, place=str(directory), topic=topic, options=options)
        self.file.write_text(text, encoding="utf-8")
        self.waiting, self.gate = directory / "waiting", directory / "open"
        self.environment = settings.as_environment()
        self._started: list[WorkerProcess] = []
        self._number = 0

    # Workers.

    def start(self, slot: int = 0, *options: str) -> WorkerProcess:
        self.recorder.history.fault(f"worker {slot} is started")
        self._started.append(WorkerProcess(self.file, slot, self.environment, *options))
        return self._started[-1]

    def send(self, worker: WorkerProcess, signum: signal.Signals) -> None:
        self.recorder.history.fault(f"{signum.name} to process {worker.process.pid}")
        worker.send(signum)

    def stop(self, *workers: WorkerProcess) -> None:
        """Stops workers by SIGTERM; each must end with status 0."""
        for worker in workers:
            self.send(worker, signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0] * len(workers), [worker.text for worker in workers]

    def drain(self, *workers: WorkerProcess) -> None:
        """Stops the workers by SIGTERM once all input is processed."""
        self.recorder.await_done(self.group, self.source)
        self.stop(*workers)

    def supervised(self) -> AbstractContextManager[RunningCommand]:
        """Runs slot 0 under a supervisor, which restarts it when it ends."""
        return command(self.directory, "run", self.graph, "--workers", 1, environment=self.environment)

    def await_waiting(self) -> None:
        wait_until(self.waiting.exists, "the function waits")

    def freeze_in_mid_transaction(self, send: Callable[[signal.Signals], None]) -> None:
        """Freezes the worker whose function waits, once outputs of its open transaction are on the broker."""
        self.await_waiting()
        wait_until(
            lambda: self.recorder.ends(self.target) != self.recorder.ends(self.target, "read_uncommitted"), "outputs"
        )
        self.recorder.history.fault("SIGSTOP to the worker whose function waits")
        send(signal.SIGSTOP)
        self.gate.touch()

    def kill(self) -> None:
        """Kills all workers."""
        for worker in self._started:
            worker.kill()

    # Commands.

    def run_command(self, *arguments: object) -> Finished:
        return kstreams(*arguments, environment=self.environment)

    def operate(self, *arguments: object) -> str:
        """Runs a command of `kstreams` to its successful end; returns what it prints."""
        ended = self.run_command(*arguments)
        assert ended.status == 0, ended
        return ended.out

    # Records.

    def write(self, count: int, partition: int = 0, *more: bytes) -> list[bytes]:
        """Writes `count` numbered records to one partition, then the given values; returns all of them."""
        values = [*(b"%d" % i for i in range(self._number, self._number + count)), *more]
        self._number += count
        self.recorder.write(self.source, values, key=b"%d" % partition, partition=partition)
        return values

    def await_outputs(self, count: int) -> None:
        wait_until(lambda: len(self.outputs.values(self.target)) >= count, f"{count} outputs")

    def verify(self) -> None:
        """Each record was copied once, those of a key in order (inputs and outputs on one cluster)."""
        self.recorder.verify(Expected(self.source, to=self.target))


MakeApp = Callable[..., App]


@contextmanager
def app_factory(directory: Path, name: str, settings: MakeSettings, options: str = "") -> Iterator[MakeApp]:
    """A factory of apps, `make(partitions=1, options="", **settings)`; kills their workers at the end of the block."""
    apps: list[App] = []

    def make(partitions: int = 1, options: str = options, **changed: Any) -> App:
        apps.append(App(directory, name, settings(**changed), partitions=partitions, options=options))
        return apps[-1]

    yield make
    for each in apps:
        each.kill()
