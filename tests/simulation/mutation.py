"""Mutations of the product, and the search for a run in which the simulation detects one.

A mutation is a patch of one or two methods. Runs are tried seed by seed until an invariant is violated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from kstreams_py.graph.declarations import Order
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence
from tests.simulation.plan import EO, REFUSED_BY_JOURNALS, Fault, Kind, Plan, Strike, orders
from tests.simulation.world import World

Patch = Callable[[pytest.MonkeyPatch], None]

SEEDS_MAX = 400
"""Runs within which a mutation must be detected, if it names no other number."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A patch, and the invariants of which one must detect it.

    The runs are random: with the faults in `faults`, or with those in `struck`, each at a request of its name; with
    `away`, functions fail for a while; with `order`, calls overlap; with `stores`, rows are stored. With `batch`,
    deliveries go through a journal, and with `elsewhere` to another cluster. It is searched for in so many `seeds`.
    """

    apply: Patch
    seen_as: Collection[str]
    guarantee: Guarantee = EO
    kinds: Sequence[Kind] = tuple(Kind)
    faults: Sequence[Fault] = tuple(Fault)
    struck: Sequence[tuple[Fault, str]] = ()
    away: bool = False
    order: Order | None = None
    stores: Evidence | None = None
    batch: int = 0
    elsewhere: bool = False
    seeds: int = SEEDS_MAX


class Mutations(dict[str, Mutation]):
    """Mutations by the names of their patches."""

    def add(self, *seen_as: str, **where: Any) -> Callable[[Patch], Patch]:
        """Adds the decorated patch, which one of these invariants detects."""

        def add(apply: Patch) -> Patch:
            self[apply.__name__] = Mutation(apply, seen_as, **where)
            return apply

        return add


def candidates(mutation: Mutation) -> Iterator[Plan]:
    """Yields the runs in which a mutation is searched for."""
    for seed in range(1, mutation.seeds + 1):
        kind = mutation.kinds[seed % len(mutation.kinds)]
        if not mutation.struck:
            refused = REFUSED_BY_JOURNALS if mutation.batch else ()
            drawn = Plan.random(seed, [fault for fault in mutation.faults if fault not in refused])
            order = mutation.order if mutation.order in orders(kind, mutation.guarantee) else None
            yield replace(
                drawn,
                kind=kind,
                guarantee=mutation.guarantee,
                away=mutation.away or drawn.away,
                order=order,
                stores=mutation.stores,
                batch=mutation.batch,
                elsewhere=mutation.elsewhere,
            )
        elif struck := _struck_at(
            Plan(kind, mutation.guarantee, seed, away=mutation.away, stores=mutation.stores), mutation.struck
        ):
            yield struck


def _struck_at(plan: Plan, struck: Sequence[tuple[Fault, str]]) -> Plan | None:
    """Adds these faults to the plan in turn, each at a random request of its name; None without such a request."""
    for fault, name in struck:
        points = World(plan).run().strikes.points
        places = [place for place, point in enumerate(points, 1) if point == name]
        if not places:
            return None
        plan = replace(plan, strikes=(*plan.strikes, Strike(fault, Random(plan.seed).choice(places))))
    return plan


def find(mutation: Mutation) -> tuple[World | None, int]:
    """Returns the first run in which an invariant that the mutation names detects it, and the number of runs tried."""
    tried = 0
    with pytest.MonkeyPatch.context() as patch:
        mutation.apply(patch)
        for plan in candidates(mutation):
            tried += 1
            world = World(plan).run()
            if {violation.partition(":")[0] for violation in world.violations} & set(mutation.seen_as):
                return world, tried
    return None, tried
