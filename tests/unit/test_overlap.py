"""Calls that overlap: outputs and offsets in order, the finished prefix alone is committed, all of it bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import GraphError, InputLost
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.processing.runners import overlapping as overlapping_runner
from kstreams_py.processing.tasks import tasks
from kstreams_py.processing.worker import Worker, open_worker
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import MemoryRegistry, TestDriver
from tests.unit.held_calls import HeldCalls
from tests.unit.plant import A0, A1, ALO, AMO, EO, Plant, fail_next_write, numbers

GUARANTEES = pytest.mark.parametrize("guarantee", [EO, ALO])


class Overlap(Plant):
    """A plant whose calls overlap, and end when the test says so."""

    def __init__(
        self,
        kind: str = "map",
        function: Callable[..., Any] | None = None,
        *,
        order: str = "none",
        concurrency: int = 4,
        **options: Any,
    ) -> None:
        super().__init__(kind, function, order=order, concurrency=concurrency, **options)
        self.calls: list[HeldCalls] = []

    def worker(self, slot: int = 0) -> Worker:
        environment = Environment(
            self.cluster,
            MemoryRegistry(),
            self.settings,
            self.clock,
            self.clock.advance,
            self.outputs_held,
            open_calls=self._open,
        )
        return open_worker(self.graph, self.processor, slot, environment, Event())

    def _open(self, processor: Any, finish: Any) -> HeldCalls:
        self.calls.append(HeldCalls(processor, finish))
        return self.calls[-1]

    @property
    def held(self) -> HeldCalls:
        return self.calls[-1]

    @property
    def all_calls(self) -> list[Any]:
        """The first arguments of all calls that were made, of all workers."""
        return [name for calls in self.calls for name in calls.made]

    def hold_on(self) -> None:
        """From now on time passes as the worker waits for calls."""
        collect = self.held.collect

        def wait() -> Any:
            self.clock.advance(1)
            return collect()

        self.held.collect = wait  # type: ignore[method-assign]

    def run_all(self, worker: Worker) -> None:
        """Runs a worker whose calls end at once, until it has nothing to do."""
        self.held.lets_all_end = True
        self.run(worker)

    def turn(self, worker: Worker, *ends: str) -> None:
        """Ends these calls, and runs a turn, and another that commits what is done."""
        self.held.end(*(name.encode() for name in ends))
        worker.run_turn()
        self.clock.advance(0.2)
        worker.run_turn()


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def raise_for(*values: str, error: type[Exception] = LookupError) -> Callable[[bytes], bytes]:
    """A function that raises for these values, and returns any other."""

    def copy(value: bytes) -> bytes:
        if value.decode() in values:
            raise error(value.decode())
        return value

    return copy


@GUARANTEES
def test_outputs_and_offsets_wait_for_the_earlier_calls_of_their_partition(guarantee: Guarantee) -> None:
    plant = Overlap(guarantee=guarantee)
    plant.feed("a", "0", "1", "2")
    worker = plant.started()
    plant.turn(worker)
    assert plant.held.under_way == [b"0", b"1", b"2"]
    plant.turn(worker, "2", "1")
    assert (plant.out(), plant.saved) == ([], {})
    plant.turn(worker, "0")
    assert (plant.out(), plant.saved) == (["0", "1", "2"], {A0: 3})
    assert plant.held.made == [b"2", b"1", b"0"]


@GUARANTEES
def test_finished_prefix_is_committed_while_a_later_call_is_under_way(guarantee: Guarantee) -> None:
    plant = Overlap(guarantee=guarantee)
    plant.feed("a", "0", "1", "2")
    worker = plant.started()
    plant.turn(worker)
    plant.turn(worker, "0", "2")
    assert (plant.out(), plant.saved) == (["0"], {A0: 1})


def test_slow_call_of_one_partition_keeps_no_other_waiting() -> None:
    plant = Overlap(order="partition")
    plant.feed("a", "0", "1")
    plant.feed("a", "p", "q", partition=1)
    worker = plant.started()
    plant.turn(worker)
    assert sorted(plant.held.under_way) == [b"0", b"p"]
    plant.turn(worker, "p")
    plant.turn(worker, "q")
    assert (plant.out(), plant.saved) == (["p", "q"], {A1: 2})
    assert plant.held.under_way == [b"0"]


def test_calls_of_a_key_are_in_order_and_of_others_overlap() -> None:
    plant = Overlap(order="key")
    for value, key in (("0", b"k"), ("1", b"l"), ("2", b"k"), ("3", None), ("4", None)):
        plant.cluster.append("a", value.encode(), key, partition=0)
    worker = plant.started()
    plant.turn(worker)
    assert plant.held.under_way == [b"0", b"1", b"3", b"4"]
    plant.turn(worker, "0", "3")
    assert plant.held.under_way == [b"1", b"4", b"2"]


def test_new_records_are_called_while_an_earlier_call_is_under_way() -> None:
    plant = Overlap()
    plant.feed("a", "0")
    worker = plant.started()
    plant.turn(worker)
    plant.feed("a", "1", "2")
    plant.turn(worker)
    assert plant.held.under_way == [b"0", b"1", b"2"]


@GUARANTEES
def test_dead_letter_is_in_the_order_of_its_partition(guarantee: Guarantee) -> None:
    plant = Overlap(function=raise_for("1"), guarantee=guarantee)
    plant.feed("a", "0", "1", "2")
    worker = plant.started()
    plant.turn(worker)
    plant.turn(worker, "1", "2")
    assert (plant.dead_letter_count, plant.saved) == (0, {})
    plant.turn(worker, "0")
    assert (plant.out(), plant.dead_letter_count, plant.saved) == (["0", "2"], 1, {A0: 3})


@pytest.mark.parametrize("order", ["partition", "key"])
def test_call_behind_one_that_raised_is_made_once_that_is_settled(order: str) -> None:
    plant = Overlap(function=raise_for("1"), order=order)
    for value in ("0", "1", "2"):
        plant.cluster.append("a", value.encode(), b"1" if value in "12" or order == "partition" else b"0", partition=0)
    worker = plant.started()
    plant.turn(worker)
    if order == "partition":
        plant.turn(worker, "0")
    plant.turn(worker, "1")
    if order == "key":
        assert plant.held.under_way == [b"0"]
        plant.turn(worker, "0")
    plant.turn(worker)
    plant.turn(worker, "2")
    assert (plant.out(), plant.dead_letter_count, plant.saved) == (["0", "2"], 1, {A0: 3})


def test_value_that_cannot_be_decoded_is_a_dead_letter_in_its_place() -> None:
    graph = ks.Graph("g", errors="dead")
    graph.topic("a", value=ks.Json())
    graph.topic("b", value=ks.Json())

    @graph.map("a", to="b", concurrency=8, order="none")
    async def double(value: int) -> int:
        await asyncio.sleep(0.001 * (9 - value))
        return 2 * value

    with TestDriver(graph, partitions=1) as driver:
        for number in range(3):
            driver.send("a", number)
        driver.cluster.append("a", b"{", partition=0)
        for number in range(3, 6):
            driver.send("a", number)
        driver.run()
        assert driver.values("b") == [0, 2, 4, 6, 8, 10]
        (letter,) = driver.dead_letters()
        assert letter.value["exception_class"] == "kstreams_py.errors.DecodeError"


@GUARANTEES
def test_step_run_again_holds_its_partition_and_what_ran_ahead_is_not_called_again(guarantee: Guarantee) -> None:
    away = ["1"]

    def ask(value: bytes) -> bytes:
        if value.decode() in away:
            raise ConnectionError("away")
        return value

    plant = Overlap(function=ask, guarantee=guarantee, retry=ks.Retry(attempts=9, backoff="1s..1s"))
    plant.feed("a", "0", "1", "2")
    plant.feed("a", "p", partition=1)
    worker = plant.started()
    plant.turn(worker)
    plant.turn(worker, "2", "1", "0")
    assert (plant.out(), worker.is_retrying) == (["0"], True)
    plant.turn(worker, "p")
    assert plant.out() == ["0", "p"]
    for _ in range(2):
        plant.clock.advance(1)
        worker.run_turn()
        plant.turn(worker, "1")
        away.clear()
    plant.turn(worker)
    assert (plant.out(), plant.saved, worker.is_retrying) == (["0", "p", "1", "2"], {A0: 3, A1: 1}, False)
    assert plant.held.made == [b"2", b"1", b"0", b"p", b"1", b"1"]


@GUARANTEES
def test_stop_commits_the_prefix_of_each_partition_and_waits_for_calls_under_way(guarantee: Guarantee) -> None:
    plant = Overlap(function=raise_for("1", error=ks.Stop), order="partition", guarantee=guarantee)
    plant.feed("a", "0", "1", "2")
    plant.feed("a", "p", "q", partition=1)
    worker = plant.started()
    plant.turn(worker)
    plant.held.end(b"0", b"1", b"p")
    assert plant.held.under_way == [b"q"]
    plant.held.lets_all_end = True
    plant.turn(worker)
    worker.finish()
    assert (sorted(plant.out()), plant.saved) == (["0", "p", "q"], {A0: 1, A1: 2})
    assert worker._stopping.is_set()


def test_at_most_once_stop_counts_calls_under_way_as_done_and_gives_the_others_back() -> None:
    plant = Overlap(function=raise_for("1", error=ks.Stop), order="partition", guarantee=AMO)
    plant.feed("a", "0", "1", "2")
    plant.feed("a", "p", "q", "r", partition=1)
    worker = plant.started()
    plant.turn(worker)
    plant.held.end(b"0", b"p", b"1")
    assert plant.held.under_way == [b"q"]
    plant.held.later = [b"q"]
    plant.turn(worker)
    worker.finish()
    assert (sorted(plant.out()), plant.saved) == (["0", "p", "q"], {A0: 1, A1: 2})
    assert plant.held.made == [b"0", b"p", b"1", b"q"]


@GUARANTEES
def test_drain_waits_for_calls_under_way_and_makes_no_others(guarantee: Guarantee) -> None:
    plant = Overlap(concurrency=2, guarantee=guarantee)
    plant.feed("a", "0", "1", "2", "3")
    worker = plant.started()
    plant.turn(worker)
    assert plant.held.under_way == [b"0", b"1"]
    plant.held.lets_all_end = True
    worker.finish()
    assert (plant.held.made, plant.out(), plant.saved) == ([b"0", b"1"], ["0", "1"], {A0: 2})


def test_drain_gives_up_calls_that_do_not_end_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    plant = Overlap()
    plant.feed("a", "0", "1")
    worker = plant.started()
    plant.turn(worker)
    plant.held.end(b"0")
    plant.hold_on()
    worker.finish()
    assert (plant.out(), plant.saved) == (["0"], {A0: 1})
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "p: calls under way are given up: they will be made again"
    ]


@pytest.mark.parametrize("guarantee", [EO, ALO, AMO])
def test_partitions_that_are_revoked_abandon_their_calls(guarantee: Guarantee) -> None:
    plant = Overlap(order="partition", guarantee=guarantee)
    plant.feed("a", "0", "1")
    plant.feed("a", "p", partition=1)
    worker = plant.started()
    plant.turn(worker)
    assert sorted(plant.held.under_way) == [b"0", b"p"]
    plant.held.lets_all_end = guarantee is AMO  # nobody else would run them
    second = plant.worker(slot=1)
    second.start()
    for _ in range(6):
        worker.run_turn()
        second.run_turn()
        plant.clock.advance(0.2)
        for held in plant.calls:
            held.lets_all_end = True
    assert sorted(plant.out()) == ["0", "1", "p"]
    assert plant.calls[0].abandoned == (0 if guarantee is AMO else 2)


@GUARANTEES
def test_output_that_its_topic_refuses_is_a_dead_letter_of_its_own_step(guarantee: Guarantee) -> None:
    def refused(value: bytes) -> ks.Out | bytes:
        return ks.Out(value, key=None) if value == b"2" else ks.Out(value, key=b"k")

    graph = ks.Graph("g", errors="dead", guarantee=guarantee)
    graph.topic("a")
    graph.topic("x", config={"cleanup.policy": "compact"})
    graph.map("a", to="x", concurrency=4, order="none")(refused)
    with TestDriver(graph, partitions=1) as driver:
        for number in range(6):
            driver.send("a", b"%d" % number)
        driver.run()
        assert driver.values("x") == [b"0", b"1", b"3", b"4", b"5"]
        (letter,) = driver.dead_letters()
        assert [(each["topic"], each["offset"]) for each in letter.value["inputs"]] == [("a", 2)]


def test_at_most_once_refused_output_without_a_hash_is_a_dead_letter_of_its_step() -> None:
    graph = ks.Graph("g", errors="dead", guarantee="at_most_once", hash_header=False)
    graph.topic("a")
    graph.topic("x", config={"cleanup.policy": "compact"})

    @graph.map("a", to="x", concurrency=4)
    def refused(value: bytes) -> ks.Out:
        return ks.Out(value, key=None if value == b"2" else b"k")

    with TestDriver(graph, partitions=2) as driver:
        for number in range(6):
            driver.send("a", b"%d" % number, partition=number % 2)
        driver.run()
        assert sorted(driver.values("x")) == [b"0", b"1", b"3", b"4", b"5"]
        (letter,) = driver.dead_letters()
        assert [(each["partition"], each["offset"]) for each in letter.value["inputs"]] == [(0, 1)]


# At most once: no call is made twice.


def test_at_most_once_worker_ended_by_an_error_gives_back_no_step_under_way(caplog: pytest.LogCaptureFixture) -> None:
    plant = Overlap(guarantee=AMO, order="partition")
    plant.feed("a", "0", "1", "2")
    worker = plant.started()
    plant.turn(worker)
    plant.turn(worker, "0")
    assert (plant.held.under_way, plant.saved) == ([b"1"], {A0: 3})
    worker.consumer.consume = raising(InputLost("gone"))  # type: ignore[method-assign]
    plant.hold_on()
    with pytest.raises(InputLost):
        worker._run_turns()
    assert plant.saved == {A0: 2}
    assert "p: calls under way are given up: outputs are lost" in caplog.messages
    plant.run_all(plant.worker())
    assert (plant.out(), plant.all_calls) == (["0", "2"], [b"0", b"2"])


def test_at_most_once_revocation_in_a_failed_write_gives_back_no_step_under_way() -> None:
    plant = Overlap(guarantee=AMO, order="partition")
    plant.feed("a", "0", "1")
    plant.feed("a", "p", "q", partition=1)
    worker = plant.started()
    plant.turn(worker)
    assert sorted(plant.held.under_way) == [b"0", b"p"]
    fail_next_write(worker)
    plant.hold_on()
    plant.held.later, plant.held.lets_all_end = [b"p", b"0"], True
    second = plant.worker(slot=1)
    second.start()
    for _ in range(12):
        worker.run_turn()
        second.run_turn()
        plant.clock.advance(0.2)
        for held in plant.calls:
            held.lets_all_end = True
    assert sorted(plant.out()) == ["0", "1", "p", "q"]
    assert sorted(plant.all_calls) == [b"0", b"1", b"p", b"q"]


def test_at_most_once_drain_runs_committed_steps_in_time_and_gives_the_rest_back() -> None:
    plant = Overlap(guarantee=AMO, order="partition")
    plant.feed("a", *numbers(0, 9))
    worker = plant.started()
    plant.turn(worker)
    assert (plant.held.under_way, plant.saved) == ([b"0"], {A0: 9})
    plant.hold_on()
    plant.held.lets_all_end = True
    collect, seconds = plant.held.collect, plant.settings.drain_timeout_ms / 1000

    def end_one() -> Any:
        plant.clock.advance(seconds / 10)
        plant.held.lets_all_end = False
        plant.held.later = plant.held.under_way[:1]
        return collect()

    plant.held.collect = end_one  # type: ignore[method-assign]
    worker.finish()
    made = [name.decode() for name in plant.held.made]
    assert 2 <= len(made) <= 4
    assert (made, plant.out(), plant.saved) == (numbers(0, len(made)), made, {A0: len(made)})


# A call that is slow, or ends what it should not.


@pytest.mark.parametrize("order", ["partition", "key", "none"])
def test_partition_whose_steps_fill_the_window_keeps_no_other_waiting(order: str) -> None:
    plant = Overlap(order=order)
    plant.feed("a", *numbers(0, 200))
    worker = plant.started()
    worker.intakes.pace.fetch = 8
    for _ in range(30):
        plant.turn(worker)
    plant.feed("a", *"pqrs", partition=1)
    for _ in range(20):
        plant.turn(worker)
        for name in {b"p", b"q", b"r", b"s"} & {*plant.held.under_way}:
            plant.held.end(name)
        plant.held.later = [each for each in plant.held.under_way[1:2] if order != "partition"]
    assert plant.saved.get(A1) == 4


@GUARANTEES
def test_stop_beside_a_call_that_does_not_end_waits_for_a_part_of_the_drain_alone(guarantee: Guarantee) -> None:
    plant = Overlap(function=raise_for("0", error=ks.Stop), order="partition", guarantee=guarantee)
    plant.feed("a", "0")
    plant.feed("a", "p", partition=1)
    worker = plant.started()
    plant.turn(worker)
    plant.hold_on()
    before = plant.clock()
    plant.turn(worker, "0")
    assert worker._stopping.is_set()
    assert plant.clock() - before <= plant.settings.drain_timeout_ms / 1000
    worker.finish()
    assert plant.saved == {}


def test_chain_with_two_failures_goes_on_only_after_both_are_settled() -> None:
    away = {b"k1"}

    class Flaky:
        def deserialize(self, data: bytes) -> bytes:
            if data in away:
                raise ConnectionError("the registry is away")
            return data

        serialize = staticmethod(bytes)

    plant = Overlap(
        function=raise_for("k0"), order="key", retry=ks.Retry(on=ConnectionError, attempts=9, backoff="1s..1s")
    )
    plant.processor = replace(
        plant.processor, inputs=tuple(replace(topic, value=Flaky()) for topic in plant.processor.inputs)
    )
    for value in (b"k0", b"z", b"k1", b"k2"):
        plant.cluster.append("a", value, value[:1], partition=0)
    worker = plant.started()
    plant.turn(worker)
    plant.turn(worker, "k0")
    plant.turn(worker)
    assert plant.held.under_way == [b"z"]
    away.clear()
    plant.held.lets_all_end = True
    for _ in range(4):
        plant.clock.advance(1)
        plant.turn(worker)
    assert (plant.held.made, plant.out()) == ([b"k0", b"z", b"k1", b"k2"], ["z", "k1", "k2"])


def test_bytes_of_steps_that_ran_ahead_in_a_partition_that_waits_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlapping_runner, "WINDOW_BYTES", 3_000)
    plant = Overlap(function=raise_for("0", error=ConnectionError), retry=ks.Retry(backoff="1h..1h"))
    plant.feed("a", "0", "1" * 2_000)
    worker = plant.started()
    plant.turn(worker)
    plant.turn(worker, "0", "1" * 2_000)
    assert worker.is_retrying
    plant.feed("a", *"pqrs", partition=1)
    plant.turn(worker)
    assert plant.held.under_way == [b"p", b"q", b"r", b"s"]


def test_function_that_reads_the_key_as_its_output_is_made_awaits_not_itself() -> None:
    graph = ks.Graph("g", errors="dead")
    graph.topic("a", key=ks.String())
    graph.topic("b")

    @graph.map("a", to="b", concurrency=2)
    def lazy(value: bytes, step: ks.Step) -> ks.Out:
        headers: Any = (("key", step.key.encode()) for _ in range(1))
        return ks.Out(value, headers=headers)

    with TestDriver(graph, partitions=1) as driver:
        driver.send("a", b"v", key="k")
        driver.run()
        assert [record.headers for record in driver.read("b")] == [(("key", b"k"),)]


def test_alts_that_journals_its_choices_keeps_its_calls_at_once_where_they_are_slow() -> None:
    plant = Overlap("alts", order="none", concurrency=16)
    worker = plant.started()
    worker.intakes.pace.ran(1, 3.0)
    assert (worker.intakes.pace.fetch, worker.intakes.pace.take) == (32, 32)


# Bounds.


def test_steps_under_way_and_steps_that_are_ready_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "BUFFER_LIMIT", 50)
    plant = Overlap(concurrency=2)
    plant.feed("a", *numbers(0, 500))
    worker = plant.started()
    worker.intakes.pace.fetch = 4
    for _ in range(50):
        plant.turn(worker)
    rest = worker.tasks.rest
    assert rest is not None
    assert len(rest.steps) == 4
    assert 50 <= len(worker.tasks._ready) <= 50 + 4


def test_steps_under_way_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapping_runner, "WINDOW_BYTES", 2_000)
    plant = Overlap(concurrency=50)
    plant.feed("a", *["v" * 600 + str(number) for number in range(9)])
    worker = plant.started()
    plant.turn(worker)
    assert len(plant.held.under_way) == 3


def test_outputs_that_wait_count_as_bytes_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapping_runner, "WINDOW_BYTES", 3_000)
    plant = Overlap(function=lambda value: value * 2_000, concurrency=2)
    plant.feed("a", *"01234")
    worker = plant.started()
    plant.turn(worker)
    plant.turn(worker, "1")
    plant.turn(worker, "2")
    assert plant.held.under_way == [b"0", b"3"], "these two were opened before the output of 1 was known"
    plant.feed("a", *"56789")
    for _ in range(3):
        plant.turn(worker)
    assert plant.held.under_way == [b"0", b"3"]
    plant.turn(worker, "0", "3")
    plant.turn(worker)
    assert plant.out()[:4] == [str(number) * 2_000 for number in range(4)]


def test_partition_that_is_backed_up_is_paused_until_half_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "BUFFER_LIMIT", 8)
    plant = Overlap(order="partition", concurrency=1 + 1)
    plant.feed("a", *numbers(0, 40))
    worker = plant.started()
    paused: list[bool] = []
    pause = worker.consumer.pause

    def noting(partitions: Any) -> None:
        paused.append(TopicPartition("a", 0) in partitions)
        pause(partitions)

    worker.consumer.pause = noting  # type: ignore[method-assign]
    worker.intakes.pace.fetch = 4
    for _ in range(20):
        plant.turn(worker)
    assert paused[-1:] == [True]
    plant.held.lets_all_end = True
    for _ in range(40):
        plant.turn(worker)
    assert paused[-1:] == [False]
    assert plant.out() == numbers(0, 40)


# Kinds of functions.


@pytest.mark.parametrize("guarantee", Guarantee)
def test_async_function_of_each_kind_is_awaited(guarantee: Guarantee) -> None:
    graph = ks.Graph("g", errors="dead", guarantee=guarantee)
    a, b, out, other = (graph.topic(name, value=ks.Json()) for name in ("a", "b", "out", "other"))
    seen: list[int] = []

    @graph.map(a, to=[out, other], id="fork")
    async def fork(value: int) -> dict[ks.Topic, int]:
        await asyncio.sleep(0)
        return {out: value, other: -value}

    @graph.join(a, b, by="order", to=out, id="join", concurrency=3)
    async def join(left: int, right: int) -> int:
        await asyncio.sleep(0)
        return left * 100 + right

    @graph.alts(a, b, to=out, id="alts", concurrency=3)
    async def alts(value: int, step: ks.Step) -> str:
        await asyncio.sleep(0)
        return f"{step.topic}{value}"

    @graph.sink(a, id="sink")
    async def sink(value: int) -> None:
        seen.append(value)

    @graph.map(a, to=out, id="several")
    async def several(value: int) -> AsyncIterator[str]:
        yield f"{value}-1"
        await asyncio.sleep(0)
        yield f"{value}-2"

    @graph.map(a, to=out, id="batch", batch=True)
    async def batch(values: list[int]) -> list[str]:
        await asyncio.sleep(0)
        return [f"batch{value}" for value in values]

    with TestDriver(graph) as driver:
        driver.send(a, 1)
        driver.send(a, 2)
        driver.send(b, 7)
        driver.run()
        found = driver.values(out)
        assert sorted(map(str, found)) == sorted(
            ["1", "2", "107", "a1", "a2", "b7", "1-1", "1-2", "2-1", "2-2", "batch1", "batch2"]
        )
        assert (driver.values(other), seen, driver.dead_letters()) == ([-1, -2], [1, 2], [])


def test_plain_function_with_concurrency_is_called_in_threads_at_once() -> None:
    graph = ks.Graph("g")
    graph.topic("a")
    graph.topic("b")
    together = threading.Barrier(4)

    @graph.map("a", to="b", concurrency=4, order="none")
    def meet(value: bytes) -> bytes:
        together.wait(20)
        return value

    with TestDriver(graph, partitions=1) as driver:
        for number in range(8):
            driver.send("a", b"%d" % number)
        driver.run()
        assert driver.values("b") == [b"%d" % number for number in range(8)]


def test_crash_and_restart_of_a_driver_deliver_each_step_once() -> None:
    graph = ks.Graph("g")
    graph.topic("a")
    graph.topic("b")

    @graph.map("a", to="b", concurrency=4, order="none")
    async def copy(value: bytes) -> bytes:
        await asyncio.sleep(0)
        return value

    values = [b"%d" % number for number in range(20)]

    def driver() -> TestDriver:
        made = TestDriver(graph, partitions=1)
        for value in values:
            made.send("a", value)
        return made

    with driver() as first:
        first.run()
        points = first.crash_points()
    assert len(points) > 10
    for point in points:
        with driver() as again:
            again.crash(point)
            again.restart()
            again.run()
            assert again.values("b") == values, point


def test_output_of_another_thread_is_encoded_by_one_thread_at_a_time() -> None:
    inside = threading.Lock()

    class Alone:
        def serialize(self, value: Any) -> bytes:
            assert inside.acquire(blocking=False), "two threads are in this serde"
            Event().wait(0.001)
            inside.release()
            return bytes(value)

        deserialize = serialize

    graph = ks.Graph("g", errors="dead")
    graph.topic("a", value=Alone())
    graph.topic("b", value=Alone())
    graph.map("a", to="b", id="p", concurrency=8, order="none")(bytes.upper)
    with TestDriver(graph, partitions=1) as driver:
        for number in range(30):
            driver.cluster.append("a", b"v%d" % number)
        driver.run()
        assert len(driver.cluster.records("b")) == 30
        assert driver.dead_letters() == []


# Declarations.


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency is 0: give a number from 1 to 10,000"),
        ({"concurrency": True}, "concurrency is True: give a number from 1 to 10,000"),
        ({"concurrency": 10_001}, "concurrency is 10001: give a number from 1 to 10,000"),
        ({"concurrency": 2, "order": "keys"}, "order 'keys' is not known: did you mean key?"),
        ({"order": "none"}, "order='none' is for several calls at once: add concurrency=, or leave it out"),
        (
            {"concurrency": 2, "order": "none", "guarantee": "at_most_once"},
            "if a step fails, a step that ran ahead of it could be neither kept nor repeated: choose order 'partition'",
        ),
        ({"concurrency": 2, "batch": True}, "is a batch, which is one call: leave concurrency out, or batch"),
    ],
)
def test_declaration_that_no_order_could_keep_is_refused(options: dict[str, Any], why: str) -> None:
    graph = ks.Graph("g")
    graph.topic("a")
    graph.topic("b")
    with pytest.raises(GraphError) as caught:
        graph.map("a", to="b", id="p", **options)(lambda value: value)
    assert why in str(caught.value)


def test_join_in_the_order_of_keys_is_refused() -> None:
    graph = ks.Graph("g")
    for name in "abc":
        graph.topic(name)
    with pytest.raises(GraphError) as caught:
        graph.join("a", "b", by="order", to="c", id="p", concurrency=2, order="key")(lambda a, b: a)
    assert str(caught.value) == (
        "processor 'p' is a join, whose steps have several keys: choose order 'partition' or 'none'"
    )


def test_description_has_the_calls_at_once_and_their_order() -> None:
    graph = ks.Graph("g")
    graph.topic("a")
    graph.topic("b")

    @graph.map("a", to="b", concurrency=64, order="key")
    async def p(value: bytes) -> bytes:
        return value

    assert "  p: map, exactly_once, committed, asynchronous, 64 calls at once, in order by key" in graph.describe()
