"""Exports spans to the program's own tracer provider, or as OpenTelemetry's OTEL_* variables say."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from kstreams_py.errors import MissingSoftware, SettingsError, did_you_mean
from kstreams_py.running.terminal.logs import OTEL_HEADERS

try:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.util.re import parse_env_headers
except ImportError:
    raise MissingSoftware(
        "tracing (KSTREAMS_TRACING) needs OpenTelemetry's SDK: pip install 'kstreams_py[otel]'"
    ) from None

logger = logging.getLogger(__name__)

GROUP: Final = "opentelemetry_traces_exporter"
"""The group of entry points in which packages offer span exporters."""

EXPORTERS: Final = "OTEL_TRACES_EXPORTER"
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""The protocols of OTLP, each with the entry point of its exporter."""

HEADERS: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""The variables with OTLP's headers; the first one that is set counts."""

FLUSH_SECONDS: Final = 3.0
"""Seconds that an ending run waits for its last spans, so that it is not killed because a collector is away."""


class RunProvider(TracerProvider):
    """A tracer provider that a run has created, in contrast to the program's own."""


@contextmanager
def exporting(graph: str, *, background: bool = False) -> Iterator[trace.TracerProvider]:
    """Exports the spans of a run inside the block, including the spans of its end; yields their tracer provider.

    If the program has a tracer provider, it is used. Otherwise the OTEL_* variables configure a new one; its
    service.name is the name of the graph unless they set one. Unless the run is in the `background`, the new provider
    becomes the program's own, so that the functions' own spans go there too. Raises the same as check_exporters().
    """
    found = trace.get_tracer_provider()
    is_unset = isinstance(found, trace.ProxyTracerProvider)
    provider = new_provider(graph) if is_unset or isinstance(found, RunProvider) else found
    if is_unset and not background:
        trace.set_tracer_provider(provider)
    try:
        yield provider
    finally:
        _flush(provider)


def new_provider(graph: str) -> RunProvider:
    """Returns a tracer provider with the exporters, the sampler and the resource of the OTEL_* variables.

    Raises SettingsError for a value that an exporter refuses.
    """
    named = OTELResourceDetector().detect().attributes.get("service.name")
    resource = Resource.create({} if named else {"service.name": graph})
    # when the process exits, the SDK would wait half a minute for a collector that is away
    provider = RunProvider(resource=resource, shutdown_on_exit=False)
    for exporter in _exporters():
        try:
            provider.add_span_processor(BatchSpanProcessor(exporter.load()()))
        except Exception as error:  # any package may offer an exporter, and raise anything
            raise SettingsError(
                f"the span exporter {exporter.name} refuses its OTEL_* variables: {type(error).__name__}: {error}: "
                "correct them"
            ) from None
    return provider


def check_exporters() -> None:
    """Checks the exporters that the OTEL_* variables name.

    Raises SettingsError for an unknown exporter or invalid headers, MissingSoftware for an exporter that is not
    installed.
    """
    _exporters()


def _exporters() -> list[EntryPoint]:
    names = [name.strip() for name in os.environ.get(EXPORTERS, "").split(",") if name.strip()] or ["otlp"]
    found = [_exporter(name) for name in names if name != "none"]
    if any(each.name in OTLP.values() for each in found):
        _check_headers()
    return found


def _check_headers() -> None:
    """Raises SettingsError for headers that the exporter would drop, logging their values, which are often secrets."""
    source = next((each for each in HEADERS if os.environ.get(each)), HEADERS[-1])
    headers = os.environ.get(source, "").split(",")
    log = logging.getLogger(OTEL_HEADERS)
    log.addFilter(_drop)
    try:
        wrong = [i for i, each in enumerate(headers, 1) if each.strip() and not parse_env_headers(each, liberal=True)]
    finally:
        log.removeFilter(_drop)
    if wrong:
        raise SettingsError(
            f"{source}: header {wrong[0]} of {len(headers)}, which is not shown, is not name=value: write "
            "name=value,name=value, and in a value %2C for a comma, %3B for a semicolon"
        )


def _drop(_: logging.LogRecord) -> bool:
    return False


def _exporter(name: str) -> EntryPoint:
    wanted, variable = name, f"{EXPORTERS}={name}"
    if name == "otlp":
        source, protocol = next(
            ((each, found) for each in PROTOCOLS if (found := os.environ.get(each, "").strip())), ("", "http/protobuf")
        )
        if protocol not in OTLP:
            raise SettingsError(f"{source}={protocol} is not supported for spans: use {' or '.join(OTLP)}")
        wanted, variable = OTLP[protocol], f"{source}={protocol}" if source else f"{EXPORTERS}=otlp"
    known = {each.name: each for each in entry_points(group=GROUP)}
    if wanted in known:
        return known[wanted]
    if wanted in OTLP.values():
        package = f"opentelemetry-exporter-{wanted.replace('_', '-')}"
        raise MissingSoftware(f"{variable} needs {package}: pip install {package}")
    offered = ["otlp", *sorted(known.keys() - set(OTLP.values())), "none"]
    close = did_you_mean(name, offered) or f"there are {', '.join(offered)}"
    raise SettingsError(f"{variable}: no installed package has such an exporter: {close}")


def _flush(provider: trace.TracerProvider) -> None:
    """Exports the remaining spans, for at most FLUSH_SECONDS. The SDK documents that it ignores its own time limit."""
    done = threading.Event()
    of_program = trace.get_tracer_provider()

    def flush() -> None:
        try:
            for each in dict.fromkeys((provider, of_program)):
                if isinstance(each, TracerProvider):
                    each.force_flush()
            if isinstance(provider, RunProvider) and provider is not of_program:
                provider.shutdown()
        finally:
            done.set()

    threading.Thread(target=flush, name="spans", daemon=True).start()
    if not done.wait(FLUSH_SECONDS):
        logger.warning("the last spans are lost: their exporter did not answer within %g s", FLUSH_SECONDS)
