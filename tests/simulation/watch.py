"""The invariants of a run after every turn: outputs and committed offsets agree, as the guarantee promises."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from kstreams_py.graph.sink import Evidence
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.testing import Kind
from kstreams_py.testing.events import Isolation
from tests.simulation.functions import Called
from tests.simulation.invariants import hash_of, short, stored
from tests.simulation.plan import ALO, AMO, EO, ROWS

if TYPE_CHECKING:
    from tests.simulation.world import World


class Watch:
    """Compares the visible outputs with the committed offsets after each turn."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._partitions = [world.other._broker.partition(tp) for tp in world.outputs]
        """The output partitions; only inputs grow or are made again."""
        self._seen: object = None
        """The outputs and calls at the last look; each record and each marker moves the end of its partition."""
        self._positions: dict[str, Positions] = {}
        self._read: Counter[TopicPartition] = Counter()
        """The next offset to read of each output partition: committed records do not change any more."""
        self._found: dict[bytes, set[str]] = defaultdict(set)
        """The topics in which an output of each step is visible, by delivery hash."""
        self._sound: set[bytes] = set()
        """Complete steps, with outputs and offsets: only a committed offset that goes back changes that."""

    def look(self) -> None:
        """Checks all incomplete steps, if the state has changed."""
        world = self._world
        if world.restarts.is_expiring:
            return
        for cluster in world.clusters:
            cluster._network.pass_time()
        functions, broker = world.functions, world.cluster._broker
        positions = {stage.id: broker.group(stage.group).positions for stage in world.stages}
        for stage in world.stages:
            if stage.stores is Evidence.OFFSETS:
                positions[stage.id] = positions[stage.id] | stored(world, stage)
        rows = [len(target.rows) for target in world.targets.values()] if world.targets else None
        effects = functions.effects.total() if functions.effects else 0
        seen = ([partition.end for partition in self._partitions], rows, len(functions.steps), effects)
        if seen == self._seen and positions == self._positions:
            return
        self._seen = seen
        if any(
            at > positions[stage].get(tp, 0) for stage, known in self._positions.items() for tp, at in known.items()
        ):
            self._sound.clear()
        self._positions = {stage: dict(found) for stage, found in positions.items()}
        hidden = self._read_on()
        for digest, called in functions.steps.items():
            if digest not in self._sound and digest not in hidden:
                self._check(digest, called)

    def _read_on(self) -> set[bytes]:
        """Reads new outputs; returns the delivery hashes after the last stable offset.

        These cannot be checked: they are not committed, or wait for the end of another transaction.
        """
        hidden: set[bytes] = set()
        for partition in self._partitions:
            tp, stable = partition.name, partition.stable
            if stable > self._read[tp]:
                for m in partition.read(self._read[tp], Isolation.COMMITTED):
                    self._found[hash_of(m)].add(tp.topic)
                self._read[tp] = stable
            if stable < partition.end:
                hidden.update(hash_of(m) for m in partition.read(stable, Isolation.UNCOMMITTED))
        for target in self._world.targets.values():
            for row in target.rows:
                self._found[row.values[0]].add(ROWS)
        return hidden

    def _check(self, digest: bytes, called: Called) -> None:
        stage, places, values = called
        wanted = {topic for topic, _ in stage.expected(values)}
        if not wanted or any(times != self._world.recreations_of(topic) for topic, times, _, _ in places):
            return
        there, positions = self._found.get(digest, set()), self._positions[stage.id]
        effect = digest in self._world.functions.effects
        some, every = bool(there) or effect, effect or wanted <= there
        done = all(at < positions.get(TopicPartition(topic, number), 0) for topic, _, number, at in places)
        if done and every:
            self._sound.add(digest)
        if self._world.plan.elsewhere and every:
            return  # the committed offsets follow
        # rows are stored before the offsets of their evidence, hashes; dead letters before rows with offsets
        early = {Evidence.HASH: {ROWS}, Evidence.OFFSETS: {"dead"}}
        is_early = stage.stores is not None and not done and wanted == early[stage.stores]
        if stage.guarantee is EO and (done != some or some != every) and not effect and not is_early:
            name = str(Kind.TORN_TRANSACTION)
        elif stage.guarantee is ALO and done and not every:
            name = "position too early"
        elif stage.guarantee is AMO and some and not done:
            name = "position too late"
        else:
            return
        found = f"outputs of {values} in {sorted(there)}, committed offsets {short(positions)}"
        self._world.violate(name, f"{stage.id}: {found}")
