"""The graph of `scripts/bench peers`, which each peer loads. The environment says what is measured.

- `BENCH_PORT`: the port of this machine to which the reader and the sink report.
- `BENCH_INPUTS`, `BENCH_WARM`: how many inputs there are, and the first ones, which are not measured.
- `BENCH_RATE`: inputs a second; 0 for all at once.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Final

import kstreams_py as ks
from bench.jobs import VALUE, Queue, Stored
from kstreams_py.graph.sink import Row
from kstreams_py.graph.source import Claim
from kstreams_py.records import Positions

PORT, INPUTS, WARM, RATE = (int(os.environ.get(f"BENCH_{name}", "0")) for name in ("PORT", "INPUTS", "WARM", "RATE"))

REPORTED_AT: Final = (WARM, INPUTS)


def report(*words: object) -> None:
    """Sends a report to the bench."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
        to.sendto(" ".join(map(str, words)).encode(), ("127.0.0.1", PORT))


class Reported(Queue):
    """A queue that reports when the first inputs are acknowledged, and when all are."""

    acknowledged = 0

    def open(self, _: str) -> Reported:
        if RATE:
            threading.Thread(target=self._add_all, daemon=True).start()
        return self

    def _add_all(self) -> None:
        began = time.perf_counter()
        for number in range(INPUTS):
            while (left := began + number / RATE - time.perf_counter()) > 0:
                time.sleep(left)
            self.add(time.perf_counter_ns())

    def ack(self, claims: Sequence[Claim]) -> None:
        before = self.acknowledged
        self.acknowledged += len(claims)
        super().ack(claims)
        for count in REPORTED_AT:
            if before < count <= self.acknowledged:
                report("acknowledged", count)


class Timed(Stored):
    """A sink that reports how long the inputs took, each of which is the time at which it was added."""

    def __str__(self) -> str:
        return "memory"

    def write(self, rows: Sequence[Row], offsets: Positions, expected: Positions) -> int:
        stored = super().write(rows, offsets, expected)
        if RATE and self.count == INPUTS:
            waits = sorted(at * 1e3 - added / 1e6 for added, at in [*self.written_at.items()][WARM:])
            report("waited", median(waits), quantiles(waits, n=100)[-1])
        return stored


graph = ks.Graph("bench")
rows = graph.source("rows", Reported([] if RATE else [VALUE] * INPUTS, ends=not RATE))
enriched = graph.channel("enriched")
graph.map(rows, to=enriched, id="enrich")(lambda value: value)
graph.sink(enriched, to=Timed(), id="store")(lambda value: (value,))
