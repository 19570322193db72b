"""What a simulated run is: a kind, a guarantee, surroundings by a seed, and what strikes it at which points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, Self, TypeVar

from kstreams_py.delivery import Guarantee

PARTITIONS: Final = 2
"""Of every topic."""

RECORDS: Final = 5
"""Of each input partition, beside those that are aborted."""

T = TypeVar("T")

FAILS, SKIPS, HALTS, STOPS = b"!", b"~", b"^", b"$"
"""Ends of a value for which the function raises, returns nothing, or the first time stops its worker: with an
unhandled exception, or with Stop."""

GHOST = b"ghost of "
"""How the values of transactions begin that are aborted."""

EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


class Kind(StrEnum):
    """What the run's one processor is."""

    MAP = "map"
    FORK = "fork"
    SINK = "sink"
    JOIN = "join"
    ALTS = "alts"
    BATCH = "batch"
    GENERATOR = "generator"

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("a", "b") if self in (Kind.JOIN, Kind.ALTS) else ("a",)

    @property
    def outputs(self) -> tuple[str, ...]:
        return () if self is Kind.SINK else ("x", "y") if self is Kind.FORK else ("x",)

    def results(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """What the function makes of a step, as (topic, value) pairs; a sink has an effect."""
        value = b"+".join(values)
        if values[0].endswith((SKIPS, FAILS)):
            return []
        match self:
            case Kind.FORK:
                return [("x", value + b">x"), ("y", value + b">y")]
            case Kind.GENERATOR:
                return [("x", value + b">1"), ("x", value + b">2")]
            case Kind.SINK:
                return [("effect", value)]
            case _:
                return [("x", value)]

    def expected(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """What a step must come to, dead letters included."""
        return [("dead", b"+".join(values))] if values[0].endswith(FAILS) else self.results(values)

    def wanted(self, values: tuple[bytes, ...]) -> tuple[str, ...]:
        """The topics (or "effect") of what is expected."""
        end = values[0][-1:]
        return ("dead",) if end == FAILS else () if end == SKIPS else self.outputs or ("effect",)


class Fault(StrEnum):
    """What happens to a process at a point: a request it is about to make, or its function."""

    DIES = "dies"
    """Before the request has left it."""
    DIES_AFTER = "dies_after"
    """The request is carried out; its answer comes too late."""
    DIES_LATE = "dies_late"
    """The request is carried out seconds after its sender's death."""
    LOST = "lost"
    """The request never arrives, and its sender is told so or nothing."""
    UNANSWERED = "unanswered"
    """The request is carried out, and its sender is told that it failed, or nothing."""
    LATE = "late"
    """The sender has given the request up when it arrives."""
    DOUBLED = "doubled"
    """The request was sent again within the client; the first copy arrives seconds after the second."""
    REPLACED = "replaced"
    """The process is frozen, a replacement takes its slot and works, and the process wakes up: a zombie."""
    FROZEN = "frozen"
    """The process is frozen until its session and its transaction are over; others work meanwhile."""
    SLOW = "slow"
    """The process is slow: its transaction is over when it goes on, its session is not."""
    JOINED = "joined"
    """A worker of another slot joins: a rebalance."""
    STOPPED = "stopped"
    """The process is told to drain and stop (SIGTERM), and starts again."""

    @property
    def overlaps(self) -> bool:
        """Two senders, or two copies of a request, are about at the same time."""
        return self not in (Fault.DIES, Fault.DIES_AFTER, Fault.SLOW, Fault.STOPPED)


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at the nth point since the strike before it, or since the start."""

    fault: Fault
    after: int

    def __str__(self) -> str:
        return f"{self.fault}@{self.after}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run depends on. `seed` gives its surroundings: inputs, times, fetches, turns; 0 is a calm world.

    As text: map:exactly_once:7:dies@17:late@3, with 7/2 for two `records` in each input partition.
    """

    kind: Kind
    guarantee: Guarantee
    seed: int
    strikes: tuple[Strike, ...] = ()
    records: int = RECORDS

    def __str__(self) -> str:
        seed = str(self.seed) if self.records == RECORDS else f"{self.seed}/{self.records}"
        return ":".join([self.kind, self.guarantee, seed, *map(str, self.strikes)])

    @property
    def chance(self) -> Random:
        """What the surroundings are drawn from."""
        return Random(f"world {self.seed}") if self.seed else Calm()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`; a number alone is that of a random run."""
        if text.isdigit():
            return cls.random(int(text))
        kind, guarantee, surroundings, *strikes = text.split(":")
        seed, _, records = surroundings.partition("/")
        struck = tuple(Strike(Fault(strike.split("@")[0]), int(strike.split("@")[1])) for strike in strikes)
        return cls(Kind(kind), Guarantee(guarantee), int(seed), struck, int(records or RECORDS))

    @classmethod
    def random(cls, seed: int) -> Self:
        """The random run of a seed: half of them exactly once, a quarter each of the others."""
        random = Random(f"plan {seed}")
        kind = random.choice(list(Kind))
        strikes = [Strike(random.choice(list(Fault)), random.randint(1, 40)) for _ in range(random.randint(0, 4))]
        return cls(kind, (EO, ALO, EO, AMO)[seed % 4], seed, tuple(strikes))


class Calm(Random):
    """Leaves nothing to chance: always the first of what there is to choose from."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]

    def choices(self, population: Sequence[T], *_: object, **__: object) -> list[T]:  # type: ignore[override]
        return [population[0]]
