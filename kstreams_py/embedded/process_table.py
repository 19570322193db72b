"""Looks up other processes: in /proc, or with `ps` where that is missing (macOS)."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def command_line(pid: int) -> str:
    """Returns a process's command line, with a space or a NUL between arguments; "" if there is no such process."""

    if not Path(PROC, "self").exists():
        return _ps("command=", pid)
    with suppress(OSError):
        return Path(PROC, str(pid), "cmdline").read_text(errors="replace")
    return ""


def await_stopped(pid: int) -> None:
    """Waits until a child that was sent SIGSTOP has stopped or ended: sending a signal does not wait for that."""
    if Path(PROC, "self").exists():
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return
    while _ps("state=", pid)[:1] not in ("T", "Z", ""):  # macOS has waitid only from Python 3.13 on
        time.sleep(0.01)


def _ps(field: str, pid: int) -> str:
    ps = ["ps", "-ww", "-o", field, "-p", str(pid)]
    return subprocess.run(ps, capture_output=True, text=True, check=False).stdout.strip()
