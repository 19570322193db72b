"""Runs the step of a dead letter through its processor, without writing: decode, function, encode."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from kstreams_py.errors import RecordRefused, RecordTooLarge
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.hashes import pack_offset
from kstreams_py.graph.limits import why_not_replayed
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Output
from kstreams_py.operations.dead_letters.originals import Originals
from kstreams_py.processing.dead_letters.letters import Letter
from kstreams_py.processing.runners.opening import make_runner
from kstreams_py.processing.runners.runner import Runner
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.ledger import Ledger
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import Inputs, TopicPartition
from kstreams_py.steps.calls import open_calls
from kstreams_py.steps.dead_letters import Failure
from kstreams_py.steps.environment import Environment

REFUSED: Final = frozenset(f"{each.__module__}.{each.__qualname__}" for each in (RecordRefused, RecordTooLarge))
"""The exception classes of dead letters whose function did not raise: a topic refused an output of the step."""


def _send_again(letter: Letter) -> str:
    """Returns instructions for processing the records of a dead letter once more."""
    commands = ", ".join(
        f"`kstreams tail {m.name} --partition {m.number} --from {m.at} -n 1 | kstreams send {m.name}`"
        for m in letter.inputs
    )
    return (
        f"send its record again by {commands}, then discard the dead letter (`kstreams dead-letters discard`); to the "
        "other readers of the topic it is a new record"
    )


class LetterSteps:
    """Runs the steps of dead letters, each with the delivery hash of its dead letter."""

    def __init__(self, graph: Graph, environment: Environment, originals: Originals) -> None:
        self._graph = graph
        self._environment = replace(environment, open_calls=partial(open_calls, patience=None))
        self._originals = originals
        self._processors = {processor.id: processor for processor in graph.processors}
        self._tasks = {task.id for task in graph.tasks}
        self._loaded: dict[str, tuple[Runner, _OneStep]] = {}

    def prepare(self, letter: Letter) -> Inputs | str:
        """Returns the inputs of the step in the order that its processor declares, or why the step cannot be run."""
        name = letter.processor_id
        processor = self._processors.get(name)
        if name in self._tasks:
            return f"task {name!r} has no transaction for it and its mark: {_send_again(letter)}"
        if processor is None:
            return f"graph {self._graph.name!r} no longer has processor {name!r}: declare it again"
        if why := why_not_replayed(processor, _send_again(letter)):
            return why
        declared, read = [topic.name for topic in processor.inputs], [each.name for each in letter.inputs]
        fits = sorted(read) == sorted(declared) if processor.joins else len(read) == 1 and set(read) <= set(declared)
        if not fits:
            return (
                f"it read {', '.join(map(repr, read))}, and processor {name!r} reads "
                f"{', '.join(map(repr, declared))} now: declare the inputs as they were"
            )
        if (
            processor.guarantee.commits_first
            and letter.error in REFUSED
            and (processor.generator or len(processor.outputs) > 1)
        ):
            return (
                f"a topic refused one output of its step, and the others are written already (at most once): "
                f"replaying it would double them: write the missing record by hand ({letter.message})"
            )
        if len(letter.inputs) == 1 and letter.delivery_hash[8:] != pack_offset(letter.inputs[0].at):
            return "its delivery hash is of another version of kstreams_py: replay it with that version"
        found = self._originals.find(letter, processor)
        return found if isinstance(found, str) else tuple(sorted(found, key=lambda m: declared.index(m.topic())))

    def run(self, letter: Letter, inputs: Inputs) -> list[Output] | Failure:
        """Returns the outputs of a step that `prepare` has prepared, or its failure if it raises again.

        Raises Stop, or another exception that stops a worker, if the step raises it.
        """
        processor = self._processors[letter.processor_id]
        runner, tasks = self._load(processor)
        tasks.load(inputs, letter.delivery_hash)
        plan = runner.run(Taken([inputs] if processor.joins else list(inputs)))
        if plan.interrupt is not None:
            raise plan.interrupt
        return plan.failures[0] if plan.failures else plan.outputs

    def _load(self, processor: Processor) -> tuple[Runner, _OneStep]:
        if processor.id not in self._loaded:
            tasks = _OneStep(
                processor,
                Ledger(),
                name=group_of(self._graph.name, processor.id),
                topic_ids={topic.name: "" for topic in processor.inputs},
            )
            # without dead letters and retries: a step that fails again keeps its dead letter
            once = replace(processor, retry=None)
            self._loaded[processor.id] = make_runner(once, tasks, self._environment, None), tasks
        return self._loaded[processor.id]


class _OneStep(Tasks):
    """The task of one step. It keeps the delivery hash of the dead letter, even if a topic was created again."""

    _digest = b""

    def load(self, inputs: Inputs, digest: bytes) -> None:
        """Replaces the tasks with one that reads these records."""
        self.assign({TopicPartition(m.topic(), m.partition()): m.offset() for m in inputs}, {})
        self._digest = digest
        if len(inputs) == 1:
            self.by_partition[inputs[0].partition()].prefixes = {inputs[0].topic(): digest[:8]}

    def delivery_hash(self, inputs: Inputs) -> bytes:  # noqa: ARG002, there is one step
        return self._digest
