"""processing/journal/choices_journal.py: the choices of an alts are committed before its functions run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kstreams_py as ks
from kstreams_py.errors import Abortable, OutcomeUnknown, TopicError
from kstreams_py.graph.guarantees import Durability
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.journal import choices_journal
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.records import TopicPartition
from kstreams_py.testing import TestDriver
from tests.unit.fakes import Read
from tests.unit.guarantee import A0, ALO, B0, EO, Bench, choosing, chosen

# Truth 2: a late request.


def test_producer_tainted_while_choices_are_journaled_is_replaced_before_the_outputs() -> None:
    bench = Bench(alts=True)
    bench.cluster.faults.inject("commit_transaction", late=6.0)
    bench.guarantee.prepare(choosing(("a", 0)))
    bench.write()
    bench.clock.advance(6.5)
    assert (bench.visible, bench.saved) == ([], {A0: 0})


# Truth 4: the group.


def test_choices_of_a_member_that_missed_a_rebalance_are_not_journaled() -> None:
    """They would overwrite the choices of the worker that holds the partitions now."""
    bench = Bench(alts=True)
    bench.miss_rebalance()
    with pytest.raises(Abortable):
        bench.guarantee.prepare(choosing(("a", 3)))
    assert (choices_of(bench), bench.saved) == ([], {})


# The choices of alts.


def choices_of(bench: Bench) -> list[tuple[int, Choices]]:
    assert bench.journal is not None
    return [(m.partition(), Choices.decode(m.value() or b"")) for m in bench.cluster.records(bench.journal)]


def test_alts_choices_are_committed_before_the_functions_run() -> None:
    bench = Bench(alts=True)
    bench.guarantee.prepare(choosing(("a", 3), ("b", 1)))
    assert choices_of(bench) == [(0, chosen(("a", 3), ("b", 1)))]
    assert (bench.session.state, bench.saved) == (SessionState.READY, {A0: 3, B0: 1})
    assert bench.take_requests() == ["produce", "send_offsets", "commit_transaction"]
    assert [m.headers() for m in bench.cluster.records(bench.journal or "")] == [[("ks-type", b"alts-choices")]]
    assert bench.read_choices(0) == chosen(("a", 3), ("b", 1))
    assert bench.read_choices(1) == Choices()


def test_alts_choices_are_known_before_the_journal_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of a commit may reach the journal after the answer to the commit."""
    bench = Bench(alts=True)
    bench.guarantee.prepare(choosing(("a", 3)))
    monkeypatch.setattr(bench.cluster, "newest", lambda partition: None)
    bench.recover(Abortable("refused"))
    assert bench.read_choices(0) == chosen(("a", 3))


def test_alts_choices_of_a_partition_that_was_lost_are_read_again() -> None:
    bench = Bench(alts=True)
    bench.guarantee.prepare(choosing(("a", 3)))
    bench.guarantee.lost()
    other = bench.cluster.producer(producer_mode(EO, Durability.COMMITTED), "g.p.1")
    other.init_transactions()
    other.begin_transaction()
    newer = Choices((("b", 9),))
    other.write([(bench.journal or "", newer.encode(), None, 0, None, None, 0, None)])
    other.commit_transaction()
    assert bench.read_choices(0) == newer


def test_alts_choices_are_journaled_after_the_open_transaction_is_committed() -> None:
    bench = Bench(alts=True)
    bench.write()
    bench.guarantee.prepare(choosing(("a", 1)))
    opened, journaled = ["produce", "send_offsets"], ["produce", "send_offsets"]
    assert bench.take_requests() == [*opened, "commit_transaction", *journaled, "commit_transaction"]
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})


def test_alts_choices_of_several_partitions_are_journaled_in_one_transaction() -> None:
    bench = Bench(alts=True)
    first, second = choosing(("a", 1)), choosing(("b", 2), partition=1)
    both = Taken([*first.steps, *second.steps], first.choices | second.choices)
    bench.guarantee.prepare(both)
    assert choices_of(bench) == [(0, chosen(("a", 1))), (1, chosen(("b", 2)))]
    assert bench.take_requests() == ["produce", "produce", "send_offsets", "commit_transaction"]


def test_alts_that_follows_saved_choices_journals_nothing() -> None:
    bench = Bench(alts=True)
    bench.write()
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    assert (bench.take_requests(), bench.guarantee.busy) == (["produce"], True)


def test_alts_choices_with_an_unknown_outcome_are_read_after_recovery() -> None:
    bench = Bench(alts=True)
    bench.cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=True)
    with pytest.raises(OutcomeUnknown) as caught:
        bench.guarantee.prepare(choosing(("a", 3)))
    bench.recover(caught.value)
    assert bench.read_choices(0) == chosen(("a", 3))  # the commit was carried out: the next steps must follow it


def test_processors_without_a_journal_have_no_choices() -> None:
    for bench in (Bench(), Bench(ALO, alts=True)):
        bench.guarantee.prepare(choosing(("a", 3)))
        assert (bench.choices, bench.take_requests()) == (None, [])


def test_journal_is_truncated_at_intervals_up_to_its_newest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices_journal, "JOURNAL_TRUNCATED_EVERY", 3)
    bench = Bench(alts=True)
    kept = []
    for number in range(7):
        bench.guarantee.prepare(choosing(("a", number)))
        kept.append([choices.runs[0][1] for _, choices in choices_of(bench)])
    assert kept == [[0], [0, 1], [2], [2, 3], [2, 3, 4], [5], [5, 6]]


LEFT = 4
"""The most records that stay: the choices after which the older ones are deleted, and the newest before them."""


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestDriver]:
    """An alts with two tasks, whose journals are cut after 3 of their choices."""
    monkeypatch.setattr(choices_journal, "JOURNAL_TRUNCATED_EVERY", 3)
    graph = ks.Graph("g")
    graph.alts(graph.topic("a"), graph.topic("b"), to=graph.topic("out"), id="p")(lambda value: value)
    with TestDriver(graph, partitions=2) as driver:
        yield driver


def choose(driver: TestDriver, count: int, partition: int) -> None:
    for _ in range(count):
        driver.send("a", b"value", partition=partition)
        driver.run()


def kept(driver: TestDriver) -> list[int]:
    """How many records of each task its journal has."""
    numbers = [m.partition() for m in driver.cluster.records("__ks.g.p.journal")]
    return [numbers.count(0), numbers.count(1)]


def test_journals_of_workers_that_start_again_before_they_delete_stay_bounded(merging: TestDriver) -> None:
    for number in range(12):
        choose(merging, 2, partition=0)
        assert kept(merging)[0] <= LEFT, number
        merging.crash()
        merging.advance(60.0)
        merging.restart()
    assert len(merging.values("out")) == 24


def test_journal_of_a_task_with_few_choices_is_cut_beside_one_with_many(merging: TestDriver) -> None:
    for number in range(12):
        choose(merging, 2, partition=0)
        choose(merging, 1, partition=1)
        assert max(kept(merging)) <= LEFT, number
    assert len(merging.values("out")) == 36


def test_journal_that_was_emptied_by_others_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices_journal, "JOURNAL_TRUNCATED_EVERY", 1)
    bench = Bench(alts=True)
    monkeypatch.setattr(bench.cluster, "newest", lambda partition: None)
    bench.guarantee.prepare(choosing(("a", 0)))
    assert (len(choices_of(bench)), "truncate" in bench.take_requests()) == (1, False)


def test_journal_of_a_newer_version_is_refused_with_the_remedy() -> None:
    bench = Bench(alts=True)
    assert bench.journal is not None
    bench.cluster.append(bench.journal, b"\x03", partition=1)
    with pytest.raises(TopicError) as caught:
        bench.read_choices(1)
    assert str(caught.value) == (
        "__ks.g.p.journal[1]@0 is not a record of a journal: it starts with b'\\x03', not with a version up to "
        "b'\\x02': run the newer release of kstreams_py that wrote it; or, if another program did (`kafka-acls --list "
        "--topic __ks.g.p.journal` shows who may write there): stop all workers, and delete the records of this "
        "partition before offset 1 (`kafka-delete-records`): the choices of steps that are not committed are lost, and "
        "these may read their inputs in another order"
    )
    bench.cluster.truncate(TopicPartition(bench.journal, 1), 1)
    assert bench.read_choices(1) == Choices()
