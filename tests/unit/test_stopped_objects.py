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
from kstreams_py.errors import UserMistake
from kstreams_py.metrics import EventCounts
from kstreams_py.operations.reading import LetterReader
from kstreams_py.operations.stopped_objects import ObjectState, Operator, find_objects, ordered_processors
from kstreams_py.ordering.decisions import CONTROL_HEADER, Verb
from kstreams_py.processing.environment import Environment
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
def stopped() -> Iterator[tuple[ks.Graph, TestDriver, Environment]]:
    graph = applying()
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
    event = operator.choose() if verb is Verb.ACCEPT else 0
    return operator.decide(verb, event, seconds)


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


def test_command_that_dies_at_any_request_is_run_again_and_nothing_is_applied_twice() -> None:
    with stopped() as (graph, driver, environment):
        before = len(driver.cluster.faults.requests)
        decide(graph, environment, Verb.RESUME)
        requests = driver.cluster.faults.requests[before:]
    points = [(name, requests[: i + 1].count(name)) for i, name in enumerate(requests)]
    points = [point for point in points if point[0] in {"produce", "commit_transaction", "init_transactions"}]
    assert len(points) > 5
    for (name, nth), is_applied in [(point, each) for point in points for each in (True, False)]:
        with stopped() as (graph, driver, environment):
            driver.cluster.faults.inject(name, nth=nth, error=Killed(), applied=is_applied)
            try:
                decide(graph, environment, Verb.RESUME)
            except Killed:
                driver.crash()  # it was a worker's request, or the operator's
                driver.restart()
            driver.advance(120)  # the broker ends the transaction of a process that has died
            driver.run()
            decide(graph, environment, Verb.RESUME)
            driver.run()
            assert applied(driver)["a"] == prefixes(0, 1, 2, 3), (name, nth, is_applied)
            assert states(graph, environment)["a"].goes_on


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
            "DecodeError", "b'{}' is no decision of `kstreams order resume` or `accept`",
        )  # fmt: skip


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


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Callable[..., tuple[int, str]], TestDriver]]:
    """Runs a command on a stopped object; the driver."""
    with stopped() as (graph, driver, environment):

        @contextmanager
        def opened(*_: object) -> Iterator[tuple[ks.Graph, Environment]]:
            yield graph, environment

        monkeypatch.setattr(order_objects, "open_graph", opened)

        def run(*arguments: str) -> tuple[int, str]:
            ran = CliRunner().invoke(app, ["order", *arguments], catch_exceptions=False)
            return ran.exit_code, re.sub(r"\b\d+ s\b", "N s", ran.output)

        yield run, driver


def test_commands_show_a_stopped_object_and_let_it_go_on(
    invoke: tuple[Callable[..., tuple[int, str]], TestDriver],
) -> None:
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
            "processor": "apply", "object": "a", "partition": 0, "newest": 2, "stopped": fault, "accepts": None,
            "waits_for": None, "held": [], "held_seconds": None,
        },
    )  # fmt: skip
    status, text = run("resume", "g", "a", "--yes")
    assert (status, text.splitlines()[-1]) == (0, "object 'a' goes on; 2 of its events were sent again")
    driver.run()
    assert run("stopped", "g") == (0, "all objects go on\n")
    with pytest.raises(UserMistake, match=r"^object 'a' is not stopped: "):
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


def test_command_names_the_processors_that_there_are(
    invoke: tuple[Callable[..., tuple[int, str]], TestDriver],
) -> None:
    run, _ = invoke
    with pytest.raises(UserMistake, match=r"^graph 'g' has no processor 'x' that applies events: it has apply$"):
        run("stopped", "g", "--processor", "x")
