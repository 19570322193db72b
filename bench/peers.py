"""Measures three tasks at three peers: `scripts/bench peers`. A broker has the log of the cluster.

One peer reads a queue in memory, one calls a function, one stores rows in memory; each is a process. A segment is one
input: its value passes all three tasks, and it counts once the reader has acknowledged it. CPU is that of all threads
of the three processes.

- *zmq*, *http*: 100 bytes a value, as many as the peers take.
- *latency*: from the call that adds an input to the write of its row, at 1,000 a second, over zmq.
- *peer dies*, *machine dies*: until segments flow again, and from then on until all that was in flight is complete:
  see `bench/peer_deaths.py`.
- *command*, *plan*: the median time that a peer of many takes for a command of the log, and for one that makes a plan;
  *growth* is that of the time over that of the peers: see `bench/peer_commands.py`.

Each row runs once in each round, and the figures are medians. Ends with status 1 if a requirement is missed, which
other load on the machine may cause: `--against DIRECTORY` measures another checkout in the same run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from bench.__main__ import broker
from bench.jobs import LATENCY_INPUTS, RATE, Target, show
from bench.loads import GaveUp
from bench.peer_commands import SIZES
from bench.peer_deaths import measure_death
from bench.processes import ROOT, cpu_seconds, end_all
from kstreams_py.jobs.cluster.heartbeats import INTERVAL, SILENT_AFTER

PEERS: Final = 3
WARM_SHARE: Final = 5
"""One input of this many, the first ones, is not measured."""

START_SECONDS: Final = 120.0
"""The time limit of a run."""

TARGETS: Final = (
    Target("zmq, segments/s", least=120_000),
    Target("zmq, µs of CPU a segment", most=6),
    Target("http, segments/s", least=50_000),
    Target("latency, median ms", most=1),
    Target("latency, p99 ms", most=10),
    Target("peer dies, s to flow", most=1),
    Target("peer dies, s to complete", most=5),
    Target("machine dies, s to flow", most=SILENT_AFTER * INTERVAL + 1),
    Target("machine dies, s to complete", most=5),
    Target(f"plan at {SIZES[-1]} peers, ms"),
    *(Target(f"command at {peers} peers, ms", most=1) for peers in SIZES),
    Target("command, growth", most=1),
)


class Cluster:
    """A cluster of three peers, which ends with the run."""

    def __init__(self, checkout: Path, bootstrap: str, messenger: str, inputs: int, rate: int = 0) -> None:
        """Starts the peers."""
        self._reports = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._reports.bind(("127.0.0.1", 0))
        self._reports.settimeout(START_SECONDS)
        self._environment = {
            **os.environ,
            "KSTREAMS_BOOTSTRAP_SERVERS": bootstrap,
            "BENCH_PORT": str(self._reports.getsockname()[1]),
            "BENCH_INPUTS": str(inputs),
            "BENCH_WARM": str(inputs // WARM_SHARE),
            "BENCH_RATE": str(rate),
            "PYTHONPATH": f"{checkout}:{ROOT}",
        }
        self._name, self._graph = f"bench-{uuid.uuid4().hex[:8]}", str(ROOT / "bench" / "peers_graph.py")
        peer = self._command("peer", "--cluster", self._name, "--allow", self._graph, "--messenger", messenger)
        self._peers = [subprocess.Popen(peer, env=self._environment, stderr=subprocess.DEVNULL) for _ in range(PEERS)]

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "kstreams_py", *words]

    def submit(self) -> None:
        """Submits the job. Raises GaveUp."""
        submit = self._command("job", "submit", self._graph, "--cluster", self._name)
        deadline = time.monotonic() + START_SECONDS
        # the first peer makes the log of the cluster
        while (done := subprocess.run(submit, env=self._environment, capture_output=True, check=False)).returncode:
            if time.monotonic() > deadline:
                raise GaveUp(f"no job can be submitted: {done.stderr.decode()}")
            time.sleep(0.5)

    def hear(self) -> tuple[float, float, list[str]]:
        """Waits for a report. Returns the time, the seconds of CPU of all peers until then, and its words."""
        try:
            words = self._reports.recv(1 << 10).decode().split()
        except TimeoutError:
            raise GaveUp(f"the peers have not reported for {START_SECONDS:.0f} s") from None
        return time.perf_counter(), sum(cpu_seconds(peer.pid) for peer in self._peers), words

    def close(self) -> None:
        """Ends the peers."""
        end_all(self._peers)
        self._reports.close()


@contextmanager
def cluster(checkout: Path, bootstrap: str, messenger: str, inputs: int, rate: int = 0) -> Iterator[Cluster]:
    """Yields a cluster that has the job; see Cluster."""
    found = Cluster(checkout, bootstrap, messenger, inputs, rate)
    try:
        found.submit()
        yield found
    finally:
        found.close()


def measure_throughput(checkout: Path, bootstrap: str, messenger: str, inputs: int) -> dict[str, float]:
    """Measures a job whose inputs are all there."""
    with cluster(checkout, bootstrap, messenger, inputs) as peers:
        (began, worked_before, _), (ended, worked, _) = peers.hear(), peers.hear()
    measured = inputs - inputs // WARM_SHARE
    cpu = (worked - worked_before) / measured * 1e6
    return {f"{messenger}, segments/s": measured / (ended - began), f"{messenger}, µs of CPU a segment": cpu}


def measure_latency(checkout: Path, bootstrap: str) -> dict[str, float]:
    """Measures the time from an input to its row while inputs come one by one."""
    with cluster(checkout, bootstrap, "zmq", LATENCY_INPUTS, RATE) as peers:
        words = list[str]()
        while words[:1] != ["waited"]:
            *_, words = peers.hear()
    return {"latency, median ms": float(words[1]), "latency, p99 ms": float(words[2])}


def measure_commands(checkout: Path) -> dict[str, float]:
    """Measures commands of the log in a process that imports the checkout."""
    program = [sys.executable, "-P", str(ROOT / "bench" / "peer_commands.py")]
    done = subprocess.run(program, env={**os.environ, "PYTHONPATH": str(checkout)}, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    inputs: Annotated[int, typer.Option(min=1_000, help="of a run")] = 500_000,
    against: Annotated[Path | None, typer.Option(help="another checkout, measured in turn with this one")] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="a cluster, instead of a broker for this run")] = None,
) -> None:
    """Measures peers."""
    checkouts = {"": ROOT} if against is None else {"before: ": against.resolve(), "": ROOT}
    found: dict[str, list[float]] = {}
    with broker(bootstrap_servers) as bootstrap:
        for number in range(rounds):
            for prefix, root in [*checkouts.items()][:: -1 if number % 2 else 1]:
                measured = measure_throughput(root, bootstrap, "zmq", inputs)
                measured |= measure_throughput(root, bootstrap, "http", inputs // 2)
                measured |= measure_latency(root, bootstrap) | measure_commands(root)
                measured |= measure_death(root, bootstrap, "peer") | measure_death(root, bootstrap, "machine")
                for figure, value in measured.items():
                    found.setdefault(prefix + figure, []).append(value)
    before: Sequence[Target] = [Target(f"before: {each.figure}") for each in TARGETS] if against else []
    sys.exit(not show(found, [*before, *TARGETS]))


if __name__ == "__main__":
    typer.run(main)
