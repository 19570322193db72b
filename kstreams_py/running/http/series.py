"""The series of /metrics: name, kind, meaning, labels and source of each; their text in Prometheus' format 0.0.4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final, Literal

from kstreams_py.errors import MissingSoftware
from kstreams_py.jobs.cluster.commands import LeaveReason
from kstreams_py.jobs.cluster.observations import ClusterFigures
from kstreams_py.jobs.cluster.state import JobPhase
from kstreams_py.metrics import (
    COMMIT_BOUNDS,
    COUNTS,
    EVENTS,
    FRAMES,
    LATE_ACKS,
    RENEWALS,
    REPLAYS,
    STEP_BOUNDS,
    WorkerState,
)
from kstreams_py.running.reports import PEER, Report
from kstreams_py.running.status import RunStatus, SlotStatus

try:
    import prometheus_client as prometheus
    from prometheus_client.utils import floatToGoString
except ImportError:
    raise MissingSoftware(
        "--http (KSTREAMS_HTTP) needs prometheus-client: pip install 'kstreams_py[metrics]'"
    ) from None


Labels = tuple[str, ...]
"""The values of a sample's labels, without `graph`, which is the first label of all series."""

WORKER: Final = ("processor", "slot")
SOURCE: Final = ("source", "slot")


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of a histogram: cumulative counts up to each bound, the last one for all values, and their sum."""

    counts: Sequence[int]
    sum: float


@dataclass(frozen=True, slots=True)
class Series:
    """One series of /metrics.

    - `name`: without the prefix `kstreams_`, and without the suffix `_total` of a counter.
    - `labels`: the names of its labels after `graph`.
    - `samples`: yields the label values and the value of each sample.
    - `bounds`: the upper bounds of a histogram's buckets except the last.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels
    samples: Callable[[RunStatus], Iterator[tuple[Labels, float | Distribution]]]
    bounds: tuple[float, ...] = ()


def _workers(status: RunStatus) -> Iterator[tuple[SlotStatus, Report, Labels]]:
    for slot in status.slots:
        for report in slot.reports:
            yield slot, report, (report.processor, str(slot.number))


def _count(name: str) -> Callable[[RunStatus], Iterator[tuple[Labels, float]]]:
    def samples(status: RunStatus) -> Iterator[tuple[Labels, float]]:
        for _, report, labels in _workers(status):
            yield labels, report.counters.get(name, 0)

    return samples


def _renewals(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for _, report, labels in _workers(status):
        for reason in RENEWALS:
            yield (*labels, reason), report.measures.get(f"renewals:{reason}", 0)


def _histogram(name: str, bounds: Sequence[float]) -> Callable[[RunStatus], Iterator[tuple[Labels, Distribution]]]:
    names = [f"{name}:{number}" for number in range(len(bounds) + 1)]

    def samples(status: RunStatus) -> Iterator[tuple[Labels, Distribution]]:
        for _, report, labels in _workers(status):
            counts = [int(report.measures.get(each, 0)) for each in names]
            yield labels, Distribution(list(accumulate(counts)), report.measures.get(f"{name}:sum", 0.0))

    return samples


def _lags(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, labels in _workers(status):
        if slot.taken:
            continue
        for (topic, partition), lag in report.lags.items():
            if lag is not None:
                yield (*labels, topic, str(partition)), lag


def _partitions(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, labels in _workers(status):
        yield labels, 0 if slot.taken else len(report.lags)


def _states(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, labels in _workers(status):
        yield (*labels, slot.state_of(report.processor)), 1


def _still(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for _, report, labels in _workers(status):
        yield labels, report.still_seconds


def _hidden(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, labels in _workers(status):
        yield labels, 0.0 if slot.taken or slot.pid is None else report.hidden_seconds


def _open(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, labels in _workers(status):
        yield labels, 0.0 if slot.taken or slot.pid is None else report.open_seconds or 0.0


def _events(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for _, report, labels in _workers(status):
        if report.events is not None:
            for outcome in EVENTS:
                yield (*labels, outcome), report.measures.get(f"events:{outcome}", 0)


def _waiting(name: str) -> Callable[[RunStatus], Iterator[tuple[Labels, float]]]:
    def samples(status: RunStatus) -> Iterator[tuple[Labels, float]]:
        for slot, report, labels in _workers(status):
            if report.events is not None:
                yield labels, 0 if slot.taken else report.events[name]

    return samples


def _sources(status: RunStatus) -> Iterator[tuple[str, SlotStatus, Report, Labels]]:
    for slot, report, _ in _workers(status):
        for source in report.sources:
            yield source, slot, report, (source, str(slot.number))


def _pending(name: str) -> Callable[[RunStatus], Iterator[tuple[Labels, float]]]:
    def samples(status: RunStatus) -> Iterator[tuple[Labels, float]]:
        for source, slot, report, labels in _sources(status):
            yield labels, 0 if slot.taken or slot.pid is None else getattr(report.sources[source], name)

    return samples


def _oldest_tasks(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for source, slot, report, labels in _sources(status):
        pending = report.sources[source]
        for task in () if slot.taken or slot.pid is None else pending.tasks:
            yield (*labels, task), pending.seconds


def _inputs(name: str) -> Callable[[RunStatus], Iterator[tuple[Labels, float]]]:
    def samples(status: RunStatus) -> Iterator[tuple[Labels, float]]:
        for source, _, report, labels in _sources(status):
            yield labels, report.measures.get(f"inputs:{name}:{source}", 0)

    return samples


def _replays(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for source, _, report, labels in _sources(status):
        for cause in REPLAYS:
            yield (*labels, cause), report.measures.get(f"inputs:{cause}:{source}", 0)


def _late_acks(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, _ in _workers(status):
        for kind in LATE_ACKS:
            if (name := f"acks:{kind}") in report.measures:
                yield (str(slot.number), kind), report.measures[name]


def _measured(name: str) -> Callable[[RunStatus], Iterator[tuple[Labels, float]]]:
    def samples(status: RunStatus) -> Iterator[tuple[Labels, float]]:
        for _, report, labels in _workers(status):
            if name in report.measures:
                yield labels, report.measures[name]

    return samples


def _restarts(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot in status.slots:
        yield (str(slot.number),), slot.restarts


def _up(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot in status.slots:
        yield (str(slot.number),), int(slot.pid is not None)


def _silent(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot in status.slots:
        yield (str(slot.number),), slot.silent


def _of_cluster(
    samples: Callable[[ClusterFigures], Iterable[tuple[Labels, float]]],
) -> Callable[[RunStatus], Iterator[tuple[Labels, float]]]:
    """Returns the samples of a cluster of peers; none for a run without peers."""
    return lambda status: iter(() if status.cluster is None else samples(status.cluster))


def _jobs(cluster: ClusterFigures) -> Iterator[tuple[Labels, float]]:
    phases = [job.phase for job in cluster.replica.jobs.values()]
    for phase in JobPhase:
        yield (phase,), phases.count(phase)


def _uncovered(cluster: ClusterFigures) -> Iterator[tuple[Labels, float]]:
    for name, job in cluster.replica.open_jobs():
        yield (name,), sum(not cluster.replica.peers_of(name, task.id) for task in job.left)


def _heartbeats(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, _ in _workers(status):
        if report.heartbeat_seconds is not None and slot.pid is not None:
            yield (str(slot.number),), report.heartbeat_seconds


def _entries(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, _ in _workers(status):
        if report.processor == PEER:
            yield (str(slot.number),), report.measures.get("entries", 0)


def _frames(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for slot, report, _ in _workers(status):
        if report.processor == PEER:
            for kind in FRAMES:
                yield (str(slot.number), kind), report.measures.get(f"frames:{kind}", 0)


def _letters(status: RunStatus) -> Iterator[tuple[Labels, float]]:
    for topic, count in status.waiting.items():
        if count.known is not None:
            yield (topic,), count.known


_STATES: Final = ", ".join(WorkerState)
_OUTCOMES: Final = "; ".join(f"{name}: {meaning}" for name, meaning in EVENTS.items())
_CAUSES: Final = "; ".join(f"{name}: {meaning}" for name, meaning in REPLAYS.items())
_PHASES: Final = ", ".join(JobPhase)
_REASONS: Final = ", ".join(LeaveReason)
_FRAMES: Final = "; ".join(f"{name}: {meaning}" for name, meaning in FRAMES.items())
_KINDS: Final = "; ".join(f"{name}: {meaning}" for name, meaning in LATE_ACKS.items())

SERIES: Final[tuple[Series, ...]] = (
    *(Series(name, "counter", meaning, WORKER, _count(name)) for name, meaning in COUNTS.items()),
    Series("producer_renewals", "counter", "producers that were replaced, by reason", (*WORKER, "reason"), _renewals),
    Series(
        "step_seconds",
        "histogram",
        "seconds of a step (decode records, call the function, encode outputs); the mean over each intake",
        WORKER,
        _histogram("step_seconds", STEP_BOUNDS),
        STEP_BOUNDS,
    ),
    Series(
        "commit_seconds",
        "histogram",
        "seconds of a commit that succeeded",
        WORKER,
        _histogram("commit_seconds", COMMIT_BOUNDS),
        COMMIT_BOUNDS,
    ),
    Series(
        "lag_records",
        "gauge",
        "records (and markers) between the next offset to process and the last stable offset; absent if not known",
        (*WORKER, "topic", "partition"),
        _lags,
    ),
    Series("partitions", "gauge", "input partitions that the worker holds", WORKER, _partitions),
    Series("worker_state", "gauge", f"1 for the state of the worker: {_STATES}", (*WORKER, "state"), _states),
    Series("still_seconds", "gauge", "seconds since the loop turned or began another step", WORKER, _still),
    Series("open_transaction_seconds", "gauge", "age of the open transaction; 0 if none is open", WORKER, _open),
    Series(
        "hidden_seconds",
        "gauge",
        "seconds for which open transactions of others have hidden the newest records of an input; 0 if none is hidden",
        WORKER,
        _hidden,
    ),
    Series("events", "counter", f"events of an ordered processor; {_OUTCOMES}", (*WORKER, "outcome"), _events),
    Series("held_events", "gauge", "events that wait for the ones before them", WORKER, _waiting("held")),
    Series("held_seconds", "gauge", "age of the event that has waited longest", WORKER, _waiting("held_seconds")),
    Series(
        "stopped_objects",
        "gauge",
        "objects whose events are refused until an operator resumes them",
        WORKER,
        _waiting("stopped"),
    ),
    Series("pending_inputs", "gauge", "inputs of a source that are under way", SOURCE, _pending("pending")),
    Series(
        "oldest_pending_seconds",
        "gauge",
        "seconds since the oldest input that is under way was read; 0 if none is",
        SOURCE,
        _pending("seconds"),
    ),
    Series(
        "oldest_pending_task_seconds",
        "gauge",
        "the same seconds for each task that has something of this input; absent for others",
        (*SOURCE, "processor"),
        _oldest_tasks,
    ),
    Series("done_inputs", "counter", "inputs of a source that are completely done", SOURCE, _inputs("done")),
    Series(
        "refused_inputs",
        "counter",
        "inputs of a source that could not be processed; it keeps the reason",
        SOURCE,
        _inputs("refused"),
    ),
    Series(
        "replayed_inputs",
        "counter",
        f"inputs of a source that are read again, by cause; {_CAUSES}",
        (*SOURCE, "cause"),
        _replays,
    ),
    Series(
        "failed_segments",
        "counter",
        "segments of a task that failed; their inputs are refused",
        WORKER,
        _measured("failed"),
    ),
    Series(
        "unpaired_segments",
        "counter",
        "segments that a gather dropped, because another branch has none",
        WORKER,
        _measured("unpaired"),
    ),
    Series(
        "late_acks",
        "counter",
        f"acknowledgements of tasks that changed nothing; {_KINDS}",
        ("slot", "kind"),
        _late_acks,
    ),
    Series(
        "peers",
        "gauge",
        "members of the cluster of peers, on all machines",
        (),
        _of_cluster(lambda cluster: [((), len(cluster.replica.peers))]),
    ),
    Series("jobs", "gauge", f"jobs of the cluster of peers, by phase: {_PHASES}", ("phase",), _of_cluster(_jobs)),
    Series(
        "tasks_without_peer",
        "gauge",
        "tasks of a job that are not complete and have no peer; all of them while the job waits",
        ("job",),
        _of_cluster(_uncovered),
    ),
    Series(
        "job_epoch",
        "gauge",
        "epoch of a job that has not ended: it grows when the peers of the job change",
        ("job",),
        _of_cluster(lambda cluster: [((name,), job.epoch) for name, job in cluster.replica.open_jobs()]),
    ),
    Series(
        "departed_peers",
        "counter",
        f"peers that left since the process began to read the log of the cluster, by reason: {_REASONS}",
        ("reason",),
        _of_cluster(lambda cluster: [((reason,), cluster.left.get(reason, 0)) for reason in LeaveReason]),
    ),
    Series(
        "differing_replicas",
        "gauge",
        "peers whose state of the cluster differed from the one here at the same offset of the log",
        (),
        _of_cluster(lambda cluster: [((), len(cluster.diverged))]),
    ),
    Series(
        "unreachable_peers",
        "gauge",
        "peers that another one cannot reach over the network, though they are members of the cluster",
        (),
        _of_cluster(lambda cluster: [((), len({*chain(*cluster.unreachable.values())}))]),
    ),
    Series(
        "heartbeat_seconds",
        "gauge",
        "seconds since the newest heartbeat of the peer that came back from the log was sent",
        ("slot",),
        _heartbeats,
    ),
    Series("log_entries", "counter", "entries of the log that the peer has applied", ("slot",), _entries),
    Series("frames", "counter", f"frames of the peer with other peers; {_FRAMES}", ("slot", "kind"), _frames),
    Series(
        "dead_letters_waiting",
        "gauge",
        "dead letters of the graph in a topic that are neither replayed nor discarded; absent if not known",
        ("topic",),
        _letters,
    ),
    Series("restarts", "counter", "processes of the slot after the first", ("slot",), _restarts),
    Series("up", "gauge", "1 if the slot has a process, 0 if not", ("slot",), _up),
    Series("report_age_seconds", "gauge", "seconds since the newest report of the process", ("slot",), _silent),
)
"""All series. The documentation is generated from this table."""


def meanings() -> Mapping[str, str]:
    """Returns the full name and the meaning of each series."""
    return {f"kstreams_{each.name}{'_total' if each.kind == 'counter' else ''}": each.help for each in SERIES}


CONTENT_TYPE = prometheus.CONTENT_TYPE_PLAIN_0_0_4

_number: Callable[[float], str] = floatToGoString

LABELS_KEPT: Final = 50_000
"""The maximum number of label texts in the cache."""


def exposition(graph: str, status: RunStatus) -> bytes:
    """Returns all series of a status, in the text format.

    For 4 slots of 20 processors, prometheus-client's own writer takes 18 ms and this one 3 ms (measured): the library
    checks, sorts and escapes the labels of each sample each time. The tests read the lines with the library's parser.
    """
    return "".join(line for series in SERIES for line in _lines(graph, series, status)).encode()


def _lines(graph: str, series: Series, status: RunStatus) -> Iterator[str]:
    name = f"kstreams_{series.name}{'_total' if series.kind == 'counter' else ''}"
    yield f"# HELP {name} {series.help}\n# TYPE {name} {series.kind}\n"
    names = ("graph", *series.labels)
    bounds = (*map(_number, series.bounds), "+Inf")
    for values, value in series.samples(status):
        labels = _labels(names, (graph, *values))
        if isinstance(value, Distribution):
            for bound, count in zip(bounds, value.counts, strict=True):
                yield f"{name}_bucket{_labels((*names, 'le'), (graph, *values, bound))} {_number(count)}\n"
            yield f"{name}_count{labels} {_number(value.counts[-1])}\n"
            yield f"{name}_sum{labels} {_number(value.sum)}\n"
        else:
            yield f"{name}{labels} {_number(value)}\n"


@lru_cache(LABELS_KEPT)
def _labels(names: Labels, values: Labels) -> str:
    """Returns labels sorted by name, in braces."""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(zip(names, values, strict=True))) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
