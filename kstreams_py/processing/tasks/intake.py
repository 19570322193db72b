"""An intake: the steps that a worker takes from its tasks together, and what is already saved for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.plan import Intake


@dataclass(slots=True)
class Taken(Intake):
    """An intake that was taken from the tasks.

    - `choices`: the choices of each alts task from here on; to be saved before the functions run.
    - `prepared`: whether this is the rest of an intake for which everything is saved.
    - `saved`: whether the offsets after this intake are or may be committed: no other worker would run it.
    - `repeated`: whether its steps failed before; their partitions have waited, and the tasks hold the later steps.
    """

    choices: dict[int, Choices] = field(default_factory=dict)
    prepared: bool = False
    saved: bool = False
    repeated: bool = False

    def starts(self) -> Positions:
        """Returns the next offsets before this intake, for the inputs that the choices name."""
        return {
            TopicPartition(start.topic, partition): start.offset
            for partition, chosen in self.choices.items()
            for start in chosen.starts
        }
