"""Puts steps in spans, one at a time or a whole batch, and their trace context in the headers of their outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Protocol

from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Processor
from kstreams_py.kafka.contracts import HEADERS, TOPIC, Output
from kstreams_py.records import Headers, Inputs, readable_headers
from kstreams_py.steps.outputs import are_many, value_bytes
from kstreams_py.steps.plan import Intake, Plan
from kstreams_py.steps.rows import ROWS

Run = Callable[[Any, Plan], None]
"""Runs steps, and adds their results to a plan."""

Note = Callable[[int, BaseException | None], None]
"""Notes how many results a call has made, and its error; None if there is none."""


class Tracing(Protocol):
    """The spans of one worker or one task. Its thread uses this; overlapping calls also use `steps` and `headers`."""

    @property
    def fields(self) -> Collection[str]:
        """The headers that carry a trace context, such as traceparent."""

    def steps(self, steps: Sequence[Inputs], delivery_hash: bytes) -> AbstractContextManager[Callable[[Plan], None]]:
        """Makes a span the current one, and ends it with the block; yields a function that notes the plan of the steps.

        - `steps`: the steps that run together: one step, or the steps of a batch.
        - `delivery_hash`: the hash of a single step; b"" for several.
        """

    def call(self, inputs: Inputs, delivery_hash: bytes, attempt: int) -> AbstractContextManager[Note]:
        """Makes a span for a task's call the current one, and ends it with the block; yields a Note for the end.

        - `inputs`: records, or stand-ins for segments of channels, with their trace contexts; stand-ins have no offset.
        - `attempt`: how often the function was called with these inputs, including this call.
        """

    def headers(self) -> Headers:
        """Returns the headers that carry the current trace context; none if there is no context."""

    def resume(self, headers: Headers) -> AbstractContextManager[None]:
        """Makes the trace context of these headers the current one."""

    def commit(self, steps: int, records: int) -> AbstractContextManager[None]:
        """Makes a span for a commit of this many steps and outputs; an exception in the block is its error."""

    def forget(self) -> None:
        """Forgets the steps since the last commit: they are committed, or will be run again."""


OpenTracing = Callable[[str, Processor | JobTask, int], Tracing]
"""Makes the tracing of a worker; takes the graph's name, the processor or the task over channels, and the slot."""


def traced(run: Run, tracing: Tracing, processor: Processor, delivery_hash: Callable[[Inputs], bytes]) -> Run:
    """Returns `run` with a span around each step or batch; like `run`, it stops once the outputs are many."""

    def run_together(steps: Sequence[Any], plan: Plan) -> None:
        read: Sequence[Inputs] = steps if processor.joins else [(m,) for m in steps]
        digest = delivery_hash(read[0]) if len(read) == 1 else b""
        with tracing.steps(read, digest) as note:
            run(steps, plan)
            note(plan)
            plan.outputs = put_in_trace(plan.outputs, read, tracing)

    def run_one_by_one(steps: Sequence[Any], plan: Plan) -> None:
        size = 0
        for step in steps:
            one = Plan(intake=Intake([step]))
            run_together([step], one)
            plan.add(one)
            if one.interrupt is not None or one.again is not None:
                return
            size += value_bytes(one.outputs)
            if are_many(plan.outputs, size):
                return

    return run_together if processor.batch else run_one_by_one


def put_in_trace(outputs: list[Output], read: Sequence[Inputs], tracing: Tracing) -> list[Output]:
    """Returns the outputs of these steps with the current trace context, unless they have one of their own."""
    if not outputs or not (context := tracing.headers()):
        return outputs
    fields = tracing.fields
    carried = {h for m in chain.from_iterable(read) for h in readable_headers(m) if h[0] in fields}
    return [_in_trace(output, context, carried, fields) for output in outputs]


def _in_trace(
    output: Output, context: Headers, carried: Collection[tuple[str, bytes | None]], fields: Collection[str]
) -> Output:
    """Returns the output with the trace context in place of the one that it carries from an input.

    A context that the function has set itself, for example from its own span, stays.
    """
    if output[TOPIC] == ROWS:
        return output
    kept = []
    for header in output[HEADERS] or ():
        if header[0] not in fields:
            kept.append(header)
        elif header not in carried:
            return output
    return (*output[:HEADERS], [*kept, *context])
