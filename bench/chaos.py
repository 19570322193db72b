"""The chaos run: kills, stops and freezes workers under load, and measures silences and mistakes."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

import confluent_kafka as ck

from bench.contestants.job import Job
from bench.loads import Cluster, GaveUp
from bench.measure import Entry
from bench.processes import Running, start
from kstreams_py.graph.anomalies import Kind
from kstreams_py.testing.verdicts import compare, overtaken

KINDS: Final = ("kill", "stop", "freeze")
SLOTS: Final = 3
PARTITIONS: Final = 6
KEYS: Final = 60
RATE: Final = 3_000
SESSION_MS: Final = 10_000
FROZEN_SECONDS: Final = 14.0
WOKEN_SECONDS: Final = 5.0
"""How long a frozen worker runs beside its replacement after it is continued, before it gets SIGTERM."""
CALM_SECONDS: Final = 3.0
"""Time without faults: before the first one, once every partition has output; and after the last, to see duplicates."""
PATIENCE_SECONDS: Final = 120.0
COMMIT_SECONDS: Final = 0.2
"""The most time from the last output before a fault to the fault, because outputs become visible by commits."""
RESTART_SECONDS: Final = 0.5
"""The least time between two starts in one slot, so that a worker that cannot start does not take the CPU."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the worker in a slot, `at` seconds after the start of the run."""

    at: float
    kind: str
    slot: int


def schedule(seconds: float, seed: int) -> list[Fault]:
    """Draws a fault every 2 to 5 seconds: kill (SIGKILL), stop (SIGTERM) or freeze (SIGSTOP and a replacement at once).

    Every three faults have each kind once, in random order.
    """
    chance, faults, at, kinds = random.Random(seed), list[Fault](), 0.0, list[str]()
    while (at := at + chance.uniform(2, 5)) < seconds:
        kinds = kinds or chance.sample(KINDS, len(KINDS))
        faults.append(Fault(at, kinds.pop(), chance.randrange(SLOTS)))
    return faults


@dataclass(slots=True)
class Arrivals:
    """The records of a read_committed reader: times by partition, and numbers by key, where each key counts from 0."""

    times: dict[int, list[float]] = field(default_factory=lambda: {p: [] for p in range(PARTITIONS)})
    numbers: dict[int, list[int]] = field(default_factory=lambda: {key: [] for key in range(KEYS)})

    def add(self, records: list[Any], now: float) -> None:
        """Takes the records of one fetch."""
        for m in records:
            key, number = map(int, m.value().split()[:2])
            self.numbers[key].append(number)
            self.times[m.partition()].append(now)

    def all_of(self, sent: Mapping[int, int]) -> bool:
        """Returns whether as many records of each key have arrived as were sent."""
        return all(len(self.numbers[key]) >= count for key, count in sent.items())

    def silences(self, since: float, until: float) -> list[tuple[float, float]]:
        """Returns start and length in seconds of each time without output on one partition, within the bounds."""
        found = []
        for times in self.times.values():
            marks = [since, *(at for at in times if since < at < until), until]
            found += [(earlier, later - earlier) for earlier, later in pairwise(marks)]
        return found

    def figures(self, faults: list[Fault], begun: float, last: float) -> dict[str, float]:
        """Returns the longest silence, overall and after each kind of fault until the next fault."""
        silences = self.silences(begun, last)
        found = {"longest silence s": max(length for _, length in silences), "faults": float(len(faults))}
        starts = [begun + fault.at - COMMIT_SECONDS for fault in faults]
        for fault, first, following in zip(faults, starts, [*starts, last][1:], strict=True):
            name = f"after {fault.kind} s"
            those = [length for at, length in silences if first <= at < following]
            found[name] = max([found.get(name, 0.0), *those])
        return found

    def mistakes(self, sent: Mapping[int, int]) -> dict[str, float]:
        """Returns the numbers of lost and duplicated records, and of records out of order, which count once each."""
        due = {(key, number): 1 for key, count in sent.items() for number in range(count)}
        found = Counter((key, number) for key, numbers in self.numbers.items() for number in numbers)
        totals = compare(found, due).totals
        late = overtaken(found, line=itemgetter(0), rank=itemgetter(1))  # each once, by its first arrival
        more = totals[Kind.DUPLICATE] + totals[Kind.FOREIGN]
        return {"lost": totals[Kind.LOST], "duplicated": more, "out of order": sum(1 for _ in late)}


class Load:
    """Writes records at a steady rate until `end`, with the keys in turn; `sent` counts them by key."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent = dict.fromkeys(range(KEYS), 0)
        self._topic = topic
        self._producer = ck.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "max.in.flight": 1,  # with more, librdkafka #4953 doubles records when a leader moves
                "linger.ms": 5,
                "log_level": 0,
                "partitioner": "murmur2_random",  # as the contestants have, so a record keeps its partition number
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        started, done = time.monotonic(), 0
        while not self._ending.wait(0.005):
            due = int((time.monotonic() - started) * RATE)
            for number in range(done, due):
                key = number % KEYS
                value = b"%d %d " % (key, self.sent[key])
                self._producer.produce(self._topic, value.ljust(100, b"x"), b"key-%d" % key)
                self.sent[key] += 1
            done = due
            self._producer.poll(0)

    def end(self) -> None:
        """Stops writing; returns when all records are acknowledged."""
        self._ending.set()
        self._thread.join()
        if self._producer.flush(30):
            raise GaveUp("the load could not be written")


class Fleet:
    """The workers of one contestant, a process for each slot, started again when one ends."""

    def __init__(self, program: str, job: Job, log: Callable[[str], object]) -> None:
        self.deaths = 0
        self._log = log
        self._program = program
        self._job = job
        self._workers: dict[int, Running] = {}
        self._started: dict[int, float] = {}
        self._frozen: list[tuple[float, Running]] = []
        self._woken: list[tuple[float, Running]] = []
        self._asked: set[int] = set()
        self.tend()

    @property
    def output_tails(self) -> str:
        """The end of each worker's output."""
        return "\n".join(worker.output_tail[-1000:] for worker in self._workers.values())

    @property
    def calm(self) -> bool:
        """Whether no worker is frozen, or runs beside its replacement."""
        return not self._frozen and not self._woken

    def strike(self, fault: Fault) -> None:
        """Carries out a fault."""
        worker = self._workers[fault.slot]
        self._asked.add(worker.process.pid)
        if fault.kind == "freeze":
            worker.send(signal.SIGSTOP)
            self._frozen.append((time.monotonic() + FROZEN_SECONDS, worker))
            del self._workers[fault.slot]
        else:
            worker.send(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
        self.tend()

    def tend(self) -> None:
        """Starts missing workers, continues those that were frozen for long enough, ends continued ones when due."""
        now = time.monotonic()
        for slot in range(SLOTS):
            worker = self._workers.get(slot)
            if worker is not None:
                if worker.process.poll() is None:
                    continue
                if worker.process.pid not in self._asked:
                    self._asked.add(worker.process.pid)
                    self.deaths += 1
                    self._log(f"slot {slot} ended by itself ({worker.process.returncode}): {worker.last_line}")
            if worker is None or now - self._started[slot] >= RESTART_SECONDS:
                self._workers[slot] = start(self._program, self._job.in_slot(slot))
                self._started[slot] = now
        for due, worker in [each for each in self._frozen if each[0] <= now]:
            self._frozen.remove((due, worker))
            worker.send(signal.SIGCONT)
            self._woken.append((now + WOKEN_SECONDS, worker))
        for due, worker in [each for each in self._woken if each[0] <= now or each[1].process.poll() is not None]:
            self._woken.remove((due, worker))
            worker.end(1.0)

    def end(self) -> None:
        """Ends every process."""
        everyone = [*self._workers.values(), *(worker for _, worker in (*self._frozen, *self._woken))]
        for worker in everyone:
            worker.send(signal.SIGCONT)
            worker.send(signal.SIGTERM)
        for worker in everyone:
            worker.end(5.0)


def chaos(cluster: Cluster, entry: Entry, seconds: float, seed: int, log: Callable[[str], object]) -> dict[str, float]:
    """Measures one contestant under the faults of `schedule`.

    - `log`: called with a line for each unexpected end.

    Raises GaveUp if there is no output on some partition.
    """
    source, output = (cluster.create(cluster.name(each), PARTITIONS) for each in ("chaos", "out"))
    job = Job(
        bootstrap=cluster.bootstrap,
        workload=entry.task,
        inputs=(source,),
        output=output,
        group=f"{cluster.name('group')}.p",
        directory=str(cluster.directory),
        session_ms=SESSION_MS,
    )
    faults, arrivals = schedule(seconds, seed), Arrivals()
    with (
        under_load(cluster, Fleet(entry.program, job, log), job) as (fleet, load),
        closing(cluster.reader(output, PARTITIONS)) as reader,
    ):

        def watch(until: Callable[[], object], patience: float = PATIENCE_SECONDS) -> float:
            """Reads and tends the fleet until a condition is true, or for `patience` seconds; returns the time."""
            deadline = time.monotonic() + patience
            while True:
                records = reader.consume(1000, 0.02)
                now = time.monotonic()
                arrivals.add([m for m in records if m.error() is None], now)
                fleet.tend()
                if until() or now > deadline:
                    return now

        watch(lambda: all(arrivals.times.values()))
        if not all(arrivals.times.values()):
            raise GaveUp(f"{entry.id}: no output on some partition:\n{fleet.output_tails}")
        begun = watch(never, CALM_SECONDS)
        for fault in faults:
            watch(never, begun + fault.at - time.monotonic())
            fleet.strike(fault)
        watch(never, begun + seconds - time.monotonic())
        load.end()
        last = watch(lambda: arrivals.all_of(load.sent))
        watch(lambda: fleet.calm)
        watch(never, CALM_SECONDS)
    return arrivals.figures(faults, begun, last) | arrivals.mistakes(load.sent) | {"deaths": fleet.deaths}


def never() -> bool:
    """Returns False: with this condition, `watch` waits until its time is over."""
    return False


@contextmanager
def under_load(cluster: Cluster, fleet: Fleet, job: Job) -> Iterator[tuple[Fleet, Load]]:
    """Yields the workers and their load. At the end of the block it ends both, and deletes the topics."""
    load = Load(cluster.bootstrap, job.inputs[0])
    try:
        yield fleet, load
    finally:
        load.end()
        fleet.end()
        for topic in (*job.inputs, job.output):
            cluster.delete(topic)
