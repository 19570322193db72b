"""`kstreams recover status` in memory: what it says of the next start is what that start then does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.errors import BrokerUnavailable, Fatal, InputLost, RecoveryUndecidable
from kstreams_py.kafka.contracts import TRANSACTIONAL
from kstreams_py.kafka.groups import GroupInfo, Member
from kstreams_py.operations.recover.reset import GraphPositions, ResetTarget
from kstreams_py.operations.recover.status import read_status
from kstreams_py.operations.recover.task_status import JournalTail, TaskStatus, as_fields, describe
from kstreams_py.processing.topics import create_own_topics, find_topics
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import MemoryCluster, MemoryRegistry, TestDriver


class Groups:
    """Says who is in a group."""

    def __init__(self, *members: Member) -> None:
        self._members = members

    def describe(self, groups: Collection[str]) -> dict[str, GroupInfo]:
        return {group: GroupInfo("Stable", self._members) for group in groups}


def read(graph: ks.Graph, cluster: MemoryCluster, *members: Member) -> list[TaskStatus]:
    groups: Any = Groups(*members)
    environment = Environment(cluster, MemoryRegistry(), Settings(), clock=cluster.clock)
    return list(read_status(graph, environment, groups))


def reset(graph: ks.Graph, cluster: MemoryCluster, positions: Positions) -> None:
    nobody: Any = Groups()
    environment = Environment(cluster, MemoryRegistry(), Settings(), clock=cluster.clock)
    moving = GraphPositions(graph, "graph.py", environment, nobody)
    moving.move(moving.plan_reset("p", ResetTarget(offsets=positions)))


def copier(**options: Any) -> ks.Graph:
    graph = ks.Graph("g")
    graph.map(graph.topic("in"), to=graph.topic("out"), id="p", **options)(lambda value: value)
    return graph


def test_tasks_that_were_never_started_begin_where_their_first_worker_would() -> None:
    graph = copier()
    with TestDriver(graph, partitions=2) as driver:
        driver.send("in", b"one", partition=1)
        found = read(graph, driver.cluster)
        assert [describe(each) for each in found] == [
            "p[0]: committed none, held by no member\n  next start: begins at in@0",
            "p[1]: committed none, held by no member\n  next start: begins at in@0",
        ]


def test_task_that_is_processed_goes_on_at_its_committed_offset() -> None:
    graph = copier()
    with TestDriver(graph) as driver:
        for value in (b"one", b"two"):
            driver.send("in", value)
        driver.run()
        driver.send("in", b"three")
        member = Member("g.p.0", "id", "client", "host", (TopicPartition("in", 0),))
        (found,) = read(graph, driver.cluster, member)
    assert describe(found) == "p[0]: committed in@2, lag 1, held by g.p.0 on host\n  next start: goes on at in@2"
    assert as_fields(found) == {
        "processor": "p",
        "partition": 0,
        "committed": {"in": 2},
        "lag": 1,
        "holder": "g.p.0 on host",
        "hidden": [],
        "tail": None,
        "branch": "",
        "next": "goes on at in@2",
        "refused": False,
    }


def test_topic_that_tasks_over_channels_read_has_a_status_of_each_partition() -> None:
    graph = ks.Graph("g")
    parsed = graph.channel("parsed")
    graph.map(graph.topic("in"), to=parsed, id="parse")(lambda value: value)
    graph.sink(parsed, id="end")(lambda value: None)
    with TestDriver(graph, partitions=2) as driver:
        first = "parse[1]: committed none, held by no member\n  next start: begins at in@0"
        assert describe(read(graph, driver.cluster)[1]) == first
        for value in (b"one", b"two"):
            driver.send("in", value, partition=0)
        driver.run()
        member = Member("g.in.0", "id", "client", "host", (TopicPartition("in", 0),))
        found = "parse[0]: committed in@2, lag 0, held by g.in.0 on host\n  next start: goes on at in@2"
        assert describe(read(graph, driver.cluster, member)[0]) == found
        driver.send("in", b"three", partition=0)
        driver.cluster.truncate(TopicPartition("in", 0), 3)
        (lost, _) = read(graph, driver.cluster)
        at = "kafka-consumer-groups.sh --bootstrap-server 127.0.0.1:9092"
        reset = f"{at} --reset-offsets --group g.in --topic in:0 --to-offset 3 --execute"
        text = "in[0] has the offsets from 3 to 3, and the committed one is 2: set it"
        assert (lost.is_refused, lost.next) == (True, f"ends with InputLost: {text} (`{reset}`)")
        driver.cluster.delete_topics(["in"])
        assert [(each.is_refused, "TopicError" in each.next) for each in read(graph, driver.cluster)] == [(True, True)]


@pytest.mark.parametrize(
    ("cluster", "request_name", "nth", "plan"),
    [
        ("", "", 0, "recovery 1a: goes on at in@1"),
        ("", "produce", 3, "recovery 1b: makes the delivery again from in@1"),
        ("", "commit_transaction", 2, "recovery 1d, 2, 3b: makes the delivery again from in@1"),
        ("", "commit_transaction", 3, "recovery 1d, 2, 3a: goes on at in@2"),
        ("west", "commit_transaction", 1, "recovery 1d, 2, 3a: goes on at in@2"),
    ],
)
def test_task_with_a_journal_takes_the_branch_that_is_named(
    cluster: str, request_name: str, nth: int, plan: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kstreams_py.processing.journal.deliveries")
    graph = ks.Graph("g")
    out = graph.topic("out", cluster=cluster)
    graph.map(graph.topic("in"), to=out, id="p", persistence="journal")(lambda value: value)
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        driver.send("in", b"two")
        if nth:
            driver.crash(request_name, nth=nth, cluster=cluster)
            driver.advance(60.0)
        else:
            driver.crash()
            driver.cluster._broker.delete_topic("__ks.g.p.journal")  # on one cluster, the offsets tell as much
            create_own_topics(graph, driver.cluster, find_topics(graph, driver.cluster))
        (found,) = read(graph, driver.cluster)
        records = driver.cluster.records("__ks.g.p.journal")
        tail = (
            JournalTail((dict(records[-1].headers() or ())["ks-type"] or b"").decode(), records[-1].offset())
            if nth
            else None
        )
        assert (found.next, found.tail, found.branch) == (plan, tail, plan.partition(":")[0].removeprefix("recovery "))
        driver.restart()
        driver.run()
        assert driver.values("out") == [b"one", b"two"]
    assert f"p: partition 0: {plan.partition(':')[0]}" == caplog.messages[-1]


def test_tail_of_a_journal_and_the_branch_are_shown_as_text_and_as_json() -> None:
    graph = copier(persistence="journal")
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.crash("produce", nth=3)
        driver.advance(60.0)
        (found,) = read(graph, driver.cluster)
    assert describe(found) == (
        "p[0]: committed in@0, lag 1, held by no member\n"
        "  newest record of its journal: snapshot, offset 0\n"
        "  next start: recovery 1b: makes the delivery again from in@0"
    )
    assert as_fields(found) == {
        "processor": "p",
        "partition": 0,
        "committed": {"in": 0},
        "lag": 1,
        "holder": "",
        "hidden": [],
        "tail": {"type": "snapshot", "offset": 0},
        "branch": "1b",
        "next": "recovery 1b: makes the delivery again from in@0",
        "refused": False,
    }


@pytest.mark.parametrize("options", [{"persistence": "journal"}, {}], ids=["journal", "choices"])
def test_task_of_a_partition_that_was_added_has_no_journal_before_its_first_start(options: dict[str, Any]) -> None:
    graph = ks.Graph("g")
    graph.alts(graph.topic("a"), graph.topic("b"), to=graph.topic("out"), id="p", **options)(lambda value: value)
    with TestDriver(graph) as driver:
        driver.send("a", b"one")
        driver.run()
        driver.crash()
        for topic in ("a", "b"):
            driver.cluster.grow(topic, 2)
        found = read(graph, driver.cluster)[1]
        assert (found.partition, found.is_refused, found.tail) == (1, False, None)
        assert found.branch == ("1a" if options else "")
        driver.send("a", b"two", partition=1)
        driver.restart()
        driver.run()
        assert driver.values("out") == [b"one", b"two"]


def test_task_whose_journal_was_emptied_is_refused_until_it_is_reset() -> None:
    graph, journal = copier(persistence="journal"), TopicPartition("__ks.g.p.journal", 0)
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        end = driver.cluster.ends([journal])[journal]
        driver.cluster.truncate(journal, end)
        driver.crash()
        driver.restart()
        reason = (
            f"p: partition 0: journal {journal}: all its records before offset {end} were deleted, and whether the "
            "last delivery was committed is not known without the newest ones: decide where it goes on, and set it "
            "(`kstreams recover reset GRAPH p`), then start again"
        )
        with pytest.raises(RecoveryUndecidable) as raised:
            driver.run()
        assert str(raised.value) == reason
        (found,) = read(graph, driver.cluster)
        assert (found.next, found.is_refused) == (f"ends with RecoveryUndecidable: {reason}", True)
        driver.advance(60.0)
        reset(graph, driver.cluster, {TopicPartition("in", 0): 1})
        driver.send("in", b"two")
        driver.restart()
        driver.run()
        assert driver.values("out") == [b"one", b"two"]


def test_reset_of_a_processor_forgets_what_its_other_cluster_has_of_later_deliveries() -> None:
    """Also where the new snapshot is that of the newest delivery."""
    graph = ks.Graph("g")
    graph.map(graph.topic("in"), to=graph.topic("out", cluster="west"), id="p")(lambda value: value)
    with TestDriver(graph) as driver:
        for at, value in enumerate((b"one", b"two")):
            driver.send("in", value)
            driver.run()
            driver.crash()
            driver.advance(60.0)
            reset(graph, driver.cluster, {TopicPartition("in", 0): at})
            driver.restart()
            driver.run()
        assert driver.values("out") == [b"one", b"one", b"two", b"two"]


def test_reset_whose_other_cluster_is_away_is_to_be_run_again() -> None:
    graph = ks.Graph("g")
    graph.map(graph.topic("in"), to=graph.topic("out", cluster="west"), id="p")(lambda value: value)
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        driver.crash()
        driver.advance(60.0)
        faults = driver.cluster.named("west").faults
        faults.inject("produce", error=Fatal("no broker answers"), applied=False)
        with pytest.raises(BrokerUnavailable) as raised:
            reset(graph, driver.cluster, {TopicPartition("in", 0): 0})
        assert str(raised.value) == (
            "the positions are set, but cluster 'west' keeps the records of earlier deliveries (no broker answers): "
            "run the command again"
        )
        (found,) = read(graph, driver.cluster)
        assert found.is_refused, "nothing is written twice unless the command is run again"
        reset(graph, driver.cluster, {TopicPartition("in", 0): 0})
        driver.restart()
        driver.run()
        assert driver.values("out") == [b"one", b"one"]


def test_alts_follows_what_it_has_recorded() -> None:
    graph = ks.Graph("g")
    graph.alts(graph.topic("a"), graph.topic("b"), to=graph.topic("out"), id="p")(lambda value: value)
    with TestDriver(graph) as driver:
        for topic in ("a", "a", "b"):
            driver.send(topic, topic.encode())
        driver.crash("commit_transaction", nth=3, applied=False)  # beginnings, choices, then outputs
        driver.advance(60.0)
        (found,) = read(graph, driver.cluster)
        assert found.next == "goes on at a@0, b@0, first in the recorded order: a through 1, b through 0"
        driver.restart()
        driver.run()
        assert driver.values("out") == [b"a", b"a", b"b"]


def test_start_that_ends_by_lost_input_is_foretold() -> None:
    graph = copier()
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        for value in (b"two", b"three"):
            driver.send("in", value)
        driver.crash()
        driver.cluster.truncate(TopicPartition("in", 0), 2)
        (found,) = read(graph, driver.cluster)
        assert (found.is_refused, found.next) == (
            True,
            (
                "ends with InputLost: in[0] begins at offset 2, and its committed offset is 1: set it (`kstreams "
                "recover reset --to-offset in:0:2`)"
            ),
        )
        driver.restart()
        with pytest.raises(InputLost):
            driver.run()


def test_start_that_ends_by_expired_positions_is_foretold() -> None:
    graph = copier()
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        driver.crash()
        driver.cluster.faults.forget_positions("g.p")
        (found,) = read(graph, driver.cluster)
        assert found.is_refused
        driver.restart()
        with pytest.raises(InputLost) as raised:
            driver.run()
    assert found.next == f"ends with InputLost: {raised.value}"


def test_start_that_ends_by_a_journal_that_contradicts_is_foretold() -> None:
    graph = copier(persistence="journal")
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.run()
        driver.crash()
        driver.cluster.append("__ks.g.p.journal", b"foreign", partition=0)
        (found,) = read(graph, driver.cluster)
        driver.restart()
        with pytest.raises(RecoveryUndecidable) as raised:
            driver.run()
    assert (found.is_refused, found.next) == (True, f"ends with RecoveryUndecidable: {raised.value}")


def test_transaction_of_a_worker_that_died_over_its_journal_is_named() -> None:
    graph = copier(persistence="journal")
    with TestDriver(graph) as driver:
        driver.send("in", b"one")
        driver.crash("produce", nth=4)
        (found,) = read(graph, driver.cluster)
    (on_journal, on_output) = found.hidden
    assert on_journal.startswith(
        "transactions are open on __ks.g.p.journal[0], and hide records from offset 2 on: producer "
    )
    assert "(g.p.0.journal) from offset 2, " in on_journal
    assert on_output.startswith("a transaction is open on out[0]: producer ")
    assert "(g.p.0) from offset 0, " in on_output
    assert found.next.startswith("ends or waits for a transaction, then decides: ")
    assert (found.branch, found.tail) == ("", JournalTail("snapshot", 0))


@pytest.mark.parametrize("cluster", ["", "west"])
def test_transaction_on_outputs_is_named_once_with_all_partitions(cluster: str) -> None:
    graph = ks.Graph("g", errors=None)
    out = graph.topic("out", cluster=cluster)
    graph.map(graph.topic("in"), to=out, id="p", errors="dead")(lambda value: value)
    with TestDriver(graph, partitions=2) as driver:
        producer = driver.cluster.named(cluster).producer(TRANSACTIONAL, "billing")
        producer.init_transactions()
        producer.begin_transaction()
        records = (("out", 0), ("out", 1), ("dead", 0))
        producer.write([(topic, b"", None, number, None, None, 0, None) for topic, number in records])
        producer.flush()
        found = read(graph, driver.cluster)
        (line,) = {each for status in found for each in status.hidden}
        assert line.startswith("a transaction is open on out[0], out[1], dead[0]: producer ")
        assert " (billing) from offset 0, " in line
        assert [len(status.hidden) for status in found] == [1, 1]
        driver.cluster.named(cluster).faults.inject("open_transactions", error=Fatal("not allowed"), applied=False)
        hidden = [status.hidden for status in read(graph, driver.cluster)]
        assert hidden == [("it is unknown which transactions are open on its outputs: not allowed",)] * 2


def test_missing_topics_are_one_message() -> None:
    refused = "ends with TopicError: missing topics: {}: run `kstreams topics create`, or start with --create-topics"
    cluster = MemoryCluster()
    (found,) = read(copier(), cluster)
    why = refused.format("in, out")
    assert found == TaskStatus("p", 0, {}, None, "", (), why, is_refused=True, refusal=why)
    assert describe(found) == "p[0]: committed none, held by no member"
    cluster.create_topics([("in", 2, -1, {})])
    for number, each in enumerate(read(copier(), cluster)):
        assert (each.is_refused, each.refusal, as_fields(each)["next"]) == (True, *[refused.format("out")] * 2)
        assert describe(each).splitlines()[1:] == ["  next start, once that is corrected: begins at in@0"], number
