"""A bench for guarantees: one committer on a cluster in memory, without the worker's loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from kstreams_py.errors import Abortable, ClientError, Fatal, Fenced, OutcomeUnknown, Retriable
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.topology import Graph
from kstreams_py.metrics import Counters
from kstreams_py.processing.commits.committer import Committer, Context
from kstreams_py.processing.commits.guarantees import COMMITTERS
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.journal.choices_journal import ChoicesJournal
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.processing.tasks.committed import CommittedOffsets
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.ledger import Ledger
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.plan import Plan
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry
from tests.unit.fakes import Read

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
ERRORS: list[type[ClientError]] = [Retriable, Abortable, OutcomeUnknown, Fenced, Fatal]


def nothing() -> None:
    """Runs no saved steps: there are none."""


class Bench:
    """A started committer of processor g.p in slot 0, which reads a and b and writes x, and its cluster."""

    def __init__(
        self,
        guarantee: Guarantee = EO,
        *,
        alts: bool = False,
        linger: float = 0.0,
        session_timeout: float = 30.0,
        outputs_held: int = 0,
    ) -> None:
        self.outputs_held = outputs_held
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock, linger=linger, session_timeout=session_timeout)
        self.slept: list[float] = []
        graph = Graph("g", guarantee=guarantee, errors="dead")
        for name in "abx":
            graph.topic(name)
        declare = graph.alts if alts else partial(graph.join, by="order")
        declare("a", "b", to="x", id="p")(lambda *values: None)
        (self.processor,) = graph.processors
        self.journal = graph.journal_topic(self.processor)
        topics = ["a", "b", "x", "dead", *([self.journal] if self.journal else [])]
        self.cluster.create_topics([(name, 2, -1, {}) for name in topics])
        self.counters = Counters()
        self.consumer = self.cluster.consumer("g.p", "g.p.0")
        self.assigned: set[TopicPartition] = set()
        self.consumer.subscribe(["a", "b"], self._assigned, self._revoked, self._revoked)
        self.environment = Environment(
            self.cluster, MemoryRegistry(), Settings(), self.clock, self._sleep, self.outputs_held
        )
        self.ledger = Ledger()
        self.ledger.assign({A0: 0, B0: 0})
        self.choices = ChoicesJournal(self.journal, self.cluster) if self.journal else None
        self.guarantee = self.new_guarantee(self.consumer)
        self.session = self.guarantee.session
        self.committed = CommittedOffsets("g.p", "g.p.0", self.consumer, self.environment)
        self.consume()
        self.session.start()
        self._seen = 0
        self.take_requests()

    def new_guarantee(self, consumer: Any) -> Committer:
        return COMMITTERS[self.processor.guarantee](
            Context(
                self.processor,
                self.ledger,
                consumer,
                self.environment,
                "g.p.0",
                self.counters,
                lambda *_: None,
                journal=self.choices,
            )
        )

    def read_choices(self, partition: int) -> Choices:
        """Reads the newest choices of a partition from the journal."""
        assert self.choices is not None
        return self.choices.newest(partition)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.clock.advance(seconds)

    def consume(self) -> None:
        """Serves a rebalance, and assigns the new partitions at offset 0."""
        self.consumer.consume(1, 0.0)
        if self.assigned:
            self.consumer.assign(dict.fromkeys(self.assigned, 0))
            self.assigned = set()

    def miss_rebalance(self) -> None:
        """Adds a second member, and joins as a new member itself without serving the rebalance."""
        other = self.cluster.consumer("g.p", "g.p.1")
        other.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
        self.consumer.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
        other.consume(1, 0.0)

    def _assigned(self, partitions: set[TopicPartition]) -> None:
        self.assigned = partitions

    def _revoked(self) -> None:
        self.guarantee.revoked(nothing)

    def take_requests(self) -> list[str]:
        """Returns the requests since the last call, without those that the client makes by itself."""
        requests = self.cluster.faults.requests
        seen, self._seen = self._seen, len(requests)
        return [request for request in requests[seen:] if request not in ("add_partition", "add_offsets")]

    @property
    def visible(self) -> list[bytes | None]:
        return [m.value() for m in self.cluster.records("x")]

    @property
    def saved(self) -> Positions:
        return self.cluster.groups["g.p"]

    def write(self, value: bytes = b"1", position: int = 1) -> None:
        """Writes the output of a step; `position` is the next offset of `a` after it."""
        self.run(plan(value), {A0: position})

    def run(self, plan: Plan, positions: Positions) -> None:
        """Writes a plan; `positions` are the next offsets after it."""
        self.ledger.advance(positions)
        self.guarantee.write(plan)

    def recover(self, error: ClientError) -> None:
        """Recovers from an error; the session must be ready again."""
        self.guarantee.recover(error)
        assert self.session.state is SessionState.READY

    def fail_commit(self) -> ClientError:
        """Commits, expects an error and returns it."""
        with pytest.raises(ClientError) as caught:
            self.guarantee.commit()
        return caught.value


def plan(value: bytes = b"1") -> Plan:
    return Plan(outputs=[("x", value, None, 0, None, None, 0, None)], steps=1)


def choosing(*runs: tuple[str, int], partition: int = 0) -> Taken:
    steps = [Read(topic, offset, partition=partition) for topic, offset in runs]
    return Taken(steps, {partition: chosen(*runs)})


def chosen(*runs: tuple[str, int]) -> Choices:
    """Choices whose start offsets are those of the first record of each input."""
    first = dict(reversed(runs))
    return Choices(runs, tuple(InputStart(topic, "", offset) for topic, offset in first.items()))


def end(bench: Bench) -> Sequence[str]:
    """Ends the guarantee twice, and returns the requests of both calls."""
    bench.take_requests()
    bench.guarantee.end()
    bench.guarantee.end()
    return bench.take_requests()
