"""Which calls may start: a limited number at once, and those of a chain one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class Chains:
    """Tickets of calls, by chain: each chain runs one call at a time, in the order in which they were added.

    `limit` is how many calls run at once, of all chains.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Hashable, deque[int]] = {}
        """By chain with a call that runs or may start, the tickets behind that call."""
        self._first = deque[tuple[int, Hashable]]()
        """Tickets that may start, each with its chain, in the order in which they became the first of it."""
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
        """Ends a call that failed, and drops those behind it in its chain; returns their tickets."""
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
