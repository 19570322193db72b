"""`kstreams dev` on a real broker: reloads that lose and double nothing, code that is wrong, the data of its broker."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from kstreams_py import Settings
from kstreams_py.embedded.nodes import free_ports
from tests.system.command import RunningCommand, command, kstreams
from tests.system.harness import Cluster, wait_until

MakeSettings = Callable[..., Settings]

GRAPH = """
import kstreams_py as ks
from beside import mark

graph = ks.Graph("{name}", errors="{name}.errors", stop_on=(OSError,))

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    if value == b"bad": raise KeyError("price")
    return value + mark
"""

AT_ONCE = 50
"""Records that are sent at once, while code is saved."""

PAUSE = 0.3
"""Seconds between them; a reload takes several."""


def save(path: Path, text: str) -> None:
    """Writes a file as editors do: whole."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def write_graph(directory: Path, name: str, more: str = "") -> Path:
    save(directory / "beside.py", 'mark = b"-1"\n')
    file = directory / "graph.py"
    save(file, GRAPH.format(name=name) + more)
    return file


def await_loaded(running: RunningCommand, workers: int, mark: str) -> None:
    """Returns once all workers have loaded the code: a worker that starts after a save loads what was saved."""
    for slot in range(workers):
        running.await_text(rf"\[{slot}\] loaded b'{mark}'")


@contextmanager
def sending(cluster: Cluster, topic: str) -> Iterator[list[bytes]]:
    """Sends numbers inside the block, again and again; all of them are sent at its end."""
    sent: list[bytes] = []
    stopped = threading.Event()

    def send() -> None:
        while not stopped.wait(PAUSE):
            values = [b"%d" % (len(sent) + i) for i in range(AT_ONCE)]
            sent.extend(values)
            cluster.write(topic, values)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stopped.set()
        thread.join()


def shown_records(running: RunningCommand, topic: str) -> list[tuple[int, int, str]]:
    """Partition, offset and value of each line of a topic."""
    lines = re.findall(rf"^\[{re.escape(topic)}\] (.+)$", running.text, flags=re.MULTILINE)
    return [(each["partition"], each["offset"], each["value"]) for each in map(json.loads, lines)]


@pytest.mark.parametrize(
    ("workers", "reloads"),
    [pytest.param(1, 1, id="one reload"), pytest.param(2, 2, id="two workers, two reloads", marks=pytest.mark.long)],
)
def test_exactly_once_records_sent_through_reloads_are_delivered_and_shown_once(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path, workers: int, reloads: int
) -> None:
    cluster.create(f"{name}.in", partitions=4)
    file = write_graph(tmp_path, name, 'print("loaded", mark, flush=True)')
    options = ("--workers", workers)

    def count(mark: bytes) -> int:
        return sum(value is not None and value.endswith(mark) for value in cluster.values(f"{name}.out"))

    with command(tmp_path, "dev", file, *options, environment=settings().as_environment()) as running:
        running.await_text(r"\d workers?, runs")
        with sending(cluster, f"{name}.in") as sent:
            wait_until(lambda: count(b"-1") > AT_ONCE, "outputs of the first code")
            await_loaded(running, workers, "-1")
            save(tmp_path / "beside.py", 'mark = b"-2"\n')  # of the same size, and often in the same second
            wait_until(lambda: count(b"-2") > AT_ONCE, "outputs of the second")
            if reloads == 2:
                await_loaded(running, workers, "-2")
                save(file, GRAPH.format(name=name).replace("+ mark", '+ b"-3"'))
                wait_until(lambda: count(b"-3") > AT_ONCE, "outputs of the third")
        wait_until(lambda: len(cluster.values(f"{name}.out")) >= len(sent), "all outputs")
        running.send(signal.SIGINT)
        assert running.wait() == 0, running.text
    records = cluster.read(f"{name}.out")
    values = [m.value().decode() for m in records]
    assert sorted(int(value[:-2]) for value in values) == list(range(len(sent)))
    by_partition = [[m.value().decode()[-1] for m in records if m.partition() == p] for p in range(4)]
    assert all(marks == sorted(marks) for marks in by_partition), "no old code runs after new code"
    expected = [(m.partition(), m.offset(), m.value().decode()) for m in records]
    assert sorted(shown_records(running, f"{name}.out")) == expected
    assert running.text.count("changed: ") == reloads


GO_ON: Final = "; the workers before it go on, and the next save tries again\n"

WRONG: Final = [
    (
        lambda right: f"{right}def (\n",
        rf"SyntaxError: invalid syntax \(/\S+/graph\.py, line 11\): correct it{GO_ON}\[dev\] +def \(\n\[dev\] +\^\n",
    ),
    (lambda right: f'{right}graph.topic("__a")\n', rf"graph\.py, line 11: topic name '__a' is reserved.*?{GO_ON}"),
    (lambda right: right.replace('Graph("', 'Graph("a b'), rf"graph\.py, line 5: .*?'a b.*?{GO_ON}"),
]
"""Changes that make a graph invalid, each with the message: a Python exception, and two errors of this project."""


@pytest.mark.long  # six processes; the unit tests have the messages, and the one before the reloads
@pytest.mark.parametrize("wrong", [WRONG[:2], pytest.param(WRONG[2:], marks=pytest.mark.long)])
def test_worker_that_ends_waits_for_the_next_save_and_wrong_code_is_one_message(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path, wrong: list[tuple[Callable[[str], str], str]]
) -> None:
    file = write_graph(tmp_path, name)
    right = GRAPH.format(name=name)
    save(file, right.replace("return", "open('/absent/file') if value == b'1' else 0\n    return"))
    (port,) = free_ports([None])
    http = ("--http", f"127.0.0.1:{port}")
    with command(tmp_path, "dev", file, *http, environment=settings().as_environment()) as running:
        running.await_text("1 worker, runs")
        assert f"created {name}.in, {name}.out, {name}.errors\n" in running.text
        cluster.write(f"{name}.in", [b"0", b"1", b"2"], partition=0)
        running.await_text("ERROR .*slot 0 ended by status 1, see its lines above: nothing runs, the next save")
        assert (
            running.text.count("[0]     FileNotFoundError: [Errno 2] No such file or directory: '/absent/file'\n") == 1
        )
        cluster.await_markers(f"{name}.out")
        assert cluster.values(f"{name}.out") == [b"0-1"]
        save(file, right)
        running.await_text(rf'\[{name}\.out\] .*"value": "2-1"')
        assert running.text.count("1 worker, runs") == 2
        with urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
            assert answer.status == 200
        values = cluster.values(f"{name}.out")
        assert (len(values), set(values)) == (3, {b"0-1", b"1-1", b"2-1"})

        cluster.write(f"{name}.in", [b"bad"])
        letter = [" error      KeyError: 'price'", "   value    bad", " | KeyError: 'price'"]
        running.await_text("(?s)" + ".*".join(rf"\[{name}\.errors\]  {re.escape(line)}\n" for line in letter))
        before = len(running.text)
        for number, (change, why) in enumerate(wrong, 1):
            save(file, change(right))
            running.await_text(rf"(?s)\A.{{{before}}}(?:.*?ERROR){{{number}}}[^\n]*{why}")
            cluster.write(f"{name}.in", [b"1%d" % number])
            running.await_text(rf'\[{name}\.out\] .*"value": "1{number}-1"')
        assert "Traceback" not in running.text[before:]
        sources = rf"dev|0|{re.escape(name)}\.(?:out|errors)"
        assert [line for line in running.text.splitlines() if not re.match(rf"\[(?:{sources})\] ", line)] == []
        save(
            file, right.replace("+ mark", "+ mark + mark") + f'graph.sink(graph.topic("{name}.more"), id="p")(print)\n'
        )
        running.await_text(f"(?s)created {name}.more\n.*1 worker, runs")
        cluster.write(f"{name}.in", [b"mended"])
        running.await_text(rf'\[{name}\.out\] .*"value": "mended-1-1"')
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text


@pytest.mark.long  # in the quick tier, test_broker.py keeps the data of a broker for the next one
def test_broker_of_dev_ends_with_it_and_keeps_its_data_for_the_next_one(tmp_path: Path) -> None:
    file = write_graph(tmp_path, "own")
    (port,) = free_ports([None])
    environment = {"KSTREAMS_SCHEMA_DIRECTORY": str(tmp_path / "schemas")}
    for number in (1, 2):
        with command(tmp_path, "dev", file, "--port", port, environment=environment) as running:
            running.await_text("1 worker, runs")
            assert f"broker at 127.0.0.1:{port}; its data stays in {tmp_path}/.kstreams: remove that" in running.text
            if number == 1:
                second = kstreams("dev", file, "--port", port, environment=environment)
                (error,) = second.error_lines
                assert error == (
                    f"error: SettingsError: port {port} of 127.0.0.1 is taken: choose another with --port, or use the "
                    f"broker that listens there: --bootstrap-servers 127.0.0.1:{port}"
                )
            Cluster(f"127.0.0.1:{port}").write("own.in", [b"%d" % number], partition=0)
            running.await_text(rf'\[own\.out\] .*"value": "{number}-1"')
            written = Cluster(f"127.0.0.1:{port}").values("own.out")
            running.send(signal.SIGINT)
            assert running.wait() == 0, running.text
        assert "created" in running.text if number == 1 else "created" not in running.text
        assert free_ports([port]) == [port], "the broker has ended"
    assert (len(written), set(written)) == (2, {b"1-1", b"2-1"})
    assert [value for *_, value in shown_records(running, "own.out")] == ["2-1"]
    assert (tmp_path / ".kstreams" / ".gitignore").read_text() == "*\n"
