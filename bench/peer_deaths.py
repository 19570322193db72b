"""Measures what the death of peers costs, for `scripts/bench peers`: five peers copy a table while rows are inserted.

The peers are those of three machines: supervisors of two, two and one. The peer that dies is the only one of its task:
the job stops, and starts again with the peers that are left.

- *a peer*: it is killed, and its supervisor says so.
- *a machine*: both peers of a supervisor are killed with it, and the others find them silent.

Segments flow again once the first row is done that was inserted after the death; what was in flight is complete once
all earlier rows are.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from bench.loads import GaveUp
from bench.processes import ROOT, end_all
from kstreams_py import Settings
from kstreams_py.errors import KStreamsError
from kstreams_py.jobs.cluster.commands import JobId
from kstreams_py.jobs.cluster.kafka_log import read_replica
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.kafka.cluster import KafkaCluster

MACHINES: Final = (2, 2, 1)
"""The peers of each, in the order in which they join: the third one is the only peer of the last of three tasks."""

WAIT_SECONDS: Final = 120.0
"""The time limit of each wait."""

BEFORE: Final = 500
"""The rows that are done before the death."""

EVERY: Final = 0.01
"""Seconds between two rows, and between two looks at what is done."""

DONE: Final = "SELECT count(*) FILTER (WHERE key <= ?), count(*) FROM kstreams_claims WHERE state = 2"


class Site:
    """The tables, the machines, and the thread that inserts rows."""

    def __init__(self, checkout: Path, bootstrap: str, directory: Path) -> None:
        """Makes the table."""
        self._kafka = KafkaCluster(Settings(bootstrap_servers=bootstrap))
        self._source = directory / "source.db"
        self._environment = {
            **os.environ,
            "KSTREAMS_BOOTSTRAP_SERVERS": bootstrap,
            "BENCH_DIRECTORY": str(directory),
            "PYTHONPATH": f"{checkout}:{ROOT}",
        }
        self._name, self._graph = f"bench-{uuid.uuid4().hex[:8]}", str(ROOT / "bench" / "peer_deaths_graph.py")
        self._machines = list[subprocess.Popen[bytes]]()
        self._pids = list[int]()
        self.last = 0
        """The id of the newest row."""
        self._ended = threading.Event()
        self._inserts = threading.Thread(target=self._insert, daemon=True)
        with closing(sqlite3.connect(self._source)) as connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")

    def start(self) -> None:
        """Starts the machines one after another, then the job, and waits until it runs. Raises GaveUp."""
        peer = ("peer", "--cluster", self._name, "--allow", self._graph)
        for count in MACHINES:
            known = len(self._pids)
            self._machines.append(self._popen(*peer, "--workers", str(count)))
            self.wait_until(partial(self._has_peers, known + count), "the peers join")
            self._pids = [int(member.host.rpartition(" ")[2]) for member in self._look().peers.values()]
        submit = self._popen("job", "submit", self._graph, "--cluster", self._name, "--name", "bench")
        if submit.wait(WAIT_SECONDS):
            raise GaveUp("no job can be submitted")
        self._inserts.start()
        self.wait_until(lambda: self.count_done(0)[1] >= BEFORE, "the first rows are done")

    def _popen(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "kstreams_py", *words]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _look(self) -> Replica:
        try:
            return read_replica(self._kafka, self._name)
        except KStreamsError:  # the first peer makes the log
            return Replica()

    def _has_peers(self, count: int) -> bool:
        return len(self._look().peers) == count

    def _insert(self) -> None:
        with closing(sqlite3.connect(self._source, timeout=WAIT_SECONDS)) as connection:
            while not self._ended.wait(EVERY):
                with connection:
                    connection.execute("INSERT INTO orders VALUES (?, ?)", (self.last + 1, "x" * 100))
                self.last += 1

    def count_done(self, last: int) -> tuple[int, int]:
        """Returns how many rows are done up to a row, and how many beyond it."""
        with closing(sqlite3.connect(self._source, timeout=WAIT_SECONDS)) as connection:
            try:
                until, count = connection.execute(DONE, (last,)).fetchone()
            except sqlite3.OperationalError:  # the reader makes the table of claims
                return 0, 0
        return until, count - until

    def wait_until(self, is_so: Callable[[], bool], what: str) -> float:
        """Waits; returns the time. Raises GaveUp."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise GaveUp(f"not within {WAIT_SECONDS:.0f} s: {what}")
            time.sleep(EVERY)
        return time.monotonic()

    def find(self, *, is_machine: bool) -> list[int]:
        """Returns the processes to kill: the only peer of a task, or its machine with it.

        Raises GaveUp if that peer is not on the second machine.
        """
        replica, first = self._look(), MACHINES[0]
        (peer,) = replica.peers_of(JobId("bench"), "store")
        if [*replica.peers].index(peer) != first:
            raise GaveUp(f"peer {peer} is the only one of its task, and not the first one of the second machine")
        if not is_machine:
            return [self._pids[first]]
        # its supervisor is the first: it says nothing of its peers
        return [self._machines[1].pid, *self._pids[first : first + MACHINES[1]]]

    def close(self) -> None:
        """Ends everything."""
        self._ended.set()
        if self._inserts.is_alive():
            self._inserts.join()
        end_all(self._machines)
        self._kafka.close()


def measure_death(checkout: Path, bootstrap: str, what: str) -> dict[str, float]:
    """Measures the death of a peer, or of a machine. `what`: which."""
    with tempfile.TemporaryDirectory() as directory:
        site = Site(checkout, bootstrap, Path(directory))
        try:
            site.start()
            killed = site.find(is_machine=what == "machine")
            began = time.monotonic()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            last = site.last
            flows = site.wait_until(lambda: site.count_done(last)[1] > 0, "segments flow again")
            complete = site.wait_until(lambda: site.count_done(last)[0] == last, "what was in flight is complete")
        finally:
            site.close()
    return {
        f"{what} dies, s to flow": flows - began,
        f"{what} dies, s to complete": complete - flows,
    }
