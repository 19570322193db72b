"""`kstreams topics delete`: the topics that it finds, what it says of each, what it refuses, what a start does then."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.cli import topics as command
from kstreams_py.cli.main import app
from kstreams_py.errors import InputLost, SettingsError, UserMistake
from kstreams_py.graph.names import is_own_topic
from kstreams_py.kafka.groups import GroupInfo, Member
from kstreams_py.operations.recover.reset import GraphPositions, ResetTarget
from kstreams_py.operations.topics import DeletableTopic, TopicDeletion
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.records import TopicPartition
from kstreams_py.spark.pipelines.runs import PipelineRun, Published
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import MemoryCluster, MemoryRegistry, TestDriver

MINE = Member("g.count.0", "id", "g.count.0@here", "here", ())


class Groups:
    """Says which groups have members, and notes which were asked for."""

    def __init__(self, **members: Member) -> None:
        self.members, self.asked = members, list[str]()

    def describe(self, groups: Collection[str]) -> dict[str, GroupInfo]:
        self.asked += groups
        mine = {each: self.members.get(each.removeprefix("g.")) for each in groups}
        return {each: GroupInfo("Stable", () if member is None else (member,)) for each, member in mine.items()}


def deletion(graph: ks.Graph, cluster: MemoryCluster, groups: Groups | None = None) -> TopicDeletion:
    admin: Any = groups or Groups()
    return TopicDeletion(graph, "g.py", Environment(cluster, MemoryRegistry(), Settings(), cluster.clock), admin)


def counting(state: str | None = "counts", **options: Any) -> ks.Graph:
    """Counts words; the processor is of graph g, and is called count."""
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=ks.String(), value=ks.String())
    counts = graph.topic("g.counts", key=ks.String(), value=ks.Json())
    if state is None:
        graph.map(words, to=counts, id="count", **options)(len)
        return graph

    def count(word: str, state: ks.KeyedStore[str, int]) -> int:
        number = state.get(word, 0) + 1
        state.put(word, number)
        return number

    graph.map(words, to=counts, id="count", state=ks.State(state), **options)(count)
    return graph


def without() -> ks.Graph:
    """The graph after its processor was removed, and another added."""
    graph = ks.Graph("g", errors="g.errors")
    graph.map(graph.topic("g.words"), to=graph.topic("g.others"), id="other")(lambda word: word)
    return graph


@contextmanager
def run(graph: ks.Graph, *words: str) -> Iterator[TestDriver]:
    """A driver whose workers have read words."""
    with TestDriver(graph, partitions=2) as driver:
        for word in words:
            driver.send("g.words", word, key=word)
        driver.run()
        yield driver


def names(found: list[DeletableTopic]) -> list[str]:
    return [each.name for each in found]


def test_topics_of_a_processor_that_is_no_longer_declared_are_deleted_and_no_other() -> None:
    with run(counting(), "a", "b", "a") as driver:
        cluster = driver.cluster
        cluster.create_topics([("__ks.g.never-begun.journal", 1, -1, {}), ("__ks.g.count.x.journal", 1, -1, {})])
        assert deletion(counting(), cluster).plan_unused() == []
        create_topics(without(), cluster)
        deleting = deletion(without(), cluster)
        found = deleting.plan_unused()
        partitions = [TopicPartition("__ks.g.counts.changelog", number) for number in range(2)]
        records = sum(cluster.ends(partitions, committed=False).values())
        assert records > 3
        assert found == [
            DeletableTopic(
                "__ks.g.counts.changelog",
                "",
                ("count",),
                (
                    (
                        "if count is declared with this state again, it begins empty: then set its group: `kstreams "
                        "recover reset g.py count --to-beginning`, or --to-offset with where it is"
                    ),
                ),
                2,
                records,
            )
        ]
        before = set(cluster._broker.topics)
        deleting.delete(found)
        assert before - set(cluster._broker.topics) == {"__ks.g.counts.changelog"}
        assert deleting.plan_unused() == []


def test_state_and_journal_that_a_declared_processor_no_longer_has_are_deleted() -> None:
    with run(counting(None, persistence="journal"), "a") as driver:
        cluster = driver.cluster
        journal = "__ks.g.count.journal"
        assert [(each.name, each.follows) for each in deletion(counting(None), cluster).plan_unused()] == [
            (
                journal,
                (
                    (
                        "if count is declared with it again, count goes on at its committed offsets, and makes an open "
                        "delivery again"
                    ),
                ),
            )
        ]
        assert names(deletion(counting(None, persistence="journal"), cluster).plan_unused()) == []
    with run(counting("counts"), "a") as driver:
        assert names(deletion(counting("counts-2"), driver.cluster).plan_unused()) == ["__ks.g.counts.changelog"]
        moved = without()
        moved.map("g.words", to="g.others", id="taker", state=ks.State("counts"))(lambda word, state: word)
        assert deletion(moved, driver.cluster).plan_unused() == [], "another processor has the state now"


def test_state_in_use_is_deleted_by_its_processor_and_begins_empty_after_a_reset() -> None:
    with run(counting(), "a", "a") as driver:
        deleting = deletion(driver._graph, driver.cluster)
        (found,) = deleting.plan_processor("count")
        assert (found.name, found.processors, found.follows) == (
            "__ks.g.counts.changelog",
            ("count",),
            (
                (
                    "state 'counts' begins empty: set the group before the next start: `kstreams recover reset g.py "
                    "count --to-beginning`, or --to-offset with where it is"
                ),
            ),
        )
        driver.crash()
        deleting.delete([found])
        check_topics(driver._graph, driver.cluster)
        driver.restart()
        driver.send("g.words", "a", key="a")
        with pytest.raises(InputLost, match=r"it was deleted, and its contents are lost: set the group to the start"):
            driver.run()
        for slot in list(driver._workers):
            driver._kill(slot)
        driver.advance(60)
        nobody: Any = SimpleNamespace(describe=lambda _: {})
        moving = GraphPositions(driver._graph, "g.py", driver._environment, nobody)
        moving.move(moving.plan_reset("count", ResetTarget()))
        driver.restart()
        driver.run()
        assert (driver.state("counts"), driver.values("g.counts")) == ({"a": 3}, [1, 2, 1, 2, 3])


def test_directory_of_a_state_on_disk_is_named() -> None:
    graph = ks.Graph("g")
    graph.map(graph.topic("g.words"), to=graph.topic("g.counts"), id="count", state=ks.State("counts", on_disk=True))(
        lambda word, state: word
    )
    cluster = MemoryCluster()
    cluster.create_topics([("__ks.g.counts.changelog", 1, -1, {})])
    (found,) = deletion(graph, cluster).plan_processor("count")
    assert found.follows[1:] == ("delete the directory g/counts in state_directory on each machine, too",)


def test_journal_and_record_on_another_cluster_are_deleted_on_their_clusters() -> None:
    graph = ks.Graph("g")
    graph.map(graph.topic("g.words"), to=graph.topic("west.words", cluster="west"), id="copy")(lambda word: word)
    with TestDriver(graph) as driver:
        driver.send("g.words", b"a")
        driver.run()
        west = driver.cluster.named("west")
        deleting = deletion(graph, driver.cluster)
        found = deleting.plan_processor("copy")
        assert [(each.name, each.cluster, each.follows) for each in found] == [
            (
                "__ks.g.copy.journal", "",
                ("copy goes on at its committed offsets, and makes an open delivery again",),
            ),
            (
                "__ks.g.copy.delivered", "west",
                (
                    ("a delivery to cluster 'west' whose offsets are not committed yet is doubled: `kstreams recover "
                    "status g.py` shows it"),
                ),
            ),
        ]  # fmt: skip
        deleting.delete(found)
        assert driver.cluster.topics(["__ks.g.copy.journal"]) == west.topics(["__ks.g.copy.delivered"]) == {}
        assert list(west.topics(["west.words"])) == ["west.words"]


def test_members_of_a_group_refuse_the_deletion_of_its_topics_after_they_were_shown() -> None:
    with run(counting(), "a") as driver:
        create_topics(without(), driver.cluster)
        groups = Groups()
        deleting = deletion(without(), driver.cluster, groups)
        found = deleting.plan_unused()
        deleting.check_members(found)
        groups.members["count"] = MINE
        message = (
            r"^the group has members: g\.count\.0 on here: stop these workers; a member of a processor that is no "
            r"longer declared leaves after session_timeout_ms: nothing was changed$"
        )
        for refused in (deleting.check_members, deleting.delete):
            with pytest.raises(UserMistake, match=message):
                refused(found)
        assert groups.asked == ["g.count"] * 3
        assert list(driver.cluster.topics(names(found))) == names(found)
        for topic, asked in {"g.words": ["g.count"], "g.counts": ["g.count"], "g.errors": ["g.count"]}.items():
            groups = Groups(count=MINE)
            deleting = deletion(counting(), driver.cluster, groups)
            with pytest.raises(
                UserMistake, match=r"for workers that have ended, run `kstreams slots release g\.py 0`: nothing"
            ):
                deleting.delete(deleting.plan_named([topic]))
            assert groups.asked == asked, topic


def test_records_that_others_have_written_to_the_topic_of_beginnings_choose_no_topic() -> None:
    with run(counting(None), "a") as driver:
        cluster = driver.cluster
        cluster.create_topics([(name, 1, -1, {}) for name in ("__ks.g.x.y.journal", "__ks.other.p.changelog")])
        for key in (
            ["gone state", "g.words", "id", 0],
            ["gone state", "__ks.other.p.changelog", "id", 0],
            ["x.y", "g.words", "id", 0],
        ):
            cluster.append("__ks.g.beginnings", json.dumps({"partitions": 1}).encode(), json.dumps(key).encode())
        assert deletion(counting(None), cluster).plan_unused() == []
        assert deletion(counting(None), cluster).plan_processor("gone") == []


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("__ks.a.b.p.journal", True),
        ("__ks.a.b.p-1_X.changelog", True),
        ("__ks.a.b.p.delivered", True),
        ("__ks.a.b.p.q.journal", False),
        ("__ks.a.b.journal", False),
        ("__ks.aXb.p.journal", False),
        ("__ks.a.b.p.journal\n", False),
        ("__ks.a.b.beginnings", False),
        ("a.b.p.journal", False),
    ],
)
def test_names_of_other_graphs_and_of_users_are_not_the_own_ones(name: str, is_own: bool) -> None:
    assert is_own_topic("a.b", name) is is_own


def test_graph_of_which_nothing_is_left_deletes_its_beginnings_and_marks() -> None:
    with run(counting(), "a") as driver:
        driver.cluster.create_topics([("__ks.g.replayed", 1, -1, {})])
        assert names(deletion(counting(), driver.cluster).plan_unused()) == []
        empty = deletion(ks.Graph("g"), driver.cluster)
        found = empty.plan_unused()
        assert [(each.name, each.processors, each.follows[0]) for each in found[1:]] == [
            (
                "__ks.g.beginnings",
                ("count",),
                "a start of this graph whose committed offsets are lost begins again without a word",
            ),
            ("__ks.g.replayed", (), "a replay sends dead letters again that were replayed before"),
        ]
        empty.delete(found)
        assert deletion(ks.Graph("g"), driver.cluster).plan_unused() == []


def test_runs_of_a_pipeline_that_is_gone_are_deleted_and_of_another_graph_are_not() -> None:
    cluster = MemoryCluster()
    graph = ks.Graph("g")
    for name in ("a", "mine", "others", "foreign", "kept"):
        graph.topic(name)
    graph.pipeline("a", to="kept", id="kept", mode="append")(lambda df: df)
    ours, theirs = (
        json.dumps(
            Published(owner, {"key": "binary"}, (PipelineRun(1, "{}", 0, 0, 0.0, 0.0, None, "", 0, 0),)).as_content()
        )
        for owner in ("g.gone", "h.gone")
    )
    for name, value in {"mine": ours, "others": theirs, "foreign": "no JSON", "kept": ours}.items():
        cluster.create_topics([(f"__ks.{name}.runs", 1, -1, {})])
        cluster.append(f"__ks.{name}.runs", value.encode(), name.encode())
    (found,) = deletion(graph, cluster).plan_unused()
    assert (found.name, found.records, found.follows) == (
        "__ks.mine.runs",
        1,
        ("a pipeline that writes to mine again needs it empty: delete it, too (--topic)",),
    )


def test_topics_of_users_are_deleted_if_the_graph_declares_them_and_they_are_named() -> None:
    graph = counting()
    graph.topic("g.plain", value=ks.String())
    graph.map("g.words", to="g.plain", id="plain")(lambda word: word)
    graph.map("g.words", to="g.plain", id="careful", persistence="journal")(lambda word: word)
    graph.pipeline("g.words", to=ks.Parquet("tables/words"), id="table")(lambda df: df)
    with run(graph, "a", "b") as driver:
        deleting = deletion(graph, driver.cluster)
        found = deleting.plan_named(["g.words", "g.words"])
        lost = "its records are lost; `kstreams topics create g.py` creates it again, empty"
        assert found == [
            DeletableTopic(
                "g.words",
                "",
                ("count", "plain", "careful"),
                (
                    lost,
                    (
                        "count has a state that belongs to its offsets: set its group before the next start: `kstreams "
                        "recover reset g.py count --to-beginning`"
                    ),
                    "plain loses its committed offsets there, and begins at auto_offset_reset",
                    (
                        "careful has a journal that belongs to its offsets: set its group before the next start: "
                        "`kstreams recover reset g.py careful --to-beginning`"
                    ),
                    "pipeline 'table' has to begin again: run `kstreams pipeline reset g.py table`",
                ),
                2,
                2,
            )
        ]
        assert [(each.processors, each.follows) for each in deleting.plan_named(["g.errors"])] == [
            (("count", "plain", "careful"), (lost,))
        ]
        deleting.delete(found)
        assert driver.cluster.topics(["g.words", "g.counts"]).keys() == {"g.counts"}
        refused = {
            "g.words": "topic 'g.words' does not exist: leave it out, or correct --bootstrap-servers",
            "g.wrods": "graph 'g' declares no topic 'g.wrods', but g.words, g.counts, g.plain, g.errors: one that it "
            "no longer declares is deleted with Kafka's own command, kafka-topics.sh --bootstrap-server "
            "127.0.0.1:9092 --delete --topic g.wrods",
            "__ks.g.counts.changelog": "topic '__ks.g.counts.changelog' is one of the framework: leave --topic out, or "
            "name the processor that it belongs to, with --processor",
        }
        for name, message in refused.items():
            with pytest.raises(UserMistake) as raised:
                deleting.plan_named(["g.counts", name])
            assert str(raised.value) == message
        for name, message in {
            "table": "'table' is a pipeline: run `kstreams pipeline reset g.py table`, which deletes its runs together "
            "with its table",
            "cuont": "graph 'g' has no processor 'cuont', and never had: it has or had careful, count, plain",
            "zzz": "graph 'g' has no processor 'zzz', and never had: it has or had careful, count, plain",
        }.items():
            with pytest.raises(UserMistake) as raised:
                deleting.plan_processor(name)
            assert str(raised.value) == message


def test_command_shows_the_topics_asks_and_deletes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "g.py"
    file.write_text(
        "import kstreams_py as ks\ngraph = ks.Graph('g', errors='g.errors')\n"
        "graph.map(graph.topic('g.words'), to=graph.topic('g.others'), id='other')(len)\n"
    )
    with run(counting(), "a") as driver:

        @contextmanager
        def opened(_: Settings) -> Iterator[Environment]:
            yield driver._environment

        groups = Groups()
        monkeypatch.setattr(command, "open_environment", opened)
        monkeypatch.setattr(command, "GroupAdmin", lambda _: groups)

        def delete(*options: str, answer: str = "") -> tuple[int, list[str]]:
            done = CliRunner().invoke(app, ["topics", "delete", str(file), *options], input=answer)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            return done.exit_code, done.output.splitlines()

        changelog = "__ks.g.counts.changelog"
        partitions = [TopicPartition(changelog, number) for number in range(2)]
        records = sum(driver.cluster.ends(partitions, committed=False).values())
        shown = [
            f"{changelog}: 2 partitions, at most {records} records",
            (
                "  if count is declared with this state again, it begins empty: then set its group: `kstreams recover "
                f"reset {file} count --to-beginning`, or --to-offset with where it is"
            ),
        ]
        question = "delete these topics, with their records? [y/N]: "
        assert delete("--dry-run") == (0, [*shown, "would be deleted; nothing was changed"])
        assert delete(answer="n\n") == (1, [*shown, question + "n", "nothing was changed"])
        groups.members["count"] = MINE
        with pytest.raises(UserMistake, match="the group has members"):
            delete("--yes")
        groups.members.clear()
        with pytest.raises(SettingsError, match="--processor and --topic exclude one another"):
            delete("--processor", "count", "--topic", "g.words")
        assert list(driver.cluster.topics([changelog])) == [changelog]
        assert delete(answer="y\n") == (0, [*shown, question + "y", f"deleted {changelog}"])
        assert driver.cluster.topics([changelog]) == {}
        assert delete("--yes") == (0, ["nothing to delete"])
        assert delete("--topic", "g.words", "--yes")[1][-1] == "deleted g.words"
