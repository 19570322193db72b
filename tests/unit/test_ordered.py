"""@graph.ordered: each event of an object is applied once and in order, over crashes, faults and restarts."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import GraphError, InputLost, Unavailable
from kstreams_py.formats.serdes import Json, String
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER
from kstreams_py.steps.dead_letters import DeadLetters
from kstreams_py.testing import TestDriver

Sent = tuple[str, int, int | None, Any]
"""Object, id, predecessor, value."""


def applying(*, on_disk: bool = False, **options: Any) -> ks.Graph:
    """Appends each event's value to those of its object; "bad" raises after it was appended."""
    graph = ks.Graph("g", errors="g.errors")
    events = graph.topic("g.events", key=String(), value=Json(), partitions=2)
    states = graph.topic("g.states", key=String(), value=Json(), partitions=2)

    @graph.ordered(events, to=states, state=ks.State("lists", on_disk=on_disk), **options)
    def apply(value: Any, step: ks.Step, state: Any) -> Any:
        values = [*state.get(step.key, []), value]
        state.put(step.key, values)
        if value == "bad":
            raise ValueError(value)
        return values

    return graph


def send(driver: TestDriver, *events: Sent) -> None:
    for name, number, prev, value in events:
        headers: list[tuple[str, bytes | None]] = [(ID_HEADER, b"%d" % number)]
        headers += [] if prev is None else [(PREV_HEADER, b"%d" % prev)]
        driver.send("g.events", value, key=name, headers=headers)


def applied(driver: TestDriver) -> dict[str, list[Any]]:
    """The outputs of each object, in order."""
    found = defaultdict[str, list[Any]](list)
    for record in driver.read("g.states"):
        found[record.key].append(record.value)
    return dict(found)


def letters(driver: TestDriver) -> list[tuple[str, str]]:
    found = [(each.value["exception_class"], each.value["exception_message"]) for each in driver.dead_letters()]
    return sorted((name.rpartition(".")[2], message) for name, message in found)


def prefixes(*values: Any) -> list[list[Any]]:
    return [list(values[: i + 1]) for i in range(len(values))]


A: list[Sent] = [("a", 3, None, 0), ("a", 5, 3, 1), ("a", 9, 5, 2), ("a", 11, 9, 3)]
B: list[Sent] = [("b", 4, None, 0), ("b", 10, 4, 1)]
CHAIN = [A[0], B[0], A[1], A[2], B[1], A[3]]

EXPECTED = {"a": prefixes(0, 1, 2, 3), "b": prefixes(0, 1)}


def test_events_that_arrive_in_any_order_with_copies_are_applied_once_in_order() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        events = CHAIN * 2
        chance.shuffle(events)
        with TestDriver(applying()) as driver:
            for begin in range(0, len(events), 3):
                send(driver, *events[begin : begin + 3])
                driver.run()
                if chance.random() < 0.3:
                    driver.crash()
                    driver.restart()
            found = applied(driver), driver.state("lists"), letters(driver)
            assert found == (EXPECTED, {"a": [0, 1, 2, 3], "b": [0, 1]}, []), seed


@pytest.mark.parametrize(
    ("on_disk", "at_each"),
    [
        # the state is read where a task is opened, whichever request was the last one: one point of each request
        pytest.param(False, False, id="memory, at the last of each request"),
        pytest.param(True, False, id="disk, at the last of each request"),
        pytest.param(False, True, id="memory", marks=pytest.mark.long),
        pytest.param(True, True, id="disk", marks=pytest.mark.long),
    ],
)
def test_crash_at_any_request_applies_each_event_once_in_order(on_disk: bool, at_each: bool, tmp_path: Path) -> None:
    first, then = [A[1], A[0], B[1], A[3], A[0]], [B[0], A[2], A[1]]  # some are held from one run to the next

    def begin(directory: Path) -> TestDriver:
        """Applies the first events, and restarts."""
        settings = ks.Settings(state_directory=directory)
        driver = TestDriver(applying(on_disk=on_disk), settings=settings)
        send(driver, *first)
        driver.run()
        driver.crash()
        driver.restart()
        send(driver, *then)
        return driver

    with begin(tmp_path / "whole") as driver:
        made = len(driver.cluster.faults.requests)
        driver.run()
        assert applied(driver) == EXPECTED
        requests = Counter(driver.cluster.faults.requests[made:])
    assert requests.keys() >= {"read", "produce", "send_offsets", "commit_transaction"}
    for request, count in requests.items():
        for nth, is_applied in itertools.product(range(1 if at_each else count, count + 1), (True, False)):
            with begin(tmp_path / f"{request}-{nth}-{is_applied}") as driver:
                driver.crash(request, nth=nth, applied=is_applied)
                driver.restart()
                driver.run()
                assert (applied(driver), letters(driver)) == (EXPECTED, []), (request, nth, is_applied)


def test_event_whose_function_raises_is_a_dead_letter_and_the_next_one_follows() -> None:
    with TestDriver(applying()) as driver:
        send(driver, ("a", 1, None, 0), ("a", 3, 2, 2), ("a", 2, 1, "bad"), ("a", 4, 3, "bad"), ("a", 5, 4, 3))
        driver.run()
        assert (applied(driver), driver.state("lists")) == ({"a": prefixes(0, 2, 3)}, {"a": [0, 2, 3]})
        assert letters(driver) == [("ValueError", "bad"), ("ValueError", "bad")]


def test_output_that_is_refused_is_a_dead_letter_and_the_next_event_follows() -> None:
    graph = ks.Graph("g", errors="g.errors")
    events = graph.topic("g.events", key=String(), value=Json(), partitions=1)
    states = graph.topic("g.states", key=String(), value=Json(), partitions=1, config={"max.message.bytes": "500"})
    graph.ordered(events, to=states, id="apply")(lambda value: "x" * 2_000 if value == 1 else value)
    with TestDriver(graph) as driver:
        send(driver, ("a", 1, None, 0), ("a", 2, 1, 1), ("a", 3, 2, 2), ("b", 4, None, 0))
        driver.run()
        assert applied(driver) == {"a": [0, 2], "b": [0]}
        assert [error for error, _ in letters(driver)] == ["RecordTooLarge"]


def refusing(**options: Any) -> ks.Graph:
    """Its output topic refuses what comes of "big"."""
    graph = ks.Graph("g", errors="g.errors", **options)
    events = graph.topic("g.events", key=String(), value=Json(), partitions=1)
    states = graph.topic("g.states", key=String(), value=Json(), partitions=1, config={"max.message.bytes": "500"})

    @graph.ordered(events, to=states, state=ks.State("lists"))
    def apply(value: Any, step: ks.Step, state: Any) -> Any:
        state.put(step.key, [*state.get(step.key, []), value])
        return "x" * 2_000 if value == "big" else value

    return graph


@pytest.mark.parametrize(
    ("options", "expected", "count"),
    [
        ({}, [1, 2, 3, 5, 7, 8, 9], 2),
        # no hash tells whose output is refused: all that one record has released
        ({"hash_header": False}, [1, 8, 9], 6),
    ],
)
def test_refused_output_makes_no_dead_letters_of_events_released_with_it(
    options: dict[str, Any], expected: list[int], count: int
) -> None:
    with TestDriver(refusing(**options)) as driver:
        send(driver, ("a", 1, None, 1), *(("a", n, n - 1, "big" if n in {4, 6} else n) for n in range(3, 8)))
        driver.run()
        send(driver, ("a", 2, 1, 2), ("a", 8, 7, 8), ("a", 9, 8, 9))
        driver.run()
        assert (applied(driver), driver.state("lists")) == ({"a": expected}, {"a": expected})
        assert [error for error, _ in letters(driver)] == ["RecordTooLarge"] * count


def test_event_whose_dead_letter_cannot_be_made_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise Unavailable("the registry is away")

    with TestDriver(refusing()) as driver:
        send(driver, ("a", 1, None, 0), ("a", 2, 1, "big"), ("a", 3, 2, 2))
        with monkeypatch.context() as away:
            away.setattr(DeadLetters, "of", fail)
            with pytest.raises(Unavailable, match="the registry is away"):
                driver.run()
        driver.restart()
        driver.run()
        assert (applied(driver), driver.state("lists")) == ({"a": [0, 2]}, {"a": [0, 2]})
        assert [error for error, _ in letters(driver)] == ["RecordTooLarge"]


def test_event_that_is_as_large_as_its_topic_takes_is_held() -> None:
    large = "x" * 990_000
    with TestDriver(applying()) as driver:
        send(driver, ("a", 2, 1, large))
        driver.run()
        driver.restart()
        send(driver, ("a", 1, None, 0))
        driver.run()
        assert (driver.state("lists"), letters(driver)) == ({"a": [0, large]}, [])


def test_held_events_of_too_many_bytes_end_the_worker() -> None:
    with TestDriver(applying(held_bytes_max=5)) as driver:
        send(driver, ("a", 3, 2, "xyz"))
        with pytest.raises(InputLost, match=r"^apply: 1 events of 6 bytes wait .* of 'a': raise held_bytes_max, and"):
            driver.run()


@pytest.mark.parametrize(
    ("events", "expected", "reasons"),
    [
        (
            [("a", 1, None, 0), ("a", 2, 1, 1), ("a", 3, 1, 2), ("a", 4, 2, 3), ("b", 5, None, 0)],
            {"a": prefixes(0, 1), "b": prefixes(0)},
            [
                "forked: a: event 3 follows 1, as another one did: 2 came",
                "stopped: a is stopped after a fault of its chain",
            ],
        ),
        (
            [("a", 1, None, 0), ("a", 1, None, 9), ("a", 2, 1, 1)],
            {"a": prefixes(0)},
            ["altered: a: event 1 came again with another value", "stopped: a is stopped after a fault"],
        ),
        ([("a", 2, 0, 0)], {}, ["malformed: a: event 2 after 0 is not possible: ids grow from 1"]),
        (
            [("a", 5, None, 0), ("a", 4, 3, 1)],
            {"a": prefixes(0)},
            ["backwards: a: event 4 came after 5, and was not applied"],
        ),
    ],
    ids=["forked", "altered", "malformed", "backwards"],
)
def test_event_that_contradicts_the_order_stops_its_object(
    events: list[Sent], expected: dict[str, Any], reasons: list[str]
) -> None:
    with TestDriver(applying()) as driver:
        send(driver, *events)
        driver.run()
        driver.crash()
        driver.restart()
        driver.run()
        assert applied(driver) == expected
        assert [error for error, _ in letters(driver)] == ["EventFault"] * len(reasons)
        for (_, message), reason in zip(letters(driver), reasons, strict=True):
            assert message.startswith(reason)


def test_record_that_is_no_event_is_a_dead_letter() -> None:
    with TestDriver(applying()) as driver:
        driver.send("g.events", 1, key="a")
        driver.send("g.events", 1, headers=[(ID_HEADER, b"1")])
        driver.run()
        assert letters(driver) == [
            ("DecodeError", "a record without a key is not an event of an object"),
            (
                "DecodeError",
                "a record without the header ks-event-id is not an event: only `kstreams order` may write here",
            ),
        ]


@pytest.mark.parametrize(("start", "expected"), [("from_start", {}), ("accept_first", {"a": prefixes(1, 2)})])
def test_first_event_is_what_the_start_accepts(start: str, expected: dict[str, Any]) -> None:
    with TestDriver(applying(start=start)) as driver:
        send(driver, ("a", 5, 3, 1), ("a", 9, 5, 2))
        driver.run()
        assert applied(driver) == expected


def test_more_held_events_than_the_limit_end_the_worker_with_all_of_them_kept() -> None:
    with TestDriver(applying(held_max=2)) as driver:
        send(driver, ("a", 3, 2, 2), ("a", 4, 3, 3), ("b", 1, None, 0), ("a", 6, 5, 5), ("a", 2, None, 1))
        with pytest.raises(
            InputLost, match=r"^apply: 3 events of 6 bytes wait for those before them, the first one, at offset 0, for"
        ):
            driver.run()
        assert applied(driver) == {"b": prefixes(0)}
    with TestDriver(applying(held_max=3)) as driver:
        send(driver, ("a", 3, 2, 2), ("a", 4, 3, 3), ("a", 6, 5, 5), ("a", 2, None, 1), ("a", 5, 4, 4))
        driver.run()
        assert applied(driver) == {"a": prefixes(1, 2, 3, 4, 5)}


def test_ordered_without_a_state_of_its_own_and_what_it_refuses() -> None:
    graph = ks.Graph("g", errors="g.errors")
    events = graph.topic("g.events", key=String(), value=Json(), partitions=2)
    graph.topic("g.states", key=String(), value=Json(), partitions=2)
    graph.ordered(events, to="g.states", id="apply")(lambda value: value)
    with TestDriver(graph) as driver:
        send(driver, *[CHAIN[i] for i in (5, 4, 3, 2, 1, 0)])
        driver.run()
        assert applied(driver) == {"a": [0, 1, 2, 3], "b": [0, 1]}
        assert driver.state("apply-order") == {}
    for options, message in [
        ({"retry": ks.Retry()}, "applies events one after the other: leave retry out"),
        ({"batch": True}, "applies events one after the other: leave batch out"),
        ({"start": "latest"}, "start 'latest' is not known: choose from_start, accept_first"),
        ({"held_max": 0}, "held_max is 0: give 1 or more"),
    ]:
        with pytest.raises(GraphError, match=message):
            graph.ordered(events, to="g.states", id="other", **options)(lambda value: value)  # type: ignore[arg-type]


def test_consumer_of_the_document_keeps_each_flight() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ordering.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- consumer.py -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    with TestDriver(names["graph"]) as driver:
        for number, prev, value in [(2, 1, {"departed": "EWR"}), (1, None, {"gate": "C12"})]:
            headers: list[tuple[str, bytes | None]] = [(ID_HEADER, b"%d" % number)]
            headers += [] if prev is None else [(PREV_HEADER, b"%d" % prev)]
            driver.send("flights.events", value, key="N14228", headers=headers)
        driver.run()
        assert driver.values("gates.flights") == [{"gate": "C12"}, {"gate": "C12", "departed": "EWR"}]
