"""Compares the tables of `kstreams demo jobs` with the file, and the faults of the run with the planned faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kstreams_py.demo.channel_checks import RatedFlights, StoredRow, TablesFound, judge_tables
from kstreams_py.demo.checks import Check
from kstreams_py.demo.data import FIELDS, Row
from kstreams_py.demo.jobs.aircraft_graph import COLUMNS, name, with_plane
from kstreams_py.demo.jobs.faults import FaultKind
from kstreams_py.demo.jobs.timeline import Timeline
from kstreams_py.jobs.cluster.commands import JobId, LeaveReason, PeerId
from kstreams_py.jobs.cluster.state import JobPhase, Replica

TITLES: Final = {
    FaultKind.KILL: "SIGKILL",
    FaultKind.FREEZE: "SIGSTOP",
    FaultKind.JOIN: "a peer joins",
    FaultKind.RESUBMIT: "a job is killed",
}


@dataclass(frozen=True, slots=True)
class DoneFault:
    """A fault that happened.

    - `at`: when, in milliseconds since 1970.
    - `what`: what it hit, in words.
    - `place`: the place of the peer that was hit or that joins; 0 if a job was killed.
    - `peer`: the peer that was hit; None if a peer joins or a job was killed.
    - `job`: the job that was killed.
    - `seconds`: for how long the peer was frozen.
    """

    kind: FaultKind
    at: int
    what: str
    place: int = 0
    peer: PeerId | None = None
    job: JobId | None = None
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The name of this kind of fault."""
        return TITLES[self.kind]


@dataclass(frozen=True, slots=True)
class JobsRun:
    """A run as seen from outside. Times are milliseconds since 1970.

    - `places`: the place of each peer that has run.
    - `replica`: the last state of the cluster.
    """

    began: int
    ended: int
    timeline: Timeline
    places: Mapping[PeerId, int]
    faults: Sequence[DoneFault]
    replica: Replica

    def seconds_at(self, at: int) -> float:
        """Returns the seconds from the beginning of the run to a time."""
        return (at - self.began) / 1000

    def left_after(self, fault: DoneFault) -> float | None:
        """Returns the seconds from a fault until the peer left the cluster; None if it did not."""
        stay = None if fault.peer is None else self.timeline.stay_of(fault.peer)
        return None if stay is None or stay.why is None else (stay.left - fault.at) / 1000


def look_up_all(rows: Iterable[Row]) -> RatedFlights:
    """Computes the expected rows of the second graph: calls its functions one after the other, without channels."""
    stored, refused = Counter[StoredRow](), dict[int, str]()
    for number, row in enumerate(rows, 1):
        try:
            flight = name({"id": number, **dict(zip(FIELDS, row, strict=True))})
        except ValueError as error:
            refused[number] = f"name: ValueError: {error}"
        else:
            flown = with_plane(flight)
            stored[tuple(flown[column] for column in COLUMNS)] += 1
    return RatedFlights(stored, refused)


def judge_jobs(
    expected: Mapping[str, RatedFlights],
    found: Mapping[str, TablesFound],
    planned: Counter[FaultKind],
    run: JobsRun,
) -> list[Check]:
    """Returns the table of checks. `expected`, `found`: by the name of the graph."""
    checks = [
        replace(check, what=f"{graph}: {check.what}")
        for graph, flights in expected.items()
        for check in judge_tables(flights, found[graph])
    ]
    why = {stay.peer: stay.why for stay in run.timeline.stays}
    hit = Counter((each.kind, why.get(each.peer)) for each in run.faults if each.peer is not None)
    killed = hit[FaultKind.KILL, LeaveReason.DIED] + hit[FaultKind.KILL, LeaveReason.SILENT]
    joined = {place for peer, place in run.places.items() if peer in why}
    phases = Counter(job.phase for job in run.replica.jobs.values())
    return [
        *checks,
        Check("peers killed, and seen to be dead", planned[FaultKind.KILL], killed),
        Check("peers frozen, and found silent", planned[FaultKind.FREEZE], hit[FaultKind.FREEZE, LeaveReason.SILENT]),
        Check(
            "peers that joined the others later",
            planned[FaultKind.JOIN],
            len(joined & {each.place for each in run.faults if each.kind is FaultKind.JOIN}),
        ),
        Check("jobs killed, and submitted again", planned[FaultKind.RESUBMIT], phases[JobPhase.KILLED]),
        Check("jobs completed", len(expected), phases[JobPhase.COMPLETED]),
    ]


def describe_jobs(found: Mapping[str, TablesFound], run: JobsRun) -> Iterator[str]:
    """Yields the results in plain words."""
    for graph, tables in found.items():
        again = len(tables.deaths)
        unluckiest = f", one of them {max(tables.deaths.values())} times" if again else ""
        written, stored = tables.written, tables.rows.total()
        yield (
            f"{graph}: {tables.claimed:,} flights were claimed, and {stored:,} rows stored. {again:,} flights were "
            f"under way when a peer died or froze, and were read again{unluckiest}. {written:,} rows were written: "
            f"{written - stored:,} of them were there already, and were recognized by their hash."
        )
    took = len(run.timeline.works)
    yield f"{len(run.places)} peers, one after another in their places, took {took} tasks."
