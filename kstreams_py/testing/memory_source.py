"""A source in memory, for TestDriver and the simulation of jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from kstreams_py.errors import ClientError, SourceUnavailable
from kstreams_py.graph.source import Claim, RefusedInput, SourceStatus
from kstreams_py.sources.claims import claim_of
from kstreams_py.sources.sizes import weigh
from kstreams_py.sources.suspects import DELETED, REASON, check_refused, choose, has_suspects

FREE, CLAIMED, DONE, REFUSED = "free", "claimed", "done", "refused"

CLAIM: Final = "claim"
"""The name of the request that claims inputs; it is not made if there are none."""

ACK: Final = "ack"
"""The name of the request that acknowledges inputs."""

REFUSE: Final = "refuse"
"""The name of the request that refuses inputs."""

GIVE_BACK: Final = "give_back"
"""The name of the request that gives inputs back."""

Request = Callable[[str, Callable[[], Any]], Any]
"""Carries out a request of a name, and returns its result. It may raise before that, or after."""


def carry_out(_: str, action: Callable[[], Any]) -> Any:
    """Carries out a request without a fault."""
    return action()


@dataclass(slots=True)
class Kept:
    """What the source knows of an input for one reader.

    - `owner`: the number of the connection that has claimed it last.
    - `reason`: why it was refused.
    - `taken_over`: whether another connection had it under way when that connection's lease ended.
    """

    state: str
    owner: int
    deaths: int = 0
    reason: str | None = None
    taken_over: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the input is never read again."""
        return self.state in (DONE, REFUSED)


class MemorySource:
    """Inputs in memory, by key. Connections share them and their claims, as connections to a database do.

    MemoryCluster.source() makes one whose requests have the faults of the cluster: "claim", "ack", "refuse" and
    "give_back".

    - `inputs`: the value of each input, by its key; more may be added while it is read.
    - `ends`: whether the source is exhausted once all inputs are done: no input is added any more.
    - `lease`: seconds for which a claim is kept while its connection is silent.
    - `clock`: returns the seconds by which leases end.
    - `request`: carries out the requests of all connections; one without an answer raises SourceUnavailable.
    """

    def __init__(
        self,
        values: Iterable[Any] = (),
        *,
        ends: bool = True,
        lease: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        request: Request = carry_out,
    ) -> None:
        self.inputs: dict[Any, Any] = dict(enumerate(values))
        self.ends, self.lease, self.clock, self.request = ends, lease, clock, request
        self.kept: dict[str, dict[Any, Kept]] = {}
        """By reader and key."""
        self.owners = count()
        self.seen: dict[int, float] = {}
        """When each connection was last heard from."""

    def __str__(self) -> str:
        return "memory"

    def open(self, reader: str) -> MemoryConnection:
        """See Source."""
        return MemoryConnection(self, self.kept.setdefault(reader, {}))

    def add(self, *values: Any) -> None:
        """Adds an input for each value. Its key is the next number, beginning with 0."""
        self.inputs.update(enumerate(values, len(self.inputs)))

    @property
    def left(self) -> list[Any]:
        """The values of the inputs that are neither acknowledged nor refused, in the order of their addition."""
        ended = {key for kept in self.kept.values() for key, each in kept.items() if each.has_ended}
        return [value for key, value in self.inputs.items() if key not in ended]

    @property
    def refused(self) -> list[tuple[Any, str]]:
        """The values of the inputs that were refused, each with the reason, in the order of their addition."""
        reasons = {key: each.reason for kept in self.kept.values() for key, each in kept.items() if each.reason}
        return [(value, reasons[key]) for key, value in self.inputs.items() if key in reasons]

    def inspect(self, reader: str, limit: int) -> SourceStatus:
        """See InspectedSource."""
        kept, silent = self.kept.get(reader, {}), self.clock() - self.lease
        claimed = [each for each in kept.values() if each.state == CLAIMED]
        abandoned = [each for each in claimed if self.seen[each.owner] < silent]
        free = [each for each in kept.values() if each.state == FREE]
        deaths = [*(each.deaths for each in free), *(each.deaths + 1 for each in abandoned)]
        refused = [(key, each) for key, each in kept.items() if each.state == REFUSED]
        shown = sorted(refused, key=lambda each: each[0], reverse=True)[:limit]
        return SourceStatus(
            len(free),
            len(claimed) - len(abandoned),
            len(abandoned),
            sum(has_suspects([count]) for count in deaths),
            len(refused),
            tuple(RefusedInput(str(key), each.deaths, each.reason or "") for key, each in shown),
            sum(has_suspects([each.deaths]) for each in claimed if each not in abandoned),
        )

    def retry(self, reader: str, keys: Collection[str] | None) -> int:
        """See InspectedSource."""
        refused = {str(key): each for key, each in self.kept.get(reader, {}).items() if each.state == REFUSED}
        check_refused(self, refused, keys)
        wanted = {*(refused if keys is None else keys)}
        for key in wanted:
            refused[key].state, refused[key].deaths, refused[key].reason = FREE, 0, None
        return len(wanted)


class MemoryConnection:
    """See SourceConnection."""

    def __init__(self, source: MemorySource, kept: dict[Any, Kept]) -> None:
        self._source, self._kept = source, kept
        self.lease = source.lease
        self._owner = next(source.owners)
        self._held = set[Any]()
        """The keys that this connection has returned and that have not ended; its other claims had no answer."""
        self.identity = ""
        self.refused = 0
        self.waits_alone = False
        self.keep()

    @property
    def is_exhausted(self) -> bool:
        """See SourceConnection."""
        ended = all(each.has_ended for each in self._kept.values())
        return self._source.ends and ended and self._source.inputs.keys() <= self._kept.keys()

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        """See SourceConnection."""
        self.keep()
        if not limit:
            return []
        if unknown := self._unknown():
            self.waits_alone = has_suspects(self._kept[key].deaths for key in unknown)
            return self._returned(unknown)
        if not self._find(limit, alone=alone):
            return []
        return self._returned(self._request(CLAIM, lambda: self._claim(self._find(limit, alone=alone))))

    def ack(self, claims: Sequence[Claim]) -> None:
        """See SourceConnection."""

        def end() -> None:
            for kept in self._own(claims):
                kept.state = DONE

        self._request(ACK, end)
        self._let_go(claims)

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """See SourceConnection."""

        def end() -> None:
            for claim, reason in claims:
                for kept in self._own([claim]):
                    kept.state, kept.reason = REFUSED, reason

        self._request(REFUSE, end)
        self._let_go([claim for claim, _ in claims])

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """See SourceConnection."""

        def free() -> None:
            for kept in self._own(claims):
                kept.state, kept.deaths = FREE, kept.deaths + failed

        self._request(GIVE_BACK, free)
        self._let_go(claims)

    def keep(self) -> None:
        """See SourceConnection."""
        self._source.seen[self._owner] = self._source.clock()

    def close(self) -> None:
        """See SourceConnection."""

    def end_lease(self) -> None:
        """Ends the lease at once, as if its time had passed: the claims then belong to a dead worker."""
        self._source.seen[self._owner] = float("-inf")

    def _request(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return self._source.request(name, action)
        except ClientError as error:
            raise SourceUnavailable(f"{name}: no answer", may_return=True) from error

    def _owns(self, kept: Kept) -> bool:
        return kept.state == CLAIMED and kept.owner == self._owner

    def _own(self, claims: Iterable[Claim]) -> list[Kept]:
        found = [self._kept[claim.token] for claim in claims]
        return [kept for kept in found if self._owns(kept)]

    def _let_go(self, claims: Iterable[Claim]) -> None:
        self._held.difference_update(claim.token for claim in claims)

    def _unknown(self) -> list[Any]:
        """Returns the inputs that a request without an answer has claimed."""
        inputs, held = self._source.inputs, self._held
        return [key for key, kept in self._kept.items() if self._owns(kept) and key in inputs and key not in held]

    def _to_read_again(self) -> dict[Any, int]:
        """Returns the inputs that were given back, or whose connection is dead, each with its deaths."""
        silent = self._source.clock() - self._source.lease
        return {
            key: kept.deaths + (kept.state == CLAIMED)
            for key, kept in self._kept.items()
            if (kept.state == FREE or (kept.state == CLAIMED and self._source.seen[kept.owner] < silent))
            and key not in self._held
        }

    def _find(self, limit: int, *, alone: bool) -> list[tuple[Any, Kept]]:
        """Returns the inputs to claim and the inputs to refuse, each with its new Kept."""
        inputs, deaths = self._source.inputs, self._to_read_again()
        chosen = choose(deaths, limit, alone=alone)
        self.waits_alone = chosen.left or chosen.are_suspects
        found = [(key, Kept(REFUSED, self._owner, deaths[key], REASON)) for key in chosen.refused]
        for key in chosen.read:
            state, reason = (CLAIMED, None) if key in inputs else (REFUSED, DELETED)
            died = self._kept[key].state == CLAIMED
            found.append((key, Kept(state, self._owner, deaths[key], reason, taken_over=died)))
        new = [] if self.waits_alone else sorted(inputs.keys() - self._kept.keys())
        return found + [(key, Kept(CLAIMED, self._owner)) for key in new[: max(0, limit - len(chosen.read))]]

    def _claim(self, found: list[tuple[Any, Kept]]) -> list[Any]:
        """Claims and refuses inputs; returns the keys of the inputs that were claimed."""
        self._kept.update(found)
        self.refused += sum(kept.state == REFUSED for _, kept in found)
        return [key for key, kept in found if kept.state == CLAIMED]

    def _returned(self, keys: Iterable[Any]) -> list[Claim]:
        """Returns claims, with copies of the values: a function may change what it gets."""
        known = [(key, deepcopy(self._source.inputs[key]), self._kept[key]) for key in keys]
        claims = [
            claim_of(key, value, each.deaths, weigh(value), taken_over=each.taken_over) for key, value, each in known
        ]
        self._held.update(claim.token for claim in claims)
        return claims
