"""What `kstreams recover reset` says before it asks, and what `kstreams recover forget` refuses."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import sinks
from kstreams_py.errors import Fatal, InputLost, TopicError, UserMistake
from kstreams_py.graph.sink import Evidence
from kstreams_py.kafka.described_cluster import ClusterDescription
from kstreams_py.kafka.groups import GroupInfo, Member
from kstreams_py.operations.doctor.findings import Examined, Facts, describe
from kstreams_py.operations.doctor.of_graphs import find_doubts
from kstreams_py.operations.recover.forget import ForgottenProcessor
from kstreams_py.operations.recover.reset import END, GraphPositions, ResetTarget
from kstreams_py.operations.recover.status import find_undeclared, read_status
from kstreams_py.operations.topics import TopicDeletion
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.records import TopicPartition
from kstreams_py.testing import TestDriver


def chain(**options: Any) -> ks.Graph:
    graph = ks.Graph("g")
    numbers, priced = graph.topic("in"), graph.topic("g.priced")
    graph.map(numbers, to=priced, id="price", **options)(lambda value: value)
    graph.sink(priced, id="send")(lambda value: None)
    return graph


def counting(name: str = "count", *, copied: bool = False) -> ks.Graph:
    """Counts words; if `copied`, those of a topic that has four partitions from the start."""
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=ks.String(), value=ks.String())
    if copied:
        read, words = words, graph.topic("g.copies", key=ks.String(), value=ks.String(), partitions=4)
        graph.map(read, to=words, id="copy")(lambda word: word)

    def count(word: str, state: Any) -> int:
        seen: int = state.get(word, 0) + 1
        state.put(word, seen)
        return seen

    graph.map(words, to=graph.topic("g.counts", value=ks.Json()), id=name, state=ks.State("counts"))(count)
    return graph


def stop(driver: TestDriver) -> None:
    driver.crash()
    driver.advance(60)


def nobody() -> Any:
    """The admin of groups without members."""
    return SimpleNamespace(describe=lambda groups: dict.fromkeys(groups, GroupInfo("Empty", ())))


def plan(driver: TestDriver, processor: str, target: ResetTarget, *, then: bool = True) -> list[str]:
    """What follows from a reset, which is made `then`."""
    moving = GraphPositions(driver._graph, "g.py", driver._environment, nobody())
    moves = moving.plan_reset(processor, target)
    found = moving.consequences(moves)
    if then:
        moving.move(moves)
    return found


def count_words(driver: TestDriver) -> None:
    for word, partition in (("a", 0), ("b", 1), ("a", 0)):
        driver.send("g.words", word, key=word, partition=partition)
    driver.run()
    stop(driver)


def test_readers_of_outputs_that_are_written_again_are_named() -> None:
    with TestDriver(chain(errors="g.errors"), partitions=2) as driver:
        for partition in (0, 1):
            driver.send("in", b"1", partition=partition)
        driver.run()
        stop(driver)
        assert plan(driver, "price", ResetTarget({TopicPartition("in", 0): 0})) == [
            (
                "price: outputs of records that are read again are written again to g.priced, with the same delivery "
                "hashes: to send they are new records; dead letters are written again, too"
            ),
            "price: the positions of in[1] stay",
        ]
        assert plan(driver, "send", ResetTarget()) == [
            "send: its function is called again for records that are read again"
        ]
        assert plan(driver, "g.send", ResetTarget(end=END)) == []


def test_reset_of_a_processor_whose_state_stays_says_how_its_next_start_ends() -> None:
    with TestDriver(counting(), partitions=2) as driver:
        count_words(driver)
        again, *refused = plan(driver, "count", ResetTarget())
        assert again.startswith("count: outputs of records that are read again are written again to g.counts, ")
        driver.restart()
        with pytest.raises(InputLost) as raised:
            driver.run()
    assert len(refused) == 2
    assert f"count: the next start ends with InputLost: {raised.value}" in refused


def test_reset_of_some_partitions_without_their_changelog_names_the_others() -> None:
    """The state of the partition that is set begins empty; that of the other one is lost."""
    with TestDriver(counting(), partitions=2) as driver:
        count_words(driver)
        driver.cluster.faults.delete_topic("__ks.g.counts.changelog")
        stays, begins, lost = plan(driver, "count", ResetTarget({TopicPartition("g.words", 0): 2}))
        assert (stays, begins) == (
            "count: the positions of g.words[1] stay",
            "count: its state begins empty at g.words[0]@2",
        )
        assert lost.startswith("count: the next start ends with InputLost: count: state 'counts': its changelog ")
        assert plan(driver, "count", ResetTarget({TopicPartition("g.words", 1): 1}))[1:] == [
            "count: its state begins empty at g.words[0]@2",
            "count: its state begins empty at g.words[1]@1",
        ]


def test_state_of_partitions_without_a_position_is_checked_before_a_reset() -> None:
    """A processor that has got a new name has no positions, and keeps the state of the old one."""
    with TestDriver(counting(), partitions=2) as driver:
        count_words(driver)
        driver._graph = counting("total")
        (lost,) = plan(driver, "total", ResetTarget({TopicPartition("g.words", 0): 2}))
        (first, second) = read_status(driver._graph, driver._environment, nobody())
    assert first.next == "goes on at g.words@2"
    assert f"total: the next start {second.next}" == lost
    assert lost.startswith(
        "total: the next start ends with InputLost: total: state 'counts' does not belong to the committed offsets: it "
        "is at g.words[1]@1, which has no committed offset"
    )


REFUSED = (
    "count: its inputs have 4 partitions, but its changelog '__ks.g.counts.changelog' has 2: new records of a key may "
    "be in a different partition from its state: read topics with 2 partitions; or copy the inputs to new topics with "
    "4 partitions (`@graph.map(OLD, to=NEW)`), read these, and stop all workers, delete '__ks.g.counts.changelog' "
    "(`kstreams topics delete --processor`), and set the group to the start (`kstreams recover reset --to-beginning`), "
    "so that the state is made again; without a copy, a key that has records in two partitions gets a state in each"
)


SPLIT_REMEDY = (
    "unless no key has such records, copy the input to a new topic, read that one, and make the state again: kstreams "
    "topics delete g.py --processor count, then kstreams recover reset g.py count --to-beginning"
)


@pytest.mark.parametrize("copied", [True, False])
def test_state_of_an_input_that_has_grown_is_made_again_of_a_copy(copied: bool) -> None:
    words = [f"{number}" for number in range(20)]
    with TestDriver(counting(), partitions=2) as driver:
        for word in words:
            driver.send("g.words", word, key=word)
        driver.run()
        stop(driver)
        driver.cluster.grow("g.words", 4)
        driver._graph, examined = counting(copied=copied), Examined(counting(copied=copied), "g.py", 1)
        create_topics(driver._graph, driver.cluster)
        for word in words:
            driver.send("g.words", word, key=word)
        with pytest.raises(TopicError) as refused:
            check_topics(driver._graph, driver.cluster)
        assert str(refused.value) == REFUSED
        driver.cluster.delete_topics(["__ks.g.counts.changelog"])
        follows = plan(driver, "count", ResetTarget())
        driver.restart()
        driver.run()
        is_right = driver.state("counts") == dict.fromkeys(words, 2)
        stop(driver)
        tasks = [each for each in read_status(driver._graph, driver._environment, nobody()) if each.growth]
        (*_, found) = [None, *find_doubts(Facts(ClusterDescription({}, {}), 0, tasks=tasks), examined)]
    split = "g.words had 2 partitions at first, and has 4: a key that has records in two gets a state in each"
    assert (is_right, f"count: {split}" in follows) == (copied, not copied)
    assert (found and describe(found)) == (None if copied else f"warning: count: {split}\n  {SPLIT_REMEDY}")


class Groups:
    """Notes which groups are deleted; `members` are in each."""

    def __init__(self, *members: Member) -> None:
        self.members, self.deleted = members, list[str]()

    def describe(self, groups: Collection[str]) -> dict[str, GroupInfo]:
        return {each: GroupInfo("Stable", self.members) for each in groups}

    def delete(self, group: str) -> None:
        self.deleted.append(group)


def forgetting(driver: TestDriver, processor: str, groups: Groups) -> ForgottenProcessor:
    admin: Any = groups
    return ForgottenProcessor(driver._graph, "g.py", driver._environment, admin, processor)


def test_processor_that_is_gone_is_forgotten_once_its_topics_are_deleted() -> None:
    with TestDriver(counting(), partitions=2) as driver:
        count_words(driver)
        for name, message in (
            ("count", "graph 'g' declares processor 'count': remove it from the graph first"),
            ("other", "graph 'g' had no processor 'other': those that it no longer declares: none"),
        ):
            with pytest.raises(UserMistake) as raised:
                forgetting(driver, name, Groups())
            assert str(raised.value) == message
        driver._graph = chain()
        with pytest.raises(UserMistake) as raised:
            forgetting(driver, "count", Groups())
        assert str(raised.value) == (
            "count: its topics are left (__ks.g.counts.changelog): delete them first: `kstreams topics delete g.py "
            "--processor count`"
        )
        groups: Any = Groups()
        deleting = TopicDeletion(driver._graph, "g.py", driver._environment, groups)
        deleting.delete(deleting.plan_processor("g.count"))
        forgotten = forgetting(driver, "g.count", groups)
        assert forgotten.found.committed == {TopicPartition("g.words", 0): 2, TopicPartition("g.words", 1): 1}
        forgotten.forget()
        assert groups.deleted == ["g.count"]
        assert find_undeclared(driver._graph, driver._environment, groups) == []
        with pytest.raises(UserMistake, match="graph 'g' had no processor 'count'"):
            forgetting(driver, "count", groups)


def test_processor_that_workers_run_is_not_forgotten() -> None:
    with TestDriver(counting(), partitions=2) as driver:
        count_words(driver)
        driver._graph = chain()
        member = Member("g.count.0", "id", "client", "host", ())
        with pytest.raises(UserMistake) as raised:
            forgetting(driver, "count", Groups(member))
        assert str(raised.value) == (
            "the group has members: g.count.0 on host: stop these workers; a member of a processor that is no "
            "longer declared leaves after session_timeout_ms: nothing was changed"
        )
        groups: Any = Groups(member)
        (found,) = find_undeclared(driver._graph, driver._environment, groups)
        assert found.remedy == (
            "if it has a new name, give it the id 'count' back, or stop its workers, then give the new one its "
            "positions (`kstreams recover reset`, then its id, then `--to-offset g.words:0:2 --to-offset g.words:1:1`)"
            "; if it is gone, stop its workers, then forget it (`kstreams recover forget`)"
        )


def test_positions_that_have_expired_are_read_again_or_end_the_next_start() -> None:
    with TestDriver(chain(), partitions=2) as driver:
        for partition in (0, 1):
            driver.send("in", b"1", partition=partition)
        driver.run()
        stop(driver)
        driver.cluster._broker.groups["g.price"].positions.clear()
        again, lost = plan(driver, "price", ResetTarget({TopicPartition("in", 0): 0}))
        driver.restart()
        with pytest.raises(InputLost) as raised:
            driver.run()
    assert again == (
        "price: outputs of records that are read again are written again to g.priced, with the same delivery hashes: "
        "to send they are new records"
    )
    assert lost == f"price: the next start ends with InputLost: {raised.value}"


def test_reset_before_the_first_start_says_where_other_partitions_begin() -> None:
    with TestDriver(chain(), partitions=2) as driver:
        driver.send("in", b"1", partition=0)
        check_topics(driver._graph, driver.cluster)
        driver.cluster.faults.delete_topic("__ks.g.beginnings")
        first = ResetTarget({TopicPartition("in", 0): 1})
        assert plan(driver, "price", first, then=False) == ["price: begins at in[1]@0"]


@pytest.mark.parametrize(
    ("evidence", "line"),
    [
        (Evidence.HASH, "rows of records that are read again are in {}, which stores none twice"),
        (
            Evidence.OFFSETS,
            "it goes on at the offsets that {} has; the group's count only for partitions without offsets there",
        ),
    ],
)
def test_rows_are_stored_once_whatever_is_read_again(evidence: Evidence, line: str, tmp_path: Path) -> None:
    graph = ks.Graph("g")
    target = sinks.SQLite(tmp_path / "rows.sqlite", table="rows", columns=("value",), evidence=evidence.value)
    graph.sink(graph.topic("in", value=ks.String()), to=target, id="store")(lambda value: {"value": value})
    with TestDriver(graph) as driver:
        driver.send("in", "1")
        driver.run()
        stop(driver)
        assert plan(driver, "store", ResetTarget()) == [f"store: {line.format(target)}"]


def test_what_cannot_be_known_does_not_keep_from_a_reset() -> None:
    with TestDriver(counting(), partitions=1) as driver:
        driver.send("g.words", "a", key="a")
        driver.run()
        stop(driver)
        driver.cluster.faults.inject("newest", error=Fatal("not allowed"), applied=False)
        *_, unknown = plan(driver, "count", ResetTarget())
        assert unknown == "count: whether the next start of partition 0 is refused is not known: not allowed"


def test_start_that_is_refused_for_its_topics_is_said_instead_of_what_follows() -> None:
    with TestDriver(counting(), partitions=2) as driver:
        count_words(driver)
        driver.cluster._broker.grow_topic("g.words", 4)
        (line,) = plan(driver, "count", ResetTarget({TopicPartition("g.words", 0): 0}), then=False)
        assert line.startswith("the next start ends with TopicError: count: its inputs have 4 partitions, but its ")
