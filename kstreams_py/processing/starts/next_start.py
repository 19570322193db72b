"""Decides, as a worker does, what the next start of a processor does with a task; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from kstreams_py.errors import InputLost, KStreamsError, SinkAway, SinkUnavailable
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.loading import show_command
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.commits.opening import open_journal
from kstreams_py.processing.journal.choices_journal import ChoicesJournal
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.journal.recovery import Recovery, show
from kstreams_py.processing.starts.states import RestoredStates
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.target import sink_error


class StartDecision(NamedTuple):
    """What the next start does with a task.

    - `text`: the decision in words.
    - `branch`: the branch of the recovery by the journal of deliveries; "" without one.
    - `new_name_of`: if the processor begins as a new one, the undeclared processors whose new name it may be.
    - `begins_empty`: its state begins empty although the task has read records.
    - `away`: why its target is away; "" if it is not. The start first waits for a target that is away.
    """

    text: str
    branch: str = ""
    new_name_of: tuple[str, ...] = ()
    begins_empty: bool = False
    away: str = ""


class NextStart:
    """The next start of one processor."""

    def __init__(
        self, graph: Graph, processor: Processor, environment: Environment, topics: Mapping[str, TopicInfo]
    ) -> None:
        """Asks for the framework's own topics. `topics`: existing topics of the graph, with the processor's inputs."""
        self._processor, self._graph, self._inspect_sink = processor, graph, environment.inspect_sink
        inputs = {topic.name: topics[topic.name] for topic in processor.inputs}
        self.beginning = Beginning(environment, graph, processor, inputs)
        self._journal = open_journal(graph, processor, environment, topics, "")
        self.backing = graph.journal_topic(processor) or ""
        own = (graph.beginnings, self.backing, changelog_of(graph.name, processor))
        existing = environment.cluster.topics([name for name in own if name])
        self._states = RestoredStates(graph, processor, environment, {**topics, **existing})
        self._was_started = graph.beginnings in existing
        self.journaled = existing[self.backing].partitions if self.backing in existing else 0
        """How many tasks have a journal; the next start creates the journal, or adds the partitions that it lacks."""
        # read the beginnings before the committed offsets: see Beginning.read
        self._others = tuple(self.beginning.other_names()) if self._was_started else ()
        self.growth = self.beginning.growth if self._was_started else ""
        """What added partitions of an input mean for the state; "" if none were added."""

    def decide(self, number: int, mine: Sequence[TopicPartition], at: Positions, starts: Positions) -> StartDecision:
        """Returns what the next start does with a task. Raises the error that ends the start, or Retriable if it waits.

        - `number`, `mine`: its partition number, and its partitions of the inputs.
        - `at`: their committed offsets.
        - `starts`: the first offsets of the inputs.
        """
        begins_empty = self._states.check(number, at, list(mine), self.beginning if self._was_started else None)
        refusal = self._refusal_of_target
        if refusal is not None and not isinstance(refusal, SinkAway):
            raise refusal
        decision = self._decide(number, mine, at, starts, begins_empty=begins_empty)
        if refusal is None:
            return decision
        return decision._replace(text=f"waits for its target, then {decision.text}: {refusal}", away=str(refusal))

    @cached_property
    def _refusal_of_target(self) -> KStreamsError | None:
        """The error of a worker that opens the processor's target: SinkAway if it waits, None without an error."""
        if (sink := self._processor.target) is None:
            return None
        try:
            self._inspect_sink(sink)
        except SinkUnavailable as error:
            return sink_error(sink, error)
        except KStreamsError as error:
            return error
        return None

    def _decide(
        self,
        number: int,
        mine: Sequence[TopicPartition],
        at: Positions,
        starts: Positions,
        *,
        begins_empty: bool,
    ) -> StartDecision:
        """Does the same as `decide` without the checks of the state and the target."""
        if self._processor.stores_offsets:
            return StartDecision(f"goes on at the offsets that {self._processor.target} has, whatever is committed")
        if lost := [tp for tp, offset in at.items() if offset < starts[tp]]:
            (tp, *_) = lost
            reset = show_command(self._graph, "recover reset", self._processor.id)
            raise InputLost(
                f"{tp} begins at offset {starts[tp]}, and its committed offset is {at[tp]}: set it "
                f"(`{reset} --to-offset {tp.topic}:{tp.partition}:{starts[tp]}`)"
            )
        missing = [tp for tp in mine if tp not in at]
        look = self.beginning.plan if self._was_started else self.beginning.first
        positions = at | (look(missing) if missing else {})
        offsets = {tp.topic: offset for tp, offset in positions.items()}
        others = self._others if missing else ()
        hint = f", as a processor that is new: it may be the new name of {', '.join(others)}" if others else ""
        begins = "" if not missing else f"begins at {show({tp.topic: positions[tp] for tp in missing})}{hint}; "
        if isinstance(self._journal, DeliveryJournal):
            recovery = self._journal.look(number, offsets) if number < self.journaled else Recovery("1a")
            moved = {topic: max(offset, recovery.offsets.get(topic, 0)) for topic, offset in offsets.items()}
            return StartDecision(begins + _plan_of(recovery, moved), recovery.branch, others)
        if isinstance(self._journal, ChoicesJournal) and number < self.journaled:
            left = self._journal.newest(number).after(offsets)
            if left.runs:
                order = ", ".join(f"{topic} through {last}" for topic, last in left.runs)
                goes_on = f"{begins}goes on at {show(offsets)}, first in the recorded order: {order}"
                return StartDecision(goes_on, "", others)
        if missing and not at:
            return StartDecision(begins.removesuffix("; "), "", others)
        state = ", with an empty state" if begins_empty else ""
        return StartDecision(f"{begins}goes on at {show(offsets)}{state}", "", others, begins_empty)

    def close(self) -> None:
        """Frees the states that were read."""
        self._states.close()


def _plan_of(recovery: Recovery, offsets: Mapping[str, int]) -> str:
    """Returns what a start does after a recovery. `offsets`: the positions of the inputs after it."""
    where = show(offsets)
    if recovery.snapshot is not None:
        return f"recovery {recovery.branch}: makes the delivery again from {show(recovery.snapshot.offsets)}"
    return f"recovery {recovery.branch}: goes on at {where}"
