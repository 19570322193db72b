"""kstreams_py: the graph for `kstreams run`, with one processor for the job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import kstreams_py as ks
from bench.contestants.job import ORDER, WAIT_SECONDS, Job, counted, priced

job = Job.from_environment()
name, _, processor = job.group.rpartition(".")
serde = ks.Avro(ORDER) if job.workload == "avro" else ks.Bytes()

graph = ks.Graph(name, guarantee=job.guarantee, hash_header=job.header)
inputs = [graph.topic(topic, value=serde) for topic in job.inputs]
output = graph.topic(job.output, value=serde)


def same(value: bytes) -> bytes:
    """Pass-through."""
    return value


def same_with_step(value: bytes, step: ks.Step) -> bytes:  # noqa: ARG001, the cost of making a step is measured
    """Pass-through with a parameter for the step."""
    return value


def same_batch(values: list[bytes]) -> list[bytes]:
    """Pass-through of whole lists."""
    return values


def first(value: bytes, _: bytes) -> bytes:
    """The first of the two values of a join."""
    return value


async def wait(value: bytes) -> bytes:
    """Waits as for an answer of a service, on the event loop."""
    await asyncio.sleep(WAIT_SECONDS)
    return value


def wait_in_thread(value: bytes) -> bytes:
    """Waits as for an answer of a service, in a thread where calls overlap."""
    time.sleep(WAIT_SECONDS)
    return value


def count(value: bytes, step: ks.Step, state: ks.KeyedStore[bytes, bytes]) -> bytes:
    """Counts the records of each key."""
    key = step.key
    new = counted(value, state.get(key))
    state.put(key, new)
    return new


def declare() -> Any:
    """Declares the processor of the job's workload."""
    match job.workload:
        case "join":
            return graph.join(*inputs, by="order", to=output, id=processor)(first)
        case "alts":
            return graph.alts(*inputs, to=output, id=processor)(same)
        case "batch":
            return graph.map(inputs[0], to=output, id=processor, batch=True)(same_batch)
        case "count" | "count on disk":
            counts = ks.State("counts", key=ks.Bytes(), value=ks.Bytes(), on_disk=job.workload == "count on disk")
            return graph.map(inputs[0], to=output, id=processor, state=counts)(count)
        case "ordered":
            return graph.ordered(inputs[0], to=output, id=processor)(same)
        case "wait" | "wait in threads":
            waiting = wait if job.workload == "wait" else wait_in_thread
            at_once: dict[str, Any] = {"concurrency": job.concurrency, "order": job.order} if job.order else {}
            return graph.map(inputs[0], to=output, id=processor, **at_once)(waiting)
    functions: dict[str, Callable[..., Any]] = {"pass": same, "step": same_with_step, "avro": priced}
    options: dict[str, Any] = {"persistence": ks.Journal(batch=job.journal)} if job.journal else {}
    return graph.map(inputs[0], to=output, id=processor, **options)(functions[job.workload])


declare()
