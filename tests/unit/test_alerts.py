"""docker/'s alert rules and dashboard: each series that they name exists, with these labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from kstreams_py.metrics import WorkerState
from kstreams_py.running.http.remedies import REMEDIES
from kstreams_py.running.http.series import SERIES

DOCKER = Path(__file__).parents[2] / "docker"

BY_PROMETHEUS = {"instance", "job"}
"""The labels that Prometheus adds to each series."""


def known_series() -> dict[str, set[str]]:
    """The names of all series that a query may name, with their labels."""
    found = {"up": set(BY_PROMETHEUS)}
    for series in SERIES:
        labels = {"graph", *series.labels, *BY_PROMETHEUS}
        name = f"kstreams_{series.name}"
        if series.kind == "counter":
            found[f"{name}_total"] = labels
        elif series.kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found


SERIES_LABELS = known_series()


def load_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCKER / "prometheus" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def load_dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads((DOCKER / "grafana" / "kstreams.json").read_text())
    return dashboard


RULES = load_rules()
PANELS = load_dashboard()["panels"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
QUERIES = [(rule["alert"], rule["expr"]) for rule in RULES] + [
    (f"{title} {target['refId']}", target["expr"].replace("$__rate_interval", "1m")) for title, target in TARGETS
]


def check_selector(selector: promql.VectorSelector) -> set[str]:
    assert selector.name in SERIES_LABELS
    labels = SERIES_LABELS[selector.name]
    for matcher in selector.matchers.matchers:
        assert matcher.name in labels, (selector.name, matcher.name)
        if matcher.name == "state":
            assert set(matcher.value.split("|")) <= set(WorkerState)
    return labels


def check_aggregate(aggregate: promql.AggregateExpr) -> set[str]:
    inside = check(aggregate.expr)
    assert inside is not None
    if aggregate.modifier is None:  # topk keeps all labels, sum none
        return inside if aggregate.param is not None else set()
    assert set(aggregate.modifier.labels) <= inside
    return set(aggregate.modifier.labels)


def check_binary(binary: promql.BinaryExpr) -> set[str] | None:
    left, right = check(binary.lhs), check(binary.rhs)
    if left is not None and right is not None and binary.modifier and binary.modifier.matching:
        assert set(binary.modifier.matching.labels) <= left & right
    return right if left is None else left


def check(expression: Any) -> set[str] | None:
    """The labels of the result; None for a scalar. Raises AssertionError for a series or a label that is none."""
    match expression:
        case promql.VectorSelector():
            return check_selector(expression)
        case promql.MatrixSelector():
            return check_selector(expression.vector_selector)
        case promql.ParenExpr():
            return check(expression.expr)
        case promql.Call():
            return next((labels for each in expression.args if (labels := check(each)) is not None), set())
        case promql.AggregateExpr():
            return check_aggregate(expression)
        case promql.BinaryExpr():
            return check_binary(expression)
        case promql.NumberLiteral() | promql.StringLiteral():
            return None
    raise AssertionError(type(expression))


def labels_named(text: str) -> Iterator[str]:
    """The labels in a template: Prometheus' {{ $labels.x }} or Grafana's {{x}}."""
    yield from re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", text)


def test_each_query_names_series_and_labels_that_exist() -> None:
    for name, query in QUERIES:
        assert check(promql.parse(query)) is not None, name


@pytest.mark.parametrize(
    "query",
    [
        "kstreams_records_in",
        'kstreams_up{processor="p"}',
        'kstreams_worker_state{state="away"}',
        "sum by (topic) (kstreams_up)",
        "kstreams_up and on (processor) kstreams_partitions",
    ],
)
def test_query_with_a_series_or_a_label_that_is_none_is_refused(query: str) -> None:
    with pytest.raises(AssertionError):
        check(promql.parse(query))


def test_each_alert_says_what_happens_and_what_to_do() -> None:
    for rule in RULES:
        summary, remedy = rule["annotations"]["summary"], REMEDIES[rule["labels"]["finding"]]
        assert summary.endswith(f". {remedy}"), rule["alert"]
        assert set(labels_named(summary)) <= (check(promql.parse(rule["expr"])) or set()), rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert re.fullmatch(r"\d+[ms]", rule["for"]), rule["alert"]


def test_each_state_that_is_not_well_has_an_alert() -> None:
    alerted = {word for rule in RULES for word in re.findall(r'state="([\w ]+)"', rule["expr"])}
    slot_states = {WorkerState.RUNNING, WorkerState.SPARE, WorkerState.DRAINING, WorkerState.RESTARTING}
    assert alerted == set(WorkerState) - slot_states


def test_each_legend_names_labels_that_its_query_has() -> None:
    for title, target in TARGETS:
        labels = check(promql.parse(target["expr"].replace("$__rate_interval", "1m")))
        assert set(labels_named(target["legendFormat"])) <= (labels or set()), title


def test_the_dashboard_shows_every_series_but_one_sided_parts_of_histograms() -> None:
    shown = set(re.findall(r"kstreams_\w+", " ".join(query for _, query in QUERIES)))
    parts = {"kstreams_step_seconds_bucket", "kstreams_step_seconds_count"}
    parts |= {"kstreams_commit_seconds_sum", "kstreams_commit_seconds_count", "kstreams_commits_total"}
    assert shown == set(SERIES_LABELS) - parts - {"up"}


def test_the_files_that_watching_mounts_exist_and_its_ports_are_on_loopback() -> None:
    watching = yaml.safe_load((DOCKER / "watching.yaml").read_text())
    services = watching["services"]
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    assert all((DOCKER / path).exists() for path in mounted if path.startswith("./"))
    assert {path for path in mounted if not path.startswith("./")} == set(watching["volumes"])
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])
    config = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yaml").read_text())
    assert all((DOCKER / "prometheus" / path).exists() for path in config["rule_files"])
    assert config["scrape_configs"][0]["static_configs"] == [
        {
            "targets": [
                f"{name}:8080" for name, each in services.items() if "KSTREAMS_HTTP" in each.get("environment", {})
            ]
        }
    ]


def test_the_image_of_the_worker_can_serve_metrics_and_log_json() -> None:
    installed = re.findall(r"'\.\[([\w,]+)\]'", (DOCKER / "Dockerfile").read_text())
    assert [names.split(",") for names in installed] == [["logs", "metrics", "registry", "peers"]]


def test_the_dashboard_reads_from_the_provisioned_source() -> None:
    (source,) = yaml.safe_load((DOCKER / "grafana" / "datasource.yaml").read_text())["datasources"]
    used = {panel["datasource"]["uid"] for panel in PANELS} | {target["datasource"]["uid"] for _, target in TARGETS}
    assert used == {source["uid"]}
