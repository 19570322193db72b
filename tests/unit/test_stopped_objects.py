"""Objects that are stopped or wait: what an operator sees, and what he decides is done once, whatever crashes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

import kstreams_py as ks
from kstreams_py.cli import order_objects
from kstreams_py.cli.main import app
from kstreams_py.errors import BrokerUnavailable, UserMistake
from kstreams_py.kafka.contracts import TRANSACTIONAL, Producer
from kstreams_py.metrics import EventCounts
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.order import Decided, ObjectState, Operator, find_objects, ordered_processors
from kstreams_py.ordering import chain, held
from kstreams_py.ordering.decisions import CONTROL_HEADER, Decision, Verb, decision_record
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import TestDriver
from tests.unit.test_ordered import applied, applying, letters, prefixes, send

FORKED = [("a", 1, None, 0), ("a", 2, 1, 1), ("a", 3, 1, "fork"), ("a", 4, 2, 2), ("b", 5, None, 0), ("a", 6, 4, 3)]
"""Object a is stopped after event 2; 4 and 6 follow it, and 3 does not."""

FOLLOWING = ("a", 7, 6, 4)


class Killed(BaseException):
    """Ends an operator's command."""


def environment_of(driver: TestDriver, sleep: Callable[[], None]) -> Environment:
    """That of an operator; the workers run while he waits."""

    def wait(seconds: float) -> None:
        driver.advance(seconds)
        sleep()

    return replace(driver._environment, sleep=wait)


@contextmanager
def stopped(**options: Any) -> Iterator[tuple[ks.Graph, TestDriver, Environment]]:
    graph = applying(**options)
    with TestDriver(graph) as driver:
        send(driver, *FORKED)
        driver.run()
        assert applied(driver) == {"a": prefixes(0, 1), "b": prefixes(0)}
        yield graph, driver, environment_of(driver, driver.run)


def states(graph: ks.Graph, environment: Environment) -> dict[str, ObjectState]:
    (processor,) = ordered_processors(graph)
    return {each.name.decode(): each for each in find_objects(graph, processor, environment)}


def decide(graph: ks.Graph, environment: Environment, verb: Verb, name: str = "a", seconds: float = 30.0) -> Any:
    operator = Operator(graph, graph.processors[0], environment, name)
    if verb is Verb.ACCEPT:
        operator.catch_up(seconds)
    event = operator.choose() if verb is Verb.ACCEPT else 0
    decided = operator.decide(verb, event, seconds)
    return decided.sent if decided is not None and decided.is_done else decided


def replayed(graph: ks.Graph, environment: Environment) -> list[str]:
    """The messages of the dead letters that are marked as replayed, up to the second colon."""
    reader = LetterReader(graph, environment)
    marks = reader.marks()
    return sorted(each.message.split(": ")[0] for each in reader.letters() if each.place in marks)


def test_stopped_object_is_shown_with_the_fault_that_stopped_it() -> None:
    with stopped() as (graph, _, environment):
        found = states(graph, environment)
        assert [name for name, each in found.items() if not each.goes_on] == ["a"]
        stop = found["a"].stop
        assert stop is not None
        assert (found["a"].newest, stop.why, stop.offset) == (
            2, "forked: a: event 3 follows 1, as another one did: 2 came", 2,
        )  # fmt: skip


def test_resumed_object_applies_what_it_missed_once_and_in_order() -> None:
    with stopped() as (graph, driver, environment):
        send(driver, FOLLOWING)  # becomes a dead letter while the operator waits
        assert decide(graph, environment, Verb.RESUME) == 3
        driver.run()
        assert applied(driver) == {"a": prefixes(0, 1, 2, 3, 4), "b": prefixes(0)}
        assert all(each.goes_on for each in states(graph, environment).values())
        assert replayed(graph, environment) == ["stopped"] * 3
        assert [message.split(":")[0] for _, message in letters(driver)] == ["forked", "stopped", "stopped", "stopped"]
        with pytest.raises(UserMistake, match=r"^apply: no event of object 'c' was read: correct the name$"):
            decide(graph, environment, Verb.RESUME, "c")


def test_accepted_fork_is_applied_and_the_chain_that_it_contradicts_is_refused() -> None:
    with stopped() as (graph, driver, environment):
        assert decide(graph, environment, Verb.ACCEPT) == 1
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, "fork"), "4 and 6 follow 2, which 3 has followed now"
        send(driver, ("a", 7, 3, "next"), ("a", 8, 6, 5), ("a", 9, 7, "last"))
        driver.run()
        assert [message.split(":")[0] for _, message in letters(driver)].count("forked") == 2
        assert decide(graph, environment, Verb.RESUME) == 1
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, "fork", "next", "last")
        found = states(graph, environment)["a"]
        assert (found.newest, found.goes_on) == (9, True)


def test_late_copy_of_a_replaced_event_stops_nothing() -> None:
    with stopped() as (graph, driver, environment):
        assert decide(graph, environment, Verb.ACCEPT) == 1
        driver.crash()
        driver.restart()
        send(driver, FORKED[1], FORKED[2], FORKED[0], FORKED[1], ("a", 7, 3, "next"), FORKED[1])
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, "fork", "next")
        assert all(each.goes_on for each in states(graph, environment).values())
        assert [message.split(":")[0] for _, message in letters(driver)] == ["forked", "stopped", "stopped"]


def test_object_goes_on_without_an_event_that_is_lost() -> None:
    graph = applying()
    with TestDriver(graph) as driver:
        send(driver, ("a", 1, None, 0), ("a", 5, 4, 2), ("a", 3, 2, 1), ("b", 8, 7, 0))
        driver.run()
        environment = environment_of(driver, driver.run)
        waiting = states(graph, environment)["a"]
        assert [each.id for each in waiting.held] == [3, 5]
        for _ in range(2):  # 2 is lost, then 4
            assert decide(graph, environment, Verb.ACCEPT) == 0
        assert applied(driver) == {"a": prefixes(0, 1, 2)}
        assert [name for name, each in states(graph, environment).items() if not each.goes_on] == ["b"]
        assert decide(graph, environment, Verb.ACCEPT, "b") == 0
        assert applied(driver)["b"] == prefixes(0)


def test_decision_is_for_one_group_and_changes_no_other() -> None:
    graph = applying()
    other = graph.topic("g.others", key=ks.String(), value=ks.Json(), partitions=2)
    graph.ordered("g.events", to=other, id="other")(lambda value: value)
    with TestDriver(graph) as driver:
        send(driver, *FORKED)
        driver.run()
        assert decide(graph, environment_of(driver, driver.run), Verb.RESUME) == 2
        driver.run()
        found = {
            each.processor: each.goes_on
            for processor in graph.processors
            for each in find_objects(graph, processor, driver._environment)
            if each.name == b"a"
        }
        assert found == {"apply": True, "other": False}


def test_without_workers_the_decision_waits_and_the_next_command_sends_the_rest() -> None:
    with stopped() as (graph, driver, environment):
        away = environment_of(driver, lambda: None)
        send(driver, FOLLOWING)
        assert decide(graph, away, Verb.RESUME, seconds=1.0) is None
        assert decide(graph, away, Verb.RESUME, seconds=1.0) is None
        driver.run()
        assert states(graph, environment)["a"].goes_on
        assert decide(graph, environment, Verb.RESUME) == 3
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, 2, 3, 4)


@pytest.mark.parametrize("verb", [Verb.RESUME, Verb.ACCEPT])
def test_command_that_dies_at_any_request_is_run_again_and_nothing_is_applied_twice(verb: Verb) -> None:
    expected = prefixes(0, 1, 2, 3) if verb is Verb.RESUME else prefixes(0, 1, "fork")
    with stopped() as (graph, driver, environment):
        before = len(driver.cluster.faults.requests)
        decide(graph, environment, verb)
        requests = driver.cluster.faults.requests[before:]
    points = [(name, requests[: i + 1].count(name)) for i, name in enumerate(requests)]
    points = [point for point in points if point[0] in {"produce", "commit_transaction", "init_transactions"}]
    assert len(points) > 5
    for (name, nth), is_applied in [(point, each) for point in points for each in (True, False)]:
        with stopped() as (graph, driver, environment):
            driver.cluster.faults.inject(name, nth=nth, error=Killed(), applied=is_applied)
            try:
                decide(graph, environment, verb)
            except Killed:
                driver.crash()  # it was a worker's request, or the operator's
                driver.restart()
            driver.advance(120)  # the broker ends the transaction of a process that has died
            driver.run()
            if verb is Verb.RESUME or not states(graph, environment)["a"].goes_on:
                decide(graph, environment, verb)
            driver.run()
            assert applied(driver)["a"] == expected, (name, nth, is_applied)
            assert states(graph, environment)["a"].goes_on


def write_hidden(driver: TestDriver, topic: str) -> Producer:
    """A transaction that stays open in both partitions of a topic."""
    other = driver.cluster.producer(TRANSACTIONAL, "other", None)
    other.init_transactions()
    other.begin_transaction()
    other.write([(topic, b"x", b"k", partition, None, None, 0, None) for partition in range(2)])
    other.flush()
    return other


def test_object_that_waits_for_its_dead_letters_is_resumed_and_accepts_nothing() -> None:
    with stopped() as (graph, driver, environment):
        assert decide(graph, environment_of(driver, lambda: None), Verb.RESUME, seconds=1.0) is None
        driver.run()
        send(driver, FOLLOWING)
        driver.run()
        assert [each.id for each in states(graph, environment)["a"].held] == [7]
        text = (
            "apply: object 'a': 2 of its events are dead letters, from event 4 on, and were not sent again: "
            "`kstreams order resume` sends them"
        )
        with pytest.raises(UserMistake, match=f"^{re.escape(text)}$"):
            decide(graph, environment, Verb.ACCEPT)
        assert replayed(graph, environment) == []
        assert decide(graph, environment, Verb.RESUME) == 2
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, 2, 3, 4)


def test_dead_letters_that_a_transaction_hides_are_awaited_and_sent(caplog: pytest.LogCaptureFixture) -> None:
    graph = applying()
    with TestDriver(graph) as driver:
        other, waited = write_hidden(driver, "g.errors"), [0.0]

        def go_on() -> None:
            driver.run()
            waited[0] += 1
            if waited[0] == 30:
                other.abort_transaction()

        send(driver, *FORKED)
        driver.run()
        assert decide(graph, environment_of(driver, go_on), Verb.RESUME) == 2
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, 2, 3)
        assert sum("an open transaction hides dead letters; waiting" in text for text in caplog.messages) == 1


def test_transaction_that_hides_dead_letters_for_too_long_is_named() -> None:
    graph = applying()
    with TestDriver(graph) as driver:
        other = write_hidden(driver, "g.errors")
        send(driver, *FORKED)
        driver.run()
        environment = replace(driver._environment, sleep=lambda _: None, clock=iter(range(0, 10_000, 5)).__next__)
        operator = Operator(graph, graph.processors[0], environment, "a")
        with pytest.raises(BrokerUnavailable, match="an open transaction hides dead letters after offset 0: `kstreams"):
            operator.missed()
        other.abort_transaction()
        assert [each.id for each in operator.missed()] == [4, 6]


def test_decision_that_a_transaction_hides_is_awaited_and_what_comes_of_it_is_told() -> None:
    with stopped() as (graph, driver, environment):
        other = write_hidden(driver, "g.events")
        send(driver, FOLLOWING)
        assert decide(graph, environment, Verb.RESUME, seconds=2.0) is None
        assert replayed(graph, environment) == [], "it is stopped, and would refuse them again"
        other.abort_transaction()
        assert decide(graph, environment, Verb.RESUME) == 3
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, 2, 3, 4)
        assert len(letters(driver)) == 4


def test_decision_is_for_the_stop_that_the_operator_saw() -> None:
    graph = applying()
    with TestDriver(graph) as driver:
        send(driver, *FORKED[:3])
        driver.run()
        away = environment_of(driver, lambda: None)
        assert decide(graph, away, Verb.RESUME, seconds=1.0) is None
        send(driver, ("a", 2, 1, "altered"))
        assert decide(graph, away, Verb.RESUME, seconds=1.0) is None
        operator = Operator(graph, graph.processors[0], environment_of(driver, driver.run), "a")
        assert operator.decide(Verb.RESUME, 0, 30.0) == Decided(is_done=False, sent=0)
        stop = operator.object.stop
        assert stop is not None
        assert stop.why.startswith("altered: a: event 2 came again"), "nobody has decided of this one"


def test_accepted_fork_is_applied_before_a_chain_that_is_faster() -> None:
    graph = applying()
    with TestDriver(graph) as driver:
        send(driver, ("a", 1, None, 0), ("a", 6, 1, 1), ("a", 7, 1, "chosen"))
        driver.run()
        came: list[bool] = []

        def go_on() -> None:
            driver.run()
            if not came:
                came.append(True)
                send(driver, ("a", 9, 6, "other"), ("a", 10, 9, "other"))
                driver.run()

        environment = environment_of(driver, go_on)
        assert decide(graph, environment, Verb.ACCEPT) == Decided(is_done=False, sent=0)
        assert applied(driver)["a"] == prefixes(0, 1, "chosen")
        found = states(graph, environment)["a"]
        assert (found.newest, found.stop is None, replayed(graph, environment)) == (7, False, ["forked"])


def test_events_that_are_sent_again_are_for_one_group() -> None:
    graph = applying()
    other = graph.topic("g.others", key=ks.String(), value=ks.Json(), partitions=2)
    graph.ordered("g.events", to=other, id="other")(lambda value: value)
    processors = {each.id: each for each in graph.processors}
    with TestDriver(graph) as driver:
        send(driver, *FORKED)
        driver.run()
        environment = environment_of(driver, driver.run)
        resumed = Operator(graph, processors["other"], environment, "a")
        assert resumed.decide(Verb.RESUME, 0, 30.0) == Decided(is_done=True, sent=2)
        accepting = Operator(graph, processors["apply"], environment, "a")
        assert accepting.decide(Verb.ACCEPT, accepting.choose(), 30.0) == Decided(is_done=True, sent=1)
        driver.run()
        found = {
            processor.id: [(each.newest, each.goes_on) for each in find_objects(graph, processor, environment)]
            for processor in graph.processors
        }
        assert found == {"apply": [(3, True), (5, True)], "other": [(6, True), (5, True)]}
        assert [record.value for record in driver.read("g.others") if record.key == "a"] == [0, 1, 2, 3]


def test_event_that_was_accepted_for_another_state_is_a_dead_letter_again() -> None:
    with stopped() as (graph, driver, environment):
        away = environment_of(driver, lambda: None)
        resuming = Operator(graph, graph.processors[0], away, "a")
        accepting = Operator(graph, graph.processors[0], away, "a")
        assert resuming.decide(Verb.RESUME, 0, 1.0) is None
        assert accepting.decide(Verb.ACCEPT, accepting.choose(), 1.0) is None
        driver.run()
        assert "forked: a: event 3 was accepted in another state of the object, after 2" in {
            message for _, message in letters(driver)
        }
        assert decide(graph, environment, Verb.RESUME) == 2
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, 2, 3)


@pytest.mark.parametrize(("value", "error"), [("bad", "ValueError"), ("x" * 2_000, "RecordTooLarge")])
def test_accepted_event_that_cannot_be_applied_is_a_dead_letter_and_the_next_follows(value: str, error: str) -> None:
    graph = ks.Graph("g", errors="g.errors")
    events = graph.topic("g.events", key=ks.String(), value=ks.Json(), partitions=2)
    states = graph.topic("g.states", key=ks.String(), value=ks.Json(), config={"max.message.bytes": "900"})

    @graph.ordered(events, to=states)
    def apply(value: Any) -> Any:
        if value == "bad":
            raise ValueError(value)
        return value

    with TestDriver(graph) as driver:
        send(driver, ("a", 1, None, 0), ("a", 2, 1, 1), ("a", 3, 1, value), ("a", 4, 3, 2))
        driver.run()
        assert decide(graph, environment_of(driver, driver.run), Verb.ACCEPT) == 2
        driver.run()
        assert applied(driver) == {"a": [0, 1, 2]}
        assert [error for error, _ in letters(driver)] == ["EventFault", "EventFault", error]


@pytest.mark.parametrize("request_name", ["produce", "send_offsets", "commit_transaction"])
@pytest.mark.parametrize("is_applied", [True, False])
def test_worker_that_dies_at_an_accepted_event_applies_it_once(request_name: str, is_applied: bool) -> None:
    with stopped() as (graph, driver, environment):
        decide(graph, environment_of(driver, lambda: None), Verb.ACCEPT, seconds=0.0)
        driver.crash(request_name, applied=is_applied)
        driver.restart()
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, "fork")
        assert (states(graph, environment)["a"].newest, replayed(graph, environment)) == (3, ["forked"])


@pytest.mark.parametrize("request_name", ["produce", "send_offsets", "commit_transaction"])
@pytest.mark.parametrize("is_applied", [True, False])
def test_worker_that_dies_at_a_decision_does_it_once(request_name: str, is_applied: bool) -> None:
    with stopped() as (graph, driver, environment):
        decide(graph, environment_of(driver, lambda: None), Verb.RESUME, seconds=0.0)
        driver.crash(request_name, applied=is_applied)
        driver.restart()
        driver.run()
        found = states(graph, environment)["a"]
        assert (found.goes_on, found.newest) == (True, 2)
        assert decide(graph, environment, Verb.RESUME) == 2


def test_record_with_a_decision_that_cannot_be_read_is_a_dead_letter() -> None:
    with TestDriver(applying()) as driver:
        driver.send("g.events", None, key="a", headers=[(CONTROL_HEADER, b"{}")])
        driver.run()
        ((error, message),) = letters(driver)
        assert (error, message.split(":")[0]) == (
            "DecodeError", "b'{}' is not a decision of `kstreams order resume` or `accept`",
        )  # fmt: skip


def test_decision_with_an_impossible_number_is_a_dead_letter_and_poisons_no_object() -> None:
    with stopped() as (graph, driver, environment):
        for change in ({"event": -1}, {"newest": -1, "event": 1}):
            value = {"verb": "accept", "group": "g.apply", "newest": 2, "event": 3, "stop": 2, "prev": 1} | change
            driver.send("g.events", None, key="a", headers=[(CONTROL_HEADER, json.dumps(value).encode())])
        driver.run()
        assert [error for error, _ in letters(driver)].count("DecodeError") == 2
        assert decide(graph, environment, Verb.RESUME) == 2
        driver.run()
        assert applied(driver)["a"] == prefixes(0, 1, 2, 3)


def test_event_of_an_object_with_unreadable_state_is_a_dead_letter_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stopped() as (_graph, driver, _environment):
        encode = chain.encode_state
        monkeypatch.setattr(held, "encode_state", lambda state: encode(state)[:-1] if state[0] == 7 else encode(state))
        send(driver, ("b", 7, 5, 1))
        driver.run()
        driver.crash()
        driver.restart()
        decision = decision_record("g.events", 0, b"b", Decision(Verb.RESUME, "g.apply", 7))
        send(driver, ("b", 8, 7, 2), ("c", 9, None, 0))
        driver.send("g.events", None, key="b", headers=decision[-1])
        driver.run()
        assert [error for error, _ in letters(driver)].count("DecodeError") == 2
        assert applied(driver) == {"a": prefixes(0, 1), "b": prefixes(0, 1), "c": prefixes(0)}


def test_worker_counts_its_events_and_what_waits_also_after_a_restart() -> None:
    graph = applying()
    with TestDriver(graph) as driver:
        send(driver, *FORKED, FORKED[4], ("b", 9, 8, 1), ("b", 11, 10, 2))
        driver.run()

        def counts() -> EventCounts:
            (worker,) = driver._workers[0]
            assert worker.runner.events is not None
            return worker.runner.events

        found = counts()
        assert (found.applied, found.duplicate, found.held, found.fault) == (3, 1, 2, 3)
        assert (found.held_now, found.stopped_now) == (2, 1)
        assert found.measures() == {
            "events:applied": 3, "events:duplicate": 1, "events:held": 2, "events:fault": 3,
        }  # fmt: skip
        driver.crash()
        driver.restart()
        driver.run()
        found = counts()
        assert (found.applied, found.held_now, found.stopped_now) == (0, 2, 1)
        longest = found.longest_held
        assert longest is not None
        assert (longest.group, longest.object, longest.id, longest.prev) == ("g.apply", "b", 9, 8)


# The commands.


Invoke = tuple[Callable[..., tuple[int, str]], TestDriver]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Invoke]:
    """Runs a command on a stopped object; the driver."""
    with stopped(**getattr(request, "param", {})) as (graph, driver, environment):

        @contextmanager
        def opened(*_: object) -> Iterator[tuple[ks.Graph, Environment]]:
            yield graph, environment

        monkeypatch.setattr(order_objects, "open_graph", opened)

        def run(*arguments: str) -> tuple[int, str]:
            ran = CliRunner().invoke(app, ["order", *arguments], catch_exceptions=False)
            return ran.exit_code, re.sub(r"\b\d+ s\b", "N s", ran.output)

        yield run, driver


def test_commands_show_a_stopped_object_and_let_it_go_on(invoke: Invoke) -> None:
    run, driver = invoke
    status, text = run("stopped", "g")
    fault = "forked: a: event 3 follows 1, as another one did: 2 came"
    assert (status, text.splitlines()) == (
        1, [f"apply: 'a', after event 2, is stopped, N s ago at offset 2: {fault}"],
    )  # fmt: skip
    status, text = run("stopped", "g", "--json")
    assert (status, json.loads(text)) == (
        1,
        {
            "processor": "apply", "object": "a", "partition": 0, "newest": 2, "stopped": fault,
            "waits_for": None, "held": [], "held_seconds": None,
        },
    )  # fmt: skip
    status, text = run("resume", "g", "a", "--yes")
    assert (status, text.splitlines()[-1]) == (0, "object 'a' goes on; 2 of its events were sent again")
    driver.run()
    assert run("stopped", "g") == (0, "all objects go on\n")
    with pytest.raises(UserMistake, match=r"^object 'a' goes on: "):
        run("resume", "g", "a")
    with pytest.raises(UserMistake, match=r"^object 'a' goes on: "):
        run("accept", "g", "a")
    send(driver, ("a", 9, 8, 5))
    driver.run()
    status, text = run("stopped", "g")
    assert (status, text) == (
        1, "apply: 'a', after event 6, waits for event 8: 1 events are held, the first of them 9, for N s\n",
    )  # fmt: skip
    with pytest.raises(UserMistake, match=r"^object 'a' is not stopped, it waits for event 8: if that is lost"):
        run("resume", "g", "a")
    assert run("accept", "g", "a", "--yes")[0] == 0
    assert applied(driver)["a"] == prefixes(0, 1, 2, 3, 5)


def test_commands_tell_the_state_of_the_object_where_the_decision_changed_nothing(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, driver = invoke
    opened = vars(order_objects)["open_graph"]

    @contextmanager
    def away(*arguments: Any) -> Iterator[tuple[ks.Graph, Environment]]:
        with opened(*arguments) as (graph, _):
            yield graph, environment_of(driver, lambda: None)

    monkeypatch.setattr(order_objects, "open_graph", away)
    status, text = run("resume", "g", "a", "--yes", "--wait", "1")
    told = (
        "the decision on 'a' is written, but the processor's workers have not read it yet: once they run, `kstreams "
        "order resume` resends the events that the object has missed"
    )
    assert (status, text.splitlines()[-1]) == (1, told)
    told = (
        "the processor's workers have not read all events of partition 0 after N s: run the command again once they "
        "have: the object may go on with one of these\n"
    )
    assert run("accept", "g", "a", "--yes", "--wait", "1") == (1, told)
    send(driver, ("a", 2, 1, "altered"))
    monkeypatch.setattr(order_objects, "open_graph", opened)
    status, text = run("resume", "g", "a", "--yes")
    told = (
        "apply: 'a', after event 2, is stopped, N s ago at offset 8: altered: a: event 2 came again with another "
        "value; it has changed meanwhile: decide again"
    )
    assert (status, text.splitlines()[-1]) == (1, told)
    with pytest.raises(UserMistake, match=r"^object 'b' goes on: "):
        run("accept", "g", "b")


def test_command_names_the_processors_that_there_are(invoke: Invoke) -> None:
    run, _ = invoke
    with pytest.raises(UserMistake, match=r"^graph 'g' has no processor 'x' that applies events: it has apply$"):
        run("stopped", "g", "--processor", "x")


@pytest.mark.parametrize("invoke", [{"errors": None}], indirect=True)
def test_object_whose_refused_events_are_no_dead_letters_goes_on_without_them(invoke: Invoke) -> None:
    run, driver = invoke
    with pytest.raises(UserMistake, match=r"no waiting or refused event to go on with: `kstreams order resume` lets"):
        run("accept", "g", "a")
    status, text = run("resume", "g", "a", "--yes")
    lost = "its refused events are lost, because no dead-letter topic is declared (errors=)"
    assert (status, text.splitlines()[0].split("; ")[1]) == (0, lost)
    send(driver, ("a", 7, 6, 4))
    driver.run()
    status, text = run("accept", "g", "a", "--yes")
    assert (status, text.splitlines()[-1]) == (0, "object 'a' goes on; 0 of its events were sent again")
    assert applied(driver)["a"] == prefixes(0, 1, 4)
