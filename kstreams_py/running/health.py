"""Decides whether a run is alive and ready: the answers of /livez and /readyz.

A run is alive if the loop of each worker makes progress. A worker also counts as alive where a restart would not help:
while it waits for a broker, a sink or a source, and while its process is being restarted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from kstreams_py.metrics import WorkerState
from kstreams_py.running.status import RunStatus, SlotStatus

STARTING_SECONDS: Final = 120.0
"""Seconds after which the first report of a process counts as late: its imports may take long."""

LOOK_LATE: Final = 2.0
"""The age of a status, in seconds, after which the process that creates the status counts as stuck itself."""

READY: Final = frozenset({WorkerState.RUNNING, WorkerState.RETRYING, WorkerState.SPARE})
"""The states of a worker that is a member of its group."""

AWAY: Final = frozenset({WorkerState.BROKER_AWAY, WorkerState.SINK_AWAY, WorkerState.SOURCE_AWAY})
"""The states of a worker that waits for another system."""


class Still(NamedTuple):
    """Something that is stuck.

    - `what`: a description.
    - `seconds`: how long it has been stuck.
    - `slot`: None if the watching process itself is stuck.
    - `processor`: None if the whole process is stuck.
    """

    what: str
    seconds: float
    slot: int | None = None
    processor: str | None = None


def still(status: RunStatus, now: float, limit: float) -> list[Still]:
    """Returns the workers whose loop has made no progress for `limit` seconds, each with its slot and processor.

    - `now`: monotonic seconds.
    """
    since = max(0.0, now - status.looked_at)
    if since > limit:
        return [Still("the process that watches the workers has not looked at them", since)]
    return [found for slot in status.slots if not slot.taken for found in _still(slot, since, limit)]


def _still(slot: SlotStatus, since: float, limit: float) -> Iterator[Still]:
    if slot.pid is None:
        return
    silent = slot.silent + min(since, LOOK_LATE)
    if silent > (limit if slot.has_reported else STARTING_SECONDS):
        yield Still(f"slot {slot.number}: its process ({slot.pid}) has not reported", silent, slot.number)
        return
    if not slot.has_reported:
        return
    for report in slot.reports:
        if report.still_seconds > limit and report.state not in AWAY:
            what = f"slot {slot.number}: {report.processor} has made no progress: it is in {report.place}"
            yield Still(what, report.still_seconds, slot.number, report.processor)


def unready(status: RunStatus, processors: Collection[str]) -> list[str]:
    """Returns the workers that are not members of their group, each with its state."""
    if status.stopping:
        return ["the workers drain"]
    found = []
    for slot in status.slots:
        if slot.taken:
            found.append(f"slot {slot.number} is replaced: {slot.taken}")
            continue
        states = ((processor, slot.state_of(processor)) for processor in processors)
        found += [f"slot {slot.number}: {processor} is {state}" for processor, state in states if state not in READY]
    return found
