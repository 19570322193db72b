"""What must hold of a simulated run: at every moment, and once it is over. Each violation has a name.

==================  ==================================================================================================
lost                a record's outputs, dead letter or effect are not there, or not all of them (not: at most once)
duplicate           they are there more than once (not: at least once after a fault)
foreign             an output of no input record, or a step of records that do not belong together
torn                outputs and positions of a transaction, or outputs of one step, are not visible together
position too early  at least once: a position is saved whose outputs are not written
position too late   at most once: an output is written whose position is not saved
aborted read        a function was given a record of an aborted transaction
precommitted read   a function was given a record of a transaction that was still open
order               outputs of one input partition in one output partition are not in its order
choices             an alts took records in another order than an attempt before it
hash                not one delivery hash for one step
positions           the group's positions in the end are not the ends of its inputs
stuck               the input was not processed within any reasonable number of turns
==================  ==================================================================================================
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kstreams_py.record import HASH_HEADER, Message, Positions, TopicPartition
from tests.simulation.plan import ALO, AMO, EO, GHOST, Kind

if TYPE_CHECKING:
    from tests.simulation.world import World

Row = tuple[str, bytes]
"""A topic (or "effect") and a value; of a dead letter, the value of its step."""


def watch(world: World) -> None:
    """What must hold at every moment: outputs and positions, as the guarantee has it."""
    positions = world.log.group("g.p")
    seen = (positions, world.log.ends(world.outputs), len(world.steps), world.effects.total())
    if seen == world.watched:
        return
    world.watched = seen
    guarantee, kind = world.plan.guarantee, world.plan.kind
    found, hidden = _outputs(world, seen[1])
    for digest, values in world.steps.items():
        wanted = kind.wanted(values)
        if not wanted or digest in hidden:
            continue
        there = found.get(digest, ())
        effect = digest in world.effects
        some, every = bool(there) or effect, effect or all(topic in there for topic in wanted)
        saved = all(offset < positions.get(tp, 0) for tp, offset in map(world.inputs.places.__getitem__, values))
        if guarantee is EO and (saved != some or some != every) and not effect:
            name = "torn"
        elif guarantee is ALO and saved and not every:
            name = "position too early"
        elif guarantee is AMO and some and not saved:
            name = "position too late"
        else:
            continue
        world.violate(name, f"{values} came to {list(there)}, positions {_short(positions)}")


def _outputs(world: World, stable: Positions) -> tuple[dict[bytes, list[str]], set[bytes]]:
    """Where outputs of each delivery hash can be read; and hashes that are behind the last stable offset.

    Of these nobody can tell: they are not committed, or wait for another transaction's end.
    """
    found: dict[bytes, list[str]] = defaultdict(list)
    hidden: set[bytes] = set()
    for topic in (*world.plan.kind.outputs, "dead"):
        for m in world.log.records(topic):
            found[_hash(m)].append(topic)
        for m in world.log.records(topic, "read_uncommitted"):
            if m.offset() >= stable[TopicPartition(topic, m.partition())]:
                hidden.add(_hash(m))
    return found, hidden


def judge(world: World) -> None:
    """What must hold once all input was processed and every worker has ended."""
    watch(world)
    kind = world.plan.kind
    records = {topic: world.log.records(topic) for topic in (*kind.outputs, "dead")}
    letters = world.graph.topics["dead"].value.bind(world.registry, "dead-value")  # type: ignore[attr-defined]
    rows = [(topic, _value(m, letters), m) for topic, found in records.items() for m in found]
    _copies(world, rows)
    _hashes(world, rows)
    _order(world, rows)
    _choices(world)
    ends = world.log.ends(world.inputs.partitions)
    if (saved := world.log.group("g.p")) != ends:
        world.violate("positions", f"{_short(saved)}, and the ends are {_short(ends)}")


def _copies(world: World, rows: Iterable[tuple[str, bytes, Message]]) -> None:
    kind, guarantee = world.plan.kind, world.plan.guarantee
    steps = _steps(world)
    wanted = Counter(row for values in steps for row in kind.expected(values))
    found = Counter((topic, value) for topic, value, _ in rows)
    for digest, times in world.effects.items():
        found["effect", b"+".join(world.steps[digest])] += times
    for values in world.steps.values():
        if values not in steps:
            ghosts = any(value.startswith(GHOST) for value in values)
            world.violate("aborted read" if ghosts else "foreign", f"the function was given {values}")
    for row in wanted.keys() | found.keys():
        told = f"{row}: {found[row]} times"
        if row not in wanted:
            world.violate("foreign", told)
        elif found[row] < wanted[row] and (guarantee is not AMO or not world.disturbed):
            world.violate("lost", told)
        elif found[row] > wanted[row] and not _may_repeat(world, row):
            world.violate("duplicate", told)


def _may_repeat(world: World, row: Row) -> bool:
    """After a fault, an at-least-once step may be done again, and a sink's effect unless it is at most once."""
    repeats = world.plan.guarantee is ALO or (world.plan.guarantee is EO and row[0] == "effect")
    return repeats and world.disturbed


def _steps(world: World) -> set[tuple[bytes, ...]]:
    """The values of each step there should be, from what can be read of the inputs."""
    kind = world.plan.kind
    inputs = {tp: [] for tp in world.inputs.partitions}
    for topic in kind.inputs:
        for m in world.log.records(topic):
            inputs[TopicPartition(topic, m.partition())].append(m.value() or b"")
    if kind is not Kind.JOIN:
        return {(value,) for values in inputs.values() for value in values}
    numbers = {tp.partition for tp in inputs}
    return {
        step
        for number in numbers
        for step in zip(*(inputs[TopicPartition(topic, number)] for topic in kind.inputs), strict=True)
    }


def _hashes(world: World, rows: Iterable[tuple[str, bytes, Message]]) -> None:
    for topic, value, m in rows:
        values = world.steps.get(_hash(m))
        if values is None or (topic, value) not in world.plan.kind.expected(values):
            world.violate("hash", f"{topic} {value!r} has that of {values}")


def _order(world: World, rows: Iterable[tuple[str, bytes, Message]]) -> None:
    if world.plan.guarantee is not EO and world.overlapping:
        return
    sequences: dict[tuple[str, int, TopicPartition], list[tuple[int, bytes]]] = defaultdict(list)
    for topic, value, m in rows:
        tp, offset = world.inputs.places[value.split(b">")[0].split(b"+")[0]]
        sequences[topic, m.partition(), tp].append((offset, value))
    for (topic, number, tp), sequence in sequences.items():
        once = sorted({each: place for place, each in enumerate(sequence)}.items(), key=lambda item: item[1])
        judged = [each for each, _ in once]  # of several copies, the last: whoever did it again went on from there
        if any(left >= right for left, right in pairwise(judged)):
            world.violate("order", f"{topic}[{number}] has of {tp}: {[value for _, value in sequence]}")


def _choices(world: World) -> None:
    """Every attempt takes the records of an alts in the order of their first attempts."""
    if world.plan.kind is not Kind.ALTS or world.plan.guarantee is not EO:
        return
    rank = {values: place for place, values in enumerate(world.steps.values())}
    for (process, attempt, partition), calls in world.calls.items():
        if any(rank[left] >= rank[right] for left, right in pairwise(calls)):
            world.violate("choices", f"attempt {attempt} of slot {process.slot} on partition {partition}: {calls}")


def _hash(m: Message) -> bytes:
    return dict(m.headers() or []).get(HASH_HEADER) or b""


def _value(m: Message, letters: Any) -> bytes:
    if m.topic() != "dead":
        return m.value() or b""
    return b"+".join(each["value"] for each in letters.deserialize(m.value())["inputs"])


def _short(positions: Positions) -> str:
    return " ".join(f"{tp}@{offset}" for tp, offset in sorted(positions.items()))
