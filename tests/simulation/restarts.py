"""What befalls all processes of a run: they end, something is changed meanwhile, and they start again."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kstreams_py.record import Positions, TopicPartition
from tests.simulation import invariants
from tests.simulation.life import Place
from tests.simulation.plan import Fault, Kind, Stage

if TYPE_CHECKING:
    from tests.simulation.world import World


class Retired(NamedTuple):
    """A partition that a processor reads no more, and what it had: by place, and up to which position."""

    stage: Stage
    values: dict[Place, bytes]
    position: int


class Restarts:
    """Deployments, topics that are created again, and groups whose positions have expired."""

    def __init__(self, world: World) -> None:
        self.due: list[Fault] = []
        """What is to happen once all processes have ended."""
        self.retired: list[Retired] = []
        self.expiring = False
        """The positions of the groups are not there."""
        self.input_lost = False
        """A worker has said that they are not."""
        self._world = world

    def carry_out(self) -> None:
        """Ends all processes; something happens; the same slots start again."""
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
                world.stages[0] = Stage("p", Kind.ALTS, world.plan.guarantee, ("a", "b"), ("x",))
                world.graph = world.functions.graph()
        for slot in slots:
            world.begin(slot)

    def _retire(self, topic: str) -> None:
        """Keeps what the processors had of a topic, which they will not read again."""
        for stage in self._world.stages:
            if topic not in stage.inputs:
                continue
            values: dict[TopicPartition, dict[Place, bytes]] = defaultdict(dict)
            for place, value in invariants.readable(self._world, stage).items():
                if place[0] == topic:
                    values[TopicPartition(topic, place[2])][place] = value
            positions = self._world.log.group(stage.group)
            self.retired += [Retired(stage, found, positions.get(tp, 0)) for tp, found in values.items()]

    def _expire(self, slots: list[int]) -> None:
        """The groups have lost their positions: that must be said, and nothing be read until somebody sets them."""
        world = self._world
        positions = {stage.group: world.log.group(stage.group) for stage in world.stages}
        strikes, world.strikes.left, self.input_lost, self.expiring = world.strikes.left, [], False, True
        world.log._network._outages.clear()  # it has taken days
        for group in positions:
            world.log.forget_positions(group)
        for slot in slots:
            world.begin(slot)
        if self._has_begun(positions) and not self._is_said(slots):
            world.violate("positions lost", "and nothing was said")
        world.end_all(kill=False)
        for group, found in positions.items():
            world.log._broker.group(group).positions.update(found)
        world.strikes.left, self.expiring = strikes, False

    def _has_begun(self, positions: dict[str, Positions]) -> bool:
        starts = self._world.inputs.starts
        return any(at > starts.get(tp, 0) for found in positions.values() for tp, at in found.items())

    def _is_said(self, slots: list[int]) -> bool:
        """Whether a worker says so within a reasonable number of turns."""
        world = self._world
        for _ in range(20 * len(slots) * len(world.stages)):
            if self.input_lost:
                return True
            if not world.processes:
                world.begin(world.random.choice(slots))
            if world.processes:
                world.turn(world.random.choice(world.processes))
        return self.input_lost
