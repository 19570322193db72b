"""The grid: a processor of each kind dies at each point of a delivery; the delivery happens once, by the branch named.

The crash points and the branches are in tests/crash_grid.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import kstreams_py as ks
from kstreams_py.errors import Replaced
from kstreams_py.processing.choices import Choices
from kstreams_py.processing.journal import recovery
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.journal.journaled import Journaled
from kstreams_py.processing.journal.records import Place
from kstreams_py.processing.journal.recovery import Found
from kstreams_py.processing.worker import Worker
from kstreams_py.records import Positions, TopicPartition
from tests.crash_grid import ABSENT, Case, branch_after, cases, cells
from tests.simulation.grid import FROZEN_SECONDS, Grid, Strike

SNAPSHOT, CHOICE = 0, 1
"""Transactions of the journal before the function."""

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
        "CP01": (opened[SNAPSHOT:], "dies"),
        "CP02": (saved[SNAPSHOT:], "dies late"),
        "CP03": (saved[SNAPSHOT:], "dies after"),
        "CP04": ([read], "dies"),
        "CP05": (between("decode", read + 1, called), "dies"),
        "CP06": (opened[CHOICE:], "dies"),
        "CP07": (saved[CHOICE:], "dies late"),
        "CP08": (saved[CHOICE:], "dies after"),
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
        "CP29": (attempts, "replaced"),
        "CP30": (commits, "frozen"),
    }[cell]
    return (points[found[0]], points[: found[0] + 1].count(points[found[0]]), fault) if found else None


def die_and_recover(case: Case, cell: str, attempt: int) -> None:
    """Lets the nth attempt die at a cell, those before in the function; then compares all that is there."""
    grid, calm = Grid(case), Grid(case)
    for _ in range(attempt - 1):
        grid.run(IN_FUNCTION)
        calm.run(IN_FUNCTION)
    undisturbed = calm.run()
    assert undisturbed.error is None
    strike = strike_at(cell, undisturbed.points)
    if strike is None:
        assert cell in ABSENT, f"{cell} is not reached"
        assert attempt > 1 or case.journal is None, f"{cell} is not reached"
        return
    struck, sets = grid.run(strike), 1
    if case.is_alts:
        grid.feed(("a",))  # an input that is fetched first is ready now: what was chosen is read all the same
        sets = 2
    called, last = len(grid.hashes), grid.run()
    assert (last.error, grid.is_delivered) == (None, True)
    starts = STARTS if case.journal else STARTS[:1]
    assert max(map(last.points.index, starts)) < last.points.index("committed"), "fenced before anything is read"
    assert grid.outputs() == {name: sets if name in case.written else 0 for name in ("x", "y", "dead")}
    assert len(grid.digests()) == (sets if case.written else 0)
    assert len(dict.fromkeys(grid.hashes)) == sets, "each set has one delivery hash"
    if cell == "CP29":
        assert isinstance(struck.error, Replaced), "the process that woke up ends"
    elif cell == "CP30":
        assert (struck.error, grid.snapshots) == (None, sets), "the process that woke up goes on"
        assert grid.took_over_in < FROZEN_SECONDS, "its transaction was not waited for"
    elif case.journal is not None:
        assert (last.branch, grid.snapshots) == (branch_after(cell, case, attempt), sets)
        if case.is_alts and called and last.branch.endswith(("1c", "3b")):
            assert grid.hashes[called] == grid.hashes[0], "an alts makes its choice again"


@pytest.mark.parametrize(
    ("journal", "cluster", "count"),
    [(ks.Journal(1), "", 622), (None, "", 622), (ks.Journal(1), "other", 594)],
    ids=["journal", "transaction", "two clusters"],
)
@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_delivery_happens_once_whatever_point_its_process_dies_at(
    attempt: int, journal: ks.Journal | None, cluster: str, count: int
) -> None:
    tried = 0
    for case in cases(journal, cluster):
        for cell in cells(case):
            try:
                die_and_recover(case, cell, attempt)
            except AssertionError as error:
                raise AssertionError(f"{case}, {cell}, attempt {attempt}: {error}") from error
            tried += 1
    assert tried == count


# Mutations: each removes one thing that the recovery does, and a cell detects it.

ALTS = Case("alts", "output", errors=True, journal=ks.Journal(1))
MAP = Case("map", "output", errors=True, journal=ks.Journal(1))
ELSEWHERE = replace(MAP, cluster="other")


def no_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveryJournal, "recover", lambda self, positions: self.forget() or (positions, {}))


def no_snapshot_in_force(patch: pytest.MonkeyPatch) -> None:
    """A retry takes another snapshot."""
    recover = DeliveryJournal.recover

    def recover_and_forget(self: DeliveryJournal, positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        recovered = recover(self, positions)
        self.snapshots.clear()
        return recovered

    patch.setattr(DeliveryJournal, "recover", recover_and_forget)


def no_pin(patch: pytest.MonkeyPatch) -> None:
    recover = DeliveryJournal.recover

    def recover_without_choices(self: DeliveryJournal, positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        return recover(self, positions)[0], {}

    patch.setattr(DeliveryJournal, "recover", recover_without_choices)


def fences_after_the_recovery(patch: pytest.MonkeyPatch) -> None:
    rewind = Worker.rewind

    def rewind_then_start(self: Worker) -> None:
        if not self.committer.session.has_producer:
            self._committed.read(self._assigned)
            self.committer.start()
        rewind(self)

    patch.setattr(
        Worker,
        "start",
        lambda self: self.consumer.subscribe(
            [t.name for t in self.processor.inputs], self._on_assigned, self._on_revoked, self._on_lost
        ),
    )
    patch.setattr(Worker, "rewind", rewind_then_start)


def attempt_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The outputs are committed before the attempt is durable."""

    commit_in_order = Journaled._commit

    def commit(self: Journaled) -> None:
        writing = {part.partition for part in self._parts if part.outputs}
        if not writing:
            return commit_in_order(self)
        self._send()
        self._call(lambda producer: producer.flush())
        positions = self._uncommitted(writing)
        self._call(lambda producer: producer.send_offsets(positions, self._consumer))
        self._call(lambda producer: producer.commit_transaction())
        self._ledger.commit(positions)
        self._record_attempts({part.partition: self._describe(part) for part in self._parts}, writing)
        self._deliveries.deliver(writing)
        return None

    patch.setattr(Journaled, "_commit", commit)


def reads_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """An attempt counts as committed."""
    patch.setattr(recovery, "_is_committed", lambda *_: True)


def takes_any_record_for_the_output(patch: pytest.MonkeyPatch) -> None:
    """The hash at the place of an output is not compared."""
    look = DeliveryJournal._look

    def look_without_hash(self: DeliveryJournal, tp: TopicPartition, place: Place, start: int, end: int) -> Found:
        found = look(self, tp, place, start, end)
        return Found.SAME if found is Found.OTHER else found

    patch.setattr(DeliveryJournal, "_look", look_without_hash)


def no_choice_before_the_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journaled, "_unrecorded", lambda *_: {})


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """The transaction of a worker that had the task before is waited for."""
    patch.setattr(DeliveryJournal, "_fence", lambda *_: None)


def no_record_beside_outputs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journaled, "_confirm", lambda *_: None)


def offsets_decide_between_clusters(patch: pytest.MonkeyPatch) -> None:
    """The committed offsets, which follow a commit on another cluster, decide whether that took place."""
    patch.setattr(DeliveryJournal, "_is_confirmed", lambda *_, **__: None)


def goes_on_at_the_committed_offsets(patch: pytest.MonkeyPatch) -> None:
    """What was delivered to another cluster is read again."""
    patch.setattr(recovery, "_same", lambda *_: {})


@pytest.mark.parametrize(
    ("mutation", "case", "cell"),
    [
        (no_recovery, MAP, "CP09"),
        (no_snapshot_in_force, MAP, "CP09"),
        (no_pin, ALTS, "CP09"),
        (fences_after_the_recovery, MAP, "CP09"),
        (attempt_after_the_commit, MAP, "CP17"),
        (reads_nothing_back, MAP, "CP15"),
        (takes_any_record_for_the_output, MAP, "CP15"),
        (no_choice_before_the_function, ALTS, "CP09"),
        (no_fence, ELSEWHERE, "CP30"),
        (no_record_beside_outputs, ELSEWHERE, "CP17"),
        (offsets_decide_between_clusters, ELSEWHERE, "CP17"),
        (goes_on_at_the_committed_offsets, ELSEWHERE, "CP17"),
    ],
)
def test_mutation_of_the_recovery_is_seen_by_a_cell(
    mutation: Callable[[pytest.MonkeyPatch], None], case: Case, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_and_recover(case, cell, 2 if cell == "CP09" else 1)
    mutation(monkeypatch)
    with pytest.raises(AssertionError):
        die_and_recover(case, cell, 2 if cell == "CP09" else 1)
