"""`kstreams order`: what it shows of a store, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kstreams_py.cli import order
from kstreams_py.cli.main import app
from kstreams_py.errors import SettingsError, TopicError
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.ordering import Ordering
from kstreams_py.ordering.events import OrderedEvent
from kstreams_py.ordering.front_end import open_storage
from kstreams_py.ordering.status import SILENT_SECONDS, Standing
from kstreams_py.ordering.steps import Own, Pop, Take
from kstreams_py.ordering.storage import ObjectStatus, WorkerStatus
from kstreams_py.ordering.worker import OrderingWorker


def invoke(*arguments: str) -> str:
    """The output of a command that ends with status 0. Raises what it raises."""
    ran = CliRunner().invoke(app, ["order", *arguments], catch_exceptions=False)
    assert ran.exit_code == 0
    return ran.output


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with two changes of an object and one of another, and a worker that owns the first."""
    path = tmp_path / "events.db"
    with closing(Ordering(path)) as ordering:
        for name in ("b", "a", "b"):
            ordering.enqueue(name, {}, 1)
    with closing(open_storage(path)) as storage:
        storage.run(storage.register("w", 1, "p"), [Take("w#0"), Own("w#0", "b")])
    return str(path)


def test_status_shows_objects_and_workers(store: str) -> None:
    assert re.sub(r"\b\d+ s ago", "N s ago", invoke("status", "--store", store)).splitlines() == [
        "a: 1 waiting, 0 taken, 1 tokens",
        "b: 2 waiting, 0 taken, 1 tokens, owned by w#0",
        "worker w: heard from N s ago, process 1, holds 1 objects",
    ]
    found = [json.loads(line) for line in invoke("status", "--store", store, "--json").splitlines()]
    assert found[1] == {"object": "b", "waiting": 2, "taken": 0, "tokens": 1, "owner": "w#0"}
    assert found[2] == {
        "worker": "w",
        "process": 1,
        "seconds": found[2]["seconds"],
        "objects": {"w#0": "b"},
        "blocked": [],
    }


def test_objects_of_a_worker_that_was_not_heard_of_are_blocked() -> None:
    alive = WorkerStatus("alive", 1, 1.0, {"alive#0": "a"})
    idle = WorkerStatus("idle", 4, SILENT_SECONDS + 1, {})
    dead = WorkerStatus("dead", 2, SILENT_SECONDS, {"dead#0": "c", "dead#1": "b"})
    standing = Standing([ObjectStatus("b", 1, 2, 0, "dead#1")], [alive, idle, dead])
    assert list(standing.describe()) == [
        "b: 1 waiting, 2 taken, 0 tokens, owned by dead#1",
        "worker alive: heard from 1 s ago, process 1, holds 1 objects",
        "worker idle: heard from 31 s ago, process 4, holds nothing",
        "worker dead: heard from 30 s ago, process 2, holds 2 objects",
        "  b, c: blocked until it is started again, or `kstreams order takeover dead` finishes what it holds",
    ]
    assert (standing.is_blocked, Standing([], [alive, idle]).is_blocked) == (True, False)
    assert list(Standing([], []).describe()) == ["no object has events"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the topic of the events: --topic NAME"),
        (["status", "--store", "missing.db"], "the store missing.db does not exist: correct --store"),
        (["--store", "x.db", "--batch", "1", "status"], "write --store, --batch after `kstreams order status`"),
        (["--topic", "t", "--store", "mysql://host/db"], "mysql:// is not a store of events"),
        (["takeover", "w", "--yes", "--store", "STORE"], "name the topic of the events"),
        (
            ["takeover", "x", "--topic", "t", "--yes", "--store", "STORE"],
            "the store has no worker 'x': it has w: correct the name",
        ),
    ],
)
def test_order_refuses_what_it_cannot_do(
    arguments: list[str], message: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=message):
        invoke(*(store if each == "STORE" else each for each in arguments))
    assert [each.name for each in tmp_path.iterdir() if not each.name.startswith(Path(store).name)] == []


class SentTo:
    """A sender to a topic of this many partitions, which keeps the values that it is given."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = TopicInfo(topic, "id", partitions, 1, {})
        self.values: list[bytes] = []

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        self.values += [each.event.value for _, each in events]

    def close(self) -> None: ...


@pytest.mark.parametrize("command", [["takeover", "w", "--yes"], ["--name", "w"]], ids=["takeover", "worker"])
@pytest.mark.parametrize(
    ("topic", "partitions", "options"),
    [("other", 3, ["--accept-topic"]), ("events", 6, ["--accept-partitions"]), ("other", 6, ["--accept-topic"])],
)
def test_another_topic_is_refused_until_the_command_accepts_it(
    command: list[str], topic: str, partitions: int, options: list[str], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = SentTo(topic, partitions)

    @contextmanager
    def opened(*_: object) -> Iterator[SentTo]:
        yield sender

    def run_stopped(worker: OrderingWorker) -> None:
        worker.stop()
        run(worker)

    run = OrderingWorker.run
    monkeypatch.setattr(order, "_open_sender", opened)
    monkeypatch.setattr(OrderingWorker, "run", run_stopped)
    with closing(open_storage(store)) as storage:
        storage.run(storage.register("w", 1, "p"), [Pop("w#0", "b", 1)])
        storage.note_topic("events", 3, change=False)
        arguments = [*command, "--topic", topic, "--store", store]
        with pytest.raises(TopicError, match=rf"or stop all|then start with {options[0]}"):
            invoke(*arguments)
        assert (storage.note_topic("events", 3, change=False), sender.values) == (("events", 3), [])
        invoke(*arguments, *options)
        assert storage.note_topic("events", 3, change=False) == (topic, partitions)
        assert (sender.values, storage.workers()[0].objects) == ([b"1"], {})


def test_takeover_that_is_not_confirmed_changes_nothing(store: str) -> None:
    ran = CliRunner().invoke(app, ["order", "takeover", "w", "--topic", "t", "--store", store], input="n\n")
    with closing(open_storage(store)) as storage:
        assert (ran.exit_code, [each.number for each in storage.workers()]) == (1, [1])
    assert "and holds: b\n" in ran.output
