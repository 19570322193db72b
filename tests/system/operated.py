"""A graph in a file, its topics and its worker, and the commands of an operator on it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kstreams_py as ks
from tests.clusters import open_cluster
from tests.system.command import Finished, kstreams
from tests.system.harness import Cluster, WorkerProcess, wait_until

MAP = "graph.map(topic('in'), to=topic('out'), id='work')(lambda value: value)"
JOURNALED = "graph.map(topic('in'), to=topic('out'), id='work', persistence='journal')(lambda value: value)"
ALTS = "graph.alts(topic('a'), topic('b'), to=topic('out'), id='work')(lambda value: value)"
JOIN = "graph.join(topic('a'), topic('b'), by='order', to=topic('out'), id='work')(lambda a, b: a + b)"


class Site:
    """A graph in a file, its topics, and the commands on it."""

    def __init__(self, cluster: Cluster, name: str, directory: Path, processor: str, *topics: str) -> None:
        self.cluster, self.name, self.file = cluster, name, directory / "app.py"
        self.group = f"{name}.work"
        self.environment = {
            "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "KSTREAMS_SCHEMA_DIRECTORY": str(directory / "schemas"),
            "KSTREAMS_LEAVE_ON_STOP": "true",
            "KSTREAMS_TRANSACTION_TIMEOUT_MS": "6000",
        }
        self.file.write_text(
            "import kstreams_py as ks\n"
            f"graph = ks.Graph({name!r})\n"
            f"topic = lambda end: graph.topic({name!r} + '.' + end)\n"
            f"{processor}\n",
            encoding="utf-8",
        )
        cluster.create(*(f"{name}.{topic}" for topic in (*topics, "out")))
        self._inputs = [self.topic(end) for end in topics if end in ("in", "a", "b")]

    def topic(self, end: str) -> str:
        return f"{self.name}.{end}"

    def write(self, end: str, *values: bytes) -> None:
        self.cluster.write(self.topic(end), values)

    @property
    def outputs(self) -> list[bytes | None]:
        return self.cluster.values(self.topic("out"))

    @contextmanager
    def worker(self) -> Iterator[WorkerProcess]:
        """`kstreams run` inside the block; it drains and leaves its group at the end."""
        worker = WorkerProcess(self.file, 0, self.environment)
        try:
            yield worker
            wait_until(lambda: ": holds " in worker.text, "the worker handles SIGTERM")
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0, worker.text
        finally:
            worker.kill()

    def run_until(self, count: int) -> list[bytes | None]:
        """Runs a worker until there are so many outputs; returns them."""
        with self.worker() as worker:

            def arrived() -> bool:
                assert worker.process.poll() is None, worker.text
                return len(self.outputs) >= count

            wait_until(arrived, f"{count} outputs")
        return self.outputs

    def recover(self, verb: str, *arguments: object, typed: str = "") -> Finished:
        return kstreams("recover", verb, f"{self.file}:graph", *arguments, environment=self.environment, typed=typed)

    def reset(self, *arguments: object, typed: str = "") -> Finished:
        return self.recover("reset", "work", *arguments, typed=typed)

    def refused(self, verb: str, *arguments: object) -> str:
        """The one message of a command that is a user's mistake; nothing has changed."""
        before = self.positions()
        ended = self.recover(verb, *arguments)
        assert (ended.status, ended.out, len(ended.error_lines)) == (2, "", 1), ended
        assert self.positions() == before
        return ended.err.removeprefix("error: ").strip()

    def release(self) -> None:
        """Removes the membership of a worker that ended by an error."""
        ended = kstreams("slots", "release", f"{self.file}:graph", 0, environment=self.environment)
        assert ended.status == 0, ended

    def positions(self) -> dict[str, dict[int, int]]:
        return {topic: self.cluster.committed(self.group, topic) for topic in self._inputs}

    def topic_id(self, end: str) -> str:
        kafka = open_cluster(ks.Settings(bootstrap_servers=self.cluster.bootstrap_servers))
        try:
            return kafka.topics([self.topic(end)])[self.topic(end)].topic_id
        finally:
            kafka.close()
