"""`kstreams run`, `topics` and `graph` as processes: slots, signals, restarts, progress, settings, topics, images."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.supervisor import Supervisor
from tests.clusters import open_cluster
from tests.system.command import (
    Finished,
    RunningCommand,
    await_end,
    clean_environment,
    command,
    is_alive,
    kstreams,
    start_time,
)
from tests.system.harness import Cluster, metadata, running, wait_until
from tests.waiting import WAIT

MakeSettings = Callable[..., Settings]

LONG = pytest.mark.long

ONE_WORKER = pytest.param(("--slot", 0), id="one worker")
TWO_WORKERS_LONG = pytest.param(("--workers", 2), id="two workers", marks=LONG)
"""Of what a worker does alike with and without a supervisor: that a supervisor passes signals and options on to its
workers, other tests show."""

GRAPH = """
import os, time
from pathlib import Path
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
place = Path({place!r})
started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
(place / f"pid-{{os.getpid()}}-{{started}}").touch()

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    if value == b"wait":
        (place / "waiting").write_text(str(os.getpid()))
        while not (place / "open").exists():
            time.sleep(0.01)
    if value == b"slow":
        time.sleep(0.002)
    if value == b"bad":
        raise ValueError("no")
    return value
"""


class App:
    """A copying graph file (waits at `wait` until the gate opens, fails at `bad`), its topics and its processes."""

    def __init__(self, directory: Path, name: str, cluster: Cluster, settings: Settings) -> None:
        self.directory, self.name, self.cluster = directory, name, cluster
        self.file = directory / "copying_graph.py"
        self.file.write_text(GRAPH.format(name=name, place=str(directory)))
        self.graph = f"{self.file}:graph"
        self.source, self.target, self.errors = f"{name}.in", f"{name}.out", f"{name}.errors"
        self.group = f"{name}.copy"
        self.environment = settings.as_environment()

    def create(self, partitions: int = 1) -> None:
        self.cluster.create(self.source, self.target, partitions=partitions)
        self.cluster.create(self.errors)

    def run_both_slots(self) -> Any:
        """Runs slots 0 and 1 without a supervisor inside a `with` block."""
        slots = ExitStack()
        for slot in (0, 1):
            slots.enter_context(self.run("--slot", slot))
        return slots

    def feed(self, count: int, partitions: int = 1, first: int = 0) -> list[bytes]:
        """Writes `count` numbered records to each partition; returns their values."""
        values = [[f"{p}-{i}".encode() for i in range(first, first + count)] for p in range(partitions)]
        for partition in range(partitions):
            self.cluster.write(self.source, values[partition], partition=partition)
        return [value for each in values for value in each]

    def run(self, *options: object, **changed: str) -> Any:
        """Runs `kstreams run` inside a `with` block."""
        return command(self.directory, "run", self.graph, *options, environment={**self.environment, **changed})

    @property
    def committed(self) -> dict[int, int]:
        return self.cluster.committed(self.group, self.source)

    @property
    def outputs(self) -> list[bytes | None]:
        return self.cluster.values(self.target)

    def await_outputs(self, count: int, running: RunningCommand | None = None) -> None:
        try:
            wait_until(lambda: len(self.outputs) >= count, f"{count} outputs")
        except AssertionError as error:
            raise AssertionError(running.text if running else "") from error

    def await_waiting(self) -> None:
        waiting = self.directory / "waiting"
        wait_until(lambda: waiting.exists() and waiting.read_text(), "the function waits")

    def await_workers(self, count: int, running: RunningCommand | subprocess.Popen[bytes]) -> set[int]:
        """Waits until a supervisor has `count` live workers, then returns their process ids."""
        process = running.process if isinstance(running, RunningCommand) else running
        wait_until(lambda: len(self.pids(without=process.pid)) == count, f"{count} workers")
        return self.pids(without=process.pid)

    def pids(self, without: int = 0) -> set[int]:
        """Live processes that have imported the graph, except the given one: the supervisor."""
        named = (path.name.split("-") for path in self.directory.glob("pid-*"))
        return {int(pid) for _, pid, started in named if start_time(int(pid)) == started and is_alive(int(pid))} - {
            without
        }


@pytest.fixture
def app(tmp_path: Path, name: str, cluster: Cluster, settings: MakeSettings) -> App:
    return App(
        tmp_path,
        name,
        cluster,
        settings(drain_timeout_ms=5_000, session_timeout_ms=6_000, transaction_timeout_ms=5_000),
    )


# Slots and signals.


def test_run_with_two_workers_shares_partitions_and_sigint_drains(app: App) -> None:
    app.create(partitions=4)
    values = app.feed(50, 4)
    with app.run("--workers", 2) as running:
        app.await_outputs(200, running)
        wait_until(lambda: len(re.findall(r"copy: holds \S+\[", running.text)) >= 2, "both hold partitions")
        values += app.feed(500, 4, first=50)
        app.await_outputs(300, running)
        running.send(signal.SIGINT)
        assert running.wait() == 0, running.text
        assert "SIGTERM: draining" in running.text, "the supervisor sends it to its workers"
    assert not app.pids()
    app.cluster.await_markers(app.target)
    done = app.outputs
    assert sum(app.committed.values()) == len(done), "the committed offsets count the outputs"
    with app.run_both_slots():
        app.await_outputs(2_200)
    assert Counter(app.outputs) == Counter(values)


@pytest.mark.parametrize(
    ("options", "signum"),
    [
        pytest.param(("--slot", 0), signal.SIGTERM, id="one worker, SIGTERM"),
        # a supervisor and a worker have one handler for both signals; the test above has two workers
        pytest.param(("--workers", 2), signal.SIGINT, id="two workers, SIGINT", marks=LONG),
        pytest.param(("--slot", 0), signal.SIGINT, id="one worker, SIGINT", marks=LONG),
        pytest.param(("--workers", 2), signal.SIGTERM, id="two workers, SIGTERM", marks=LONG),
    ],
)
def test_signal_in_mid_batch_commits_what_is_done(
    app: App, options: tuple[object, ...], signum: signal.Signals
) -> None:
    app.create()
    app.cluster.write(app.source, [b"0", b"1", b"wait", b"3", b"4"])
    with app.run(*options) as running:
        app.await_waiting()
        running.send(signum)
        running.await_text("SIG(INT|TERM): draining")
        (app.directory / "open").touch()
        assert running.wait() == 0, running.text
    app.cluster.await_markers(app.target)
    done = app.outputs
    assert b"wait" in done
    assert app.committed == {0: len(done)}
    with app.run_both_slots():
        app.await_outputs(5)
    assert app.outputs == [b"0", b"1", b"wait", b"3", b"4"]


@pytest.mark.parametrize("options", [ONE_WORKER, TWO_WORKERS_LONG])
def test_second_ctrl_c_ends_at_once_and_nothing_is_lost(app: App, options: tuple[object, ...]) -> None:
    app.create()
    app.cluster.write(app.source, [b"0", b"wait", b"2"])
    with app.run(*options, KSTREAMS_DRAIN_TIMEOUT_MS="600000") as running:
        app.await_waiting()
        running.send(signal.SIGINT)
        wait_until(lambda: ": draining" in running.text, "the first SIGINT has arrived")
        assert running.process.poll() is None
        running.send(signal.SIGINT)
        assert running.wait() != 0, "the exit status shows that the work in progress was abandoned"
    assert not app.pids()
    assert (app.outputs, app.committed) == ([], {0: 0})
    (app.directory / "open").touch()
    with app.run_both_slots():
        app.await_outputs(3)
    assert app.outputs == [b"0", b"wait", b"2"]


@pytest.mark.parametrize("options", [ONE_WORKER, TWO_WORKERS_LONG])
def test_function_that_outlasts_the_drain_timeout_is_named_and_exits_with_status_1(
    app: App, options: tuple[object, ...]
) -> None:
    app.create()
    app.cluster.write(app.source, [b"0", b"wait", b"2"])
    with app.run(*options, KSTREAMS_DRAIN_TIMEOUT_MS="2500") as running:
        app.await_waiting()
        running.send(signal.SIGTERM)
        assert running.wait() == 1, running.text
    assert re.search(r"copy \(in \w+ \(.*, line \d+\)\) did not end within drain_timeout_ms", running.text), (
        running.text
    )
    assert not app.pids()
    assert (app.outputs, app.committed) == ([], {0: 0})


@pytest.mark.long
def test_slots_of_two_supervisors_share_the_partitions(app: App) -> None:
    app.create(partitions=3)
    with app.run("--slot", 0) as first, app.run("--slots", "1-2") as second:
        first.await_text("copy: holds")
        second.await_text(r"copy: holds \S+\n(.*\n)*.*copy: holds \S+\n")
        values = app.feed(100, 3)
        app.await_outputs(300)
        assert len(app.pids()) == 4, "one worker, and a supervisor with two"
        for each in (first, second):
            each.send(signal.SIGTERM)
        assert [first.wait(), second.wait()] == [0, 0]
    assert Counter(app.outputs) == Counter(values)


def test_sigterm_before_the_workers_have_started_exits_with_status_0(app: App) -> None:
    """The workers die of the signal, as they have no handler for it yet; they have not begun to process."""
    app.create()
    app.feed(3)
    with app.run("--workers", 2) as running:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        wait_until(lambda: children.read_text().split(), "a worker process")
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    assert not app.pids()
    app.cluster.await_markers(app.target)
    assert sum(app.committed.values()) == len(app.outputs)


@pytest.mark.long  # in the quick tier, tests of the supervisor alone show that a worker which stops stops the others
def test_stop_of_one_worker_drains_the_others_and_exits_with_status_0(app: App) -> None:
    app.file.write_text(app.file.read_text().replace("raise ValueError", "raise ks.Stop"))
    app.create(partitions=2)
    values = app.feed(50, 2)
    with app.run("--workers", 2) as running:
        app.await_outputs(100, running)
        app.await_workers(2, running)
        app.cluster.write(app.source, [b"bad"], partition=1)
        assert running.wait() == 0, running.text
    assert "ended by itself: stopping the others" in running.text
    assert not app.pids()
    assert (Counter(app.outputs), app.committed) == (Counter(values), {0: 50, 1: 50})


@pytest.mark.long
def test_second_supervisor_of_the_same_slots_takes_over_and_the_first_ends(app: App) -> None:
    app.create(partitions=2)
    values = app.feed(100, 2)
    with app.run("--workers", 1) as first:
        app.await_outputs(200, first)
        with app.run("--workers", 1) as second:
            assert first.wait() == 4, first.text
            assert "another worker has taken the slot" in first.text
            values += app.feed(100, 2, first=100)
            app.await_outputs(400, second)
            second.send(signal.SIGTERM)
            assert second.wait() == 0, second.text
    assert Counter(app.outputs) == Counter(values)


@pytest.mark.long  # in the quick tier, test_diagnosis.py has a slot that is taken from a supervisor which goes on
def test_slot_that_another_supervisor_takes_over_ends_and_the_other_slots_continue(app: App) -> None:
    """The first supervisor has slots 0 and 1, the second 1 and 2."""
    app.create(partitions=6)
    values = app.feed(100, 6)
    with app.run("--slots", "0-1") as first:
        app.await_outputs(600, first)
        before = app.await_workers(2, first)
        # a worker that never was a member would join despite another one
        first.await_text(r"\[1\] .* copy: holds \S+\[\d\]")
        with app.run("--slots", "1-2") as second:
            first.await_text(r"slot 1 ended by Replaced: .*: it is not restarted here; slot 0 goes on\n")
            values += app.feed(100, 6, first=100)
            app.await_outputs(1_200, second)
            assert len(before & app.pids()) == 1, "slot 0 is still the same process"
            for each in (first, second):
                each.send(signal.SIGTERM)
            assert [first.wait(), second.wait()] == [0, 0], first.text + second.text
    assert not app.pids()
    assert Counter(app.outputs) == Counter(values)


# Workers that are stuck or frozen.


def fill_reports(pid: int) -> None:
    """Makes the pipe from a worker to its supervisor as small as possible, and fills it."""
    environment = dict(
        each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in each
    )
    pipe = os.open(f"/proc/{pid}/fd/{environment[REPORT_FD]}", os.O_WRONLY | os.O_NONBLOCK)
    counters = dict.fromkeys(("records_in", "records_out", "dead_letters", "commits"), 0)
    line = json.dumps({"processor": "f", "slot": 0, "counters": counters, "lag": 0}).encode() + b"\n"
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4_096)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, line)
    os.close(pipe)


@pytest.mark.long  # in the quick tier, the supervisor is killed
def test_workers_of_a_frozen_supervisor_process_records_and_drain(app: App) -> None:
    app.create(partitions=2)
    values = app.feed(100, 2)
    with app.run("--workers", 2) as running:
        app.await_outputs(200, running)
        workers = app.await_workers(2, running)
        running.send(signal.SIGSTOP)
        for pid in workers:
            fill_reports(pid)
        values += app.feed(100, 2, first=100)
        app.await_outputs(400, running)
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        for pid in workers:
            await_end(pid)
        assert app.committed == {0: 200, 1: 200}
        running.send(signal.SIGCONT)
        assert running.wait() == 0, running.text
    assert "ended by itself: stopping the others" in running.text
    assert Counter(app.outputs) == Counter(values)


def format_stuck_pattern(app: App) -> str:
    """A pattern for the message about the function that waits."""
    numbers = [i for i, text in enumerate(app.file.read_text().splitlines(), 1) if '"open"' in text]
    place = rf"copy \(copying_graph.py, line ({numbers[0]}|{numbers[0] + 1})\)"
    return (
        rf"copy has made no progress for \d+ s: it is in {place}: its function does not return, or .* does not answer"
    )


def test_worker_whose_function_never_returns_is_replaced_after_stuck_timeout(app: App) -> None:
    app.create()
    app.cluster.write(app.source, [b"0", b"wait", b"2"])
    with app.run("--workers", 1, KSTREAMS_STUCK_TIMEOUT_MS="5000") as running:
        app.await_waiting()
        running.await_text(r"slot 0 \(process \d+\) is stuck, for longer than stuck_timeout_ms \(5000\): killing it\n")
        running.await_text(rf"slot 0 ended by SIGKILL \({format_stuck_pattern(app)}\): restarting it \(\d in a row\)\n")
        (app.directory / "open").touch()
        app.await_outputs(3, running)
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    assert not app.pids()
    assert (app.outputs, app.committed) == ([b"0", b"wait", b"2"], {0: 3})


@pytest.mark.long
def test_frozen_worker_process_is_replaced_after_stuck_timeout(app: App) -> None:
    """Its session lasts five minutes: no other member would read its partitions for that time."""
    app.create(partitions=2)
    values = app.feed(100, 2)
    long = {"KSTREAMS_STUCK_TIMEOUT_MS": "3000", "KSTREAMS_SESSION_TIMEOUT_MS": "300000"}
    with app.run("--workers", 1, **long) as running:
        app.await_outputs(200, running)
        # by a descriptor: after the process was collected, its id may be that of a thread of these tests
        stopped = os.pidfd_open(min(app.await_workers(1, running)))
        signal.pidfd_send_signal(stopped, signal.SIGSTOP)
        values += app.feed(100, 2, first=100)
        try:
            app.await_outputs(400, running)
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(stopped, signal.SIGKILL)
            os.close(stopped)
        assert re.search(r"ended by SIGKILL \(its process has not reported for \d+ s: it is stopped, or ", running.text)
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    assert Counter(app.outputs) == Counter(values)


def test_single_slot_whose_function_never_returns_ends_after_stuck_timeout(app: App) -> None:
    app.create()
    app.cluster.write(app.source, [b"0", b"wait", b"2"])
    with app.run("--slot", 0, KSTREAMS_STUCK_TIMEOUT_MS="3000", KSTREAMS_DRAIN_TIMEOUT_MS="500") as running:
        assert running.wait() == 1, running.text
    ends = r"; it ends after stuck_timeout_ms \(3000\): start it again\n"
    assert re.search(
        rf"^error: WorkerStuck: slot 0: {format_stuck_pattern(app)}{ends}", running.text, flags=re.MULTILINE
    ), running.text
    assert (app.outputs, app.committed) == ([], {0: 0})


# Workers that die.


@pytest.mark.long  # in the quick tier, the supervisor kills workers that are stuck and frozen
def test_sigkilled_worker_is_restarted_in_its_slot_and_has_its_partitions_at_once(app: App) -> None:
    """Its session lasts five minutes: only its own membership gets its partitions back before that time."""
    app.create(partitions=4)
    values = app.feed(200, 4)
    with app.run("--workers", 2, KSTREAMS_SESSION_TIMEOUT_MS="300000") as running:
        app.await_outputs(800, running)
        for _ in range(3):
            os.kill(min(app.await_workers(2, running)), signal.SIGKILL)
            values += app.feed(200, 4, first=len(values) // 4)
            app.await_outputs(len(values), running)
        assert len(re.findall("ended by SIGKILL: restarting it", running.text)) == 3
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    assert Counter(app.outputs) == Counter(values)


def test_workers_of_a_sigkilled_supervisor_drain_and_end(app: App) -> None:
    app.create(partitions=2)
    values = app.feed(100, 2)
    with app.run("--workers", 2) as running:
        app.await_outputs(200, running)
        workers = app.await_workers(2, running)
        running.send(signal.SIGKILL)
        running.wait()
        for pid in workers:
            await_end(pid)
    done = app.outputs
    assert Counter(done) == Counter(values)
    assert sum(app.committed.values()) == len(done)
    values += app.feed(50, 2, first=100)
    with app.run_both_slots():
        app.await_outputs(300)
    assert Counter(app.outputs) == Counter(values)


def test_worker_that_reports_more_than_a_pipe_holds_does_not_stall() -> None:
    line = '{"processor": "p", "slot": 0, "counters": {"records_in": %d, "commits": 1}, "lag": null}\\n'
    writes = (
        f"import os; fd = int(os.environ['KSTREAMS_REPORT_FD']); [os.write(fd, b'{line}' % i) for i in range(5000)]; "
        r"""os.write(fd, b'{"drained": true}\n')"""
    )
    shown: list[int] = []
    supervisor = Supervisor(lambda _: [sys.executable, "-S", "-c", writes], [0], drain_seconds=60)
    supervisor.run(lambda reports: shown.extend(r.counters["records_in"] for r in reports))
    assert shown[-1] == 4_999


# Progress.


@pytest.mark.parametrize("options", [ONE_WORKER, TWO_WORKERS_LONG])
def test_progress_is_a_live_table_in_a_terminal(app: App, options: tuple[object, ...]) -> None:
    app.create(partitions=2)
    app.cluster.write(app.source, [b"0", b"bad", b"2"], partition=0)
    app.cluster.write(app.source, [b"0"] * 1_200, partition=1)
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 65_536):
                seen.extend(data)
        except OSError:  # Linux raises it when the other end is closed
            return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    process = subprocess.Popen(
        [sys.executable, "-m", "kstreams_py", "run", app.graph, *map(str, options)],
        env=clean_environment({**app.environment, "TERM": "xterm", "COLUMNS": "120"}),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)

    def text() -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace"))

    try:
        wait_until(lambda: re.search(r"copy\s.*\s1,203\s+1,202\s+1\s+0\s", text()), "the counts of both workers")
        if "--workers" in options:
            os.kill(min(app.await_workers(2, process)), signal.SIGKILL)
            app.cluster.write(app.source, [b"0"] * 100, partition=0)
            wait_until(
                lambda: re.search(r"copy\s.*\s1,303\s+1,302\s+1\s+0\s", text()), "the counts include the killed worker"
            )
        assert re.search(
            r"processor\s+state\s+partitions\s+in\s+out\s+dead letters\s+lag\s+records/s\s+commits/s", text()
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 0, text()
        reader.join(WAIT)
    finally:
        process.kill()
        process.wait(WAIT)
        os.close(ours)
    assert b"\x1b[?25h" in seen[seen.rfind(b"\x1b[?25l") :], "the cursor is shown again"


# Topics, images, settings.


def test_topics_are_created_on_request_and_checked(app: App, cluster: Cluster) -> None:
    def topics(verb: str) -> Any:
        return kstreams("topics", verb, app.graph, environment=app.environment)

    missing = topics("check")
    assert (missing.status, len(missing.error_lines)) == (2, 1)
    assert all(topic in missing.error_lines[0] for topic in (app.source, app.target, app.errors))
    cluster.create(app.source, partitions=3)
    created = topics("create")
    own = [f"__ks.{app.name}.beginnings", f"__ks.{app.name}.replayed"]
    assert (created.status, created.out.splitlines()) == (
        0,
        [f"created {topic}" for topic in (app.target, app.errors, *own)],
    )
    again = topics("create")
    assert (again.status, again.out) == (0, "all topics exist\n")
    checked = topics("check")
    assert (checked.status, sorted(checked.out.splitlines())) == (
        0,
        sorted(f"{topic}: 3 partitions, replication 1" for topic in (app.source, app.target, app.errors)),
    )


COUNTING = """
import kstreams_py as ks

graph = ks.Graph({name!r})
words = graph.topic("{name}.in", key=ks.String(), value=ks.String())
{processor}
"""

COUNT = """
@graph.map(words, to=graph.topic("{name}.out", value=ks.Json()), state=ks.State("counts"))
def count(word, state):
    state.put(word, state.get(word, 0) + 1)
    return state.get(word)
"""

OTHER = 'graph.sink(words, id="other")(print)'


def test_changelog_of_a_removed_processor_is_deleted_once_its_workers_are_stopped(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path
) -> None:
    file, environment = tmp_path / "counting.py", settings().as_environment()
    changelog = f"__ks.{name}.counts.changelog"

    def write(processor: str) -> None:
        file.write_text(COUNTING.format(name=name, processor=processor.format(name=name)), encoding="utf-8")

    def delete(*options: str, typed: str = "") -> Finished:
        return kstreams("topics", "delete", file, *options, environment=environment, typed=typed)

    write(COUNT)
    cluster.create(f"{name}.in")
    with command(tmp_path, "run", file, "--slot", 0, "--create-topics", "--leave", environment=environment) as started:
        cluster.write(f"{name}.in", [b"a", b"a"])
        cluster.await_committed(f"{name}.count", f"{name}.in", {0: 2})
        write(OTHER)
        refused = delete("--yes")
        started.send(signal.SIGTERM)
        assert started.wait() == 0, started.text
    head = f"{changelog}: 1 partitions, at most "
    assert (refused.status, refused.out.startswith(head)) == (2, True), refused
    assert refused.error_lines[0].startswith(f"error: UserMistake: the group has members: {name}.count.0 on ")
    assert changelog in metadata(cluster.admin).topics
    no, yes = delete(typed="n\n"), delete(typed="y\n")
    asked = "delete these topics, with their records? [y/N]: "
    assert (no.status, no.out.splitlines()[-1]) == (1, f"{asked}nothing was changed")
    assert (yes.status, yes.out.splitlines()[-1]) == (0, f"{asked}deleted {changelog}")
    assert delete("--yes").out == "nothing to delete\n"
    assert {changelog, f"{name}.in", f"{name}.out"} & set(metadata(cluster.admin).topics) == {
        f"{name}.in",
        f"{name}.out",
    }


@pytest.mark.long  # a race that 15 rounds make likely
def test_created_topics_are_usable_as_soon_as_create_topics_returns(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    """A broker answers CreateTopics before its metadata has the topic; 15 rounds make an early request likely."""
    around = settings()
    log = open_cluster(around)
    for i in range(15):
        graph = ks.Graph(f"{name}.{i}")
        inputs = [graph.topic(f"{name}.{i}.{end}", partitions=2) for end in "ab"]
        graph.alts(*inputs, to=graph.topic(f"{name}.{i}.out"), id="copy")(lambda value: value)
        create_topics(graph, log)
        assert set(check_topics(graph, log)) == set(graph.topics)
        if i % 7 == 0:
            with running(graph, around):
                cluster.write(f"{name}.{i}.a", [b"0"], partition=1)
                cluster.await_committed(f"{name}.{i}.copy", f"{name}.{i}.a", {0: 0, 1: 1})


@pytest.mark.parametrize("options", [ONE_WORKER, TWO_WORKERS_LONG])
def test_run_creates_topics_on_request_as_declared(app: App, cluster: Cluster, options: tuple[object, ...]) -> None:
    declared = "partitions=3, config={'retention.ms': 86400000}"
    app.file.write_text(app.file.read_text().replace('.in")', f'.in", {declared})'))
    with app.run("--create-topics", *options) as running:
        running.await_text("copy: holds")
        values = app.feed(5, 3)
        app.await_outputs(15, running)
    assert {topic: len(cluster.partitions(topic)) for topic in (app.source, app.target)} == {
        app.source: 3,
        app.target: 3,
    }
    checked = kstreams("topics", "check", app.graph, environment=app.environment)
    assert checked.status == 0, checked.err
    assert Counter(app.outputs) == Counter(values)


def test_topics_have_four_partitions_unless_told_and_more_workers_are_warned_of(app: App, cluster: Cluster) -> None:
    topics = (app.source, app.target, app.errors)
    with app.run("--create-topics", "--slots", "0,1,2,3,4") as running:
        running.await_text(
            f"graph '{app.name}' has 5 slots, but its inputs have 4 partition\\(s\\): .*so 1 of the slots stay idle"
        )
        running.process.terminate()
        assert running.wait() == 0, running.text
    assert {topic: len(cluster.partitions(topic)) for topic in topics} == dict.fromkeys(topics, 4)
    cluster.delete(*topics)
    done = kstreams("topics", "create", app.graph, "--partitions", 7, environment=app.environment)
    assert done.status == 0, done.err
    assert {topic: len(cluster.partitions(topic)) for topic in topics} == dict.fromkeys(topics, 7)


def test_graph_is_described_as_text_mermaid_and_svg(app: App, tmp_path: Path) -> None:
    def render(*options: str) -> str:
        done = kstreams("graph", app.graph, *options, environment={})
        assert (done.status, done.err) == (0, ""), done.err
        return done.out

    names = [app.name, app.source, app.target, app.errors, "copy"]
    text = render()
    assert all(name in text for name in names)
    assert "map, exactly_once" in text
    mermaid = render("--format", "mermaid").splitlines()
    assert mermaid[0] == "flowchart LR"
    assert len([line for line in mermaid if "-->" in line]) == 2
    assert len([line for line in mermaid if "-.->" in line]) == 1
    svg = ElementTree.fromstring(render("-f", "svg"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(svg.itertext())
    assert all(name in words for name in names[1:])
    assert render("-f", "svg", "-o", str(tmp_path / "graph.svg")) == ""
    assert ElementTree.parse(tmp_path / "graph.svg").getroot().tag == svg.tag


def test_settings_of_arguments_win_over_environment_over_file(app: App, tmp_path: Path) -> None:
    app.create()
    app.feed(3)
    file = tmp_path / "settings.toml"
    right, wrong = app.cluster.bootstrap_servers, "127.0.0.1:9"

    def check(of_file: str, of_environment: str | None, *arguments: str, limit: int = 15_000) -> int | str:
        """Exit status of `topics check`, or the address that did not answer."""
        file.write_text(f'bootstrap_servers = "{of_file}"\nrequest_timeout_ms = {limit}\n')
        environment = {} if of_environment is None else {"KSTREAMS_BOOTSTRAP_SERVERS": of_environment}
        done = kstreams("topics", "check", app.graph, "--config", file, *arguments, environment=environment)
        found = re.search(r"no Kafka broker answers at (\S+) ", done.err)
        return found[1] if found else done.status

    assert check(right, None) == 0
    assert check(wrong, right) == 0
    assert check(wrong, wrong, "-b", right) == 0
    assert check(wrong, None, limit=700) == wrong
    assert check(right, "127.0.0.1:7", limit=700) == "127.0.0.1:7"
    assert check(right, right, "-b", "127.0.0.1:8", limit=700) == "127.0.0.1:8"


@pytest.mark.long  # in the quick tier, those of the environment do, and the file is read by a command
def test_settings_of_a_file_reach_the_workers(app: App, tmp_path: Path) -> None:
    """This includes librdkafka's settings: `debug` makes it log them."""
    app.create()
    app.feed(3)
    file = tmp_path / "settings.toml"
    file.write_text(
        f'bootstrap_servers = "{app.cluster.bootstrap_servers}"\nschema_directory = "{tmp_path / "schemas"}"\n'
        'commit_interval_ms = 1234\n[kafka]\ndebug = "conf"\nsocket.timeout.ms = 4321\n'
    )
    printing = "\nprint('interval', ks.Settings.load().commit_interval_ms, flush=True)\n"
    app.file.write_text(app.file.read_text() + printing)
    app.environment = {"KSTREAMS_LOG_LEVEL": "DEBUG"}
    with app.run("--workers", 1, "--config", file, KSTREAMS_KAFKA__SOCKET_TIMEOUT_MS="4322") as running:
        app.await_outputs(3, running)
        assert "interval 1234" in running.text
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    assert re.search(r"socket\.timeout\.ms\D+4322", running.text)
    assert not re.search(r"socket\.timeout\.ms\D+4321", running.text)


def test_graph_file_with_any_name_is_imported(app: App) -> None:
    """The file may have the name of a library, imported or not, or no name that Python can import."""
    place = app.directory / "graphs"
    place.mkdir()
    for file in ("signal.py", "calendar.py", "my.graph.py", "kstreams_py.py", "two words.py"):
        (place / file).write_text(app.file.read_text())
        done = kstreams("graph", f"{place / file}:graph", environment={}, cwd=app.directory)
        assert (done.status, app.source in done.out) == (0, True), (file, done)


@pytest.mark.long  # in the quick tier, test_loading.py has modules, test_progress.py the lines
def test_graph_as_a_module_of_the_directory_runs_and_its_progress_is_plain_lines(app: App) -> None:
    app.create()
    app.cluster.write(app.source, [b"0", b"bad", b"2"])
    log = app.directory / "module.log"
    with run_python(app, log, "-m", "kstreams_py", "run", "copying_graph:graph", "--workers", "1"):
        app.await_outputs(2)
        wait_until(lambda: re.search(r"copy: 3 in, 2 out, 1 dead letter, 0 lag, ", log.read_text()), "a line")
    assert "\x1b" not in log.read_text()


@pytest.mark.long  # in the quick tier, test_start.py has worker processes of a program
def test_script_that_calls_run_with_two_workers_runs(app: App) -> None:
    app.create(partitions=2)
    values = app.feed(50, 2)
    app.file.write_text(app.file.read_text() + "\nif __name__ == '__main__':\n    ks.run(graph, workers=2)\n")
    with run_python(app, app.directory / "script.log", app.file) as process:
        app.await_outputs(100)
        app.await_workers(2, process)
    assert Counter(app.outputs) == Counter(values)


@contextmanager
def run_python(app: App, log: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Runs Python in the app's directory inside the block; SIGTERM ends it with status 0."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=clean_environment(app.environment), cwd=app.directory, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        yield process
        process.terminate()
        assert process.wait(WAIT) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(WAIT)
