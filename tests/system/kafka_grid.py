"""The grid of crash points on a real broker: lanes of cells, each cell some processes of which one really dies.

A lane is one case with topics of its own. Its cells follow one another: what a cell has delivered is the delivery
before the next one. At the end of a lane all its topics are compared.
"""

from __future__ import annotations

import heapq
import itertools
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.cli.options import open_environment
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.operations.recover.status import FIRST, read_status
from kstreams_py.operations.recover.task_status import TaskStatus
from kstreams_py.processing.journal.records import type_of
from kstreams_py.records import HASH_HEADER
from kstreams_py.steps.environment import Environment
from tests.crash_grid import UNDECIDED, Case, branch_after, cases, declare, exists, hides, is_possible
from tests.crash_grid import cells as points_of
from tests.system.grid_process import Run, Strike
from tests.system.harness import Cluster, wait_until
from tests.waiting import WAIT

AT_ONCE: Final = 6
"""Lanes that are run at once."""

SESSION_MS: Final = 30_000

SHORT_SESSION_MS: Final = 3_000
"""The session of a member that is frozen until another slot has its task."""

IN_FUNCTION: Final = Strike(True, "function", 1, "before")

STARTS: Final = {
    "fenced": Strike(False, "init_transactions", 1, "after"),
    "journal fenced": Strike(False, "journal init_transactions", 1, "after"),
    "offsets read": Strike(False, "committed", 1, "after"),
    "ends read": Strike(False, "ends", 1, "after"),
    "journal read": Strike(False, "read", 1, "after"),
    "outputs read back": Strike(False, "read", 2, "after"),
    "assigned": Strike(False, "assign", 1, "after"),
}
"""The points of a recovery, in order."""

READ_BACK: Final = ("CP15", "CP16b", "CP17")
"""Points after which the recovery certainly looks for the outputs of an attempt."""


EARLIER: Final = ((), ("CP09",), ("CP09", "CP09"), ("CP15",), ("CP06", "CP09"))
"""The points at which the attempts before died; the last two with a journal only."""


@dataclass(frozen=True)
class Cell:
    """A case whose process dies at a point; with `start`, the next start dies as well, at this point of it.

    - `earlier`: the points at which the attempts before it died.
    """

    case: Case
    point: str
    earlier: tuple[str, ...] = ()
    start: str = ""


def starts(case: Case, point: str) -> list[str]:
    """The points of a recovery at which the start after a crash can die."""
    if case.journal is None:
        return ["fenced", "offsets read", "assigned"]
    looks = point in READ_BACK and case.written and not case.cluster
    return [start for start in STARTS if start != "outputs read back" or looks]


def grid(journal: ks.Journal | None, cluster: str = "") -> list[Cell]:
    """All cells, each also with a start that dies at each point of the recovery."""
    return [
        Cell(case, point, earlier, start)
        for case in cases(journal, cluster)
        for earlier in (EARLIER if journal else EARLIER[:3])
        if is_possible(case, earlier)
        for point in points_of(case)
        if exists(point, case, earlier)
        for start in ("", *starts(case, point))
    ]


def cover_pairs(cells: Sequence[Cell]) -> list[Cell]:
    """Chooses cells of one kind: any two of what it does, its errors, the point and the attempts before meet in one.

    Each start that dies meets the attempts before: those tell the recovery what to do.
    """

    def pairs(cell: Cell) -> set[Any]:
        factors = (cell.case.does, cell.case.errors, cell.point, cell.earlier)
        return {*itertools.combinations(enumerate(factors), 2), (cell.start, cell.earlier)}

    return _cover(cells, pairs)


def cover_branches(cells: Sequence[Cell]) -> list[Cell]:
    """Chooses cells that have each kind, each branch of a recovery, each start and each persistence."""

    def factors(cell: Cell) -> set[Any]:
        case = cell.case
        found = [case.kind, cell.start, case.journal is None, cell.point in ("CP29", "CP30") and cell.point]
        found += [branch_after(cell.point, case, cell.earlier)] if case.journal else []
        return set(enumerate(found))

    return _cover(cells, factors)


def _cover(cells: Sequence[Cell], pairs: Callable[[Cell], set[Any]]) -> list[Cell]:
    """Chooses the cell that adds the most, of several the first, until nothing is left: the same in every run."""
    of_cells = [pairs(cell) for cell in cells]
    left = set().union(*of_cells)
    waiting = [(-len(each), number) for number, each in enumerate(of_cells)]
    heapq.heapify(waiting)
    chosen: list[int] = []
    while left:
        _, number = heapq.heappop(waiting)
        gained = len(left & of_cells[number])
        if waiting and (-gained, number) > waiting[0]:  # others may add more: their gains only shrink, too
            heapq.heappush(waiting, (-gained, number))
            continue
        chosen.append(number)
        left -= of_cells[number]
    return [cells[number] for number in sorted(chosen)]


def strike_at(point: str, case: Case) -> Strike:
    """Where and how a process dies at a point. Without a journal, the commit of the outputs stands for the attempt."""
    begin, commit = "journal begin_transaction", "journal commit_transaction"
    committed = Strike(True, "commit_transaction", 1, "before")
    begun = Strike(True, begin, 1, "before") if case.journal else committed
    attempt = Strike(True, commit, 1, "before") if case.journal else committed
    return {
        "CP00": Strike(False, "consume", 1, "after"),
        "CP01": Strike(False, begin, 1, "before"),
        "CP02": Strike(False, commit, 1, "in flight"),
        "CP03": Strike(False, commit, 1, "after"),
        "CP04": Strike(False, "decode", 1, "before"),
        "CP05": Strike(False, "decode", 2, "before"),
        "CP06": Strike(False, begin, 2, "before"),
        "CP07": Strike(False, commit, 2, "in flight"),
        "CP08": Strike(False, commit, 2, "after"),
        "CP09": IN_FUNCTION,
        "CP10": Strike(True, "returned", 1, "before"),
        "CP11": Strike(True, "begin_transaction", 1, "after"),
        "CP12": Strike(True, "write", 1, "flushed"),
        "CP12b": Strike(True, "write", 1, "half"),
        "CP13": begun,
        "CP14": replace(attempt, fault="in flight"),
        "CP15": replace(attempt, fault="after" if case.journal else "before"),
        "CP16": replace(committed, fault="in flight"),
        "CP16b": replace(committed, fault="unanswered"),
        "CP17": replace(committed, fault="after"),
        "CP18": begun,
        "CP19": replace(attempt, fault="in flight"),
        "CP20": replace(attempt, fault="after"),
        "CP29": replace(committed if case.written else attempt, fault="stops"),
        "CP30": replace(committed, fault="stops"),
    }[point]


class Processes:
    """The parent of the processes, and what became of each."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.system.grid_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._numbers = itertools.count()
        self._events: dict[int, queue.Queue[tuple[str, int]]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            number, event, status = json.loads(line)
            self._events[number].put((event, status))

    def start(self, run: Run) -> int:
        """Starts a process; returns its number."""
        number = next(self._numbers)
        self._events[number] = queue.Queue()
        self._order([number, run.to_json()])
        return number

    def resume(self, number: int) -> None:
        """Lets a process go on that has stopped itself."""
        self._order([number, None])

    def _order(self, order: list[Any]) -> None:
        assert self._parent.stdin is not None
        with self._lock:
            self._parent.stdin.write(json.dumps(order).encode() + b"\n")
            self._parent.stdin.flush()

    def wait(self, number: int) -> tuple[str, int]:
        """What became of a process: "stopped", or "ended" with its exit status."""
        return self._events[number].get(timeout=WAIT)

    def close(self) -> None:
        assert self._parent.stdin is not None
        with self._parent:  # closes its pipes and waits for it
            self._parent.stdin.close()
            self._reader.join()


@contextmanager
def processes() -> Iterator[Processes]:
    opened = Processes()
    try:
        yield opened
    finally:
        opened.close()


@dataclass
class Report:
    """What a process noted."""

    calls: list[tuple[str, str]]
    branches: list[str]
    error: str | None
    struck: bool


class Lane:
    """The topics of one case, and what they must have."""

    def __init__(
        self,
        case: Case,
        name: str,
        clusters: Mapping[str, Cluster],
        processes: Processes,
        settings: dict[str, Any],
        directory: Path,
        environment: Environment,
    ) -> None:
        self.case, self.name, self._environment = case, name, environment
        self._processes, self._settings, self._directory = processes, settings, directory
        self._cluster, self._outputs = clusters[""], clusters[case.cluster]
        servers = self._cluster.bootstrap_servers
        self._producer = ck.Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
        self._ends = dict.fromkeys(case.inputs, 0)
        self._sets: list[str] = []
        """The values of each set of inputs, in the order in which they were written."""
        self._hashes: dict[str, set[str]] = {}
        """The delivery hashes of each set."""
        self._numbers = itertools.count()

    def topics(self, cluster: str) -> list[str]:
        """The topics of a cluster that exist before the first process."""
        written = [*self.case.outputs, *(["dead"] if self.case.errors else [])]
        found = [*(self.case.inputs if not cluster else ()), *(written if cluster == self.case.cluster else ())]
        return [f"{self.name}.{topic}" for topic in found]

    def feed(self, value: str, topics: tuple[str, ...] = ()) -> None:
        """Writes one set of inputs; of an alts a record of the last one, by default."""
        topics = topics or (self.case.inputs[-1:] if self.case.is_alts else self.case.inputs)
        for topic in topics:
            self._producer.produce(f"{self.name}.{topic}", f"{value} {topic}", b"key")
            self._ends[topic] += 1
        assert self._producer.flush(WAIT) == 0
        self._sets.append("+".join(f"{value} {topic}" for topic in topics))

    def start(
        self, strike: Strike | None = None, slot: int = 0, *, create: bool = False, session_timeout_ms: int = SESSION_MS
    ) -> tuple[int, Path]:
        report = self._directory / f"{self.name}-{next(self._numbers)}.json"
        settings = self._settings | {
            "session_timeout_ms": session_timeout_ms,
            "transaction_timeout_ms": session_timeout_ms,
        }
        run = Run(self.case, self.name, slot, settings, self._ends, strike, report, create)
        return self._processes.start(run), report

    def read(self, report: Path) -> Report:
        notes = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        calls = [(note[1], note[2]) for note in notes if note[0] == "call"]
        for value, digest in calls:
            self._hashes.setdefault(value, set()).add(digest)
        branches = [note[1] for note in notes if note[0] == "branch"]
        error = next((note[1] for note in notes if note[0] == "ended"), None)
        return Report(calls, branches, error, any(note[0] == "struck" for note in notes))

    def deliver(self, slot: int = 0, *, create: bool = False, session_timeout_ms: int = SESSION_MS) -> Report:
        """Runs a process until it has delivered all."""
        number, path = self.start(None, slot, create=create, session_timeout_ms=session_timeout_ms)
        ended, report = self._processes.wait(number), self.read(path)
        assert (ended, report.error) == (("ended", 0), ""), path
        return report

    def kill(self, strike: Strike) -> Report:
        """Runs a process that dies where it is struck."""
        number, path = self.start(strike)
        ended, report = self._processes.wait(number), self.read(path)
        assert (ended, report.struck) == (("ended", -signal.SIGKILL), True), path
        return report

    def strike(self, point: str) -> tuple[Report, Report | None]:
        """Lets a process die at a point, or be frozen there and wake up.

        Returns what it noted, and what took its place while it was frozen.
        """
        strike, replacement = strike_at(point, self.case), None
        if strike.fault not in ("stops", "unanswered"):
            return self.kill(strike), None
        session = SHORT_SESSION_MS if point == "CP30" else SESSION_MS
        number, path = self.start(strike, session_timeout_ms=session)
        if strike.fault == "stops":
            assert self._processes.wait(number) == ("stopped", 0), path
            status = self._read_status(is_open=True)
            replacement = self.deliver(1 if point == "CP30" else 0, session_timeout_ms=session)
            self._compare(status, replacement, is_open=True)
            self._processes.resume(number)
        ended, report = self._processes.wait(number), self.read(path)
        assert (ended, report.struck) == (("ended", 0), True), path
        assert report.error == ("Replaced" if point == "CP29" else ""), path
        return report, replacement

    def die_and_recover(self, cell: Cell) -> None:
        """Lets attempts die at their points; then delivers, by the branch named.

        The status between a death and the next start is compared with what that does.
        """
        self.feed(f"{cell.point} {len(self._sets)}")
        calls, replacement, is_open = list[tuple[str, str]](), None, False
        status: TaskStatus | None = None
        for number, point in enumerate((*cell.earlier, cell.point)):
            report, replacement = self.strike(point)
            if status is not None:
                self._compare(status, report, is_open=is_open)
            calls += report.calls
            is_open = point in UNDECIDED or hides(point, self.case, cell.earlier[:number])
            status = self._read_status(is_open=is_open)
        assert status is not None
        if self.case.is_alts:  # an input that is fetched first is ready now: what was chosen is read all the same
            self.feed(f"{cell.point} {len(self._sets)}", ("a",))
        if cell.start:
            self._compare(status, self.kill(STARTS[cell.start]), is_open=is_open)
            is_open = True
            status = self._read_status(is_open=is_open)
        last = self.deliver()
        self._compare(status, last, is_open=is_open)
        if self.case.journal is None:
            return
        branch = last.branches[-1] if replacement is None else replacement.branches[0]
        points = (cell.point, UNDECIDED.get(cell.point, cell.point))
        assert branch in {branch_after(point, self.case, cell.earlier) for point in points}, branch
        if self.case.is_alts and calls and replacement is None and branch.endswith(("1c", "3b")):
            assert last.calls[0] == calls[0], "an alts makes its choice again"

    def _compare(self, status: TaskStatus, report: Report, *, is_open: bool) -> None:
        """Compares a status with the first recovery after it; `is_open`: a transaction may hide what decides."""
        assert not status.is_refused, status
        if report.branches:
            waits = is_open and status.next.startswith(FIRST)
            assert status.branch == ("" if waits else report.branches[0]), (status, report.branches)

    def _read_status(self, *, is_open: bool) -> TaskStatus:
        """What `kstreams recover status` says of the task.

        Awaits the end of transactions that are being committed, unless one may be open for long (`is_open`).
        """
        graph = declare(self.case, self.name, lambda *_: None, ks.Bytes(), f"{self.name}.")
        found: list[TaskStatus] = []

        def read() -> bool:
            found[:] = read_status(graph, self._environment, GroupAdmin(self._environment.settings))
            return is_open or not found[0].next.startswith(FIRST)

        wait_until(read, f"the status of {self.name} is decided")
        return found[0]

    def verify(self) -> None:
        """Compares all topics of the lane, and the committed offsets."""
        assert {value: len(digests) for value, digests in self._hashes.items()} == dict.fromkeys(self._sets, 1)
        expected = [(value, *self._hashes[value]) for value in self._sets]
        assert len({digest for _, digest in expected}) == len(expected)
        self._outputs.await_markers(*self.topics(self.case.cluster))
        arrange: Callable[[Any], list[Any]] = sorted if self.case.is_alts else list
        for topic in (*self.case.outputs, *(["dead"] if self.case.errors else [])):
            found = [
                (m.value(), dict(m.headers())[HASH_HEADER].hex()) for m in self._outputs.read(f"{self.name}.{topic}")
            ]
            if topic == "dead":  # its value has the time
                written = [digest for _, digest in expected] if topic in self.case.written else []
                assert arrange([digest for _, digest in found]) == arrange(written), topic
            else:
                outputs = [(value.encode(), digest) for value, digest in expected]
                assert arrange(found) == (arrange(outputs) if topic in self.case.written else []), (topic, found)
        for topic, end in self._ends.items():
            self._cluster.await_committed(f"{self.name}.p", f"{self.name}.{topic}", {0: end})
        if self.case.journal is not None:
            journal = f"__ks.{self.name}.p.journal"
            self._cluster.await_markers(journal)
            types = [type_of(m) for m in self._cluster.read(journal)]
            assert types.count("snapshot") == len(self._sets), "a retry takes no snapshot"


def run_cells(
    cells: list[Cell],
    name: str,
    clusters: Mapping[str, Cluster],
    settings: dict[str, Any],
    directory: Path,
    at_once: int = AT_ONCE,
) -> int:
    """Runs all cells, those of a case one after the other; returns how many there were.

    `clusters` are that of the inputs (""), and others by their names.
    """
    by_case: dict[Case, list[Cell]] = {}
    for cell in cells:
        by_case.setdefault(cell.case, []).append(cell)

    with (
        processes() as parent,
        ThreadPoolExecutor(at_once) as pool,
        # the statuses of all lanes are read in this process: on a busy machine some take long
        open_environment(Settings.load(**settings, request_timeout_ms=90_000)) as environment,
    ):
        lanes = {
            Lane(case, f"{name}-{number}", clusters, parent, settings, directory, environment): of_case
            for number, (case, of_case) in enumerate(by_case.items())
        }
        for place, cluster in clusters.items():
            if created := [topic for lane in lanes for topic in lane.topics(place)]:
                cluster.create(*created)

        def run(lane: Lane, of_case: list[Cell]) -> int:
            lane.feed("first")
            lane.deliver(create=True)
            for cell in of_case:
                try:
                    lane.die_and_recover(cell)
                except (AssertionError, queue.Empty) as error:
                    raise AssertionError(f"{cell}: {error!r}") from error
            try:
                lane.verify()
            except AssertionError as error:
                raise AssertionError(f"{lane.case}, {[(c.point, c.earlier, c.start) for c in of_case]}") from error
            return len(of_case)

        return sum(pool.map(run, lanes, lanes.values()))
