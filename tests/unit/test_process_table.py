"""embedded/process_table.py: what /proc tells, and what `ps` tells where there is no /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_py.embedded import process_table
from kstreams_py.embedded.broker import EmbeddedKafka
from kstreams_py.embedded.process_table import await_stopped, command_line
from tests.waiting import WAIT, wait_until

PS = """#!{python}
import pathlib, sys
field, pid = sys.argv[-3], sys.argv[-1]
try:
    stat, line = (pathlib.Path("/proc", pid, name).read_text(errors="replace") for name in ("stat", "cmdline"))
except OSError:
    sys.exit(1)
state = stat.rpartition(")")[2].split()[0]
print(state if field == "state=" else "" if state == "Z" else line.replace(chr(0), " "))
"""
"""`ps` for a Linux without it, such as a bare Debian; macOS always has one."""

PROGRAM = "import sys; sys.stdin.read()"


@pytest.fixture(autouse=True)
def ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ps") is None:
        program = tmp_path / "bin" / "ps"
        program.parent.mkdir()
        program.write_text(PS.format(python=sys.executable))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.fixture(params=["as it is", "without /proc"])
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This system, and one as macOS: without /proc, and without waitid, which it had not before Python 3.13."""
    if request.param == "without /proc":
        monkeypatch.setattr(process_table, "PROC", tmp_path / "proc")
        monkeypatch.delattr(os, "waitid", raising=False)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until its input ends."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "broker-0/server é"], stdin=subprocess.PIPE) as process:
        yield process
        process.send_signal(signal.SIGCONT)
        process.kill()


@pytest.mark.usefixtures("system")
def test_command_line_has_the_arguments_of_a_process_while_it_is_there(child: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: PROGRAM in command_line(child.pid), "the process has its command line")
    assert "broker-0/server" in command_line(child.pid)
    child.kill()
    child.wait()
    assert command_line(child.pid) == ""


@pytest.mark.usefixtures("system")
def test_stop_of_a_process_is_awaited(child: subprocess.Popen[bytes]) -> None:
    waiting = threading.Thread(target=await_stopped, args=(child.pid,), daemon=True)
    waiting.start()
    child.send_signal(signal.SIGSTOP)
    waiting.join(WAIT)
    assert not waiting.is_alive()
    state = subprocess.run(["ps", "-o", "state=", "-p", str(child.pid)], capture_output=True, text=True, check=True)
    assert state.stdout[0] == "T"


@pytest.mark.usefixtures("system")
def test_process_that_has_ended_is_not_awaited_and_keeps_its_status(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    await_stopped(child.pid)
    assert child.wait() == -signal.SIGKILL


@pytest.mark.usefixtures("system")
def test_paused_broker_is_stopped_when_the_call_returns(child: subprocess.Popen[bytes]) -> None:
    kafka = EmbeddedKafka([], Path(sys.executable))
    kafka._running[0] = child
    kafka.pause(0)
    state = subprocess.run(["ps", "-o", "state=", "-p", str(child.pid)], capture_output=True, text=True, check=True)
    assert state.stdout[0] == "T"
    kafka.resume(0)
    kafka.release()
    child.returncode = None
