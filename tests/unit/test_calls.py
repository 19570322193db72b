"""Calls that are under way at once: coroutines on the event loop of the process, plain functions in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.graph.declarations import Processor
from kstreams_py.steps.calls import Call, Calls, EndedCall, event_loop, open_calls, wait_for_each
from tests.waiting import wait_until

SECONDS = 20.0


def processor(function: Callable[..., Any], concurrency: int = 2) -> Processor:
    graph = ks.Graph("g")
    graph.topic("a")
    graph.topic("b")
    graph.map("a", to="b", id="p", concurrency=concurrency)(function)
    return graph.processors[0]


class Gate:
    """A function whose calls wait until the test lets each of them go on; `is_async` decides how they wait."""

    def __init__(self, *, is_async: bool) -> None:
        self.entered: list[str] = []
        self.cancelled: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self.function = self._wait_async if is_async else self._wait

    def open(self, name: str) -> None:
        self._gates.setdefault(name, threading.Event()).set()

    def _enter(self, name: str) -> threading.Event:
        self.entered.append(name)
        return self._gates.setdefault(name, threading.Event())

    def _leave(self, name: str) -> str:
        if name.startswith("!"):
            raise LookupError(name)
        return name.upper()

    def _wait(self, name: str) -> str:
        assert self._enter(name).wait(SECONDS)
        return self._leave(name)

    async def _wait_async(self, name: str) -> str:
        gate = self._enter(name)
        try:
            while not gate.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        return self._leave(name)


BOTH = pytest.mark.parametrize("is_async", [True, False], ids=["async", "threads"])


@pytest.fixture
def opened() -> Iterator[Callable[..., Calls]]:
    every: list[Calls] = []

    def open_some(function: Callable[..., Any], concurrency: int = 2) -> Calls:
        every.append(open_calls(processor(function, concurrency), lambda ticket, result: (ticket, result)))
        return every[-1]

    yield open_some
    for calls in every:
        calls.close()


def collect(calls: Calls, number: int) -> list[EndedCall]:
    """Collects until so many calls have ended."""
    found: list[EndedCall] = []

    def is_enough() -> bool:
        found.extend(calls.collect())
        return len(found) >= number

    wait_until(is_enough, f"{number} calls have ended", pause=0)
    return found


def named(*names: str) -> list[Call]:
    """A call for each name, in a chain of its own."""
    return [Call(number, name, (name,)) for number, name in enumerate(names)]


@BOTH
def test_calls_overlap_up_to_their_number_and_end_in_any_order(opened: Callable[..., Calls], *, is_async: bool) -> None:
    gate = Gate(is_async=is_async)
    calls = opened(gate.function)
    calls.start(named("a", "b", "c"))
    wait_until(lambda: len(gate.entered) == 2, "2 calls are under way")
    gate.open("b")
    assert [ended[:4] for ended in collect(calls, 1)] == [(1, (1, "B"), None, True)]
    wait_until(lambda: gate.entered == ["a", "b", "c"], "entered: [a, b, c]")
    gate.open("c")
    gate.open("a")
    assert sorted(ended.ticket for ended in collect(calls, 2)) == [0, 2]
    assert calls.oldest is None


@BOTH
def test_call_that_raises_drops_those_behind_it_in_its_chain(opened: Callable[..., Calls], *, is_async: bool) -> None:
    gate = Gate(is_async=is_async)
    calls = opened(gate.function)
    calls.start([Call(1, "k", ("!a",)), Call(2, "k", ("b",)), Call(3, "other", ("c",))])
    gate.open("!a")
    gate.open("c")
    found = {ended.ticket: (type(ended.error), ended.result, ended.has_run) for ended in collect(calls, 3)}
    assert found == {1: (LookupError, None, True), 2: (type(None), None, False), 3: (type(None), (3, "C"), True)}
    assert sorted(gate.entered) == ["!a", "c"]


@BOTH
def test_result_that_cannot_be_made_is_the_error_of_its_call(*, is_async: bool) -> None:
    def refuse(ticket: int, result: Any) -> Any:
        raise TypeError(f"{ticket} {result}")

    gate = Gate(is_async=is_async)
    calls = open_calls(processor(gate.function), refuse)
    gate.open("a")
    calls.start(named("a"))
    (ended,) = collect(calls, 1)
    assert repr(ended.error) == "TypeError('0 A')"
    calls.close()


@BOTH
def test_abandoned_call_is_not_collected_and_its_chain_waits_for_its_end(
    opened: Callable[..., Calls], *, is_async: bool
) -> None:
    gate = Gate(is_async=is_async)
    calls = opened(gate.function)
    calls.start([Call(1, "k", ("a",)), Call(2, "k", ("b",))])
    wait_until(lambda: gate.entered == ["a"], "entered: [a]")
    calls.abandon()
    calls.start([Call(3, "k", ("c",))])
    if is_async:
        wait_until(lambda: gate.cancelled == ["a"], "cancelled: [a]")
    else:
        assert (calls.collect(), gate.entered) == ([], ["a"])
        gate.open("a")
    gate.open("c")
    assert [ended.result for ended in collect(calls, 1)] == [(3, "C")]
    assert gate.entered == ["a", "c"]


@BOTH
def test_drop_lets_what_is_under_way_end(opened: Callable[..., Calls], *, is_async: bool) -> None:
    gate = Gate(is_async=is_async)
    calls = opened(gate.function, 2)
    calls.start(named("a", "b", "c"))
    wait_until(lambda: len(gate.entered) == 2, "2 calls are under way")
    calls.drop()
    gate.open("a")
    gate.open("b")
    assert sorted((ended.ticket, ended.has_run) for ended in collect(calls, 3)) == [(0, True), (1, True), (2, False)]
    assert gate.entered == ["a", "b"]


@BOTH
def test_oldest_call_has_its_start_and_the_place_where_it_waits(
    opened: Callable[..., Calls], *, is_async: bool
) -> None:
    gate = Gate(is_async=is_async)
    calls = opened(gate.function)
    calls.start(named("a"))
    wait_until(lambda: gate.entered == ["a"], "entered: [a]")
    first = calls.oldest
    calls.start([Call(7, "b", ("b",))])
    wait_until(lambda: gate.entered == ["a", "b"], "entered: [a, b]")
    again = calls.oldest
    assert first is not None
    assert again is not None
    assert first[0] == again[0]
    frame, names = again[1](), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    assert gate.function.__name__ in names
    gate.open("a")
    gate.open("b")
    collect(calls, 2)


def test_coroutine_that_blocks_the_loop_is_found_there(opened: Callable[..., Calls]) -> None:
    entered, gate = threading.Event(), threading.Event()

    async def block(name: str) -> None:
        entered.set()
        assert gate.wait(SECONDS), name

    calls = opened(block)
    calls.start(named("a"))
    assert entered.wait(SECONDS)
    oldest = calls.oldest
    assert oldest is not None
    frame, names = oldest[1](), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    gate.set()
    assert "block" in names
    collect(calls, 1)


def test_call_that_is_cancelled_by_what_it_awaits_has_an_error_of_its_own(opened: Callable[..., Calls]) -> None:
    async def cancelled(_: str) -> None:
        task = asyncio.ensure_future(asyncio.sleep(SECONDS))
        task.cancel()
        await task

    calls = opened(cancelled)
    calls.start(named("a"))
    (ended,) = collect(calls, 1)
    assert repr(ended.error) == "RuntimeError('the call was cancelled by what it awaited')"


@BOTH
def test_exit_in_a_call_is_its_error_and_later_calls_go_on(opened: Callable[..., Calls], *, is_async: bool) -> None:
    def leave(name: str) -> str:
        if name == "a":
            raise SystemExit(3)
        return name

    async def leave_async(name: str) -> str:
        return leave(name)

    calls = opened(leave_async if is_async else leave)
    calls.start(named("a", "b"))
    found = {ended.ticket: (repr(ended.error), ended.result) for ended in collect(calls, 2)}
    assert found == {0: ("SystemExit(3)", None), 1: ("None", (1, "b"))}


@BOTH
def test_generator_ends_with_all_that_it_yields(opened: Callable[..., Calls], *, is_async: bool) -> None:
    def several(name: str) -> Iterator[str]:
        yield name
        yield name * 2

    async def several_async(name: str) -> AsyncIterator[str]:
        for each in several(name):
            yield each

    calls = opened(several_async if is_async else several)
    calls.start(named("a"))
    assert [ended.result for ended in collect(calls, 1)] == [(0, ["a", "aa"])]


WHO = contextvars.ContextVar("WHO", default="nobody")


@BOTH
def test_calls_see_the_context_of_the_thread_that_starts_them(*, is_async: bool) -> None:
    async def who_async(_: str) -> str:
        return WHO.get()

    found: list[Any] = []

    def work() -> None:
        calls = open_calls(processor(who_async if is_async else lambda _: WHO.get()), lambda _, result: result)
        WHO.set("worker")  # a worker is made in another thread than that which runs it
        calls.start(named("a"))
        found.extend(ended.result for ended in collect(calls, 1))
        calls.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SECONDS)
    assert found == ["worker"]


def test_async_functions_share_one_loop() -> None:
    loop, thread = event_loop()
    assert event_loop() == (loop, thread)
    assert (thread.daemon, thread.is_alive()) == (True, True)


def test_exit_of_a_task_that_a_function_has_started_leaves_the_loop_running(
    opened: Callable[..., Calls], caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def start_one(name: str) -> str:
        if name == "a":
            await asyncio.gather(leave())
        return name

    calls = opened(start_one)
    calls.start(named("a", "b"))
    found = {ended.ticket: (repr(ended.error), ended.result) for ended in collect(calls, 2)}
    assert found == {0: ("SystemExit(3)", None), 1: ("None", (1, "b"))}
    assert "the event loop of async functions goes on after SystemExit(3)" in caplog.messages


def test_exit_of_a_batch_is_raised_where_it_was_called() -> None:
    async def leave(values: list[bytes]) -> None:
        raise SystemExit(len(values))

    with pytest.raises(SystemExit, match=r"^2$"):
        wait_for_each(leave)([b"a", b"b"])


def test_calls_go_on_with_the_threads_that_the_machine_gives(
    opened: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    calls = opened(str.upper, 5)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    calls.start(named(*"abcdefgh"))
    assert sorted(ended.ticket for ended in collect(calls, 8)) == list(range(8))
    assert len(started) <= 2


def test_oldest_call_is_none_while_an_abandoned_one_alone_is_under_way(opened: Callable[..., Calls]) -> None:
    gate = Gate(is_async=False)
    calls = opened(gate.function)
    calls.start(named("a"))
    wait_until(lambda: gate.entered == ["a"], "the call is under way")
    calls.abandon()
    alone = calls.oldest
    calls.start([Call(7, "a", ("b",))])
    assert (alone, calls.oldest is None) == (None, False), "the new call waits for the end of the abandoned one"
    gate.open("a")
    gate.open("b")
    collect(calls, 1)


def test_threads_of_closed_calls_end(opened: Callable[..., Calls]) -> None:
    calls = opened(str.upper, 3)
    calls.start(named("a", "b", "c", "d"))
    collect(calls, 4)
    threads = [thread for thread in threading.enumerate() if thread in calls._threads]  # type: ignore[attr-defined]
    assert threads
    calls.close()
    wait_until(lambda: not any(thread.is_alive() for thread in threads), "the threads have ended")


def test_coroutine_function_called_as_a_plain_one_returns_and_raises() -> None:
    async def half(number: int) -> float:
        return 1 / number

    call = wait_for_each(half)
    assert (call(2), inspect.iscoroutinefunction(call)) == (0.5, False)
    with pytest.raises(ZeroDivisionError):
        call(0)


def test_without_patience_collect_waits_for_all_calls() -> None:
    entered = threading.Barrier(3)

    def meet(name: str) -> str:
        entered.wait(SECONDS)
        return name

    calls = open_calls(replace(processor(meet), concurrency=3), lambda _, result: result, patience=None)
    calls.start(named("a", "b", "c"))
    assert sorted(ended.result for ended in calls.collect()) == ["a", "b", "c"]
    calls.close()
