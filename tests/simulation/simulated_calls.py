"""Calls that overlap, in one thread: each time the worker looks, chance ends some of those under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from kstreams_py.graph.declarations import Processor
from kstreams_py.steps.calls import Call, Chains, EndedCall


class SimulatedCalls:
    """The calls of a worker of a simulated process. A call happens as a whole when it ends."""

    def __init__(self, random: Random, processor: Processor, finish: Callable[[int, Any], Any]) -> None:
        self._random = random
        self._processor = processor
        self._finish = finish
        self._chains = Chains(processor.concurrency)
        self._arguments: dict[int, Sequence[Any]] = {}
        self._running: list[int] = []
        self._ended: list[EndedCall] = []

    oldest = None

    def start(self, calls: Iterable[Call], /) -> None:
        for ticket, chain, arguments in calls:
            self._arguments[ticket] = arguments
            self._chains.add(ticket, chain)

    def collect(self) -> Sequence[EndedCall]:
        for _ in range(self._random.choice((1, 2, 3, 100))):
            while (ticket := self._chains.start()) is not None:
                self._running.append(ticket)
            if not self._running:
                break
            self._make(self._running.pop(self._random.randint(0, len(self._running) - 1)))
        ended, self._ended = self._ended, []
        return ended

    def drop(self) -> None:
        self._note_dropped(self._chains.drop())

    def abandon(self) -> None:
        self._chains.drop()
        for ticket in self._running:
            self._chains.end(ticket)
        self._arguments, self._running, self._ended = {}, [], []

    def close(self) -> None:
        self.abandon()

    def _make(self, ticket: int) -> None:
        returned, error = None, None
        try:
            returned = self._processor.function(*self._arguments.pop(ticket))
            returned = self._finish(ticket, list(returned) if self._processor.generator else returned)
        except Exception as raised:
            error = raised
        self._ended.append(EndedCall(ticket, returned, error, True, 0.0))
        if error is None:
            self._chains.end(ticket)
        else:
            self._note_dropped(self._chains.fail(ticket))

    def _note_dropped(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            del self._arguments[ticket]
            self._ended.append(EndedCall(ticket, None, None, False, 0.0))
