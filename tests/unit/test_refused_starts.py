"""What a start refuses: `kstreams recover status` and `kstreams doctor` say it before, in the words of the start."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

import kstreams_py as ks
from kstreams_py import sinks, sources
from kstreams_py.errors import (
    BrokerUnavailable,
    GraphError,
    InputLost,
    KStreamsError,
    RecoveryUndecidable,
    SettingsError,
    SinkUnavailable,
    TopicError,
)
from kstreams_py.kafka.described_cluster import ClusterDescription
from kstreams_py.kafka.groups import GroupInfo
from kstreams_py.operations.doctor.diagnosis import diagnose
from kstreams_py.operations.doctor.findings import Examined, Facts, describe
from kstreams_py.operations.recover.reset import GraphPositions, ResetTarget
from kstreams_py.operations.recover.status import find_undeclared, read_status
from kstreams_py.operations.recover.task_status import (
    TaskStatus,
    UndeclaredProcessor,
    describe_undeclared,
    is_alike,
    undeclared_as_fields,
)
from kstreams_py.operations.recover.task_status import describe as describe_status
from kstreams_py.processing.starts.refusals import check_starts
from kstreams_py.processing.starts.states import RestoredStates
from kstreams_py.processing.topics import check_topics
from kstreams_py.records import TopicPartition
from kstreams_py.running.slot import Slot
from kstreams_py.state.keyed import POSITIONS_KEY
from kstreams_py.steps.environment import Environment, inspect_sink
from kstreams_py.testing import TestDriver

CHANGELOG = "__ks.g.counts.changelog"


def counting(
    name: str = "count", *, partitions: int | None = None, state: bool = True, on_disk: bool = False
) -> ks.Graph:
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=ks.String(), value=ks.String(), partitions=partitions)
    out = graph.topic("g.counts", key=ks.String(), value=ks.Json())

    def count(word: str, state: Any) -> int:
        seen: int = state.get(word, 0) + 1
        state.put(word, seen)
        return seen

    if state:
        graph.map(words, to=out, id=name, state=ks.State("counts", on_disk=on_disk))(count)
    else:
        graph.map(words, to=out, id=name)(len)
    return graph


def joining() -> ks.Graph:
    graph = ks.Graph("g")
    graph.join(graph.topic("a"), graph.topic("b"), by="order", to=graph.topic("c"), id="pair")(lambda a, b: a + b)
    return graph


def copying(config: dict[str, str] | None = None, **options: Any) -> ks.Graph:
    graph = ks.Graph("g")
    graph.map(graph.topic("in", config=config), to=graph.topic("out"), id="copy", **options)(lambda value: value)
    return graph


def inserting(**options: Any) -> ks.Graph:
    """Stores rows in a table of SQLite in the working directory."""
    graph = ks.Graph("g")
    table = sinks.SQLite("rows.db", table="stored", columns=("value",), **options)
    graph.sink(graph.topic("in"), to=table, id="store")(lambda value: (value,))
    return graph


def count_words(driver: TestDriver) -> None:
    for word, partition in (("a", 0), ("b", 1), ("a", 0), ("c", 1), ("a", 0)):
        driver.send("g.words", word, key=word, partition=partition)
    driver.run()
    driver.crash()
    driver.advance(60)


def copy_values(driver: TestDriver) -> None:
    for value in (b"1", b"2"):
        driver.send("in", value)
    driver.run()
    driver.crash()
    driver.advance(60)


def broker(driver: TestDriver) -> Any:
    return driver.cluster._broker


def move_group(by: int) -> Callable[[TestDriver], None]:
    def move(driver: TestDriver) -> None:
        positions = broker(driver).groups["g.count"].positions
        positions[max(positions, key=lambda each: positions[each])] += by

    return move


def create_input_again(driver: TestDriver) -> None:
    broker(driver).delete_topic("g.words")
    driver.cluster.create_topics([("g.words", 2, -1, {})])
    broker(driver).groups["g.count"].positions.update({TopicPartition("g.words", number): 0 for number in range(2)})


def grow_input(driver: TestDriver) -> None:
    broker(driver).grow_topic("g.words", 4)


def delete_changelog(driver: TestDriver) -> None:
    broker(driver).delete_topic(CHANGELOG)
    check_topics(driver._graph, driver.cluster)


def create_changelog_again(driver: TestDriver) -> None:
    """As live workers do that are not told of it: the records go on, with the id of the old one."""
    old = broker(driver).topics[CHANGELOG]
    broker(driver).delete_topic(CHANGELOG)
    check_topics(driver._graph, driver.cluster)
    for number, partition in enumerate(old.partitions):
        if (last := partition.newest()) is not None:
            assert last.key() == POSITIONS_KEY
            driver.cluster.append(CHANGELOG, last.value(), key=last.key(), partition=number)


def delete_oldest_of_changelog(driver: TestDriver) -> None:
    for number in range(2):
        tp = TopicPartition(CHANGELOG, number)
        driver.cluster.truncate(tp, min(1, driver.cluster.ends([tp])[tp]))


def write_positions_to_changelog(driver: TestDriver) -> None:
    driver.cluster.append(CHANGELOG, b"no positions", key=POSITIONS_KEY, partition=0)


def leave_out_the_state(driver: TestDriver) -> None:
    driver._graph = counting(state=False)
    driver.restart()
    driver.send("g.words", "d", key="d")
    driver.run()
    driver.crash()
    driver.advance(60)
    driver._graph = counting()


def give_another_id(driver: TestDriver) -> None:
    driver._graph = counting("total")


def grow_one_input(driver: TestDriver) -> None:
    driver.crash()
    broker(driver).grow_topic("a", 4)


def declare_more_partitions(driver: TestDriver) -> None:
    driver._graph = counting(partitions=8)


def declare_another_setting(driver: TestDriver) -> None:
    driver._graph = copying({"retention.ms": "1000"})


def compact_the_journal(driver: TestDriver) -> None:
    broker(driver).topics["__ks.g.copy.journal"].settings["cleanup.policy"] = "compact"


def lose_offsets(driver: TestDriver) -> None:
    broker(driver).groups["g.copy"].positions.clear()


def write_to_journal(driver: TestDriver) -> None:
    driver.cluster.append("__ks.g.copy.journal", b"foreign", partition=0)


def create_table_again(driver: TestDriver) -> None:
    delete_file()
    with closing(sqlite3.connect("rows.db", isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE stored (other)")


def delete_file() -> None:
    for path in Path().glob("rows.db*"):
        path.unlink()


def write_to_file(driver: TestDriver) -> None:
    delete_file()
    Path("rows.db").write_bytes(b"no database" * 1000)


def replace_by_directory(driver: TestDriver) -> None:
    delete_file()
    Path("rows.db").mkdir()


class Row(NamedTuple):
    """What is done to a graph whose processes are down, and the error of the next start."""

    graph: Callable[[], ks.Graph]
    begin: Callable[[TestDriver], None]
    change: Callable[[TestDriver], None]
    error: type[KStreamsError]


ROWS = {
    "the group is behind the state": Row(counting, count_words, move_group(-1), InputLost),
    "the group is ahead of the state": Row(counting, count_words, move_group(1), InputLost),
    "on disk, the group is behind": Row(lambda: counting(on_disk=True), count_words, move_group(-1), InputLost),
    "a deployment had no state": Row(counting, count_words, leave_out_the_state, InputLost),
    "an input with a state was created again": Row(counting, count_words, create_input_again, InputLost),
    "an input with a state has grown": Row(counting, count_words, grow_input, TopicError),
    "the changelog was deleted": Row(counting, count_words, delete_changelog, InputLost),
    "the changelog was created again": Row(counting, count_words, create_changelog_again, InputLost),
    "the oldest changes were deleted": Row(counting, count_words, delete_oldest_of_changelog, InputLost),
    "the changelog has other positions": Row(counting, count_words, write_positions_to_changelog, TopicError),
    "a processor with a state has another id": Row(counting, count_words, give_another_id, InputLost),
    "an input of a join has grown": Row(joining, lambda _: None, grow_one_input, GraphError),
    "another number of partitions is declared": Row(counting, count_words, declare_more_partitions, TopicError),
    "another setting is declared": Row(copying, copy_values, declare_another_setting, TopicError),
    "the journal is compacted": Row(
        lambda: copying(persistence="journal"), copy_values, compact_the_journal, TopicError
    ),
    "the journal has a foreign record": Row(
        lambda: copying(persistence="journal"), copy_values, write_to_journal, RecoveryUndecidable
    ),
    "the committed offsets have expired": Row(copying, copy_values, lose_offsets, InputLost),
    "the target has other columns": Row(inserting, copy_values, create_table_again, SettingsError),
    "the target has other columns than its offsets are of": Row(
        lambda: inserting(evidence="offsets"), copy_values, create_table_again, SettingsError
    ),
    "the target is no database": Row(inserting, copy_values, write_to_file, SinkUnavailable),
    "the target cannot be opened": Row(inserting, copy_values, replace_by_directory, SinkUnavailable),
}
"""Every row of "what is refused" of docs/state.md that a start words as its status does, and refusals without a state.

Two rows are in test_changelog_that_is_lost_is_said_to_be_lost: a changelog that is empty while the state on disk is of
the old one, as only the start names the directory; and one that was deleted under live workers, as the next start finds
it (they end in test_changelog_that_no_broker_knows_is_waited_for_and_then_ends_the_worker).
"""


def use_real_targets(environment: Environment) -> Environment:
    return replace(environment, open_sink=lambda sink, consumer: sink.open(consumer), inspect_sink=inspect_sink)


def contents(directory: Path) -> dict[Path, bytes]:
    """The contents of files, except those with locks."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.suffix != ".db-shm"}


class Groups:
    """Groups without members."""

    def describe(self, groups: list[str]) -> dict[str, GroupInfo]:
        return {group: GroupInfo("Empty", ()) for group in groups}


def look(driver: TestDriver) -> list[TaskStatus]:
    groups: Any = Groups()
    return list(read_status(driver._graph, driver._environment, groups))


def start(driver: TestDriver) -> KStreamsError:
    """Starts the graph as a run does; returns the error that ends it."""
    try:
        check_topics(driver._graph, driver.cluster)
        driver.restart()
        driver.run()
    except KStreamsError as error:
        return error
    raise AssertionError("the start goes on")


def findings(driver: TestDriver, tasks: list[TaskStatus], kind: str = "refused_start") -> list[str]:
    facts = Facts(ClusterDescription({}, {}, hidden=tuple(driver._graph.topics)), now=0, tasks=tasks)
    found = [each for each in diagnose(facts, Examined(driver._graph, "g.py", 1)) if each.kind == kind]
    return [describe(each) for each in found]


@pytest.mark.parametrize("row", ROWS)
def test_what_a_start_refuses_is_said_before_it_in_its_words(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = ROWS[row]
    monkeypatch.chdir(tmp_path)
    with TestDriver(
        of.graph(), partitions=2, slots=2, settings=ks.Settings(state_directory=tmp_path / "state")
    ) as driver:
        driver._environment = use_real_targets(driver._environment)
        assert [each.next for each in look(driver) if each.is_refused] == []
        assert [*tmp_path.iterdir()] == []
        of.begin(driver)
        assert [each.next for each in look(driver) if each.is_refused] == []
        of.change(driver)
        before = {name: broker(driver).topics[name].topic_id for name in broker(driver).topics}
        files = contents(tmp_path)
        tasks = look(driver)
        assert {name: broker(driver).topics[name].topic_id for name in broker(driver).topics} == before
        assert contents(tmp_path) == files
        said = {each.ends for each in tasks if each.is_refused}
        error = start(driver)
    assert type(error) is of.error
    assert f"ends with {type(error).__name__}: {error}" in said
    (found,) = findings(driver, tasks)  # one for the tasks of a processor, which may differ in their offsets
    refused = ", ".join(f"{each.processor}[{each.partition}]" for each in tasks if each.is_refused)
    assert found.splitlines()[0] in {f"error: {refused}: the next start {plan}" for plan in said}


def test_target_that_is_away_is_waited_for_and_said_beside_other_processors() -> None:
    graph = inserting()
    graph.map(graph.topics["in"], to=graph.topic("out"), id="copy")(lambda value: value)
    with TestDriver(graph) as driver:
        away = Mock(side_effect=SinkUnavailable("connection refused", may_return=True))
        driver._environment = replace(driver._environment, inspect_sink=away)
        tasks = look(driver)
    why = "rows.db: table stored is away: connection refused"
    plans = [(each.processor, each.next, each.is_refused) for each in tasks]
    assert plans == [
        ("store", f"waits for its target, then begins at in@0: {why}", False),
        ("copy", "begins at in@0", False),
    ]
    (found,) = findings(driver, tasks, "target_away")
    assert found.startswith(f"error: store: its target cannot be used, and the next start waits: {why}\n")


def test_graph_that_nothing_was_done_to_goes_on_as_its_status_says() -> None:
    for row in ROWS.values():
        with TestDriver(row.graph(), partitions=2) as driver:
            row.begin(driver)
            if row.begin is count_words:
                assert {each.next for each in look(driver)} == {"goes on at g.words@3", "goes on at g.words@2"}
            driver.restart()
            driver.run()


@pytest.mark.parametrize("on_disk", [False, True])
def test_changelog_that_is_lost_is_said_to_be_lost(on_disk: bool, tmp_path: Path) -> None:
    settings = ks.Settings(state_directory=tmp_path)
    with TestDriver(counting(on_disk=on_disk), partitions=2, settings=settings) as driver:
        count_words(driver)
        old = broker(driver).topics[CHANGELOG].topic_id
        broker(driver).delete_topic(CHANGELOG)
        missing = look(driver)
        assert CHANGELOG not in broker(driver).topics
        check_topics(driver._graph, driver.cluster)
        new = broker(driver).topics[CHANGELOG].topic_id
        empty = look(driver)
        error = start(driver)
    for tasks, found in ((missing, " does not exist"), (empty, f", with id {new}, is empty")):
        assert [each.is_refused for each in tasks] == [True, True]
        assert tasks[0].next.startswith(
            f"ends with InputLost: count: state 'counts': its changelog {CHANGELOG}[0]{found}, "
            f"and the state was in the one with id {old}: it was deleted, and its contents are lost: "
        )
    assert isinstance(error, InputLost)
    assert (old in str(error), new in str(error), str(tmp_path) in str(error)) == (True, True, on_disk)


def test_state_that_an_open_transaction_may_move_is_waited_for() -> None:
    with TestDriver(counting(), partitions=2) as driver:
        driver.send("g.words", "a", key="a", partition=0)
        driver.crash("commit_transaction", nth=2, applied=False)
        (plan, other) = (each.next for each in look(driver))
    assert plan.startswith("ends or waits for a transaction, then decides: "), plan
    assert other == "goes on at g.words@0"


def test_mutation_that_does_not_look_at_states_says_that_a_start_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(RestoredStates, "check", lambda *_: None)
    with pytest.raises(AssertionError):
        test_what_a_start_refuses_is_said_before_it_in_its_words("the changelog was deleted", tmp_path, monkeypatch)


def test_refusals_that_differ_in_their_numbers_are_written_out_once() -> None:
    with TestDriver(counting(), partitions=2) as driver:
        count_words(driver)
        give_another_id(driver)
        first, second = look(driver)
    assert is_alike(second, first)
    assert describe_status(second, first) == (
        "total[1]: committed none, held by no member\n"
        "  next start: ends as that of total[0], with g.words[1]@2, --to-offset g.words:1:2"
    )


def storing(count: str, store: str) -> ks.Graph:
    graph = counting(count)
    graph.map(graph.topics["g.words"], to=graph.topic("g.stored"), id=store)(str.encode)
    return graph


def test_start_with_a_new_processor_is_refused_before_any_reads(caplog: pytest.LogCaptureFixture) -> None:
    with TestDriver(storing("count", "store"), partitions=2) as driver:
        count_words(driver)

        def check(graph: ks.Graph, sleep: Callable[[float], None] = lambda _: None) -> None:
            check_starts(graph, replace(driver._environment, sleep=sleep), check_topics(graph, driver.cluster))

        check(storing("count", "save"))
        driver._graph = storing("tally", "save")
        refused = {each.ends.removeprefix("ends with InputLost: ") for each in look(driver) if each.is_refused}
        with pytest.raises(InputLost) as raised:
            Slot(driver._graph, 0, replace(driver._environment, sleep=lambda _: None)).run(
                lambda _: pytest.fail("runs")
            )
        assert str(raised.value) in refused
        check(driver._graph, lambda _: broker(driver).delete_topic(CHANGELOG))  # as a worker may do that runs
        caplog.set_level("INFO", "kstreams_py.processing.starts.refusals")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(driver.cluster), "group_offsets", Mock(side_effect=BrokerUnavailable("away")))
            check(driver._graph)
        assert caplog.messages == ["whether a processor would be refused is not known before it starts: away"]


def test_processor_that_is_no_longer_declared_is_named_with_its_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    with TestDriver(counting(state=False), partitions=2) as driver:
        count_words(driver)
        driver._graph = counting("total", state=False)
        monkeypatch.setattr(sys.modules[__name__], "renamed", driver._graph, raising=False)
        groups: Any = Groups()
        (found,) = find_undeclared(driver._graph, driver._environment, groups)
        tasks = look(driver)
        plans, doubts = [each.next for each in tasks], findings(driver, tasks, "new_name")
        moving = GraphPositions(driver._graph, "g.py", driver._environment, groups)
        moving.move(moving.plan_reset("total", ResetTarget(found.committed)))
        (followed,) = find_undeclared(driver._graph, driver._environment, groups)
    assert followed.remedy == (
        "total has its positions, or later ones: once you will not go back to it, forget it (`kstreams recover forget "
        f"{__name__} count`)"
    )
    (doubt,) = doubts
    assert doubt == (
        "warning: total: the next start begins it as a processor that is new: it may be the new name of count\n"
        "  kstreams recover status g.py shows where it begins, and prints what to do if it is"
    )
    hint = ", as a processor that is new: it may be the new name of count"
    assert plans == [f"begins at g.words@0{hint}", f"begins at g.words@0{hint}"]
    committed, of_new = found.committed, "total --to-offset g.words:0:3 --to-offset g.words:1:2"
    remedy = (
        "if it has a new name, give it the id 'count' back, or give the new one its positions (`kstreams recover "
        f"reset {__name__} {of_new}`); if it is gone, forget it (`kstreams recover forget {__name__} count`)"
    )
    assert sorted(committed) == [TopicPartition("g.words", 0), TopicPartition("g.words", 1)]
    shown = ", ".join(f"{tp}@{at}" for tp, at in sorted(committed.items()))
    assert describe_undeclared(found) == (f"count: not declared, committed {shown}, held by no member\n  {remedy}")
    assert undeclared_as_fields(found) == {
        "undeclared": "count",
        "group": "g.count",
        "committed": {str(tp): at for tp, at in committed.items()},
        "members": [],
        "unseen": "",
    }
    hidden = UndeclaredProcessor("count", "g.count", {}, (), "move", "forget", "no right: grant READ on group g.count")
    assert describe_undeclared(hidden).splitlines()[0] == (
        "count: not declared, its group cannot be read: no right: grant READ on group g.count"
    )
    facts = Facts(ClusterDescription({}, {}), now=0, undeclared=[found])
    (line,) = (each for each in diagnose(facts, Examined(driver._graph, "g.py", 1)) if each.kind == "undeclared")
    assert describe(line) == (
        f"note: g.count: the graph no longer declares 'count', which has read its inputs\n  {remedy}"
    )


@pytest.mark.parametrize("exists", [False, True])
def test_state_that_a_processor_is_given_later_is_said_to_begin_empty(
    exists: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with TestDriver(counting(state=False), partitions=2) as driver:
        count_words(driver)
        driver._graph = counting()
        if exists:
            check_topics(driver._graph, driver.cluster)
        caplog.clear()
        (doubt,) = findings(driver, look(driver), "empty_state")
        assert doubt == (
            "warning: count[0], count[1]: the next start goes on at g.words@3, with an empty state\n  if the name of "
            "the state has changed, give it the previous one; to make it again of all records, kstreams recover reset "
            "g.py count --to-beginning"
        )
        assert [each.next for each in look(driver)] == [
            "goes on at g.words@3, with an empty state",
            "goes on at g.words@2, with an empty state",
        ]
        assert caplog.messages == []
        check_topics(driver._graph, driver.cluster)
        driver.restart()
        driver.run()
    assert "count: state 'counts' begins empty at g.words[0]@3" in caplog.messages


def test_graph_of_channels_reads_no_beginnings_at_its_start() -> None:
    """They have no topic: a read of it waited for its metadata for 15 s at each start of a worker."""
    graph = ks.Graph("g")
    rows = graph.source("rows", sources.SQLite("rows.db", table="rows", key="id"))
    graph.map(rows, to=graph.topic("g.rows", value=ks.String()))(repr)
    environment = Mock()
    check_starts(graph, environment, {})
    assert environment.mock_calls == []
