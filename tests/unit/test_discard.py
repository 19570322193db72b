"""Dead letters are discarded, on a cluster in memory: a discard dies at every request, and nothing is half done."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from kstreams_py.errors import Abortable, OutcomeUnknown, Replaced, Retriable
from kstreams_py.kafka.foreign_records import parse_json
from kstreams_py.operations.dead_letters import transactions as module
from kstreams_py.operations.dead_letters.discard import Discard
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.dead_letters.transactions import ReplayTransactions
from kstreams_py.processing.dead_letters.letters import LetterSelection
from kstreams_py.processing.dead_letters.marks import BEGUN
from kstreams_py.records import Step
from tests.tables import each_case
from tests.unit.test_operations import EVERYTHING, Crash, Shop, declare_map, failed_shop, watched

MARKS = "__ks.shop.replayed"


def discard(shop: Shop, selection: LetterSelection = EVERYTHING, reason: str = "a test") -> int:
    found = Discard(shop.graph, shop.environment, selection, reason)
    found.run()
    return len(found)


def marked(shop: Shop) -> Counter[bytes | None]:
    """How many marks each dead letter has in their topic, by its key."""
    return Counter(m.key() for m in shop.cluster.records(MARKS) if m.key() != BEGUN)


def reasons(shop: Shop) -> list[str | None]:
    return [mark.reason for mark in LetterReader(shop.graph, shop.environment).marks().values()]


@each_case("applied", [True, False])
def test_discard_that_dies_at_any_request_marks_all_or_none_and_none_twice(applied: bool) -> None:
    shop = failed_shop("map")
    with watched(shop) as made:
        assert discard(shop) == 2
    assert {"init_transactions", "produce", "commit_transaction", "read"} <= set(made)
    for number in range(1, len(made) + 1):
        shop = failed_shop("map")
        with watched(shop, number, applied=applied), pytest.raises(Crash):
            discard(shop)
        left = len(shop.waiting())
        assert left in (0, 2), (number, made[number - 1])
        assert discard(shop) == left
        assert (shop.waiting(), sorted(marked(shop).values()), reasons(shop)) == ([], [1, 1], ["a test"] * 2)
        assert (len(shop.letters()), shop.outputs("priced"), shop.calls) == (2, [], [])


def test_mutation_of_a_discard_that_reads_no_marks_marks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ReplayTransactions._read_marks

    def read_none(self: ReplayTransactions) -> None:
        read(self)
        self.marks = {}

    monkeypatch.setattr(ReplayTransactions, "_read_marks", read_none)
    with pytest.raises(BaseExceptionGroup, match="3 of 3 cases fail"):
        test_discard_whose_request_fails_goes_on_and_marks_once()


@each_case("error", [Retriable("away"), Abortable("failed"), OutcomeUnknown("no answer")])
@each_case("request_name", ["produce", "add_partition", "commit_transaction"])
def test_discard_whose_request_fails_goes_on_and_marks_once(request_name: str, error: Exception) -> None:
    if request_name == "commit_transaction":
        error = OutcomeUnknown("no answer")  # a commit is never Retriable, nor carried out and Abortable
    shop = failed_shop("map")
    shop.cluster.faults.inject(request_name, nth=2, error=error, applied=True)
    assert discard(shop) == 2
    assert (shop.waiting(), sorted(marked(shop).values())) == ([], [1, 1])


def test_discard_of_many_takes_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARKS_MAX", 2)
    shop = Shop(declare_map)
    shop.fail(*"abcde")
    with watched(shop) as made:
        assert discard(shop) == 5
    assert made.count("commit_transaction") == 1 + 3  # the first is that of the record by which it begins
    assert (shop.waiting(), len(marked(shop))) == ([], 5)


def test_replay_leaves_discarded_letters_out_counts_them_and_takes_them_if_asked() -> None:
    shop = failed_shop("map")
    first = shop.letters()[0].place
    assert discard(shop, LetterSelection(partition=0, offset=first.offset)) == 1
    planned, done = shop.plan(), shop.replay()
    assert [(each.counts, each.summary.discarded) for each in (planned, done)] == [({"replayed": 1}, 1)] * 2
    assert ([value for value, _ in shop.outputs("priced")], shop.waiting()) == ([b"B"], [])
    reader = LetterReader(shop.graph, shop.environment)
    assert first not in reader.waiting(EVERYTHING, reader.marks()).places
    for counts in ({"replayed": 1}, {}):
        taken = shop.replay(takes_discarded=True)
        assert (taken.counts, taken.summary.discarded) == (counts, 0)
    assert ([value for value, _ in shop.outputs("priced")], reasons(shop)) == ([b"B", b"A"], [None, None])


def test_discard_while_a_replay_runs_ends_it_and_no_letter_is_both() -> None:
    shop = failed_shop("map")
    call = shop.call

    def discarding(value: Any, step: Step) -> None:
        call(value, step)
        if len(shop.calls) == 1:
            assert discard(shop) == 2

    shop.call = discarding  # type: ignore[method-assign]
    with pytest.raises(Replaced, match="another replay or discard of graph 'shop' has begun"):
        shop.replay()
    assert (shop.outputs("priced"), reasons(shop)) == ([], ["a test"] * 2)


def test_mark_of_a_discard_is_one_for_a_release_that_knows_no_reasons() -> None:
    shop = failed_shop("map")
    discard(shop)
    values = [json.loads(m.value() or b"") for m in shop.cluster.records(MARKS) if m.key() != BEGUN]
    assert values == [
        {"processor": "shop.price", "delivery_hash": letter.delivery_hash.hex(), "discarded": "a test"}
        for letter in shop.letters()
    ]
    for m in shop.cluster.records(MARKS)[1:]:
        match parse_json(m.value() or b""):  # the rule of that release
            case {"processor": str(), "delivery_hash": str()}:
                pass
            case other:
                raise AssertionError(other)
