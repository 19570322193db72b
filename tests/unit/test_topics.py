"""processing/topics.py: topics that are missing, that do not fit, that are the framework's own, and that grow."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from kstreams_py.cli import options
from kstreams_py.cli import topics as command
from kstreams_py.errors import GraphError, KStreamsError, TopicError
from kstreams_py.graph.declarations import State
from kstreams_py.graph.topology import Graph
from kstreams_py.processing.topics import (
    BEGINNINGS_SETTINGS,
    JOURNAL_SETTINGS,
    Growth,
    check_topics,
    create_topics,
    describe_idle_slots,
)
from kstreams_py.records import TopicPartition
from kstreams_py.testing import MemoryCluster, MemoryRegistry

IN_STEP = "processor 'pair' (join) reads 'b' with 2 partitions, but 'c' with 3: give both the same number of partitions"
NEEDS = (
    "topic 'd' has retention.ms=604800000 and needs 7: run kafka-configs --alter --topic d --add-config retention.ms=7"
)
OWN = ("__ks.g.beginnings", "__ks.g.merge.journal")


def graph_of(**topics: Any) -> Graph:
    """alts of a and b, a join of b and c, a map of d; `topics` has options by name."""
    graph = Graph("g")
    for name in "abcdx":
        graph.topic(name, **topics.get(name, {}))
    graph.alts("a", "b", to="x", id="merge")(lambda value: value)
    graph.join("b", "c", by="order", to="x", id="pair")(lambda left, right: left)
    graph.map("d", to="x", id="copy")(lambda value: value)
    return graph


def cluster_of(partitions: int = 2, **others: int) -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.create_topics([(name, others.get(name, partitions), -1, {}) for name in "abcdx"])
    return cluster


def read_own_topics(cluster: MemoryCluster) -> dict[str, tuple[int, dict[str, str]]]:
    """The framework's own topics: their partitions, and the settings that the framework checks."""
    checked = {*JOURNAL_SETTINGS, *BEGINNINGS_SETTINGS}
    return {
        name: (info.partitions, {setting: info.settings[setting] for setting in sorted(checked)})
        for name, info in cluster.topics(OWN).items()
    }


OWN_TOPICS = {
    "__ks.g.beginnings": (
        1, {"cleanup.policy": "compact", "retention.bytes": "-1", "retention.ms": "604800000"},
    ),
    "__ks.g.merge.journal": (2, {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}),
}  # fmt: skip


def test_missing_topics_are_created_as_declared_or_like_those_they_are_read_with() -> None:
    cluster = MemoryCluster()
    cluster.create_topics([("b", 3, -1, {})])
    graph = graph_of(x={"partitions": 5, "config": {"retention.ms": "7"}})
    assert sorted(create_topics(graph, cluster)) == ["a", "c", "d", "x"]
    found = cluster.topics("abcdx")
    assert {name: info.partitions for name, info in found.items()} == {"a": 3, "b": 3, "c": 3, "d": 4, "x": 5}
    assert found["x"].settings["retention.ms"] == "7"
    assert create_topics(graph, cluster) == []


def test_number_of_partitions_that_nothing_else_decides_can_be_chosen() -> None:
    cluster = MemoryCluster()
    cluster.create_topics([("b", 3, -1, {})])
    create_topics(graph_of(), cluster, 7)
    assert {name: info.partitions for name, info in cluster.topics("abcdx").items()} == {
        "a": 3, "b": 3, "c": 3, "d": 7, "x": 3,
    }  # fmt: skip


def test_more_slots_than_partitions_are_described_with_the_remedy() -> None:
    graph = graph_of()
    found = cluster_of(d=4).topics("abcdx")
    assert describe_idle_slots(graph, found, 4) == ""
    assert describe_idle_slots(graph, found, 8) == (
        "graph 'g' has 8 slots, but its inputs have 4 partition(s): only one slot at a time reads a partition, so 4 of "
        "the slots stay idle: run 4 slots, or create topics with more partitions (partitions= of the topic, "
        "--partitions with --create-topics)"
    )


def test_check_creates_the_frameworks_own_topics_and_returns_all_others() -> None:
    cluster = cluster_of()
    found = check_topics(graph_of(), cluster)
    assert {name: info.partitions for name, info in found.items()} == dict.fromkeys("abcdx", 2)
    assert read_own_topics(cluster) == OWN_TOPICS
    assert check_topics(graph_of(), cluster) == found
    assert read_own_topics(cluster) == OWN_TOPICS


def test_graph_without_alts_has_no_journal() -> None:
    graph, cluster = Graph("g"), cluster_of()
    graph.topic("a")
    graph.sink("a", id="p")(lambda value: None)
    check_topics(graph, cluster)
    assert list(read_own_topics(cluster)) == ["__ks.g.beginnings"]


@pytest.mark.parametrize(
    ("cluster", "topics", "message"),
    [
        (
            MemoryCluster(),
            {},
            "missing topics: a, b, c, d, x: run `kstreams topics create`, or start with --create-topics",
        ),
        (
            cluster_of(),
            {"d": {"partitions": 3}},
            (
                "topic 'd' has 2 partitions, but the graph declares 3: correct the declaration, or delete the topic "
                "and create it again"
            ),
        ),
        (cluster_of(), {"d": {"config": {"retention.ms": "7"}}}, NEEDS),
        (cluster_of(c=3), {}, IN_STEP),
    ],
    ids=["missing", "partitions", "settings", "in step"],
)
def test_topic_that_does_not_fit_is_refused_and_nothing_is_created(
    cluster: MemoryCluster, topics: dict[str, Any], message: str
) -> None:
    with pytest.raises(KStreamsError) as caught:
        check_topics(graph_of(**topics), cluster)
    assert (str(caught.value), read_own_topics(cluster)) == (message, {})


@pytest.mark.parametrize(("name", "setting"), [(OWN[0], "cleanup.policy"), (OWN[1], "retention.ms")])
def test_own_topic_with_settings_that_would_lose_its_records_is_refused(name: str, setting: str) -> None:
    cluster = cluster_of()
    check_topics(graph_of(), cluster)
    cluster._broker.topics[name].settings[setting] = "something"
    with pytest.raises(TopicError, match=f"topic '{name}' has {setting}=something and needs "):
        check_topics(graph_of(), cluster)


@pytest.mark.parametrize("while_running", [True, False])
def test_journal_grows_with_the_inputs_and_the_beginnings_do_not(while_running: bool) -> None:
    cluster, graph = cluster_of(), graph_of()
    growth = Growth(graph, graph.processors[0], cluster, check_topics(graph, cluster))
    for name in "abc":
        cluster.grow(name, 4)
    if while_running:
        growth.check({TopicPartition("a", 3)})
    else:
        check_topics(graph, cluster)
    assert read_own_topics(cluster) == OWN_TOPICS | {"__ks.g.merge.journal": (4, OWN_TOPICS["__ks.g.merge.journal"][1])}


def test_journal_that_has_more_partitions_than_its_inputs_is_left_alone() -> None:
    cluster = cluster_of()
    check_topics(graph_of(), cluster)
    cluster.grow("__ks.g.merge.journal", 4)
    before = len(cluster.faults.requests)
    check_topics(graph_of(), cluster)
    assert (read_own_topics(cluster)["__ks.g.merge.journal"][0], "grow" in cluster.faults.requests[before:]) == (
        4,
        False,
    )


def test_growth_of_one_of_two_inputs_read_in_step_is_refused_with_both_counts() -> None:
    cluster, graph = cluster_of(), graph_of()
    merge, pair, single = (Growth(graph, each, cluster, cluster.topics("abcd")) for each in graph.processors)
    cluster.grow("c", 3)
    with pytest.raises(GraphError) as caught:
        pair.check({TopicPartition("c", 2)})
    assert str(caught.value) == IN_STEP
    merge.check({TopicPartition("a", 1)})  # `merge` does not read c
    cluster.grow("d", 3)
    single.check({TopicPartition("d", 2)})


def test_growth_that_a_state_does_not_follow_ends_only_its_own_processor() -> None:
    cluster, graph = cluster_of(), Graph("g")
    graph.map(graph.topic("d"), to=graph.topic("a"), id="count", state=State("n"))(lambda value, state: value)
    graph.map(graph.topics["d"], to=graph.topics["a"], id="store")(lambda value: value)
    found = check_topics(graph, cluster)
    cluster.grow("d", 3)
    count, store = (Growth(graph, each, cluster, found) for each in graph.processors)
    store.check({TopicPartition("d", 2)})
    with pytest.raises(TopicError, match=r"^count: its inputs have 3 partitions"):
        count.check({TopicPartition("d", 2)})


def test_growth_that_is_known_makes_no_request() -> None:
    cluster, graph = cluster_of(), graph_of()
    growth = Growth(graph, graph.processors[0], cluster, check_topics(graph, cluster))
    cluster.grow("a", 4)
    cluster.grow("b", 4)
    growth.check({TopicPartition("a", 3)})
    before = len(cluster.faults.requests)
    growth.check({TopicPartition("a", 3), TopicPartition("b", 0)})
    assert cluster.faults.requests[before:] == []


def run_command(monkeypatch: pytest.MonkeyPatch, graph: Graph, cluster: MemoryCluster, word: str) -> str:
    """What `kstreams topics WORD` prints."""
    monkeypatch.setattr(options, "load", lambda _: graph)
    monkeypatch.setattr(options, "KafkaCluster", lambda _: cluster)
    monkeypatch.setattr(options, "open_registry", lambda *_: MemoryRegistry())
    monkeypatch.setattr(cluster, "close", lambda: None, raising=False)
    done = CliRunner().invoke(command.app, [word, "g.py"])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("errors", "marks"), [(None, []), ("dead", ["__ks.g.replayed"])])
def test_command_creates_the_topics_of_the_framework_and_a_worker_then_none(
    errors: str | None, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, graph = MemoryCluster(), Graph("g", errors=errors)
    graph.alts(graph.topic("a", partitions=3), graph.topic("b"), to=graph.topic("x"), id="merge")(lambda value: value)

    def run() -> list[str]:
        return run_command(monkeypatch, graph, cluster, "create").splitlines()

    declared = ["a", "b", "x", *(["dead"] if errors else [])]
    own = ["__ks.g.merge.journal", "__ks.g.beginnings", *marks]
    assert run() == [f"created {name}" for name in (*declared, *own)]
    assert read_own_topics(cluster) == OWN_TOPICS | {"__ks.g.merge.journal": (3, OWN_TOPICS["__ks.g.merge.journal"][1])}
    assert [cluster.topics(marks)[name].settings["cleanup.policy"] for name in marks] == ["compact"] * len(marks)
    assert run() == ["all topics exist"]
    check_topics(graph, cluster)
    assert sorted(cluster._broker.topics) == sorted([*declared, *own])


def test_command_describes_each_topic_and_who_reads_and_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, graph = MemoryCluster(), Graph("g", errors="dead")
    cluster.create_topics([("a", 2, -1, {"cleanup.policy": "compact"}), ("b", 3, -1, {"retention.ms": "9"})])
    graph.topic("a", partitions=2, config={"retention.bytes": -1})
    graph.topic("b", partitions=4, replication=3, config={"retention.ms": 7})
    graph.topic("unused", cluster="west")
    graph.map("a", to=graph.topic("x", config={"retention.ms": 7}), id="first")(lambda value: value)
    graph.map("a", to="b", id="second", errors=None)(lambda value: value)
    graph.pipeline("x", to=graph.topic("table"), id="totals", mode="append")(lambda frame: frame)
    assert (
        run_command(monkeypatch, graph, cluster, "describe")
        == """\
a: 2 partitions, replication 1
  settings    cleanup.policy=compact, retention.bytes=-1
  read by     first, second
b: 3 partitions, replication 1
  declares    4 partitions, replication 3
  settings    retention.ms=9 (declared: 7)
  written by  second
unused on cluster west: does not exist
x: does not exist
  settings    retention.ms=7
  read by     totals
  written by  first
table: does not exist
  written by  totals
dead: does not exist
  written by  first
"""
    )
    assert [name for name in ("x", "table", "dead", *OWN) if cluster.topics([name])] == []
