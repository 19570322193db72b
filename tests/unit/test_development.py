"""development/: which changes are found, what follows each event of a session, and which records are shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import ANY

import pytest
from typer.testing import CliRunner

import kstreams_py as ks
from kstreams_py.cli.main import app
from kstreams_py.development import changes as changes_module
from kstreams_py.development import version as version_module
from kstreams_py.development import versions as versions_module
from kstreams_py.development.changes import Changes
from kstreams_py.development.session import Asked, Changed, DevSession
from kstreams_py.development.version import Following, list_of, positions_of, showing, written_topics
from kstreams_py.development.versions import (
    OutputsShown,
    Position,
    Version,
    VersionEnded,
    VersionReady,
    version_command,
)
from kstreams_py.embedded import nodes as nodes_module
from kstreams_py.embedded.nodes import free_ports, open_data_dir, write_settings
from kstreams_py.errors import BrokerUnavailable, GraphError, MissingSoftware, SchemaError, TopicError
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.dead_letters.text import Describer
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry, TestDriver
from tests.waiting import wait_until

# Changes.


class Watched:
    """A directory whose changes are noted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.noted: list[list[str]] = []
        self.changes = Changes(directory, directory / "schemas")

    def save(self, name: str, text: str = "x = 1\n") -> None:
        """Writes a file as editors do: whole."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}~")
        new.write_text(text)
        new.replace(path)

    def await_noted(self, *names: str, nth: int = 1) -> None:
        wait_until(lambda: len(self.noted) >= nth, f"change {nth} after {self.noted}")
        assert self.noted[nth - 1 :] == [[*names]]

    @contextmanager
    def watching(self) -> Iterator[None]:
        stopped = threading.Event()
        thread = threading.Thread(target=self.changes.watch, args=(self.noted.append, stopped))
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    (tmp_path / "shop.py").write_text("x = 0\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "prices.py").write_text("x = 0\n")
    return Watched(tmp_path)


def test_saved_made_and_removed_files_beside_the_graph_and_below_are_changes(watched: Watched) -> None:
    watched.save("shop.py")  # before the watch begins
    with watched.watching():
        watched.await_noted("shop.py")
        for nth, name in enumerate(("parts/prices.py", "later/made.py", "later/made.py", "order.avsc"), 2):
            watched.save(name, "x" * nth)
            watched.await_noted(name, nth=nth)
        (watched.directory / "parts" / "prices.py").unlink()
        watched.await_noted("parts/prices.py", nth=6)


def test_files_that_no_graph_is_made_of_are_no_changes(watched: Watched) -> None:
    others = (".hidden/a.py", "__pycache__/a.py", "schemas/1.avsc", "venv/a.py")
    (watched.directory / "venv").mkdir()
    (watched.directory / "venv" / "pyvenv.cfg").touch()
    with watched.watching():
        for name in ("run.log", "test_shop.py", "conftest.py", *others):
            watched.save(name)
        watched.save("shop.py")
        watched.await_noted("shop.py")
    assert watched.noted == [["shop.py"]]


def test_links_to_a_directory_that_is_watched_lead_nowhere(watched: Watched) -> None:
    for name in ("one", "two", "parts/up"):
        (watched.directory / name).symlink_to(watched.directory)
    with watched.watching():
        for nth, name in enumerate(("shop.py", "parts/prices.py"), 1):
            watched.save(name)
            watched.await_noted(name, nth=nth)
    files = [watched.directory / name for name in ("parts/prices.py", "shop.py")]
    assert sorted(Changes(watched.directory, watched.directory / "schemas")._read_stamps()) == files


def test_files_are_compared_where_the_system_has_no_more_watches(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> Iterator[set[Any]]:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr(changes_module, "LOOK_MS", 10)
    monkeypatch.setattr(watched.changes, "_watch", refuse)
    with watched.watching():
        for text in ("x = 1\n", "x = 22\n"):
            watched.save("shop.py", text)
            watched.await_noted("shop.py")
            watched.noted.clear()
    (warning,) = caplog.messages
    assert warning == f"the files of {watched.directory} are looked at every second: OS file watch limit reached"


def test_without_watchfiles_the_command_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    (tmp_path / "shop.py").touch()
    error = CliRunner().invoke(app, ["dev", str(tmp_path / "shop.py")]).exception
    assert isinstance(error, MissingSoftware)
    assert str(error) == "`kstreams dev` needs watchfiles: pip install 'kstreams_py[reload]'"
    assert [path.name for path in tmp_path.iterdir()] == ["shop.py"]


def test_file_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    error = CliRunner().invoke(app, ["dev", str(tmp_path / "shop.py")]).exception
    assert isinstance(error, GraphError)
    assert str(error) == (f"{tmp_path}/shop.py does not exist: correct the path, or write a graph with `kstreams new`")
    assert list(tmp_path.iterdir()) == []


# The broker.


def test_port_that_was_given_is_given_to_no_other_process() -> None:
    (mine,) = free_ports([None])
    # nothing listens there, so that it looks free
    program = f"from kstreams_py.embedded import nodes; nodes._PORTS = [{mine}]; print(nodes.free_ports([None]))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (other.returncode, other.stdout, "StopIteration" in other.stderr) == (1, "", True), other


def test_port_is_given_where_no_file_for_locks_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"kstreams-ports-{os.getuid()}").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        nodes_module, "_claims", nodes_module._claims.__wrapped__
    )  # as in a process that has no such file yet
    assert len(free_ports([None])) == 1


def link(victim: Path, path: Path) -> None:
    path.symlink_to(victim)


def hard_link(victim: Path, path: Path) -> None:
    victim.touch()
    path.hardlink_to(victim)


@pytest.mark.parametrize("plant", [link, hard_link, lambda _, path: os.mkfifo(path)], ids=["link", "hard link", "pipe"])
def test_port_is_given_and_no_planted_file_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None]
) -> None:
    """All users of a machine may write to its directory of temporary files."""
    plant(tmp_path / "victim", tmp_path / f"kstreams-ports-{os.getuid()}")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    claims = nodes_module._claims.__wrapped__
    assert claims() is None
    monkeypatch.setattr(nodes_module, "_claims", claims)
    assert len(free_ports([None])) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_broker_keeps_the_offsets_of_a_graph_that_nobody_runs_for_a_year(tmp_path: Path) -> None:
    """By Kafka's default, the graph would end with InputLost after a holiday of a week."""
    _, nodes = open_data_dir(tmp_path, 1, None)
    write_settings(nodes[0], nodes, {})
    lines = (tmp_path / "broker-0" / "server.properties").read_text().splitlines()
    assert [line for line in lines if line.startswith("offsets.retention")] == ["offsets.retention.minutes=525600"]


# A session.


class FakeVersion:
    """A version that notes what it is asked to do."""

    def __init__(self, number: int, notes: list[str]) -> None:
        self._number, self._notes = number, notes
        self.shown: list[Position] = []

    def go(self, positions: Iterable[Position]) -> None:
        self.shown = sorted(positions)
        self._notes.append(f"{self._number} goes")

    def stop(self) -> None:
        self._notes.append(f"{self._number} stops")

    def kill(self) -> None:
        self._notes.append(f"{self._number} is killed")


class Played:
    """A session whose events are given one by one."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.versions: list[FakeVersion] = []
        self.clock = ManualClock()
        self.session = DevSession(self._start, cast("Changes", None), "shop.py, 1 worker,", self.clock)
        self.session._load()

    def _start(self, _: Callable[[VersionReady | OutputsShown | VersionEnded], None]) -> Version:
        self.versions.append(FakeVersion(len(self.versions) + 1, self.notes))
        self.notes.append(f"{len(self.versions)} starts")
        return cast("Version", self.versions[-1])

    def version(self, number: int) -> Version:
        return cast("Version", self.versions[number - 1])

    def ready(self, number: int, *created: str, warning: str = "") -> None:
        self.session._take(VersionReady(self.version(number), created, warning))

    def ended(self, number: int, status: int = 0, error: str = "") -> None:
        self.session._take(VersionEnded(self.version(number), status, error))

    def shown(self, number: int, *positions: Position) -> None:
        self.session._take(OutputsShown(self.version(number), positions))

    def changed(self, *names: str) -> None:
        self.session._take(Changed(names or ("shop.py",)))

    def interrupted(self) -> None:
        self.session._take(Asked())


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level("INFO")
    return lambda: caplog.messages


def test_new_version_runs_after_the_drain_of_the_one_before_and_shows_the_rest(
    played: Played, log: Callable[[], list[str]]
) -> None:
    played.ready(1, "orders", "priced", warning="2 slots, and one partition")
    played.shown(1, ("priced", 0, 4), ("priced", 1, 2))
    played.changed("a.py", "b.py", "c.py", "d.py")
    played.ready(2)
    played.shown(1, ("priced", 0, 7))
    assert played.notes == ["1 starts", "1 goes", "2 starts", "1 stops"]
    played.ended(1)
    assert played.notes[4:] == ["2 goes"]
    assert played.versions[1].shown == [("priced", 0, 7), ("priced", 1, 2)]
    runs = "shop.py, 1 worker, runs"
    assert log() == [
        "created orders, priced", "2 slots, and one partition", runs, "changed: a.py, b.py, c.py and 1 more", runs
    ]  # fmt: skip


def test_code_that_is_wrong_leaves_the_workers_and_the_next_save_tries_again(
    played: Played, log: Callable[[], list[str]]
) -> None:
    played.ready(1)
    played.changed()
    played.ended(2, 2, "GraphError: 'shop.py' does not import")
    played.changed()
    played.ready(3)
    played.ended(1)
    assert played.notes == ["1 starts", "1 goes", "2 starts", "3 starts", "1 stops", "3 goes"]
    assert "GraphError: 'shop.py' does not import; the workers before it go on, and the next save tries again" in log()


def test_line_of_a_syntax_error_follows_the_message(played: Played, log: Callable[[], list[str]]) -> None:
    played.ready(1)
    played.changed()
    played.ended(2, 2, "GraphError: 'shop.py' does not import: correct it\n    retrun 1\n           ^")
    assert log()[-1].split("\n") == [
        "GraphError: 'shop.py' does not import: correct it; the workers before it go on, and the next save tries again",
        "    retrun 1",
        "           ^",
    ]


def test_first_code_that_is_wrong_runs_nothing_until_the_next_save(
    played: Played, log: Callable[[], list[str]]
) -> None:
    played.ended(1, 2, "GraphError: 'shop.py' does not import")
    played.changed()
    played.ready(2)
    assert played.notes == ["1 starts", "2 starts", "2 goes"]
    assert log()[0] == "GraphError: 'shop.py' does not import; nothing runs, and the next save tries again"


def test_save_while_the_workers_drain_replaces_the_version_that_waits_for_them(played: Played) -> None:
    played.ready(1)
    played.changed()
    played.ready(2)
    played.changed()
    played.ended(2, -9)
    played.ended(1)
    played.ready(3)
    assert played.notes == ["1 starts", "1 goes", "2 starts", "1 stops", "2 is killed", "3 starts", "3 goes"]


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (1, "WorkersFailed: slot 0 ended by status 1",
         "WorkersFailed: slot 0 ended by status 1, see its lines above: nothing runs, the next save starts it again"),
        (-9, "", "its process ended with status -9: nothing runs, the next save starts it again"),
        (0, "", "the graph has stopped by itself: the next save starts it again"),
    ],
)  # fmt: skip
def test_end_of_the_workers_is_named_and_the_next_save_starts_them_again(
    status: int, error: str, message: str, played: Played, log: Callable[[], list[str]]
) -> None:
    played.ready(1)
    played.ended(1, status, error)
    assert log()[-1] == message
    played.changed()
    played.ready(2)
    assert played.notes == ["1 starts", "1 goes", "2 starts", "2 goes"]


def test_drain_that_was_cut_off_is_named_and_the_new_code_runs(played: Played, log: Callable[[], list[str]]) -> None:
    played.ready(1)
    played.changed()
    played.ready(2)
    played.ended(1, 1, "WorkersFailed: slot 0 did not drain")
    assert (played.notes[-1], log()[-2]) == ("2 goes", "WorkersFailed: slot 0 did not drain")


def test_code_that_takes_long_to_load_is_named_once(played: Played, log: Callable[[], list[str]]) -> None:
    for _ in range(30):
        played.clock.advance(1.0)
        played.session._look()
    assert log() == ["the code is still being loaded, after 10 s: the next save begins again"]
    played.ready(1)
    played.clock.advance(60.0)
    played.session._look()
    assert len(log()) == 2


def test_ctrl_c_drains_and_a_second_one_is_passed_on(played: Played) -> None:
    played.ready(1)
    played.changed()
    played.interrupted()
    played.changed()
    played.interrupted()
    played.ended(1, 130, "WorkersFailed: slot 0 was ended at once")
    assert played.notes == ["1 starts", "1 goes", "2 starts", "2 is killed", "1 stops", "1 stops"]


def test_ctrl_c_while_a_reload_drains_lets_it_drain_and_a_second_is_passed_on(played: Played) -> None:
    played.ready(1)
    played.changed()
    played.ready(2)
    assert played.notes == ["1 starts", "1 goes", "2 starts", "1 stops"]
    played.interrupted()
    assert played.notes[4:] == ["2 is killed"]
    played.interrupted()
    assert played.notes[4:] == ["2 is killed", "1 stops"]


def test_terminal_that_is_closed_drains_and_closed_again_ends_nothing_at_once(played: Played) -> None:
    played.ready(1)
    for _ in range(2):  # the kernel sends SIGHUP, and the shell again
        played.session._take(Asked(insists=False))
    assert played.notes == ["1 starts", "1 goes", "1 stops"]
    played.interrupted()
    assert played.notes[3:] == ["1 stops"]


@pytest.mark.parametrize("is_ignored", [False, True])
def test_session_ends_when_its_terminal_is_closed_unless_nohup_has_started_it(is_ignored: bool) -> None:
    notes: list[str] = []
    before = signal.SIG_IGN if is_ignored else lambda *_: notes.append("not handled")
    noted: list[object] = []

    class Closing:
        def watch(self, _: object, stopped: threading.Event) -> None:
            noted.append(signal.getsignal(signal.SIGHUP))
            os.kill(os.getpid(), signal.SIGINT if is_ignored else signal.SIGHUP)
            stopped.wait()

    version = cast("Version", FakeVersion(1, notes))
    session = DevSession(lambda _: version, cast("Changes", Closing()), "shop.py, 1 worker,")
    kept = signal.signal(signal.SIGHUP, before)
    try:
        session.run()
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, kept)
    assert (notes, noted == [before]) == (["1 is killed"], is_ignored)


def test_command_line_of_a_version_has_the_partitions_that_were_asked_for() -> None:
    assert version_command("shop.py", 2, None)[1:] == [
        "-P",
        "-m",
        "kstreams_py",
        "dev-version",
        "shop.py",
        "--workers",
        "2",
    ]
    assert version_command("shop.py", 2, 8)[-2:] == ["--partitions", "8"]


def test_positions_survive_the_way_through_json() -> None:
    positions = {TopicPartition("priced", 0): 7, TopicPartition("priced", 1): 2}
    assert positions_of(json.loads(json.dumps(list_of(positions)))) == positions


# The process of a version.

SAYS = """
import json, os, sys
def say(text): os.write(int(os.environ["KSTREAMS_REPORT_FD"]), text.encode())
say('{"ready": ["orders"], "idle": "one is idle"}\\n{"posi')
say('tions": [["priced", 0, 7]]}\\n')
print(json.loads(sys.stdin.readline())["positions"], flush=True)
sys.stdin.read()
say('\\n{"error": "TopicError: gone"}\\n')
sys.exit(2)
"""


class Running:
    """A version whose process runs a script, with its reports and its lines."""

    def __init__(self, script: str, directory: Path, command: Sequence[str] = ()) -> None:
        self.reports: list[VersionReady | OutputsShown | VersionEnded] = []
        self.lines: list[bytes] = []
        command = command or [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(directory)!r})\n{script}"]
        self.version = Version(command, {}, self.reports.append, lambda _output, _slot, lines: self.lines.extend(lines))

    def await_end(self) -> None:
        wait_until(
            lambda: any(isinstance(each, VersionEnded) for each in self.reports), f"the end, after {self.reports}"
        )


def test_version_passes_on_what_its_process_says_and_writes_and_at_last_its_end(tmp_path: Path) -> None:
    running = Running(SAYS, tmp_path)
    running.version.go([("priced", 0, 3)])
    wait_until(lambda: running.lines, "a line")
    running.version._stdin.close()  # as if this process had died
    running.await_end()
    assert running.lines == [b"[['priced', 0, 3]]"]
    assert running.reports == [
        VersionReady(running.version, ["orders"], "one is idle"),
        OutputsShown(running.version, [("priced", 0, 7)]),
        VersionEnded(running.version, 2, "TopicError: gone"),
    ]


def test_version_whose_code_has_a_syntax_error_ends_with_its_line_and_no_traceback(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text("import kstreams_py as ks\n\ndef price(order):\n    retrun order\n")
    running = Running("", tmp_path, version_command(str(file), 1, None))
    running.await_end()
    error = f"GraphError: '{file}' does not import: SyntaxError: invalid syntax ({file}, line 4): correct it"
    assert running.lines == []
    assert running.reports == [
        VersionEnded(running.version, 2, f"{error}\n    retrun order\n           ^^^^^")
    ]  # fmt: skip


def test_version_that_has_ended_is_neither_told_to_run_nor_stopped(tmp_path: Path) -> None:
    running = Running("sys.exit(3)", tmp_path)
    running.await_end()
    running.version.go([])
    running.version.stop()
    running.version.kill()
    assert running.reports == [VersionEnded(running.version, 3, "")]


CUT = """
import os, signal
os.write(int(os.environ["KSTREAMS_REPORT_FD"]), b'{"positions": [["priced", 0, ')
os.kill(os.getpid(), signal.SIGKILL)
"""

FORKED = """
import os, signal
held = os.open("fifo", os.O_RDONLY)
if os.fork() == 0:
    os.read(held, 1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_end_of_a_version_that_died_in_the_middle_of_a_line_is_reported(tmp_path: Path) -> None:
    running = Running(CUT, tmp_path)
    running.await_end()
    assert running.reports == [VersionEnded(running.version, -9, "")]


def test_end_of_a_version_is_reported_while_a_process_that_its_code_forked_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions_module, "FINISH_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    held = os.open("fifo", os.O_RDWR)
    try:
        running = Running(FORKED, tmp_path)
        running.await_end()
        assert running.reports == [VersionEnded(running.version, -9, "")]
    finally:
        os.close(held)  # ends the forked process


@pytest.mark.long  # in the quick tier, other versions that end
def test_version_ends_while_it_imports_code_once_the_process_that_started_it_is_gone(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import threading\nprint('imports')\nthreading.Event().wait()\n")
    running = Running("", tmp_path, version_command(str(tmp_path / "shop.py"), 1, None))
    wait_until(lambda: running.lines == [b"imports"], "the import")
    running.version._stdin.close()
    running.await_end()
    assert running.reports == [VersionEnded(running.version, 0, "")]


def test_code_that_was_saved_twice_in_a_second_with_the_same_size_is_the_second(tmp_path: Path) -> None:
    module, found = tmp_path / "beside.py", []
    for mark in (b"-1", b"-2"):
        module.write_bytes(b"mark = %r\n" % mark)
        os.utime(module, (1_600_000_000, 1_600_000_000))
        running = Running("import beside; print(beside.mark)", tmp_path)
        running.await_end()
        found += running.lines
    assert found == [b"b'-1'", b"b'-2'"]


# What is shown.


class Shop:
    """A graph on a cluster in memory, and the lines of its outputs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock)
        self.graph = ks.Graph("shop", errors="shop.errors")
        self.graph.topic("shop.orders", value=ks.Json())
        self.graph.topic("shop.priced", key=ks.String(), value=ks.Json())
        self.graph.map("shop.orders", to="shop.priced", id="price")(lambda order: order["total"])
        self.cluster.create_topics([(name, 2, -1, {}) for name in self.graph.topics])
        self.lines: list[tuple[str, Any]] = []

    def open(self) -> Following:
        environment = Environment(self.cluster, MemoryRegistry(), ks.Settings(), self.clock)
        found = self.cluster.topics(list(self.graph.topics))
        return Following(
            environment, self.graph, found, lambda topic, lines: self.lines.append((topic, json.loads(*lines)))
        )

    def write(self, *values: bytes, topic: str = "shop.priced", partition: int = 0, key: bytes | None = None) -> None:
        for value in values:
            self.cluster.append(topic, value, partition=partition, key=key)

    def shown(self) -> list[tuple[str, int, Any]]:
        return [(topic, line["offset"], line["value"]) for topic, line in self.lines]


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_topics_that_a_graph_writes_are_its_outputs_and_last_its_dead_letters(shop: Shop) -> None:
    assert written_topics(shop.graph) == ["shop.priced", "shop.errors"]


def test_records_that_come_are_shown_once_decoded_and_those_before_are_not(shop: Shop) -> None:
    shop.write(b'{"before": 1}')
    following = shop.open()
    assert following.look() is False
    shop.write(b'{"a": 1}', b"no JSON")
    shop.write(b'{"input": 1}', topic="shop.orders")
    assert (following.look(), following.look()) == (True, False)
    assert shop.shown() == [("shop.priced", 1, {"a": 1}), ("shop.priced", 2, "no JSON")]
    assert "undecoded" in shop.lines[1][1]


def test_dead_letter_is_shown_as_the_command_shows_it_and_what_is_none_as_a_line() -> None:
    shop = Shop()
    registry = MemoryRegistry()
    with TestDriver(shop.graph, partitions=1, registry=registry) as driver:
        environment = Environment(driver.cluster, registry, ks.Settings(), driver.clock)
        found = driver.cluster.topics(list(shop.graph.topics))
        shown: dict[bool, list[tuple[str, list[str]]]] = {False: [], True: []}
        following = [
            Following(environment, shop.graph, found, lambda *each, to=to: to.append(each), as_json=as_json)
            for as_json, to in shown.items()
        ]
        driver.send("shop.orders", {"quantity": 1})
        driver.run()
        driver.cluster.append("shop.errors", b"foreign")
        for each in following:
            each.look()
        (letter,) = LetterReader(shop.graph, environment).letters()
        text = Describer(shop.graph, registry).as_text(letter)
    assert text.startswith("shop.errors[0]@0  shop.price  2023-11-14T22:13:20Z\n  error      KeyError: ")
    (letter_lines, foreign_lines), (letter_json, foreign_json) = shown.values()
    assert letter_lines == ("shop.errors", text.split("\n"))
    assert foreign_lines == foreign_json == ("shop.errors", [ANY])
    assert json.loads(*foreign_json[1])["undecoded"]["value"].startswith("shop.errors[0]@2 is not a dead letter")
    assert json.loads(*letter_json[1])["value"]["error"] == "builtins.KeyError"


def test_records_between_two_versions_are_shown_once(shop: Shop) -> None:
    first = shop.open()
    shop.write(b"1", b"2")
    first.look()
    shop.write(b"3")
    second = shop.open()
    second.go_on({**first.positions, TopicPartition("shop.gone", 0): 5, TopicPartition("shop.priced", 1): 99})
    shop.write(b"4")
    shop.write(b"5", partition=1)
    second.look()
    assert sorted(value for *_, value in shop.shown()) == [1, 2, 3, 4, 5]


def test_broker_that_is_away_is_waited_for_and_the_last_records_are_shown(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    following, looked = shop.open(), list[bool]()
    for nth in (1, 2):
        shop.cluster.faults.inject("ends", nth=nth, error=BrokerUnavailable("no broker answers"))
    stopped = Turns(lambda: None, lambda: None, lambda: shop.write(b"1"), lambda: shop.write(b"2"))
    following.run(lambda: looked.append(True), cast("threading.Event", stopped))
    assert [value for *_, value in shop.shown()] == [1, 2]
    assert (caplog.messages, len(looked)) == (["no broker answers; outputs are shown once it answers"], 2)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TopicError("topic 'shop.priced' was deleted"), "topic 'shop.priced' was deleted"),
        (SchemaError("no such schema"), "SchemaError: no such schema"),
    ],
)
def test_what_cannot_be_shown_ends_the_lines_with_a_warning_and_not_the_workers(
    error: ks.KStreamsError, message: str, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    following = shop.open()
    shop.cluster.faults.inject("ends", nth=1, error=error)
    following.run(lambda: None, cast("threading.Event", Turns(lambda: pytest.fail("it goes on"))))
    assert caplog.messages == [f"outputs are not shown any more: {message}"]


def test_outputs_of_the_drain_are_shown_before_the_end(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv("KSTREAMS_REPORT_FD", str(writing))
    with showing(shop.open()):
        shop.write(b"1")
    assert shop.shown() == [("shop.priced", 0, 1)]
    os.close(writing)
    with os.fdopen(reading) as said:
        assert json.loads(said.readlines()[-1])["positions"][0] == ["shop.priced", 0, 1]


def test_last_look_at_a_broker_that_gives_no_answer_is_given_up_with_a_warning(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(version_module, "SHOW_SECONDS", 0.01)
    following, answered = shop.open(), threading.Event()
    monkeypatch.setattr(following, "look", lambda: not answered.wait())
    with showing(following):
        pass
    answered.set()
    assert caplog.messages == ["the last outputs are not shown: the broker has not given them within 0.01 s"]


class Turns:
    """An event that is set after so many waits, in each of which something happens."""

    def __init__(self, *happens: Callable[[], None]) -> None:
        self._happens = list(happens)

    def is_set(self) -> bool:
        return not self._happens

    def wait(self, _: float) -> None:
        self._happens.pop(0)()
