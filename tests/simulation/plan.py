"""The plan of a simulated run: a kind, a guarantee, an environment drawn from a seed, and faults at points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any, Final, Self, TypeVar

from kstreams_py.graph.declarations import Order
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence

PARTITIONS: Final = 2
"""Partitions of every topic."""

RECORDS: Final = 5
"""Records of each input partition, without aborted ones."""

T = TypeVar("T")

FAILS, SKIPS, HALTS, STOPS, REFUSED = b"!", b"~", b"^", b"$", b"%"
"""The last byte of a value, for which the function raises (`!`), returns nothing (`~`), stops its worker the first time
with an exception of `stop_on` (`^`) or with Stop (`$`), or returns outputs without a key (`%`), which the compacted
topic x refuses."""

ATTEMPTS: Final = 4
"""Of a step, where functions fail for a while (Plan.away): a dead letter for FAILS, as each attempt fails."""

FAILURES_MAX: Final = 2
"""Attempts at any other step that fail in a run, where functions fail for a while: fewer than ATTEMPTS."""

ROWS = "rows"
"""In place of a topic: of the rows of a target."""

GHOST = b"ghost of "
"""The prefix of the values of aborted transactions."""

EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


class Halt(Exception):
    """An exception of the user's function whose class is in `stop_on`."""


class Kind(StrEnum):
    """The kind of the first processor of a run."""

    MAP = "map"
    FORK = "fork"
    SINK = "sink"
    JOIN = "join"
    ALTS = "alts"
    BATCH = "batch"
    GENERATOR = "generator"

    @property
    def outputs(self) -> tuple[str, ...]:
        return () if self is Kind.SINK else ("x", "y") if self is Kind.FORK else ("x",)


@dataclass(frozen=True, slots=True)
class Stage:
    """A processor of a run, and the outputs that its records must have."""

    id: str
    kind: Kind
    guarantee: Guarantee
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    order: Order | None = None
    batch: int = 0
    stores: Evidence | None = None
    """The evidence of its target, where it stores rows in place of outputs."""

    @property
    def group(self) -> str:
        return f"g.{self.id}"

    @property
    def runs_ahead(self) -> bool:
        """Steps may be run before one of their partition that is not done, and are run again if that one is."""
        return self.order in (Order.KEY, Order.NONE)

    def results(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """The results of the function for a step, as (topic, value) pairs; that of a sink is an effect.

        Rows have the topic ROWS.
        """
        value = b"+".join(values)
        if values[0].endswith((SKIPS, FAILS)):
            return []
        name = ROWS if self.stores else next(iter(self.outputs), "effect")
        match self.kind:
            case Kind.FORK:
                return [(topic, value + b">" + topic.encode()) for topic in self.outputs]
            case Kind.GENERATOR:
                return [(name, value + b">1"), (name, value + b">2")]
            case Kind.SINK if self.stores:
                return [(name, value + b">1"), (name, value + b">2")]
            case _:
                return [(name, value)]

    def expected(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """The outputs that a step must have, dead letters included."""
        dead = ("dead", b"+".join(values))
        if values[0].endswith(FAILS):
            return [dead]
        if not self.is_refused(values):
            return self.results(values)
        if self.stores:
            return [dead]
        accepted = [(topic, value) for topic, value in self.results(values) if topic != self.outputs[0]]
        return [dead, *accepted] if self.guarantee is AMO else [dead]

    def allowed(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """Further outputs that a step may have: at least once, those written beside a refused output."""
        if self.guarantee is ALO and self.is_refused(values) and not self.stores:
            return [(topic, value) for topic, value in self.results(values) if topic != self.outputs[0]]
        return []

    def is_refused(self, values: tuple[bytes, ...]) -> bool:
        """Whether an output of the step is refused by its topic, or a row by its target."""
        return bool(self.outputs or self.stores) and values[0].endswith(REFUSED)


CONCURRENCY: Final = 3
"""Calls at once of a processor whose calls overlap."""


def orders(kind: Kind, guarantee: Guarantee) -> tuple[Order, ...]:
    """The orders in which calls of this kind may overlap under this guarantee."""
    if kind is Kind.BATCH:
        return ()
    if guarantee is AMO:
        return (Order.PARTITION,)
    return (Order.PARTITION, Order.NONE) if kind is Kind.JOIN else tuple(Order)


class Fault(StrEnum):
    """A fault of a process at a point: a request that it is about to make, or a call of its function."""

    DIES = "dies"
    """The process dies before it sends the request."""
    DIES_AFTER = "dies_after"
    """The process dies after the request is carried out, before the answer."""
    DIES_LATE = "dies_late"
    """The process dies, and the request is carried out seconds later."""
    LOST = "lost"
    """The request never arrives; its sender gets an error of any class."""
    UNANSWERED = "unanswered"
    """The request is carried out; its sender gets an error of any class."""
    LATE = "late"
    """The request arrives after its sender has given it up."""
    DOUBLED = "doubled"
    """The client has sent the request twice; the first copy arrives seconds after the second."""
    REPLACED = "replaced"
    """The process is frozen, a replacement takes its slot, and the process wakes up: a zombie."""
    FROZEN = "frozen"
    """The process is frozen until its session and its transaction have timed out; the others run meanwhile."""
    SLOW = "slow"
    """The process is slow: its transaction times out, its session does not."""
    JOINED = "joined"
    """A worker of another slot joins: a rebalance."""
    STOPPED = "stopped"
    """The process drains and stops (SIGTERM), and is restarted."""
    AWAY = "away"
    """The coordinator of the groups is away for a while: requests to it are lost, or carried out without an answer."""
    STALLED = "stalled"
    """The leaders of the outputs are away for a while: writes are lost, or carried out without an answer."""
    GROWN = "grown"
    """Every input topic gets one more partition, with records. Of a join sometimes only one input does, until a worker
    has ended because of it."""
    DEPLOYED = "deployed"
    """All processes stop or die, and others start: an alts without its last input, any other processor unchanged."""
    REMADE = "remade"
    """All processes stop or die, the last input topic is deleted and created again, and processes start."""
    EXPIRED = "expired"
    """All processes stop or die for so long that Kafka forgets the positions of their groups, and processes start."""

    @property
    def stops_all(self) -> bool:
        """All processes end before this fault happens."""
        return self in (Fault.DEPLOYED, Fault.REMADE, Fault.EXPIRED)


REFUSED_BY_JOURNALS: Final = {Fault.DEPLOYED, Fault.REMADE}
"""Changes of the inputs, which end a worker whose journal has a delivery of the old ones that was not committed."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at the nth point since the strike before it, or since the start."""

    fault: Fault
    after: int

    def __str__(self) -> str:
        return f"{self.fault}@{self.after}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run depends on. `seed` determines inputs, times, fetches and turns; 0 leaves nothing to chance.

    With `away`, the functions of all processors fail for a while, and their steps are run again (Retry). With `order`,
    calls of the first processor overlap in this order. With `batch`, the first processor has a journal, with units of
    so many steps of a task.

    As text: map:exactly_once:7:dies@17:late@3, with 7/2 for two `records` in each input partition, 7~ for `away`,
    7+key for the `order`, 7#2 for the `batch`, 7#2^ where its outputs are `elsewhere`, on another cluster, and 7&hash
    where the first processor `stores` rows in place of its outputs.
    """

    kind: Kind
    guarantee: Guarantee
    seed: int
    strikes: tuple[Strike, ...] = ()
    records: int = RECORDS
    away: bool = False
    order: Order | None = None
    batch: int = 0
    elsewhere: bool = False
    stores: Evidence | None = None

    def under(self, guarantee: Guarantee, **changed: Any) -> Self:
        """This plan under another guarantee; without its order, if the guarantee excludes that."""
        order = self.order if self.order in orders(self.kind, guarantee) else None
        return replace(self, guarantee=guarantee, order=order, **changed)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the first processor; an alts has a third one if it is to be deployed without it."""
        if self.kind is Kind.ALTS and any(strike.fault is Fault.DEPLOYED for strike in self.strikes):
            return ("a", "b", "c")
        return ("a", "b") if self.kind in (Kind.JOIN, Kind.ALTS) else ("a",)

    def __str__(self) -> str:
        seed = str(self.seed) if self.records == RECORDS else f"{self.seed}/{self.records}"
        order = "" if self.order is None else f"+{self.order}"
        batch = f"#{self.batch}{'^' * self.elsewhere}" if self.batch else ""
        stores = "" if self.stores is None else f"&{self.stores}"
        surroundings = seed + "~" * self.away + order + batch + stores
        return ":".join([self.kind, self.guarantee, surroundings, *map(str, self.strikes)])

    @property
    def chance(self) -> Random:
        """The source of the random choices of a run."""
        return Random(f"world {self.seed}") if self.seed else Calm()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text of a plan; a number alone is the seed of a random run."""
        if text.isdigit():
            return cls.random(int(text))
        kind, guarantee, surroundings, *strikes = text.split(":")
        surroundings, _, stores = surroundings.partition("&")
        surroundings, _, batch = surroundings.partition("#")
        surroundings, _, order = surroundings.partition("+")
        away = surroundings.endswith("~")
        seed, _, records = surroundings.removesuffix("~").partition("/")
        struck = tuple(Strike(Fault(strike.split("@")[0]), int(strike.split("@")[1])) for strike in strikes)
        return cls(
            Kind(kind),
            Guarantee(guarantee),
            int(seed),
            struck,
            int(records or RECORDS),
            away,
            Order(order) if order else None,
            int(batch.removesuffix("^") or 0),
            batch.endswith("^"),
            Evidence(stores) if stores else None,
        )

    @classmethod
    def random(cls, seed: int, faults: Sequence[Fault] = tuple(Fault)) -> Self:
        """Draws the plan of a seed: half of all seeds are exactly once, a quarter each the other guarantees."""
        random = Random(f"plan {seed}")
        kind = random.choice(list(Kind))
        strikes = [Strike(random.choice(faults), random.randint(1, 40)) for _ in range(random.randint(0, 4))]
        away = Random(f"away {seed}").random() < 0.25
        guarantee = (EO, ALO, EO, AMO)[seed % 4]
        chance = Random(f"order {seed}")
        order = chance.choice(orders(kind, guarantee) or (None,)) if chance.random() < 0.25 else None
        return cls(kind, guarantee, seed, tuple(strikes), away=away, order=order)


class Calm(Random):
    """Draws nothing at random: always takes the first choice."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]

    def choices(self, population: Sequence[T], *_: object, **__: object) -> list[T]:  # type: ignore[override]
        return [population[0]]
