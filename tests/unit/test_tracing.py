"""Tracing: the spans of steps and commits, the trace context in the headers of outputs, and nothing where it is off."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags

import kstreams_py as ks
from kstreams_py import sources
from kstreams_py.errors import Abortable, Retriable
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.jobs import job
from kstreams_py.jobs.traces import Traces
from kstreams_py.kafka.sizes import RecordLimits
from kstreams_py.processing.commits.attempts import CALLS_MAX
from kstreams_py.records import Headers
from kstreams_py.settings import Settings
from kstreams_py.sources.http_requests import carried_headers
from kstreams_py.steps import otel, outputs
from kstreams_py.steps.dead_letters import DeadLetters, Failure, record_size
from kstreams_py.steps.outputs import encoder
from kstreams_py.testing import MemoryRegistry, TestDriver
from kstreams_py.testing.memory_source import MemoryConnection
from tests.unit.fakes import Read, raise_error
from tests.unit.processing import Processing

TRACED = Settings(tracing=True)
TRACE, OTHER = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319d"
SPAN, SECOND = "b7ad6b7169203331", "c7ad6b7169203332"
GUARANTEES = list(ks.Guarantee)


class Spans:
    """The spans that have ended, in that order."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def of(self, prefix: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(prefix)]

    @property
    def steps(self) -> list[ReadableSpan]:
        return self.of("process ")

    @property
    def commits(self) -> list[ReadableSpan]:
        return self.of("commit ")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """The spans of the test's own tracer provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return Spans(exporter)


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def traceparent(trace_id: str = TRACE, span_id: str = SPAN, *, sampled: bool = True) -> tuple[str, bytes]:
    return ("traceparent", f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}".encode())


def header_of(span: ReadableSpan) -> bytes:
    """The traceparent that names this span; flag 2 says that its trace id is random."""
    context = context_of(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()


def trace_of(span: ReadableSpan) -> str:
    return f"{context_of(span).trace_id:032x}"


def parent_of(span: ReadableSpan) -> tuple[str, str] | None:
    return None if span.parent is None else (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}")


def links_of(span: ReadableSpan) -> list[tuple[str, str]]:
    return [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links]


def name_of(span: ReadableSpan) -> tuple[str, str]:
    """A span as a link names it."""
    return (trace_of(span), f"{context_of(span).span_id:016x}")


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def errors_of(span: ReadableSpan) -> list[tuple[Any, Any]]:
    """Class and message of each exception that a span has recorded."""
    found = [dict(event.attributes or {}) for event in span.events if event.name == "exception"]
    return [(each["exception.type"], each["exception.message"]) for each in found]


def new_graph(**options: Any) -> ks.Graph:
    graph = ks.Graph("g", errors="dead", **options)
    for name in "abxy":
        graph.topic(name, value=ks.String())
    return graph


def run(graph: ks.Graph, *sent: tuple[str, str, Headers], settings: Settings = TRACED) -> TestDriver:
    """Runs a graph on these records: topic, value, headers."""
    driver = TestDriver(graph, settings=settings)
    for topic, value, headers in sent:
        driver.send(topic, value, headers=headers)
    driver.run()
    return driver


# Each kind of processor.


def out_of(value: str) -> ks.Out:
    return ks.Out(value, headers=[("own", b"1")])


def out_kept(value: str) -> ks.Out:
    return ks.Out(value)


def out_passed_on(value: str, step: ks.Step) -> ks.Out:
    return ks.Out(value, headers=[*step.headers, ("own", b"1")])


def two(value: str) -> Iterator[str]:
    yield value
    yield value


async def later(value: Any) -> Any:
    assert trace.get_current_span().get_span_context().is_valid
    await asyncio.sleep(0)
    assert trace.get_current_span().get_span_context().is_valid
    return value


async def two_later(value: str) -> AsyncIterator[str]:
    yield value
    await asyncio.sleep(0)
    yield value


OF_ONE: dict[str, tuple[Callable[[ks.Graph], object], dict[str, list[list[str]]]]] = {
    "map": (lambda g: g.map("a", to="x", id="p")(lambda v: v), {"x": [["n"]]}),
    "map with step": (lambda g: g.map("a", to="x", id="p")(lambda value, step: value), {"x": [["n"]]}),
    "fork": (lambda g: g.map("a", to=["x", "y"], id="p")(lambda v: {"x": v, "y": v}), {"x": [["n"]], "y": [["n"]]}),
    "alts": (lambda g: g.alts("a", "b", to="x", id="p")(lambda v: v), {"x": [["n"]]}),
    "generator": (lambda g: g.map("a", to="x", id="p")(two), {"x": [["n"], ["n"]]}),
    "batch of one": (lambda g: g.map("a", to="x", id="p", batch=True)(lambda values: values), {"x": [["n"]]}),
    "headers kept": (lambda g: g.map("a", to="x", id="p")(out_kept), {"x": [["n"]]}),
    "headers set": (lambda g: g.map("a", to="x", id="p")(out_of), {"x": [["own"]]}),
    "headers passed on": (lambda g: g.map("a", to="x", id="p")(out_passed_on), {"x": [["n", "own"]]}),
    "without delivery hash": (lambda g: g.map("a", to="x", id="p", hash_header=False)(lambda v: v), {"x": [["n"]]}),
    "sink": (lambda g: g.sink("a", id="p")(lambda v: None), {}),
    "async": (lambda g: g.map("a", to="x", id="p")(later), {"x": [["n"]]}),
    "async batch": (lambda g: g.map("a", to="x", id="p", batch=True)(later), {"x": [["n"]]}),
    "async generator": (lambda g: g.map("a", to="x", id="p")(two_later), {"x": [["n"], ["n"]]}),
    "threads": (lambda g: g.map("a", to="x", id="p", concurrency=3)(lambda v: v), {"x": [["n"]]}),
    "generators in threads": (lambda g: g.map("a", to="x", id="p", concurrency=3)(two), {"x": [["n"], ["n"]]}),
    "headers passed on in threads": (
        lambda g: g.map("a", to="x", id="p", concurrency=3)(out_passed_on),
        {"x": [["n", "own"]]},
    ),
    "filter": (lambda g: g.map("a", to="x", id="p")(lambda v: None), {"x": []}),
}


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kind", OF_ONE)
def test_step_continues_the_trace_of_its_input_and_its_outputs_carry_its_span(
    kind: str, guarantee: ks.Guarantee, spans: Spans
) -> None:
    declare, names = OF_ONE[kind]
    graph = new_graph(guarantee=guarantee)
    declare(graph)
    driver = run(graph, ("a", "1", [("n", b"1"), traceparent()]))
    (span,), (commit,) = spans.steps, spans.commits
    outputs = {topic: driver.read(topic) for topic in names}
    assert parent_of(span) == (TRACE, SPAN)
    assert (span.name, span.kind, span.status.status_code) == ("process a", SpanKind.CONSUMER, StatusCode.UNSET)
    assert attributes_of(span) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "a",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.consumer.group.name": "g.p",
        "messaging.client.id": "g.p.0",
        "kstreams.graph": "g",
        "kstreams.processor": "p",
        "kstreams.guarantee": str(guarantee),
        "kstreams.slot": 0,
        "kstreams.delivery_hash": attributes_of(span)["kstreams.delivery_hash"],
        "kstreams.records": sum(map(len, outputs.values())),
    }
    assert {topic: [[name for name, _ in each.headers] for each in found] for topic, found in outputs.items()} == {
        topic: [[*each, "traceparent"] for each in found] for topic, found in names.items()
    }
    found = [record for records in outputs.values() for record in records]
    assert {dict(each.headers)["traceparent"] for each in found} <= {header_of(span)}
    hashes = {each.delivery_hash.hex() for each in found if each.delivery_hash is not None}
    assert hashes <= {attributes_of(span)["kstreams.delivery_hash"]}
    assert parent_of(commit) == name_of(span)
    assert attributes_of(commit)["kstreams.steps"] == 1
    assert attributes_of(commit)["kstreams.records"] == len(found)


def test_record_without_a_trace_begins_one_and_one_without_headers_too(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    driver = run(graph, ("a", "1", [("n", b"1")]), ("a", "2", []))
    first, second = spans.steps
    assert (parent_of(first), parent_of(second)) == (None, None)
    assert trace_of(first) != trace_of(second)
    assert [each.headers for each in driver.read("x")] == [
        (("n", b"1"), ("traceparent", header_of(first))),
        (("traceparent", header_of(second)),),
    ]


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"00-zz-zz-01", traceparent("0" * 32, "0" * 16)[1]])
def test_trace_context_that_cannot_be_read_is_replaced_by_that_of_a_new_trace(
    value: bytes | None, spans: Spans
) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    driver = run(graph, ("a", "1", [("traceparent", value)]))
    (span,) = spans.steps
    assert parent_of(span) is None
    assert [each.headers for each in driver.read("x")] == [(("traceparent", header_of(span)),)]


def test_state_and_baggage_of_a_trace_are_carried_on(spans: Spans) -> None:
    graph = new_graph()
    seen: list[object] = []

    def function(value: str) -> str:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        seen.append(carrier["baggage"])
        return value

    graph.map("a", to="x", id="p")(function)
    driver = run(graph, ("a", "1", [traceparent(), ("tracestate", b"v=1"), ("baggage", b"user=7")]))
    (span,), (record,) = spans.steps, driver.read("x")
    assert seen == ["user=7"]
    assert record.headers == (("traceparent", header_of(span)), ("tracestate", b"v=1"), ("baggage", b"user=7"))


def test_join_continues_the_trace_of_its_first_input_and_links_the_others(spans: Spans) -> None:
    graph = new_graph()
    graph.join("a", "b", by="order", to="x", id="p")(lambda a, b: a + b)
    driver = run(graph, ("a", "1", [traceparent()]), ("b", "2", [traceparent(OTHER, SECOND)]))
    (span,), (record,) = spans.steps, driver.read("x")
    assert (parent_of(span), links_of(span)) == ((TRACE, SPAN), [(OTHER, SECOND)])
    found = attributes_of(span)
    assert (found["kstreams.inputs"], found["messaging.batch.message_count"]) == (("a[0]@0", "b[0]@0"), 2)
    assert record.delivery_hash is not None
    assert found["kstreams.delivery_hash"] == record.delivery_hash.hex()
    assert record.headers == (("traceparent", header_of(span)),)


def test_join_continues_the_trace_of_whichever_input_has_one(spans: Spans) -> None:
    graph = new_graph()
    graph.join("a", "b", by="order", to="x", id="p")(lambda a, b: a + b)
    run(graph, ("a", "1", []), ("b", "2", [traceparent(OTHER, SECOND)]))
    (span,) = spans.steps
    assert (parent_of(span), links_of(span)) == ((OTHER, SECOND), [])


def test_batch_has_one_span_with_links_to_its_records_and_a_trace_of_its_own(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p", batch=True)(lambda values: values)
    sent = [traceparent(), traceparent(OTHER, SECOND), traceparent()]
    driver = run(graph, *(("a", str(i), [header]) for i, header in enumerate(sent)), ("a", "3", []))
    (span,), (commit,) = spans.steps, spans.commits
    assert (parent_of(span), links_of(span)) == (None, [(TRACE, SPAN), (OTHER, SECOND)])
    found = attributes_of(span)
    assert (found["messaging.batch.message_count"], found["kstreams.records"]) == (4, 4)
    assert "kstreams.delivery_hash" not in found
    assert [each.headers for each in driver.read("x")] == [(("traceparent", header_of(span)),)] * 4
    assert (parent_of(commit), links_of(commit)) == (name_of(span), [])
    assert attributes_of(commit)["kstreams.steps"] == 4


def test_batch_of_records_of_one_trace_continues_it(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p", batch=True)(lambda values: values)
    run(graph, ("a", "1", [traceparent()]), ("a", "2", [traceparent(span_id=SECOND)]), ("a", "3", [traceparent()]))
    (span,) = spans.steps
    assert (parent_of(span), links_of(span)) == ((TRACE, SPAN), [(TRACE, SECOND)])


def test_links_of_a_batch_and_of_a_commit_are_bounded(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p", batch=True)(lambda values: values)
    sent = [(f"{i + 1:032x}", f"{i + 1:016x}") for i in range(otel.LINKS_MAX + 9)]
    records = [Read("a", i, b"1", headers=[traceparent(*context)]) for i, context in enumerate(sent)]
    tracing = otel.WorkerTracing("g", graph.processors[0], 0)
    Processing(graph, tracing=tracing).plan(*records)
    (of_batch,) = spans.steps
    assert links_of(of_batch) == sent[: otel.LINKS_MAX]

    one_by_one = new_graph()
    one_by_one.map("a", to="x", id="p")(lambda value: value)
    tracing.forget()
    Processing(one_by_one, tracing=tracing).plan(*records)
    with tracing.commit(len(records), 0):
        pass
    (commit,), steps = spans.commits, spans.steps[1:]
    assert len(steps) == len(records)
    assert links_of(commit) == [name_of(span) for span in steps[: otel.LINKS_MAX]]


def test_trace_survives_two_processors(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    graph.map("x", to="y", id="q")(lambda value: value)
    driver = run(graph, ("a", "1", [traceparent()]))
    first, second = spans.steps
    assert (parent_of(first), parent_of(second)) == ((TRACE, SPAN), name_of(first))
    assert [each.headers for each in driver.read("y")] == [(("traceparent", header_of(second)),)]


# What a function does with its span.


def test_function_gets_the_span_of_its_step_and_its_own_spans_are_below(spans: Spans) -> None:
    graph = new_graph()
    headers: list[tuple[str, bytes]] = []

    def function(value: str) -> ks.Out:
        trace.get_current_span().set_attribute("order", value)
        with trace.get_tracer("shop").start_as_current_span("own"):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            headers[:] = [(name, text.encode()) for name, text in carrier.items()]
        return ks.Out(value, headers=headers)

    graph.map("a", to="x", id="p")(function)
    driver = run(graph, ("a", "7", [traceparent()]))
    (span,), (own,) = spans.steps, spans.of("own")
    assert attributes_of(span)["order"] == "7"
    assert parent_of(own) == name_of(span)
    # a context that the function has set itself stays
    assert [each.headers for each in driver.read("x")] == [(("traceparent", header_of(own)),)]


def test_span_is_current_in_the_body_of_a_generator_and_nowhere_after_the_run(spans: Spans) -> None:
    graph = new_graph()

    def function(value: str) -> Iterator[str]:
        trace.get_current_span().add_event("before")
        yield value
        trace.get_current_span().add_event("after")

    graph.map("a", to="x", id="p")(function)
    run(graph, ("a", "1", []))
    (span,) = spans.steps
    assert [event.name for event in span.events] == ["before", "after"]
    assert not trace.get_current_span().get_span_context().is_valid


# Failures.


def fail_on(*values: str) -> Callable[[str], str]:
    def function(value: str) -> str:
        if value in values:
            raise LookupError(f"no {value}")
        return value

    return function


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_step_that_raises_has_the_exception_on_its_span_and_its_letter_the_trace(
    guarantee: ks.Guarantee, spans: Spans
) -> None:
    graph = new_graph(guarantee=guarantee)
    graph.map("a", to="x", id="p")(fail_on("2"))
    driver = run(graph, ("a", "1", [traceparent()]), ("a", "2", [traceparent(OTHER, SECOND)]))
    good, bad = spans.steps
    assert (good.status.status_code, errors_of(good)) == (StatusCode.UNSET, [])
    assert (bad.status.status_code, bad.status.description) == (StatusCode.ERROR, "LookupError: no 2")
    assert errors_of(bad) == [("LookupError", "no 2")]
    found = attributes_of(bad)
    assert (found["error.type"], found["kstreams.dead_letters"], found["kstreams.records"]) == ("LookupError", 1, 0)
    (letter,) = driver.dead_letters()
    assert dict(letter.headers)["traceparent"] == header_of(bad)
    assert letter.value["inputs"][0]["headers"] == [{"name": "traceparent", "value": traceparent(OTHER, SECOND)[1]}]
    assert trace_of(bad) == OTHER


def test_value_that_is_not_decoded_or_encoded_is_an_error_of_the_steps_span(spans: Spans) -> None:
    graph = ks.Graph("g", errors="dead")
    graph.topic("a", value=ks.Json())
    graph.topic("x", value=ks.Json())
    graph.map("a", to="x", id="p")(lambda value: {object()} if value == 1 else value)
    driver = TestDriver(graph, settings=TRACED)
    driver.cluster.append("a", b"{", None, [traceparent()], None, -1)
    driver.send("a", 1)
    driver.run()
    assert [span.status.status_code for span in spans.steps] == [StatusCode.ERROR, StatusCode.ERROR]
    assert [errors_of(span)[0][0] for span in spans.steps] == [
        "kstreams_py.errors.DecodeError",
        "kstreams_py.errors.EncodeError",
    ]
    letters = [dict(letter.headers)["traceparent"] for letter in driver.dead_letters()]
    assert letters == [header_of(span) for span in spans.steps]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_calls_that_overlap_have_a_span_each_with_their_own_errors_and_dead_letters(
    guarantee: ks.Guarantee, spans: Spans
) -> None:
    graph = ks.Graph("g", errors="dead", guarantee=guarantee)
    graph.topic("a", value=ks.Json())
    graph.topic("x", value=ks.Json())
    together = asyncio.Event()

    @graph.map("a", to="x", id="p", concurrency=4)
    async def function(value: int) -> Any:
        if value == 4:
            together.set()
        await asyncio.wait_for(together.wait(), 20)
        if value == 3:
            raise LookupError("no 3")
        return {object()} if value == 2 else value

    driver = TestDriver(graph, partitions=4, settings=TRACED)
    driver.cluster.append("a", b"{", None, [traceparent()], None, 0)
    for number in (1, 2, 3, 4):
        driver.send("a", number, partition=number - 1, headers=[traceparent(span_id=f"{number:016x}")])
    driver.run()
    found = {(parent_of(span) or ("", ""))[1]: errors_of(span) for span in spans.steps}
    kinds = {each: [kind for kind, _ in errors] for each, errors in found.items()}
    assert kinds == {
        SPAN: ["kstreams_py.errors.DecodeError"],
        f"{1:016x}": [],
        f"{2:016x}": ["kstreams_py.errors.EncodeError"],
        f"{3:016x}": ["LookupError"],
        f"{4:016x}": [],
    }
    by_header: dict[bytes | None, Any] = {header_of(span): parent_of(span) for span in spans.steps}
    carried = [by_header[dict(each.headers)["traceparent"]] for each in driver.dead_letters()]
    assert sorted(each[1] for each in carried if each) == sorted([SPAN, f"{2:016x}", f"{3:016x}"])
    written = [by_header[dict(each.headers)["traceparent"]] for each in driver.read("x")]
    assert sorted(each[1] for each in written if each) == [f"{1:016x}", f"{4:016x}"]


def test_exceptions_of_a_batch_are_on_its_span_each_once_and_bounded(spans: Spans) -> None:
    graph = new_graph()
    error = LookupError("all")
    graph.map("a", to="x", id="p", batch=True)(lambda values: [error] * 5 + [ValueError(i) for i in range(20)])
    driver = run(graph, *(("a", "1", []) for _ in range(25)))
    (span,) = spans.steps
    of_values = [("ValueError", str(i)) for i in range(otel.EXCEPTIONS_MAX - 1)]
    assert errors_of(span) == [("LookupError", "all"), *of_values]
    assert attributes_of(span)["kstreams.dead_letters"] == 25
    assert {dict(letter.headers)["traceparent"] for letter in driver.dead_letters()} == {header_of(span)}


class Bad(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError


class Noted(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise RuntimeError
        return super().__getattribute__(name)


UNPRINTABLE: dict[str, tuple[BaseException, str]] = {
    "1": (Bad(), "<Bad, whose __str__ raised>"),
    "2": (ValueError("\udcff"), "\\udcff"),
    "3": (SyntaxError("m", ("f", 1, 2, b"text")), "m (f, line 1)"),  # type: ignore[arg-type]
    "4": (SyntaxError("m", ("f", "a", "b", "text")), "m (f)"),  # type: ignore[arg-type]
    "5": (Noted("n"), "n"),
}
"""Exceptions that cannot be formatted, encoded or shown with their traceback, and the texts that are recorded."""


@pytest.mark.parametrize("concurrency", [1, 2])
def test_exception_that_cannot_be_formatted_is_recorded_and_has_a_dead_letter(spans: Spans, concurrency: int) -> None:
    graph = new_graph()

    def function(value: str) -> None:
        raise UNPRINTABLE[value][0]

    graph.map("a", to="x", id="p", concurrency=concurrency)(function)
    driver = run(graph, *(("a", value, []) for value in UNPRINTABLE))
    texts = [text for _, text in UNPRINTABLE.values()]
    assert sorted(errors_of(span)[0][1] for span in spans.steps) == sorted(texts)
    assert sorted(each.value["exception_message"] for each in driver.dead_letters()) == sorted(texts)
    assert all(
        f"{type(error).__name__}" in letter.value["traceback"]
        for letter, (error, _) in zip(driver.dead_letters(), UNPRINTABLE.values(), strict=True)
    )


@pytest.mark.parametrize("concurrency", [1, 2])
def test_each_attempt_at_a_step_is_a_span_with_its_number(concurrency: int, spans: Spans) -> None:
    graph = new_graph(retry=ks.Retry(on=ConnectionError, attempts=3, backoff="1s..1s"))
    failures = [ConnectionError("away"), ConnectionError("still away")]

    def function(value: str) -> str:
        if value == "2" and failures:
            raise failures.pop(0)
        return value

    graph.map("a", to="x", id="p", concurrency=concurrency)(function)
    driver = run(graph, ("a", "1", []), ("a", "2", [traceparent()]), ("a", "3", []))
    for _ in range(2):
        driver.advance(10)
        driver.run()
    assert driver.values("x") == ["1", "2", "3"]
    attempts = [span for span in spans.steps if parent_of(span) == (TRACE, SPAN)]
    assert [attributes_of(span).get("kstreams.attempt") for span in attempts] == [1, 2, None]
    assert [errors_of(span) for span in attempts] == [
        [("ConnectionError", "away")],
        [("ConnectionError", "still away")],
        [],
    ]
    assert len({attributes_of(span)["kstreams.delivery_hash"] for span in attempts}) == 1
    assert dict(driver.read("x")[1].headers)["traceparent"] == header_of(attempts[-1])


def test_dead_letter_after_the_last_attempt_has_the_trace_and_the_span_the_number(spans: Spans) -> None:
    graph = new_graph(retry=ks.Retry(on=LookupError, attempts=2, backoff="1s..1s"))
    graph.map("a", to="x", id="p")(fail_on("1"))
    driver = run(graph, ("a", "1", [traceparent()]))
    driver.advance(10)
    driver.run()
    first, last = spans.steps
    assert [attributes_of(span)["kstreams.attempt"] for span in (first, last)] == [1, 2]
    (letter,) = driver.dead_letters()
    assert dict(letter.headers)["traceparent"] == header_of(last)


def test_exception_that_stops_the_worker_is_an_error_and_stop_is_none(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p", stop_on=LookupError)(lambda value: raise_error(ks.Stop("enough")))
    run(graph, ("a", "1", []))
    graph = new_graph()
    graph.map("a", to="x", id="p", stop_on=LookupError)(fail_on("1"))
    with pytest.raises(LookupError):
        run(graph, ("a", "1", []))
    of_stop, of_error = spans.steps
    assert (of_stop.status.status_code, errors_of(of_stop)) == (StatusCode.UNSET, [])
    assert (of_error.status.status_code, errors_of(of_error)) == (StatusCode.ERROR, [("LookupError", "no 1")])


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_dead_letter_of_an_output_that_its_topic_refuses_has_the_trace(guarantee: ks.Guarantee, spans: Spans) -> None:
    graph = new_graph(guarantee=guarantee)
    graph.map("a", to="x", id="p")(lambda value: value.ljust(1_500_000) if value == "2" else value)
    driver = run(graph, ("a", "1", []), ("a", "2", [traceparent()]), ("a", "3", []))
    assert [value.strip() for value in driver.values("x")] == ["1", "3"]
    (letter,) = driver.dead_letters()
    carried = dict(letter.headers)["traceparent"]
    assert carried in {header_of(span) for span in spans.steps if parent_of(span) == (TRACE, SPAN)}
    if guarantee is not ks.Guarantee.AT_MOST_ONCE:  # there the step is not run again, and its function did not raise
        failed = next(span for span in spans.steps if header_of(span) == carried)
        assert errors_of(failed)[0][0] == "kstreams_py.errors.RecordTooLarge"


def test_dead_letter_with_a_trace_is_cut_to_what_its_topic_takes() -> None:
    context: Headers = [traceparent(), ("baggage", b"b" * 700)]
    encode = encoder(dead_letters(), MemoryRegistry(), "dead-value")
    letters = DeadLetters("g.p", "dead", encode, time.time, RecordLimits(5_000), lambda: context)
    output = letters.of(Failure((Read("a", 0, b"v" * 10_000),), b"h" * 16, LookupError("why")))
    assert list(output[7] or ())[-2:] == context
    assert 4_900 < record_size(output) <= 5_000


# Commits.


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_commit_is_a_span_with_its_steps_and_outputs(guarantee: ks.Guarantee, spans: Spans) -> None:
    graph = new_graph(guarantee=guarantee)
    graph.map("a", to="x", id="p")(two)
    run(graph, *(("a", str(i), []) for i in range(3)))
    (commit,) = spans.commits
    assert (commit.name, commit.kind, parent_of(commit)) == ("commit g.p", SpanKind.CLIENT, None)
    assert attributes_of(commit) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "commit",
        "messaging.operation.type": "settle",
        "messaging.consumer.group.name": "g.p",
        "messaging.client.id": "g.p.0",
        "kstreams.graph": "g",
        "kstreams.processor": "p",
        "kstreams.guarantee": str(guarantee),
        "kstreams.slot": 0,
        "kstreams.steps": 3,
        "kstreams.records": 6,
    }
    assert links_of(commit) == [name_of(span) for span in spans.steps]
    assert commit.status.status_code is StatusCode.UNSET


def test_commit_that_fails_is_an_error_and_its_steps_run_again_in_spans_of_their_own(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    driver = TestDriver(graph, settings=TRACED)
    driver.run()  # the beginning of the group is committed by itself
    driver.cluster.faults.inject("commit_transaction", error=Abortable("refused"), applied=False)
    driver.send("a", "1", headers=[traceparent()])
    driver.run()
    (first, second), (failed, good) = spans.steps, spans.commits
    assert (failed.status.status_code, errors_of(failed)) == (
        StatusCode.ERROR,
        [("kstreams_py.errors.Abortable", "refused")],
    )
    assert attributes_of(failed)["error.type"] == "kstreams_py.errors.Abortable"
    assert good.status.status_code is StatusCode.UNSET
    assert (parent_of(failed), parent_of(good)) == (name_of(first), name_of(second))
    assert [attributes_of(each)["kstreams.steps"] for each in (failed, good)] == [1, 1]
    assert len({attributes_of(each)["kstreams.delivery_hash"] for each in (first, second)}) == 1
    assert [each.headers for each in driver.read("x")] == [(("traceparent", header_of(second)),)]


def test_commit_without_an_answer_is_asked_again_for_the_same_steps(spans: Spans) -> None:
    graph = new_graph(guarantee=ks.Guarantee.AT_LEAST_ONCE)
    graph.map("a", to="x", id="p")(lambda value: value)
    driver = TestDriver(graph, settings=TRACED)
    driver.run()  # the beginning of the group is committed by itself
    for nth in range(1, CALLS_MAX + 1):
        driver.cluster.faults.inject("commit", nth=nth, error=Retriable("no answer"), applied=False)
    driver.send("a", "1")
    driver.run()
    (step,), (failed, good) = spans.steps, spans.commits
    assert errors_of(failed) == [("kstreams_py.errors.Retriable", "no answer")]
    assert [parent_of(each) for each in (failed, good)] == [name_of(step)] * 2


# Traces that are not sampled.


@pytest.mark.parametrize("options", [{}, {"batch": True}], ids=["records", "batch"])
def test_trace_that_is_not_sampled_stays_so_and_its_context_is_carried_on(options: Any, spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p", **options)(lambda value: value)
    driver = run(graph, *(("a", "1", [traceparent(sampled=False)]) for _ in range(2)))
    assert (spans.steps, spans.commits) == ([], [])
    for record in driver.read("x"):
        ((name, value),) = record.headers
        assert name == "traceparent"
        assert value is not None
        assert (value[:36], value[-3:], value != traceparent()[1]) == (f"00-{TRACE}-".encode(), b"-00", True)


def test_batch_with_a_record_of_a_sampled_trace_or_none_is_sampled_and_links_those(spans: Spans) -> None:
    unsampled, sampled = traceparent(sampled=False), traceparent(OTHER, SECOND)
    for headers in ([sampled], [], [("team", b"one")]):
        graph = new_graph()
        graph.map("a", to="x", id="p", batch=True)(lambda values: values)
        run(graph, ("a", "1", [unsampled]), ("a", "2", headers))
    assert [(parent_of(span), links_of(span)) for span in spans.steps] == [(None, [(OTHER, SECOND)]), *[(None, [])] * 2]
    assert len(spans.commits) == 3


def test_commit_of_steps_of_which_one_is_sampled_follows_that_one(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    off = traceparent(sampled=False)
    run(graph, ("a", "1", [off]), ("a", "2", [traceparent(OTHER, SECOND)]), ("a", "3", [off]))
    (step,), (commit,) = spans.steps, spans.commits
    assert (parent_of(commit), links_of(commit)) == (name_of(step), [])
    assert attributes_of(commit)["kstreams.steps"] == 3


class Paused:
    """The context of a sampled span, in whose `nth` look at its flags something happens."""

    is_valid = True

    def __init__(self, nth: int, happens: Callable[[], object]) -> None:
        self._left, self._happens = nth, happens

    @property
    def trace_flags(self) -> TraceFlags:
        self._left -= 1
        if self._left == 0:
            self._happens()
        return TraceFlags(TraceFlags.SAMPLED)


def test_spans_of_calls_that_overlap_are_noted_one_at_a_time() -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    tracing = otel.WorkerTracing("g", graph.processors[0], 0)
    tracing._note_run(SpanContext(int(TRACE, 16), 1, is_remote=False))
    between, noted = threading.Event(), threading.Event()

    def let_the_other_in() -> None:
        other.start()
        between.wait(0.2)  # it does not come there while the first one is noted

    def stay_between_clear_and_append() -> None:
        between.set()
        noted.wait(0.2)

    first, second = (
        cast("SpanContext", each) for each in (Paused(1, let_the_other_in), Paused(2, stay_between_clear_and_append))
    )
    other = threading.Thread(target=tracing._note_run, args=(second,))
    tracing._note_run(first)
    noted.set()
    other.join()
    assert tracing._ran == [first, second]


def test_program_without_a_tracer_provider_carries_the_traces_of_inputs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    driver = run(graph, ("a", "1", [traceparent()]), ("a", "2", []))
    assert [each.headers for each in driver.read("x")] == [(traceparent(),), ()]


# Outputs in parts.


def test_outputs_of_traced_steps_are_written_before_too_many_are_held(
    monkeypatch: pytest.MonkeyPatch, spans: Spans
) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 4)
    graph = new_graph()
    graph.map("a", to="x", id="p")(two)
    (processor,) = graph.processors
    processing = Processing(graph, tracing=otel.WorkerTracing("g", processor, 0))
    plan = processing.plan(*(Read("a", i, b"%d" % i) for i in range(5)))
    assert (plan.steps, len(plan.outputs), len(spans.steps)) == (2, 4, 2)
    assert processing.take(9).steps == plan.intake.steps[2:]


# Tasks over channels.


def branching(concurrency: int, **options: Any) -> ks.Graph:
    graph = ks.Graph("g", value=ks.Json(), errors="dead")
    left, right, both, done = map(graph.channel, ("left", "right", "both", "done"))

    def check(value: int) -> int:
        trace.get_current_span().set_attribute("checked", value)
        return 10 // value

    graph.map(graph.topic("in"), to=both, id="parse")(lambda value: value)
    graph.map(both, to=left, id="check", concurrency=concurrency, **options)(check)
    graph.map(both, to=right, id="copy")(lambda value: value)
    graph.gather(left, right, to=done, id="pair")(lambda a, b: a + b)
    graph.map(done, to=graph.topic("out"), id="write")(lambda value: ks.Out(value, headers=[("own", b"1")]))
    return graph


@pytest.mark.parametrize("concurrency", [1, 2])
def test_trace_of_a_record_goes_on_in_each_task_and_in_the_topic_that_is_written(
    concurrency: int, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = Traces()
    monkeypatch.setattr(job, "Traces", lambda: traces)
    (written,) = run(branching(concurrency), ("in", cast("str", 5), [traceparent()])).read("out")
    assert [*map(len, vars(traces).values())] == [0, 0, 0, 0]  # nothing is kept of what is done
    found = {attributes_of(span)["kstreams.processor"]: span for span in spans.steps}
    names = {"parse": "in", "check": "both", "copy": "both", "pair": "left, right", "write": "done"}
    assert {task: span.name for task, span in found.items()} == {task: f"process {of}" for task, of in names.items()}
    above = {"check": "parse", "copy": "parse", "pair": "check", "write": "pair"}
    assert {task: parent_of(found[task]) for task in above} == {task: name_of(found[above[task]]) for task in above}
    assert parent_of(found["parse"]) == (TRACE, SPAN)
    assert links_of(found["pair"]) == [name_of(found["copy"])]
    assert dict(written.headers).items() >= {("traceparent", header_of(found["write"])), ("own", b"1")}
    read, segment = attributes_of(found["parse"]), attributes_of(found["check"])
    assert read.pop("kstreams.delivery_hash") != segment.pop("kstreams.delivery_hash")
    common = {"messaging.operation.name": "process", "messaging.operation.type": "process", "kstreams.graph": "g",
              "kstreams.guarantee": "at_least_once", "kstreams.slot": 0, "kstreams.records": 1}  # fmt: skip
    assert read == {
        **common, "kstreams.processor": "parse", "messaging.system": "kafka", "messaging.destination.name": "in",
        "messaging.consumer.group.name": "g.in", "messaging.client.id": "g.in.0",
        "messaging.destination.partition.id": "0", "messaging.kafka.offset": 0,
    }  # fmt: skip
    assert segment == {**common, "kstreams.processor": "check", "messaging.system": "kstreams",
                       "messaging.destination.name": "both", "checked": 5}  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 2])
def test_call_of_a_task_that_raises_has_its_error_and_its_dead_letter_the_trace(concurrency: int, spans: Spans) -> None:
    retry = ks.Retry(on=ZeroDivisionError, attempts=2)
    driver = run(branching(concurrency, retry=retry), ("in", cast("str", 0), [traceparent()]))
    driver.advance(5)
    driver.run()
    failed = [span for span in spans.steps if attributes_of(span)["kstreams.processor"] == "check"]
    assert [attributes_of(span).get("kstreams.attempt") for span in failed] == [None, 2]
    reason = ("ZeroDivisionError", "integer division or modulo by zero")
    assert [(span.status.status_code, errors_of(span)) for span in failed] == [(StatusCode.ERROR, [reason])] * 2
    (letter,) = driver.dead_letters()
    assert dict(letter.headers)["traceparent"] == header_of(failed[0])


def test_input_that_is_no_record_begins_a_trace_or_continues_that_of_its_headers(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MemoryConnection.read
    carried = {2: carried_headers({"Traceparent": traceparent()[1].decode(), "Authorization": "Bearer x"}), 1: ()}
    monkeypatch.setattr(
        MemoryConnection, "read", lambda *of, **how: [c._replace(headers=carried[c.value]) for c in read(*of, **how)]
    )
    graph = ks.Graph("g")
    parsed = graph.channel("parsed")

    @graph.map(graph.source("rows", sources.SQLite("a.db", table="a", key="a")), to=parsed)
    def split(value: int) -> Iterator[int]:
        yield from range(value)

    graph.sink(parsed, id="end")(lambda value: None)
    with TestDriver(graph, settings=TRACED) as driver:
        driver.source("rows").add(2, 1)
        driver.run()
    begun, ended = spans.of("process rows"), spans.of("process parsed")
    counts = [attributes_of(span)["kstreams.records"] for span in begun]
    assert ([*map(parent_of, begun)], counts) == ([(TRACE, SPAN), None], [2, 1])
    assert [*map(parent_of, ended)] == [name_of(begun[0])] * 2 + [name_of(begun[1])]


# Without tracing.


def test_without_tracing_the_loop_is_the_plain_one_and_headers_are_carried(spans: Spans) -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: value)
    driver = run(graph, ("a", "1", [traceparent(), ("n", b"1")]), ("a", "2", []), settings=Settings())
    assert [each.headers for each in driver.read("x")] == [(traceparent(), ("n", b"1")), ()]
    assert (spans.steps, spans.commits) == ([], [])
    runner = Processing(graph).runner
    assert runner._run == runner._run_records


# docs/tracing.md.

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")


def test_document_names_every_attribute_and_no_other() -> None:
    attribute = r"(?:messaging|kstreams|error)(?:\.[a-z_]+)+"
    made = set(re.findall(rf'"({attribute})"', Path(otel.__file__).read_text(encoding="utf-8")))
    named = set(re.findall(rf"`({attribute})`", TEXT))
    assert made - named == {"messaging.operation.name", "messaging.operation.type", "messaging.kafka.message.tombstone"}
    assert named - made == set()


def test_example_of_the_document_passes_and_no_tracing_imports_nothing(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    shutil.copy(ROOT / "examples" / "shop.py", tmp_path)
    head = """
import sys
import kstreams_py as ks
from kstreams_py.testing import TestDriver
from shop import graph

with TestDriver(graph) as driver:
    driver.send("shop.orders", {"quantity": 2, "unit_price": 5})
    driver.run()
    assert len(driver.read("shop.priced")) == 1
assert [name for name in sys.modules if name.startswith("opentelemetry")] == []
"""
    (tmp_path / "example.py").write_text(head + example)
    command = [sys.executable, "example.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
