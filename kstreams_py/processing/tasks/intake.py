"""What a worker takes from its tasks at once: an intake, and what was saved of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.plan import Intake


@dataclass(slots=True)
class Taken(Intake):
    """An intake that the tasks gave.

    - `choices`: for each alts task, what it reads from here on; to be saved before the functions run.
    - `prepared`: this is the rest of an intake for which everything is saved.
    - `saved`: the offsets after this intake are committed, or may be: no other worker would run it.
    - `repeated`: its steps failed before; the partitions have waited, and the tasks hold what follows.
    """

    choices: dict[int, Choices] = field(default_factory=dict)
    prepared: bool = False
    saved: bool = False
    repeated: bool = False

    def starts(self) -> Positions:
        """The offsets at which the inputs of the choices stand before this intake."""
        return {
            TopicPartition(start.topic, partition): start.offset
            for partition, chosen in self.choices.items()
            for start in chosen.starts
        }
