"""A trace on a real broker: from `kstreams send --header`, through two processors and worker processes, to the end."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kstreams_py import Settings
from tests.system.command import command, kstreams
from tests.system.harness import Cluster, wait_until

TRACE, SENDER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

GRAPH = """
import kstreams_py as ks
from opentelemetry import trace

graph = ks.Graph("{name}", errors="{name}.errors")
for each in ("a", "b", "c"):
    graph.topic(f"{name}.{{each}}", value=ks.String())

@graph.map("{name}.a", to="{name}.b")
def first(value):
    if value == "bad":
        raise LookupError("no such order")
    trace.get_current_span().set_attribute("order", value)
    return value

@graph.map("{name}.b", to="{name}.c")
def second(value):
    return value
"""


def printed_spans(text: str) -> list[dict[str, Any]]:
    """The spans that the console exporter has printed between the lines of the log."""
    decoder = json.JSONDecoder()
    return [decoder.raw_decode(text, found.start())[0] for found in re.finditer(r"(?m)^\{$", text)]


def test_trace_of_a_sender_continues_through_two_processors_in_worker_processes(
    cluster: Cluster, settings: Callable[..., Settings], name: str, tmp_path: Path
) -> None:
    file = tmp_path / "traced_graph.py"
    file.write_text(GRAPH.format(name=name))
    cluster.create(*(f"{name}.{each}" for each in ("a", "b", "c", "errors")), partitions=2)
    environment = settings(tracing=True).as_environment() | {"OTEL_TRACES_EXPORTER": "console"}
    with (
        command(tmp_path, "run", file, "--slot", 0, environment=environment) as first_worker,
        command(tmp_path, "run", file, "--slot", 1, environment=environment) as second_worker,
    ):
        for value in ("7", "bad"):
            header = f"traceparent=00-{TRACE}-{SENDER}-01"
            sent = kstreams("send", f"{name}.a", "--value", value, "--header", header, environment=environment)
            assert sent.status == 0, sent.err
        wait_until(lambda: cluster.values(f"{name}.c") == [b"7"], "the output of the second processor")
        wait_until(lambda: len(cluster.values(f"{name}.errors")) == 1, "the dead letter of the first processor")
        for each in (first_worker, second_worker):
            each.await_text(": holds ")  # it handles the signal
            each.send(signal.SIGTERM)
            assert each.wait() == 0, each.text
    spans = printed_spans(first_worker.text) + printed_spans(second_worker.text)

    def steps(processor: str, status: str) -> dict[bytes, dict[str, Any]]:
        """By the traceparent that names each; several, if a rebalance has aborted the first attempt."""
        return {
            f"00-{TRACE}-{span['context']['span_id'].removeprefix('0x')}-01".encode(): span
            for span in spans
            if span["name"].startswith("process ")
            and span["attributes"]["kstreams.processor"] == processor
            and span["status"]["status_code"] == status
        }

    def writer(topic: str, among: dict[bytes, dict[str, Any]]) -> dict[str, Any]:
        """The span of the step that wrote the only record of a topic."""
        (record,) = cluster.read(f"{name}.{topic}")
        return among[dict(record.headers())["traceparent"]]

    first, second = writer("b", steps("first", "UNSET")), writer("c", steps("second", "UNSET"))
    failed = writer("errors", steps("first", "ERROR"))
    assert {span["context"]["trace_id"] for span in (first, second, failed)} == {f"0x{TRACE}"}
    assert (first["parent_id"], failed["parent_id"]) == (f"0x{SENDER}", f"0x{SENDER}")
    assert second["parent_id"] == first["context"]["span_id"]
    assert (first["attributes"]["order"], failed["events"][0]["name"]) == ("7", "exception")
    assert {span["resource"]["attributes"]["service.name"] for span in spans} == {name}
    commits = [span for span in spans if span["name"].startswith("commit ")]
    followed = {link["context"]["span_id"] for span in commits for link in span["links"]}
    followed |= {span["parent_id"] for span in commits}
    assert followed >= {span["context"]["span_id"] for span in (first, failed, second)}
