"""Where spans go: the program's own tracer provider, or exporters by the OTEL_* variables; what is missing is named."""

from __future__ import annotations

import builtins
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.util.re import parse_env_headers

import kstreams_py as ks
from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.running import span_export, wiring
from kstreams_py.running.span_export import GROUP
from kstreams_py.running.terminal import logs
from kstreams_py.running.terminal.logs import WRITTEN
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment, open_tracing
from kstreams_py.testing import TestDriver
from tests.waiting import wait_until

TRACED = Settings(tracing=True)


class Memory(SpanExporter):
    """Keeps the spans of all tests; `held` holds the export up until it is set."""

    spans: ClassVar[list[ReadableSpan]] = []
    held: ClassVar[threading.Event | None] = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.held is not None:
            self.held.wait()
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


@pytest.fixture(autouse=True)
def program_without_a_tracer_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No provider, no OTEL_* variables, and the exporter `memory` beside those that are installed."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: setattr(trace, "_TRACER_PROVIDER", provider))
    offered = [
        EntryPoint("memory", f"{__name__}:Memory", GROUP),
        EntryPoint("console", "opentelemetry.sdk.trace.export:ConsoleSpanExporter", GROUP),
        EntryPoint("otlp_proto_http", "opentelemetry.exporter.otlp.proto.http.trace_exporter:OTLPSpanExporter", GROUP),
    ]
    monkeypatch.setattr(span_export, "entry_points", lambda group: offered)
    monkeypatch.setattr(Memory, "spans", [])
    yield
    if isinstance(provider := trace._TRACER_PROVIDER, TracerProvider):
        provider.shutdown()


def new_graph() -> ks.Graph:
    graph = ks.Graph("shop")
    graph.topic("a")
    graph.sink("a")(print)
    return graph


def make_span(name: str) -> None:
    trace.get_tracer("test").start_span(name).end()


def exported() -> list[tuple[str, object]]:
    """The name and the service of each span."""
    return [(span.name, span.resource.attributes["service.name"]) for span in Memory.spans]


def test_spans_of_a_run_are_exported_by_its_end_under_the_name_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    with wiring.exporting(new_graph(), TRACED):
        make_span("one")
    with wiring.exporting(new_graph(), TRACED):  # a second run in the same program
        make_span("two")
    assert exported() == [("one", "shop"), ("two", "shop")]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_SERVICE_NAME", "mine"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,deployment.environment.name=test")],
)
def test_service_name_of_the_environment_wins(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setenv(variable, value)
    with wiring.exporting(new_graph(), TRACED):
        make_span("one")
    assert exported() == [("one", "mine")]


def test_sampler_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with wiring.exporting(new_graph(), TRACED):
        make_span("one")
    assert exported() == []


def test_tracer_provider_of_the_program_is_kept_and_flushed() -> None:
    flushed: list[int] = []

    class Own(TracerProvider):
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            flushed.append(timeout_millis)
            return True

    own = Own(shutdown_on_exit=False)
    trace.set_tracer_provider(own)
    with wiring.exporting(new_graph(), TRACED):
        assert trace.get_tracer_provider() is own
    assert len(flushed) == 1


class CommittingSlot:
    """In place of a slot: one commit of its first processor, and a span of a function."""

    are_inputs_done = False

    def __init__(self, graph: ks.Graph, number: int, environment: Environment) -> None:
        self._graph, self._number, self._environment = graph, number, environment

    def run(self, *_: object, **__: object) -> None:
        assert self._environment.tracing is not None
        with self._environment.tracing(self._graph.name, self._graph.processors[0], self._number).commit(1, 1):
            pass
        make_span("of a function")


@pytest.fixture
def run_slot(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bool], None]:
    """Runs a slot of a graph of this name, in the background as `ks.start`, or in the foreground."""
    monkeypatch.setattr(wiring, "KafkaCluster", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(wiring, "Slot", CommittingSlot)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")

    def run(name: str, background: bool) -> None:
        graph = ks.Graph(name)
        graph.sink(graph.topic("a"), id="p")(print)
        wiring.SlotRun(graph, 0, TRACED, background=background).run(lambda: None)

    return run


def test_runs_in_the_background_leave_the_tracer_provider_to_the_program(run_slot: Callable[[str, bool], None]) -> None:
    before = set(threading.enumerate())
    for name in ("shop", "bank"):
        run_slot(name, True)
        assert trace._TRACER_PROVIDER is None
    assert exported() == [("commit shop.p", "shop"), ("commit bank.p", "bank")]
    wait_until(lambda: before.issuperset(threading.enumerate()), "the end of their exporters")


def test_runs_in_the_foreground_export_spans_of_functions_with_the_service_of_each(
    run_slot: Callable[[str, bool], None],
) -> None:
    for name in ("shop", "bank"):
        run_slot(name, False)
    assert [each for each in exported() if each[0] != "of a function"] == [
        ("commit shop.p", "shop"),
        ("commit bank.p", "bank"),
    ]
    assert exported().count(("of a function", "shop")) == 2


def test_run_in_the_background_uses_the_tracer_provider_that_the_program_has_set(
    run_slot: Callable[[str, bool], None],
) -> None:
    own = TracerProvider(resource=Resource({"service.name": "own"}), shutdown_on_exit=False)
    own.add_span_processor(SimpleSpanProcessor(Memory()))
    trace.set_tracer_provider(own)
    run_slot("shop", True)
    assert exported() == [("commit shop.p", "own"), ("of a function", "own")]


def test_exporter_that_gives_no_answer_does_not_hold_the_end_of_a_run_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setattr(span_export, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(Memory, "held", held := threading.Event())
    with wiring.exporting(new_graph(), TRACED):
        make_span("one")
    held.set()
    assert [each.getMessage() for each in caplog.records] == [
        "the last spans are lost: their exporter did not answer within 0.01 s"
    ]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines of OpenTelemetry in the command's log."""
    found: list[str] = []
    target = logging.Handler()
    target.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    folding = logs.Folding(target, clock=lambda: 0.0)
    folding.addFilter(logs.tame)
    logging.getLogger("opentelemetry").addHandler(folding)
    yield found
    logging.getLogger("opentelemetry").removeHandler(folding)
    folding.close()


@pytest.mark.parametrize(
    "name", ["exporter.otlp.proto.http.trace_exporter", "sdk.trace.export", "baggage.propagation", "trace.span"]
)
def test_lines_of_opentelemetry_are_folded(name: str, lines: list[str]) -> None:
    for number in range(50):
        logging.getLogger(f"opentelemetry.{name}").warning("Transient error %d", number)
    assert lines == [f"Transient error {number}" for number in range(WRITTEN)]
    for handler in logging.getLogger("opentelemetry").handlers:
        handler.flush()
    assert lines[WRITTEN:] == [f"45 more lines of opentelemetry.{name} in 0 s, last Transient error 49"]


def test_lines_of_opentelemetry_show_the_beginning_of_what_they_quote_and_stay_lines(lines: list[str]) -> None:
    driver = TestDriver(new_graph(), settings=TRACED)
    for header in (b"k\r\n\x1b[2J" + b"x" * 3_000, b"a" * 9_000 + b"=1"):
        driver.send("a", b"1", headers=[("baggage", header)])
    driver.run()
    assert lines == [
        r"Baggage list-member `k\r\n\u001b[2J" + "x" * (logs.OTEL_MAX - 28) + "...",
        "Baggage header `" + "a" * (logs.OTEL_MAX - 16) + "...",
    ]


def test_line_of_opentelemetry_that_cannot_be_formatted_is_shown_as_it_is(lines: list[str]) -> None:
    text = "Invalid %s (%s)"
    logging.getLogger("opentelemetry.trace.span").warning(text, "key")
    assert lines == [text]


SECRET = "s3cr3t-t0ken"


def test_header_of_a_program_s_own_exporter_is_not_quoted_in_the_log(lines: list[str]) -> None:
    assert parse_env_headers(f"authorization: Bearer {SECRET}") == {}
    assert lines == ["a header in an OTEL_* variable is left out: write name=value,name=value"]


@pytest.mark.parametrize("variable", span_export.HEADERS)
@pytest.mark.parametrize(
    ("headers", "number"),
    [(f"authorization: Bearer {SECRET}", "1 of 1"), (f"a=b, authorization=Basic x,{SECRET}", "3 of 3")],
)
def test_headers_that_are_none_are_refused_without_their_values(
    headers: str,
    number: str,
    variable: str,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(span_export.HEADERS[1], "ignored" if variable == span_export.HEADERS[0] else "")
    monkeypatch.setenv(variable, headers)
    for check in (span_export.check_exporters, lambda: span_export.new_provider("shop")):
        with pytest.raises(SettingsError) as caught:
            check()
        assert str(caught.value) == (
            f"{variable}: header {number}, which is not shown, is not name=value: write name=value,name=value, and in "
            "a value %2C for a comma, %3B for a semicolon"
        )
    assert (lines, caplog.records) == ([], [])
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    span_export.check_exporters()


@pytest.mark.parametrize("headers", ["", "authorization=Bearer%20a%2Cb", "a=b c, d=e==,"])
def test_headers_that_an_exporter_takes_are_accepted(headers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    span_export.check_exporters()


def test_run_without_tracing_makes_no_tracer_provider() -> None:
    with wiring.exporting(new_graph(), Settings()):
        assert trace._TRACER_PROVIDER is None
    assert open_tracing(Settings()) is None


def names_of_exporters(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[str]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return [exporter.name for exporter in span_export._exporters()]


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ["otlp_proto_http"]),
        ({"OTEL_TRACES_EXPORTER": ""}, ["otlp_proto_http"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_http", "console"]),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ["otlp_proto_http"]),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ["otlp_proto_http"],
        ),
    ],
)
def test_exporters_are_those_of_the_variables(
    variables: dict[str, str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names_of_exporters(monkeypatch, **variables) == names


@pytest.mark.parametrize(
    ("variables", "error", "message"),
    [
        (
            {"OTEL_TRACES_EXPORTER": "consol"},
            SettingsError,
            "OTEL_TRACES_EXPORTER=consol: no installed package has such an exporter: did you mean console?",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            SettingsError,
            (
                "OTEL_TRACES_EXPORTER=zipkin: no installed package has such an exporter: there are otlp, console, "
                "memory, none"
            ),
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            MissingSoftware,
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs opentelemetry-exporter-otlp-proto-grpc: "
                "pip install opentelemetry-exporter-otlp-proto-grpc"
            ),
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            SettingsError,
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json is not supported for spans: use http/protobuf or grpc",
        ),
    ],
)
def test_exporter_that_is_not_there_is_refused_before_any_worker_starts(
    variables: dict[str, str], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "shop.py"
    file.write_text("import kstreams_py as ks\ngraph = ks.Graph('shop')\ngraph.topic('a')\ngraph.sink('a')(print)\n")
    with pytest.raises(error) as caught:
        wiring.SupervisedRun(f"{file}:graph", [0, 1], TRACED).run(lambda: None)
    assert str(caught.value) == message


def test_value_that_an_exporter_refuses_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    wanted = (
        r"^the span exporter otlp_proto_http refuses its OTEL_\* variables: ValueError: max_queue_size must be a "
        r"positive integer.: correct them$"
    )
    with pytest.raises(SettingsError, match=wanted), wiring.exporting(new_graph(), TRACED):
        pass


def test_propagator_that_is_not_there_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("kstreams_py.steps.otel")
    for package, name in (("kstreams_py.steps", "otel"), ("opentelemetry", "propagate")):  # imported again
        monkeypatch.delattr(f"{package}.{name}")
        monkeypatch.delitem(sys.modules, f"{package}.{name}")
    monkeypatch.setenv("OTEL_PROPAGATORS", "foo")
    message = (
        r"^OTEL_PROPAGATORS is not accepted: Propagator foo not found\. It is either misspelled or not installed\. "
        r"Correct or unset it$"
    )
    with pytest.raises(SettingsError, match=message):
        open_tracing(Settings(tracing=True))


def test_missing_opentelemetry_is_named_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.endswith(("steps.otel", "running.span_export"))]:
        monkeypatch.delitem(sys.modules, name)
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    wanted = r"^tracing \(KSTREAMS_TRACING\) needs OpenTelemetry: pip install 'kstreams_py\[otel\]'$"
    with pytest.raises(MissingSoftware, match=wanted):
        ks.start(new_graph(), settings=TRACED)
    with pytest.raises(MissingSoftware, match=wanted):
        wiring.SupervisedRun("shop.py", [0, 1], TRACED).run(lambda: None)


def test_variable_switches_tracing_on_for_a_run_and_its_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTREAMS_TRACING", "true")
    settings = Settings()
    assert settings.tracing
    monkeypatch.setenv("KSTREAMS_TRACING", settings.as_environment()["KSTREAMS_TRACING"])
    assert Settings().tracing
    monkeypatch.setenv("KSTREAMS_TRACING", "maybe")
    with pytest.raises(SettingsError, match=r"^tracing = 'maybe' \(KSTREAMS_TRACING\): write true or false$"):
        Settings()
