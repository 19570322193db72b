"""Measures one contestant at a time: throughput, end-to-end latency, memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

import confluent_kafka as ck

from bench.contestants.job import Job
from bench.loads import PARTITIONS, Cluster, GaveUp, fetches
from bench.processes import Running, start

SAMPLE_SECONDS: Final = 0.01
PATIENCE_SECONDS: Final = 180.0
"""The time limit of a run."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The number of committed records at a time (monotonic seconds), and the worker's resident memory in bytes."""

    at: float
    committed: int
    rss: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table: a contestant with its settings, on one workload."""

    workload: str
    name: str
    program: str
    load: str = "100 B"
    task: str = "pass"
    guarantee: str = "exactly_once"
    header: bool = True
    inputs: int = 1
    concurrency: int = 1
    order: str | None = None
    journal: int = 0

    @property
    def id(self) -> str:
        """The name of the row in targets and results."""
        return f"{self.workload}: {self.name}"


def throughput(cluster: Cluster, entry: Entry, records: int, warm: int) -> float:
    """Measures input records per second, over `records` of them, from the commit that passes `warm` to the last.

    All records are in the topic before the worker starts. Raises GaveUp; also if the output is incomplete.
    """
    samples = _samples(cluster, entry, (records + warm) // entry.inputs)
    first = next(sample for sample in samples if sample.committed >= warm)
    last = samples[-1]
    if last is first:
        raise GaveUp(f"{entry.id}: {records} records are too few: one commit took them all")
    return (last.committed - first.committed) / (last.at - first.at)


def restore(cluster: Cluster, entry: Entry, records: int) -> float:
    """Measures the seconds from the start of a process until it has run a step with the state of `records` records.

    Another worker has processed the records. The state is in memory, so all of it is read from the changelog.
    """
    source = cluster.create(cluster.name("load"))
    cluster.write(source, entry.load, records)
    with working(cluster, entry, (source,)) as (job, worker), cluster.committed(job.group, (source,)) as progress:
        _await(worker, progress, records)
        worker.end()
        cluster.write(source, entry.load, PARTITIONS, records)
        began, other = time.monotonic(), start(entry.program, job)
        try:
            _await(other, progress, records + PARTITIONS)
            taken = time.monotonic() - began
        finally:
            other.end()
    cluster.delete(source)
    return taken


def _await(worker: Running, progress: Callable[[], int], records: int) -> None:
    """Waits until this many records are committed. Raises GaveUp."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (committed := progress()) < records:
        if worker.process.poll() is not None or time.monotonic() > deadline:
            raise GaveUp(f"the worker stopped at {committed} of {records} records:\n{worker.output_tail}")
        time.sleep(SAMPLE_SECONDS)


def memory(cluster: Cluster, entry: Entry, early: int, late: int) -> tuple[float, float]:
    """Measures the worker's resident memory, in MB, after `early` and after `late` records."""
    samples = _samples(cluster, entry, late)
    found = [next(s.rss for s in samples if s.committed >= records) for records in (early, late)]
    return found[0] / 1e6, found[1] / 1e6


def _samples(cluster: Cluster, entry: Entry, each: int) -> list[Sample]:
    """Samples one worker until `each` records of each input are committed, then counts the output. Raises GaveUp."""
    inputs = tuple(cluster.filled(entry.load, each, copy) for copy in range(entry.inputs))
    total, samples = each * entry.inputs, list[Sample]()
    with working(cluster, entry, inputs) as (job, worker), cluster.committed(job.group, inputs) as progress:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not samples or samples[-1].committed < total:
            committed = progress()
            samples.append(Sample(time.monotonic(), committed, worker.rss()))
            if worker.process.poll() is not None or time.monotonic() > deadline:
                raise GaveUp(f"{entry.id} stopped at {committed} of {total} records:\n{worker.output_tail}")
            time.sleep(SAMPLE_SECONDS)
        worker.end()
        wanted = each if entry.task == "join" else total
        found = cluster.count(job.output)
        if found != wanted:
            raise GaveUp(f"{entry.id} wrote {found} records instead of {wanted}")
    return samples


@contextmanager
def working(
    cluster: Cluster, entry: Entry, inputs: tuple[str, ...], *, tuned: bool = True
) -> Iterator[tuple[Job, Running]]:
    """Yields a running worker of the entry, with an output topic of its own, which is deleted afterwards."""
    job = Job(
        bootstrap=cluster.bootstrap,
        workload=entry.task,
        inputs=inputs,
        output=cluster.create(cluster.name("out")),
        group=f"{cluster.name('group')}.p",
        directory=str(cluster.directory),
        guarantee=entry.guarantee,
        header=entry.header,
        tuned=tuned,
        concurrency=entry.concurrency,
        order=entry.order,
        journal=entry.journal,
    )
    worker = start(entry.program, job)
    try:
        yield job, worker
    finally:
        worker.end()
        cluster.delete(job.output)


@dataclass(frozen=True, slots=True)
class Latency:
    """The end-to-end latency: from before a record is sent until a read_committed reader has it, in milliseconds."""

    median: float
    p99: float


def latency(cluster: Cluster, entry: Entry, seconds: float, warm: float, rate: int = 1000) -> Latency:
    """Measures latencies of records, sent one by one at `rate` per second, for `seconds` after `warm` seconds of load.

    The load starts when the worker is ready: when the first record of each partition has arrived.
    """
    source = cluster.create(cluster.name("slow"))
    first, total = PARTITIONS, PARTITIONS + int((seconds + warm) * rate)
    begun, found = 0.0, list[tuple[float, float]]()
    with working(cluster, entry, (source,), tuned=False) as (job, worker):
        reader = cluster.reader(job.output)
        sender = threading.Thread(target=_send, args=(cluster.bootstrap, source, total - first, rate), daemon=True)
        _send(cluster.bootstrap, source, first, rate)
        for records in fetches(reader, seconds + warm + 60):
            now = time.monotonic()
            found += [(sent := float(m.value()[:20]), now - sent) for m in records]
            if not begun and len(found) >= first:
                begun = now + warm
                sender.start()
            if len(found) >= total:
                break
        reader.close()
        if len(found) < total:
            raise GaveUp(f"{entry.id}: {len(found)} of {total} records arrived:\n{worker.output_tail}")
        sender.join()
    cluster.delete(source)
    taken = [1000 * delay for sent, delay in found if sent >= begun]
    return Latency(median(taken), quantiles(taken, n=100)[98])


def _send(bootstrap: str, topic: str, total: int, rate: int) -> None:
    """Sends records at a steady rate; the value of each is the time of sending."""
    # few requests in flight: waiting records form a batch, instead of a queue of single records at the broker
    producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "acks": "all", "max.in.flight": 4})
    started = time.monotonic()
    for number in range(total):
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        stamp = b"%20.6f" % time.monotonic()
        producer.produce(topic, stamp + b"x" * 80, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(10)
