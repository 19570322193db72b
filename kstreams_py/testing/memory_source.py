"""A source in memory, for TestDriver and the simulation of jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from kstreams_py.graph.source import Claim
from kstreams_py.sources.claims import claim_of
from kstreams_py.sources.suspects import DELETED, REASON, choose

FREE, CLAIMED, DONE, REFUSED = "free", "claimed", "done", "refused"


@dataclass(slots=True)
class Kept:
    """What the source knows of an input for one reader.

    - `owner`: the number of the connection that has claimed it last.
    - `reason`: why it was refused.
    """

    state: str
    owner: int
    deaths: int = 0
    reason: str | None = None


class MemorySource:
    """Inputs in memory, by key. Connections share them and their claims, as those of a database do.

    - `inputs`: the value of each input, by its key; more may be added while it is read.
    - `ends`: no input is added any more.
    - `lease`: seconds for which a claim is kept without a word from its connection.
    - `clock`: returns the seconds by which leases end.
    """

    def __init__(
        self,
        values: Iterable[Any] = (),
        *,
        ends: bool = True,
        lease: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inputs: dict[Any, Any] = dict(enumerate(values))
        self.ends, self.lease, self.clock = ends, lease, clock
        self.kept: dict[str, dict[Any, Kept]] = {}
        """By reader and key."""
        self.owners = count()
        self.seen: dict[int, float] = {}
        """By connection, when it was heard of last."""

    def __str__(self) -> str:
        return "memory"

    def open(self, reader: str) -> MemoryConnection:
        """See Source."""
        return MemoryConnection(self, self.kept.setdefault(reader, {}))


class MemoryConnection:
    """See SourceConnection."""

    def __init__(self, source: MemorySource, kept: dict[Any, Kept]) -> None:
        self._source, self._kept = source, kept
        self.lease = source.lease
        self._owner = next(source.owners)
        self.identity = ""
        self.waits_alone = False
        self.keep()

    @property
    def is_exhausted(self) -> bool:
        """See SourceConnection."""
        ended = all(each.state in (DONE, REFUSED) for each in self._kept.values())
        return self._source.ends and ended and self._source.inputs.keys() <= self._kept.keys()

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        """See SourceConnection."""
        self.keep()
        claims = self._read_again(limit, alone=alone)
        if not self.waits_alone:
            new = sorted(self._source.inputs.keys() - self._kept.keys())[: max(0, limit - len(claims))]
            self._kept.update((key, Kept(CLAIMED, self._owner)) for key in new)
            claims += map(self._claim, new)
        return claims

    def ack(self, claims: Sequence[Claim]) -> None:
        """See SourceConnection."""
        for kept in self._own(claims):
            kept.state = DONE

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """See SourceConnection."""
        for claim, reason in claims:
            for kept in self._own([claim]):
                kept.state, kept.reason = REFUSED, reason

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """See SourceConnection."""
        for kept in self._own(claims):
            kept.state, kept.deaths = FREE, kept.deaths + failed

    def keep(self) -> None:
        """See SourceConnection."""
        self._source.seen[self._owner] = self._source.clock()

    def close(self) -> None:
        """See SourceConnection."""

    def _own(self, claims: Iterable[Claim]) -> list[Kept]:
        found = [self._kept[claim.token] for claim in claims]
        return [kept for kept in found if kept.state == CLAIMED and kept.owner == self._owner]

    def _read_again(self, limit: int, *, alone: bool) -> list[Claim]:
        silent = self._source.clock() - self._source.lease
        again = {
            key: kept.deaths + (kept.state == CLAIMED)
            for key, kept in self._kept.items()
            if kept.state == FREE or (kept.state == CLAIMED and self._source.seen[kept.owner] < silent)
        }
        chosen = choose(again, limit, alone=alone)
        self.waits_alone = chosen.left or chosen.are_suspects
        for key in chosen.refused:
            self._kept[key] = Kept(REFUSED, self._owner, again[key], REASON)
        for key in [key for key in chosen.read if key not in self._source.inputs]:
            chosen.read.remove(key)
            self._kept[key] = Kept(REFUSED, self._owner, again[key], DELETED)
        for key in chosen.read:
            self._kept[key] = Kept(CLAIMED, self._owner, again[key])
        return [*map(self._claim, chosen.read)]

    def _claim(self, key: Any) -> Claim:
        return claim_of(key, self._source.inputs[key], self._kept[key].deaths)
