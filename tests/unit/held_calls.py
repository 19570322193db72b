"""Calls of a function that end when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kstreams_py.graph.declarations import Processor
from kstreams_py.steps.calls import Call, Chains, EndedCall


class HeldCalls:
    """Makes each call when the test lets it end, by its first argument; all at once, once `lets_all_end` is set."""

    oldest = None

    def __init__(self, processor: Processor, finish: Callable[[int, Any], Any]) -> None:
        self.made: list[Any] = []
        """The first arguments of the calls that were made, in order."""
        self.abandoned = 0
        self.lets_all_end = False
        self.later: list[Any] = []
        """What ends as the worker looks, one at each look, before all others."""
        self._function = processor.function
        self._finish = finish
        self._chains = Chains(processor.concurrency)
        self._arguments: dict[int, Sequence[Any]] = {}
        self._running: dict[Any, int] = {}
        self._ended: list[EndedCall] = []

    @property
    def under_way(self) -> list[Any]:
        """The first arguments of the calls under way, in the order of their starts."""
        while (ticket := self._chains.start()) is not None:
            self._running[self._arguments[ticket][0]] = ticket
        return list(self._running)

    def end(self, *names: Any) -> None:
        """Ends these calls, which are under way."""
        for name in names:
            assert name in self.under_way, name
            ticket, arguments = self._running[name], self._arguments.pop(self._running.pop(name))
            self.made.append(name)
            result, error = None, None
            try:
                result = self._finish(ticket, self._function(*arguments))
            except Exception as raised:
                error = raised
            self._ended.append(EndedCall(ticket, result, error, True, 0.5))
            if error is None:
                self._chains.end(ticket)
            else:
                self._note_dropped(self._chains.fail(ticket))

    def start(self, calls: Iterable[Call], /) -> None:
        for ticket, chain, arguments in calls:
            self._arguments[ticket] = arguments
            self._chains.add(ticket, chain)

    def collect(self) -> Sequence[EndedCall]:
        while self.lets_all_end and not self.later and self.under_way:
            self.end(self.under_way[0])
        if self.later:
            self.end(self.later.pop(0))
        ended, self._ended = self._ended, []
        return ended

    def drop(self) -> None:
        self._note_dropped(self._chains.drop())

    def abandon(self) -> None:
        self.abandoned += len(self._running)
        self._chains.drop()
        for ticket in self._running.values():
            self._chains.end(ticket)
        self._running.clear()
        self._arguments.clear()
        self._ended = []

    def close(self) -> None:
        self.abandon()

    def _note_dropped(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            del self._arguments[ticket]
            self._ended.append(EndedCall(ticket, None, None, False, 0.0))
