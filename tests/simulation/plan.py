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

FAILS, SKIPS, HALTS, STOPS, REFUSED = b"!", b"~", b"^", b"$", b"%"
"""Ends of a value for which the function raises, returns nothing, the first time stops its worker (with an unhandled
exception, or with Stop), or returns outputs without a key, which the compacted topic x refuses."""

GHOST = b"ghost of "
"""How the values of transactions begin that are aborted."""

EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


class Halt(Exception):
    """An unhandled exception of the user's function."""


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
    def outputs(self) -> tuple[str, ...]:
        return () if self is Kind.SINK else ("x", "y") if self is Kind.FORK else ("x",)


@dataclass(frozen=True, slots=True)
class Stage:
    """A processor of a run, and what must become of its records."""

    id: str
    kind: Kind
    guarantee: Guarantee
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def group(self) -> str:
        return f"g.{self.id}"

    def results(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """What the function makes of a step, as (topic, value) pairs; a sink has an effect."""
        value = b"+".join(values)
        if values[0].endswith((SKIPS, FAILS)):
            return []
        match self.kind:
            case Kind.FORK:
                return [(topic, value + b">" + topic.encode()) for topic in self.outputs]
            case Kind.GENERATOR:
                return [(self.outputs[0], value + b">1"), (self.outputs[0], value + b">2")]
            case Kind.SINK:
                return [("effect", value)]
            case _:
                return [(self.outputs[0], value)]

    def expected(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """What a step must come to, dead letters included."""
        dead = ("dead", b"+".join(values))
        if values[0].endswith(FAILS):
            return [dead]
        if not self.is_refused(values):
            return self.results(values)
        accepted = [(topic, value) for topic, value in self.results(values) if topic != self.outputs[0]]
        return [dead, *accepted] if self.guarantee is AMO else [dead]

    def allowed(self, values: tuple[bytes, ...]) -> list[tuple[str, bytes]]:
        """What a step may come to beside that: at least once, what was written beside an output that is refused."""
        if self.guarantee is ALO and self.is_refused(values):
            return [(topic, value) for topic, value in self.results(values) if topic != self.outputs[0]]
        return []

    def is_refused(self, values: tuple[bytes, ...]) -> bool:
        """Whether an output of the step is refused by its topic."""
        return bool(self.outputs) and values[0].endswith(REFUSED)


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
    AWAY = "away"
    """The coordinator of the groups is away for a while: what is asked of it is lost, or carried out unanswered."""
    STALLED = "stalled"
    """The leaders of the outputs are away for a while: the same of what is written to them."""
    GROWN = "grown"
    """Every input topic gets one more partition, and records in it at once; of a join at times only one, until a worker
    has ended by it."""
    DEPLOYED = "deployed"
    """All processes stop or die, and others start: an alts without its last input, any other processor as it was."""
    REMADE = "remade"
    """All processes stop or die, the last input topic is deleted and created again, and processes start."""
    EXPIRED = "expired"
    """All processes stop or die for so long that Kafka forgets the positions of their groups, and processes start."""

    @property
    def stops_all(self) -> bool:
        """All processes end before it."""
        return self in (Fault.DEPLOYED, Fault.REMADE, Fault.EXPIRED)


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

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the kind's processor reads; an alts one topic more if it is to be deployed without it."""
        if self.kind is Kind.ALTS and any(strike.fault is Fault.DEPLOYED for strike in self.strikes):
            return ("a", "b", "c")
        return ("a", "b") if self.kind in (Kind.JOIN, Kind.ALTS) else ("a",)

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
    def random(cls, seed: int, faults: Sequence[Fault] = tuple(Fault)) -> Self:
        """The random run of a seed: half of them exactly once, a quarter each of the others."""
        random = Random(f"plan {seed}")
        kind = random.choice(list(Kind))
        strikes = [Strike(random.choice(faults), random.randint(1, 40)) for _ in range(random.randint(0, 4))]
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
