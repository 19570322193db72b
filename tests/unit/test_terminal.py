"""terminal/progress.py in a terminal that pyte draws: what workers print stands above a table that stays whole."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte
import pytest

SUPERVISOR = """
import logging, sys
from kstreams_py.running.terminal import logs
from kstreams_py.running.terminal.progress import Progress
from kstreams_py.running.supervisor import Supervisor

logs.configure()
supervisor = Supervisor(lambda n: [sys.executable, "-c", sys.argv[1], str(n), sys.argv[2]], [0, 1], drain_seconds=5)
ended = []

def note(status):
    progress.show(status)
    records = [report.counters["records_in"] for slot in status.slots for report in slot.reports]
    if records == [90, 90] and not ended:
        ended.append(logging.warning("printed"))
        supervisor.stop()

with Progress() as progress:
    supervisor.run(lambda _: None, note, progress.write)
"""

DEMO = """
import os, sys, threading, time
from pathlib import Path
from kstreams_py.demo.screen import Screen, log_writer
from kstreams_py.running.terminal.progress import LockedConsole
from kstreams_py.running.supervisor import Supervisor

here = Path(sys.argv[2])
screen = Screen(LockedConsole(stderr=False))
supervisor = Supervisor(lambda n: [sys.executable, "-c", sys.argv[1], str(n), str(here)], [0, 1], drain_seconds=5)
done = [0]

def note(status):
    done[0] = sum(report.counters["records_in"] for slot in status.slots for report in slot.reports)
    if done[0] == 180:
        supervisor.stop()

with screen:
    write = log_writer(here.with_suffix(".log"), screen)
    run = threading.Thread(target=supervisor.run, args=(lambda _: None, note, write))
    run.start()
    while run.is_alive():
        screen.say(f"at {done[0]}")
        screen.counts({"flights": done[0]}, done[0], 180)
        time.sleep(0.01)
    run.join()
    screen.counts({"flights": done[0]}, done[0], 180)
    os._exit(0)  # the drawing is erased otherwise
"""

MOVES = r"\u001b[2J\u001b[10A"

WORKER = """
import json, os, signal, sys, time
from kstreams_py.running.output import keep_output
from kstreams_py.running.pipe import report_drained
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
keep_output()
slot, here = int(sys.argv[1]), sys.argv[2]
open(f"{here}/{slot}", "w").close()
while len(os.listdir(here)) < 2: time.sleep(0.01)
counters = {"records_in": 0, "records_out": 0, "dead_letters": 0, "commits": 0}
for i in range(91):
    if i % 10 == 0:
        counters["records_in"] = i
        report = {"processor": "price", "slot": slot, "counters": counters, "lag": None}
        os.write(int(os.environ["KSTREAMS_REPORT_FD"]), json.dumps(report).encode() + b"\\n")
        time.sleep(0.02)
    if i < 90: print(f"line {i}" if i % 3 else f"\\x1b[31mred {i}\\x1b[0m \\x1b[2J\\x1b[10A", flush=True)
    if i == 40: print("to stderr " + "=" * 150, file=sys.stderr)
    if i == 41: os.write(1, b"\\xff\\xfe bytes\\n")
signal.sigwait({signal.SIGTERM})
report_drained()
"""


def run_in_terminal(here: Path, width: int, height: int = 24, program: str = SUPERVISOR) -> list[str]:
    """All lines that a terminal has shown, those that have scrolled away too, without trailing spaces."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, WORKER, str(here)],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**environment, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    screen = pyte.HistoryScreen(width, height, history=100_000)
    stream = pyte.ByteStream(screen)
    try:
        while data := os.read(ours, 65_536):
            stream.feed(data)
    except OSError:  # Linux raises it when the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    rows = [*screen.history.top, *(screen.buffer[number] for number in range(height))]
    lines = ["".join(row[column].data for column in range(width)).rstrip() for row in rows]
    while lines and not lines[-1]:
        lines.pop()
    return lines


# what a narrow table leaves out is in test_progress.py: what is above it does not depend on its width
@pytest.mark.parametrize("width", [100, pytest.param(40, marks=pytest.mark.long)])
def test_prints_stand_above_a_table_that_stays_whole(tmp_path: Path, width: int) -> None:
    lines = run_in_terminal(tmp_path, width)
    table, above = lines[-5:], lines[:-5]
    columns = ["processor", "state", "partitions", "in", "out", "dead", "letters", "lag", "records/s", "commits/s"]
    narrow = ["processor", "state", "dead", "letters", "lag"]
    assert table[0].split() == (columns if width == 100 else narrow)
    cells = table[1].split()
    assert (cells[:2], "180" in cells, "?" in cells) == (["price", "running"], width == 100, True)
    assert table[2].split() == ["slot", "state", "partitions", "up", "restarts"]
    assert [line.split()[:2] for line in table[3:]] == [["0", "running"], ["1", "running"]]
    for slot in (0, 1):
        printed = [line for line in above if line.startswith((f"[{slot}] line", f"[{slot}] red"))]
        assert printed == [f"[{slot}] line {i}" if i % 3 else f"[{slot}] red {i} {MOVES}" for i in range(90)]
        assert above.count(f"[{slot}] \\xff\\xfe bytes") == 1
    assert "".join(above).count("to stderr " + "=" * 150) == 2, "a long line is wrapped by the terminal, and whole"
    assert sum(line.endswith(" printed") for line in above) == 1, "the supervisor's own log stands above it too"
    of_tables = [line for line in above if line.startswith(("processor", "price", "slot"))]
    assert of_tables == [], "no drawing of the table is left above"


@pytest.mark.long  # in the quick tier, those of a run stand above its table
def test_prints_of_the_demos_workers_stand_above_its_table_and_their_log_in_its_file(tmp_path: Path) -> None:
    here = tmp_path / "workers"
    here.mkdir()
    lines = run_in_terminal(here, 100, program=DEMO)
    table, above = lines[-4:], lines[:-4]
    assert [line.split() for line in table] == [
        ["departures", "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * 40, "180", "of", "180"],
        [],
        ["committed,", "as", "seen", "by", "a", "reader", "records", "records/s"],
        ["flights", "180", table[3].split()[-1]],
    ]
    for slot in (0, 1):
        printed = [line for line in above if line.startswith((f"[{slot}] line", f"[{slot}] red"))]
        assert printed == [f"[{slot}] line {i}" if i % 3 else f"[{slot}] red {i} {MOVES}" for i in range(90)]
    others = [line for line in above if line and not line.startswith(("[0] ", "[1] ", "at "))]
    assert others == [], "no drawing of the table is left above"
    assert sorted((tmp_path / "workers.log").read_text().splitlines()) == [
        f"[{slot}] to stderr {'=' * 150}" for slot in (0, 1)
    ]
