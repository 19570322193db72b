"""The input of a worker's functions (an intake of steps) and their result (a plan of outputs)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from kstreams_py.kafka.contracts import Output
from kstreams_py.records import Inputs, Message, Positions, TopicPartition
from kstreams_py.steps.dead_letters import Failure


@dataclass(slots=True)
class Intake:
    """Records to process: each step has one record, or one from each input of a join."""

    steps: Sequence[Message] | Sequence[Inputs]

    def positions(self) -> Positions:
        """Returns the next offsets after this intake."""
        last: dict[tuple[str, int], int] = {}
        for m in self._messages():
            last[m.topic(), m.partition()] = m.offset()
        return {TopicPartition(*tp): offset + 1 for tp, offset in last.items()}

    def begins(self) -> Positions:
        """Returns the offsets of the first records of this intake."""
        first: Positions = {}
        for m in self._messages():
            first.setdefault(TopicPartition(m.topic(), m.partition()), m.offset())
        return first

    def _messages(self) -> Iterable[Message]:
        steps: Any = self.steps
        return chain.from_iterable(steps) if steps and isinstance(steps[0], tuple) else steps


@dataclass(frozen=True, slots=True)
class Again:
    """Steps to be run again together after a wait: one step, or a whole batch; `attempts` is how often they failed."""

    steps: Sequence[Any]
    error: BaseException
    attempts: int


@dataclass(frozen=True, slots=True)
class Part:
    """The results of the steps of one task, in a plan of several tasks.

    - `outputs`: how many outputs it has, including `dead_letters` dead letters.
    - `delivery_hash`: the delivery hash of its last step.
    """

    partition: int
    steps: int
    outputs: int
    dead_letters: int
    delivery_hash: bytes


@dataclass(slots=True)
class Plan:
    """The results of the steps of an intake. The ledger has advanced past the steps that are done.

    - `outputs`: records to write, in order, including `dead_letters` dead letters.
    - `steps`: how many steps are done.
    - `failures`: steps that failed, for the log.
    - `interrupt`: the exception of a step that stops the worker: write and commit what is done, then raise it.
    - `tried`: the next offsets after the step that raised; empty if it was not tried: it raised Stop, or the function
      was not called.
    - `again`: the steps to be run again after a wait, instead of an interrupt; they are not done.
    - `intake`: the steps that were run.
    - `parts`: the results by task, in the order of the outputs, for a processor with a journal.
    - `apart`: whether each output is written by itself, so that an error names the refused one.
    - `seconds`: how long the calls of these steps took, if calls overlap; None otherwise.
    - `owners`: the inputs of each output's step, if outputs have no delivery hash and are traced; None once the output
      was replaced by a dead letter.
    """

    outputs: list[Output] = field(default_factory=list)
    steps: int = 0
    dead_letters: int = 0
    failures: list[Failure] = field(default_factory=list)
    interrupt: BaseException | None = None
    tried: Positions = field(default_factory=dict)
    again: Again | None = None
    intake: Intake = field(default_factory=lambda: Intake([]), repr=False, compare=False)
    owners: list[Inputs | None] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    apart: bool = False
    seconds: float | None = None

    def add(self, later: Plan) -> None:
        """Adds the results of later steps."""
        self.outputs += later.outputs
        self.steps += later.steps
        self.dead_letters += later.dead_letters
        self.failures += later.failures
        self.owners += later.owners
        self.parts += later.parts
        self.apart |= later.apart
        self.interrupt, self.tried, self.again = later.interrupt, later.tried, later.again


def read_by(step: Any) -> tuple[tuple[str, int, int], ...]:
    """Returns topic, partition and offset of each record that a step reads."""
    inputs: Inputs = step if isinstance(step, tuple) else (step,)
    return tuple((m.topic(), m.partition(), m.offset()) for m in inputs)


def partition_of(step: Any) -> int:
    """Returns the partition number of a step, which all its records share."""
    number: int = (step[0] if isinstance(step, tuple) else step).partition()
    return number


def partitions_of(steps: Sequence[Any]) -> set[int]:
    """Returns the partition numbers of steps."""
    return {partition_of(step) for step in steps}
