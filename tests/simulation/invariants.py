"""What must hold of a simulated run: at every moment (watch.py), and once it is over. Each violation has a name.

====================  ================================================================================================
lost                  a record's outputs, dead letter or effect are not there, or not all of them (at most once: of what
                      was in flight as its process died, they need not be)
duplicate             they are there more than once (at least once, and effects: more often than what was not saved met
                      something that may repeat it)
foreign               an output of no input record, or a step of records that do not belong together
torn                  outputs and positions of a transaction, or outputs of one step, are not visible together
position too early    at least once: a position is saved whose outputs are not written
position too late     at most once: an output is written whose position is not saved
aborted read          a function was given a record of an aborted transaction
precommitted read     a function was given a record of a transaction that was still open
order                 outputs of one input partition in one output partition are not in its order (at least once: copies
                      beside; at most once: but for those in flight as their process lost its partitions)
choices               an alts took records in another order than an attempt before it
hash                  not one delivery hash for one step
positions             the group's positions in the end are not the ends of its inputs
positions lost        the group's positions were deleted, and nobody said so
ended                 a process ended though nothing had happened
replaced by ...       a process was told that it was replaced, by nobody or by an older one
stuck                 the input was not processed within any reasonable number of turns
====================  ================================================================================================

What may be repeated, lost or late is counted where it happens: see life.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from kstreams_py.record import HASH_HEADER, Message, Positions, TopicPartition
from tests.simulation.life import Place
from tests.simulation.plan import ALO, AMO, EO, GHOST, Kind, Stage

if TYPE_CHECKING:
    from tests.simulation.world import World


class Row(NamedTuple):
    """An output, dead letter or effect: its topic (or "effect"), the records of its step, and its value.

    Of a dead letter, the value of its step.
    """

    topic: str
    places: tuple[Place, ...]
    value: bytes

    def __str__(self) -> str:
        return f"{self.topic} {self.value!r} of {', '.join(f'{t}{life}[{p}]@{o}' for t, life, p, o in self.places)}"


def inputs(world: World, stage: Stage) -> list[TopicPartition]:
    """The partitions that a processor has to read."""
    partitions = world.log._broker.topics
    return [p.name for topic in stage.inputs for p in partitions[topic].partitions]


def saved(world: World, stage: Stage) -> Positions:
    """The group's positions of these."""
    wanted = set(inputs(world, stage))
    return {tp: at for tp, at in world.log.group(stage.group).items() if tp in wanted}


def standing(world: World) -> str:
    """Where the processors stand."""
    return "; ".join(
        f"{s.id} {short(saved(world, s))} of {short(world.log.ends(inputs(world, s)))}" for s in world.stages
    )


def readable(world: World, stage: Stage) -> dict[Place, bytes]:
    """What a processor can read now of its inputs, from where it has to begin."""
    return {
        (topic, world.life_of(topic), m.partition(), m.offset()): m.value() or b""
        for topic in stage.inputs
        for m in world.log.records(topic)
        if m.offset() >= world.inputs.starts.get(TopicPartition(topic, m.partition()), 0)
    }


def judge(world: World) -> None:
    """What must hold once all input was processed and every worker has ended."""
    letters = world.graph.topics["dead"].value.bind(world.registry, "dead-value")  # type: ignore[attr-defined]
    rows: dict[str, list[tuple[Row, Message]]] = defaultdict(list)
    for topic in world.written:
        for m in world.log.records(topic):
            value = _value(m, letters)
            if (called := world.functions.steps.get(hash_of(m))) is None:
                world.violate("hash", f"{topic} {value!r} has one of no step")
            else:
                rows[called.stage.id].append((Row(topic, called.places, value), m))
    for stage in world.stages:
        _copies(world, stage, rows[stage.id])
        _order(world, stage, rows[stage.id])
        _choices(world, stage)
        ends = world.log.ends(inputs(world, stage))
        if (found := saved(world, stage)) != ends:
            world.violate("positions", f"{stage.id}: {short(found)}, and the ends are {short(ends)}")


def _copies(world: World, stage: Stage, rows: Iterable[tuple[Row, Message]]) -> None:
    must, may = _steps(world, stage)
    wanted = {Row(topic, places, value) for places, values in must.items() for topic, value in stage.expected(values)}
    allowed = {
        Row(topic, places, value)
        for places, values in (must | may).items()
        for topic, value in (*stage.allowed(values), *(stage.expected(values) if places in may else ()))
    }
    found = Counter(row for row, _ in rows)
    for digest, times in world.functions.effects.items():
        of, places, values = world.functions.steps[digest]
        if of.id == stage.id:
            found[Row("effect", places, b"+".join(values))] += times
    for of, places, values in world.functions.steps.values():
        if of.id == stage.id and must.get(places, may.get(places)) != values:
            ghosts = any(value.startswith(GHOST) for value in values)
            world.violate("aborted read" if ghosts else "foreign", f"{stage.id}: the function was given {values}")
    repeatable, losable = world.bounds.repeatable[stage.id], world.bounds.losable[stage.id]
    for row in sorted(wanted | found.keys()):
        told = f"{stage.id}: {row}: {found[row]} times"
        if row not in wanted and row not in allowed:
            world.violate("foreign", told)
        elif row in wanted and not found[row] and not (stage.guarantee is AMO and losable & set(row.places)):
            world.violate("lost", told)
        elif found[row] > 1 + (repeatable[row.places[0]] if stage.guarantee is ALO or row.topic == "effect" else 0):
            world.violate("duplicate", f"{told}, and {repeatable[row.places[0]]} more than one may be")


Steps = dict[tuple[Place, ...], tuple[bytes, ...]]


def _steps(world: World, stage: Stage) -> tuple[Steps, Steps]:
    """The steps there must be, from what can be read of the inputs; and those that may be, of inputs that are not read
    any more."""
    if stage.kind is Kind.JOIN:
        by_place = sorted(readable(world, stage).items())
        columns = [
            [(place, value) for place, value in by_place if place[0] == topic and place[2] == number]
            for number in sorted({place[2] for place, _ in by_place})
            for topic in stage.inputs
        ]
        pairs = [pair for a, b in zip(columns[::2], columns[1::2], strict=True) for pair in zip(a, b, strict=False)]
        return {(one[0], other[0]): (one[1], other[1]) for one, other in pairs}, {}
    must: Steps = {(place,): (value,) for place, value in readable(world, stage).items()}
    may: Steps = {}
    for retired in world.restarts.retired:
        if retired.stage.id == stage.id:
            for place, value in retired.values.items():
                (must if place[3] < retired.position else may)[place,] = (value,)
    return must, may


def _order(world: World, stage: Stage, rows: Iterable[tuple[Row, Message]]) -> None:
    """Exactly once in order; at least once so beside copies; at most once so beside what was in flight."""
    sequences: dict[tuple[str, int, tuple[str, int, int]], list[tuple[int, bytes]]] = defaultdict(list)
    for row, m in rows:
        topic, life, number, offset = row.places[0]
        if stage.guarantee is not AMO or row.places[0] not in world.bounds.strays[stage.id]:
            sequences[row.topic, m.partition(), (topic, life, number)].append((offset, row.value))
    for (topic, number, of), sequence in sequences.items():
        if stage.guarantee is ALO:
            rest = iter(sequence)
            ordered = all(each in rest for each in sorted(set(sequence)))
        else:
            ordered = all(left < right for left, right in pairwise(sequence))
        if not ordered:
            world.violate("order", f"{stage.id}: {topic}[{number}] has of {of}: {[value for _, value in sequence]}")


def _choices(world: World, stage: Stage) -> None:
    """Every attempt takes the records of an alts in the order of their first attempts."""
    if stage.kind is not Kind.ALTS or stage.guarantee is not EO:
        return
    mine = (called.places for called in world.functions.steps.values() if called.stage.id == stage.id)
    rank = {places: place for place, places in enumerate(mine)}
    for (life, attempt, partition), calls in world.functions.calls.items():
        if life.stage.id == stage.id and any(rank[left] >= rank[right] for left, right in pairwise(calls)):
            world.violate("choices", f"attempt {attempt} on partition {partition}: {calls}")


def hash_of(m: Message) -> bytes:
    return dict(m.headers() or []).get(HASH_HEADER) or b""


def _value(m: Message, letters: Any) -> bytes:
    if m.topic() != "dead":
        return m.value() or b""
    return b"+".join(each["value"] for each in letters.deserialize(m.value())["inputs"])


def short(positions: Positions) -> str:
    return " ".join(f"{tp}@{offset}" for tp, offset in sorted(positions.items()))
