"""What one contestant process is to do, as it travels in its environment; imports nothing but the standard library."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

VARIABLE: Final = "BENCH_JOB"
COMMIT_MS: Final = 100
FETCH_BYTES: Final = 4 << 20

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
    """One process's work: read `inputs`, apply `workload`, write `output`, commit as `group`, until SIGTERM.

    `workload` is one of pass, step, batch, avro, join, alts. `group` is the consumer group whose committed offsets
    are watched; kstreams_py makes it of the graph's name and the processor's, so that it has a dot. With
    `session_ms` the group forgets a member that is silent so long; without it each keeps its own default, and
    `tuned` says whether fetch sizes are set (they are, but where a default is what is measured).
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

    def in_slot(self, slot: int) -> Job:
        """The same for another worker of the group."""
        return replace(self, slot=slot)

    def environment(self) -> dict[str, str]:
        """The variable that `from_environment` reads."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Job:
        """The job of this process."""
        given = json.loads(os.environ[VARIABLE])
        return cls(**{**given, "inputs": tuple(given["inputs"])})


def priced(order: dict[str, Any]) -> dict[str, Any]:
    """What is done to an order in the workload `avro`."""
    order["quantity"] += 1
    return order
