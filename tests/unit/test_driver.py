"""testing/driver.py: a graph without a broker: its outputs, its committed offsets, and a crash at each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import Abortable, DecodeError, Fatal, GraphError, Retriable, TopicError, UserMistake
from kstreams_py.records import TopicPartition
from kstreams_py.testing import CrashPoint, Record, TestDriver
from kstreams_py.testing import driver as driver_module


def new_graph(**options: Any) -> ks.Graph:
    """A graph with topics a, b, x, y of JSON under text keys."""
    graph = ks.Graph("g", errors="dead", **options)
    for name in "abxy":
        graph.topic(name, key=ks.String(), value=ks.Json())
    return graph


def mapping_graph(**options: Any) -> ks.Graph:
    graph = new_graph(**options)
    graph.map("a", to="x", id="p")(lambda value: value * 10)
    return graph


def feed(driver: TestDriver, *values: int, topic: str = "a") -> TestDriver:
    """Sends each value under one of three keys."""
    for value in values:
        driver.send(topic, value, key=f"k{value % 3}")
    return driver


# Inputs and outputs.


def test_map_reads_and_writes_through_the_serdes_of_its_topics() -> None:
    with TestDriver(mapping_graph()) as driver:
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


def test_topics_are_accepted_as_names_or_objects() -> None:
    graph = ks.Graph("g")
    a, x = graph.topic("a"), graph.topic("x")
    graph.map(a, to=x)(function_named("p"))
    driver = TestDriver(graph)
    driver.send(a, b"1")
    driver.run()
    assert driver.values(x) == driver.values("x") == [b"1"]


def function_named(name: str) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        return value

    function.__name__ = name
    return function


def test_tombstones_are_read_and_written() -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: ks.Out(None) if value is None else value)
    driver = TestDriver(graph)
    driver.send("a", None, key="k")
    driver.run()
    assert [(record.key, record.value) for record in driver.read("x")] == [("k", None)]


def test_fork_writes_to_the_topics_it_names() -> None:
    graph = new_graph()
    graph.map("a", to=["x", "y"], id="p")(lambda value: {"x": value} if value % 2 else {"x": value, "y": -value})
    driver = feed(TestDriver(graph), 1, 2)
    driver.run()
    assert (driver.values("x"), driver.values("y")) == ([1, 2], [-2])


def test_join_waits_for_one_record_of_each_input() -> None:
    graph = new_graph()
    graph.join("a", "b", by="order", to="x", id="p")(lambda a, b: [a, b])
    driver = feed(TestDriver(graph), 1, 2)
    feed(driver, 7, topic="b").run()
    assert driver.values("x") == [[1, 7]]
    feed(driver, 8, topic="b").run()
    assert driver.values("x") == [[1, 7], [2, 8]]


def test_alts_takes_whichever_input_is_ready() -> None:
    graph = new_graph()
    graph.alts("a", "b", to="x", id="p")(lambda value, step: [step.topic, value])
    driver = feed(feed(TestDriver(graph), 1), 7, topic="b")
    driver.run()
    assert sorted(driver.values("x")) == [["a", 1], ["b", 7]]
    assert [m.topic() for m in driver.cluster.records("__ks.g.p.journal")] == ["__ks.g.p.journal"]


def test_sink_is_called_and_writes_nothing() -> None:
    graph, seen = new_graph(), list[tuple[str, int]]()
    graph.sink("a", id="p")(lambda value, step: seen.append((step.key, value)))
    driver = feed(TestDriver(graph), 1, 2)
    driver.run()
    assert seen == [("k1", 1), ("k2", 2)]
    assert driver.committed("p") == {TopicPartition("a", 0): 2}


def test_batch_function_receives_lists() -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p", batch=True)(lambda values: [sum(values)] * len(values))
    driver = feed(TestDriver(graph), 1, 2, 3)
    driver.run()
    assert driver.values("x") == [6, 6, 6]


def test_run_processes_a_chain_to_its_end() -> None:
    graph = mapping_graph()
    graph.map("x", to="y", id="q")(lambda value: value + 1)
    driver = feed(TestDriver(graph), 1, 2)
    driver.run()
    assert driver.values("y") == [11, 21]


def test_dead_letters_are_decoded() -> None:
    graph = new_graph()
    graph.map("a", to="x", id="p")(lambda value: 1 // value)
    driver = feed(TestDriver(graph), 1, 0)
    driver.run()
    (dead,) = driver.dead_letters()
    error = "builtins.ZeroDivisionError"
    assert (dead.topic, dead.value["processor"], dead.value["exception_class"]) == ("dead", "g.p", error)
    assert (dead.value["inputs"][0]["value"], dead.delivery_hash) == (b"0", dead.value["delivery_hash"])
    assert driver.values("x") == [1]


def test_undecodable_bytes_become_dead_letters_and_read_names_their_offset() -> None:
    driver = TestDriver(mapping_graph())
    driver.cluster.append("a", b"no json", b"k")
    driver.run()
    assert [dead.value["inputs"][0]["value"] for dead in driver.dead_letters()] == [b"no json"]
    with pytest.raises(DecodeError, match=r"value of a\[0\]@0: these bytes are not JSON"):
        driver.read("a")


@pytest.mark.parametrize("kind", ["map", "step", "batch", "state", "alts", "sink"])
def test_bytes_that_decode_to_none_become_dead_letters_and_tombstones_pass(kind: str) -> None:
    graph, seen = new_graph(), list[Any]()
    graph.topic("u", key=ks.String(), value=ks.Avro(["null", "int"]))
    functions: dict[str, Callable[..., Any]] = {
        "step": lambda value, step: seen.append(value),
        "batch": seen.extend,
        "state": lambda value, state: seen.append(value),
    }
    function = functions.get(kind, seen.append)
    for topic in ("a", "u"):
        options = {"batch": True} if kind == "batch" else {"state": ks.State(f"s{topic}")} if kind == "state" else {}
        if kind == "alts" and topic == "a":
            graph.alts("a", "u", to="x", id="p")(function)
        elif kind == "sink":
            graph.sink(topic, id=topic)(function)
        elif kind != "alts":
            graph.map(topic, to="x", id=topic, **options)(function)
    driver = TestDriver(graph)
    driver.send("u", 7)
    head = (driver.cluster.records("u")[0].value() or b"")[:5]
    for topic, null in (("a", b" null "), ("u", head + b"\0")):
        driver.cluster.append(topic, null)
        driver.cluster.append(topic, None)
    driver.run()
    assert sorted(seen, key=str) == [7, None, None]
    messages = [dead.value["exception_message"] for dead in driver.dead_letters()]
    assert [each[-45:] for each in messages] == [", as if there were none: read them as Bytes()"] * 2


def test_dead_letters_of_a_graph_without_such_a_topic_are_empty() -> None:
    graph = ks.Graph("g")
    for name in "ax":
        graph.topic(name)
    graph.map("a", to="x", id="p")(function_named("p"))
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
    driver.cluster.append("a", b"\0\0\0\0\x63rest")
    with pytest.raises(DecodeError, match=r"value of a\[0\]@1: .* no schema 99 was registered here"):
        driver.read("a")


def test_given_registry_is_used() -> None:
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
    driver = feed(TestDriver(mapping_graph()), 1)
    driver.step()  # fetches, and holds the output until the commit
    assert (driver.values("x"), driver.committed("p")) == ([], {TopicPartition("a", 0): 0})
    driver.step()  # finds no further record, and commits
    assert (driver.values("x"), driver.committed("p")) == ([10], {TopicPartition("a", 0): 1})


def test_advance_times_out_an_open_transaction_and_the_worker_repeats_it() -> None:
    driver = feed(TestDriver(mapping_graph()), *range(1_000))
    while not driver.read("x", "read_uncommitted"):
        driver.step()
    open_, committed = len(driver.read("x", "read_uncommitted")), driver.committed("p")
    driver.advance(11)
    driver.run()
    assert (driver.values("x"), committed) == ([10 * value for value in range(1_000)], {TopicPartition("a", 0): 0})
    assert len(driver.read("x", "read_uncommitted")) == 1_000 + open_


def test_committed_offsets_pass_transaction_markers_once_the_workers_are_idle() -> None:
    graph = mapping_graph()
    graph.map("x", to="y", id="q")(lambda value: value)
    driver = feed(TestDriver(graph), 1)
    driver.run()
    assert driver.committed("q") == {TopicPartition("x", 0): 2}  # a record and a marker


def test_run_of_many_waiting_workers_does_not_advance_the_clock() -> None:
    """Their sessions would time out if the clock added up their waits."""
    graph, calls = new_graph(), list[int]()
    for number in range(10):
        graph.sink("a", id=f"p{number}")(calls.append)
    driver = TestDriver(graph, slots=2, partitions=2)
    before = driver.clock()
    feed(driver, *range(8)).run()
    assert (len(calls), driver.clock()) == (80, before)


def test_slots_share_the_partitions() -> None:
    graph, slots = new_graph(), list[int]()

    def keep_slot(value: Any, step: ks.Step) -> Any:
        slots.append(step.offsets_read[0][1])
        return value

    graph.map("a", to="x", id="p")(keep_slot)
    with TestDriver(graph, slots=2, partitions=4) as driver:
        for number in range(8):
            driver.send("a", number, partition=number % 4)
        driver.run()
        assert (sorted(driver.values("x")), sorted(slots)) == ([*range(8)], [0, 0, 1, 1, 2, 2, 3, 3])
        assert driver.committed("p") == {TopicPartition("a", number): 2 for number in range(4)}
        held = [set(worker.ledger.positions) for workers in driver._workers.values() for worker in workers]
        assert list(map(len, held)) == [2, 2]


def test_partition_count_is_declared_or_that_of_joined_topics_or_the_argument() -> None:
    graph = ks.Graph("g")
    for name, partitions in {"a": 3, "b": None, "x": None}.items():
        graph.topic(name, partitions=partitions)
    graph.join("a", "b", by="order", to="x", id="p")(lambda a, b: a)
    graph.topic("free")
    for given, expected in {None: [3, 3, 3, 1], 5: [3, 3, 3, 5]}.items():
        info = TestDriver(graph, partitions=given).cluster.topics(["a", "b", "x", "free"])
        assert [info[name].partitions for name in ("a", "b", "x", "free")] == expected


def test_slot_takes_over_the_partitions_of_a_crashed_slot_after_its_session_timeout() -> None:
    driver = TestDriver(mapping_graph(), slots=2, partitions=2)
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


def test_settings_are_passed_to_the_workers() -> None:
    driver = feed(TestDriver(mapping_graph(), settings=ks.Settings(commit_records=1)), *range(3))
    driver.step()
    assert driver.values("x") == [0, 10, 20]


# Exceptions that stop a worker.


def test_exception_that_stops_a_worker_is_raised_after_completed_steps_are_committed() -> None:
    graph = new_graph(stop_on=LookupError)

    @graph.map("a", to="x", id="p")
    def function(value: int) -> int:
        if value == 2:
            raise LookupError("two")
        return value

    driver = feed(TestDriver(graph), 1, 2, 3)
    with pytest.raises(LookupError, match="two"):
        driver.run()
    assert (driver.values("x"), driver.committed("p"), set(driver.down)) == ([1], {TopicPartition("a", 0): 1}, {0})
    driver.restart()
    with pytest.raises(LookupError, match="two"):
        driver.run()


def test_stop_commits_all_processors_of_the_slot_and_raises_nothing() -> None:
    graph = new_graph()

    @graph.map("a", to="x", id="p")
    def function(value: int) -> int:
        if value == 2:
            raise ks.Stop
        return value

    graph.map("b", to="y", id="q")(lambda value: value)
    driver = feed(feed(TestDriver(graph), 1, 2), 7, topic="b")
    driver.run()
    assert (driver.values("x"), driver.down) == ([1], frozenset({0}))
    driver.restart()
    driver.send("b", 8)
    driver.run()
    assert driver.down == {0}


def test_failure_of_one_processor_lets_the_others_commit() -> None:
    graph = mapping_graph()
    graph.map("b", to="y", id="q")(lambda value: value)
    driver = feed(feed(TestDriver(graph), 1), 7, topic="b")
    # the first two requests are those of commit_start
    driver.cluster.faults.inject("send_offsets", nth=3, error=Fatal("unusable"), applied=False)
    with pytest.raises(Fatal, match="unusable"):
        driver.run()
    assert (driver.values("x"), driver.values("y"), driver.down) == ([], [7], frozenset({0}))


def test_faults_other_than_crashes_are_injected_into_the_cluster() -> None:
    driver = TestDriver(mapping_graph())
    driver.run()  # commits the start offsets
    feed(driver, 1, 2)
    driver.cluster.faults.inject("commit_transaction", error=Abortable("refused"), applied=False)
    driver.cluster.faults.inject("committed", error=Retriable("again"), applied=False)
    driver.run()
    assert (driver.values("x"), len(driver.read("x", "read_uncommitted"))) == ([10, 20], 4)


# Crashes.


def graph_of(kind: str, **options: Any) -> ks.Graph:
    """One processor of a kind, whose outputs contain the values read; one record in five becomes a dead letter."""
    graph = new_graph(**options)

    def one(value: int) -> Any:
        if value % 5 == 4:
            raise LookupError(value)
        return {"x": value, "y": value} if kind == "fork" else value

    def many(values: list[int]) -> list[Any]:
        return [LookupError(value) if value % 5 == 4 else value for value in values]

    if kind == "join":
        graph.join("a", "b", by="order", to="x", id="p")(lambda a, b: one(a) * 100 + b)
    elif kind == "alts":
        graph.alts("a", "b", to="x", id="p")(one)
    elif kind == "batch":
        graph.map("a", to="x", id="p", batch=True)(many)
    else:
        graph.map("a", to=["x", "y"] if kind == "fork" else "x", id="p")(one)
    return graph


def loaded_driver(kind: str, **options: Any) -> TestDriver:
    """A driver with ten records in each input, on two partitions."""
    driver = TestDriver(graph_of(kind, **options), partitions=2)
    for number in range(10):
        for topic in "ab" if kind in ("join", "alts") else "a":
            driver.send(topic, number + (10 if topic == "b" else 0), key=f"k{number % 2}", partition=number % 2)
    return driver


def count_outputs(driver: TestDriver) -> dict[str, Counter[Any]]:
    """How often each output is in its topic, by key, value and delivery hash."""
    return {
        topic: Counter((record.key, str(record.value)[:60], record.delivery_hash) for record in driver.read(topic))
        for topic in ("x", "y", "dead")
    }


def one_of_each_kind(points: list[CrashPoint]) -> list[CrashPoint]:
    """A point for each kind of request, carried out and lost: one in the middle of the run."""
    kinds: dict[tuple[str, bool], list[CrashPoint]] = {}
    for point in points:
        kinds.setdefault((point.request, point.applied), []).append(point)
    return [each[len(each) // 2] for each in kinds.values()]


@pytest.mark.parametrize(
    "choose", [one_of_each_kind, pytest.param(list, marks=pytest.mark.long)], ids=["each kind", "all"]
)
@pytest.mark.parametrize("kind", ["map", "fork", "join", "alts", "batch"])
def test_exactly_once_crash_at_every_crash_point_delivers_once(
    kind: str, choose: Callable[[list[CrashPoint]], list[CrashPoint]]
) -> None:
    plain = loaded_driver(kind)
    plain.run()
    expected, points = count_outputs(plain), plain.crash_points()
    assert {count for counts in expected.values() for count in counts.values()} == {1}
    assert len(expected["dead"]) == (4 if kind == "alts" else 2)
    assert {point.request for point in points} >= {"init_transactions", "subscribe", "produce", "commit_transaction"}
    for point in choose(points):
        driver = loaded_driver(kind)
        driver.crash(point)
        assert driver.down == {0}
        driver.restart()
        driver.run()
        if kind == "alts":  # an order that was not journaled may be chosen differently
            assert (set(count_outputs(driver)["x"].values()), len(count_outputs(driver)["x"])) == ({1}, 16), point
        else:
            assert count_outputs(driver) == expected, point


@pytest.mark.parametrize(("guarantee", "copies"), [("at_least_once", {1, 2}), ("at_most_once", {0, 1})])
def test_weaker_guarantees_crash_at_every_crash_point_delivers_as_promised(guarantee: str, copies: set[int]) -> None:
    plain = loaded_driver("map", guarantee=guarantee)
    plain.run()
    expected, points = count_outputs(plain), plain.crash_points()
    seen = set[int]()
    for point in points:
        driver = loaded_driver("map", guarantee=guarantee)
        driver.crash(point)
        driver.restart()
        driver.run()
        seen |= {count_outputs(driver)[topic][each] for topic, counts in expected.items() for each in counts}
    assert seen == copies


def test_crash_leaves_the_transaction_open_until_the_restart() -> None:
    driver = feed(TestDriver(mapping_graph()), 1)
    driver.crash("commit_transaction", nth=2, applied=False)  # the first commits the start offsets
    assert (driver.values("x"), len(driver.read("x", "read_uncommitted"))) == ([], 1)
    driver.restart()
    driver.run()
    assert (driver.values("x"), len(driver.read("x", "read_uncommitted"))) == ([10], 2)


def test_crash_after_an_applied_commit_repeats_nothing() -> None:
    driver = feed(TestDriver(mapping_graph()), 1)
    driver.crash("commit_transaction", nth=2, applied=True)
    assert driver.values("x") == [10]
    driver.restart()
    driver.run()
    assert len(driver.read("x", "read_uncommitted")) == 1


def test_crash_counts_requests_from_its_own_call() -> None:
    driver = feed(TestDriver(mapping_graph(), settings=ks.Settings(commit_records=1)), 1)
    driver.run()
    feed(driver, 2).crash("commit_transaction", nth=1)
    feed(driver, 3).restart()
    driver.crash("commit_transaction", nth=1, applied=False)
    assert driver.values("x") == [10, 20]


def test_crash_without_a_request_happens_between_two_turns() -> None:
    driver = feed(TestDriver(mapping_graph()), 1)
    driver.step()
    driver.crash()
    assert (driver.values("x"), driver.down) == ([], frozenset({0}))
    driver.restart()
    driver.run()
    assert driver.values("x") == [10]


def test_crash_of_one_processor_crashes_its_slot() -> None:
    graph = mapping_graph()
    graph.map("b", to="y", id="q")(lambda value: value)
    driver = feed(feed(TestDriver(graph), 1), 7, topic="b")
    driver.crash("commit_transaction", nth=3, applied=False)  # the first two requests are those of commit_start
    assert (driver.values("x"), driver.values("y"), driver.down) == ([], [], frozenset({0}))
    assert [len(driver.read(topic, "read_uncommitted")) for topic in "xy"] == [1, 0]
    driver.restart()
    driver.run()
    assert (driver.values("x"), driver.values("y")) == ([10], [7])


def test_crash_at_a_request_that_the_run_does_not_make_is_refused() -> None:
    driver = feed(TestDriver(mapping_graph()), 1)
    with pytest.raises(
        UserMistake, match=r"the run ended before request commit_transaction 9 carried out: its requests were .*pro"
    ):
        driver.crash("commit_transaction", nth=9)


def test_run_while_every_process_is_down_is_refused() -> None:
    driver = feed(TestDriver(mapping_graph()), 1)
    driver.crash("produce")
    for action in (driver.run, driver.step, lambda: driver.crash("produce")):
        with pytest.raises(UserMistake, match=r"every process has crashed or stopped: call restart\(\) first"):
            action()


def test_crash_points_name_each_request_of_the_run_twice() -> None:
    driver = feed(TestDriver(mapping_graph()), 1)
    assert driver.crash_points() == []
    driver.run()
    points = driver.crash_points()
    assert points[:2] == [CrashPoint("topics", 1, applied=True), CrashPoint("topics", 1, applied=False)]
    assert CrashPoint("commit_transaction", 1, applied=False) in points
    assert len(set(points)) == len(points) == 2 * len({(p.request, p.nth) for p in points})
    assert [str(point) for point in points[:2]] == ["topics 1 carried out", "topics 1 lost"]


def test_run_of_a_cyclic_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "TURNS_MAX", 100)
    graph = mapping_graph()
    graph.map("x", to="a", id="back")(lambda value: value)
    driver = feed(TestDriver(graph), 0)
    with pytest.raises(UserMistake, match=r"graph 'g' is not done after 100 turns: use step\(\) if its topics"):
        driver.run()


# Mistakes.


def test_unknown_names_are_refused_with_a_list_of_known_ones() -> None:
    driver = TestDriver(mapping_graph())
    with pytest.raises(GraphError, match="graph 'g' has no topic 'else': it has a, b, x, y, dead; see `cluster`"):
        driver.send("else", 1)
    with pytest.raises(GraphError, match="graph 'g' has no topic 'else'"):
        driver.read("else")
    with pytest.raises(GraphError, match="graph 'g' has no processor 'else': it has p"):
        driver.committed("else")
    with pytest.raises(GraphError, match=r"graph 'g' has no topic 'deat': did you mean dead\?"):
        driver.read("deat")
    with pytest.raises(GraphError, match=r"graph 'g' has no processor 'pp': did you mean p\?"):
        driver.committed("pp")


def test_driver_refuses_a_graph_without_processors() -> None:
    with pytest.raises(GraphError, match="graph 'g' has no processors"):
        TestDriver(new_graph())


def test_send_to_a_missing_partition_is_refused() -> None:
    with pytest.raises(TopicError, match="topic 'a' has 1 partitions, but no partition 5"):
        TestDriver(mapping_graph()).send("a", 1, partition=5)


def test_close_leaves_the_open_transaction_uncommitted() -> None:
    with feed(TestDriver(mapping_graph()), 1) as driver:
        driver.step()
    assert (driver.values("x"), driver.down) == ([], frozenset({0}))


def test_states_on_disk_are_of_one_driver_and_end_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    found = []
    for _ in range(2):
        graph = ks.Graph("g")
        counts = ks.State("s", key=ks.String(), value=ks.Json(), on_disk=True)

        @graph.map(graph.topic("a", value=ks.String()), to=graph.topic("x", value=ks.Json()), state=counts)
        def count(value: str, state: ks.KeyedStore[str, int]) -> Any:
            state.put(value, state.get(value, 0) + 1)
            return state.get(value)

        with TestDriver(graph) as driver:
            driver.send("a", "k", key=None)
            driver.run()
            found.append((driver.values("x"), len([*tmp_path.iterdir()])))
    assert (found, [*tmp_path.iterdir()]) == ([([1], 1)] * 2, [])
