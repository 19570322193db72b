"""Counts of the dead letters that wait: from their topic and their marks, on a cluster in memory, a part at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count as numbers
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import BrokerUnavailable, NotAuthorized, Retriable
from kstreams_py.kafka.contracts import TRANSACTIONAL
from kstreams_py.operations.dead_letters.discard import Discard
from kstreams_py.processing.dead_letters import counting
from kstreams_py.processing.dead_letters.counting import LetterCounter
from kstreams_py.processing.dead_letters.letters import LetterSelection
from kstreams_py.processing.dead_letters.waiting import PartitionLetters, WaitingCount
from kstreams_py.records import TopicPartition
from kstreams_py.running import waiting
from kstreams_py.running.waiting import WaitingLetters
from tests.tables import each_case
from tests.unit.test_operations import Shop, declare_map, watched

DEAD = TopicPartition("dead", 0)


def counter(shop: Shop) -> Callable[[], WaitingCount]:
    """Counts the dead letters of a shop; what is counted must be what `list` reads."""
    counts = LetterCounter(shop.graph, shop.environment)

    def count() -> WaitingCount:
        found = counts.count(1.0)
        assert found.keys() == {"dead"}
        if found["dead"].is_whole:
            assert found["dead"].counted == len(shop.waiting())
        return found["dead"]

    return count


def failed(*values: str) -> Shop:
    shop = Shop(declare_map)
    shop.cluster.create_topics([("dead", 1, -1, {})])
    shop.fail(*values)
    shop.mend()
    return shop


def discard(shop: Shop, number: int) -> None:
    place = shop.letters()[number].place
    Discard(shop.graph, shop.environment, LetterSelection(partition=0, offset=place.offset), "a test").run()


def test_count_follows_new_letters_their_marks_and_the_retention_of_their_topic() -> None:
    shop = failed("a", "b", "c", "d")
    count = counter(shop)
    assert count() == WaitingCount(4, is_whole=True)
    discard(shop, 1)
    assert count() == WaitingCount(3, is_whole=True)
    shop.replay(LetterSelection(partition=0, offset=shop.letters()[0].place.offset))
    assert count() == WaitingCount(2, is_whole=True)
    shop.mended = False
    shop.fail("e", "f")
    assert count() == WaitingCount(4, is_whole=True)
    shop.cluster.truncate(DEAD, shop.letters()[3].place.offset)
    assert count() == WaitingCount(3, is_whole=True)
    shop.cluster.faults.delete_topic("__ks.shop.replayed")
    assert count() == WaitingCount(3, is_whole=True)


def test_only_committed_letters_of_this_graph_count() -> None:
    shop = failed("a")
    count = counter(shop)
    other = ks.Graph("other", errors="dead")
    other.sink(other.topic("orders"), id="p")(lambda _: 1 / 0)
    driver = ks.testing.TestDriver(other, registry=shop.registry)
    driver.cluster.append("orders", b"x")
    driver.run()
    (foreign,) = driver.cluster.records("dead")
    for value in (foreign.value(), None, b"junk"):
        shop.cluster.append("dead", value)
    producer = shop.cluster.producer(TRANSACTIONAL, "aborted")
    producer.init_transactions()
    producer.begin_transaction()
    producer.write([("dead", shop.cluster.records("dead")[0].value(), None, 0, None, None, 0, None)])
    producer.abort_transaction()
    assert count() == WaitingCount(1, is_whole=True)


def test_topic_that_is_created_again_is_counted_again() -> None:
    shop = failed("a", "b")
    count = counter(shop)
    discard(shop, 0)
    assert count() == WaitingCount(1, is_whole=True)
    shop.cluster.faults.delete_topic("dead")
    assert count() == WaitingCount(why="topic 'dead' does not exist: run `kstreams topics create`")
    shop.cluster.create_topics([("dead", 1, -1, {})])
    shop.mended = False
    shop.fail("c", "d", "e")
    assert count() == WaitingCount(3, is_whole=True)


def test_count_begins_again_if_its_records_stay_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = failed("a", "b")
    counts = LetterCounter(shop.graph, shop.environment)
    found = [counts.count(1.0)["dead"].counted]
    real, lost = shop.cluster.ends, [True, False, True, True, False]
    monkeypatch.setattr(
        shop.cluster, "ends", lambda asked: dict.fromkeys(asked, 0) if lost and lost.pop(0) else real(asked)
    )
    found += [counts.count(1.0)["dead"].counted for _ in range(5)]
    assert found == [2, 2, 2, 2, 0, 2]


def test_nothing_is_read_twice() -> None:
    shop = failed("a", "b")
    counts = LetterCounter(shop.graph, shop.environment)
    made = []
    for _ in range(2):
        with watched(shop) as requests:
            counts.count(1.0)
        made.append(list(requests))
    assert made == [["topics", "starts", "ends", "read"], ["topics", "starts", "ends"]]
    assert counts.find_oldest("dead") == shop.letters()[0].timestamp
    discard(shop, 0)
    counts.count(1.0)
    assert counts.find_oldest("dead") == shop.letters()[1].timestamp


def test_count_is_bounded_in_time_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PAGE", 2)
    monkeypatch.setattr(counting, "PAGE_MAX", 2)
    shop = failed(*"abcdefg")
    discard(shop, 0)
    ticks = numbers()
    counts = LetterCounter(shop.graph, replace(shop.environment, clock=lambda: float(next(ticks))))
    found = [counts.count(3.0)["dead"] for _ in range(5)]
    assert found == [
        WaitingCount(),  # the marks are not all read
        WaitingCount(3),
        WaitingCount(6, is_whole=True),
        WaitingCount(6, is_whole=True),
        WaitingCount(6, is_whole=True),
    ]


@each_case("error", [Retriable("away"), BrokerUnavailable("no broker answers")])
@each_case("request_name", ["topics", "starts", "ends", "read"])
def test_count_stays_while_no_broker_answers_and_is_not_known_before(request_name: str, error: Exception) -> None:
    shop = failed("a")
    counts = LetterCounter(shop.graph, shop.environment)
    found = []
    for value in "bc":
        shop.cluster.faults.inject(request_name, error=error, applied=False)
        found += [counts.count(1.0)["dead"] for _ in range(2)]
        shop.mended = False
        shop.fail(value)
    whole = [WaitingCount(number, is_whole=True) for number in (1, 1, 2)]
    assert found == [WaitingCount(why=str(error)), *whole]


@each_case("request_name", ["topics", "starts", "ends", "read"])
def test_count_is_not_known_without_a_right_and_never_none(request_name: str) -> None:
    shop = failed("a")
    count = counter(shop)
    assert count().known == 1
    shop.mended = False
    shop.fail("b")
    shop.cluster.faults.inject(request_name, error=NotAuthorized("READ on dead is missing"), applied=False)
    found = count()
    assert (found.known, found.why, count().known) == (None, "READ on dead is missing", 2)


def test_offsets_of_a_partition_are_those_of_sets() -> None:
    chance, letters, marked, start = random.Random(7), set[int](), set[int](), 0
    found = PartitionLetters()
    for _ in range(3_000):
        offset = start + chance.randrange(20_000)
        match chance.randrange(8):
            case 0 | 1 | 2 | 3:
                found.add(offset)
                letters.add(offset)
            case 4 | 5:
                found.mark(offset)
                marked.add(offset)
            case 6:
                found.unmark(offset)
                marked.discard(offset)
            case _:
                start += chance.randrange(40)
                found.delete_before(start)
                letters, marked = ({each for each in offsets if each >= start} for offsets in (letters, marked))
        assert (found.count(), found.find_first()) == (len(letters - marked), min(letters - marked, default=None))
    assert found.next == start


@contextmanager
def counted(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WaitingLetters, Callable[[], None]]]:
    """What counts while a graph runs; the function waits until it has counted again."""
    turns, done = threading.Semaphore(0), threading.Semaphore(0)
    real = LetterCounter.count

    def count(self: LetterCounter, seconds: float) -> Any:
        turns.acquire()
        try:
            return real(self, seconds)
        finally:
            done.release()

    monkeypatch.setattr(LetterCounter, "count", count)
    monkeypatch.setattr(waiting, "LONG_PAUSE", 0.0)
    found = WaitingLetters(shop.graph, shop.environment)
    assert found.read() == {"dead": WaitingCount()}

    def turn() -> None:
        for _ in range(2):  # the second begins after the first is noted
            turns.release()
            done.acquire()

    yield found, turn
    found._ending.set()
    turns.release()
    found.end()
    assert not found._thread.is_alive()


def test_run_counts_in_a_thread_and_a_bug_makes_the_count_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = failed("a", "b")
    with counted(shop, monkeypatch) as (found, turn):
        turn()
        assert found.read() == {"dead": WaitingCount(2, is_whole=True)}
        monkeypatch.setattr(shop.cluster, "topics", lambda _: 1 / 0)
        turn()
        assert found.read() == {"dead": WaitingCount(why="ZeroDivisionError: division by zero")}
