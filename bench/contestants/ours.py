"""kstreams_py: the graph for `kstreams run`, with one processor for the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kstreams_py as ks
from bench.contestants.job import ORDER, Job, priced

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


def declare() -> Any:
    """Declares the processor of the job's workload."""
    match job.workload:
        case "join":
            return graph.join(*inputs, to=output, id=processor)(first)
        case "alts":
            return graph.alts(*inputs, to=output, id=processor)(same)
        case "batch":
            return graph.map(inputs[0], to=output, id=processor, batch=True)(same_batch)
    functions: dict[str, Callable[..., Any]] = {"pass": same, "step": same_with_step, "avro": priced}
    return graph.map(inputs[0], to=output, id=processor)(functions[job.workload])


declare()
