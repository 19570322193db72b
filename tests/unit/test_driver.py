"""testing/driver.py: a graph without a broker: what comes out, what is committed, and what a crash anywhere does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import Abortable, DecodeError, Fatal, GraphError, Retriable, TopicError, UserMistake
from kstreams_py.record import TopicPartition
from kstreams_py.testing import CrashPoint, Record, TestDriver
from kstreams_py.testing import driver as driver_module

Sent = tuple[str, Any]
"""Topic and value; the key is the value's last digit."""


def new_graph(**options: Any) -> ks.Graph:
    """A graph with topics a, b, x, y of JSON under text keys."""
    graph = ks.Graph("g", errors="dead", **options)
    for name in "abxy":
        graph.topic(name, key=ks.String(), value=ks.Json())
    return graph


def mapped(**options: Any) -> ks.Graph:
    graph = new_graph(**options)
    graph.map("a", to="x", id="p")(lambda value: value * 10)
    return graph


def fed(driver: TestDriver, *values: int, topic: str = "a") -> TestDriver:
    for value in values:
        driver.send(topic, value, key=f"k{value % 3}")
    return driver


# In and out.


def test_map_reads_and_writes_through_the_serdes_of_its_topics() -> None:
    with TestDriver(mapped()) as driver:
        driver.send("a", 1, key="k", headers=[("h", b"1")], timestamp=5)
        driver.send("a", 2)
        driver.run()
        (first, second) = driver.read("x")
        assert first == Record("x", 0, 0, "k", 10, (("h", b"1"),), 5, first.delivery_hash)
        assert (second.key, second.value, second.timestamp) == (None, 20, int(driver.clock() * 1000))
        assert first.delivery_hash is not None
        assert len({first.delivery_hash, second.delivery_hash}) == 2
        assert [record.delivery_hash for record in driver.read("a")] == [None, None]
        assert driver.committed("p") == {TopicPartition("a", 0): 2}


def test_topics_are_named_or_given() -> None:
    graph = ks.Graph("g")
    a, x = graph.topic("a"), graph.topic("x")
    graph.map(a, to=x)(lambda_named("p"))
    driver = TestDriver(graph)
    driver.send(a, b"1")
    driver.run()
    assert driver.values(x) == driver.values("x") == [b"1"]


def lambda_named(name: str) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        return value

    function.__name__ = name
    return function


def test_tombstones_go_both_ways() -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: ks.Out(None) if value is None else value)
    driver = TestDriver(graph)
    driver.send("a", None, key="k")
    driver.run()
    assert [(record.key, record.value) for record in driver.read("x")] == [("k", None)]


def test_fork_writes_to_the_topics_it_names() -> None:
    graph = new_graph()
    graph.map("a", to=["x", "y"], id="p")(lambda value: {"x": value} if value % 2 else {"x": value, "y": -value})
    driver = fed(TestDriver(graph), 1, 2)
    driver.run()
    assert (driver.values("x"), driver.values("y")) == ([1, 2], [-2])


def test_join_waits_for_one_record_of_each_input() -> None:
    graph = new_graph()
    graph.join("a", "b", to="x", id="p")(lambda a, b: [a, b])
    driver = fed(TestDriver(graph), 1, 2)
    fed(driver, 7, topic="b").run()
    assert driver.values("x") == [[1, 7]]
    fed(driver, 8, topic="b").run()
    assert driver.values("x") == [[1, 7], [2, 8]]


def test_alts_takes_whichever_input_is_ready() -> None:
    graph = new_graph()
    graph.alts("a", "b", to="x", id="p")(lambda value, step: [step.topic, value])
    driver = fed(fed(TestDriver(graph), 1), 7, topic="b")
    driver.run()
    assert sorted(driver.values("x")) == [["a", 1], ["b", 7]]
    assert [m.topic() for m in driver.log.records("__ks.g.p.journal")] == ["__ks.g.p.journal"]


def test_sink_is_called_and_writes_nothing() -> None:
    graph, seen = new_graph(), list[tuple[str, int]]()
    graph.sink("a", id="p")(lambda value, step: seen.append((step.key, value)))
    driver = fed(TestDriver(graph), 1, 2)
    driver.run()
    assert seen == [("k1", 1), ("k2", 2)]
    assert driver.committed("p") == {TopicPartition("a", 0): 2}


def test_batch_gets_lists() -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p", batch=True)(lambda values: [sum(values)] * len(values))
    driver = fed(TestDriver(graph), 1, 2, 3)
    driver.run()
    assert driver.values("x") == [6, 6, 6]


def test_processors_of_a_chain_run_until_all_is_done() -> None:
    graph = mapped()
    graph.map("x", to="y", id="q")(lambda value: value + 1)
    driver = fed(TestDriver(graph), 1, 2)
    driver.run()
    assert driver.values("y") == [11, 21]


def test_dead_letters_are_decoded() -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: 1 // value)
    driver = fed(TestDriver(graph), 1, 0)
    driver.run()
    (letter,) = driver.dead_letters()
    assert (letter.topic, letter.value["processor"], letter.value["exception_class"]) == (
        "dead",
        "g.p",
        "builtins.ZeroDivisionError",
    )
    assert (letter.value["inputs"][0]["value"], letter.delivery_hash) == (b"0", letter.value["delivery_hash"])
    assert driver.values("x") == [1]


def test_bytes_that_no_serde_takes_become_dead_letters_and_are_told_where_they_are() -> None:
    driver = TestDriver(mapped())
    driver.log.append("a", b"no json", b"k")
    driver.run()
    assert [letter.value["inputs"][0]["value"] for letter in driver.dead_letters()] == [b"no json"]
    with pytest.raises(DecodeError, match=r"value of a\[0\]@0: these bytes are not JSON"):
        driver.read("a")


def test_graph_without_dead_letters_has_none() -> None:
    graph = ks.Graph("g")
    for name in "ax":
        graph.topic(name)
    graph.map("a", to="x", id="p")(lambda_named("p"))
    assert TestDriver(graph).dead_letters() == []


def test_avro_topics_need_no_registry() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    graph = ks.Graph("g")
    graph.topic("a", key=ks.String(), value=ks.Avro(schema))
    graph.topic("x", key=ks.String(), value=ks.Avro({**schema, "name": "S", "aliases": ["R"]}))
    graph.map("a", to="x", id="p")(lambda value: {"n": value["n"] + 1})
    driver = TestDriver(graph)
    driver.send("a", {"n": 1}, key="k")
    driver.run()
    assert [(record.key, record.value) for record in driver.read("x")] == [("k", {"n": 2})]
    with pytest.raises(ValueError, match=r"field R\.n is 'text'"):
        driver.send("a", {"n": "text"})
    driver.log.append("a", b"\0\0\0\0\x63rest")
    with pytest.raises(DecodeError, match=r"value of a\[0\]@1: .* no schema 99 was registered here"):
        driver.read("a")


def test_registry_of_ones_own_is_used() -> None:
    class Registry:
        def __init__(self) -> None:
            self.schemas: list[str] = []

        def register(self, subject: str, schema: str, /) -> int:
            self.schemas.append(schema)
            return len(self.schemas)

        def schema(self, schema_id: int, /) -> str:
            return self.schemas[schema_id - 1]

        def ids(self, subject: str, /) -> list[int]:
            return []

    graph = ks.Graph("g")
    graph.topic("a", value=ks.Avro({"type": "record", "name": "R", "fields": []}))
    graph.sink("a", id="p")(lambda value: None)
    driver = TestDriver(graph, registry=(registry := Registry()))
    driver.send("a", {})
    assert len(registry.schemas) == 1


# Turns, time, slots.


def test_step_is_one_turn_and_commits_when_it_is_due() -> None:
    driver = fed(TestDriver(mapped()), 1)
    driver.step()  # fetches, and holds the output until the commit
    assert (driver.values("x"), driver.committed("p")) == ([], {TopicPartition("a", 0): 0})
    driver.step()  # the input is dry
    assert (driver.values("x"), driver.committed("p")) == ([10], {TopicPartition("a", 0): 1})


def test_advance_lets_the_broker_time_an_open_transaction_out_and_the_worker_does_it_again() -> None:
    driver = fed(TestDriver(mapped()), *range(1_000))
    while not driver.read("x", "read_uncommitted"):
        driver.step()
    open_, committed = len(driver.read("x", "read_uncommitted")), driver.committed("p")
    driver.advance(11)
    driver.run()
    assert (driver.values("x"), committed) == ([10 * value for value in range(1_000)], {TopicPartition("a", 0): 0})
    assert len(driver.read("x", "read_uncommitted")) == 1_000 + open_


def test_positions_pass_transaction_markers_once_the_workers_are_idle() -> None:
    graph = mapped()
    graph.map("x", to="y", id="q")(lambda value: value)
    driver = fed(TestDriver(graph), 1)
    driver.run()
    assert driver.committed("q") == {TopicPartition("x", 0): 2}  # a record and a marker


def test_run_takes_no_time_on_the_clock_however_many_workers_wait() -> None:
    """Their sessions would end if each wait counted after the other."""
    graph, calls = new_graph(), list[int]()
    for number in range(10):
        graph.sink("a", id=f"p{number}")(calls.append)
    driver = TestDriver(graph, slots=2, partitions=2)
    before = driver.clock()
    fed(driver, *range(8)).run()
    assert (len(calls), driver.clock()) == (80, before)


def test_slots_share_the_partitions() -> None:
    graph, slots = new_graph(), list[int]()
    graph.map("a", to="x", id="p")(lambda value, step: slots.append(step.positions[0][1]) or value)
    with TestDriver(graph, slots=2, partitions=4) as driver:
        for number in range(8):
            driver.send("a", number, partition=number % 4)
        driver.run()
        assert (sorted(driver.values("x")), sorted(slots)) == ([*range(8)], [0, 0, 1, 1, 2, 2, 3, 3])
        assert driver.committed("p") == {TopicPartition("a", number): 2 for number in range(4)}
        held = [set(worker.tasks.positions) for workers in driver._workers.values() for worker in workers]
        assert list(map(len, held)) == [2, 2]


def test_partitions_of_a_topic_are_as_declared_then_as_of_those_it_is_joined_with_then_as_given() -> None:
    graph = ks.Graph("g")
    for name, partitions in {"a": 3, "b": None, "x": None}.items():
        graph.topic(name, partitions=partitions)
    graph.join("a", "b", to="x", id="p")(lambda a, b: a)
    graph.topic("free")
    for given, expected in {None: [3, 3, 3, 1], 5: [3, 3, 3, 5]}.items():
        info = TestDriver(graph, partitions=given).log.topics(["a", "b", "x", "free"])
        assert [info[name].partitions for name in ("a", "b", "x", "free")] == expected


def test_slot_takes_over_what_a_crashed_one_held_once_its_session_has_ended() -> None:
    driver = TestDriver(mapped(), slots=2, partitions=2)
    driver.run()
    for partition in (0, 1):
        driver.send("a", partition, partition=partition)
    driver.crash("produce")
    assert len(driver.down) == 1
    driver.run()
    assert len(driver.values("x")) == 1
    driver.advance(16)
    driver.run()
    assert sorted(driver.values("x")) == [0, 10]


def test_settings_are_those_of_the_workers() -> None:
    driver = fed(TestDriver(mapped(), settings=ks.Settings(commit_records=1)), *range(3))
    driver.step()
    assert driver.values("x") == [0, 10, 20]


# What stops a worker.


def test_exception_that_stops_a_worker_is_raised_and_what_was_done_is_committed() -> None:
    graph = new_graph(unhandled_exceptions=LookupError)

    @graph.map("a", to="x", id="p")
    def function(value: int) -> int:
        if value == 2:
            raise LookupError("two")
        return value

    driver = fed(TestDriver(graph), 1, 2, 3)
    with pytest.raises(LookupError, match="two"):
        driver.run()
    assert (driver.values("x"), driver.committed("p"), driver.down) == ([1], {TopicPartition("a", 0): 1}, {0})
    driver.restart()
    with pytest.raises(LookupError, match="two"):
        driver.run()


def test_stop_lets_all_processors_of_the_slot_commit_and_is_no_error() -> None:
    graph = new_graph()

    @graph.map("a", to="x", id="p")
    def function(value: int) -> int:
        if value == 2:
            raise ks.Stop
        return value

    graph.map("b", to="y", id="q")(lambda value: value)
    driver = fed(fed(TestDriver(graph), 1, 2), 7, topic="b")
    driver.run()
    assert (driver.values("x"), driver.down) == ([1], {0})
    driver.restart()
    driver.send("b", 8)
    driver.run()
    assert driver.down == {0}


def test_failure_of_one_processor_lets_the_others_commit() -> None:
    graph = mapped()
    graph.map("b", to="y", id="q")(lambda value: value)
    driver = fed(fed(TestDriver(graph), 1), 7, topic="b")
    driver.log.inject("send_offsets", nth=3, error=Fatal("of no use"), applied=False)  # after two beginnings
    with pytest.raises(Fatal, match="of no use"):
        driver.run()
    assert (driver.values("x"), driver.values("y"), driver.down) == ([], [7], {0})


def test_faults_other_than_crashes_are_injected_into_the_log() -> None:
    driver = TestDriver(mapped())
    driver.run()  # begins
    fed(driver, 1, 2)
    driver.log.inject("commit_transaction", error=Abortable("why not"), applied=False)
    driver.log.inject("committed", error=Retriable("again"), applied=False)
    driver.run()
    assert (driver.values("x"), len(driver.read("x", "read_uncommitted"))) == ([10, 20], 4)


# Crashes.


def graph_of(kind: str, **options: Any) -> ks.Graph:
    """One processor of a kind; each output tells what was read, and one record in five is a dead letter."""
    graph = new_graph(**options)

    def one(value: int) -> Any:
        if value % 5 == 4:
            raise LookupError(value)
        return {"x": value, "y": value} if kind == "fork" else value

    def many(values: list[int]) -> list[Any]:
        return [LookupError(value) if value % 5 == 4 else value for value in values]

    if kind == "join":
        graph.join("a", "b", to="x", id="p")(lambda a, b: one(a) * 100 + b)
    elif kind == "alts":
        graph.alts("a", "b", to="x", id="p")(one)
    elif kind == "batch":
        graph.map("a", to="x", id="p", batch=True)(many)
    else:
        graph.map("a", to=["x", "y"] if kind == "fork" else "x", id="p")(one)
    return graph


def loaded(kind: str, **options: Any) -> TestDriver:
    """A driver whose graph has something to do on two partitions."""
    driver = TestDriver(graph_of(kind, **options), partitions=2)
    for number in range(10):
        for topic in "ab" if kind in ("join", "alts") else "a":
            driver.send(topic, number + (10 if topic == "b" else 0), key=f"k{number % 2}", partition=number % 2)
    return driver


def came(driver: TestDriver) -> dict[str, Counter[Any]]:
    """What is in the outputs, with the hash of each delivery."""
    return {
        topic: Counter((record.key, str(record.value)[:60], record.delivery_hash) for record in driver.read(topic))
        for topic in ("x", "y", "dead")
    }


@pytest.mark.parametrize("kind", ["map", "fork", "join", "alts", "batch"])
def test_exactly_once_crash_at_every_crash_point_delivers_once(kind: str) -> None:
    plain = loaded(kind)
    plain.run()
    expected, points = came(plain), plain.crash_points()
    assert {count for counts in expected.values() for count in counts.values()} == {1}
    assert len(expected["dead"]) == (4 if kind == "alts" else 2)
    for point in points:
        driver = loaded(kind)
        driver.crash(point)
        assert driver.down == {0}
        driver.restart()
        driver.run()
        if kind == "alts":  # another order is another's to choose, until it is journaled
            assert (set(came(driver)["x"].values()), len(came(driver)["x"])) == ({1}, 16), point
        else:
            assert came(driver) == expected, point
    assert {point.request for point in points} >= {"init_transactions", "subscribe", "produce", "commit_transaction"}


@pytest.mark.parametrize(("guarantee", "copies"), [("at_least_once", {1, 2}), ("at_most_once", {0, 1})])
def test_weaker_guarantees_crash_at_every_crash_point_as_they_promise(guarantee: str, copies: set[int]) -> None:
    plain = loaded("map", guarantee=guarantee)
    plain.run()
    expected, points = came(plain), plain.crash_points()
    seen = set[int]()
    for point in points:
        driver = loaded("map", guarantee=guarantee)
        driver.crash(point)
        driver.restart()
        driver.run()
        seen |= {came(driver)[topic][each] for topic, counts in expected.items() for each in counts}
    assert seen == copies


def test_crash_leaves_the_transaction_open_until_the_restart() -> None:
    driver = fed(TestDriver(mapped()), 1)
    driver.crash("commit_transaction", nth=2, applied=False)  # the first is that of the beginning
    assert (driver.values("x"), len(driver.read("x", "read_uncommitted"))) == ([], 1)
    driver.restart()
    driver.run()
    assert (driver.values("x"), len(driver.read("x", "read_uncommitted"))) == ([10], 2)


def test_crash_after_the_commit_was_carried_out_is_not_done_again() -> None:
    driver = fed(TestDriver(mapped()), 1)
    driver.crash("commit_transaction", nth=2, applied=True)
    assert driver.values("x") == [10]
    driver.restart()
    driver.run()
    assert len(driver.read("x", "read_uncommitted")) == 1


def test_crash_at_the_nth_request() -> None:
    driver = fed(TestDriver(mapped(), settings=ks.Settings(commit_records=1)), 1)
    driver.run()
    fed(driver, 2).crash("commit_transaction", nth=1)
    fed(driver, 3).restart()
    driver.crash("commit_transaction", nth=1, applied=False)
    assert driver.values("x") == [10, 20]


def test_crash_now_is_between_two_turns() -> None:
    driver = fed(TestDriver(mapped()), 1)
    driver.step()
    driver.crash()
    assert (driver.values("x"), driver.down) == ([], {0})
    driver.restart()
    driver.run()
    assert driver.values("x") == [10]


def test_crash_of_one_processor_is_that_of_its_slot() -> None:
    graph = mapped()
    graph.map("b", to="y", id="q")(lambda value: value)
    driver = fed(fed(TestDriver(graph), 1), 7, topic="b")
    driver.crash("commit_transaction", nth=3, applied=False)  # after two beginnings
    assert (driver.values("x"), driver.values("y"), driver.down) == ([], [], {0})
    assert [len(driver.read(topic, "read_uncommitted")) for topic in "xy"] == [1, 0]
    driver.restart()
    driver.run()
    assert (driver.values("x"), driver.values("y")) == ([10], [7])


def test_crash_that_the_run_does_not_come_to_is_refused() -> None:
    driver = fed(TestDriver(mapped()), 1)
    with pytest.raises(
        UserMistake, match=r"the run ended before request commit_transaction 9 carried out: it made .*pro"
    ):
        driver.crash("commit_transaction", nth=9)


def test_run_without_a_process_is_refused() -> None:
    driver = fed(TestDriver(mapped()), 1)
    driver.crash("produce")
    for action in (driver.run, driver.step, lambda: driver.crash("produce")):
        with pytest.raises(UserMistake, match=r"every process has crashed or stopped: call restart\(\) first"):
            action()


def test_crash_points_name_each_request_of_the_run_twice() -> None:
    driver = fed(TestDriver(mapped()), 1)
    assert driver.crash_points() == []
    driver.run()
    points = driver.crash_points()
    assert points[:2] == [CrashPoint("topics", 1, applied=True), CrashPoint("topics", 1, applied=False)]
    assert CrashPoint("commit_transaction", 1, applied=False) in points
    assert len(set(points)) == len(points) == 2 * len({(p.request, p.nth) for p in points})
    assert [str(point) for point in points[:2]] == ["topics 1 carried out", "topics 1 lost"]


def test_graph_that_goes_round_is_refused_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "TURNS_MAX", 100)
    graph = mapped()
    graph.map("x", to="a", id="back")(lambda value: value)
    driver = fed(TestDriver(graph), 0)
    with pytest.raises(UserMistake, match=r"graph 'g' is not done after 100 turns: do its topics go round"):
        driver.run()


# Mistakes.


def test_unknown_names_are_refused_with_those_there_are() -> None:
    driver = TestDriver(mapped())
    with pytest.raises(GraphError, match="graph 'g' has no topic 'else': it has a, b, x, y, dead; or see `log`"):
        driver.send("else", 1)
    with pytest.raises(GraphError, match="graph 'g' has no topic 'else'"):
        driver.read("else")
    with pytest.raises(GraphError, match="graph 'g' has no processor 'else': it has p"):
        driver.committed("else")


def test_graph_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(GraphError, match="graph 'g' has no processors"):
        TestDriver(new_graph())


def test_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(TopicError, match="topic 'a' has 1 partitions, and no 5"):
        TestDriver(mapped()).send("a", 1, partition=5)


def test_close_leaves_what_was_open_undone() -> None:
    with fed(TestDriver(mapped()), 1) as driver:
        driver.step()
    assert (driver.values("x"), driver.down) == ([], {0})
