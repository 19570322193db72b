"""The tasks and the runner of one processor, without a worker: takes records, returns plans and offsets."""

from __future__ import annotations

import time

from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.sizes import RecordLimits
from kstreams_py.processing.runners.runner import Runner
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.ledger import Ledger
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.steps.dead_letters import DeadLetters
from kstreams_py.steps.outputs import encoder
from kstreams_py.steps.plan import Plan
from kstreams_py.steps.tracing import Tracing
from kstreams_py.testing import MemoryRegistry

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
B0, B1, C0 = TopicPartition("b", 0), TopicPartition("b", 1), TopicPartition("c", 0)
START = dict.fromkeys((A0, A1, B0, B1, C0), 0)


class Processing:
    """Processor "p" of graph "g", assigned at the offsets `start`; `limit` is the size of a dead letter in bytes."""

    def __init__(
        self,
        graph: Graph,
        registry: MemoryRegistry | None = None,
        *,
        start: Positions | None = None,
        limit: int | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        (processor,) = graph.processors
        registry = registry or MemoryRegistry()
        topic_ids = {topic: f"id-{topic}" for topic in graph.topics}
        dead = graph.topics[processor.errors] if processor.errors else None
        dead_letters = None
        if dead is not None:
            limits = None if limit is None else RecordLimits(limit)
            encode = encoder(dead.value, registry, f"{dead.name}-value")
            dead_letters = DeadLetters("g.p", dead.name, encode, time.time, limits)
        self.ledger = Ledger()
        self.tasks = Tasks(processor, self.ledger, name="g.p", topic_ids=topic_ids)
        self.runner = Runner(processor, self.tasks, registry, dead_letters, tracing=tracing)
        self.tasks.assign(START if start is None else start, {})

    def intake(self, *messages: Message) -> Taken:
        """Adds messages, and takes all steps that are ready."""
        self.tasks.add(messages)
        return self.take(1_000_000)

    def take(self, limit: int) -> Taken:
        """Takes up to `limit` steps, at least one."""
        taken = self.tasks.take(limit)
        assert taken is not None
        return taken

    def plan(self, *messages: Message) -> Plan:
        """Adds messages, and runs all steps that are ready."""
        return self.runner.run(self.intake(*messages))

    def outcome(self, *messages: Message) -> tuple[Plan, Positions]:
        """Adds messages, runs the ready steps and returns the plan with the offsets to commit."""
        return self.plan(*messages), self.ledger.uncommitted
