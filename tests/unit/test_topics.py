"""engine/topics.py: topics that are missing, that do not fit, that are the framework's own, and that grow."""

from __future__ import annotations

from typing import Any

import pytest

from kstreams_py.engine.topics import (
    BEGINNINGS_SETTINGS,
    JOURNAL_SETTINGS,
    check_growth,
    check_topics,
    create_topics,
)
from kstreams_py.errors import GraphError, KStreamsError, TopicError
from kstreams_py.testing import MemoryLog
from kstreams_py.topology import Graph

IN_STEP = "processor 'pair' (join) reads 'b' with 2 partitions and 'c' with 3: give both the same number of partitions"
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
    graph.join("b", "c", to="x", id="pair")(lambda left, right: left)
    graph.map("d", to="x", id="copy")(lambda value: value)
    return graph


def log_of(partitions: int = 2, **others: int) -> MemoryLog:
    log = MemoryLog()
    log.create_topics([(name, others.get(name, partitions), -1, {}) for name in "abcdx"])
    return log


def own(log: MemoryLog) -> dict[str, tuple[int, dict[str, str]]]:
    """The framework's own topics: how many partitions they have, and their settings that matter."""
    matter = {*JOURNAL_SETTINGS, *BEGINNINGS_SETTINGS}
    return {
        name: (info.partitions, {setting: info.settings[setting] for setting in sorted(matter)})
        for name, info in log.topics(OWN).items()
    }


KEPT = {
    "__ks.g.beginnings": (
        1, {"cleanup.policy": "compact", "retention.bytes": "-1", "retention.ms": "604800000"},
    ),
    "__ks.g.merge.journal": (2, {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}),
}  # fmt: skip


def test_topics_that_are_missing_are_created_as_declared_or_as_those_they_are_read_with() -> None:
    log = MemoryLog()
    log.create_topics([("b", 3, -1, {})])
    graph = graph_of(x={"partitions": 5, "config": {"retention.ms": "7"}})
    assert sorted(create_topics(graph, log)) == ["a", "c", "d", "x"]
    found = log.topics("abcdx")
    assert {name: info.partitions for name, info in found.items()} == {"a": 3, "b": 3, "c": 3, "d": 1, "x": 5}
    assert found["x"].settings["retention.ms"] == "7"
    assert create_topics(graph, log) == []


def test_check_creates_the_frameworks_own_topics_and_says_how_all_others_are() -> None:
    log = log_of()
    found = check_topics(graph_of(), log)
    assert {name: info.partitions for name, info in found.items()} == dict.fromkeys("abcdx", 2)
    assert own(log) == KEPT
    assert check_topics(graph_of(), log) == found
    assert own(log) == KEPT


def test_graph_without_alts_has_no_journal() -> None:
    graph, log = Graph("g"), log_of()
    graph.topic("a")
    graph.sink("a", id="p")(lambda value: None)
    check_topics(graph, log)
    assert list(own(log)) == ["__ks.g.beginnings"]


@pytest.mark.parametrize(
    ("log", "topics", "message"),
    [
        (
            MemoryLog(),
            {},
            "missing topics: a, b, c, d, x: run `kstreams topics create`, or start with --create-topics",
        ),
        (
            log_of(),
            {"d": {"partitions": 3}},
            "topic 'd' has 2 partitions and the graph declares 3: correct the declaration, or make the topic anew",
        ),
        (
            log_of(),
            {"d": {"config": {"retention.ms": "7"}}},
            NEEDS,
        ),
        (
            log_of(c=3),
            {},
            IN_STEP,
        ),
    ],
    ids=["missing", "partitions", "settings", "in step"],
)
def test_topic_that_does_not_fit_is_refused_and_nothing_is_created(
    log: MemoryLog, topics: dict[str, Any], message: str
) -> None:
    with pytest.raises(KStreamsError) as caught:
        check_topics(graph_of(**topics), log)
    assert (str(caught.value), own(log)) == (message, {})


@pytest.mark.parametrize(("name", "setting"), [(OWN[0], "cleanup.policy"), (OWN[1], "retention.ms")])
def test_own_topic_with_settings_that_would_lose_its_records_is_refused(name: str, setting: str) -> None:
    log = log_of()
    check_topics(graph_of(), log)
    log._broker.topics[name].settings[setting] = "something"  # type: ignore[index]
    with pytest.raises(TopicError, match=f"topic '{name}' has {setting}=something and needs "):
        check_topics(graph_of(), log)


@pytest.mark.parametrize("while_running", [True, False])
def test_journal_grows_with_the_inputs_and_the_beginnings_do_not(while_running: bool) -> None:
    log, graph = log_of(), graph_of()
    check_topics(graph, log)
    for name in "abc":
        log.grow(name, 4)
    if while_running:
        found = check_growth(graph, graph.processors[0], log)
        assert {name: info.partitions for name, info in found.items()} == {"a": 4, "b": 4}
    else:
        check_topics(graph, log)
    assert own(log) == KEPT | {"__ks.g.merge.journal": (4, KEPT["__ks.g.merge.journal"][1])}


def test_journal_that_has_more_partitions_than_its_inputs_is_left_alone() -> None:
    log = log_of()
    check_topics(graph_of(), log)
    log.grow("__ks.g.merge.journal", 4)
    before = len(log.requests)
    check_topics(graph_of(), log)
    assert (own(log)["__ks.g.merge.journal"][0], "grow" in log.requests[before:]) == (4, False)


def test_growth_of_one_of_two_inputs_that_are_read_in_step_is_refused_with_both_counts() -> None:
    log, graph = log_of(), graph_of()
    log.grow("c", 3)
    with pytest.raises(GraphError) as caught:
        check_growth(graph, graph.processors[1], log)
    assert str(caught.value) == IN_STEP
    check_growth(graph, graph.processors[0], log)  # which does not read c
    log.grow("d", 3)
    assert check_growth(graph, graph.processors[2], log)["d"].partitions == 3
