"""running/terminal/lines.py and output.py: what workers print reaches the supervisor's output in whole lines."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstreams_py.running.output import STDERR, STDOUT
from kstreams_py.running.terminal.lines import LINE_MAX, LineJoiner, is_json, prefixed
from tests.unit.test_supervisor import Workers
from tests.waiting import wait_until

# Lines.


def test_lines_are_whole_however_their_bytes_arrive() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        data = bytes(chance.choices((*b"abc\n\n\r\0\xff",), k=chance.randrange(60)))
        cuts = chance.choices(range(len(data) + 1), k=chance.randrange(10))
        lines, found, at = LineJoiner(), list[bytes](), 0
        for cut in [*sorted(cuts), len(data)]:
            found += lines.feed(data[at:cut])
            at = cut
        assert b"\n".join([*found, lines.rest()]) == data, seed


def test_line_that_does_not_end_is_passed_on_in_pieces() -> None:
    lines = LineJoiner()
    assert lines.feed(b"x" * LINE_MAX) == []
    assert lines.feed(b"yz") == [b"x" * LINE_MAX + b"yz"]
    assert (lines.feed(b"a\n"), lines.rest()) == ([b"a"], b"")


def test_prefix_leaves_colours_and_escapes_what_is_no_text() -> None:
    assert prefixed("1", b"\xff\x00\t") == b"[1] \\xff\\u0000\t"
    red = b"\x1b[31mred"
    assert prefixed("1", b"a " + red + b"\x1b[0m b") == b"[1] a " + red + b"\x1b[0m b"
    assert prefixed("1", red) == b"[1] " + red + b"\x1b[0m", "it ends with its line"
    assert prefixed("1", b"\x1b[8;31m\x1b[2K\r\n") == b"[1] \x1b[8;31m\\u001b[2K\\r\\n\x1b[0m"


@pytest.mark.parametrize(
    ("line", "found"), [(b'{"a": 1}', True), (b'{"a": 1}\r', True), (b"{cut", False), (b"", False)]
)
def test_json_is_told_by_its_braces(line: bytes, found: bool) -> None:
    assert is_json(line) is found


# Workers under a supervisor.

Written = tuple[int, str, bytes]


class Outputs:
    """What a supervisor's workers have written, in order."""

    def __init__(self) -> None:
        self.lines: list[Written] = []

    def write(self, output: int, slot: str, lines: Sequence[bytes]) -> None:
        self.lines += [(output, slot, line) for line in lines]

    def of(self, output: int, slot: str) -> list[bytes]:
        return [line for where, of, line in self.lines if (where, of) == (output, slot)]


def run(workers: Workers, outputs: Outputs, until: object) -> None:
    def show(_: object) -> None:
        if callable(until) and until():
            workers.supervisor.stop()

    workers.supervisor.run(show, None, outputs.write)


def test_last_lines_of_a_worker_that_dies_are_written_and_both_outputs_stay_apart(tmp_path: Path) -> None:
    script = r"""
if nth == 1:
    report(1, 1)
    for i in range(3000): os.write(1, b"%d %s\n" % (i, b"x" * 50))
    os.write(2, b"Traceback\n\n\xff\xfe no text\n"); os.write(1, b"last, without an end")
    die()
report(1, 1)
while not os.path.exists(here + "/all.read"): time.sleep(0.01)
os.write(1, b"second\n")
while not signal.sigtimedwait({signal.SIGTERM}, 0.01): report(1, 1)
"""
    workers, outputs = Workers(tmp_path, script, [0, 3]), Outputs()

    def until() -> bool:
        if all(len(outputs.of(STDOUT, slot)) == 3_001 for slot in ("0", "3")):
            (tmp_path / "all.read").touch()
        return workers.process_counts == {0: 2, 3: 2} and len(outputs.of(STDOUT, "3")) == 3_002

    run(workers, outputs, until)
    lines = [b"%d %s" % (i, b"x" * 50) for i in range(3_000)]
    for slot in ("0", "3"):
        assert outputs.of(STDOUT, slot)[:3_001] == [*lines, b"last, without an end"]
        assert outputs.of(STDERR, slot) == [b"Traceback", b"", b"\xff\xfe no text"]


def test_process_on_standby_gets_the_slot_as_its_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstreams_py.running.supervisor.STANDBY_DELAY", 0.0)
    script = r"""
report(1, 1)
while not os.path.exists(here + "/standby.1"): time.sleep(0.01)
die()
"""
    workers, outputs = Workers(tmp_path, script, [5], standby=True), Outputs()
    workers.supervisor._standby = [*(workers.supervisor._standby or ())]
    workers.supervisor._standby[4] = workers.supervisor._standby[4] + "; os.write(1, b'taken over\\n')"
    run(workers, outputs, (tmp_path / "5.2").exists)
    assert {(output, slot, line) for output, slot, line in outputs.lines} == {(STDOUT, "5", b"taken over")}


# A supervisor that is stopped, or has ended.

SUPERVISOR = """
import sys
from kstreams_py.running.output import write_lines
from kstreams_py.running.terminal.lines import prefixed
from kstreams_py.running.supervisor import Supervisor

def write(output, slot, lines):
    write_lines(output, [prefixed(slot, line) for line in lines])

supervisor = Supervisor(lambda slot: [sys.executable, sys.argv[1], sys.argv[2]], [0], drain_seconds=1)
supervisor.run(lambda _: None, None, write)
"""

WORKER = """
import os, sys, time
from kstreams_py.running import output, pipe
output.STOPPED_SECONDS = output.LOOK_SECONDS = 0.1
output.keep_output()
here = sys.argv[1]
open(here + "/pid", "w").write(str(os.getpid()))
for go, done in (("/go", "/done"), ("/go on", "/done again")):
    while not os.path.exists(here + go): time.sleep(0.01)
    for i in range(20_000): print(i, "x" * 20)
    print("to stderr", file=sys.stderr)
    open(here + "/new", "w").write("")
    os.rename(here + "/new", here + done)
while not os.path.exists(here + "/end"): time.sleep(0.01)
print("the end")
if os.path.exists(here + "/die"): os.kill(os.getpid(), 9)
pipe.report_drained()
os._exit(0)
"""

LINES = [b"%d %s" % (i, b"x" * 20) for i in range(20_000)]


class Site:
    """A supervisor and its worker in processes of their own, and what reaches the supervisor's outputs."""

    def __init__(self, here: Path) -> None:
        self.here = here
        (here / "worker.py").write_text(WORKER)
        with (here / "out").open("wb") as out, (here / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(SUPERVISOR), str(here / "worker.py"), str(here)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        wait_until(lambda: (here / "pid").exists() and (here / "pid").read_text(), "the worker")
        self.worker = int((here / "pid").read_text())

    def touch(self, name: str) -> None:
        (self.here / name).touch()

    def read(self, name: str) -> list[bytes]:
        """The lines of an output, without their slot."""
        return [line.removeprefix(b"[0] ") for line in (self.here / name).read_bytes().split(b"\n")]

    def await_done(self, name: str) -> None:
        wait_until((self.here / name).exists, "the worker has printed all")


@contextmanager
def site(here: Path) -> Iterator[Site]:
    found = Site(here)
    try:
        yield found
    finally:
        found.touch("go")
        found.touch("go on")
        found.touch("end")
        found.process.send_signal(signal.SIGCONT)
        found.process.kill()
        found.process.wait()


def test_worker_of_a_supervisor_that_is_stopped_then_killed_prints_on(tmp_path: Path) -> None:
    """No line is lost; after the supervisor's end it prints as if it had none."""
    with site(tmp_path) as found:
        found.process.send_signal(signal.SIGSTOP)
        found.touch("go")
        found.await_done("done")  # 560 kB, of which a pipe holds 64
        found.process.send_signal(signal.SIGCONT)
        wait_until(lambda: sorted(found.read("out")) == sorted([*LINES, b""]), "all lines")
        wait_until(lambda: found.read("err") == [b"to stderr", b""], "the line of the other stream")
        found.process.kill()
        found.process.wait()
        found.touch("go on")
        found.await_done("done again")
        found.touch("end")
        wait_until(lambda: b"the end" in found.read("out"), "its last line")
        assert sorted(found.read("out")) == sorted([*LINES, *LINES, b"the end", b""])
        assert found.read("err") == [b"to stderr", b"to stderr", b""]


def test_reader_that_ends_does_not_stop_a_worker(tmp_path: Path) -> None:
    """Standard output of the supervisor is a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    (tmp_path / "worker.py").write_text(WORKER)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SUPERVISOR), str(tmp_path / "worker.py"), str(tmp_path)],
        stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(writing)
    os.close(reading)
    for name in ("go", "go on", "end"):
        (tmp_path / name).touch()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, b"[0] to stderr\n" in err, (tmp_path / "done").exists()) == (0, True, True)
