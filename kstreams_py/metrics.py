"""The counters and histograms of a processor in one worker, and the states of a worker."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import add, attrgetter, sub
from typing import Final, NamedTuple, TypeVar

from kstreams_py.records import Positions, TopicPartition

T = TypeVar("T")

STEP_BOUNDS: Final = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper bounds of the buckets for the seconds of a step."""

COMMIT_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets for the seconds of a commit."""

RENEWALS: Final[Mapping[str, str]] = {
    "late_request": "a request of the producer timed out or lost its connection, and may still arrive",
    "unknown_outcome": "a commit found no answer",
    "fenced": "a newer producer of the same id was seen, and the membership was still held",
    "timed_out": "the broker ended a transaction after transaction_timeout_ms",
    "abort_failed": "a transaction could not be aborted",
    "failure": "outputs were on their way when an attempt failed (without transactions)",
}
"""Why a producer is replaced, each reason with its meaning."""


class WorkerState(StrEnum):
    """The state of one processor in one slot."""

    JOINING = "joining"
    """It waits for its place in the group, or for the committed offsets."""
    RUNNING = "running"
    """It holds partitions."""
    SPARE = "spare"
    """It is a member of its group, and holds no partition."""
    RETRYING = "retrying"
    """A function failed, and is called again after a wait (Retry)."""
    BROKER_AWAY = "broker away"
    """A broker that it needs does not answer."""
    SINK_AWAY = "sink away"
    """The target of its rows is away; the rows wait."""
    SOURCE_AWAY = "source away"
    """The source of its inputs is away; inputs that were read before are still processed."""
    DRAINING = "draining"
    """It commits what is processed, and ends."""
    REPLACED = "replaced"
    """A worker elsewhere has taken the slot."""
    RESTARTING = "restarting"
    """Its process has ended, and the next one has not reported yet."""


class Histogram:
    """Counts of values by size: one bucket up to each bound, and one for all larger values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def measures(self, name: str) -> Iterator[tuple[str, float]]:
        """Yields the buckets that are not empty, as `name:number`, and the sum, as `name:sum`."""
        for number, count in enumerate(self.counts):
            if count:
                yield f"{name}:{number}", count
        if self.sum:
            yield f"{name}:sum", self.sum


MEASURED_ALL: Final = 64
"""The maximum number of records whose sizes are all measured: measuring more takes 8 % of a fast loop (measured)."""

COUNTS: Final[Mapping[str, str]] = {
    "records_in": "steps that are committed; each step of a map is one record",
    "records_out": "outputs that are committed, without dead letters",
    "dead_letters": "dead letters that are committed; each is a failed step",
    "dropped": "failed steps that are committed without a dead letter, because their processor has no topic for them",
    "rolled_back": "steps of attempts that were not committed; they are run again, here or by another worker",
    "commits": "commits",
    "aborts": "attempts that failed",
    "retries": "steps, or batches, that failed and are run again",
    "bytes_in": "bytes of the values of fetched records, at each fetch; estimated from a sample if there are many",
    "bytes_out": "bytes of the values of committed outputs and dead letters; estimated from a sample if there are many",
    "rebalances": "assignments and losses of partitions",
}
"""The counts of `Counters`, each with its meaning."""


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Counts of steps that were run; the names are those of COUNTS."""

    records_in: int = 0
    records_out: int = 0
    dead_letters: int = 0
    dropped: int = 0
    bytes_out: int = 0

    def __add__(self, other: StepCounts) -> StepCounts:
        return StepCounts(*map(add, _each_count(self), _each_count(other)))

    def __sub__(self, other: StepCounts) -> StepCounts:
        return StepCounts(*map(sub, _each_count(self), _each_count(other)))

    def without(self, outputs: int, letters: int, unknown: int) -> StepCounts:
        """Returns the counts without lost outputs and dead letters, and without their share of the bytes.

        - `unknown`: how many more are lost. They may be outputs or dead letters, so both counts exclude them.
        """
        outputs = min(outputs + unknown, self.records_out)
        letters = min(letters + unknown, self.dead_letters)
        written = self.records_out + self.dead_letters
        size = self.bytes_out * (outputs + letters) // written if written else 0
        return self - StepCounts(records_out=outputs, dead_letters=letters, bytes_out=size)


_each_count: Final[Callable[[StepCounts], tuple[int, ...]]] = attrgetter(*(each.name for each in fields(StepCounts)))


@dataclass(slots=True)
class Counters:
    """Counts of one processor in one worker since it started; only that worker's thread writes them.

    `step_seconds` counts the mean time of an intake for each of its steps: the clock is not read for each record. Each
    run of a step counts, even if it was rolled back.
    """

    records_in: int = 0
    records_out: int = 0
    dead_letters: int = 0
    dropped: int = 0
    rolled_back: int = 0
    commits: int = 0
    aborts: int = 0
    retries: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rebalances: int = 0
    renewals: dict[str, int] = field(default_factory=dict)
    step_seconds: Histogram = field(default_factory=lambda: Histogram(STEP_BOUNDS))
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(COMMIT_BOUNDS))

    def settled(self, counts: StepCounts) -> None:
        """Counts steps that are committed."""
        self.records_in += counts.records_in
        self.records_out += counts.records_out
        self.dead_letters += counts.dead_letters
        self.dropped += counts.dropped
        self.bytes_out += counts.bytes_out

    def undone(self, counts: StepCounts) -> None:
        """Counts steps that are not committed, and will be run again."""
        self.rolled_back += counts.records_in

    def ran(self, steps: int, seconds: float) -> None:
        """Counts the time that an intake took."""
        if steps:
            self.step_seconds.observe(seconds / steps, steps)

    def committed(self, seconds: float = 0.0) -> None:
        """Counts a commit and its time."""
        self.commits += 1
        self.commit_seconds.observe(seconds)

    def aborted(self) -> None:
        """Counts an attempt that failed."""
        self.aborts += 1

    def retried(self) -> None:
        """Counts a step, or a batch, that failed and is run again."""
        self.retries += 1

    def renewed(self, reason: str) -> None:
        """Counts the replacement of a producer; `reason` is one of RENEWALS."""
        self.renewals[reason] = self.renewals.get(reason, 0) + 1

    def rebalanced(self) -> None:
        """Counts an assignment of partitions, or their loss."""
        self.rebalances += 1

    def as_dict(self) -> dict[str, int]:
        """Returns the count for each name in COUNTS."""
        return {name: getattr(self, name) for name in COUNTS}

    def measures(self) -> dict[str, float]:
        """Returns the renewals by reason and the histograms, without zeros.

        The mapping is flat, so that it can be summed over workers.
        """
        found: dict[str, float] = {f"renewals:{reason}": count for reason, count in self.renewals.copy().items()}
        found.update(self.step_seconds.measures("step_seconds"))
        found.update(self.commit_seconds.measures("commit_seconds"))
        return found


EVENTS: Final[Mapping[str, str]] = {
    "applied": "the function was called, and did not raise",
    "duplicate": "it had been applied before, and was dropped",
    "held": "it came before its predecessor",
    "fault": "it contradicts the order, or its object is stopped: it has a dead letter",
}
"""The outcomes of an event of a `graph.ordered` processor, each with its meaning. A held event counts twice."""


class LongestHeld(NamedTuple):
    """The event that has been held longest.

    - `group`: the consumer group.
    - `place`: topic, partition and offset.
    - `prev`: the id of the event that it waits for.
    - `since`: seconds since 1970.
    """

    group: str
    place: str
    object: str
    id: int
    prev: int
    since: float


@dataclass(slots=True)
class EventCounts:
    """Events of a `graph.ordered` processor in one worker; only that worker's thread writes them.

    - `applied`, `duplicate`, `held`, `fault`: since the worker started; see EVENTS.
    - `held_now`, `stopped_now`: events that wait, and objects that are stopped, in the worker's partitions.
    """

    applied: int = 0
    duplicate: int = 0
    held: int = 0
    fault: int = 0
    held_now: int = 0
    stopped_now: int = 0
    longest_held: LongestHeld | None = None

    def measures(self) -> dict[str, float]:
        """Returns the counts, in the form of `Counters.measures`."""
        return {f"events:{name}": count for name in EVENTS if (count := getattr(self, name))}


REPLAYS: Final[Mapping[str, str]] = {
    "died": "its worker died, or was silent for longer than its lease; the worker that reads it again counts it",
    "expired": "its timeout passed while no task held a part of it",
    "raised": "an exception, or the death of a task's last peer, stopped the job, which gave it back",
    "given_back": "its process stopped, or a peer left that had a part of it or counted its acknowledgements",
}
"""Why an input of a source is read again, each cause with its meaning."""

INPUTS: Final = ("done", "refused", *REPLAYS)
"""The counts of `InputCounts`."""

LATE_ACKS: Final[Mapping[str, str]] = {
    "completed": "an input that was no longer under way became complete",
    "dropped": "the acknowledgements of an input were still incomplete long after its timeout",
}
"""Acknowledgements that changed nothing, each kind with its meaning."""


FRAMES: Final[Mapping[str, str]] = {
    "resent": "sent again, after a time-out or because the other peer had missed one",
    "returned": "given back to their sender because of their old epoch",
    "came_back": "given back by the other peer because of their old epoch, and sent to a peer of the new one",
    "garbage": "dropped: no frame of this protocol, or above the limit; connections that begin so count too",
    "unexpected": "dropped: of a peer with another version of the frames, or out of turn",
    "strangers": "dropped: of no member of the cluster; refused connections count too",
}
"""What may happen to a frame between peers besides its arrival, each kind with its meaning."""


@dataclass(slots=True)
class InputCounts:
    """Counts of the inputs of one source in one worker since it started; only that worker's thread writes them.

    - `done`: acknowledged.
    - `refused`: acknowledged with a reason why they were not processed.
    - `died`, `expired`, `raised`, `given_back`: read again, see REPLAYS.
    """

    done: int = 0
    refused: int = 0
    died: int = 0
    expired: int = 0
    raised: int = 0
    given_back: int = 0

    def measures(self, source: str) -> dict[str, float]:
        """Returns the counts by name, as `inputs:name:source`, in the form of `Counters.measures`."""
        return {f"inputs:{name}:{source}": getattr(self, name) for name in INPUTS}


class PendingFigures(NamedTuple):
    """The inputs of one source that a worker has under way.

    - `pending`: how many.
    - `seconds`: since the oldest of them was read; 0 if there is none.
    - `key`: the key of the oldest, as a short text; "" if there is none.
    - `tasks`: the tasks that hold a part of the oldest.
    - `why`: what keeps the source from being read; "" for nothing.
    - `limit`: the seconds after which an input is overdue.
    """

    pending: int = 0
    seconds: float = 0.0
    key: str = ""
    tasks: tuple[str, ...] = ()
    why: str = ""
    limit: float = 60.0


def estimate(size: Callable[[Sequence[T]], int], items: Sequence[T]) -> int:
    """Returns the size of items; if there are more than MEASURED_ALL, an estimate from about thirty of them."""
    if len(items) <= MEASURED_ALL:
        return size(items)
    some = items[:: len(items) // 32 | 1]  # an odd stride: kinds of records often alternate
    return size(some) * len(items) // len(some)


def lags(positions: Positions, ends: Positions) -> dict[TopicPartition, int]:
    """Returns the lag of each partition whose last stable offset is known; see `lag`."""
    return {tp: max(0, ends[tp] - position) for tp, position in positions.items() if tp in ends}


def lag(positions: Positions, ends: Positions) -> int:
    """Returns how many records and markers are between next offsets (`positions`) and last stable offsets (`ends`)."""
    return sum(lags(positions, ends).values())


class Rate:
    """The growth of a count per second, measured over the last second or more."""

    def __init__(self, *, shrinks: bool = False) -> None:
        """`shrinks`: the count may shrink, and the rate may be below 0."""
        self._before: tuple[float, float] | None = None
        self._rate = 0.0
        self._least = -float("inf") if shrinks else 0

    def of(self, count: float, now: float) -> float:
        """Returns the rate for the count at `now` (seconds); 0 in the first second, and below 0 only with `shrinks`."""
        then, before = self._before = self._before or (now, count)
        if now - then >= 1.0:
            self._rate = max(self._least, count - before) / (now - then)
            self._before = (now, count)
        return self._rate
