"""kafka/leftovers.py: what hangs of an earlier producer is waited for, and then everything is there once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kstreams_py.errors import Retriable
from kstreams_py.kafka.leftovers import Leftovers
from kstreams_py.records import TopicPartition
from kstreams_py.testing.memory_records import POSITIONS
from tests.unit.plant import A0, Crash, Plant, numbers

X0, DEAD0 = TopicPartition("x", 0), TopicPartition("dead", 0)
REMEDY = (
    "is open on {places}, its coordinator will not end it, and the next one would commit what it has written: nothing "
    "is written until you end it by the commands that `kstreams transactions find-hanging --topic x "
    "--bootstrap-servers 127.0.0.1:9092` prints"
)


def die_at_commit(plant: Plant, *places: TopicPartition, applied: bool, transaction: int = 1) -> None:
    """A worker dies at a commit; these partitions never get the marker of its transaction."""
    plant.cluster.faults.inject("commit_transaction", nth=transaction, error=Crash(), applied=applied)
    plant.cluster.faults.skip_markers(*places)
    plant.crash()
    plant.cluster.clock.advance(60.0)  # type: ignore[attr-defined]  # the coordinator ends it
    plant.cluster.ends([X0])
    plant.cluster.faults.skip_markers()


def run_until_told(plant: Plant, then: Callable[[], None], turns: int = 20) -> None:
    """Runs a worker that writes nothing; then a person ends what hangs, and it runs until it is idle."""
    worker = plant.worker()
    worker.start()
    before = plant.out(), plant.saved
    for _ in range(turns):
        worker.run_turn()
    assert (plant.out(), plant.saved) == before
    assert worker.counters.records_in == 0
    then()
    plant.run(worker)


@pytest.mark.parametrize(("kind", "inputs"), [("map", "a"), ("join", "ab"), ("alts", "ab")])
@pytest.mark.parametrize("applied", [False, True], ids=["undecided", "committed"])
def test_exactly_once_output_that_hangs_is_waited_for_and_is_there_once(
    kind: str, inputs: str, applied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plant = Plant(kind)
    for topic in inputs:
        plant.feed(topic, "1", "2", "3")
    last = 2 if kind == "alts" else 1  # that of the outputs: choices are committed before
    die_at_commit(plant, X0, applied=applied, transaction=last)
    hidden = plant.out()
    run_until_told(plant, lambda: plant.cluster.faults.end_hanging("g.p.0", X0, commits=applied))
    written = {"map": ["1", "2", "3"], "join": ["11", "22", "33"], "alts": ["1", "2", "3"] * 2}[kind]
    assert (hidden, sorted(plant.out())) == ([], sorted(written))
    told = "a transaction of g.p.0 " + REMEDY.format(places="x[0] from offset 0")
    assert any(told in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def test_exactly_once_without_the_look_output_that_hangs_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the look is for: the marker of the next transaction commits the aborted one in this partition."""
    monkeypatch.setattr(Leftovers, "require_none", lambda _: None)
    plant = Plant()
    plant.feed("a", "1", "2", "3")
    die_at_commit(plant, X0, applied=False)
    plant.run()
    assert plant.out() == ["1", "2", "3"] * 2


def test_exactly_once_dead_letter_that_hangs_is_waited_for_and_is_there_once() -> None:
    def refuse(value: bytes) -> bytes:
        raise ValueError(value)

    plant = Plant(function=refuse)
    plant.feed("a", "1", "2")
    die_at_commit(plant, DEAD0, applied=False)
    run_until_told(plant, lambda: plant.cluster.faults.end_hanging("g.p.0", DEAD0, commits=False))
    assert plant.dead_letter_count == 2


def test_exactly_once_slot_that_lost_a_partition_does_not_commit_its_offsets() -> None:
    """Slot 0 dies with offsets of both partitions; it starts again and has one of them: its marker would move both."""
    plant = Plant()
    plant.feed("a", *numbers(0, 3), partition=0)
    plant.feed("a", *numbers(3, 6), partition=1)
    die_at_commit(plant, POSITIONS, applied=False)
    other = plant.worker(slot=1)
    other.start()
    worker = plant.worker(slot=0)
    worker.start()
    for _ in range(20):
        other.run_turn()
        worker.run_turn()
    found = plant.cluster.hanging("g.p.0", [], "g.p")
    assert [(str(tp), each.hangs) for tp, each in found.items()] == [("__consumer_offsets[0]", True)]
    assert (plant.out(), plant.saved, worker.counters.commits) == ([], {}, 0)
    plant.cluster.faults.end_hanging("g.p.0", POSITIONS, commits=False)
    for _ in range(50):
        other.run_turn()
        worker.run_turn()
    assert (sorted(plant.out()), plant.saved) == (numbers(0, 6), {A0: 3, TopicPartition("a", 1): 3})


@pytest.mark.parametrize("transaction", [1, 2, 3], ids=["snapshot", "outputs' attempt", "outputs"])
def test_journal_that_hangs_and_outputs_that_hang_are_waited_for_and_are_there_once(transaction: int) -> None:
    plant = Plant(persistence="journal")
    assert plant.journal is not None
    plant.feed("a", "1", "2", "3")
    hangs = X0 if transaction == 3 else TopicPartition(plant.journal, 0)
    writer = "g.p.0" if transaction == 3 else "g.p.0.journal"
    die_at_commit(plant, hangs, applied=False, transaction=transaction)
    run_until_told(plant, lambda: plant.cluster.faults.end_hanging(writer, hangs, commits=False))
    assert plant.out() == ["1", "2", "3"]


def test_transactions_that_others_have_open_are_not_waited_for() -> None:
    plant = Plant()
    plant.feed("a", "1")
    other = plant.worker(slot=7)
    other.committer.start()
    session: Any = other.committer.session
    session.open()
    session.producer.write([("x", b"open", None, 0, None, None, 0, None)])
    session.producer.flush()
    plant.run()
    assert plant.saved == {A0: 1}


def test_look_without_an_answer_is_repeated_before_any_function_is_called() -> None:
    calls: list[bytes] = []

    def note(value: bytes) -> bytes:
        calls.append(value)
        return value

    plant = Plant(function=note)
    plant.feed("a", "1", "2")
    for nth in (1, 2, 3):
        plant.cluster.faults.inject("hanging", nth=nth, error=Retriable("no answer"), applied=False)
    plant.run(idle=10)
    assert (calls, plant.out()) == ([b"1", b"2"], ["1", "2"])
