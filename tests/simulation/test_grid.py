"""The grid: a processor of each kind dies at each point of a delivery; the delivery happens once, by the branch named.

The crash points and the branches are in tests/crash_grid.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import Replaced
from kstreams_py.operations.recover.status import FIRST
from kstreams_py.processing.journal.records import RecordType
from tests.crash_grid import (
    DELIVERED,
    IN_JOURNAL,
    UNDECIDED,
    Case,
    branch_after,
    cases,
    cells,
    exists,
    hides,
    is_possible,
)
from tests.simulation import mutations_of_recovery
from tests.simulation.grid import FROZEN_SECONDS, TRANSACTION_SECONDS, Grid, Process, Strike

STARTS = ("init_transactions", "journal init_transactions")

IN_FUNCTION: Strike = ("function", 1, "dies")


def strike_at(cell: str, points: Sequence[str]) -> Strike | None:
    """Where and how a process with these points dies; None if it has no such point."""
    called, read, end = points.index("function"), points.index("decode"), len(points)

    def between(name: str, since: int, until: int) -> list[int]:
        return [at for at in range(since, until) if points[at] == name]

    fetched = max(between("consume", 0, read))
    opened, saved = (between(f"journal {each}", fetched, called) for each in ("add_offsets", "commit_transaction"))
    commits = between("commit_transaction", called, end)
    begun, attempts = (
        between(f"journal {each}", called, end) or commits for each in ("add_offsets", "commit_transaction")
    )
    produced = between("produce", called, end)
    found, fault = {
        "CP00": ([fetched], "dies"),
        "CP01": (opened, "dies"),
        "CP02": (saved, "dies late"),
        "CP03": (saved, "dies after"),
        "CP04": ([read], "dies"),
        "CP05": (between("decode", read + 1, called), "dies"),
        "CP06": (opened[-1:], "dies"),
        "CP07": (saved[-1:], "dies late"),
        "CP08": (saved[-1:], "dies after"),
        "CP09": ([called], "dies"),
        "CP10": (between("returned", called, end), "dies"),
        "CP11": (between("add_partition", called, end), "dies"),
        "CP12": (produced[-1:], "dies after"),
        "CP12b": (produced[1:], "dies"),
        "CP13": (begun, "dies"),
        "CP14": (attempts, "dies late"),
        "CP15": (attempts, "dies after" if attempts != commits else "dies"),
        "CP16": (commits, "dies late"),
        "CP16b": (commits, "unanswered"),
        "CP17": (commits, "dies after"),
        "CP18": (begun, "dies"),
        "CP19": (attempts, "dies late"),
        "CP20": (attempts, "dies after"),
        "CP29": (commits if produced else attempts, "replaced"),
        "CP30": (commits, "frozen"),
    }[cell]
    return (points[found[0]], points[: found[0] + 1].count(points[found[0]]), fault) if found else None


def strike_next(case: Case, point: str, before: Sequence[Strike]) -> Strike:
    """The strike at a point of the process that follows those that were struck before."""
    if point == "CP09":
        return IN_FUNCTION
    found = strike_at(point, points_after(case, tuple(before)))
    assert found is not None, f"{point} is not reached"
    return found


@cache
def points_after(case: Case, struck: tuple[Strike, ...]) -> tuple[str, ...]:
    """The points of a process that nothing disturbs, after others that were struck."""
    grid = Grid(case)
    for strike in struck:
        grid.run(strike)
    undisturbed = grid.run()
    assert undisturbed.error is None
    return tuple(undisturbed.points)


@dataclass(frozen=True)
class Cell:
    """A point at which a process dies.

    - `earlier`: the points at which the attempts before it died.
    - `raises`: it ends by an exception that nobody handles, and closes its clients.
    - `start`: the next start dies, too, at this of its points.
    - `made_again`: the topics of its outputs are then created again, with others' records in their places.
    """

    point: str
    earlier: tuple[str, ...] = ()
    raises: bool = False
    start: tuple[str, int] | None = None
    made_again: bool = False


def die_and_recover(case: Case, cell: Cell) -> Process:
    """Lets processes die at the points of a cell, then compares all that is there; returns the one that delivers."""
    grid, strikes, processes = Grid(case), list[Strike](), list[Process]()
    for point in (*cell.earlier, cell.point):
        name, nth, fault = strike_next(case, point, strikes)
        raises = cell.raises and len(strikes) == len(cell.earlier)
        strikes.append((name, nth, fault.replace("dies", "raises") if raises else fault))
        processes.append(grid.run_after_status(strikes[-1]))
    chosen, sets, struck = grid.hashes[:1], 1, processes[-1]
    if cell.made_again:
        grid.make_again(case.written)
    if case.is_alts:
        grid.feed(("a",))  # an input that is fetched first is ready now: what was chosen is read all the same
        sets = 2
    if cell.start is not None:
        strikes.append((*cell.start, "dies" if cell.start[0] in ("decode", "function") else "dies after"))
        processes.append(grid.run_after_status(strikes[-1]))
    called, last = len(grid.hashes), grid.run_after_status()
    assert (last.error, grid.is_delivered) == (None, True)
    assert grid.outputs() == {name: sets if name in case.written else 0 for name in ("x", "y", "dead")}
    assert len(grid.digests()) == (sets if case.written else 0)
    assert len(dict.fromkeys(grid.hashes)) == sets, "each set has one delivery hash"
    if case.journal is not None:
        assert grid.snapshots == sets, "a retry takes no snapshot"
        check_branch(case, cell, grid, last)
        if case.is_alts and chosen and cell.point not in DELIVERED and last.branch.endswith(("1c", "3b")):
            assert grid.hashes[called : called + 1] == chosen, "an alts makes its choice again"
    if cell.point == "CP29":
        assert isinstance(struck.error, Replaced), "the process that woke up ends"
    elif cell.point == "CP30":
        assert struck.error is None, "the process that woke up goes on"
        assert grid.took_over_in < FROZEN_SECONDS, "its transaction was not waited for"
    starts = STARTS if case.journal else STARTS[:1]
    assert max(map(last.points.index, starts)) < last.points.index("committed"), "fenced before anything is read"
    check_statuses(case, cell, strikes, [*processes, last])
    if grid.replacement is not None:
        check_status(case, grid.replacement, is_open=True)
    return last


def check_statuses(case: Case, cell: Cell, strikes: Sequence[Strike], processes: Sequence[Process]) -> None:
    """Compares each status with what the start after it did; those of transactions also once these have timed out."""
    points = (*cell.earlier, cell.point)
    for number, process in enumerate(processes):
        is_open = False
        if number > len(points):  # the start that died before it has ended the transaction of the outputs
            unfenced = case.journal is not None and points[-1] in IN_JOURNAL and cell.start == ("init_transactions", 1)
            is_open = unfenced or cell.start == ("journal send_offsets", 1)  # they follow those of another cluster
        elif cell.raises and number:  # clients are closed; what the one in memory has not sent it does not abort
            is_open = case.journal is None and points[-1] in ("CP11", "CP12", "CP12b")
        elif number and not cell.made_again:
            is_open = hides(points[number - 1], case, points[: number - 1])
        check_status(case, process, is_open=is_open)
        if is_open and process.branches:
            branch = branch_after_time_out(case, tuple(strikes[:number]))
            assert branch == process.branches[0], "the end of a transaction decides as the start does"


NEWEST: Final = {
    "1b": RecordType.SNAPSHOT,
    "1c": RecordType.CHOICES,
    "1d": RecordType.OUTPUT,
    "1e": RecordType.ERROR,
    "1f": RecordType.NIL,
}
"""The newest record of the journal, by the branch of a recovery."""


def check_status(case: Case, process: Process, *, is_open: bool) -> None:
    """Compares the status before a process with the branch that it took.

    - `is_open`: a transaction hides what decides.
    """
    status = process.status
    assert status is not None
    assert (status.is_refused, status.next.startswith(FIRST)) == (False, is_open), status
    if case.journal is None:
        assert (status.tail is not None, status.branch) == (case.is_alts, ""), status
    elif process.branches:
        assert status.tail is not None
        assert status.tail.type == NEWEST[process.branches[0][:2]], status
        assert status.branch == ("" if is_open else process.branches[0]), "the status is that of the next start"


@cache
def branch_after_time_out(case: Case, struck: tuple[Strike, ...]) -> str:
    """The branch that the status names once the transactions of processes that died have timed out."""
    grid = Grid(case)
    for strike in struck:
        grid.run(strike)
    grid.clock.advance(TRANSACTION_SECONDS)
    return grid.read_status().branch


def check_branch(case: Case, cell: Cell, grid: Grid, last: Process) -> None:
    """Compares the branch of the start that makes the delivery, or finds it made."""
    decides = last
    if cell.point in ("CP29", "CP30"):
        assert grid.replacement is not None
        decides = grid.replacement
    if cell.start is not None and cell.start[0] == "function":  # a death in the retry, which may have chosen before
        points = (cell.point, "CP09")
        assert decides.branch in {branch_after("CP09", case, (*cell.earlier, each)) for each in points}, decides.branch
        return
    points = (cell.point, UNDECIDED.get(cell.point, cell.point) if cell.raises else cell.point)
    assert decides.branch in {branch_after(each, case, cell.earlier) for each in points}, decides.branch


def try_all(case: Case, tried: Iterable[Cell]) -> int:
    """Tries cells of a case; returns how many there are."""
    count = 0
    for cell in tried:
        try:
            die_and_recover(case, cell)
        except AssertionError as error:
            raise AssertionError(f"{case}, {cell}: {error}") from error
        count += 1
    return count


def cells_after(case: Case, earlier: tuple[str, ...]) -> list[str]:
    """The points of the attempt after those that died; none if these points are not possible."""
    if not is_possible(case, earlier):
        return []
    return [point for point in cells(case) if exists(point, case, earlier)]


JOURNAL: Final = ks.Journal(1)
PLACES: Final = {"journal": (JOURNAL, ""), "transaction": (None, ""), "two clusters": (JOURNAL, "other")}


FEW: Final = ("map", "join-fork", "alts", "sink")
"""Kinds that have all points between them."""


def representative(place: str, kinds: Sequence[str]) -> list[Case]:
    """The cases of the quick tier: a topic of dead letters matters only if the function raises.

    A step that raises without one leaves what a step without an output leaves.
    """
    return [case for case in cases(*PLACES[place]) if case.kind in kinds and case.errors == (case.does != "none")]


def try_points(of: Iterable[Case], earlier: tuple[str, ...] = (), *, raises: bool = False) -> int:
    """Tries each point of the attempt after those that died; returns how many there are."""
    no_exception = ("CP16b", "CP29", "CP30") if raises else ()
    return sum(
        try_all(case, [Cell(at, earlier, raises) for at in cells_after(case, earlier) if at not in no_exception])
        for case in of
    )


@pytest.mark.parametrize(("place", "count"), [("journal", 163), ("transaction", 121), ("two clusters", 159)])
def test_representative_delivery_happens_once_whatever_point_its_process_dies_at(place: str, count: int) -> None:
    assert try_points(representative(place, FEW)) == count


@pytest.mark.parametrize(
    ("place", "earlier", "count"),
    [
        ("journal", "CP09", 68),
        ("journal", "CP06", 41),
        ("journal", "CP15", 53),
        ("journal", "CP06 CP15", 25),
        ("two clusters", "CP15", 57),
    ],
)
def test_branch_of_the_attempts_before_is_taken_again_by_a_join_and_an_alts(
    place: str, earlier: str, count: int
) -> None:
    assert try_points(representative(place, ("join-fork", "alts")), tuple(earlier.split())) == count


def test_representative_delivery_happens_once_if_its_process_ends_by_an_exception() -> None:
    """CP28: the branch is that of the crash, or, where a request was on its way, of the one before it."""
    assert try_points(representative("journal", FEW), raises=True) == 145


@pytest.mark.parametrize(("place", "kind", "count"), [("journal", "alts", 103), ("two clusters", "map", 101)])
def test_recovery_of_a_written_output_that_dies_at_any_point_is_made_again(place: str, kind: str, count: int) -> None:
    assert try_recoveries(case for case in representative(place, [kind]) if case.does == "output") == count


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "attempt", "count"),
    [
        ("journal", 1, 622),
        ("journal", 2, 442),
        ("journal", 3, 442),
        ("transaction", 1, 442),
        ("transaction", 2, 442),
        ("transaction", 3, 442),
        ("two clusters", 1, 594),
        ("two clusters", 2, 432),
        ("two clusters", 3, 432),
    ],
)
def test_delivery_happens_once_whatever_point_its_process_dies_at(place: str, attempt: int, count: int) -> None:
    assert try_points(cases(*PLACES[place]), ("CP09",) * (attempt - 1)) == count


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "earlier", "count"),
    [
        ("journal", "CP03", 490),
        ("journal", "CP06", 201),
        ("journal", "CP08", 153),
        ("journal", "CP15", 265),
        ("journal", "CP06 CP15", 90),
        ("journal", "CP15 CP09", 265),
        ("two clusters", "CP06", 188),
        ("two clusters", "CP15", 285),
    ],
)
def test_branch_of_the_attempts_before_is_taken_again_wherever_the_next_one_dies(
    place: str, earlier: str, count: int
) -> None:
    assert try_points(cases(*PLACES[place]), tuple(earlier.split())) == count


@pytest.mark.long
@pytest.mark.parametrize(("place", "count"), [("journal", 558), ("transaction", 378), ("two clusters", 514)])
def test_delivery_happens_once_if_its_process_ends_by_an_exception_at_a_point(place: str, count: int) -> None:
    """CP28, as above."""
    assert try_points(cases(*PLACES[place]), raises=True) == count


LEAVES: Final = ("CP00", "CP03", "CP08", "CP13", "CP15", "CP16", "CP17", "CP18", "CP20")
"""Points that each leave something else for the recovery."""


def points_of_recovery(last: Process) -> list[tuple[str, int]]:
    """The points of a start, from its fences until it is assigned its inputs; then its function."""
    found = list[tuple[str, int]]()
    for at, name in enumerate(last.points):
        found.append((name, last.points[: at + 1].count(name)))
        if name == "consume" and "committed" in last.points[:at]:
            break
    return found[found.index(("init_transactions", 1)) :] + [("function", 1)] * ("function" in last.points)


def try_recoveries(of: Iterable[Case]) -> int:
    """Lets starts die at each of their points, after deaths at LEAVES; returns how many starts died."""
    tried = 0
    for case in of:
        for point in cells_after(case, ()):
            if point in LEAVES and (case.errors or case.does == "raise"):
                last = die_and_recover(case, Cell(point))
                tried += try_all(case, [Cell(point, start=start) for start in points_of_recovery(last)])
    return tried


@pytest.mark.long
@pytest.mark.parametrize(("place", "count"), [("journal", 2_191), ("transaction", 942), ("two clusters", 2_322)])
def test_recovery_that_dies_at_any_point_is_made_again(place: str, count: int) -> None:
    """R0 to R5: after producers are fenced, after each thing that is read, once assigned, and in the retry."""
    assert try_recoveries(cases(*PLACES[place])) == count


@pytest.mark.parametrize("kind", ["map", "fork", "alts"])
def test_record_of_somebody_else_at_the_place_of_an_output_is_not_taken_for_it(kind: str) -> None:
    """The topic was created again: the offsets of its new records begin at 0, and reach those of the attempt."""
    for does in ("output", "raise"):
        die_and_recover(Case(kind, does, errors=True, journal=JOURNAL), Cell("CP15", made_again=True))


# Mutations: each removes one thing that the recovery does, and a cell detects it.

ALTS = Case("alts", "output", errors=True, journal=JOURNAL)
MAP = Case("map", "output", errors=True, journal=JOURNAL)
ELSEWHERE = replace(MAP, cluster="other")


SEEN_BY: Final = [
    (mutations_of_recovery.no_recovery, MAP, Cell("CP09", ("CP09",))),
    (mutations_of_recovery.no_snapshot_in_force, MAP, Cell("CP09", ("CP09",))),
    (mutations_of_recovery.no_pin, ALTS, Cell("CP09", ("CP09",))),
    (mutations_of_recovery.fences_after_the_recovery, MAP, Cell("CP29")),
    (mutations_of_recovery.attempt_after_the_commit, MAP, Cell("CP17")),
    (mutations_of_recovery.reads_nothing_back, MAP, Cell("CP15")),
    (mutations_of_recovery.looks_for_no_output, MAP, Cell("CP15")),
    (mutations_of_recovery.takes_any_record_for_the_output, MAP, Cell("CP15", made_again=True)),
    (mutations_of_recovery.no_choice_before_the_function, ALTS, Cell("CP09", ("CP09",))),
    (mutations_of_recovery.records_choices_only_with_a_new_snapshot, ALTS, Cell("CP09", ("CP06",))),
    (mutations_of_recovery.no_fence, ELSEWHERE, Cell("CP30")),
    (mutations_of_recovery.no_record_beside_outputs, ELSEWHERE, Cell("CP17")),
    (mutations_of_recovery.offsets_decide_between_clusters, ELSEWHERE, Cell("CP17")),
    (mutations_of_recovery.goes_on_at_the_committed_offsets, ELSEWHERE, Cell("CP17")),
]
"""The cell that detects each mutation."""


@pytest.mark.parametrize(("mutation", "case", "cell"), SEEN_BY)
def test_mutation_of_the_recovery_is_seen_by_a_cell(
    mutation: Callable[[pytest.MonkeyPatch], None], case: Case, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_and_recover(case, cell)
    mutation(monkeypatch)
    for each in (points_after, branch_after_time_out):  # of processes without the mutation
        monkeypatch.setattr(sys.modules[__name__], each.__name__, each.__wrapped__)
    with pytest.raises(AssertionError) as seen:
        die_and_recover(case, cell)
    assert "is not reached" not in str(seen.value)
    assert "fenced before anything is read" not in str(seen.value), "the outcome is wrong, not the order alone"
