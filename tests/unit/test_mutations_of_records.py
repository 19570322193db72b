"""What keeps records of others from stopping a graph or fooling it, taken away in turn: a test must fail."""

from __future__ import annotations

from typing import Any

import pytest

from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.operations.dead_letters.originals import Originals
from kstreams_py.records import KeptRecord, Message, Unreadable
from kstreams_py.steps.dead_letters import DeadLetters
from kstreams_py.testing import memory_records
from tests.hostile import records
from tests.unit import test_dead_letters, test_operations

ROW = records.CARRIED["a header whose name is not UTF-8"]


def test_mutation_that_drops_headers_that_cannot_be_read_changes_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(m: Message, _: object) -> Message:
        place = m.topic(), m.partition(), m.offset()
        return Unreadable(KeptRecord(place, m.timestamp(), (m.key(), m.value()), ()), cut="", headers_fault="")

    monkeypatch.setattr(memory_records, "with_bad_headers", drop)
    with pytest.raises(AssertionError):
        assert records.outcome(records.map_with(records.same), ROW[0], Guarantee.EXACTLY_ONCE) == ROW[1]


def test_mutation_that_fits_no_dead_letter_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(_: DeadLetters, lead: Message, digest: bytes, *, least: bool) -> Any:
        del digest, least
        return lead.key(), lead.timestamp()[1], []

    monkeypatch.setattr(DeadLetters, "_fitted", keep)
    with pytest.raises(AssertionError):
        test_dead_letters.test_least_dead_letter_has_nothing_that_can_be_cut()


BELIEVED = ("value", "no value", "key", "headers", "timestamp")


def test_mutation_that_believes_what_a_dead_letter_holds_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Originals, "find", lambda _, letter, __: letter.inputs)
    with pytest.raises(BaseExceptionGroup) as raised:
        test_operations.test_forged_letter_stays_and_the_record_that_it_names_is_replayed()
    assert {f"in the case { ({'forged': name}) }" for name in BELIEVED} <= {
        error.__notes__[-1] for error in raised.value.exceptions
    }


def test_mutation_that_believes_the_hash_of_a_dead_letter_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Originals, "_has_its_hash", lambda *_: True)
    with pytest.raises(AssertionError):
        test_operations.test_letter_with_the_hash_of_another_record_stays()


def test_mutation_that_replays_what_workers_will_read_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Originals, "_not_delivered", lambda *_: "")
    with pytest.raises(BaseExceptionGroup, match="3 of 3 cases fail"):
        test_operations.test_letter_of_a_record_that_the_workers_have_not_read_stays_until_they_have()
