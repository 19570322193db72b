"""Spans of steps and commits, by OpenTelemetry, with the attributes of its messaging conventions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Final

from kstreams_py.errors import MissingSoftware, SettingsError, Stop
from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Processor
from kstreams_py.records import Headers, Inputs, Message, Unreadable, readable_headers
from kstreams_py.steps.dead_letters import format_error, format_traceback
from kstreams_py.steps.plan import Plan
from kstreams_py.steps.tracing import Note

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
except ImportError:
    raise MissingSoftware("tracing (KSTREAMS_TRACING) needs OpenTelemetry: pip install 'kstreams_py[otel]'") from None
except ValueError as error:  # raised by the import of `propagate`
    raise SettingsError(f"OTEL_PROPAGATORS is not accepted: {error} Correct or unset it") from None

LINKS_MAX: Final = 128
"""The maximum number of links of a span, to records of a batch or steps of a commit. It is the SDK's default limit."""

CHANNEL_SYSTEM: Final = "kstreams"
"""The messaging system of channels, and of inputs that are not records."""

EXCEPTIONS_MAX: Final = 8
"""The maximum number of exceptions that the span of a batch records."""


class _Carrier(Getter[Headers]):
    """Reads the headers of a record."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        found = [value.decode("utf-8", "replace") for name, value in carrier if name == key and value is not None]
        return found or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_CARRIER: Final = _Carrier()


class WorkerTracing:
    """The spans of one worker (see Tracing): a processor or a task of the graph with this name, in one slot.

    - `provider`: the tracer provider for the spans; None for the program's own.
    """

    def __init__(
        self, graph: str, processor: Processor | JobTask, slot: int, provider: trace.TracerProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("kstreams_py", tracer_provider=provider)
        self._propagator = propagate.get_global_textmap()
        self.fields = frozenset(self._propagator.fields)
        self._graph, self._slot = graph, slot
        self._group = f"{graph}.{processor.id}"
        self._own: dict[str, str | int] = {
            "kstreams.graph": graph,
            "kstreams.processor": processor.id,
            "kstreams.guarantee": str(processor.guarantee) if isinstance(processor, Processor) else "at_least_once",
            "kstreams.slot": slot,
        }
        self._attributes = {**_member(self._group, slot), **self._own}
        self._ran: list[SpanContext] = []
        """The spans of uncommitted steps: LINKS_MAX sampled ones at most; the first one if none is sampled."""
        self._lock = threading.Lock()
        """Guards `_ran`: overlapping calls run in threads of their own."""

    @contextmanager
    def steps(self, steps: Sequence[Inputs], delivery_hash: bytes) -> Iterator[Callable[[Plan], None]]:
        """Makes a span the current one: see Tracing.

        The span of a step continues the trace of its input; in a join, the trace of the first input that has one, with
        links to the others. The span of a batch continues the trace of its records if they share one; otherwise it
        begins a trace, with links to their traces.
        """
        lead = steps[0][0]
        attributes: dict[str, str | int | list[str]] = {**self._attributes, **_processing(lead)}
        if len(steps) == 1:
            attributes["kstreams.delivery_hash"] = delivery_hash.hex()
            attributes |= _position(lead) if len(steps[0]) == 1 else _positions(steps[0])
            parent, links = self._origin_of_step(steps[0])
        else:
            attributes["messaging.batch.message_count"] = sum(map(len, steps))
            parent, links = self._origin_of_batch(steps)
        with self._process(lead, attributes, parent, links) as span:
            self._note_run(span.get_span_context())
            yield lambda plan: _note(span, plan)

    @contextmanager
    def call(self, inputs: Inputs, delivery_hash: bytes, attempt: int) -> Iterator[Note]:
        """Makes a span for a task's call the current one: see Tracing. It continues a trace as a step's span does."""
        lead = inputs[0]
        attributes: dict[str, str | int | list[str]] = {**self._own, **_processing(lead)}
        attributes["kstreams.delivery_hash"] = delivery_hash.hex()
        if lead.offset() < 0:
            attributes["messaging.system"] = CHANNEL_SYSTEM
        else:
            attributes |= {**_member(f"{self._graph}.{lead.topic()}", self._slot), **_position(lead)}
        if attempt > 1:
            attributes["kstreams.attempt"] = attempt
        with self._process(lead, attributes, *self._origin_of_step(inputs)) as span:
            yield lambda records, error: _note_call(span, records, error)

    @contextmanager
    def _process(
        self, lead: Message, attributes: Mapping[str, Any], parent: Context, links: Sequence[SpanContext]
    ) -> Iterator[Span]:
        """Makes a span the current one, and ends it with the block."""
        name, linked = f"process {lead.topic()}", [Link(each) for each in links]
        span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, linked)
        token = contexts.attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        except BaseException as error:
            _fail(span, [error])
            raise
        finally:
            contexts.detach(token)
            span.end()

    def headers(self) -> Headers:
        """Returns the headers that carry the current trace context; none if there is no context."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return [(name, value.encode()) for name, value in carrier.items()]

    @contextmanager
    def resume(self, headers: Headers) -> Iterator[None]:
        """Makes the trace context of these headers the current one."""
        token = contexts.attach(self._extract(headers))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def commit(self, steps: int, records: int) -> Iterator[None]:
        """Makes a span for a commit, with links to the steps; it is not sampled if no step is.

        The span belongs to the trace of the steps, if they share one.
        """
        attributes = {
            **self._attributes,
            "messaging.operation.name": "commit",
            "messaging.operation.type": "settle",
            "kstreams.steps": steps,
            "kstreams.records": records,
        }
        with self._lock:
            ran = [*self._ran]
        parent, links = _beginning(ran)
        name = f"commit {self._group}"
        span = self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes, [Link(each) for each in links])
        try:
            yield
        except BaseException as error:
            _fail(span, [error])
            raise
        finally:
            span.end()

    def forget(self) -> None:
        """Forgets the steps since the last commit."""
        with self._lock:
            self._ran = []

    def _note_run(self, span: SpanContext) -> None:
        if not span.is_valid:
            return
        with self._lock:
            ran = self._ran
            if len(ran) >= LINKS_MAX:
                return
            if ran and ran[0].trace_flags.sampled != span.trace_flags.sampled:
                if ran[0].trace_flags.sampled:
                    return
                ran.clear()
            if span.trace_flags.sampled or not ran:
                ran.append(span)

    def _extract(self, headers: Headers) -> Context:
        return self._propagator.extract(headers, Context(), _CARRIER)

    def _origin_of_step(self, inputs: Inputs) -> tuple[Context, list[SpanContext]]:
        found = [self._extract(headers) for m in inputs if (headers := readable_headers(m))]
        origins = _distinct(found)
        if not origins:
            return found[0] if found else Context(), []  # baggage alone
        lead = next(context for context in found if _span_in(context) is origins[0])
        return lead, origins[1:]

    def _origin_of_batch(self, steps: Sequence[Inputs]) -> tuple[Context, list[SpanContext]]:
        every = [readable_headers(m) for m in chain.from_iterable(steps)]
        contexts = [self._extract(headers) for headers in every if headers]
        found = _distinct(contexts)
        if len(contexts) == len(every) and all(_span_in(context).is_valid for context in contexts):
            return _beginning(found)
        # a record without a trace may begin one, whatever the others have
        return Context(), [each for each in found if each.trace_flags.sampled]


def _beginning(origins: Sequence[SpanContext]) -> tuple[Context, list[SpanContext]]:
    """Returns the parent and links of a span that follows others: the sampled ones, or the first if none is sampled.

    If all belong to one trace, or none is sampled, the first is the parent; otherwise there is no parent.
    """
    sampled = [each for each in origins if each.trace_flags.sampled]
    if sampled and any(each.trace_id != sampled[0].trace_id for each in origins):
        return Context(), sampled
    if not origins:
        return Context(), []
    first, *others = sampled or origins[:1]
    return trace.set_span_in_context(trace.NonRecordingSpan(first), Context()), others


def _distinct(found: Iterable[Context]) -> list[SpanContext]:
    """Returns the spans in these contexts, each once, at most LINKS_MAX."""
    spans = (span for context in found if (span := _span_in(context)).is_valid)
    distinct: dict[tuple[int, int], SpanContext] = {}
    for span in spans:
        distinct.setdefault((span.trace_id, span.span_id), span)
        if len(distinct) == LINKS_MAX:
            break
    return list(distinct.values())


def _span_in(context: Context) -> SpanContext:
    return trace.get_current_span(context).get_span_context()


def _member(group: str, slot: int) -> dict[str, str | int]:
    return {
        "messaging.system": "kafka",
        "messaging.consumer.group.name": group,
        "messaging.client.id": f"{group}.{slot}",
    }


def _processing(lead: Message) -> dict[str, str | int]:
    return {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": lead.topic(),
    }


def _position(m: Message) -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "messaging.destination.partition.id": str(m.partition()),
        "messaging.kafka.offset": m.offset(),
    }
    if not isinstance(m, Unreadable) and m.value() is None:
        found["messaging.kafka.message.tombstone"] = True
    return found


def _positions(inputs: Inputs) -> dict[str, str | int | list[str]]:
    """Returns the attributes of a join's step, whose inputs share a partition number and have an offset each."""
    return {
        "messaging.destination.partition.id": str(inputs[0].partition()),
        "messaging.batch.message_count": len(inputs),
        "kstreams.inputs": [f"{m.topic()}[{m.partition()}]@{m.offset()}" for m in inputs],
    }


def _note_call(span: Span, records: int, error: BaseException | None) -> None:
    span.set_attribute("kstreams.records", records)
    if error is not None and not isinstance(error, Stop):
        _fail(span, [error])


def _note(span: Span, plan: Plan) -> None:
    """Notes the results of the steps: outputs, dead letters, exceptions. Stop is not an error."""
    if not span.is_recording():
        return
    span.set_attribute("kstreams.records", len(plan.outputs) - plan.dead_letters)
    attempts = max((failure.attempts for failure in plan.failures), default=1)
    errors: list[BaseException] = [failure.error for failure in plan.failures]
    if plan.again is not None:
        attempts = plan.again.attempts
        errors.append(plan.again.error)
    if plan.interrupt is not None and not isinstance(plan.interrupt, Stop):
        errors.append(plan.interrupt)
    if attempts > 1 or plan.again is not None:
        span.set_attribute("kstreams.attempt", attempts)
    if plan.dead_letters:
        span.set_attribute("kstreams.dead_letters", plan.dead_letters)
    if errors:
        _fail(span, errors)


def _fail(span: Span, errors: Sequence[BaseException]) -> None:
    """Records exceptions, each once, and the first as the error of the span."""
    if not span.is_recording():
        return
    for error in islice({id(error): error for error in errors}.values(), EXCEPTIONS_MAX):
        span.add_event(
            "exception",
            {
                "exception.type": _name(error),
                "exception.message": format_error(error),
                "exception.stacktrace": format_traceback(error),
            },
        )
    first = errors[0]
    span.set_attribute("error.type", _name(first))
    span.set_status(Status(StatusCode.ERROR, f"{type(first).__name__}: {format_error(first)}"))


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
