"""Measures how many events a second workers of event ordering send: `scripts/bench ordering`.

The events of 200 objects wait in a durable store when the workers start. All settings but `--batch` have their
defaults; each event is a change of its own, of 100 bytes. A topic of a broker takes them with acks=all. An SQLite file
is synced at each commit; a Redis, which is started for the run, before each answer. Each row runs once in each round,
and the ratios compare medians.

Then it measures the memory of a worker with 10,000 events waiting, and with a million. Ends with status 1 if a
requirement is missed, which other load on the machine may cause.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import confluent_kafka as ck
import typer
from rich.console import Console
from rich.table import Table

from bench.__main__ import broker
from bench.loads import PARTITIONS, Cluster, GaveUp
from bench.processes import resident
from bench.servers import start_redis
from kstreams_py.ordering.events import Change, Event
from kstreams_py.ordering.front_end import open_storage

OBJECTS: Final = 200
VALUE: Final = b"x" * 100
SECONDS: Final = 300.0
"""The longest time of a run."""

REQUIRED: Final = {"Redis, batch 100": 5_000}
"""The required events a second."""

REQUIRED_RATIO: Final = 10.0
"""The required ratio of batch 100 to batch 1, on Redis."""

REQUIRED_GROWTH: Final = 10.0
"""The most MB by which a worker may be larger with a million events waiting."""

Open = Callable[[], str]
"""Returns the address of a new, empty store."""


def open_stores(stack: ExitStack, directory: Path) -> dict[str, Open]:
    """Returns functions that make an empty store, by its kind. The server runs until the stack is closed."""
    import redis  # noqa: PLC0415 an extra

    server = stack.enter_context(closing(start_redis("--appendfsync", "always")))
    url = f"redis://127.0.0.1:{server.port}/0"

    def empty() -> str:
        with closing(redis.Redis.from_url(url)) as client:
            client.flushall()
        return url

    return {"Redis": empty, "SQLite": lambda: str(directory / f"{uuid.uuid4().hex}.db")}


def fill(store: str, events: int, each: int = 1) -> None:
    """Queues events of all objects in turn. `each`: the number of events of a change."""
    with closing(open_storage(store)) as storage:
        for first in range(0, events // each, 1_000):
            numbers = range(first, min(first + 1_000, events // each))
            storage.enqueue([make_change(number, each) for number in numbers])


def make_change(number: int, events: int) -> Change:
    made = [Event(uuid.uuid4().bytes, VALUE, is_main=not part) for part in range(events)]
    return Change(f"object {number % OBJECTS}", None, tuple(made))


class Run:
    """Workers on a store, and the topic that they send to."""

    def __init__(self, cluster: Cluster, store: str) -> None:
        self._store = store
        self._cluster = cluster
        self._topic = cluster.create(cluster.name("events"))
        self._reader = ck.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "bench"})
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, batch: int) -> None:
        command = [sys.executable, "-m", "kstreams_py", "order", "--name", name, "--batch", str(batch)]
        where = ["--store", self._store, "--topic", self._topic, "-b", self._cluster.bootstrap]
        self.workers.append(subprocess.Popen([*command, *where], stderr=subprocess.DEVNULL))

    def sent(self) -> int:
        """Counts the events in the topic."""
        partitions = [ck.TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        try:
            return sum(self._reader.get_watermark_offsets(each, 10)[1] for each in partitions)
        except ck.KafkaException:
            return 0  # the topic has no leader yet

    def await_sent(self, events: int) -> tuple[float, int]:
        """Waits until this many events are in the topic. Returns the time, and how many there are."""
        deadline = time.monotonic() + SECONDS
        while (sent := self.sent()) < events:
            if time.monotonic() > deadline or any(each.poll() is not None for each in self.workers):
                raise GaveUp(f"{sent} of {events} events were sent")
            time.sleep(0.02)
        return time.monotonic(), sent

    def close(self) -> None:
        for each in self.workers:
            each.send_signal(signal.SIGTERM)
        for each in self.workers:
            each.wait()
        self._reader.close()
        self._cluster.delete(self._topic)


@contextmanager
def running(cluster: Cluster, store: str, workers: int, batch: int) -> Iterator[Run]:
    with closing(Run(cluster, store)) as run:
        for number in range(workers):
            run.start(f"w{number}", batch)
        yield run


def measure(cluster: Cluster, store: str, events: int, workers: int, batch: int) -> float:
    """Measures events a second, after the first tenth, until the store has no events and no tokens. Raises GaveUp."""
    fill(store, events)
    with running(cluster, store, workers, batch) as run, closing(open_storage(store)) as storage:
        began, first = run.await_sent(events // 10)
        _, sent = run.await_sent(events)
        while storage.objects():
            time.sleep(0.02)
        ended = time.monotonic()
    if sent != events:
        raise GaveUp(f"{sent} events instead of {events}")
    return (events - first) / (ended - began)


def measure_memory(cluster: Cluster, store: str, events: int) -> float:
    """Measures the MB of a worker after a number of events. `events`: how many are waiting at first."""
    fill(store, events, each=50)
    with running(cluster, store, 1, 100) as run:
        run.await_sent(9_000)
        return resident(run.workers[0].pid) / 1e6


def main(
    events: Annotated[
        int, typer.Option(help="of each run with batches; a fifth where --batch is 1", min=1000)
    ] = 50_000,
    rounds: Annotated[int, typer.Option(help="runs of each row", min=1)] = 3,
    memory: Annotated[bool, typer.Option(help="whether memory is measured")] = True,
) -> None:
    """Measure how many events a second workers send, and their memory."""
    console: Any = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(f"load before: {os.getloadavg()[0]:.1f} processes")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, ExitStack() as stack, broker(None) as address:
        cluster = Cluster(address, Path(directory))
        stores = open_stores(stack, Path(directory))
        rows = {f"{kind}, batch {batch}": (kind, 1, batch) for kind in stores for batch in (1, 100)}
        rows |= {f"{kind}, batch 100, three workers": (kind, 3, 100) for kind in stores}
        rates: dict[str, list[float]] = {name: [] for name in rows}
        for number in range(rounds):
            for name, (kind, workers, batch) in rows.items():
                count = events if batch > 1 else events // 10
                rates[name].append(measure(cluster, stores[kind](), count, workers, batch))
                console.print(f"round {number + 1}  {name:32} {rates[name][-1]:10,.0f} events/s")
        found = {name: median(each) for name, each in rates.items()}
        megabytes = [measure_memory(cluster, stores["Redis"](), count) for count in (10_000, 1_000_000) if memory]
    table = Table(title=f"Events a second of {OBJECTS} objects", title_justify="left")
    for column in ("", "median", "least", "most", "x batch 1", "required", ""):
        table.add_column(column, justify="left" if not column else "right")
    missed = False
    for name, (kind, *_) in rows.items():
        required, ratio = REQUIRED.get(name), found[name] / found[f"{kind}, batch 1"]
        is_missed = required is not None and (found[name] < required or ratio < REQUIRED_RATIO)
        missed |= is_missed
        shown = [f"{rate:,.0f}" for rate in (found[name], min(rates[name]), max(rates[name]))]
        asked = "" if required is None else f"{required:,}, x {REQUIRED_RATIO:g}"
        verdict = "" if required is None else "missed" if is_missed else "reached"
        table.add_row(name, *shown, f"{ratio:.1f}", asked, verdict)
    console.print(table)
    if memory:
        few, many = megabytes
        missed |= many - few > REQUIRED_GROWTH
        verdict = "missed" if many - few > REQUIRED_GROWTH else "reached"
        console.print(
            f"memory of a worker: {few:.1f} MB with 10,000 events waiting, {many:.1f} MB with 1,000,000: {verdict}"
        )
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
