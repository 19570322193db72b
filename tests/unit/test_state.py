"""Keyed state: what functions see, what is committed with a step, and what is restored."""

from __future__ import annotations

import gc
import json
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import kstreams_py as ks
from kstreams_py.cli import state as cli_state
from kstreams_py.cli.main import app
from kstreams_py.errors import (
    Abortable,
    DecodeError,
    GraphError,
    InputLost,
    MissingSoftware,
    NotRestored,
    OutcomeUnknown,
    SettingsError,
    TopicError,
)
from kstreams_py.formats.serdes import Bytes, Json, Serde, String
from kstreams_py.kafka.contracts import ProducerMode
from kstreams_py.operations.recover.positions import describe
from kstreams_py.operations.recover.reset import GraphPositions, ResetTarget
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.commits.guarantees import ExactlyOnce
from kstreams_py.processing.topics import check_topics
from kstreams_py.records import TopicPartition
from kstreams_py.state import rocks, stores
from kstreams_py.state.changelog import Changelog, Position, change_records, positions_record
from kstreams_py.state.keyed import CHANGES_BYTES, CHECKPOINT_SECONDS, POSITIONS_KEY, Base, MemoryBase, TaskStore
from kstreams_py.state.rocks import RocksBase
from kstreams_py.state.stores import Stores
from kstreams_py.testing import CrashPoint, MemoryCluster, TestDriver
from tests.tables import each_case
from tests.unit.test_serdes import avro

NO_SERDE: Any = Json


def counting(on_disk: bool = False, partitions: int = 2, **options: Any) -> ks.Graph:
    """Counts the words of a topic; the word "bad" raises after it was counted."""
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=String(), value=String(), partitions=partitions)
    counts = graph.topic("g.counts", key=String(), value=Json(), partitions=partitions)

    @graph.map(words, to=counts, state=ks.State("counts", on_disk=on_disk), **options)
    def count(word: str, state: ks.KeyedStore[str, int]) -> int:
        seen: int = state.get(word, 0) + 1
        state.put(word, seen)
        if word == "bad":
            raise ValueError(word)
        return seen

    return graph


WORDS = ["a", "b", "a", "bad", "c", "a", "bad", "b", "d", "a"]


def send(driver: TestDriver, words: list[str]) -> None:
    for word in words:
        driver.send("g.words", word, key=word)


def test_state_counts_each_step_once_and_a_step_that_raises_not() -> None:
    with TestDriver(counting()) as driver:
        send(driver, WORDS)
        driver.run()
        assert driver.state("counts") == {"a": 4, "b": 2, "c": 1, "d": 1}
        assert sorted((r.key, r.value) for r in driver.read("g.counts")) == [
            ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("c", 1), ("d", 1),
        ]  # fmt: skip
        assert len(driver.dead_letters()) == 2


def expected_outputs() -> list[tuple[Any, Any]]:
    with TestDriver(counting()) as driver:
        send(driver, WORDS)
        driver.run()
        return sorted((r.key, r.value) for r in driver.read("g.counts"))


@pytest.mark.parametrize(
    ("on_disk", "at_each"),
    [
        # the state is read where a task is opened, whichever request was the last one: one point of each request
        pytest.param(False, False, id="memory, at the last of each request"),
        pytest.param(True, False, id="disk, at the last of each request"),
        pytest.param(False, True, id="memory", marks=pytest.mark.long),
        pytest.param(True, True, id="disk", marks=pytest.mark.long),
    ],
)
def test_crash_at_any_request_counts_each_step_once(on_disk: bool, at_each: bool, tmp_path: Path) -> None:
    with TestDriver(counting(), slots=2) as driver:
        send(driver, WORDS)
        driver.run()
        points, outputs = driver.crash_points(), expected_outputs()
    if not at_each:
        points = list({(point.request, point.applied): point for point in points}.values())
    assert {point.request for point in points} >= {"produce", "send_offsets", "commit_transaction", "read"}
    for number, point in enumerate(points):
        settings = ks.Settings(state_directory=tmp_path / str(number))
        with TestDriver(counting(on_disk), slots=2, settings=settings) as driver:
            send(driver, WORDS)
            driver.crash(point)
            driver.restart()
            driver.run()
            send(driver, ["a"])
            driver.run()
            assert driver.state("counts") == {"a": 5, "b": 2, "c": 1, "d": 1}, point
            assert sorted((r.key, r.value) for r in driver.read("g.counts")) == sorted([*outputs, ("a", 5)]), point


@pytest.fixture(params=["memory", "rocksdb"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Base]:
    opened: Base = MemoryBase() if request.param == "memory" else RocksBase(tmp_path / "0", "id")
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 20))])
def test_store_is_a_mapping_whose_changes_are_kept_undone_dropped_or_committed(seed: int, base: Base) -> None:
    chance, store = random.Random(seed), TaskStore(base, String(), Json())
    committed: dict[str, int] = {}
    kept: dict[str, int] = {}
    for step in range(300):
        seen = dict(kept)
        for _ in range(chance.randrange(4)):
            key = chance.choice("abcdefgh") * chance.randrange(1, 3)
            if chance.random() < 0.3:
                store.delete(key)
                seen.pop(key, None)
            else:
                store.put(key, step)
                seen[key] = step
            assert (store.get(key), key in store) == (seen.get(key), key in seen)
        first, last = sorted(chance.choices("abcdefgh", k=2))
        assert list(store.range()) == sorted(seen.items())
        assert list(store.range(first, last)) == [(k, v) for k, v in sorted(seen.items()) if first <= k < last]
        if chance.random() < 0.3:
            store.undo()
        else:
            store.keep()
            kept = seen
        if chance.random() < 0.1:
            store.roll_back()
            kept = dict(committed)
        elif chance.random() < 0.2:
            store.commit(b"{}")
            committed = dict(kept)
        assert dict(store.range()) == kept


def test_keys_and_values_that_cannot_be_stored_are_refused() -> None:
    class Nothing(Bytes):
        def serialize(self, value: Any, /) -> Any:
            return None

    store = TaskStore(MemoryBase(), Bytes(), Nothing())
    with pytest.raises(ValueError, match="is None in bytes: delete the key"):
        store.put(b"a", b"b")
    with pytest.raises(ValueError, match="cannot be a key"):
        store.get(POSITIONS_KEY)
    with pytest.raises(TypeError, match="is not a str"):
        TaskStore(MemoryBase(), String(), Json()).get(1)  # type: ignore[arg-type]


def test_value_that_does_not_decode_is_named_with_its_key() -> None:
    store = TaskStore(base := MemoryBase(), String(), Json())
    base.apply({b"a": b"\xff"})
    with pytest.raises(DecodeError) as raised:
        store.get("a")
    assert str(raised.value).startswith("the state has another value for key 'a' (str): ")
    assert str(raised.value).endswith(": give the state that serde, or put the key again")


@each_case(
    ("key", "one", "other"),
    [
        (Json(), {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Json(), [{"a": {"c": 0.0, "d": 1}}], [{"a": {"d": 1, "c": -0.0}}]),
        (Json(), 0.0, -0.0),
        (avro({"type": "map", "values": "double"}), {"a": 0.0, "b": 1.0}, {"b": 1.0, "a": -0.0}),
    ],
)
def test_state_keys_that_are_equal_are_one_key_also_as_earlier_versions_wrote_them(
    key: Serde, one: Any, other: Any
) -> None:
    store: TaskStore[Any, Any] = TaskStore(MemoryBase(), key, Json())
    store.put(one, 1)
    store.put(other, 2)
    assert ([*store.range()], store.get(one), other in store) == ([(one, 2)], 2, True)
    store.delete(one)
    assert [*store.range()] == []

    earlier = key.serialize(other)
    assert earlier is not None
    store.write(earlier, b"7")
    assert (store.get(other), other in store, store.get(one)) == (7, True, None)
    store.put(other, 8)
    assert ([*store.range()], store.get(one)) == ([(one, 8)], 8)
    store.write(earlier, b"7")
    store.delete(other)
    assert [*store.range()] == []


def test_state_keys_that_json_tells_apart_stay_apart() -> None:
    store: TaskStore[Any, Any] = TaskStore(MemoryBase(), Json(), Json())
    for key in (1, 1.0, True, "1", [1], None):
        store.put(key, repr(key))
    assert sorted(store.get(key) for key in (1, 1.0, True, "1", [1], None)) == sorted(v for _, v in store.range())
    assert len([*store.range()]) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guarantee": "at_least_once"}, "and is at_least_once: its changes are committed with outputs and offsets"),
        ({"guarantee": "at_most_once"}, "and is at_most_once: its changes are committed with outputs and offsets"),
        ({"persistence": "journal"}, "and a journal, which does not record its changes"),
        ({"concurrency": 2}, "and calls that overlap, each of which would see half"),
    ],
)
def test_processor_that_could_not_commit_its_state_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError) as raised:
        counting(**options)
    assert str(raised.value).startswith(f"processor 'count' has state 'counts' {message}")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("counts", "processor 'second': state is 'counts': give State(name)"),
        (
            ks.State("a b"),
            "processor 'second' has state 'a b': this name is not usable: use 1 to 100 of a-z A-Z 0-9 _ -",
        ),
        (ks.State("counts"), "processor 'second' has state 'counts', as processor 'count' has: a state belongs to one"),
        (ks.State("other", value=NO_SERDE), "processor 'second' has state 'other', whose value is "),
    ],
)
def test_state_that_is_none_or_another_processors_is_refused(state: Any, message: str) -> None:
    graph = counting()
    with pytest.raises(GraphError) as raised:
        graph.map("g.words", to="g.counts", state=state, id="second")(lambda value, state: None)
    assert str(raised.value).startswith(message)


def test_function_without_the_argument_for_its_state_is_refused() -> None:
    graph = counting()
    with pytest.raises(GraphError, match=r"write second\(value, state\) or second\(value, step, state\)"):

        @graph.map("g.words", to="g.counts", state=ks.State("other"))
        def second(value: str) -> None: ...


def both_kinds(graph: ks.Graph, kind: str) -> None:
    """A processor that numbers its steps, of a kind, from topics a and b to c."""
    a, b, c = (graph.topic(f"g.{name}", value=Json(), partitions=1) for name in "abc")

    def number(state: Any) -> int:
        seen: int = state.get("n", 0) + 1
        state.put("n", seen)
        return seen

    if kind == "join":
        graph.join(a, b, by="order", to=c, id="p", state=ks.State("s"))(
            lambda one, two, state: [one, two, number(state)]
        )
    elif kind == "alts":
        graph.alts(a, b, to=c, id="p", state=ks.State("s"))(lambda value, state: [value, number(state)])
    elif kind == "batch":
        graph.map(a, to=c, id="p", batch=True, state=ks.State("s"))(
            lambda values, state: [[value, number(state)] for value in values]
        )
    elif kind == "generator":

        @graph.map(a, to=c, id="p", state=ks.State("s"))
        def twice(value: Any, state: Any) -> Any:
            yield [value, number(state)]
            yield [value, number(state)]

    else:
        graph.map(a, to=c, id="p", state=ks.State("s"))(lambda value, step, state: [value, step.topic, number(state)])


@pytest.mark.parametrize(
    ("kind", "outputs", "total"),
    [
        ("map", [[0, "g.a", 1], [1, "g.a", 2], [2, "g.a", 3]], 3),
        ("join", [[0, 0, 1], [1, 1, 2], [2, 2, 3]], 3),
        ("generator", [[0, 1], [0, 2], [1, 3], [1, 4], [2, 5], [2, 6]], 6),
        ("batch", [[0, 1], [1, 2], [2, 3]], 3),
    ],
)
def test_function_of_each_kind_takes_its_state(kind: str, outputs: list[Any], total: int) -> None:
    graph = ks.Graph("g", errors="g.errors")
    both_kinds(graph, kind)
    with TestDriver(graph) as driver:
        for value in range(3):
            driver.send("g.a", value)
            driver.send("g.b", value)
        driver.run()
        assert (driver.values("g.c"), driver.state("s")) == (outputs, {"n": total})


def test_alts_numbers_its_records_over_a_crash_at_each_request() -> None:
    graph = ks.Graph("g", errors="g.errors")
    both_kinds(graph, "alts")

    def feed(driver: TestDriver) -> None:
        for value in range(3):
            driver.send("g.a", value)
            driver.send("g.b", -value)

    with TestDriver(graph) as driver:
        feed(driver)
        driver.run()
        points = driver.crash_points()
    for point in points:
        with TestDriver(graph) as driver:
            feed(driver)
            driver.crash(point)
            driver.restart()
            driver.run()
            numbers = [value[1] for value in driver.values("g.c")]
            assert (numbers, driver.state("s")) == ([1, 2, 3, 4, 5, 6], {"n": 6}), point


def move_group(driver: TestDriver, by: int) -> None:
    positions = driver.cluster._broker.groups["g.count"].positions
    tp = max(positions, key=lambda each: positions[each])
    positions[tp] += by


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda driver: move_group(driver, -1), "]@9, but the group is at 8: stop all workers"),
        (lambda driver: move_group(driver, 1), "]@9, but the group is at 10: stop all workers"),
    ],
)
def test_state_that_does_not_belong_to_the_offsets_ends_the_worker(
    change: Callable[[TestDriver], None], message: str
) -> None:
    with TestDriver(counting()) as driver:
        send(driver, WORDS)
        driver.run()
        send(driver, ["z", "z", "z"])
        driver.crash()
        change(driver)
        driver.restart()
        with pytest.raises(InputLost) as raised:
            driver.run()
        assert message in str(raised.value)
        assert str(raised.value).startswith(
            "count: state 'counts' does not belong to the committed offsets: it is at g.w"
        )
        assert driver.state("counts") == {"a": 4, "b": 2, "c": 1, "d": 1}


# Faults of requests: the process lives on.


def failed_at(point: CrashPoint, error: Exception) -> tuple[dict[str, int], list[tuple[Any, Any]]]:
    """What is committed after a run in which one request failed."""
    with TestDriver(counting()) as driver:
        for words in (WORDS[:4], WORDS[4:]):
            send(driver, words)
            driver.cluster.faults.inject(point.request, nth=point.nth, error=error, applied=point.applied)
            driver.run()
        send(driver, ["a"])
        driver.run()
        return driver.state("counts"), sorted((r.key, r.value) for r in driver.read("g.counts"))


def test_step_is_counted_once_whichever_request_fails() -> None:
    outputs = sorted([*expected_outputs(), ("a", 5)])
    requests = ("produce", "send_offsets", "commit_transaction", "add_partition", "add_offsets")
    faults: list[tuple[str, Exception, bool]] = [(request, Abortable("injected"), False) for request in requests]
    faults += [("commit_transaction", OutcomeUnknown("injected"), applied) for applied in (True, False)]
    for request, error, applied in faults:
        for nth in (1, 2):
            at = CrashPoint(request, nth, applied)
            assert failed_at(at, error) == ({"a": 5, "b": 2, "c": 1, "d": 1}, outputs), (at, error)


def test_mutation_that_keeps_changes_over_an_abort_doubles_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stores, "roll_back", lambda self: None)
    with pytest.raises(AssertionError):
        test_step_is_counted_once_whichever_request_fails()


def test_mutation_that_trusts_a_store_after_an_unanswered_commit_reads_an_old_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Stores, "_differing", lambda *_: False)
    with pytest.raises(AssertionError):
        test_step_is_counted_once_whichever_request_fails()


def test_mutation_that_applies_changes_before_their_commit_is_known_doubles_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = Stores.records

    def apply_at_once(self: Stores, positions: Any) -> Any:
        written = records(self, positions)
        self.committed(positions)
        return written

    monkeypatch.setattr(Stores, "records", apply_at_once)
    with pytest.raises((AssertionError, InputLost)):
        test_step_is_counted_once_whichever_request_fails()


def test_process_that_restores_goes_on_with_the_newest_values() -> None:
    with TestDriver(counting()) as driver:
        for _ in range(3):
            send(driver, ["a", "b"])
            driver.run()
            driver.crash()
            driver.restart()
        assert sorted((r.key, r.value) for r in driver.read("g.counts")) == [(k, n + 1) for k in "ab" for n in range(3)]
        assert driver.state("counts") == {"a": 3, "b": 3}


def stop_early(patch: pytest.MonkeyPatch) -> None:
    begin = Stores._begin

    def begin_short(self: Stores, groups: Any) -> None:
        begin(self, groups)
        self._goals = {number: max(0, end - 4) for number, end in self._goals.items()}

    read = MemoryCluster.read

    def read_short(
        self: MemoryCluster, tp: TopicPartition, start: int = 0, limit: int | None = None, **more: Any
    ) -> Any:
        found = read(self, tp, start, limit, **more)
        return found[:-2] if tp.topic.endswith(".changelog") else found  # the last one is of positions

    patch.setattr(Stores, "_begin", begin_short)
    patch.setattr(MemoryCluster, "read", read_short)


def test_mutation_whose_restore_stops_early_is_refused_by_the_record_of_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop_early(monkeypatch)
    with pytest.raises(InputLost, match="does not belong to the committed offsets"):
        test_process_that_restores_goes_on_with_the_newest_values()


def test_mutation_whose_restore_stops_early_unchecked_reads_an_old_value(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_early(monkeypatch)
    monkeypatch.setattr(Stores, "_check", lambda *_: None)
    with pytest.raises(AssertionError):
        test_process_that_restores_goes_on_with_the_newest_values()


def test_mutation_that_checks_no_positions_takes_a_state_of_other_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stores, "_check", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_state_that_does_not_belong_to_the_offsets_ends_the_worker(lambda driver: move_group(driver, -1), "")
    with pytest.raises(pytest.fail.Exception):
        test_deployment_without_the_state_is_noticed_by_the_next_one_with_it()


class OneTask:
    """The changelog of one task: a worker on one side, and what another one commits to it."""

    words = TopicPartition("g.words", 0)

    def __init__(self, directory: Path) -> None:
        self._directory, self._cluster, self.seconds = directory, MemoryCluster(), 0.0
        self._cluster.create_topics([("g.changelog", 1, 1, {"cleanup.policy": "compact"})])
        self._known = Changelog("g.changelog", self._cluster.topics(["g.changelog"])["g.changelog"].topic_id)

    def open(self) -> Stores:
        def open_store(number: int, changelog_id: str) -> TaskStore:
            return TaskStore(RocksBase(self._directory / str(number), changelog_id), String(), Json())

        inputs = {self.words.topic: "id"}
        return Stores("p: state 's'", self._known, inputs, self._cluster, open_store, lambda: self.seconds)

    def other_commits(self, key: str, at: int) -> None:
        position = positions_record(self._known, 0, {self.words.topic: Position("id", at)})
        for record in [*change_records("g.changelog", 0, {key.encode(): b"1"}), position]:
            self._cluster.append("g.changelog", record[1], record[2], partition=0)


def test_commit_of_another_worker_between_offsets_and_changelog_ends_not_this_one(tmp_path: Path) -> None:
    """A worker that was frozen there has old offsets: it asks again, and has those of the state then, or is fenced."""
    task = OneTask(tmp_path)
    words, stores = task.words, task.open()
    task.other_commits("a", 1)
    with pytest.raises(NotRestored, match=r"it is at g\.words\[0\]@1, but the group is at 0: asking again"):
        stores.restore({words: 0}, [words])
    task.other_commits("b", 2)
    with pytest.raises(NotRestored, match=r"it is at g\.words\[0\]@2, but the group is at 1: asking again"):
        stores.restore({words: 1}, [words])
    stores.restore({words: 2}, [words])
    assert dict(stores.by_partition[0].range()) == {"a": 1, "b": 1}
    with pytest.raises(NotRestored):
        stores.restore({words: 1}, [words])
    with pytest.raises(InputLost, match=r"it is at g\.words\[0\]@2, but the group is at 1: stop all workers"):
        stores.restore({words: 1}, [words])
    stores.close()


def test_kept_state_whose_positions_cannot_be_read_is_read_again_from_its_changelog(tmp_path: Path) -> None:
    task = OneTask(tmp_path)
    task.other_commits("a", 1)
    kept = RocksBase(tmp_path / "0", task._known.topic_id)
    kept.apply({b"b": b"2", POSITIONS_KEY: b"[1, 2]"})
    kept.note(2)
    kept.close()
    stores = task.open()
    stores.restore({task.words: 1}, [task.words])
    assert dict(stores.by_partition[0].range()) == {"a": 1}
    stores.close()


def test_state_restored_again_before_its_first_record_is_committed_has_none_yet(tmp_path: Path) -> None:
    task = OneTask(tmp_path)
    words, stores = task.words, task.open()
    for _ in range(2):  # its commit fails, and the membership is lost
        stores.restore({words: 2}, [words])
        assert stores.unplaced == {words: 2}
        stores.suspect()
    stores.restore({words: 2}, [words])
    with pytest.raises(InputLost, match="with id other: it was deleted"):
        stores.check_begun({0: "other"})
    stores.committed(stores.unplaced)
    assert stores.unplaced == {}
    stores.check_begun({0: "other"})
    stores.close()


def test_state_that_has_begun_at_the_start_is_not_taken_for_lost_later(tmp_path: Path) -> None:
    task = OneTask(tmp_path)
    words, stores = task.words, task.open()
    stores.restore({words: 0}, [words])
    stores.check_begun({0: "other"})
    stores.committed({words: 3})
    stores.check_begun({0: "other"})
    assert stores.unplaced == {}
    stores.close()


@pytest.mark.parametrize(("seconds", "expected"), [(-10, {"a": 1, "gone": 1}), (10, {"a": 1})])
def test_store_of_a_worker_away_longer_than_tombstones_are_kept_is_read_again(
    seconds: int, expected: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, now = OneTask(tmp_path), time.time()
    words, stores = task.words, task.open()
    task.other_commits("a", 1)
    stores.restore({words: 1}, [words])
    # another worker has deleted this one meanwhile, and compaction has removed the tombstone
    stores.by_partition[0].base.apply({b"gone": b"1"})
    stores.suspect()
    monkeypatch.setattr(time, "time", lambda: now + CHECKPOINT_SECONDS + seconds)
    stores.restore({words: 1}, [words])
    assert dict(stores.by_partition[0].range()) == expected
    stores.close()


def restart_after_a_look(directory: Path) -> int | None:
    """A worker looks for the end of its changelog, and its commit is refused: another one had the task meanwhile.

    Returns what the next process of its slot then has of a key that only the other one has changed.
    """
    task = OneTask(directory)
    words, first = task.words, task.open()
    first.restore({words: 0}, [words])
    task.other_commits("a", 1)
    task.seconds += 60
    first.look()
    first.roll_back()
    first.close()
    task.other_commits("b", 2)
    second = task.open()
    second.restore({words: 2}, [words])
    found: int | None = second.by_partition[0].get("a")
    second.close()
    return found


def test_end_of_a_changelog_whose_commit_was_refused_is_not_noted(tmp_path: Path) -> None:
    assert restart_after_a_look(tmp_path) == 1


def test_mutation_that_notes_the_end_before_the_commit_is_known_loses_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Stores.look

    def look_and_note(self: Stores) -> None:
        look(self)
        for tp, end in self._ends.items():
            self.by_partition[tp.partition].base.note(end)

    monkeypatch.setattr(Stores, "look", look_and_note)
    assert restart_after_a_look(tmp_path) is None


def hold_markers_of_changelog() -> dict[str, int]:
    """One slot counts and dies; its commit's markers in the changelog come only after another slot has the task."""
    with TestDriver(counting(), slots=2) as driver:
        send(driver, ["a", "a"])
        driver.run()
        partition = TopicPartition("__ks.g.counts.changelog", next(r.partition for r in driver.read("g.words")))
        driver.cluster.faults.hold_markers(partition)
        send(driver, ["a"])
        driver.run()
        driver.crash()  # both: whichever has the task next restores it
        driver.restart()
        send(driver, ["a"])
        for _ in range(30):
            driver.step()
        assert [r.value for r in driver.read("g.counts")] == [1, 2, 3]  # it waits
        driver.advance(31)
        for _ in range(5):  # it joins again meanwhile
            driver.step()
        driver.cluster.faults.release_markers(partition)
        driver.run()
        assert [r.value for r in driver.read("g.counts")] == [1, 2, 3, 4]
        return driver.state("counts")


def test_store_is_not_restored_past_an_open_transaction(caplog: pytest.LogCaptureFixture) -> None:
    assert hold_markers_of_changelog() == {"a": 4}
    waits = [message for message in caplog.messages if "waits for the end of transactions" in message]
    command = "`kstreams transactions find-hanging --topic __ks.g.counts.changelog --bootstrap-servers 127.0.0.1:9092`"
    place = "count: state 'counts' waits for the end of transactions in __ks.g.counts.changelog[0]"
    assert waits == [f"{place}: {command} shows those that hang"]


def test_mutation_that_restores_to_the_last_stable_offset_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = MemoryCluster.ends

    def stable_ends(self: MemoryCluster, partitions: Any, *, committed: bool = True) -> Any:
        return ends(self, partitions)

    monkeypatch.setattr(MemoryCluster, "ends", stable_ends)
    with pytest.raises((AssertionError, InputLost)):
        hold_markers_of_changelog()


# Other deployments.


def without_state() -> ks.Graph:
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=String(), value=String(), partitions=2)
    counts = graph.topic("g.counts", key=String(), value=Json(), partitions=2)
    graph.map(words, to=counts, id="count")(lambda word: 0)
    return graph


def deploy(driver: TestDriver, graph: ks.Graph) -> None:
    """Replaces the graph of a driver whose processes are down."""
    driver._graph = graph
    driver.restart()


def test_deployment_without_the_state_is_noticed_by_the_next_one_with_it() -> None:
    with TestDriver(counting()) as driver:
        send(driver, WORDS)
        driver.run()
        driver.crash()
        deploy(driver, without_state())
        send(driver, ["z"])
        driver.run()
        driver.crash()
        deploy(driver, counting())
        with pytest.raises(InputLost, match=r"\]@\d+, but the group is at \d+: stop all workers"):
            driver.run()


def begins_empty(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "begins empty" in message]


def test_state_that_a_processor_is_given_later_begins_empty_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with TestDriver(without_state()) as driver:
        send(driver, ["a", "a"])
        driver.run()
        driver.crash()
        deploy(driver, counting())
        check_topics(driver._graph, driver.cluster)
        driver.run()
        for _ in range(2):  # it is not begun again after a death
            driver.crash()
            driver.restart()
            send(driver, ["a"])
            driver.run()
        assert driver.state("counts") == {"a": 2}
        assert begins_empty(caplog) == ["count: state 'counts' begins empty at g.words[0]@2"]


CHANGELOG = "__ks.g.counts.changelog"


def delete_changelog_while_workers_are_stopped(driver: TestDriver) -> None:
    """Counts, and deletes the changelog; `kstreams run` creates it again, before the workers start."""
    send(driver, ["a", "a"])
    driver.run()
    driver.crash()
    driver.cluster.faults.delete_topic(CHANGELOG)
    check_topics(driver._graph, driver.cluster)
    driver.restart()
    send(driver, ["a"])


def set_group(driver: TestDriver, at: int) -> list[str]:
    """What `kstreams recover reset` does for the task that has read; returns what it prints."""
    for slot in list(driver._workers):
        driver._kill(slot)
    driver.advance(60)
    nobody: Any = SimpleNamespace(describe=lambda _: {})
    moving = GraphPositions(driver._graph, "graph.py", driver._environment, nobody)
    partition = driver.read("g.words")[0].partition
    moves = moving.plan_reset("count", ResetTarget({TopicPartition("g.words", partition): at}))
    said = [*describe(moves), *moving.consequences(moves)]
    moving.move(moves)
    driver.restart()
    driver.run()
    return said


def test_changelog_deleted_while_workers_are_stopped_is_refused_until_it_is_reset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with TestDriver(counting()) as driver:
        old = driver.cluster.topics([CHANGELOG])[CHANGELOG].topic_id
        delete_changelog_while_workers_are_stopped(driver)
        new = driver.cluster.topics([CHANGELOG])[CHANGELOG].topic_id
        for _ in range(2):  # not at a later start either
            with pytest.raises(InputLost) as raised:
                driver.run()
            assert str(raised.value) == (
                f"count: state 'counts': its changelog {CHANGELOG}[0], with id {new}, is empty, and the state was in "
                f"the one with id {old}: it was deleted, and its contents are lost: set the group to the start "
                "(`kstreams recover reset --to-beginning`), so that the state is made again; or set it to where it is "
                "(`kstreams "
                "recover reset --to-offset g.words:0:2`, and so for the partitions of other workers), so that the "
                "state begins empty there"
            )
            driver.restart()
        assert ([r.value for r in driver.read("g.counts")], begins_empty(caplog)) == ([1, 2], [])
        assert set_group(driver, at=2) == [
            "count: g.words[0]: 2 -> 2, stays there",
            "count: the positions of g.words[1] stay",
            "count: its state begins empty at g.words[0]@2",
        ]
        assert driver.state("counts") == {"a": 1}
        assert begins_empty(caplog) == ["count: state 'counts' begins empty at g.words[0]@2"]


def test_state_whose_changelog_was_deleted_is_made_again_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with TestDriver(counting()) as driver:
        delete_changelog_while_workers_are_stopped(driver)
        set_group(driver, at=0)
        assert (driver.state("counts"), begins_empty(caplog)) == ({"a": 3}, [])


def send_and_delete(driver: TestDriver) -> None:
    """So that the first offset of each input is not 0."""
    send(driver, ["a", "b", "c", "d"])
    for tp, end in driver.cluster.ends([TopicPartition("g.words", number) for number in range(2)]).items():
        assert end
        driver.cluster.truncate(tp, end)


OF_TRANSACTIONS = {"init_transactions", "add_partition", "produce", "add_offsets", "send_offsets", "commit_transaction"}


def test_worker_that_dies_at_any_request_of_its_first_start_loses_no_state() -> None:
    """The record that a state is begun is committed with the first one of its changelog."""
    with TestDriver(counting()) as driver:
        send_and_delete(driver)
        driver.run()
        points = [point for point in driver.crash_points() if point.request in OF_TRANSACTIONS]
    assert {point.request for point in points} == OF_TRANSACTIONS
    for point in points:
        with TestDriver(counting()) as driver:
            send_and_delete(driver)
            driver.crash(point)
            driver.restart()
            send(driver, ["a"])
            driver.run()
            assert driver.state("counts") == {"a": 1}, point


def test_mutation_that_begins_a_state_without_a_record_takes_it_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    transact = ExactlyOnce._transact

    def without_changelog(self: ExactlyOnce, positions: Any, records: list[Any]) -> None:
        transact(self, positions, [record for record in records if record[0] != CHANGELOG])

    monkeypatch.setattr(ExactlyOnce, "_transact", without_changelog)
    with pytest.raises(InputLost):
        test_worker_that_dies_at_any_request_of_its_first_start_loses_no_state()


@pytest.mark.parametrize("on_disk", [False, True])
def test_partition_without_records_since_its_beginning_is_not_taken_for_lost(tmp_path: Path, on_disk: bool) -> None:
    """Commits of the other partitions note the ends of all changelogs, its first record included."""
    settings = ks.Settings(auto_offset_reset="latest", state_directory=tmp_path)
    with TestDriver(counting(on_disk, partitions=3), slots=2, settings=settings) as driver:
        send(driver, ["a", "b", "c", "d", "e", "f"])
        assert {record.partition for record in driver.read("g.words")} == {0, 1, 2}
        driver._down.add(1)
        driver.run()
        for _ in range(8):
            send(driver, ["a"])
            driver.advance(4)
            driver.run()
        driver.restart()
        send(driver, ["a", "b", "c"])
        for _ in range(5):
            driver.advance(5)
            driver.run()
        counted: dict[str, int] = {}
        for record in driver.read("g.counts"):
            counted[record.key] = max(record.value, counted.get(record.key, 0))
        assert counted == {"a": 9, "b": 1, "c": 1}


def test_first_record_of_a_state_asks_the_group_whose_the_partition_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was frozen before it would set the positions of another one back."""
    transacted: list[tuple[Any, list[Any]]] = []
    transact = ExactlyOnce._transact

    def noting(self: ExactlyOnce, positions: Any, records: list[Any]) -> None:
        if any(record[0] == CHANGELOG for record in records):
            transacted.append((positions, [record[3] for record in records if record[0] == CHANGELOG]))
        transact(self, positions, records)

    with TestDriver(without_state()) as driver:
        send(driver, ["a", "a"])
        driver.run()
        driver.crash()
        deploy(driver, counting())
        check_topics(driver._graph, driver.cluster)
        monkeypatch.setattr(ExactlyOnce, "_transact", noting)
        driver.run()
    offsets: dict[TopicPartition, int] = {}
    numbers: list[int] = []
    for positions, placed in transacted:
        offsets |= positions
        numbers += placed
    assert (offsets, sorted(numbers)) == ({TopicPartition("g.words", 0): 2, TopicPartition("g.words", 1): 0}, [0, 1])


def test_mutation_that_records_no_state_as_begun_begins_again_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Beginning, "_states", lambda *_: [])
    with pytest.raises(pytest.fail.Exception):
        test_changelog_deleted_while_workers_are_stopped_is_refused_until_it_is_reset(caplog)


def create_changelog_again(driver: TestDriver) -> tuple[str, str]:
    """Deletes the changelog and creates it again; returns its old and its new id."""
    topics = driver.cluster._broker.topics
    old = topics[CHANGELOG]
    driver.cluster.faults.delete_topic(CHANGELOG)
    check_topics(driver._graph, driver.cluster)
    for before, after in zip(old.partitions, topics[CHANGELOG].partitions, strict=True):
        after._sequences = before._sequences  # a broker takes any from a producer that is new to a partition
    return old.topic_id, topics[CHANGELOG].topic_id


def turn(driver: TestDriver, seconds: int) -> None:
    for _ in range(seconds):
        driver.advance(1)
        driver.step()


def of_another_changelog(ids: tuple[str, str]) -> str:
    return (
        f"count: state 'counts' is of another changelog: {CHANGELOG!r} had the id {ids[0]}, and has {ids[1]} now: it "
        f"was deleted and created again, and its contents are lost: stop all workers, delete {CHANGELOG!r} (`kstreams "
        "topics delete --processor`), and set the group to the start (`kstreams recover reset --to-beginning`), so "
        "that the state is "
        "made again"
    )


def stop_and_start_over(driver: TestDriver) -> None:
    """What the message asks an operator for."""
    for slot in list(driver._workers):
        driver._kill(slot)
    driver.cluster.faults.delete_topic(CHANGELOG)
    positions = driver.cluster._broker.groups["g.count"].positions
    positions.update(dict.fromkeys(positions, 0))
    check_topics(driver._graph, driver.cluster)
    driver.restart()
    driver.run()


@pytest.mark.parametrize("on_disk", [False, True])
def test_changelog_created_again_under_live_workers_is_refused_at_the_next_restore(
    on_disk: bool, tmp_path: Path
) -> None:
    """Live workers write on: the new changelog has what they changed since, at the offsets of the group."""
    with TestDriver(counting(on_disk), settings=ks.Settings(state_directory=tmp_path)) as driver:
        send(driver, ["a", "a", "a"])
        driver.run()
        ids = create_changelog_again(driver)
        send(driver, ["a"])
        driver.run()
        driver.crash()
        driver.restart()
        send(driver, ["a"])
        with pytest.raises(InputLost) as raised:
            driver.run()
        assert str(raised.value) == of_another_changelog(ids)
        assert [r.value for r in driver.read("g.counts")] == [1, 2, 3, 4]
        stop_and_start_over(driver)
        assert driver.state("counts") == {"a": 5}


def test_mutation_whose_positions_do_not_name_the_changelog_loses_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        stores, "positions_record", lambda changelog, *rest: positions_record(changelog._replace(topic_id=""), *rest)
    )
    with pytest.raises(pytest.fail.Exception):
        test_changelog_created_again_under_live_workers_is_refused_at_the_next_restore(False, tmp_path)


def test_changelog_created_again_is_noticed_while_workers_run() -> None:
    with TestDriver(counting()) as driver:
        send(driver, ["a", "a"])
        driver.run()
        ids = create_changelog_again(driver)
        driver.advance(31)
        send(driver, ["a"])
        with pytest.raises(InputLost) as raised:
            driver.run()
        assert str(raised.value) == of_another_changelog(ids)
        assert [r.value for r in driver.read("g.counts")] == [1, 2]


def test_changelog_created_again_is_noticed_at_a_rebalance() -> None:
    with TestDriver(counting(), slots=2) as driver:
        send(driver, ["a", "b", "c", "d"])
        driver.run()
        ids = create_changelog_again(driver)
        driver._kill(0)
        driver._down.add(0)
        send(driver, ["a", "b", "c", "d"])
        with pytest.raises(InputLost) as raised:
            turn(driver, 30)
        assert str(raised.value) == of_another_changelog(ids)


def test_directory_whose_changelog_was_created_again_and_is_empty_is_refused(tmp_path: Path) -> None:
    with TestDriver(counting(on_disk=True), settings=ks.Settings(state_directory=tmp_path)) as driver:
        send(driver, ["a", "a"])
        driver.run()
        driver.advance(60)
        send(driver, ["a"])
        driver.run()
        driver.crash()
        old, new = create_changelog_again(driver)
        partition = driver.read("g.words")[0].partition
        for _ in range(2):  # it is there still
            driver.restart()
            with pytest.raises(InputLost) as raised:
                driver.run()
            directory = tmp_path / "g" / "counts" / "0" / str(partition)
            assert str(raised.value) == (
                f"count: state 'counts': its changelog {CHANGELOG}[{partition}], with id {new}, is empty, and this "
                f"worker has the state of the one with id {old} in {directory}: the changelog's contents are lost: "
                "delete what this worker has, and set the group to the start (`kstreams recover reset "
                "--to-beginning`), so that the "
                "state is made again, or to where it is, so that the state begins empty there"
            )
        stop_and_start_over(driver)
        assert driver.state("counts") == {"a": 3}


def test_changelog_that_no_broker_knows_is_waited_for_and_then_ends_the_worker() -> None:
    with TestDriver(counting()) as driver:
        send(driver, ["a", "a"])
        driver.run()
        driver.crash()
        driver.cluster.faults.delete_topic(CHANGELOG)
        driver.restart()
        with pytest.raises(TopicError) as raised:
            turn(driver, 100)
        assert str(raised.value) == (
            f"count: state 'counts': no broker knows its changelog {CHANGELOG!r}: it was deleted, and its contents are "
            "lost: set the group to the start (`kstreams recover reset --to-beginning`), so that the state is made "
            "again"
        )


@pytest.mark.parametrize("on_disk", [False, True])
def test_changelog_whose_oldest_records_are_deleted_is_refused_unless_on_disk(on_disk: bool, tmp_path: Path) -> None:
    with TestDriver(counting(on_disk), settings=ks.Settings(state_directory=tmp_path)) as driver:
        send(driver, ["a", "a"])
        driver.run()
        driver.advance(60)
        send(driver, ["a"])
        driver.run()
        partition = driver.read("g.words")[0].partition
        driver.crash()
        driver.cluster.truncate(TopicPartition(CHANGELOG, partition), 2)
        driver.restart()
        send(driver, ["a"])
        if on_disk:
            driver.run()
            assert [r.value for r in driver.read("g.counts")] == [1, 2, 3, 4]
            return
        with pytest.raises(InputLost) as raised:
            driver.run()
        assert str(raised.value) == (
            f"count: state 'counts': the records of its changelog {CHANGELOG}[{partition}] before offset 2 were "
            f"deleted, and their contents are lost: stop all workers, delete {CHANGELOG!r} (`kstreams topics delete "
            "--processor`), and set the group to the start (`kstreams recover reset --to-beginning`), so that the "
            "state is "
            "made again"
        )


@pytest.mark.parametrize("batch", [False, True])
def test_value_that_the_changelog_refuses_is_a_dead_letter_and_changes_nothing(batch: bool) -> None:
    graph = ks.Graph("g", errors="g.errors")
    a, c = (graph.topic(f"g.{name}", value=Json(), partitions=1) for name in "ac")

    def number(value: Any, state: Any) -> int:
        state.put("n", state.get("n", 0) + 1)
        if value == "large":
            state.put("large", "x" * 2_000_000)
        seen: int = state.get("n")
        return seen

    function: Any = (lambda values, state: [number(value, state) for value in values]) if batch else number
    options: Any = {"id": "p", "state": ks.State("s"), "batch": batch}
    graph.map(a, to=c, **options)(function)
    with TestDriver(graph) as driver:
        for value in (1, "large", 2, 3):
            driver.send("g.a", value)
        driver.run()
        assert (driver.values("g.c"), driver.state("s")) == ([1, 2, 3], {"n": 3})
        (letter,) = driver.dead_letters()
        assert letter.value["exception_message"].startswith(
            "a record (2000077 bytes) is larger than topic '__ks.g.s.changelog' takes"
        )


def test_positions_that_another_version_wrote_end_the_worker() -> None:
    with TestDriver(counting()) as driver:
        send(driver, ["a"])
        driver.run()
        driver.crash()
        partition = driver.read("g.words")[0].partition
        driver.cluster.append(CHANGELOG, b'{"g.words":["x",1]}', POSITIONS_KEY, partition=partition)
        driver.restart()
        with pytest.raises(
            TopicError, match=r"\]@\d+ is not a record of positions: it names no changelog, or no inputs: run the newer"
        ):
            driver.run()


def test_input_that_was_created_again_is_refused() -> None:
    with TestDriver(counting()) as driver:
        send(driver, ["a", "a"])
        driver.run()
        driver.crash()
        driver.cluster.faults.delete_topic("g.words")
        driver.cluster.create_topics([("g.words", 2, 1, {})])
        driver.restart()
        send(driver, ["a"])
        with pytest.raises(InputLost, match=r"topic 'g\.words' was deleted and created again since"):
            driver.run()


# On disk.


def restored_from(driver: TestDriver) -> list[int]:
    """The offsets of the changelog at which the reads of the run to come begin."""
    begun: list[int] = []
    read = driver.cluster.read

    def note(tp: TopicPartition, start: int = 0, *arguments: Any, **options: Any) -> Any:
        if tp.topic.endswith(".changelog"):
            begun.append(start)
        return read(tp, start, *arguments, **options)

    driver.cluster.read = note  # type: ignore[assignment, method-assign]
    return begun


def counted_over_a_stop(directory: Path, between: Callable[[TestDriver], None]) -> tuple[list[int], dict[str, int]]:
    """Counts, ends all processes, and counts on: where the changelog is read from, and what is counted."""
    with TestDriver(counting(on_disk=True), settings=ks.Settings(state_directory=directory)) as driver:
        send(driver, ["a", "a", "b"])
        driver.run()
        driver.advance(60)  # the next commit notes the end of the changelog, and the one after that does not
        for _ in range(2):
            send(driver, ["a"])
            driver.run()
        for slot in list(driver._workers):
            driver._end(slot)
        between(driver)
        begun = restored_from(driver)
        driver.restart()
        send(driver, ["a", "b"])
        driver.run()
        return list(begun), driver.state("counts")


def test_restart_on_the_same_machine_reads_only_what_is_new(tmp_path: Path) -> None:
    begun, counts = counted_over_a_stop(tmp_path, lambda driver: None)
    assert (begun, counts) == ([6], {"a": 5, "b": 2})


@pytest.mark.parametrize("change", ["age", "changelog", "no note"])
def test_directory_that_is_too_old_or_of_another_changelog_is_read_again(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(_: TestDriver) -> None:
        if change == "age":
            monkeypatch.setattr(rocks, "CHECKPOINT_SECONDS", -1)
        elif change == "changelog":
            monkeypatch.setattr(RocksBase, "_read_note", lambda _: {"changelog": "other", "offset": 3, "time": 1e12})
        else:
            monkeypatch.setattr(RocksBase, "_read_note", lambda _: None)

    begun, counts = counted_over_a_stop(tmp_path, spoil)
    assert (begun, counts) == ([0, 0], {"a": 5, "b": 2})


def found_after_kills(path: Path, seed: int) -> list[tuple[dict[bytes, bytes], dict[bytes, bytes]]]:
    """Changes a store on disk as a changelog does, and kills its process.

    Kills it after each note and each third change. Returns, for each kill, what the next process has once it has read
    the changelog from the note on, and the model.
    """
    chance, changelog, found = random.Random(seed), list[dict[bytes, bytes | None]](), []
    model: dict[bytes, bytes] = {}
    base = RocksBase(path / "0", "id")
    for number in range(60):
        keys = chance.sample(range(20), chance.randrange(1, 6))
        changelog.append({b"%d" % key: None if chance.random() < 0.3 else b"%d" % number for key in keys})
        base.apply(changelog[-1])
        model |= {key: value for key, value in changelog[-1].items() if value is not None}
        for key in (key for key, value in changelog[-1].items() if value is None):
            model.pop(key, None)
        read = {key: value for key in (b"%d" % i for i in range(20)) if (value := base.get(key)) is not None}
        assert read == model
        if is_noted := chance.random() < 0.2:
            base.note(len(changelog))
        if not is_noted and number % 3:
            continue
        shutil.copytree(path / "0", path / f"killed-{number}")
        (path / f"killed-{number}" / "LOCK").unlink()
        restarted = RocksBase(path / f"killed-{number}", "id")
        for changes in changelog[restarted.noted :]:
            restarted.apply(changes)
        found.append((dict(restarted.range(b"", None)), dict(model)))
        restarted.close()
    base.close()
    return found


# with 2,000 bytes, some changes are written at once, and others are not
@pytest.mark.parametrize(
    "memory_bytes", [2_000, *(pytest.param(each, marks=pytest.mark.long) for each in (0, rocks.MEMORY_BYTES))]
)
def test_killed_process_leaves_all_that_its_note_stands_for(
    memory_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "MEMORY_BYTES", memory_bytes)
    found = found_after_kills(tmp_path, memory_bytes)
    assert [restarted for restarted, _ in found] == [model for _, model in found]


def test_mutation_that_notes_what_is_in_memory_only_loses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RocksBase._write

    def note_alone(base: RocksBase, note: bytes | None = None) -> None:
        unwritten, base._unwritten = (base._unwritten, {}) if note is not None else ({}, base._unwritten)
        write(base, note)
        base._unwritten |= unwritten

    monkeypatch.setattr(RocksBase, "_write", note_alone)
    found = found_after_kills(tmp_path, 1)
    assert [restarted for restarted, _ in found] != [model for _, model in found]


def test_directory_that_another_process_uses_is_left_to_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    held, others = RocksBase(tmp_path / "0", "id"), [RocksBase(tmp_path / "0", "id") for _ in range(2)]
    held.apply({b"a": b"1"})
    assert [other.get(b"a") for other in others] == [None, None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "0-2", "0-3"]
    in_use = "{} is in use by another process of this slot, which should have ended"
    assert caplog.messages == [in_use.format(tmp_path / name) for name in ("0", "0", "0-2")]
    for each in (held, *others):
        each.close()
    again = RocksBase(tmp_path / "0", "id")
    assert again.noted == 0
    again.close()


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"cannot be opened .* name another state_directory"):
        RocksBase(tmp_path / "file" / "0", "id")


def test_state_on_disk_without_rocksdict_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingSoftware, match=r"pip install 'kstreams_py\[rocksdb\]'"):
        RocksBase(tmp_path / "0", "id")


# What is given up in the middle of a step.


def numbering(kind: str, results: Callable[[list[Any]], Any], **options: Any) -> ks.Graph:
    """Counts the records of a batch, or of a generator, and returns what `results` makes of them."""
    graph = ks.Graph("g", errors="g.errors")
    a, c = (graph.topic(f"g.{name}", value=Json(), partitions=1) for name in "ac")

    def number(values: list[Any], state: Any) -> Any:
        for _ in values:
            state.put("n", state.get("n", 0) + 1)
        return results(values)

    def generate(value: Any, state: Any) -> Iterator[Any]:
        try:
            yield results([value])
        finally:
            state.put("n", state.get("n", 0) + 1)

    chosen: Any = {"id": "p", "batch": kind == "batch", "state": ks.State("s"), **options}
    graph.map(a, to=c, **chosen)(number if kind == "batch" else generate)
    return graph


def placed(number: int) -> list[tuple[str, bytes | None]]:
    """The headers of an event that follows the one before it."""
    prev: list[tuple[str, bytes | None]] = [(PREV_HEADER, b"%d" % (number - 1))] if number > 1 else []
    return [(ID_HEADER, b"%d" % number), *prev]


@pytest.mark.parametrize("kind", ["map", "generator", "ordered"])
def test_changes_of_an_intake_are_committed_before_they_are_many(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without outputs that would end the intake: 200 steps have 52 MB."""
    records, sizes = Stores.records, list[int]()

    def note(self: Stores, positions: Any) -> Any:
        sizes.append(self.size)
        return records(self, positions)

    monkeypatch.setattr(Stores, "records", note)
    graph = ks.Graph("g", errors="g.errors")
    a, c = (graph.topic(f"g.{name}", key=String(), value=Json(), partitions=1) for name in "ac")

    def put(value: int, state: Any) -> None:
        state.put(f"k{value}", "x" * (1 << 18))

    def generate(value: int, state: Any) -> Iterator[None]:
        put(value, state)
        yield None

    functions: Any = {"map": put, "generator": generate, "ordered": put}
    declare: Any = graph.ordered if kind == "ordered" else graph.map
    declare(a, to=c, id="p", state=ks.State("s"))(functions[kind])
    with TestDriver(graph) as driver:
        for value in range(200):
            driver.send("g.a", value, key="o", headers=placed(value + 1))
        driver.run()
        assert len(driver.state("s")) == 200
        assert max(sizes) < CHANGES_BYTES + (1 << 19)


def test_batch_that_is_run_again_counts_once() -> None:
    failures = [OSError("once")]

    def results(values: list[Any]) -> list[Any]:
        return [failures.pop() if failures else value for value in values]

    with TestDriver(numbering("batch", results, retry=ks.Retry(on=OSError))) as driver:
        for value in range(3):
            driver.send("g.a", value)
        driver.run()
        driver.advance(3_600)
        driver.run()
        assert (driver.values("g.c"), driver.state("s")) == ([0, 1, 2], {"n": 3})


def test_batch_of_another_length_that_stops_the_worker_counts_nothing() -> None:
    too_few = [True]
    with TestDriver(numbering("batch", lambda values: values[1:] if too_few else values)) as driver:
        driver.send("g.a", 0)
        with pytest.raises(GraphError, match="returned 0 for a batch of 1"):
            driver.run()
        assert driver.state("s") == {}
        too_few.clear()
        driver.restart()
        driver.run()
        assert driver.state("s") == {"n": 1}


def test_generator_whose_output_cannot_be_written_changes_nothing_later() -> None:
    with TestDriver(numbering("generator", lambda values: object() if values == ["bad"] else values[0])) as driver:
        for value in (1, "bad", 2):
            driver.send("g.a", value)
        driver.run()
        gc.collect()
        driver.send("g.a", 3)
        driver.run()
        assert (driver.values("g.c"), driver.state("s")) == ([1, 2, 3], {"n": 3})


@pytest.mark.parametrize("request_name", ["produce", "send_offsets", "commit_transaction"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_alts_whose_input_has_an_aborted_record_is_at_its_offsets_after_a_crash(request_name: str, nth: int) -> None:
    """Markers are passed without a step: the choices after them name other offsets than the last step's."""
    graph = ks.Graph("g", errors="g.errors")
    both_kinds(graph, "alts")
    with TestDriver(graph) as driver:
        driver.send("g.a", 0)
        driver.send("g.b", 1)
        driver.run()
        other = driver.cluster.producer(ProducerMode(True, -1, True), "other", None)
        other.init_transactions()
        other.begin_transaction()
        other.write([("g.a", b"9", None, 0, None, None, 0, None)])
        other.abort_transaction()
        driver.step()
        driver.send("g.a", 3)
        try:
            driver.crash(request_name, nth=nth, applied=False)
        except ks.UserMistake:  # this run has no such request: it is done
            assert driver.state("s") == {"n": 3}
            return
        driver.restart()
        driver.run()
        assert ([value[1] for value in driver.values("g.c")], driver.state("s")) == ([1, 2, 3], {"n": 3})


def test_keys_that_come_and_go_take_no_memory() -> None:
    base = MemoryBase()
    for number in range(10_000):
        base.apply({b"%d" % number: b"1"})
        base.apply({b"%d" % number: None})
    assert len(base._new) <= 1_001
    assert list(base.range(b"", None)) == []


def test_end_of_the_changelog_is_noted_once_offsets_show_that_nobody_had_the_task(tmp_path: Path) -> None:
    """What another worker writes after the look is read again by the next process of the slot."""
    with TestDriver(counting(on_disk=True), settings=ks.Settings(state_directory=tmp_path)) as driver:
        send(driver, ["a"])
        driver.run()
        driver.advance(60)
        ends = driver.cluster.ends(changelogs := [TopicPartition("__ks.g.counts.changelog", n) for n in range(2)])
        send(driver, ["a"])
        driver.run()
        assert sum(driver.cluster.ends(changelogs).values()) > sum(ends.values())
        stores = driver._workers[0][0].committer.stores
        assert stores is not None
        assert [stores.by_partition[n].base.noted for n in range(2)] == [ends[tp] for tp in changelogs]


def test_command_shows_all_keys_or_one_and_names_what_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = counting()
    with TestDriver(graph) as driver:
        send(driver, ["b", "a", "é", "a"])
        driver.run()

        @contextmanager
        def opened(*_: object) -> Iterator[tuple[ks.Graph, Any]]:
            yield graph, driver._environment

        def show(*arguments: str) -> list[Any]:
            ran = CliRunner().invoke(app, ["state", "show", "g", *arguments], catch_exceptions=False)
            assert ran.exit_code == 0
            return [json.loads(line) for line in ran.output.splitlines()]

        monkeypatch.setattr(cli_state, "open_graph", opened)
        both: list[dict[str, Any]] = [{"key": "a", "value": 2}, {"key": "b", "value": 1}, {"key": "é", "value": 1}]
        assert show("counts") == both
        assert [show("counts", each["key"]) for each in both] == [[each] for each in both]
        with pytest.raises(SettingsError, match=r"^state 'counts' has no key 'c': leave it out to see all$"):
            show("counts", "c")
        with pytest.raises(GraphError, match=r"^graph 'g' has no state 'count': did you mean counts\?"):
            show("count")


def test_code_of_the_document_counts() -> None:
    text = (Path(__file__).parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    with TestDriver(names["graph"]) as driver:
        for word in ("a", "b", "a"):
            driver.send("words.in", word, key=word)
        driver.run()
        assert (driver.values("words.counts"), driver.state("counts")) == ([1, 1, 2], {"a": 2, "b": 1})


def test_key_that_is_not_that_of_the_records_is_warned_of_with_its_partitions(caplog: pytest.LogCaptureFixture) -> None:
    with TestDriver(counting(), partitions=2) as driver:
        for partition in (0, 1, 1):
            driver.send("g.words", "a", key="b", partition=partition)
        driver.send("g.words", "c", key="c")
        driver.run()
        caplog.clear()
        assert driver.state("counts") == {"a": 2, "c": 1}
    (warned,) = caplog.messages
    assert warned == (
        "count: key 'a' (str) of the state has a value in each of partitions 0, 1, each made from the records of its "
        "partition only: the records do not have the key of the state, or partitions were added to the input: "
        "write the records to a new topic with the key of the state, and read the new topic from the start"
    )


def test_value_of_a_state_that_its_serde_does_not_take_is_named_as_one() -> None:
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=ks.String(), value=ks.String())

    def count(word: str, state: Any) -> None:
        state.put(word, {1})

    graph.map(words, to=graph.topic("g.counts"), id="count", state=ks.State("counts"))(count)
    with TestDriver(graph) as driver:
        driver.send("g.words", "a")
        driver.run()
        (letter,) = driver.dead_letters()
    assert letter.value["exception_message"] == (
        "the value of key 'a' (str) of a state: {1} (set): set is not JSON: give dict, list, str, int, float, bool or "
        "None (ks.State(..., value=))"
    )
