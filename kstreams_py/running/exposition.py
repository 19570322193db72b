"""The series of a run in Prometheus' text format, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator

from kstreams_py.errors import MissingSoftware
from kstreams_py.running.series import SERIES, Distribution, Series
from kstreams_py.running.status import RunStatus

try:
    import prometheus_client as prometheus
    from prometheus_client.metrics_core import Metric
    from prometheus_client.utils import floatToGoString
except ImportError:
    raise MissingSoftware(
        "--http (KSTREAMS_HTTP) needs prometheus-client: pip install 'kstreams_py[metrics]'"
    ) from None

CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4


class _Collector:
    """The series of one status; a registry of its own has it, so that no other metrics of the process are shown."""

    def __init__(self, graph: str, status: RunStatus) -> None:
        self._graph = graph
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return (self._metric(series) for series in SERIES)

    def _metric(self, series: Series) -> Metric:
        name = f"kstreams_{series.name}"
        metric = Metric(name, series.help, series.kind)
        names = ("graph", *series.labels)
        sampled = f"{name}_total" if series.kind == "counter" else name
        bounds = [*map(floatToGoString, series.bounds), "+Inf"]
        for values, value in series.samples(self._status):
            labels = dict(zip(names, (self._graph, *values), strict=True))
            if isinstance(value, Distribution):
                for bound, count in zip(bounds, value.counts, strict=True):
                    metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
                metric.add_sample(f"{name}_count", labels, value.counts[-1])
                metric.add_sample(f"{name}_sum", labels, value.sum)
            else:
                metric.add_sample(sampled, labels, value)
        return metric


def exposition(graph: str, status: RunStatus) -> bytes:
    """All series of a status, in the text format."""
    registry = prometheus.CollectorRegistry()
    registry.register(_Collector(graph, status))
    return prometheus.generate_latest(registry)
