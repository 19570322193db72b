"""The job of a contestant process, which it reads from its environment; imports only the standard library."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, fields, replace
from typing import Any, Final

VARIABLE: Final = "BENCH_JOB"
COMMIT_MS: Final = 100
WAIT_SECONDS: Final = 0.01
"""What a call of the workloads that wait takes."""

FETCH_BYTES: Final = 4 << 20

COUNT: Final = struct.Struct(">Q")
"""What the workloads that count write at the start of a value: the number of records of its key so far."""

ORDER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": "double"},
        {"name": "note", "type": "string"},
    ],
}
"""The Avro schema of the workload `avro`."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job of one process: read `inputs`, apply `workload`, write `output`, commit as `group`, until SIGTERM.

    - `workload`: pass, step, batch, avro, join, alts, wait (an async function), wait in threads (a plain one),
      count (in memory), count on disk (in RocksDB), or ordered (events of objects).
    - `group`: the consumer group whose committed offsets are measured, `graph.processor` as kstreams_py names it.
    - `directory`: for state, schemas and logs.
    - `header`: send the delivery hash.
    - `slot`: the number of this worker in the group.
    - `session_ms`: the session time-out; None for each contestant's default.
    - `tuned`: set fetch sizes; False where the defaults are measured.
    - `concurrency`, `order`: of the calls that wait.
    - `journal`: input sets of a partition that are delivered together, with a journal; 0 for none.
    """

    bootstrap: str
    workload: str
    inputs: tuple[str, ...]
    output: str
    group: str
    directory: str
    guarantee: str = "exactly_once"
    header: bool = True
    slot: int = 0
    session_ms: int | None = None
    tuned: bool = True
    concurrency: int = 1
    order: str | None = None
    journal: int = 0

    def in_slot(self, slot: int) -> Job:
        """Returns this job for another worker of the group."""
        return replace(self, slot=slot)

    def environment(self) -> dict[str, str]:
        """Returns the variable that `from_environment` reads, without defaults, which another checkout may not know."""
        given = {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }
        return {VARIABLE: json.dumps(given)}

    @classmethod
    def from_environment(cls) -> Job:
        """Returns the job of this process."""
        given = json.loads(os.environ[VARIABLE])
        return cls(**{**given, "inputs": tuple(given["inputs"])})


def priced(order: dict[str, Any]) -> dict[str, Any]:
    """The function of the workload `avro`."""
    order["quantity"] += 1
    return order


def counted(value: bytes, before: bytes | None) -> bytes:
    """The function of the workloads that count: `before` is the newest value of the same key."""
    count = COUNT.unpack_from(before)[0] + 1 if before else 1
    return COUNT.pack(count) + value[COUNT.size :]
