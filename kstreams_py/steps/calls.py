"""Concurrent calls of a function, on an event loop or in threads: how many run together, and which run one by one."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from functools import cache, partial, wraps
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

from kstreams_py.graph.declarations import Processor


class Called(Protocol):
    """The attributes of a processor or a task that calls need; see Processor."""

    @property
    def id(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def generator(self) -> bool: ...
    @property
    def asynchronous(self) -> bool: ...
    @property
    def concurrency(self) -> int: ...


class Chains:
    """Tickets of calls, by chain: each chain runs one call at a time, in the order in which its calls were added.

    `limit` is how many calls run concurrently, in all chains together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Hashable, deque[int]] = {}
        """By chain with a call that runs or may start, the tickets behind that call."""
        self._first = deque[tuple[int, Hashable]]()
        """Tickets that may start, each with its chain, in the order in which they became the first of their chains."""
        self._running: dict[int, Hashable] = {}

    def add(self, ticket: int, chain: Hashable) -> None:
        """Adds a call behind the others of its chain."""
        behind = self._waiting.get(chain)
        if behind is None:
            self._waiting[chain] = deque()
            self._first.append((ticket, chain))
        else:
            behind.append(ticket)

    def start(self) -> int | None:
        """Starts the next call that may run, and returns its ticket; None if none may."""
        if not self._first or len(self._running) >= self._limit:
            return None
        ticket, chain = self._first.popleft()
        self._running[ticket] = chain
        return ticket

    def end(self, ticket: int) -> None:
        """Ends a call: the next call of its chain may start."""
        chain = self._running.pop(ticket)
        behind = self._waiting[chain]
        if behind:
            self._first.append((behind.popleft(), chain))
        else:
            del self._waiting[chain]

    def fail(self, ticket: int) -> list[int]:
        """Ends a call that failed, drops the calls behind it in its chain, and returns the tickets of these calls."""
        return [*self._waiting.pop(self._running.pop(ticket))]

    def drop(self) -> list[int]:
        """Drops all calls that have not started, and returns their tickets."""
        dropped = [ticket for ticket, _ in self._first]
        for _, chain in self._first:
            dropped += self._waiting.pop(chain)
        self._first.clear()
        for behind in self._waiting.values():
            dropped += behind
            behind.clear()
        return dropped


logger = logging.getLogger(__name__)

PATIENCE: Final = 0.01
"""Seconds that a worker waits for calls before it looks at its group and its commit."""

LOOP_NAME: Final = "kstreams-async"


class Call(NamedTuple):
    """A call to be made. Calls of a chain run one after the other, until one raises."""

    ticket: int
    chain: Hashable
    arguments: Sequence[Any]


class EndedCall(NamedTuple):
    """A call that has ended: with a result, or with an error.

    - `has_run`: False if it was dropped because an earlier call of its chain raised.
    - `seconds`: from its start to its end.
    """

    ticket: int
    result: Any
    error: BaseException | None
    has_run: bool
    seconds: float


class Calls(Protocol):
    """The calls of one worker's function. Only one thread uses this."""

    def start(self, calls: Iterable[Call], /) -> None:
        """Makes these calls as soon as the limit and their chains allow it."""

    def collect(self) -> Sequence[EndedCall]:
        """Returns the calls that have ended since the last time; waits a while for all calls to end."""

    def drop(self) -> None:
        """Drops the calls that have not started; `collect` returns them."""

    def abandon(self) -> None:
        """Forgets all calls, and cancels those that can be cancelled. Their chains still wait for them to end."""

    def close(self) -> None:
        """Abandons all calls, and ends the threads that make them, if they are its own."""

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """The start of the oldest call under way (monotonic seconds), and a function that finds its frame; or None."""


OpenCalls = Callable[[Processor, Callable[[int, Any], Any]], Calls]
"""Opens the calls of a processor's function; the second argument makes a result from ticket and returned value."""


class _Calls(ABC):
    """The calls of one function, under a lock: threads and the event loop report the ends of calls here."""

    def __init__(self, processor: Called, finish: Callable[[int, Any], Any], patience: float | None) -> None:
        self._function = processor.function
        self._generator = processor.generator
        self._finish = finish
        self._patience = patience
        self._changed = threading.Condition()
        self._chains = Chains(processor.concurrency)
        self._arguments: dict[int, Sequence[Any]] = {}
        """By ticket, the arguments of a call that has not started."""
        self._open = set[int]()
        """Tickets of calls that have neither ended nor been dropped or abandoned."""
        self._started: dict[int, float] = {}
        """By ticket of a call under way, its start in monotonic seconds; the oldest first."""
        self._ended: list[EndedCall] = []
        self._context: contextvars.Context | None = None
        """The context of the worker's thread: its log lines name the processor."""

    def start(self, calls: Iterable[Call], /) -> None:
        self._context = self._context or contextvars.copy_context()
        with self._changed:
            for call in calls:
                self._arguments[call.ticket] = call.arguments
                self._open.add(call.ticket)
                self._chains.add(call.ticket, call.chain)
        self._wake()

    def collect(self) -> Sequence[EndedCall]:
        with self._changed:
            self._changed.wait_for(lambda: not self._open, self._patience)
            ended, self._ended = self._ended, []
        return ended

    def drop(self) -> None:
        with self._changed:
            self._note_dropped(self._chains.drop())

    def abandon(self) -> None:
        with self._changed:
            self._chains.drop()
            self._arguments.clear()
            self._open.clear()
            self._ended = []
        self._cancel()

    def close(self) -> None:
        self.abandon()

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        with self._changed:
            # an abandoned call alone blocks nothing; open calls may wait for its end
            ticket = next(iter(self._started), None) if self._open else None
            return None if ticket is None else (self._started[ticket], partial(self._frame, ticket))

    @abstractmethod
    def _wake(self) -> None:
        """Starts the calls that may start."""

    @abstractmethod
    def _cancel(self) -> None:
        """Cancels the abandoned calls that can be cancelled."""

    @abstractmethod
    def _frame(self, ticket: int) -> Any:
        """Returns the innermost frame of a call under way, if it is known."""

    def _next(self) -> tuple[int, Sequence[Any]] | None:
        """Starts the next call that may start, under the lock."""
        with self._changed:
            if (ticket := self._chains.start()) is None:
                return None
            self._started[ticket] = time.monotonic()
            return ticket, self._arguments.pop(ticket)

    def _end(self, ticket: int, result: Any, error: BaseException | None) -> None:
        with self._changed:
            seconds = time.monotonic() - self._started.pop(ticket)
            if ticket not in self._open:  # abandoned
                self._chains.end(ticket)
                return
            self._open.discard(ticket)
            self._ended.append(EndedCall(ticket, result, error, True, seconds))
            if error is None:
                self._chains.end(ticket)
            else:
                self._note_dropped(self._chains.fail(ticket))
            if not self._open:
                self._changed.notify_all()

    def _note_dropped(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            del self._arguments[ticket]
            self._open.discard(ticket)
            self._ended.append(EndedCall(ticket, None, None, False, 0.0))
        if not self._open:
            self._changed.notify_all()


class LoopCalls(_Calls):
    """Calls of a coroutine function or an asynchronous generator, on the event loop of this process."""

    def __init__(self, processor: Called, finish: Callable[[int, Any], Any], patience: float | None) -> None:
        super().__init__(processor, finish, patience)
        self._loop, self._thread = event_loop()
        self._tasks: dict[int, asyncio.Task[tuple[Any, BaseException | None]]] = {}

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._start_all)

    def _start_all(self) -> None:
        while (found := self._next()) is not None:
            ticket, arguments = found
            assert self._context is not None
            task = self._loop.create_task(self._call(ticket, arguments), context=self._context.copy())
            task.add_done_callback(partial(self._note_end, ticket))  # also for tasks cancelled before they begin
            self._tasks[ticket] = task

    async def _call(self, ticket: int, arguments: Sequence[Any]) -> tuple[Any, BaseException | None]:
        try:
            called = self._function(*arguments)
            returned = [each async for each in called] if self._generator else await called
            return self._finish(ticket, returned), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # nothing may end the loop, which other processors share
            return None, error

    def _note_end(self, ticket: int, task: asyncio.Task[tuple[Any, BaseException | None]]) -> None:
        del self._tasks[ticket]
        if task.cancelled():
            self._end(ticket, None, RuntimeError("the call was cancelled by what it awaited"))
        else:
            self._end(ticket, *task.result())
        self._start_all()

    def _cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        with self._changed:
            abandoned = [task for ticket, task in self._tasks.items() if ticket not in self._open]
        for task in abandoned:
            task.cancel()

    def _frame(self, ticket: int) -> Any:
        task = self._tasks.get(ticket)
        awaited = None if task is None else getattr(task.get_coro(), "cr_await", None)
        if awaited is None:  # it blocks the loop: it does not await
            return frame_of(self._thread.ident)
        return getattr(awaited, "cr_frame", None)


class ThreadCalls(_Calls):
    """Calls of a plain function, each in a thread."""

    def __init__(self, processor: Called, finish: Callable[[int, Any], Any], patience: float | None) -> None:
        super().__init__(processor, finish, patience)
        self._name = processor.id
        self._concurrency = self._limit = processor.concurrency
        self._queue = SimpleQueue[tuple[int, Sequence[Any]] | None]()
        self._threads: list[threading.Thread] = []
        self._in: dict[int, int] = {}
        """By ticket, the thread that makes the call."""

    def close(self) -> None:
        super().close()
        for _ in self._threads:
            self._queue.put(None)

    def _wake(self) -> None:
        while (found := self._next()) is not None:
            with self._changed:
                if len(self._threads) < min(self._limit, len(self._started)):
                    self._start_thread()
            self._queue.put(found)

    def _cancel(self) -> None:
        """Does nothing: Python cannot end a thread."""

    def _start_thread(self) -> None:
        assert self._context is not None
        name = f"{self._name}-{len(self._threads)}"
        target = self._context.copy().run
        thread = threading.Thread(target=target, args=(self._make_calls,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the limit of the machine
            if not self._threads:
                raise
            self._limit = len(self._threads)
            logger.warning(
                "%s: %s: %d calls at once instead of %d: lower concurrency=, or raise the limit of threads",
                self._name, error, self._limit, self._concurrency,
            )  # fmt: skip
        else:
            self._threads.append(thread)

    def _make_calls(self) -> None:
        while (found := self._queue.get()) is not None:
            ticket, arguments = found
            self._in[ticket] = threading.get_ident()
            result, error = None, None
            try:
                returned = self._function(*arguments)
                result = self._finish(ticket, list(returned) if self._generator else returned)
            except BaseException as raised:  # the worker's thread raises it
                error = raised
            del self._in[ticket]
            self._end(ticket, result, error)
            self._wake()

    def _frame(self, ticket: int) -> Any:
        return frame_of(self._in.get(ticket))


def frame_of(thread: int | None) -> FrameType | None:
    """Returns the innermost frame of a thread, by its identity; None if it does not run."""
    return sys._current_frames().get(thread or 0)  # noqa: SLF001, documented, for debuggers


def open_calls(processor: Called, finish: Callable[[int, Any], Any], *, patience: float | None = PATIENCE) -> Calls:
    """Opens the calls of a processor's function; without `patience`, `collect` waits for all of them."""
    return (LoopCalls if processor.asynchronous else ThreadCalls)(processor, finish, patience)


def wait_for_each(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Returns a plain function that makes one call of a coroutine function at a time, and waits for it."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        loop, _ = event_loop()
        return asyncio.run_coroutine_threadsafe(function(*arguments), loop).result()

    return call


def event_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Returns the event loop of all async functions of this process, and the thread that runs it.

    The functions share it, because HTTP clients, for example, belong to the loop that opened them.
    """
    with _making_loop:
        return _made_loop()


_making_loop = threading.Lock()


@cache
def _made_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run_for_ever, args=(loop,), name=LOOP_NAME, daemon=True)
    thread.start()
    return loop, thread


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except BaseException as error:  # such as SystemExit of a task that a function has started
            logger.error("the event loop of async functions goes on after %r", error)
