"""Runs steps whose calls overlap; their outputs and offsets keep the order of the inputs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

from kstreams_py.graph.declarations import Order, Processor
from kstreams_py.kafka.contracts import Output
from kstreams_py.processing.runners.runner import Runner
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.task import step_bytes
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import Headers, Inputs, Positions, Step
from kstreams_py.steps.calls import Call
from kstreams_py.steps.dead_letters import DeadLetters
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.failures import Refusal
from kstreams_py.steps.outputs import are_many, value_bytes
from kstreams_py.steps.plan import Again, Intake, Plan, partition_of, read_by
from kstreams_py.steps.tracing import Tracing, put_in_trace

WINDOW_BYTES: Final = 32 << 20
"""Bytes that inputs of open steps, and outputs that wait for an earlier step, may take; one step is always opened."""


STOP_SHARE: Final = 0.5
"""The share of drain_timeout_ms for which a step that stops the worker waits for the other calls."""


class _Open:
    """An open step: from its decoding until it is settled, that is, done in the order of its partition."""

    __slots__ = (
        "chain", "context", "digest", "error", "has_ended", "inputs", "outputs", "refusal", "seconds", "size", "step",
        "tried",
    )  # fmt: skip

    def __init__(self, step: Any, inputs: Inputs, digest: bytes, chain: Hashable) -> None:
        self.step = step
        self.inputs = inputs
        self.digest = digest
        self.chain = chain
        self.size = step_bytes(step)
        self.outputs: list[Output] = []
        self.error: BaseException | None = None
        self.refusal: Refusal | None = None
        self.has_ended = False
        self.tried = True
        self.seconds = 0.0
        self.context: Headers | None = None
        """The trace context of its call; None if no call was made, or nothing is traced."""


class OverlappingRunner(Runner):
    """Runs the steps of one processor with several calls under way.

    A step is opened (decoded, its call started) when `run` first sees it. It is settled when its call has ended and all
    steps before it in its partition are settled: its outputs join the plan, and the ledger moves past it. Steps that
    are not settled go back to the tasks, and come again with the next intake.
    """

    overlaps = True

    def __init__(
        self,
        processor: Processor,
        tasks: Tasks,
        environment: Environment,
        dead_letters: DeadLetters | None,
        tracing: Tracing | None = None,
        *,
        traces_outputs: bool = False,
    ) -> None:
        registry = environment.registry
        super().__init__(processor, tasks, registry, dead_letters, traces_outputs=traces_outputs, tracing=tracing)
        called = processor if tracing is None else self._traced(processor, tracing)
        self._calls = environment.open_calls(called, self._finish)
        self._serdes = threading.RLock()
        """Lets one thread at a time call serdes."""
        self._decode_key = {topic: self._locked(decode) for topic, decode in self._decode_key.items()}
        self._tickets = count()
        self._steps: dict[int, _Open] = {}
        """The open steps, by the identity of the step: a step is the same object until it is settled."""
        self._by_ticket: dict[int, _Open] = {}
        """The open steps whose call has not ended."""
        self._failed = Counter[Hashable]()
        """By chain, how many steps failed and are not settled: no later step of these chains is opened."""
        self._bytes = Counter[int]()
        """The bytes of open steps, by partition."""
        self._clock = environment.clock
        self._stop_seconds = environment.settings.drain_timeout_ms / 1000 * STOP_SHARE
        self._done: list[Any] = []
        """The steps that this run has settled."""
        self._is_finishing = False

    def run(self, intake: Taken) -> Plan:
        """Opens the steps, waits for a while, and settles those that are done.

        If a step stops the worker, drops the calls that have not started, and waits for the others.
        """
        plan = Plan(intake=intake, seconds=0.0)
        self._done = []
        self._open(intake.steps)
        self._collect()
        left = self._settle(intake.steps, plan)
        if plan.interrupt is not None:
            self._settle_others(left, plan)
        self._put_back(intake, plan, left)
        plan.intake = replace(intake, steps=self._done)
        return plan

    @property
    def oldest(self) -> tuple[float, Callable[[], Any]] | None:
        """The start of the oldest call under way; see Calls."""
        return self._calls.oldest

    @property
    def is_calling(self) -> bool:
        """Whether calls are under way, or about to be made."""
        return bool(self._by_ticket)

    @property
    def has_open(self) -> bool:
        """Whether steps are open: their calls are under way, or have ended and are not settled."""
        return bool(self._steps)

    def finish(self) -> None:
        """Makes no more calls; those under way go on, and `run` settles them."""
        self._is_finishing = True
        self._calls.drop()

    def under_way(self) -> Positions:
        """Returns the next offsets after the steps that have begun, have not failed, and are not settled."""
        self._collect()
        return Intake([opened.step for opened in self._steps.values() if opened.error is None]).positions()

    def abandon(self) -> None:
        """Forgets all open steps: they are run again, here or by another worker."""
        self._calls.abandon()
        self._steps.clear()
        self._by_ticket.clear()
        self._failed.clear()
        self._bytes.clear()
        self._is_finishing = False  # if the steps before cannot be committed, all are run again

    def close(self) -> None:
        """Abandons all calls, and ends the threads that make them, if any."""
        self.abandon()
        self._calls.close()

    # Opening.

    def _open(self, steps: Iterable[Any]) -> None:
        calls: list[Call] = []
        for step in steps:
            if self._is_finishing or (self._is_full and (self._by_ticket or calls)):
                break
            if id(step) in self._steps:
                continue
            inputs: Inputs = step if self._joins else (step,)
            chain = self._chain(inputs)
            if not self._failed[chain]:
                calls += self._opened(_Open(step, inputs, self._tasks.delivery_hash(inputs), chain))
        if calls:
            self._calls.start(calls)

    def _opened(self, opened: _Open) -> Sequence[Call]:
        """Returns the call of a step; none if the step has already failed."""
        self._steps[id(opened.step)] = opened
        self._bytes[partition_of(opened.step)] += opened.size
        opened.refusal = self._refusal(opened.inputs)
        if opened.refusal is not None:
            opened.has_ended = True
            return ()
        try:
            arguments = [self._value(m) for m in opened.inputs]
        except BaseException as error:
            opened.error, opened.tried, opened.has_ended = error, False, True
            self._failed[opened.chain] += 1
            return ()
        if self._processor.wants_step:
            arguments.append(Step(opened.inputs, opened.digest, self._decode_key[opened.inputs[0].topic()]))
        if self._tracing is not None:
            arguments.insert(0, opened)
        ticket = next(self._tickets)
        self._by_ticket[ticket] = opened
        return (Call(ticket, opened.chain, arguments),)

    @property
    def _is_full(self) -> bool:
        """Whether open steps take WINDOW_BYTES; partitions that wait must not block others, so they do not count."""
        held = self._tasks.held
        return sum(size for number, size in self._bytes.items() if number not in held) >= WINDOW_BYTES

    def _chain(self, inputs: Inputs) -> Hashable:
        """Returns the chain of a step. Its calls never overlap, not even with an abandoned call of the same step."""
        m = inputs[0]
        if self._processor.order is Order.PARTITION:
            return m.partition()
        key = m.key() if self._processor.order is Order.KEY else None
        return read_by(inputs) if key is None else (m.partition(), key)

    def _value(self, m: Any) -> Any:
        with self._serdes:
            return super()._value(m)

    def _locked(self, decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
        return None if decode is None else partial(self._decoded, decode)

    def _decoded(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        with self._serdes:
            return decode(data)

    def _finish(self, ticket: int, result: Any) -> list[Output]:
        """Returns the outputs of a call, in the thread that made it, so that an encoding error fails its own step."""
        opened = self._by_ticket.get(ticket)
        if opened is None:  # the call was abandoned
            return []
        return opened.outputs if self._tracing is not None else self._encoded(opened, result)

    def _encoded(self, opened: _Open, result: Any) -> list[Output]:
        if self._sink:
            return []
        with self._serdes:
            return self._outputs.of(result, opened.inputs, opened.digest)

    # Tracing.

    def _traced(self, processor: Processor, tracing: Tracing) -> Processor:
        """Returns the processor with a function that takes the open step first, and makes the outputs in a span."""
        function, generator = processor.function, processor.generator

        async def await_traced(opened: _Open, *arguments: Any) -> None:
            with self._span(opened, tracing):
                called = function(*arguments)
                result = [each async for each in called] if generator else await called
                opened.outputs = self._encoded(opened, result)
            if opened.error is not None:
                raise opened.error

        def call_traced(opened: _Open, *arguments: Any) -> None:
            with self._span(opened, tracing):
                called = function(*arguments)
                opened.outputs = self._encoded(opened, list(called) if generator else called)
            if opened.error is not None:
                raise opened.error

        return replace(processor, function=await_traced if processor.asynchronous else call_traced, generator=False)

    @contextmanager
    def _span(self, opened: _Open, tracing: Tracing) -> Iterator[None]:
        """Makes a span the current one, and notes the outputs of the call, or its error, which the step keeps."""
        with tracing.steps([opened.inputs], opened.digest) as note:
            opened.context = tracing.headers()
            try:
                yield
                opened.outputs = put_in_trace(opened.outputs, [opened.inputs], tracing)
                note(Plan(outputs=opened.outputs))
            except Exception as error:
                opened.error = error
                attempts = self.retries.attempts([opened.step]) if self.retries is not None else 1
                again = Again([opened.step], error, attempts) if self._failures.retries_on(error) else None
                note(Plan(again=again, interrupt=None if again else error))

    def _settle_in_trace(self, opened: _Open, plan: Plan, tracing: Tracing) -> bool:
        """Settles a step in the trace of its call, which its dead letter carries; without a call, in a new trace."""
        if opened.context is not None:
            with tracing.resume(opened.context):
                return self._settle_step(opened, plan)
        one = Plan(intake=plan.intake, seconds=0.0)
        with tracing.steps([opened.inputs], opened.digest) as note:
            is_done = self._settle_step(opened, one)
            note(one)
        again = plan.again
        plan.add(one)
        plan.again = plan.again or again
        return is_done

    # Settling.

    def _collect(self) -> None:
        """Notes the calls that have ended."""
        for ended in self._calls.collect():
            opened = self._by_ticket.pop(ended.ticket)
            if not ended.has_run:
                self._forget(opened)
                continue
            opened.has_ended, opened.error, opened.seconds = True, ended.error, ended.seconds
            if ended.error is not None:
                self._failed[opened.chain] += 1
            elif ended.result:
                opened.outputs = ended.result
                size = value_bytes(opened.outputs)
                opened.size += size
                self._bytes[partition_of(opened.step)] += size

    def _settle(self, steps: Sequence[Any], plan: Plan) -> list[Any]:
        """Settles the steps that are done, in the order of each partition, until the outputs are many.

        Returns the other steps. A step that is run again, or that stops the worker, is the first of them.
        """
        first: list[Any] = []
        left: list[Any] = []
        behind, size = set[int](), 0
        for at, step in enumerate(steps):
            opened = self._steps.get(id(step))
            if opened is None or not opened.has_ended or partition_of(step) in behind or (first and opened.error):
                behind.add(partition_of(step))
                left.append(step)
                continue
            self._forget(opened)
            tracing = self._tracing
            if not (self._settle_in_trace(opened, plan, tracing) if tracing else self._settle_step(opened, plan)):
                behind.add(partition_of(step))
                first = [step]
            size += value_bytes(opened.outputs)
            if plan.interrupt is not None or are_many(plan.outputs, size):
                return [*first, *left, *steps[at + 1 :]]
        return [*first, *left]

    def _settle_step(self, opened: _Open, plan: Plan) -> bool:
        """Adds the result of a step to the plan; returns False if the step stops the worker, or is run again."""
        before = len(plan.outputs)
        if opened.refusal is not None:
            self._failures.add_dead_letter(opened.inputs, opened.refusal.mistake, plan)
        elif opened.error is None:
            plan.outputs += opened.outputs
        elif not self._failures.handle(opened.inputs, opened.error, plan, tried=opened.tried):
            return False
        if self._owned:
            plan.owners += [opened.inputs] * (len(plan.outputs) - before)
        plan.steps += 1
        self._done.append(opened.step)
        plan.seconds = (plan.seconds or 0.0) + opened.seconds
        for m in opened.inputs:
            self._tasks.by_partition[m.partition()].cursors[m.topic()].next = m.offset() + 1
        return True

    def _settle_others(self, left: Sequence[Any], plan: Plan) -> None:
        """Waits for the calls under way beside a step that stops the worker, and settles what it can.

        Under at_most_once, a failed step counts as tried, and so does one whose call does not end: neither is given
        back.
        """
        deadline = self._clock() + self._stop_seconds
        self.finish()
        while self._by_ticket and self._clock() < deadline:
            self._collect()
        interrupt, tried, others = plan.interrupt, plan.tried, left
        while others:
            if plan.interrupt is not None or plan.again is not None:  # the first of the others caused it
                tried |= plan.tried
                others = [step for step in others if partition_of(step) != partition_of(others[0])]
                plan.interrupt, plan.again, plan.tried = None, None, {}
            before = plan.steps
            others = self._settle(others, plan)
            if plan.steps == before and plan.interrupt is None and plan.again is None:
                break
        plan.interrupt, plan.tried = interrupt, tried | self.under_way()

    def _forget(self, opened: _Open) -> None:
        """Closes a step: it is settled, or dropped."""
        del self._steps[id(opened.step)]
        self._bytes[partition_of(opened.step)] -= opened.size
        if opened.error is not None:
            self._failed[opened.chain] -= 1
            if not self._failed[opened.chain]:
                del self._failed[opened.chain]
