"""The processes of the grid on a real broker: a parent that has no client, and forks a child for each run.

So a run costs no start of Python: the parent has imported all that the child needs. A child runs a worker until the
inputs are delivered, or until it kills itself at the point that it was told. The parent reads its orders from stdin,
a line of JSON each, and writes what became of each run: `[number, event, status]`.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.errors import KStreamsError, OutcomeUnknown
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.processing.topics import create_own_topics, find_topics
from kstreams_py.processing.worker import open_worker
from kstreams_py.records import Step, TopicPartition
from kstreams_py.steps.environment import Environment
from tests.crash_grid import Case, declare, give, recover_twice


@dataclass(frozen=True)
class Strike:
    """Where a process is struck: at the nth passing of a point, before its function is called or after that.

    `fault` is "before" or "after" the request; "in flight": while it is sent; "flushed" and "half": after all outputs,
    or the first, have arrived; "unanswered": it is carried out and its caller is told that nobody knows; "stops": the
    process is frozen before it. All but the last two kill.
    """

    called: bool
    point: str
    nth: int
    fault: str


@dataclass(frozen=True)
class Run:
    """One run of a process: `ends` are the end offsets of the inputs, by the name of the case."""

    case: Case
    name: str
    slot: int
    settings: dict[str, Any]
    ends: dict[str, int]
    strike: Strike | None
    report: Path
    create: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"journal": self.case.journal is not None}, default=str)

    @classmethod
    def from_json(cls, text: str) -> Run:
        found = json.loads(text)
        case = found.pop("case") | {"journal": ks.Journal(1) if found.pop("journal") else None}
        strike, report = found.pop("strike"), Path(found.pop("report"))
        return cls(case=Case(**case), strike=strike and Strike(**strike), report=report, **found)


class Process:
    """A child: it counts the points that it passes, and strikes at one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._called = False
        self._is_unseen = False
        self._passed: Counter[str] = Counter()
        self._report = os.open(run.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *what: str) -> None:
        """Adds a line to the report, which outlives the process."""
        os.write(self._report, json.dumps(what).encode() + b"\n")

    def pass_point(self, name: str) -> str:
        """Counts a point; returns the fault that happens there, or ""."""
        if self._is_unseen:
            return ""
        if name == "function":
            self._called = True
            self._passed.clear()
        self._passed[name] += 1
        strike = self._run.strike
        if strike is None or (strike.called, strike.point, strike.nth) != (self._called, name, self._passed[name]):
            return ""
        self.note("struck", name)
        return strike.fault

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Requests within it are not points."""
        self._is_unseen = True
        try:
            yield
        finally:
            self._is_unseen = False

    def point(self, name: str) -> None:
        """A point at which no request is made."""
        if self.pass_point(name):
            die()

    def watch(self, owner: Any, method: str) -> None:
        """Makes each call of a method a point, named after it; of the journal's producer with "journal " before."""
        original = getattr(owner, method)

        def watched(this: Any, *args: Any, **options: Any) -> Any:
            of_journal = isinstance(this, KafkaProducer) and this._id.endswith(".journal")
            point = f"journal {method}" if of_journal else method

            def call() -> Any:
                return original(this, *args, **options)

            if method == "consume":  # only one that returns records is a point
                if found := call():
                    self.point(point)
                return found
            fault = self.pass_point(point)
            if fault in ("flushed", "half"):
                original(this, args[0] if fault == "flushed" else args[0][:1])
                this.flush()
                die()
            return self._make(call, fault)

        setattr(owner, method, watched)

    def _make(self, call: Callable[[], Any], fault: str) -> Any:
        """Makes a request, with its fault if it has one."""
        match fault:
            case "before":
                die()
            case "after":
                call()
                die()
            case "in flight":
                threading.Thread(target=call, daemon=True).start()
                time.sleep(int.from_bytes(self._run.name.encode()) % 4 / 1000)
                die()
            case "unanswered":
                call()
                raise OutcomeUnknown("on purpose")
            case "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
        return call()

    def run(self) -> None:
        """Runs a worker until it has delivered all inputs, or ends by an error, which is noted."""
        run = self._run
        settings = Settings.load(**run.settings)
        for method in ("init_transactions", "begin_transaction", "write", "commit_transaction"):
            self.watch(KafkaProducer, method)
        for method in ("consume", "committed", "assign"):
            self.watch(KafkaConsumer, method)
        for method in ("ends", "read"):
            self.watch(KafkaCluster, method)
        logger = logging.getLogger("kstreams_py.processing.journal.deliveries")
        logger.addFilter(self._note_branch)
        graph, cluster = declare(run.case, run.name, self._work, self, f"{run.name}."), KafkaCluster(settings)
        if run.create:
            create_own_topics(graph, cluster, find_topics(graph, cluster))
        environment = Environment(cluster, FileRegistry(settings.schema_directory), settings)
        ends = {TopicPartition(f"{run.name}.{topic}", 0): end for topic, end in run.ends.items()}
        worker = open_worker(graph, graph.processors[0], run.slot, environment, Event())
        recover_twice(worker, self._unseen)
        error = ""
        try:
            worker.start()
            while worker.committer.busy or not ends.items() <= worker.ledger.positions.items():
                worker.run_turn()
            worker.finish()
        except KStreamsError as ended:
            traceback.print_exc()
            error = type(ended).__name__
        worker.close()
        self.note("ended", error)

    def _note_branch(self, record: logging.LogRecord) -> bool:
        if "recovery" in record.msg and not self._is_unseen:
            self.note("branch", record.getMessage().partition("recovery ")[2])
        return True

    def _work(self, values: tuple[bytes, ...], step: Step) -> bytes | None:
        value = b"+".join(values)
        self.note("call", value.decode(), step.delivery_hash.hex())
        self.point("function")
        returns = give(self._run.case)
        self.point("returned")
        return value if returns else None

    # The serde of the inputs, whose decoding is a point.

    def serialize(self, value: bytes) -> bytes:
        return value

    def deserialize(self, data: bytes) -> bytes:
        self.point("decode")
        return data


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def fork(text: str) -> int:
    """Forks the child of a run; returns its process id."""
    run = Run.from_json(text)
    if pid := os.fork():
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(run.report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for fd in (0, 1, 2):
            os.dup2(log, fd)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
        Process(run).run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Carries out orders until stdin ends, then kills the children that are left."""
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    children: dict[int, int] = {}
    orders = b""
    while True:
        ready, _, _ = select.select([0, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 1_000)
        if 0 in ready:
            if not (some := os.read(0, 1 << 16)):
                break
            *whole, orders = (orders + some).split(b"\n")
            for line in whole:
                number, run = json.loads(line)
                if run is None:
                    os.kill(next(pid for pid, of in children.items() if of == number), signal.SIGCONT)
                else:
                    children[fork(run)] = number
        while children and (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            pid, status = found
            stopped = os.WIFSTOPPED(status)
            event = "stopped" if stopped else "ended"
            answer = [children[pid], event, 0 if stopped else os.waitstatus_to_exitcode(status)]
            os.write(1, json.dumps(answer).encode() + b"\n")
            if not stopped:
                del children[pid]
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
