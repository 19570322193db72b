"""The contestants as processes: starts them, and ends all of them with the bench."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
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
"""The working directories of contestants from another checkout."""


def compare_with(checkout: Path) -> None:
    """Makes the kstreams_py of another checkout the contestant BEFORE."""
    _roots[BEFORE] = checkout.resolve()


def _ours(job: Job) -> list[str]:
    # Python imports the package and the graph from the working directory
    graph = Path("bench", "contestants", "ours.py")
    return [sys.executable, "-m", "kstreams_py", "run", f"{graph}:graph", "--slot", str(job.slot)]


def _by_hand(_: Job) -> list[str]:
    return [sys.executable, "-m", "bench.contestants.by_hand"]


def _quix(_: Job) -> list[str]:
    if not QUIX_PYTHON.exists():
        raise MissingSoftware(f"{QUIX_PYTHON.parent.parent.name} does not exist: run scripts/bench, which creates it")
    return [str(QUIX_PYTHON), "-m", "bench.contestants.quix"]


PROGRAMS: Final[dict[str, Callable[[Job], list[str]]]] = {
    "kstreams_py": _ours,
    BEFORE: _ours,
    "by hand": _by_hand,
    "quixstreams": _quix,
    "Kafka Streams": streams.command,
}
"""The command line of each contestant."""


def resident(pid: int) -> int:
    """Returns the resident memory of a process in bytes; 0 if it has ended."""
    if not Path("/proc/self").exists():  # macOS
        ps = ["ps", "-o", "rss=", "-p", str(pid)]
        return 1024 * int(subprocess.run(ps, capture_output=True, text=True, check=False).stdout.strip() or 0)
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Returns the processor time of a process so far."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        fields = stat.read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    shown = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    return sum(float(part) * 60.0**power for power, part in enumerate(reversed(shown.strip().split(":"))))


def end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends processes by SIGTERM, all at once, and kills those that have not ended after 20 s."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@dataclass(slots=True)
class Running:
    """A contestant process, and the file of its output."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output_tail(self) -> str:
        """The end of its output."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        return ([line for line in self.output_tail.splitlines() if line.strip()] or [""])[-1]

    def rss(self) -> int:
        """Returns the resident memory in bytes; 0 if the process has ended."""
        return resident(self.process.pid)

    def send(self, signum: signal.Signals) -> None:
        """Sends a signal if the process still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signum)

    def end(self, seconds: float = END_SECONDS) -> None:
        """Sends SIGTERM, and SIGKILL if the process does not end within `seconds`."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(program: str, job: Job) -> Running:
    """Starts a process of a contestant. Raises MissingSoftware if this machine cannot run it."""
    command = PROGRAMS[program](job)
    if setpriv := shutil.which("setpriv"):  # the process is killed when the bench ends in any way
        command = [setpriv, "--pdeathsig", "KILL", *command]
    # bytecode is written, as for an installed package: otherwise each start compiles the checkout
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
