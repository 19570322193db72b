"""Faults of all processes of a run: they end, something changes meanwhile, and they start again."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kstreams_py.records import Positions, TopicPartition
from tests.simulation import invariants
from tests.simulation.plan import Fault, Kind, Stage
from tests.simulation.watched_worker import Place

if TYPE_CHECKING:
    from tests.simulation.world import World


class Retired(NamedTuple):
    """A partition that a processor no longer reads: its values by place, and its committed offset."""

    stage: Stage
    values: dict[Place, bytes]
    position: int


class Restarts:
    """Carries out deployments, recreations of topics, and the expiry of committed offsets."""

    def __init__(self, world: World) -> None:
        self.due: list[Fault] = []
        """The faults that will happen once no process is within a turn."""
        self.retired: list[Retired] = []
        self.is_expiring = False
        """The committed offsets of the groups are deleted."""
        self.has_reported_loss = False
        """A worker has ended with InputLost meanwhile."""
        self._world = world

    def carry_out(self) -> None:
        """Ends all processes, makes the next fault happen, and starts the same slots again."""
        world, fault = self._world, self.due.pop(0)
        world.trace.append(f"** all stop: {fault} **")
        slots = world.slots
        world.end_all(kill=world.random.choice((False, True)))
        world.clock.advance(1.0)  # markers are on their way
        match fault:
            case Fault.EXPIRED:
                self._expire(slots)
            case Fault.REMADE if world.plan.kind is not Kind.JOIN:
                topic = world.plan.inputs[-1]
                self._retire(topic)
                world.inputs.remake(topic)
                world.is_feeding = world.settings.auto_offset_reset == "earliest"
            case Fault.DEPLOYED if world.plan.kind is Kind.ALTS and len(world.stages[0].inputs) > 2:
                self._retire("c")
                outputs, stores = world.stages[0].outputs, world.plan.stores
                world.stages[0] = Stage("p", Kind.ALTS, world.plan.guarantee, ("a", "b"), outputs, stores=stores)
                world.graph = world.functions.graph()
        for slot in slots:
            world.begin(slot)

    def _retire(self, topic: str) -> None:
        """Keeps the records and committed offsets of a topic that the processors will not read again."""
        for stage in self._world.stages:
            if topic not in stage.inputs:
                continue
            values: dict[TopicPartition, dict[Place, bytes]] = defaultdict(dict)
            for place, value in invariants.readable(self._world, stage).items():
                if place[0] == topic:
                    values[TopicPartition(topic, place[2])][place] = value
            positions = self._world.cluster.groups[stage.group]
            self.retired += [Retired(stage, found, positions.get(tp, 0)) for tp, found in values.items()]

    def _expire(self, slots: list[int]) -> None:
        """Deletes the committed offsets: a worker must report it, and none may read until they are set again."""
        world = self._world
        positions = {stage.group: world.cluster.groups[stage.group] for stage in world.stages}
        strikes, world.strikes.left, self.has_reported_loss, self.is_expiring = world.strikes.left, [], False, True
        for cluster in world.clusters:
            cluster._network._outages.clear()  # expiry takes days
        for group in positions:
            world.cluster.faults.forget_positions(group)
        for slot in slots:
            world.begin(slot)
        if self._has_begun(positions) and not self._reports_loss(slots):
            world.violate("positions lost", "no worker reported it")
        world.end_all(kill=False)
        for group, found in positions.items():
            now = world.cluster._broker.group(group).positions
            # a partition that had processed nothing begins again, rightly: what it processed meanwhile is not undone
            now.update({tp: max(at, now.get(tp, at)) for tp, at in found.items()})
        world.strikes.left, self.is_expiring = strikes, False

    def _has_begun(self, positions: dict[str, Positions]) -> bool:
        """Whether a group has processed records whose offsets its target does not have."""
        starts = self._world.inputs.starts
        kept = {s.group: invariants.stored(self._world, s) for s in self._world.stages}
        read = ((group, tp, at) for group, found in positions.items() for tp, at in found.items())
        return any(at > starts.get(tp, 0) and tp not in kept[group] for group, tp, at in read)

    def _reports_loss(self, slots: list[int]) -> bool:
        """Whether a worker reports the loss within 20 turns of each."""
        world = self._world
        for _ in range(20 * len(slots) * len(world.stages)):
            if self.has_reported_loss:
                return True
            running = {process.slot for process in world.processes}
            for slot in slots:
                if slot not in running:  # it ended by another error, and its membership keeps its partitions
                    world.begin(slot)
            if world.processes:
                world.turn(world.random.choice(world.processes))
        return self.has_reported_loss
