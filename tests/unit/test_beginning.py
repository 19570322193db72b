"""engine/beginning.py: where a group begins to read, and that it does not start over in silence."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from kstreams_py.config import Settings
from kstreams_py.delivery import Guarantee
from kstreams_py.engine.beginning import Beginning
from kstreams_py.engine.topics import BEGINNINGS_SETTINGS
from kstreams_py.engine.transaction import Session, Surroundings
from kstreams_py.errors import Abortable, InputLost, OutcomeUnknown
from kstreams_py.metrics import Counters
from kstreams_py.record import Positions, TopicPartition
from kstreams_py.testing import ManualClock, MemoryLog, MemoryRegistry
from kstreams_py.topology import Graph

A0, A1, A2, A3 = (TopicPartition("a", number) for number in range(4))
B0, B1 = (TopicPartition("b", number) for number in range(2))
TOPIC = "__ks.g.beginnings"


class Place:
    """A cluster with topics a (4 records in each partition) and b, and the processes that begin there, one by one."""

    def __init__(self, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, partitions: int = 2) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        self.graph = Graph("g", guarantee=guarantee)
        for name in "ab":
            self.graph.topic(name)
        self.graph.sink("a", "b", id="p", alts=True)(lambda value: None)
        (self.processor,) = self.graph.processors
        self.log.create_topics(
            [("a", partitions, -1, {}), ("b", partitions, -1, {}), (TOPIC, 1, -1, BEGINNINGS_SETTINGS)]
        )
        for number in range(partitions):
            self.fill(number)

    def fill(self, partition: int) -> None:
        for _ in range(4):
            self.log.append("a", b"v", partition=partition)

    def process(self, reset: str = "earliest") -> tuple[Beginning, Session]:
        """What a worker of this processor begins with, as the topics are now."""
        settings = Settings(auto_offset_reset=reset)  # type: ignore[arg-type]
        around = Surroundings(self.log, MemoryRegistry(), settings, self.clock, self.clock.advance)
        consumer = self.log.consumer("g.p", "g.p.0")
        consumer.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
        consumer.consume(1, 0.0)
        session = Session(self.processor, consumer, around, transactional_id="g.p.0", counters=Counters())
        session.start()
        inputs = self.log.topics(["a", "b"])
        return Beginning(around, self.processor, TOPIC, inputs), session

    def begin(self, partitions: Collection[TopicPartition], reset: str = "earliest") -> Positions:
        """Begins in a process of its own."""
        beginning, session = self.process(reset)
        return beginning.begin(partitions, session)

    @property
    def saved(self) -> Positions:
        return self.log.group("g.p")

    def topic_id(self, topic: str) -> str:
        return self.log.topics([topic])[topic].topic_id

    @property
    def kept(self) -> list[tuple[Any, Any]]:
        """Keys and values of the records of what was begun, topic ids told by their topics."""
        names = {self.topic_id(topic): f"id of {topic}" for topic in "ab"}
        found = []
        for m in self.log.records(TOPIC):
            processor, topic, topic_id, partition = json.loads(m.key() or b"")
            found.append(([processor, topic, names.get(topic_id, topic_id), partition], json.loads(m.value() or b"")))
        return found


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize(("reset", "at"), [("earliest", 1), ("latest", 4)])
def test_group_begins_where_it_is_told_to_and_keeps_that_it_did(reset: str, at: int, guarantee: Guarantee) -> None:
    place = Place(guarantee)
    place.log.truncate(A0, 1)
    place.log.truncate(A1, 1)
    starts = {A0: at, A1: at, B0: 0}
    assert (place.begin({A1, A0, B0}, reset), place.saved) == (starts, starts)
    assert sorted(place.kept) == [
        (["p", "a", "id of a", 0], {"partitions": 2}),
        (["p", "a", "id of a", 1], {"partitions": 2}),
        (["p", "b", "id of b", 0], {"partitions": 2}),
    ]


def test_begin_of_no_partition_of_a_kind_asks_for_none() -> None:
    place = Place()
    before = len(place.log.requests)
    place.begin({A0})
    assert place.log.requests[before:].count("starts") == 1


def test_where_a_group_begins_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Place().begin({A1, A0}, "latest")
    assert "p: begins at a[0]@4, a[1]@4" in caplog.text


@pytest.mark.parametrize("guarantee", Guarantee)
def test_group_whose_positions_have_expired_does_not_start_over(
    guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(guarantee)
    place.begin({A0, A1, B0})
    place.log._broker.group("g.p").positions.clear()  # offsets.retention.minutes
    for minutes, said in ((10_080, "10080"), (None, "not known")):
        monkeypatch.setattr(place.log, "offsets_retention_minutes", lambda minutes=minutes: minutes)
        with pytest.raises(InputLost) as caught:
            place.begin({A1, A0, B1})
        assert str(caught.value) == (
            "p: a[0], a[1] was read before, and its committed position is not there any more: Kafka keeps positions of "
            f"a stopped group for offsets.retention.minutes ({said}): set them on purpose (kafka-consumer-groups "
            "--reset-offsets, once the group has no members: `kstreams slots release`), then start again"
        )
    assert place.saved == {}


def test_partition_that_no_other_processor_or_topic_began_is_begun() -> None:
    """Of the same name, or in the same graph."""
    place = Place()
    key = ["q", "a", place.topic_id("a"), 0], ["p", "b", place.topic_id("b"), 0], ["p", "a", "an older topic", 0]
    for begun in key:
        place.log.append(TOPIC, b'{"partitions": 2}', json.dumps(begun).encode())
    assert place.begin({A0}) == {A0: 0}


def test_topic_that_was_created_again_is_begun_again() -> None:
    place = Place()
    place.begin({A0, A1})
    del place.log._broker.topics["a"]
    place.log.create_topics([("a", 2, -1, {})])
    place.log._broker.group("g.p").positions.clear()
    assert place.begin({A0, A1}) == {A0: 0, A1: 0}


def test_partition_that_is_added_while_the_worker_runs_is_read_from_its_start() -> None:
    """Its first records came before anybody could know of it."""
    place = Place()
    beginning, session = place.process("latest")
    assert beginning.begin({A0, A1}, session) == {A0: 4, A1: 4}
    place.log.grow("a", 3)
    place.fill(2)
    assert beginning.begin({A2}, session) == {A2: 0}
    assert place.saved == {A0: 4, A1: 4, A2: 0}


def test_partition_that_is_added_while_the_worker_joins_is_read_from_its_start() -> None:
    place = Place()
    beginning, session = place.process("latest")
    place.log.grow("a", 3)
    place.fill(2)
    assert beginning.begin({A0, A1, A2}, session) == {A0: 4, A1: 4, A2: 0}


def test_partition_that_was_added_since_the_group_began_is_read_from_its_start() -> None:
    place = Place()
    place.begin({A0, A1}, "latest")
    place.log.grow("a", 4)
    for number in (2, 3):
        place.fill(number)
    assert place.begin({A2}, "latest") == {A2: 0}  # in a new process
    assert place.begin({A3}, "latest") == {A3: 0}
    assert [value for key, value in place.kept] == [
        {"partitions": 2},
        {"partitions": 2},
        {"partitions": 4},
        {"partitions": 4},
    ]


def test_partition_that_was_there_when_the_group_began_is_read_from_its_end() -> None:
    """Another worker of the group began with the others."""
    place = Place(partitions=4)
    place.begin({A0, A1}, "latest")
    assert place.begin({A2, A3}, "latest") == {A2: 4, A3: 4}


def test_partition_of_another_topic_says_nothing_of_those_of_this_one() -> None:
    place = Place()
    place.begin({B0, B1}, "latest")
    place.log.grow("a", 4)
    place.fill(3)
    assert place.begin({A3}, "latest") == {A3: 4}  # of a topic that is new to the processor


@pytest.mark.parametrize("error", [Abortable("refused"), OutcomeUnknown("no answer")])
@pytest.mark.parametrize("request_name", ["send_offsets", "commit_transaction"])
def test_begin_that_fails_commits_nothing_and_begins_again(request_name: str, error: Exception) -> None:
    place = Place()
    beginning, session = place.process()
    place.log.inject(request_name, error=error, applied=False)
    with pytest.raises(type(error)) as caught:
        beginning.begin({A0}, session)
    session.recover(caught.value)  # type: ignore[arg-type]
    assert (place.saved, place.kept) == ({}, [])
    assert beginning.begin({A0}, session) == {A0: 0}
    assert (place.saved, place.kept) == ({A0: 0}, [(["p", "a", "id of a", 0], {"partitions": 2})])


# Positions that somebody else has committed.


@pytest.mark.parametrize("guarantee", Guarantee)
def test_partitions_whose_positions_were_set_by_hand_are_kept_without_a_position(guarantee: Guarantee) -> None:
    place = Place(guarantee)
    beginning, session = place.process()
    beginning.keep({A1, A0}, session)
    assert place.kept == [(["p", "a", "id of a", number], {"partitions": 2}) for number in (0, 1)]
    assert place.saved == {}
    with pytest.raises(InputLost, match=r"a\[0\], a\[1\] was read before"):
        place.begin({A0, A1})


def test_partitions_are_kept_once_in_a_process_and_those_that_come_later_too() -> None:
    place = Place()
    beginning, session = place.process()
    beginning.begin({A0}, session)
    for partitions in ({A0}, {A0, A1}, {A0, A1}, {B0}):
        beginning.keep(partitions, session)
    assert [key[1:] for key, _ in place.kept] == [
        ["a", "id of a", 0], ["a", "id of a", 1], ["b", "id of b", 0],
    ]  # fmt: skip
    before = len(place.log.requests)
    beginning.keep({A0, A1, B0}, session)
    assert place.log.requests[before:] == []


def test_partitions_that_are_kept_already_are_not_written_again_by_another_process() -> None:
    place = Place()
    place.begin({A0, A1})
    beginning, session = place.process()
    before = len(place.log.requests)
    beginning.keep({A0, A1}, session)
    assert (place.log.requests[before:], len(place.kept)) == (["read"], 2)


def test_partitions_whose_record_could_not_be_written_are_kept_by_the_next_commit() -> None:
    place = Place()
    beginning, session = place.process()
    place.log.inject("commit_transaction", error=Abortable("refused"), applied=False)
    with pytest.raises(Abortable) as caught:
        beginning.keep({A0}, session)
    session.recover(caught.value)
    assert place.kept == []
    beginning.keep({A0}, session)
    assert place.kept == [(["p", "a", "id of a", 0], {"partitions": 2})]
