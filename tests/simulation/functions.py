"""The user's part of a run: the graph, its functions, and the arguments of their calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kstreams_py.errors import Stop
from kstreams_py.graph.declarations import Journal, Order
from kstreams_py.graph.retry import Retry
from kstreams_py.graph.sink import Evidence, SinkConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.records import Out, Step
from tests.simulation.plan import (
    ATTEMPTS,
    CONCURRENCY,
    FAILS,
    FAILURES_MAX,
    HALTS,
    REFUSED,
    SKIPS,
    STOPS,
    Halt,
    Kind,
    Stage,
)
from tests.simulation.watched_worker import Place, WatchedWorker

if TYPE_CHECKING:
    from tests.simulation.world import World


class Called(NamedTuple):
    """A call of a function: its processor, the places and the values of its records."""

    stage: Stage
    places: tuple[Place, ...]
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a target in memory; a row has the delivery hash of its step, and a value."""

    evidence: Evidence
    columns: tuple[str, ...] = ("step", "value")

    def open(self, consumer: str) -> SinkConnection:
        raise AssertionError(f"{consumer} connects by Environment.open_sink")


def refuse(values: tuple[Any, ...]) -> str:
    """Why a target refuses a row; "" if it takes it."""
    first = values[1].partition(b"+")[0].partition(b">")[0]
    return "refused" if first.endswith(REFUSED) else ""


class Functions:
    """The functions of all processors of a run, and each of their calls."""

    def __init__(self, world: World) -> None:
        self.steps: dict[bytes, Called] = {}
        """The first call with each delivery hash."""
        self.hashes: dict[tuple[str, tuple[Place, ...]], bytes] = {}
        """The delivery hash of each step, by processor and places."""
        self.calls: dict[tuple[WatchedWorker, int, Any], list[tuple[Place, ...]]] = defaultdict(list)
        """The places read in each call, in order, by worker, attempt and what calls are in order by: a partition, or a
        key in it."""
        self.effects: Counter[bytes] = Counter()
        """How often the effect of a sink has happened, by delivery hash."""
        self._stopped: set[tuple[str, tuple[bytes, ...]]] = set()
        self._failures_left: dict[tuple[str, tuple[bytes, ...]], int] = {}
        """How many more attempts at a step fail, by processor and values."""
        self._world = world

    def graph(self) -> Graph:
        """Builds the graph of the current processors."""
        retry = Retry(attempts=ATTEMPTS, backoff="100ms..1s") if self._world.plan.away else None
        graph = Graph("g", guarantee=self._world.plan.guarantee, stop_on=Halt, retry=retry)
        for topic in dict.fromkeys(topic for stage in self._world.stages for topic in stage.inputs):
            graph.topic(topic)
        for topic in dict.fromkeys(topic for stage in self._world.stages for topic in stage.outputs):
            graph.topic(topic, cluster="other" if self._world.plan.elsewhere else "")
        for stage in self._world.stages:
            options: dict[str, Any] = {"id": stage.id, "guarantee": stage.guarantee, "errors": "dead"}
            if stage.order is not None:
                options |= {"concurrency": CONCURRENCY, "order": stage.order}
            if stage.batch:
                options["persistence"] = Journal(stage.batch)
            function = self._function(stage)
            match stage.kind:
                case _ if stage.stores:
                    options |= {"alts": stage.kind is Kind.ALTS, "batch": stage.kind is Kind.BATCH}
                    graph.sink(*stage.inputs, to=Declared(stage.stores), **options)(function)
                case Kind.SINK:
                    graph.sink(*stage.inputs, **options)(function)
                case Kind.JOIN:
                    graph.join(*stage.inputs, by="order", to=stage.outputs, **options)(function)
                case Kind.ALTS:
                    graph.alts(*stage.inputs, to=stage.outputs, **options)(function)
                case _:
                    options["batch"] = stage.kind is Kind.BATCH
                    graph.map(*stage.inputs, to=stage.outputs, **options)(function)
        return graph

    def _function(self, stage: Stage) -> Callable[..., Any]:
        """Returns the function of a processor, as a user writes it."""
        match stage.kind:
            case Kind.FORK:
                return lambda v, step: dict(self._work(stage, step, v))
            case Kind.SINK:
                return lambda v, step: [row for _, row in self._work(stage, step, v)]
            case Kind.JOIN:
                return lambda v, w, step: self._one(stage, step, v, w)
            case Kind.BATCH:
                return lambda values, steps: self._batch(stage, values, steps)
            case Kind.GENERATOR:
                return self._generator(stage)
        return lambda v, step: self._one(stage, step, v)

    def _watched_worker(self, stage: Stage) -> WatchedWorker:
        """The worker of this processor in the running process."""
        running = self._world.running
        assert running is not None
        return next(watched for watched in running.workers if watched.stage.id == stage.id)

    def _work(self, stage: Stage, step: Step, *values: bytes) -> list[tuple[str, Any]]:
        """Does what the mark of the value says, and returns the results, by topic."""
        world, watched = self._world, self._watched_worker(stage)
        world.strikes.point("function")
        places = tuple((topic, world.recreations_of(topic), n, offset) for topic, n, offset in step.offsets_read)
        watched.note_called(places)
        if stage.order is not Order.NONE:
            by = (places[0][2], step.key) if stage.order is Order.KEY else places[0][2]
            self.calls[watched, watched.attempt, by].append(places)
        called = Called(stage, places, values)
        if (known := self.steps.setdefault(step.delivery_hash, called))[1:] != called[1:]:
            world.violate("hash", f"{values} and {known.values} have the same")
        if self.hashes.setdefault((stage.id, places), step.delivery_hash) != step.delivery_hash:
            world.violate("hash", f"{values} has two")
        if early := world.inputs.unsettled & set(values):
            world.violate("precommitted read", str(early))
        world.pass_time(world.work_seconds)
        self._stop_once(stage, watched, places, values)
        if world.plan.away:
            self._fail_for_a_while(stage, watched, places, values)
        if values[0].endswith(FAILS):
            raise LookupError(values)
        if not stage.outputs and not stage.stores and not values[0].endswith(SKIPS):
            self.effects[step.delivery_hash] += 1
        world.strikes.point("returned")
        results: list[tuple[str, Any]] = list(stage.results(values))
        if stage.stores:
            return [(name, (step.delivery_hash, value)) for name, value in results]
        if stage.is_refused(values):
            return [(topic, Out(value, key=None) if topic == stage.outputs[0] else value) for topic, value in results]
        return results

    def _stop_once(
        self, stage: Stage, watched: WatchedWorker, places: tuple[Place, ...], values: tuple[bytes, ...]
    ) -> None:
        """Raises what stops the worker, the first time with a value that asks for it."""
        if not values[0].endswith((HALTS, STOPS)) or (stage.id, values) in self._stopped:
            return
        self._stopped.add((stage.id, values))
        if not watched.is_member:  # nobody else runs the steps that this one cuts short
            self._world.bounds.may_lose(watched, watched.in_flight)
        if values[0].endswith(HALTS):
            self._world.bounds.losable[stage.id].update(places)
            raise Halt(values)
        watched.note_not_done(places)
        raise Stop(values)

    def _fail_for_a_while(
        self, stage: Stage, watched: WatchedWorker, places: tuple[Place, ...], values: tuple[bytes, ...]
    ) -> None:
        """Raises what is tried again: at every attempt for FAILS, at the first few for others."""
        if (left := self._failures_left.get((stage.id, values))) is None:
            left = self._world.random.randint(0, FAILURES_MAX)
        self._failures_left[stage.id, values] = max(0, left - 1)
        if values[0].endswith(FAILS) or left:
            watched.note_not_done(places)
            if not watched.is_member:  # nobody else runs the steps that wait now
                self._world.bounds.may_lose(watched, watched.in_flight)
            raise ConnectionError(values)

    def _one(self, stage: Stage, step: Step, *values: bytes) -> Any:
        found = self._work(stage, step, *values)
        return found[0][1] if found else None

    def _generator(self, stage: Stage) -> Callable[[bytes, Step], Iterator[Any]]:
        def several(value: bytes, step: Step) -> Iterator[Any]:
            for _, result in self._work(stage, step, value):
                yield result

        return several

    def _batch(self, stage: Stage, values: list[bytes], steps: list[Step]) -> list[Any]:
        done: list[Any] = []
        for value, step in zip(values, steps, strict=True):
            try:
                done.append(self._one(stage, step, value))
            except (LookupError, ConnectionError) as error:
                done.append(error)
            except (Halt, Stop) as stop:
                places = self._places(steps)
                if isinstance(stop, Halt):
                    self._world.bounds.losable[stage.id] |= places
                else:
                    self._watched_worker(stage).note_not_done(places)
                raise
        # a step that always fails must not take the others along to the dead letters
        failed = [(v, e) for v, e in zip(values, done, strict=True) if isinstance(e, ConnectionError)]
        if failed:  # the batch is run again as a whole
            self._watched_worker(stage).note_not_done(self._places(steps))
        passing = [error for value, error in failed if not value.endswith(FAILS)]
        if passing and self._world.random.random() < 0.5:
            raise passing[0]
        return done

    def _places(self, steps: list[Step]) -> set[Place]:
        """The places of all records of a batch."""
        return {(t, self._world.recreations_of(t), p, o) for each in steps for t, p, o in each.offsets_read}
