"""testing/history.py and checker.py: for each anomaly a history made by hand, beside a clean one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from threading import Thread
from types import FrameType

import pytest

from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.records import TopicPartition
from kstreams_py.testing import Anomaly, Expected, History, HistoryError, Kind, MemoryCluster, check, explain
from kstreams_py.testing.events import Assigned, Committed, Fault, Isolation, Outcome, Phase, ReadOut, Sent, Transaction
from kstreams_py.testing.events import Read as ReadEvent
from tests.unit.fakes import Read

EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
OUT = Expected("in", to="out")
Row = tuple[int, bytes]
"""Offset and value."""


def rows(topic: str, *found: Row, key: bytes = b"k", partition: int = 0) -> list[Read]:
    """Records of one key in one partition, as a client returns them."""
    return [Read(topic, offset, value, key=key, partition=partition) for offset, value in found]


def send(history: History, topic: str, *values: bytes, transaction: str = "", key: bytes = b"k") -> None:
    """Acknowledged records, without an offset."""
    for value in values:
        history.sent(topic, key, value, transaction=transaction)


def add_final_read(history: History, topic: str, *found: Row, reader: str = "reader", end: int = 100) -> History:
    """Adds a final read of a topic of one partition."""
    history.final_read(reader, topic, rows(topic, *found), {0: end})
    return history


def copy_history(inputs: Iterable[Row], outputs: Iterable[Row]) -> History:
    """A history of the final reads of "in" and "out"."""
    return add_final_read(add_final_read(History(), "in", *inputs), "out", *outputs)


def kinds(anomalies: Iterable[Anomaly]) -> list[Kind]:
    return [anomaly.kind for anomaly in anomalies]


def assert_only(anomalies: list[Anomaly], kind: Kind, sentence: str, evidence: Iterable[type]) -> None:
    """Asserts that this anomaly is the only one."""
    assert [(a.kind, a.sentence) for a in anomalies] == [(kind, sentence)], explain(anomalies)
    assert Counter(map(type, anomalies[0].evidence)) == Counter(evidence)


# Recording.


def one_of_each(history: History) -> History:
    name = history.begun("copier")
    history.sent("in", b"k", b"\xff\x00", place=(0, 7), transaction=name, sender="feeder")
    history.sent("in", None, None, outcome="unknown")
    history.commit_asked(name)
    history.committed(name)
    history.aborted("other")
    history.unknown("third")
    history.assigned("r")
    history.read("r", rows("in", (7, b"\xff\x00")), "read_uncommitted")
    history.read_out("r", "in", {0: 9, 1: 0}, Isolation.UNCOMMITTED)
    history.positions("g.p", {TopicPartition("in", 0): 8})
    history.fault("SIGKILL of slot 0")
    return history


def contents(history: History) -> list[tuple[object, ...]]:
    """Events without their times; names of transactions without the time in them."""
    found = [(type(event), *[getattr(event, field.name) for field in fields(event)[2:]]) for event in history]
    return [tuple(value.split("@")[0] if type(value) is str else value for value in row) for row in found]


EACH = [
    (Transaction, "copier", Phase.BEGUN),
    (Sent, "in", 0, 7, b"k", b"\xff\x00", Outcome.ACKNOWLEDGED, "copier", "feeder"),
    (Sent, "in", -1, -1, None, None, Outcome.UNKNOWN, "", ""),
    (Transaction, "copier", Phase.COMMIT_ASKED),
    (Transaction, "copier", Phase.COMMITTED),
    (Transaction, "other", Phase.ABORTED),
    (Transaction, "third", Phase.UNKNOWN),
    (Assigned, "r"),
    (ReadEvent, "r", Isolation.UNCOMMITTED, "in", 0, 7, b"k", b"\xff\x00"),
    (ReadOut, "r", Isolation.UNCOMMITTED, "in", 0, 9),
    (ReadOut, "r", Isolation.UNCOMMITTED, "in", 1, 0),
    (Committed, "g.p", "in", 0, 8),
    (Fault, "SIGKILL of slot 0"),
]


def test_history_holds_what_was_recorded_in_order() -> None:
    history = one_of_each(History(clock=lambda: 5))
    assert contents(history) == EACH
    assert [event.at for event in history] == sorted({event.at for event in history})
    assert len(history) == len(EACH)


def test_history_read_from_its_file_is_equal(tmp_path: Path) -> None:
    history = one_of_each(History(tmp_path / "while"))
    history.to_file(tmp_path / "after")
    assert list(History.from_files(tmp_path / "while")) == list(history)
    assert list(History.from_files(tmp_path / "after")) == list(history)


def test_histories_of_several_processes_are_merged_in_order(tmp_path: Path) -> None:
    ours = History(tmp_path / "ours")
    ours.fault("before")
    process = multiprocessing.get_context("spawn").Process(target=record_fault, args=(tmp_path / "theirs",))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    ours.fault("after")
    together = History.from_files(*sorted(tmp_path.iterdir(), reverse=True))
    together.fault("last")
    assert [event.what for event in together if isinstance(event, Fault)] == ["before", "theirs", "after", "last"]


def record_fault(path: Path) -> None:
    """Runs in another process, which ends without closing the file, as if it was killed."""
    History(path).fault("theirs")
    os._exit(0)


def test_history_holds_all_events_of_many_threads() -> None:
    history = History()

    def record_faults() -> None:
        for _ in range(1_000):
            history.fault("x")

    threads = [Thread(target=record_faults) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({event.at for event in history}) == 4_000


def test_delivery_callback_records_acknowledgements_and_errors() -> None:
    history = History()
    message = Read("in", 5, b"v", key=b"k", partition=2)
    history.on_delivery("t", "feeder")(None, message)
    history.on_delivery()("timed out", message)
    assert contents(history) == [
        (Sent, "in", 2, 5, b"k", b"v", Outcome.ACKNOWLEDGED, "t", "feeder"),
        (Sent, "in", -1, -1, b"k", b"v", Outcome.UNKNOWN, "", ""),
    ]


def test_transaction_names_are_unique() -> None:
    history = History(clock=lambda: 5)
    assert len({history.begun("p") for _ in range(10)}) == 10


def test_line_cut_off_by_a_kill_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "h"
    History(path).fault("one")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    assert len(History.from_files(path)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "[]",
        '{"at": 1}',
        '{"event": "Fault", "at": 1, "wall": 1.0}',
        '{"event": "Fault", "at": 1, "wall": 1.0, "what": "x", "more": 1}',
        '{"event": "Fault", "at": "1", "wall": 1.0, "what": "x"}',
        '{"event": "Fault", "at": 1, "wall": 1.0, "what": 5}',
        '{"event": "Event", "at": 1, "wall": 1.0}',
        '{"event": "Transaction", "at": 1, "wall": 1.0, "transaction": "t", "phase": "over"}',
    ],
)
def test_line_that_is_no_event_is_refused_with_its_line_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "h"
    History(path).fault("one")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(HistoryError, match=rf"{path}:2 is not an event of a history"):
        History.from_files(path)


# Anomalies: each broken history beside a clean one.


def test_clean_histories_have_no_anomalies() -> None:
    history = copy_history([(0, b"1"), (1, b"2"), (4, b"1")], [(0, b"1"), (2, b"2"), (3, b"1")])
    assert check(history, [OUT]) == []


def test_events_may_be_given_in_any_order() -> None:
    history = in_transaction(History.committed, places=True)
    assert check(reversed(list(history))) == []


def test_lost_output_is_found() -> None:
    clean = copy_history([(0, b"1"), (1, b"2")], [(0, b"1"), (1, b"2")])
    broken = copy_history([(0, b"1"), (1, b"2")], [(0, b"1")])
    assert check(clean, [OUT]) == []
    sentence = "out 'k': '2' is there 0 times, and must be 1 times"
    assert_only(check(broken, [OUT]), Kind.LOST, sentence, [ReadEvent, ReadOut])


def test_lost_output_among_equal_ones_is_found() -> None:
    broken = copy_history([(0, b"1"), (1, b"1")], [(0, b"1")])
    sentence = "out 'k': '1' is there 1 times, and must be 2 times"
    assert_only(check(broken, [OUT]), Kind.LOST, sentence, [ReadEvent, ReadEvent, ReadOut])


@pytest.mark.parametrize(("outcome", "lost"), [("acknowledged", 1), ("unknown", 0), ("failed", 0)])
def test_only_an_acknowledged_record_can_be_lost(outcome: str, lost: int) -> None:
    history = History()
    history.sent("in", b"k", b"1", outcome=outcome)
    assert kinds(check(add_final_read(history, "in"))) == [Kind.LOST] * lost


def test_lost_record_is_found_if_the_final_read_is_empty() -> None:
    history = History()
    history.sent("in", b"k", b"1", place=(0, 0))
    add_final_read(history, "in", end=1)
    assert_only(check(history), Kind.LOST, "in 'k': '1' is there 0 times, and must be 1 times", [Sent, ReadOut])


def test_lost_transaction_is_found_if_its_commit_was_acknowledged() -> None:
    for phase, expected in {"committed": [Kind.LOST] * 2, "unknown": [], "aborted": []}.items():
        history = History()
        name = history.begun("p")
        send(history, "in", b"1", b"2", transaction=name)
        history.commit_asked(name)
        getattr(history, phase)(name)
        assert kinds(check(add_final_read(history, "in"))) == expected, phase


def test_duplicate_output_is_found() -> None:
    broken = copy_history([(0, b"1"), (1, b"2")], [(0, b"1"), (1, b"2"), (2, b"2")])
    sentence = "out 'k': '2' is there 2 times, and 1 led to it"
    assert_only(check(broken, [OUT]), Kind.DUPLICATE, sentence, [ReadEvent, ReadEvent, ReadEvent])


def test_record_read_more_often_than_sent_is_a_duplicate() -> None:
    for number, expected in {1: [Kind.DUPLICATE], 2: []}.items():
        history = History()
        send(history, "in", *[b"1"] * number)
        assert kinds(check(add_final_read(history, "in", (0, b"1"), (1, b"1")))) == expected


def test_record_that_was_read_again_at_its_offset_is_no_duplicate() -> None:
    history = copy_history([(0, b"1")], [(0, b"1")])
    history.read("second", rows("out", (0, b"1")))
    history.assigned("second")
    history.read("second", rows("out", (0, b"1")))
    assert check(history, [OUT]) == []


def test_foreign_record_is_found() -> None:
    broken = copy_history([(0, b"1")], [(0, b"1"), (1, b"9")])
    assert_only(check(broken, [OUT]), Kind.FOREIGN, "out 'k': '9' was read, and nothing led to it", [ReadEvent])


def test_record_under_another_key_is_lost_and_foreign() -> None:
    history = add_final_read(History(), "in", (0, b"1"))
    history.final_read("reader", "out", rows("out", (0, b"1"), key=b"other"), {0: 1})
    assert kinds(check(history, [OUT])) == [Kind.LOST, Kind.FOREIGN]


def in_transaction(end: Callable[[History, str], None], *, places: bool) -> History:
    """A history of one transaction with two records, both of which are read."""
    history = History()
    name = history.begun("p")
    for offset, value in enumerate([b"1", b"2"]):
        history.sent("in", b"k", value, place=(0, offset) if places else (-1, -1), transaction=name)
    history.commit_asked(name)
    end(history, name)
    return add_final_read(history, "in", (0, b"1"), (1, b"2"))


@pytest.mark.parametrize("places", [True, False])
def test_aborted_read_is_found(places: bool) -> None:
    assert check(in_transaction(History.committed, places=places)) == []
    assert check(in_transaction(History.unknown, places=places)) == []
    found = check(in_transaction(History.aborted, places=places))
    assert kinds(found) == [Kind.ABORTED_READ] * 2
    assert found[0].sentence == "in 'k': '1' was read, and its transaction was aborted, or its sending failed"
    assert Counter(map(type, found[0].evidence)) == Counter([Sent, ReadEvent, *[Transaction] * 3])


def test_aborted_read_is_found_if_the_record_was_sent_again() -> None:
    for aborted_is_read, expected in {False: [], True: [Kind.ABORTED_READ]}.items():
        history = History()
        first, second = history.begun("p"), history.begun("p")
        history.sent("in", b"k", b"1", place=(0, 0), transaction=first)
        history.aborted(first)
        history.sent("in", b"k", b"1", place=(0, 2), transaction=second)
        history.commit_asked(second)
        history.committed(second)
        add_final_read(history, "in", *([(0, b"1")] if aborted_is_read else []), (2, b"1"))
        assert kinds(check(history)) == expected


def test_read_of_a_failed_record_is_an_aborted_read() -> None:
    history = History()
    history.sent("in", b"k", b"1", outcome="failed")
    assert kinds(check(add_final_read(history, "in", (0, b"1")))) == [Kind.ABORTED_READ]


def test_read_uncommitted_reader_may_read_aborted_records() -> None:
    history = History()
    name = history.begun("p")
    send(history, "in", b"1", transaction=name)
    history.read("dirty", rows("in", (0, b"1")), "read_uncommitted")
    history.aborted(name)
    assert check(add_final_read(history, "in")) == []


def test_expected_output_of_an_aborted_transaction_is_an_aborted_read() -> None:
    """The record is the expected one, and its transaction was aborted."""
    history = History()
    name = history.begun("copier")
    send(history, "out", b"1", transaction=name)
    history.aborted(name)
    add_final_read(history, "in", (0, b"1"))
    add_final_read(history, "out", (0, b"1"))
    assert Kind.ABORTED_READ in kinds(check(history, [OUT]))


@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("end", [History.committed, History.unknown])
def test_torn_transaction_is_found(end: Callable[[History, str], None], places: bool) -> None:
    history = History()
    name = history.begun("p")
    for offset, value in enumerate([b"1", b"2"]):
        history.sent("in", b"k", value, place=(0, offset) if places else (-1, -1), transaction=name)
    history.commit_asked(name)
    end(history, name)
    add_final_read(history, "in", (0, b"1"))
    phase = end.__name__
    sentence = f"of transaction {name} ({phase}), 1 records were read and 1 were not"
    assert_only(check(history), Kind.TORN_TRANSACTION, sentence, [*[Transaction] * 3, Sent, Sent, ReadEvent, ReadOut])


def test_torn_transaction_across_topics_is_found() -> None:
    for read, expected in {(): [Kind.TORN_TRANSACTION], ((0, b"2"),): []}.items():
        history = History()
        name = history.begun("p")
        send(history, "a", b"1", transaction=name)
        send(history, "b", b"2", transaction=name)
        history.commit_asked(name)
        history.unknown(name)
        add_final_read(history, "a", (0, b"1"))
        assert kinds(check(add_final_read(history, "b", *read))) == expected


def test_transaction_of_unknown_outcome_that_was_repeated_in_part_is_not_torn() -> None:
    """Without offsets it is unknown which of two equal records was read."""
    history = History()
    first, second = history.begun("p"), history.begun("p")
    send(history, "in", b"1", b"2", transaction=first)
    history.commit_asked(first)
    history.unknown(first)
    send(history, "in", b"1", transaction=second)
    history.commit_asked(second)
    history.committed(second)
    assert check(add_final_read(history, "in", (0, b"1"))) == []


def test_failed_delivery_in_a_committed_transaction_makes_it_torn() -> None:
    history = History()
    name = history.begun("p")
    send(history, "in", b"1", transaction=name)
    history.sent("in", b"k", b"2", outcome="unknown", transaction=name)
    history.commit_asked(name)
    history.committed(name)
    assert kinds(check(add_final_read(history, "in", (0, b"1")))) == [Kind.TORN_TRANSACTION]


def fork(read: ReadEvent) -> list[tuple[str, bytes | None, bytes | None]]:
    assert read.value is not None
    return [("left", read.key, read.value), ("right", read.key, read.value + b"'")]


FORK = Expected("in", to=["left", "right"], outputs=fork)


def test_step_with_some_of_its_outputs_missing_is_torn() -> None:
    for right, expected in {
        ((0, b"1'"), (1, b"2'")): [],
        ((0, b"1'"),): [Kind.TORN_TRANSACTION],
        (): [Kind.TORN_TRANSACTION] * 2,
    }.items():
        history = add_final_read(History(), "in", (0, b"1"), (1, b"2"))
        add_final_read(history, "left", (0, b"1"), (1, b"2"))
        found = check(add_final_read(history, "right", *right), [FORK])
        assert kinds(found) == expected
    assert found[0].sentence == "a step's outputs are there in part: right 'k': \"1'\" is missing"
    assert Counter(map(type, found[0].evidence)) == Counter([ReadEvent, ReadEvent, ReadOut])


def test_step_is_not_torn_by_a_missing_output_that_another_step_shares() -> None:
    """Both steps write the same record to the right; one is missing, and it is unknown whose."""
    same = Expected("in", to=["left", "right"], outputs=lambda r: [("left", r.key, r.value), ("right", r.key, b"same")])
    history = add_final_read(History(), "in", (0, b"1"), (1, b"2"))
    add_final_read(add_final_read(history, "left", (0, b"1"), (1, b"2")), "right", (0, b"same"))
    assert kinds(check(history, [same])) == [Kind.LOST]


def test_step_with_all_of_its_outputs_missing_is_lost_not_torn() -> None:
    history = add_final_read(History(), "in", (0, b"1"))
    add_final_read(add_final_read(history, "left"), "right")
    assert kinds(check(history, [FORK])) == [Kind.LOST] * 2


def test_precommitted_read_is_found() -> None:
    for early, expected in {False: [], True: [Kind.PRECOMMITTED_READ]}.items():
        history = History()
        name = history.begun("p")
        send(history, "in", b"1", transaction=name)
        if early:
            history.read("watcher", rows("in", (0, b"1")))
        history.commit_asked(name)
        if not early:
            history.read("watcher", rows("in", (0, b"1")))
        history.committed(name)
        found = check(add_final_read(history, "in", (0, b"1")))
        assert kinds(found) == expected
    assert found[0].sentence == "in 'k': '1' was read before the commit of its transaction was asked for"
    assert Counter(map(type, found[0].evidence)) == Counter([Sent, ReadEvent, *[Transaction] * 3])


def test_read_of_a_transaction_without_a_commit_request_is_precommitted() -> None:
    """As if its producer was killed."""
    history = History()
    name = history.begun("p")
    send(history, "in", b"1", transaction=name)
    assert kinds(check(add_final_read(history, "in", (0, b"1")))) == [Kind.PRECOMMITTED_READ]


def test_record_sent_in_two_transactions_may_be_read_after_the_first_commit_request() -> None:
    """Without offsets, either send may be the one that was read."""
    history = History()
    first, second = history.begun("p"), history.begun("q")
    for name in (first, second):
        send(history, "in", b"1", transaction=name)
    history.sent("in", b"k", b"1", outcome="failed")
    history.commit_asked(first)
    history.read("watcher", rows("in", (0, b"1")))
    history.commit_asked(second)
    history.committed(first)
    history.aborted(second)
    assert check(add_final_read(history, "in", (0, b"1"))) == []
    history.read("watcher", rows("in", (2, b"1")))
    assert kinds(check(history)) == [Kind.DUPLICATE, Kind.OFFSETS_INCONSISTENT]


@pytest.mark.parametrize("given_up", ["aborted", "failed"])
def test_read_of_a_record_with_only_failed_and_unrequested_sends_is_an_aborted_read(given_up: str) -> None:
    history = History()
    first, second = history.begun("p"), history.begun("q")
    send(history, "in", b"1", transaction=second)
    if given_up == "aborted":
        send(history, "in", b"1", transaction=first)
        history.aborted(first)
    else:
        history.sent("in", b"k", b"1", outcome="failed")
    assert kinds(check(add_final_read(history, "in", (0, b"1")))) == [Kind.ABORTED_READ]


def test_order_broken_within_a_key_is_found() -> None:
    broken = copy_history([(0, b"1"), (1, b"2"), (2, b"3")], [(0, b"2"), (1, b"1"), (2, b"3")])
    sentence = "out 'k': '1' was read after what came later: out 'k': '2'"
    assert_only(check(broken, [OUT]), Kind.ORDER_BROKEN, sentence, [ReadEvent] * 4)


def test_order_is_by_offset_not_by_time_of_reading() -> None:
    history = add_final_read(History(), "in", (0, b"1"), (1, b"2"))
    history.read("second", rows("out", (1, b"2")))
    history.assigned("second")
    history.read("second", rows("out", (0, b"1")))
    history.read_out("second", "out", {0: 2})
    assert check(history, [OUT]) == []


def test_order_between_keys_and_between_partitions_is_free() -> None:
    history = History()
    history.final_read("reader", "in", [Read("in", n, b"%d" % n, key=b"%d" % (n % 2)) for n in range(4)], {0: 4})
    history.final_read(
        "reader", "out", [Read("out", i, b"%d" % n, key=b"%d" % (n % 2)) for i, n in enumerate([1, 3, 0, 2])], {0: 4}
    )
    assert check(history, [OUT]) == []
    history = History()
    for partition, key in enumerate([b"k", b"k"]):
        found = rows("in", (0, b"%d" % partition), key=key, partition=partition)
        history.read("reader", found)
    history.read_out("reader", "in", {0: 1, 1: 1})
    assert check(add_final_read(history, "out", (0, b"1"), (1, b"0")), [OUT]) == []


def test_order_of_one_senders_records_with_one_key_is_checked() -> None:
    for senders, expected in {("p", "p"): [Kind.ORDER_BROKEN], ("p", "q"): []}.items():
        history = History()
        for sender, value in zip(senders, [b"1", b"2"], strict=True):
            history.sent("in", b"k", value, sender=sender)
        assert kinds(check(add_final_read(history, "in", (0, b"2"), (1, b"1")))) == expected


def test_record_of_unknown_outcome_is_left_out_of_the_order() -> None:
    history = History()
    send(history, "in", b"2")
    history.sent("in", b"k", b"1", outcome="unknown")  # the time-out was known only later
    assert check(add_final_read(history, "in", (0, b"1"), (1, b"2"))) == []


def test_order_of_duplicates_is_judged_by_the_first() -> None:
    duplicated = copy_history([(0, b"1"), (1, b"2")], [(0, b"1"), (1, b"2"), (2, b"1"), (3, b"2")])
    assert kinds(check(duplicated, [OUT])) == [Kind.DUPLICATE] * 2
    swapped = copy_history([(0, b"1"), (1, b"2")], [(0, b"2"), (1, b"1"), (2, b"2")])
    assert kinds(check(swapped, [OUT])) == [Kind.DUPLICATE, Kind.ORDER_BROKEN]


def test_order_of_equal_records_is_judged_only_if_none_is_lost() -> None:
    """It is unknown whether the first or the last "1" was lost."""
    history = copy_history([(0, b"1"), (1, b"2"), (2, b"1")], [(0, b"2"), (1, b"1")])
    assert kinds(check(history, [OUT])) == [Kind.LOST]
    history = copy_history([(0, b"1"), (1, b"2"), (2, b"1")], [(0, b"2"), (1, b"1"), (2, b"1")])
    assert kinds(check(history, [OUT])) == [Kind.ORDER_BROKEN]


def test_order_of_a_steps_outputs_is_checked() -> None:
    twice = Expected("in", to="out", outputs=lambda read: [("out", b"k", b"x"), ("out", b"k", b"y")])
    for found, expected in {((0, b"x"), (1, b"y")): [], ((0, b"y"), (1, b"x")): [Kind.ORDER_BROKEN]}.items():
        assert kinds(check(copy_history([(0, b"1")], found), [twice])) == expected


def test_offsets_two_readers_with_different_records_at_one_offset_are_inconsistent() -> None:
    history = copy_history([(0, b"1")], [(0, b"1")])
    history.read("dirty", rows("out", (0, b"9")), "read_uncommitted")
    sentence = "out[0]@0 was read with two contents"
    assert_only(check(history, [OUT]), Kind.OFFSETS_INCONSISTENT, sentence, [ReadEvent, ReadEvent])


def test_offsets_one_reader_with_different_records_at_one_offset_is_inconsistent() -> None:
    history = copy_history([(0, b"1")], [(0, b"1")])
    for value in (b"1", b"9"):
        history.read("second", rows("out", (0, value)))
        history.assigned("second")
    sentence = "out[0]@0 was read with two contents"
    assert_only(check(history, [OUT]), Kind.OFFSETS_INCONSISTENT, sentence, [ReadEvent, ReadEvent])


def test_offsets_that_do_not_increase_within_an_assignment_are_inconsistent() -> None:
    for assigned in (True, False):
        history = copy_history([(0, b"1"), (1, b"2")], [(0, b"1"), (1, b"2")])
        history.read("second", rows("out", (1, b"2")))
        if assigned:
            history.assigned("second")
        history.read("second", rows("out", (0, b"1")))
        found = check(history, [OUT])
        assert kinds(found) == ([] if assigned else [Kind.OFFSETS_INCONSISTENT])
    assert_only(found, Kind.OFFSETS_INCONSISTENT, "second read out[0]@0 after offset 1", [ReadEvent, ReadEvent])


def test_offsets_record_read_twice_within_an_assignment_is_inconsistent() -> None:
    history = copy_history([(0, b"1")], [(0, b"1")])
    for _ in range(2):
        history.read("second", rows("out", (0, b"1")))
    assert_only(
        check(history, [OUT]), Kind.OFFSETS_INCONSISTENT, "second read out[0]@0 after offset 0", [ReadEvent, ReadEvent]
    )


def test_offsets_record_that_a_final_read_skips_is_inconsistent() -> None:
    history = copy_history([(0, b"1")], [(0, b"1")])
    history.read("watcher", rows("in", (0, b"1")))
    assert check(history, [OUT]) == []
    history.read_out("watcher", "in", {0: 1})
    assert check(history, [OUT]) == []
    history.read_out("late", "in", {0: 1})
    sentence = "in 'k': '1' was read by reader, not by late, which read all"
    assert_only(check(history, [OUT]), Kind.OFFSETS_INCONSISTENT, sentence, [ReadEvent, ReadOut])


def test_offsets_record_missing_at_its_acknowledged_offset_is_inconsistent() -> None:
    history = History()
    history.sent("in", b"k", b"1", place=(0, 3))
    add_final_read(history, "in", (5, b"1"))
    sentence = "in 'k': '1' was acknowledged at in[0]@3, and is not there"
    assert_only(check(history), Kind.OFFSETS_INCONSISTENT, sentence, [Sent, ReadEvent, ReadOut])


def test_offsets_two_records_acknowledged_at_one_offset_are_inconsistent() -> None:
    """As if the first record was lost with the leader of its partition."""
    history = History()
    for value in (b"1", b"2"):
        history.sent("in", b"k", value, place=(0, 0))
    found = check(add_final_read(history, "in", (0, b"2")))
    assert kinds(found) == [Kind.LOST, Kind.OFFSETS_INCONSISTENT]
    assert found[1].sentence == "two records were acknowledged at in[0]@0"


def test_offsets_committed_offset_that_decreases_is_inconsistent() -> None:
    for second, expected in {3: [Kind.OFFSETS_INCONSISTENT], 4: [], 5: []}.items():
        history = copy_history([(0, b"1")], [(0, b"1")])
        for position in (4, second):
            history.positions("g.p", {TopicPartition("in", 0): position})
        history.positions("g.other", {TopicPartition("in", 0): 1})
        found = check(history, [OUT])
        assert kinds(found) == expected
        if second == 3:
            assert found[0].sentence == "the position of group g.p in in[0] went back from 4 to 3"


def test_offsets_committed_offset_beyond_the_end_is_inconsistent() -> None:
    for position, expected in {100: [], 101: [Kind.OFFSETS_INCONSISTENT]}.items():
        history = copy_history([(0, b"1")], [(0, b"1")])
        history.positions("g.p", {TopicPartition("in", 0): position})
        assert kinds(check(history, [OUT])) == expected


# Joins, alts and chains.


def test_join_pairs_the_records_of_a_partition_in_order() -> None:
    def pair(a: ReadEvent, b: ReadEvent) -> list[tuple[str, bytes | None, bytes | None]]:
        return [("c", a.key, (a.value or b"") + (b.value or b""))]

    history = add_final_read(History(), "a", (0, b"1"), (3, b"2"), (4, b"3"))
    add_final_read(history, "b", (5, b"x"), (9, b"y"))
    add_final_read(history, "c", (0, b"1x"), (1, b"2y"))
    assert check(history, [Expected(["a", "b"], to="c", outputs=pair)]) == []
    crossed = add_final_read(History(), "a", (0, b"1"), (3, b"2"))
    add_final_read(crossed, "b", (5, b"x"), (9, b"y"))
    add_final_read(crossed, "c", (0, b"1y"), (1, b"2x"))
    found = kinds(check(crossed, [Expected(["a", "b"], to="c", outputs=pair)]))
    assert found == [Kind.LOST] * 2 + [Kind.FOREIGN] * 2


def test_alts_outputs_interleave_and_keep_the_order_of_each_input() -> None:
    for out, expected in {
        ((0, b"x"), (1, b"1"), (2, b"2"), (3, b"y")): [],
        ((0, b"y"), (1, b"1"), (2, b"2"), (3, b"x")): [Kind.ORDER_BROKEN],
        ((0, b"x"), (1, b"1"), (2, b"2")): [Kind.LOST],
    }.items():
        history = add_final_read(add_final_read(History(), "a", (0, b"1"), (1, b"2")), "b", (0, b"x"), (1, b"y"))
        assert (
            kinds(check(add_final_read(history, "z", *out), [Expected("a", to="z"), Expected("b", to="z")])) == expected
        )


def test_chain_is_judged_by_the_input_of_each_processor() -> None:
    """The second processor rightly passes on what the first duplicated."""
    history = copy_history([(0, b"1")], [(0, b"1"), (1, b"1")])
    add_final_read(history, "end", (0, b"1"), (1, b"1"))
    assert kinds(check(history, [OUT, Expected("out", to="end")])) == [Kind.DUPLICATE]


def test_input_that_was_sent_is_judged_by_its_sends() -> None:
    history = History()
    send(history, "in", b"1", b"2")
    add_final_read(history, "in", (0, b"1"))
    assert kinds(check(add_final_read(history, "out", (0, b"1")), [OUT])) == [Kind.LOST]


def test_expected_outputs_may_be_empty() -> None:
    nothing = Expected("in", to="out", outputs=lambda read: [])
    assert check(copy_history([(0, b"1")], []), [nothing]) == []
    assert kinds(check(copy_history([(0, b"1")], [(0, b"1")]), [nothing])) == [Kind.FOREIGN]


# Anomalies that a guarantee permits.


DUPLICATE, ORDER_BROKEN = Kind.DUPLICATE, Kind.ORDER_BROKEN


@pytest.mark.parametrize(
    ("found", "exactly_once", "at_least_once", "at_most_once"),
    [
        (b"1234", [], [], []),
        (b"124", [Kind.LOST], [Kind.LOST], []),
        (b"12234", [DUPLICATE], [], [DUPLICATE]),
        (b"123234", [DUPLICATE] * 2, [], [DUPLICATE] * 2),
        (b"2341234", [*[DUPLICATE] * 3, ORDER_BROKEN], [], [*[DUPLICATE] * 3, ORDER_BROKEN]),
        (b"1324", [ORDER_BROKEN], [ORDER_BROKEN], [ORDER_BROKEN]),
        (b"13324", [DUPLICATE, ORDER_BROKEN], [ORDER_BROKEN], [DUPLICATE, ORDER_BROKEN]),
        (b"12345", [Kind.FOREIGN], [Kind.FOREIGN], [Kind.FOREIGN]),
    ],
)
def test_guarantee_tolerates_only_the_anomalies_that_it_permits(
    found: bytes, exactly_once: list[Kind], at_least_once: list[Kind], at_most_once: list[Kind]
) -> None:
    """At least once, a failed run is repeated after outputs that are already written: 234, then 1234."""
    history = copy_history(rows_of(b"1234"), rows_of(found))
    judged = [kinds(check(history, [Expected("in", to="out", guarantee=each)])) for each in (EO, ALO, AMO)]
    assert judged == [exactly_once, at_least_once, at_most_once]


def rows_of(values: bytes) -> list[Row]:
    """One record for each byte."""
    return [(offset, bytes([value])) for offset, value in enumerate(values)]


def test_guarantee_at_most_once_alone_tolerates_a_torn_step() -> None:
    history = copy_history([(0, b"1")], [(0, b"x")])
    for guarantee, anomalies in {EO: [Kind.TORN_TRANSACTION], ALO: [Kind.TORN_TRANSACTION], AMO: []}.items():
        both = Expected("in", "out", lambda read: [("out", b"k", b"x"), ("out", b"k", b"y")], guarantee)
        assert kinds(check(history, [both])) == anomalies


def test_guarantee_at_least_once_duplicates_of_a_chain_have_no_order() -> None:
    """It is unknown which of two equal inputs led to an output; an output without a duplicate keeps its order."""
    history = copy_history(rows_of(b"123123"), rows_of(b"12123123"))
    assert check(history, [Expected("in", to="out", guarantee=ALO)]) == []
    history = copy_history(rows_of(b"12312345"), rows_of(b"12312354"))
    assert kinds(check(history, [Expected("in", to="out", guarantee=ALO)])) == [Kind.ORDER_BROKEN]


# Histories and expectations that are refused.


def make_history(*steps: Callable[[History], object]) -> History:
    history = History()
    for step in steps:
        step(history)
    return history


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (History(), "there is nothing to judge"),
        (make_history(lambda h: h.fault("x")), "there is nothing to judge"),
        (
            make_history(
                lambda h: send(h, "a", b"1"),
                lambda h: add_final_read(h, "a", (0, b"1")),
                lambda h: add_final_read(h, "in"),
            ),
            "topic 'in' was read, and nothing declares its records",
        ),
        (make_history(lambda h: send(h, "in", b"1")), "no committed reader has read all of topic 'in'"),
        (
            make_history(lambda h: send(h, "in", b"1"), lambda h: h.read_out("r", "in", {0: 1}, "read_uncommitted")),
            "no committed reader has read all of topic 'in'",
        ),
        (
            make_history(lambda h: h.sent("in", b"k", b"1", place=(3, 0)), lambda h: add_final_read(h, "in")),
            "no final read of 'in' gives the end of partition 3",
        ),
        (
            make_history(
                lambda h: send(h, "in", b"1"),
                lambda h: h.read_out("r", "in", {0: 1, 1: 1}),
                lambda h: h.read_out("s", "in", {0: 1}),
            ),
            "s's final read of 'in' leaves out partition 1",
        ),
        (
            make_history(lambda h: send(h, "in", b"1"), lambda h: add_final_read(h, "in", (5, b"1"), end=5)),
            r"reader read in\[0\]@5, beyond the end that it gives",
        ),
        (
            make_history(
                lambda h: send(h, "in", b"1"),
                lambda h: add_final_read(h, "in"),
                lambda h: add_final_read(h, "in", (0, b"1")),
            ),
            "after its final read",
        ),
        (
            make_history(
                lambda h: send(h, "in", b"1"),
                lambda h: h.read("reader", rows("in", (0, b"1")), "read_uncommitted"),
                lambda h: add_final_read(h, "in"),
            ),
            "reader 'reader' reads with two isolation levels",
        ),
        (
            make_history(lambda h: send(h, "in", b"1", transaction="t"), lambda h: add_final_read(h, "in")),
            "transaction 't' was never begun",
        ),
        (make_history(lambda h: h.committed("t")), "transaction 't' was never begun"),
        (make_history(lambda h: h.committed(h.begun("p"))), "was committed without commit_asked"),
        (
            make_history(
                lambda h: [phase(h, name) for name in [h.begun("p")] for phase in (History.aborted, History.unknown)]
            ),
            "is unknown after it was aborted",
        ),
        (
            make_history(
                lambda h: send(h, "in", b"1"),
                lambda h: add_final_read(h, "in", (0, b"1")),
                lambda h: h.positions("g", {TopicPartition("else", 0): 1}),
            ),
            "group g had committed position 1 of else.0., and no final read has its end",
        ),
    ],
)
def test_history_that_cannot_be_judged_is_refused(history: History, message: str) -> None:
    with pytest.raises(HistoryError, match=message):
        check(history)


def test_transaction_begun_twice_is_refused() -> None:
    events = [Transaction(1, 0.0, "t", Phase.BEGUN), Transaction(2, 0.0, "t", Phase.BEGUN)]
    with pytest.raises(HistoryError, match="transaction 't' was begun twice"):
        check(events)


def test_unknown_event_is_refused() -> None:
    with pytest.raises(HistoryError, match="'read' is not an event of a history"):
        check(["read"])  # type: ignore[list-item]


def test_expected_topic_without_a_final_read_is_refused() -> None:
    with pytest.raises(HistoryError, match="no committed reader has read all of topic 'out'"):
        check(add_final_read(History(), "in", (0, b"1")), [OUT])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda read: [("else", b"k", b"1")], "returned a record for 'else': add it to `to`"),
        (lambda read: [("out", "k", b"1")], r"returned \('k', b'1'\): return bytes or None"),
        (lambda read: [("out", b"k", 5)], r"returned \(b'k', 5\): return bytes or None"),
        (lambda read: [b"1"], "failed at reader .* ValueError"),
        (lambda read: 1 / 0, "failed at reader .* ZeroDivisionError"),
        (lambda read: None, "failed at reader .* TypeError"),
    ],
)
def test_invalid_expected_outputs_are_refused(outputs: Callable[..., object], message: str) -> None:
    with pytest.raises(HistoryError, match=message):
        check(copy_history([(0, b"1")], []), [Expected("in", to="out", outputs=outputs)])  # type: ignore[arg-type]


@pytest.mark.parametrize(("inputs", "to"), [(["a", "b"], "c"), ("a", ["b", "c"]), ([], "c")])
def test_expectation_of_several_topics_needs_a_function(inputs: str | list[str], to: str | list[str]) -> None:
    with pytest.raises(HistoryError, match="give outputs=, a function"):
        Expected(inputs, to)


def test_expectation_with_an_unknown_guarantee_is_refused() -> None:
    assert Expected("in", to="out", guarantee="at_most_once").tolerated == {Kind.LOST, Kind.TORN_TRANSACTION}
    message = r"in to out\): guarantee='twice': give one of exactly_once, at_least_once, at_most_once"
    with pytest.raises(HistoryError, match=message):
        Expected("in", to="out", guarantee="twice")


def test_join_of_different_partition_counts_is_refused() -> None:
    history = add_final_read(add_final_read(History(), "a"), "c")
    history.read_out("reader", "b", {0: 1, 1: 1})
    with pytest.raises(HistoryError, match="1 and 2 partitions do not join"):
        check(history, [Expected(["a", "b"], to="c", outputs=lambda a, b: [])])


# Cost, and the explanation.


def count_instructions(action: Callable[[], object]) -> int:
    """Counts the bytecode count_instructions of the package that an action executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if "kstreams_py" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        action()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("phase", ["committed", "unknown", "aborted"])
@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("equal", [True, False])
def test_check_executes_instructions_in_proportion_to_the_history(equal: bool, places: bool, phase: str) -> None:
    """With and without anomalies, with equal and with different records."""

    def history(size: int, copies: int) -> History:
        values = [(n, b"1" if equal else b"%d" % n) for n in range(size)]
        history = History()
        name = history.begun("p")
        for offset, value in values:
            history.sent("in", b"k", value, place=(0, offset) if places else (-1, -1), transaction=name)
        history.commit_asked(name)
        getattr(history, phase)(name)
        add_final_read(history, "in", *values, end=size)
        return add_final_read(
            history, "out", *[(n, value) for n, (_, value) in enumerate(values * copies)], end=2 * size
        )

    for copies in (0, 1, 2):
        small, large = history(100, copies), history(200, copies)
        assert count_instructions(lambda: check(large, [OUT])) < 2.2 * count_instructions(lambda: check(small, [OUT]))  # noqa: B023


def test_explanation_counts_kinds_and_shows_the_first_of_each_with_its_evidence() -> None:
    history = copy_history([(0, b"1"), (1, b"2"), (2, b"3")], [(0, b"1"), (1, b"1")])
    history.fault("SIGKILL of slot 0")
    lines = explain(check(history, [OUT]), history, limit=1).splitlines()
    assert [line[21:] if line.startswith("    ") else line for line in lines] == [
        "2 lost, 1 duplicate",
        "",
        "lost: out 'k': '2' is there 0 times, and must be 1 times",
        "reader (read_committed) read in[0]@1 'k': '2'",
        "reader (read_committed) has read all of out[0], to position 100",
        "",
        "lost: 1 more",
        "",
        "duplicate: out 'k': '1' is there 2 times, and 1 led to it",
        "reader (read_committed) read in[0]@0 'k': '1'",
        "reader (read_committed) read out[0]@0 'k': '1'",
        "reader (read_committed) read out[0]@1 'k': '1'",
        "",
        "faults",
        "fault: SIGKILL of slot 0",
    ]
    assert explain([]) == "no anomalies"


def test_explanation_lists_the_evidence_in_order_of_time() -> None:
    found = explain(check(in_transaction(History.aborted, places=True)), limit=1).splitlines()[3:8]
    assert [line.split("  ")[-1].split("@")[0] for line in found] == [
        "transaction p",
        "the producer sent in[0]",
        "transaction p",
        "transaction p",
        "reader (read_committed) read in[0]",
    ]


def test_every_kind_of_anomaly_has_a_test_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    missing = [kind for kind in Kind if f"Kind.{kind.name}," not in text and f"Kind.{kind.name}]" not in text]
    assert missing == ["undecidable"]  # only `kstreams recover audit` finds it


def test_cluster_in_memory_can_be_recorded() -> None:
    cluster = MemoryCluster()
    cluster.create_topics([("in", 1, -1, {}), ("out", 1, -1, {})])
    history = History()
    for topic in ("in", "out"):
        cluster.append(topic, b"1", b"k")
        history.final_read("reader", topic, cluster.records(topic), {0: 1})
    assert check(history, [OUT]) == []
