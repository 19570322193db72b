"""The contestants as processes: how each is started, and that none outlives the bench."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.contestants import streams
from bench.contestants.job import Job
from kstreams_py.errors import MissingSoftware

ROOT: Final = Path(__file__).parent.parent
QUIX_PYTHON: Final = ROOT / ".venv-quixstreams" / "bin" / "python"
END_SECONDS: Final = 15.0


BEFORE: Final = "before"

_roots: Final = dict[str, Path]()
"""Where a contestant runs that is of another checkout."""


def compare_with(checkout: Path) -> None:
    """Makes the kstreams_py of another checkout the contestant BEFORE."""
    _roots[BEFORE] = checkout.resolve()


def _ours(job: Job) -> list[str]:
    # the package and the graph are those of the working directory
    graph = Path("bench", "contestants", "ours.py")
    return [sys.executable, "-m", "kstreams_py", "run", f"{graph}:graph", "--slot", str(job.slot)]


def _by_hand(_: Job) -> list[str]:
    return [sys.executable, "-m", "bench.contestants.by_hand"]


def _quix(_: Job) -> list[str]:
    if not QUIX_PYTHON.exists():
        raise MissingSoftware(f"{QUIX_PYTHON.parent.parent.name} is not there: scripts/bench makes it")
    return [str(QUIX_PYTHON), "-m", "bench.contestants.quix"]


PROGRAMS: Final[dict[str, Callable[[Job], list[str]]]] = {
    "kstreams_py": _ours,
    BEFORE: _ours,
    "by hand": _by_hand,
    "quixstreams": _quix,
    "Kafka Streams": streams.command,
}
"""Command lines by the contestant's name."""


@dataclass(slots=True)
class Running:
    """One contestant process and the file that it writes what it says to."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    @property
    def last_words(self) -> str:
        """The last line of it."""
        return ([line for line in self.said.splitlines() if line.strip()] or [""])[-1]

    def rss(self) -> int:
        """Resident memory in bytes; 0 once it has ended."""
        try:
            pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        except OSError:
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def send(self, signum: signal.Signals) -> None:
        """A signal, if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signum)

    def end(self, seconds: float = END_SECONDS) -> None:
        """SIGTERM, and SIGKILL to what has not ended in time."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(program: str, job: Job) -> Running:
    """One process of a contestant. Raises MissingSoftware where it cannot be run here."""
    command = PROGRAMS[program](job)
    if tie := shutil.which("setpriv"):  # it dies with the bench, whatever ends that
        command = [tie, "--pdeathsig", "KILL", *command]
    # an installed package has its bytecode: a checkout must be allowed to keep it, or each start compiles everything
    left_out = ("KSTREAMS_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment |= job.environment() | {
        "KSTREAMS_BOOTSTRAP_SERVERS": job.bootstrap,
        "KSTREAMS_SCHEMA_DIRECTORY": str(Path(job.directory, "schemas")),
    }
    if job.session_ms:
        environment |= {
            "KSTREAMS_SESSION_TIMEOUT_MS": str(job.session_ms),
            "KSTREAMS_TRANSACTION_TIMEOUT_MS": str(min(10_000, job.session_ms)),
        }
    log = Path(job.directory, f"{job.group}.{job.slot}.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=_roots.get(program, ROOT),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    return Running(process, log)
