"""All findings of a cluster and of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kstreams_py.operations.doctor.findings import Examined, Facts, Finding, Severity
from kstreams_py.operations.doctor.of_clusters import OF_CLUSTER, OF_OTHER_CLUSTER
from kstreams_py.operations.doctor.of_graphs import OF_GRAPH, OF_OUTPUTS


def diagnose(facts: Facts, examined: Examined | None) -> list[Finding]:
    """Returns all findings, the worst first; without a graph, only the cluster's."""
    found = [finding for rule in OF_CLUSTER for finding in rule(facts)]
    if examined is not None:
        found += [finding for of_graph in OF_GRAPH for finding in of_graph(facts, examined)]
        found += [finding for other in facts.others for finding in _diagnose_other(other, examined)]
    order = list(Severity)
    return sorted(found, key=lambda each: (order.index(each.severity), each.kind, each.subject))


def _diagnose_other(facts: Facts, examined: Examined) -> Iterator[Finding]:
    """Yields the findings of a cluster that has only outputs of the graph; their subjects name the cluster."""
    found = [finding for rule in OF_OTHER_CLUSTER for finding in rule(facts)]
    found += [finding for of_graph in OF_OUTPUTS for finding in of_graph(facts, examined)]
    for each in found:
        yield replace(each, subject=f"cluster {facts.name!r}: {each.subject}")


def is_well(findings: Iterable[Finding]) -> bool:
    """Returns whether no finding is worse than a note."""
    return all(each.severity is Severity.NOTE for each in findings)
