"""The invariants of a simulated run: checked after every turn (watch.py), and at its end. Each violation has a name.

The anomalies of the checker (kstreams_py/graph/anomalies.py). A step is identified by its delivery hash:

====================  ================================================================================================
lost                  an output, dead letter or effect of a record is missing (at most once: unless the record was in
                      flight when its process died)
duplicate             there is a surplus copy of one (at least once, and effects: more copies than faults met the record
                      while it was not committed)
foreign               an output of no input record, or a step of records that do not belong together
torn transaction      outputs and offsets of a transaction, or outputs of one step, are not visible together
aborted read          a function was called with a record of an aborted transaction
precommitted read     a function was called with a record of a transaction that was still open
order broken          outputs of one input partition in one output partition are not in its order (at least once: in no
                      copy; at most once: except those in flight when their process lost its partitions)
====================  ================================================================================================

Violations that only the simulation can see, because it looks into processes and groups:

============================  ========================================================================================
position too early            at least once: offsets are committed whose outputs are not written
position too late             at most once: an output is written whose offset is not committed
choices                       an alts read records in another order than in an earlier attempt
calls                         calls that overlap were made in another order than their processor asks for
hash                          a step has several delivery hashes, or a hash several steps
counts                        the workers count other steps, outputs or dead letters than those that are committed
positions                     the offsets of a group, or in a target, are not the ends of the inputs after the run
positions lost                the committed offsets of a group were deleted, and no worker reported it
ended                         a process ended without a fault
undecidable                   a process ended for an operator to decide, and nothing contradicts itself here
replaced without a holder     a process ended as replaced, and no other member holds its membership
replaced by an older process  a process ended as replaced by a process that had started before it
stuck                         the input was not processed within TURNS_MAX turns
broken                        the run itself failed
============================  ========================================================================================

The records that may be repeated, lost or late are noted when a fault happens: see watched_worker.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kstreams_py.graph.anomalies import Kind
from kstreams_py.graph.declarations import Order
from kstreams_py.graph.sink import Evidence
from kstreams_py.records import HASH_HEADER, Message, Positions, TopicPartition
from kstreams_py.testing.verdicts import compare, overtaken, overtaken_in_every_copy
from tests.simulation.plan import ALO, AMO, EO, GHOST, ROWS, Stage
from tests.simulation.plan import Kind as StageKind
from tests.simulation.watched_worker import Place

if TYPE_CHECKING:
    from tests.simulation.world import World


OWN_NAMES: Final = {
    "position too early", "position too late", "choices", "calls", "hash", "counts", "positions", "positions lost",
    "ended", "undecidable", "replaced without a holder", "replaced by an older process", "stuck", "broken",
}  # fmt: skip
"""Violations that are not anomalies of the checker."""

NAMES: Final = {*map(str, Kind)} | OWN_NAMES


class Row(NamedTuple):
    """An output, dead letter or effect: its topic (or "effect"), the places of its step's records, and its value.

    The value of a dead letter is that of its step.
    """

    topic: str
    places: tuple[Place, ...]
    value: bytes

    def __str__(self) -> str:
        return f"{self.topic} {self.value!r} of {', '.join(f'{t}{times}[{p}]@{o}' for t, times, p, o in self.places)}"


Steps = dict[tuple[Place, ...], tuple[bytes, ...]]
"""The values of each step, by the places of its records."""


class Case(NamedTuple):
    """One processor of a run that has ended. As in the checker, a check is a function from a case to violations."""

    world: World
    stage: Stage
    rows: Sequence[tuple[Row, Message]]
    """The records found, topic by topic, in the order of each partition."""
    must: Steps
    """The steps that must be there."""
    may: Steps
    """The steps that may be there: of inputs that are not read any more."""


Violations = Iterator[tuple[str, str]]
"""The name and the evidence of each violation."""


def inputs(world: World, stage: Stage) -> list[TopicPartition]:
    """The input partitions of a processor."""
    partitions = world.cluster._broker.topics
    return [p.name for topic in stage.inputs for p in partitions[topic].partitions]


def saved(world: World, stage: Stage) -> Positions:
    """The committed offsets of a processor's input partitions."""
    wanted = set(inputs(world, stage))
    return {tp: at for tp, at in world.cluster.groups[stage.group].items() if tp in wanted}


def stored(world: World, stage: Stage) -> Positions:
    """The offsets of a processor's input partitions in its target, where it stores them."""
    if stage.stores is not Evidence.OFFSETS:
        return {}
    found = world.targets[stage.group].positions.get(stage.group, {})
    topics = world.cluster._broker.topics
    names = {f"{topic}@{topics[topic].topic_id}": topic for topic in stage.inputs}
    return {TopicPartition(names[tp.topic], tp.partition): at for tp, at in found.items() if tp.topic in names}


def describe_progress(world: World) -> str:
    """Formats the committed offsets of all processors, and the ends of their inputs."""
    return "; ".join(
        f"{s.id} {short(saved(world, s))} of {short(world.cluster.ends(inputs(world, s)))}" for s in world.stages
    )


def readable(world: World, stage: Stage) -> dict[Place, bytes]:
    """The values of the records that a processor can read now, from its start offsets, by place."""
    return {
        (topic, world.recreations_of(topic), m.partition(), m.offset()): m.value() or b""
        for topic in stage.inputs
        for m in world.cluster.records(topic)
        if m.offset() >= world.inputs.starts.get(TopicPartition(topic, m.partition()), 0)
    }


def _attributed(world: World) -> dict[str, list[tuple[Row, Message]]]:
    """All output records by processor, each with the step of its delivery hash."""
    dead_letters = world.graph.topics["dead"].value.bind(world.registry, "dead-value")  # type: ignore[attr-defined]
    rows: dict[str, list[tuple[Row, Message]]] = defaultdict(list)
    for topic in world.written:
        for m in world.other.records(topic):
            value = _value(m, dead_letters)
            if (called := world.functions.steps.get(hash_of(m))) is None:
                world.violate("hash", f"{topic} {value!r} has the hash of no step")
            else:
                rows[called.stage.id].append((Row(topic, called.places, value), m))
    return rows


def wrong_steps(case: Case) -> Violations:
    """Checks that the function was called with committed records only, of a join with those that belong together."""
    for of, places, values in case.world.functions.steps.values():
        if of.id == case.stage.id and case.must.get(places, case.may.get(places)) != values:
            is_ghost = any(value.startswith(GHOST) for value in values)
            yield Kind.ABORTED_READ if is_ghost else Kind.FOREIGN, f"the function was called with {values}"


def miscounted(case: Case) -> Violations:
    """Checks that each output, dead letter and effect is there once, except what the faults of the run excuse."""
    world, stage, rows, must, may = case
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
    repeatable = world.bounds.repeatable[stage.id]
    losable = world.bounds.losable[stage.id] if stage.guarantee is AMO else set[Place]()
    least = {row: 1 for row in wanted if losable.isdisjoint(row.places)}
    if stage.stores:
        for each in world.targets[stage.group].rows:
            digest, value = each.values
            found[Row(ROWS, world.functions.steps[digest].places, value)] += 1
    repeats = {row: _may_repeat(stage, row.topic) for row in wanted | allowed}
    most = {row: 1 + repeatable[row.places[0]] * may_repeat for row, may_repeat in repeats.items()}
    comparison = compare(found, least, most)
    for kind, wrong in comparison.by_kind():
        for row in sorted(wrong):
            yield kind, f"{row}: {found[row]} times, expected {least.get(row, 0)} to {most.get(row, 0)} times"


def _may_repeat(stage: Stage, topic: str) -> bool:
    """Whether faults may repeat what a processor writes there."""
    if topic == ROWS:
        return False
    return stage.guarantee is ALO or topic == "effect" or stage.stores is Evidence.OFFSETS


def _steps(world: World, stage: Stage) -> tuple[Steps, Steps]:
    """The steps that must be there, and those that may be: of inputs that are not read any more."""
    if stage.kind is StageKind.JOIN:
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


def disordered(case: Case) -> Violations:
    """Checks that the outputs of an input partition are in its order, in each output partition.

    At least once, one copy of each output must be in order. At most once, records in flight at a fault are left out;
    so are dead letters which are committed before it is known whether a target refuses a row before them.
    """
    world, stage, rows, _, _ = case
    if stage.stores is Evidence.OFFSETS:
        return
    delayed = world.bounds.delayed[stage.id] if stage.guarantee is AMO else set[Place]()
    late = overtaken_in_every_copy if stage.guarantee is ALO else overtaken
    for (before, _), (row, m) in late((each for each in rows if each[0].places[0] not in delayed), _line, _rank):
        yield Kind.ORDER_BROKEN, f"{m.topic()}[{m.partition()}] has {row} after {before}"


def _line(each: tuple[Row, Message]) -> tuple[str, int, Any]:
    """The output partition and the input partition, within which records have an order."""
    row, m = each
    topic, times, number, _ = row.places[0]
    return row.topic, m.partition(), (topic, times, number)


def _rank(each: tuple[Row, Message]) -> tuple[int, bytes]:
    row, _ = each
    return row.places[0][3], row.value


def rechosen(case: Case) -> Violations:
    """Checks that every attempt of an alts reads records in the order of their first attempts."""
    world, stage, _, _, _ = case
    if stage.kind is not StageKind.ALTS or stage.guarantee is not EO or world.plan.order in (Order.KEY, Order.NONE):
        return
    mine = (called.places for called in world.functions.steps.values() if called.stage.id == stage.id)
    rank = {places: place for place, places in enumerate(mine)}
    for (watched, attempt, partition), calls in world.functions.calls.items():
        least = 0 if world.plan.away else 1  # a call that failed is followed by another of the same step
        if watched.stage.id == stage.id and any(rank[right] - rank[left] < least for left, right in pairwise(calls)):
            yield "choices", f"attempt {attempt} on partition {partition}: {calls}"


def overtaken_calls(case: Case) -> Violations:
    """Checks that calls which overlap are made in the order that their processor asks for."""
    for (watched, attempt, by), calls in case.world.functions.calls.items():
        if watched.stage is not case.stage or case.stage.order is None:
            continue
        last: dict[str, int] = {}
        for places in calls:
            topic, _, _, offset = places[0]
            if offset < last.get(topic, 0):
                yield "calls", f"attempt {attempt}, in order by {by}: {calls}"
            last[topic] = offset


def not_at_the_ends(case: Case) -> Violations:
    """Checks that the committed offsets of the group are the ends of its inputs."""
    ends = case.world.cluster.ends(inputs(case.world, case.stage))
    if (found := saved(case.world, case.stage)) != ends:
        yield "positions", f"{short(found)}, and the ends are {short(ends)}"
    if not (kept := stored(case.world, case.stage)).items() <= ends.items():
        yield "positions", f"the target has {short(kept)}, and the ends are {short(ends)}"


def wrong_counts(case: Case) -> Violations:
    """Checks that the counts of all workers are those of the topics, without the copies that are there.

    Less is counted if a worker could not hear that its commit was carried out, and if a weaker guarantee repeats or
    loses records; more only if a zombie decides by the offsets of its successor.
    """
    world, stage, rows, must, _ = case
    if any(fault.stops_all for fault in world.strikes.fired):
        return
    of_workers = [each.worker.counters for each in world.workers if each.stage is stage and each.worker is not None]
    names = ("records_in", "records_out", "dead_letters")
    counted = [sum(getattr(counters, name) for counters in of_workers) for name in names]
    topics = Counter(row.topic for row in {row for row, _ in rows})
    stored = len(world.targets[stage.group].rows) if stage.stores else 0
    found = [len(must), topics.total() - topics["dead"] + stored, topics["dead"]]
    uncounted = world.bounds.uncounted[stage.id]
    is_more = any(more > there for more, there in zip(counted, found, strict=True))
    is_exact = stage.guarantee is EO and not uncounted
    if stage.id not in world.bounds.counted_twice and (is_more or (is_exact and counted != found)):
        yield "counts", f"{dict(zip(names, counted, strict=True))}, and {found} are committed"
    if stage.guarantee is EO and counted[0] + uncounted < found[0]:
        yield "counts", f"{counted[0]} of {found[0]} steps, and {uncounted} were in flight"


CHECKS: Final[Sequence[Callable[[Case], Violations]]] = (
    miscounted,
    wrong_steps,
    disordered,
    rechosen,
    overtaken_calls,
    not_at_the_ends,
    wrong_counts,
)


def judge(world: World) -> None:
    """Runs all checks, after all input was processed and every worker has ended."""
    rows = _attributed(world)
    for stage in world.stages:
        case = Case(world, stage, rows[stage.id], *_steps(world, stage))
        for check in CHECKS:
            for name, evidence in check(case):
                world.violate(name, f"{stage.id}: {evidence}")


def hash_of(m: Message) -> bytes:
    return dict(m.headers() or []).get(HASH_HEADER) or b""


def _value(m: Message, dead_letters: Any) -> bytes:
    if m.topic() != "dead":
        return m.value() or b""
    return b"+".join(each["value"] for each in dead_letters.deserialize(m.value())["inputs"])


def short(positions: Positions) -> str:
    return " ".join(f"{tp}@{offset}" for tp, offset in sorted(positions.items()))
