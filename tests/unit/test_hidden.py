"""running/hidden.py: inputs whose newest records are hidden by open transactions, and whose these are."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kstreams_py.errors import BrokerUnavailable, Retriable
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.contracts import Producer
from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.log_fields import FOLD
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import TopicPartition
from kstreams_py.running.hidden import ASKED_SECONDS, HIDDEN_SECONDS, HiddenRecords, HiddenReport
from kstreams_py.running.http.remedies import HIDDEN_SECONDS as HIDDEN_TOO_LONG
from kstreams_py.testing import ManualClock, MemoryCluster

ZERO, ONE = TopicPartition("in", 0), TopicPartition("in", 1)


class Site:
    """An input of two partitions, and what a slot sees of it at each look."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock, transaction_timeout=1_000.0)
        self.cluster.create_topics([("in", 2, -1, {})])
        self.hidden = HiddenRecords(self.cluster, self.clock)

    def begin(self, name: str, *partitions: int) -> Producer:
        """Begins a transaction that has a record in each of these partitions."""
        producer = self.cluster.producer(producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED), name)
        producer.init_transactions()
        producer.begin_transaction()
        producer.write([("in", b"v", None, number, None, None, 0, None) for number in partitions])
        producer.flush()
        return producer

    def look(self, after: float = 1.0) -> HiddenReport:
        """What is hidden at a look so many seconds later."""
        self.clock.advance(after)
        ends = {tp: len(self.cluster.records("in", "read_uncommitted")) for tp in (ZERO, ONE)}
        highs = {tp: ends[tp] for tp in (ZERO, ONE) if self.cluster.open_transactions(tp)}
        self.hidden.look(self.cluster.ends([ZERO, ONE]), [highs], self.clock())
        self.hidden.ask(self.clock())
        self.hidden.look(self.cluster.ends([ZERO, ONE]), [highs], self.clock())
        return self.hidden.of([ZERO, ONE])


def test_transaction_that_stays_open_is_named_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.cluster.append("in", b"before")
    producer = site.begin("billing", 0)
    assert [site.look(), site.look(HIDDEN_SECONDS - 1)] == [HiddenReport(), HiddenReport()]
    seconds, text, partitions = site.look()
    assert (seconds, partitions) == (HIDDEN_SECONDS, 1)
    assert text.startswith("in[0] is hidden by producer ")
    assert " (billing) from offset 1, " in text
    assert site.hidden.of([ONE]) == HiddenReport()
    text = site.look(HIDDEN_TOO_LONG - HIDDEN_SECONDS).text
    assert caplog.records == [], "it is not a bad finding yet"
    for _ in range(3):
        site.look()
    (logged,) = caplog.records
    assert (logged.levelno, logged.getMessage(), vars(logged)[FOLD]) == (
        logging.WARNING,
        f"readers of committed records have seen nothing new for 61 s: {text}",
        ("repeated", "inputs that a transaction hides", text),
    )
    producer.commit_transaction()
    assert site.look() == HiddenReport()


def test_transactions_that_follow_one_another_hide_nothing_for_long() -> None:
    site = Site()
    for number in range(30):
        producer = site.begin(f"billing{number}", 0)
        assert site.look() == HiddenReport()
        producer.commit_transaction()


def test_partition_that_is_hidden_longest_is_named_with_the_number_of_the_others() -> None:
    site = Site()
    site.begin("first", 1)
    site.look(5.0)
    site.begin("second", 0)
    site.look(5.0)
    site.look(5.0)
    seconds, text, partitions = site.look(5.0)
    assert (seconds, text.startswith("in[1] is hidden by "), "(first)" in text, partitions) == (15.0, True, True, 2)
    assert text.endswith(" (and of 1 more partitions)")


@pytest.mark.parametrize("error", [BrokerUnavailable("not allowed"), Retriable("no answer"), KeyError(7)])
def test_transaction_that_cannot_be_looked_up_is_said_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    site, stable, highs = Site(), {ZERO: 0}, [{ZERO: 1}]

    def refuse(_: Any) -> Any:
        raise error

    monkeypatch.setattr(site.cluster, "open_transactions", refuse)
    site.hidden.look(stable, highs, 0.0)
    site.hidden.look(stable, highs, HIDDEN_SECONDS)
    assert site.hidden.of([ZERO]) == HiddenReport(HIDDEN_SECONDS, "in[0] is hidden by a transaction from offset 0", 1)
    site.hidden.ask(HIDDEN_SECONDS)
    monkeypatch.undo()
    for now in (HIDDEN_SECONDS, HIDDEN_SECONDS + ASKED_SECONDS - 1):
        site.hidden.ask(now)
        site.hidden.look(stable, highs, now)
        said = f"in[0] is hidden by a transaction from offset 0, which cannot be looked up: {error}"
        assert site.hidden.of([ZERO]) == HiddenReport(now, said, 1)
    site.hidden.ask(HIDDEN_SECONDS + ASKED_SECONDS)
    site.hidden.look(stable, highs, HIDDEN_SECONDS + ASKED_SECONDS)
    said = "in[0] is hidden by a transaction from offset 0, which has just ended"
    assert site.hidden.of([ZERO]) == HiddenReport(HIDDEN_SECONDS + ASKED_SECONDS, said, 1)


class Counting:
    """A cluster that counts the requests for open transactions."""

    def __init__(self) -> None:
        self.asked: list[TopicPartition] = []

    def open_transactions(self, partition: TopicPartition) -> tuple[OpenTransaction, ...]:
        self.asked.append(partition)
        return ()


def test_partitions_are_asked_for_by_turns_and_not_by_the_thread_of_the_lags() -> None:
    cluster, many = Counting(), [TopicPartition("in", number) for number in range(3)]
    hidden, by_look = HiddenRecords(cluster), 0  # type: ignore[arg-type]
    for second in range(61):
        before = len(cluster.asked)
        hidden.look(dict.fromkeys(many, 0), [dict.fromkeys(many, 1)], second)
        by_look += len(cluster.asked) - before
        hidden.ask(second)
    assert (by_look, cluster.asked) == (0, many * 2)


def test_transactions_that_follow_one_another_are_asked_for_no_more_often(caplog: pytest.LogCaptureFixture) -> None:
    """Each is open for 15 s, as the checkpoints of another framework."""
    cluster = Counting()
    hidden = HiddenRecords(cluster)  # type: ignore[arg-type]
    for second in range(601):
        hidden.look({ZERO: second // 15}, [{ZERO: 1_000}], second)
        hidden.ask(second)
    assert (len(cluster.asked), caplog.records) == (600 // ASKED_SECONDS, [])
