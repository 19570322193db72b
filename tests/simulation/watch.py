"""What must hold of a run at every moment: outputs and positions, as the guarantee has it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from kstreams_py.record import Positions, TopicPartition
from tests.simulation.functions import Called
from tests.simulation.invariants import hash_of, short
from tests.simulation.plan import ALO, AMO, EO

if TYPE_CHECKING:
    from tests.simulation.world import World


class Watch:
    """Looks at a run after each turn: what can be read of the outputs, and what the groups have saved."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: object = None
        """What there was at the last look."""
        self._positions: dict[str, Positions] = {}
        self._read: Counter[TopicPartition] = Counter()
        """By output partition, how far it was read: what is committed does not change any more."""
        self._found: dict[bytes, set[str]] = defaultdict(set)
        """By delivery hash, the topics where an output can be read."""
        self._sound: set[bytes] = set()
        """Steps of which all is there, outputs and positions: nothing but a position that goes back changes that."""

    def look(self) -> None:
        """Looks whether anything has changed, and whether all is as it must be."""
        world = self._world
        if world.restarts.expiring:
            return
        world.log._network.pass_time()
        positions = {stage.id: dict(world.log._broker.group(stage.group).positions) for stage in world.stages}
        partitions = [world.log._broker.partition(tp) for tp in world.outputs]
        functions = world.functions
        seen = (positions, [(p.end, p.stable) for p in partitions], len(functions.steps), functions.effects.total())
        if seen == self._seen:
            return
        self._seen = seen
        if any(
            at > positions[stage].get(tp, 0) for stage, known in self._positions.items() for tp, at in known.items()
        ):
            self._sound.clear()
        self._positions = positions
        hidden = self._read_on()
        for digest, called in functions.steps.items():
            if digest not in self._sound and digest not in hidden:
                self._check(digest, called)

    def _read_on(self) -> set[bytes]:
        """Reads outputs on; the delivery hashes that are behind the last stable offset.

        Of these nobody can tell: they are not committed, or wait for another transaction's end.
        """
        hidden: set[bytes] = set()
        for tp in self._world.outputs:
            partition = self._world.log._broker.partition(tp)
            for m in partition.read(self._read[tp], "read_committed"):
                self._found[hash_of(m)].add(tp.topic)
            self._read[tp] = partition.stable
            hidden.update(hash_of(m) for m in partition.read(partition.stable, "read_uncommitted"))
        return hidden

    def _check(self, digest: bytes, called: Called) -> None:
        stage, places, values = called
        wanted = {topic for topic, _ in stage.expected(values)}
        if not wanted or any(life != self._world.life_of(topic) for topic, life, _, _ in places):
            return
        there, positions = self._found.get(digest, set()), self._positions[stage.id]
        effect = digest in self._world.functions.effects
        some, every = bool(there) or effect, effect or wanted <= there
        done = all(at < positions.get(TopicPartition(topic, number), 0) for topic, _, number, at in places)
        if done and every:
            self._sound.add(digest)
        if stage.guarantee is EO and (done != some or some != every) and not effect:
            name = "torn"
        elif stage.guarantee is ALO and done and not every:
            name = "position too early"
        elif stage.guarantee is AMO and some and not done:
            name = "position too late"
        else:
            return
        self._world.violate(name, f"{stage.id}: {values} came to {sorted(there)}, positions {short(positions)}")
