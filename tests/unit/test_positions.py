"""The rules of `kstreams recover`: what moves, as text and as a file, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import kstreams_py as ks
from kstreams_py.errors import UserMistake
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.groups import GroupInfo, Member
from kstreams_py.operations.recover.positions import (
    Move,
    as_fields,
    check_no_members,
    check_targets,
    decode,
    describe,
    encode,
    moves_of,
    parse_targets,
)
from kstreams_py.records import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def topics(topic_id: str = "id") -> Mapping[str, TopicInfo]:
    return {"a": TopicInfo("a", topic_id, 2, 1, {})}


def graph(persistence: str = "transaction", *ids: str) -> ks.Graph:
    found = ks.Graph("g")
    for each in ids or ("p",):
        found.sink(found.topic("a"), id=each, persistence=persistence)(lambda value: None)
    return found


def test_moves_are_what_differs_with_what_is_read_again_or_skipped() -> None:
    p, q = graph("transaction", "p", "q").processors
    moves = moves_of(p, {A0: 1_500, A1: 7}, {A0: 0, A1: 7, TopicPartition("a", 2): 3, TopicPartition("a", 3): 0})
    moves += moves_of(q, {A0: 2}, {A0: 9})
    assert list(describe(moves)) == [
        "p: a[0]: 1500 -> 0, at most 1,500 records are read again",
        "p: a[2]: no position -> 3, begins there",
        "p: a[3]: no position -> 0, begins there",
        "q: a[0]: 2 -> 9, at most 7 records are skipped",
    ]
    assert list(describe(moves[-1:])) == ["q: a[0]: 2 -> 9, at most 7 records are skipped"]
    assert as_fields(moves[0]) == {
        "processor": "p",
        "topic": "a",
        "partition": 0,
        "old": 1500,
        "new": 0,
        "again": 1500,
        "skipped": 0,
    }
    assert list(describe([])) == []


def test_moves_of_a_processor_with_a_journal_are_all_that_are_named() -> None:
    (processor,) = graph("journal").processors
    moves = moves_of(processor, {A0: 7, A1: 7}, {A0: 7, A1: 9})
    assert list(describe(moves)) == [
        "p: a[0]: 7 -> 7, its journal begins there",
        "p: a[1]: 7 -> 9, at most 2 records are skipped",
    ]


def test_moves_of_a_processor_with_a_state_are_all_that_are_named() -> None:
    found = ks.Graph("g")
    found.map(found.topic("a"), to=found.topic("b"), id="p", state=ks.State("s"))(lambda value, state: None)
    moves = moves_of(found.processors[0], {A0: 7, A1: 7}, {A0: 7, A1: 9})
    assert list(describe(moves)) == ["p: a[0]: 7 -> 7, stays there", "p: a[1]: 7 -> 9, at most 2 records are skipped"]


def test_targets_are_named_by_topic_partition_and_offset() -> None:
    assert parse_targets(["a:0:5", "a:1:0", "a:0:5"]) == {A0: 5, A1: 0}
    for wrong in ("a", "a:0", "a:0:-1", ":0:1", "a:x:1", "a:0:1:2"):
        with pytest.raises(UserMistake, match="write TOPIC:PARTITION:OFFSET"):
            parse_targets([wrong])


@pytest.mark.parametrize(("offset", "is_refused"), [(4, True), (5, False), (9, False), (10, True)])
def test_offsets_are_in_the_log_from_its_first_to_its_last_stable_one(offset: int, is_refused: bool) -> None:
    (processor,) = graph().processors
    bounds = {A0: 5, A1: 0}, {A0: 9, A1: 0}
    if not is_refused:
        check_targets(processor, {A0: offset}, topics(), *bounds)
        return
    with pytest.raises(UserMistake) as caught:
        check_targets(processor, {A0: offset}, topics(), *bounds)
    assert str(caught.value) == (f"offset {offset} is not in a[0]: choose one from 5 to 9; 9 waits for new records")


def test_members_are_named_with_the_command_that_releases_slots() -> None:
    check_no_members({"g.p": GroupInfo("Empty", ())}, "app.py", {"g.p"})
    other = Member("", "id", "client", "host", ())
    slots = Member("g.p.1", "id", "client", "host", ()), Member("g.p.0", "id", "client", "host", ())
    with pytest.raises(UserMistake) as caught:
        check_no_members({"g.p": GroupInfo("Stable", (other, *slots))}, "app.py", {"g.p"})
    assert str(caught.value) == (
        "the group has members: client on host, g.p.1 on host, g.p.0 on host: stop these workers; for workers "
        "that have ended, run `kstreams slots release app.py 0 1`: nothing was changed"
    )
    with pytest.raises(UserMistake) as caught:
        check_no_members({"g.p": GroupInfo("Stable", (other,))}, "app.py", {"g.p"})
    assert str(caught.value) == "the group has members: client on host: stop these workers: nothing was changed"


def test_file_has_what_was_encoded_and_is_refused_for_topics_made_anew() -> None:
    positions = {"p": {A0: 5, A1: 0}}
    text = encode("g", positions, topics())
    assert decode(text, "file", graph(), topics()) == positions
    with pytest.raises(UserMistake) as caught:
        decode(text, "file", graph(), topics("other"))
    assert str(caught.value) == (
        "file: topic 'a' was deleted and created again since (its id was id, and is other): its offsets name other "
        "records: use `kstreams recover reset`, or delete these positions from the file"
    )


def test_move_of_a_position_that_was_never_there_neither_repeats_nor_skips() -> None:
    move = Move("p", A0, None, 5)
    assert (move.again, move.skipped) == (0, 0)
