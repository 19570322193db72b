"""The tools of `kstreams demo ordering`: changes and states of aircraft, front ends, and each check that can fail."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest

from kstreams_py.demo import children, data_files
from kstreams_py.demo import ordering as demo
from kstreams_py.demo.aircraft import (
    FRONT_ENDS,
    NEW,
    AircraftChange,
    Event,
    apply_all,
    changes,
    differing,
    expected_states,
    of_front_end,
)
from kstreams_py.demo.checks import exit_status
from kstreams_py.demo.data import Row
from kstreams_py.demo.front_end import ATTEMPTS, COLLECT_SECONDS, FrontEnd, FrontEndTask, Plain
from kstreams_py.demo.order_checks import Killed, OrderResults, consume, consume_plainly, describe, inversions, judge
from kstreams_py.demo.order_workers import OrderWorkers, failed
from kstreams_py.errors import SettingsError, StoreUnavailable, WorkersFailed
from kstreams_py.kafka.contracts import Output, Producer
from kstreams_py.ordering import Ordering
from kstreams_py.ordering.events import Event as Queued
from kstreams_py.ordering.events import OrderedEvent, headers_of
from kstreams_py.ordering.front_end import open_storage
from kstreams_py.ordering.worker import OrderingWorker
from kstreams_py.records import Message
from tests.departures import row, rows
from tests.unit.test_ordering import run_until_idle

CANCELLED: dict[str, Any] = {"dep_time": None, "dep_delay": None, "arr_time": None, "arr_delay": None, "air_time": None}


def day() -> list[Row]:
    """Of one aircraft: a flight, a cancelled one, one that was diverted, and one that arrived early; and another's."""
    usual: dict[str, Any] = {"month": 1, "tailnum": "N1", "origin": "EWR", "carrier": "UA"}
    return [
        row(1, **usual, arr_delay=11),
        row(2, **usual, hour=6, **CANCELLED),
        row(3, **usual | {"origin": "LGA"}, hour=9, minute=0, arr_time=None, arr_delay=None, air_time=None),
        row(4, **usual | {"origin": "JFK"}, hour=1, minute=0, dep_delay=-5, arr_delay=-3),
        row(5, **usual | {"tailnum": None}),
        row(6, **usual | {"tailnum": "N2"}, hour=5, minute=0, dep_delay=0, arr_delay=0),
    ]


def test_departures_are_changes_of_their_aircraft_in_the_order_of_the_file() -> None:
    found = changes(day())
    ours = [change for change in found if change.aircraft == "N1"]
    assert [(each.front_end, each.events) for each in ours] == [
        (
            "EWR",
            (
                {"change": 1, "event": "departed", "flight": "UA1", "airport": "EWR", "to": "ORD"},
                {"change": 1, "event": "delayed", "minutes": 5},
            ),
        ),
        (
            "arrivals",
            (
                {"change": 2, "event": "arrived", "flight": "UA1", "airport": "ORD"},
                {"change": 2, "event": "flown", "miles": 733, "minutes": 90},
                {"change": 2, "event": "late", "minutes": 11},
            ),
        ),
        ("EWR", ({"change": 3, "event": "cancelled", "flight": "UA2", "airport": "EWR"},)),
        (
            "LGA",
            (
                {"change": 4, "event": "departed", "flight": "UA3", "airport": "LGA", "to": "ORD"},
                {"change": 4, "event": "delayed", "minutes": 5},
            ),
        ),
        ("arrivals", ({"change": 5, "event": "diverted", "flight": "UA3"},)),
        ("JFK", ({"change": 6, "event": "departed", "flight": "UA4", "airport": "JFK", "to": "ORD"},)),
        (
            "arrivals",
            (
                {"change": 7, "event": "arrived", "flight": "UA4", "airport": "ORD"},
                {"change": 7, "event": "flown", "miles": 733, "minutes": 90},
            ),
        ),
    ]
    departed = 6 * 60
    landed = 9 * 60 + 5 + 20 + 733 // 7
    assert [each.minute for each in ours] == [
        *(departed, departed + 20 + 90, departed + 20 + 91), 9 * 60 + 5, landed, landed + 1, landed + 2,
    ]  # fmt: skip
    assert [each.aircraft for each in found[:2]] == ["N2", "N1"], "those of all aircraft are by time"


def test_states_from_the_file_are_those_after_all_events() -> None:
    expected = expected_states(day())
    assert expected["N1"] == {
        "changes": 7, "place": "ORD", "flights": 3, "cancelled": 1, "delayed": 10, "late": 11, "miles": 1466,
        "minutes": 180, "contradictions": 0,
    }  # fmt: skip
    for departures in (day(), rows(), data_files.read_first(3_000)):
        found: dict[str, Any] = {}
        for change in changes(departures):
            found[change.aircraft] = apply_all(found.get(change.aircraft), change.events)
        assert differing(found, expected_states(departures)) == []


def test_state_in_the_air_names_both_airports_and_after_a_diversion_none() -> None:
    made = [change for change in changes(day()) if change.aircraft == "N1"]
    places = [apply_all(None, (e for each in made[:n] for e in each.events))["place"] for n in range(len(made) + 1)]
    assert places == [None, "EWR-ORD", "ORD", "ORD", "LGA-ORD", None, "JFK-ORD", "ORD"]


def test_state_tells_each_order_in_which_two_changes_are_swapped() -> None:
    made = [change for change in changes(day()) if change.aircraft == "N1"]
    expected = expected_states(day())["N1"]
    for first in range(len(made)):
        for second in range(first + 1, len(made)):
            swapped = list(made)
            swapped[first], swapped[second] = made[second], made[first]
            assert apply_all(None, (event for each in swapped for event in each.events)) != expected


def test_each_change_is_made_by_one_front_end() -> None:
    made = changes(rows())
    parts = [of_front_end(made, name) for name in FRONT_ENDS]
    made_by_one = sorted((each.aircraft, each.number) for part in parts for each in part)
    assert made_by_one == sorted((each.aircraft, each.number) for each in made)
    assert all(parts)


# Front ends.


class Written:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Event]] = []
        self.flushed = 0

    def write(self, outputs: list[Output]) -> None:
        self.events += [((key or b"").decode(), json.loads(value or b"")) for _, value, key, *_ in outputs]
        self.flushed = -1
        outputs.clear()

    def flush(self) -> None:
        self.flushed = len(self.events)


def front_end(ordering: Ordering, written: Written, name: str) -> FrontEnd:
    task = FrontEndTask(name, 30, "", "", "plain", 0.0, 0.0, 1)
    return FrontEnd(ordering, Plain(cast(Producer, written), "plain", 1), task)


@pytest.fixture
def thirty(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    found = [*rows(), *day()]
    monkeypatch.setattr(data_files, "read_first", lambda number: found)
    return found


class Sent:
    """A sender that keeps the events of each object."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {}

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        for name, each in events:
            self.events.setdefault(name, []).append(json.loads(each.event.value))

    def close(self) -> None: ...


def events_of(made: Iterable[AircraftChange]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for change in made:
        found.setdefault(change.aircraft, []).extend(change.events)
    return found


def test_front_ends_at_the_same_time_store_the_changes_of_each_aircraft_in_order(
    thirty: list[Row], tmp_path: Path
) -> None:
    written, made = {name: Written() for name in FRONT_ENDS}, changes(thirty)
    path = tmp_path / "events.db"
    sent = Sent()
    with ThreadPoolExecutor() as pool, closing(Ordering(path)) as ordering:
        # arrivals begin first, and wait for their departures
        ends = [front_end(ordering, written[name], name) for name in reversed(FRONT_ENDS)]
        for done in [pool.submit(each.run) for each in ends]:
            done.result()
        names = {change.aircraft for change in made}
        assert differing({name: ordering.data(name) for name in names}, expected_states(thirty)) == []
    with closing(open_storage(path)) as storage:
        worker = OrderingWorker(storage, sent, "w", lanes=3, batch=5)
        worker.start()
        run_until_idle(worker, storage)
    assert sent.events == events_of(made)
    for name, each in written.items():
        own = [(change.aircraft, event) for change in of_front_end(made, name) for event in change.events]
        assert (each.events, each.flushed) == (own, len(own))


class LostAnswers(Ordering):
    """Stores a change, and then does not answer, for so many times."""

    lost = 0

    def enqueue(self, *arguments: Any, **named: Any) -> bool:
        is_new = super().enqueue(*arguments, **named)
        self.lost -= 1
        if self.lost >= 0:
            raise StoreUnavailable("away")
        return is_new


def test_front_end_without_an_answer_stores_no_change_twice(thirty: list[Row], tmp_path: Path) -> None:
    made = of_front_end(changes(thirty), "JFK")
    first = next(change for change in made if change.number == 1)
    with closing(LostAnswers(tmp_path / "events.db")) as ordering:
        ordering.lost = ATTEMPTS - 1
        front_end(ordering, Written(), "JFK")._make(first)
        assert ordering.data(first.aircraft) == apply_all(None, first.events)
        ordering.lost = ATTEMPTS
        with pytest.raises(StoreUnavailable):
            front_end(ordering, Written(), "JFK")._make(next(c for c in made if c.number == 1 and c != first))
    with closing(open_storage(tmp_path / "events.db")) as storage:
        assert {each.name: each.waiting for each in storage.objects()}[first.aircraft] == len(first.events)


def test_producer_without_ordering_collects_events_for_a_while() -> None:
    written, change = Written(), changes(day())[0]
    plain = Plain(cast(Producer, written), "plain", 1)
    plain.look(100.0)
    plain.tell(change)
    plain.look(100.0)
    assert written.events == []
    plain.look(100.0 + COLLECT_SECONDS)
    assert written.events == [(change.aircraft, event) for event in change.events]


# Checks.


class Record:
    """A record of the topic of events, or without headers of the other one."""

    def __init__(self, name: str, event: Event, number: int = 0, prev: int | None = None) -> None:
        self._key, self._value = name.encode(), json.dumps(event).encode()
        self._headers = headers_of(OrderedEvent(Queued(bytes(16), b""), number, prev)) if number else None

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._headers


def topic(made: Iterable[AircraftChange]) -> list[Message]:
    """The records of event ordering, in order."""
    newest: dict[str, int] = {}
    found = []
    number = 0
    for change in made:
        for event in change.events:
            number += 1
            found.append(Record(change.aircraft, event, number, newest.get(change.aircraft)))
            newest[change.aircraft] = number
    return cast(list[Message], found)


def plain_topic(made: Iterable[AircraftChange]) -> list[Message]:
    return cast(list[Message], [Record(change.aircraft, event) for change in made for event in change.events])


def perfect() -> OrderResults:
    made, expected = changes(day()), expected_states(day())
    group, plain = consume(topic(made)), consume_plainly(plain_topic(made))
    return OrderResults(made, expected, dict(expected), {"by the rule": group}, plain, Killed(3, 2))


def test_checks_hold_for_a_run_without_a_fault() -> None:
    checks = judge(perfect())
    assert [(check.what, check.found) for check in checks] == [
        ("aircraft", 2),
        ("changes stored", 9),
        ("aircraft with another state in the store", 0),
        ("by the rule: events applied", 15),
        ("by the rule: aircraft with another order of events", 0),
        ("by the rule: aircraft with another state", 0),
        ("by the rule: events refused, or waiting at the end", 0),
        ("aircraft on whose state two groups disagree", 0),
        ("events sent without ordering", 15),
        ("workers that did not stop", 0),
    ]
    assert exit_status(checks) == 0


def test_copies_and_delays_in_the_topic_change_nothing() -> None:
    records = topic(changes(day()))
    assert consume([*reversed(records), *records]).events == consume(records).events
    assert consume([*records, *records]).copies == 15


def spoil_state(results: OrderResults) -> OrderResults:
    return replace(results, stored={**results.stored, "N1": {**NEW, "changes": 7}})


def lose_event(results: OrderResults) -> OrderResults:
    return replace(results, groups={"by the rule": consume(topic(results.changes)[:-1])})


def refuse_event(results: OrderResults) -> OrderResults:
    records = topic(results.changes)
    forked = cast(Message, Record("N2", {"change": 3, "event": "diverted"}, 99, None))
    return replace(results, groups={"by the rule": consume([*records, forked])})


def hold_event(results: OrderResults) -> OrderResults:
    waiting = cast(Message, Record("N2", {"change": 3, "event": "diverted"}, 99, 98))
    return replace(results, groups={"by the rule": consume([*topic(results.changes), waiting])})


def swap_changes(results: OrderResults) -> OrderResults:
    first, second, *others = results.changes
    swapped = [replace(first, aircraft=second.aircraft), replace(second, aircraft=first.aircraft), *others]
    return replace(results, groups={"by the rule": consume(topic(swapped))})


def change_one_group(results: OrderResults) -> OrderResults:
    other = consume(topic(results.changes))
    other.states["N2"] = {**other.states["N2"], "miles": 1}
    return replace(results, groups={**results.groups, "another": other})


def lose_plain_event(results: OrderResults) -> OrderResults:
    return replace(results, plain=consume_plainly(plain_topic(results.changes)[1:]))


OTHER_ORDER = "by the rule: aircraft with another order of events"
OTHER_STATE = "by the rule: aircraft with another state"
REFUSED, IN_THE_STORE = "by the rule: events refused, or waiting at the end", "aircraft with another state in the store"


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (spoil_state, [IN_THE_STORE]),
        (lose_event, ["by the rule: events applied", OTHER_ORDER, OTHER_STATE]),
        (refuse_event, [REFUSED]),
        (hold_event, [REFUSED]),
        (swap_changes, [OTHER_ORDER, OTHER_STATE]),
        (change_one_group, ["another: aircraft with another state", "aircraft on whose state two groups disagree"]),
        (lose_plain_event, ["events sent without ordering"]),
        (lambda results: replace(results, stored={}), ["aircraft", "changes stored", IN_THE_STORE]),
        (lambda results: replace(results, not_stopped=1), ["workers that did not stop"]),
    ],
)
def test_each_fault_of_a_run_is_found(spoil: Callable[[OrderResults], OrderResults], wrong: list[str]) -> None:
    checks = judge(spoil(perfect()))
    assert [check.what for check in checks if not check.ok] == wrong
    assert exit_status(checks) == 1


def test_events_that_overtake_each_other_are_counted_and_told_in_plain_words() -> None:
    results = perfect()
    one, two, *others = [change for change in results.changes if change.aircraft == "N1"]
    plain = consume_plainly(plain_topic([*others[-2:], two, one, *others[:-2]]))
    assert inversions(plain) == {"N1": 9}
    group = consume(topic(results.changes))
    group.copies = 4
    lines = list(describe(replace(results, plain=plain, groups={"by the rule": group})))
    assert "\n".join(lines) == (
        "2 aircraft had 9 changes with 15 events. Four processes made them, and stored each change with its events in "
        "one atomic step. A departure and the arrival after it are made by different processes.\n"
        "Three workers sent the events; 3 times one of them was killed, and started again. 4 events are in the topic "
        "more than once, because a killed worker sends again what it had sent without noting it. 2 times a process of "
        "the consumer groups was killed.\n"
        "Without event ordering the same processes sent the same events: 9 of them came after a later one, of 1 "
        "aircraft. A consumer that applies them as they come meets 12 contradictions, such as an arrival before its "
        "departure, and has a wrong place for 1 aircraft at the end.\n"
        "With event ordering, by the rule: 2 of 2 aircraft have the state of the file, after 15 events, each applied "
        "once and after the one before it."
    )


# Processes.

SLEEP: Final = ["timeit", "-n1", "-r1", "__import__('time').sleep(600)"]


def test_child_ends_when_its_parent_does(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    child = children.start(SLEEP, {}, log)
    assert child.stdin is not None
    child.stdin.close()
    assert (child.wait(60), log.read_text()) == (1, "")


def test_child_runs_its_module_with_its_arguments_and_ends_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    child = children.start(["timeit", "-n1", "-r1", "import os; print(os.environ['SET'])"], {"SET": "here"}, log)
    assert (child.wait(60), log.read_text().splitlines()[0]) == (0, "here")
    children.end(child)


def test_killed_worker_starts_again_and_one_that_ends_by_itself_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, started, start = tmp_path / "run.log", list[list[str]](), children.start

    def record(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> children.Child:
        started.append(list(arguments))
        return start(SLEEP, environment, log)

    monkeypatch.setattr(children, "start", record)
    registered: dict[str, int] = {}
    with closing(OrderWorkers(["--topic", "t"], {}, log, lambda: registered)) as workers:
        before = workers.pids
        registered |= {"one": 1, "two": 1}
        states = [workers.have_registered]
        registered |= {"three": 1}
        states.append(workers.have_registered)
        kill_and_wait(workers, 0)
        workers.look({before[0]})
        assert [workers.pids[place] == pid for place, pid in before.items()] == [False, True, True]
        names = ["one", "two", "three", "one"]
        assert started == [["kstreams_py", "order", "--name", name, "--topic", "t"] for name in names]
        states.append(workers.have_registered)
        registered["one"] = 2
        states.append(workers.have_registered)
        assert states == [False, True, False, True]
        kill_and_wait(workers, 1)
        with pytest.raises(WorkersFailed, match=f"worker two ended with status -9: {log} has the reason"):
            workers.look({before[0]})


def kill_and_wait(workers: OrderWorkers, place: int) -> None:
    workers._running[place].kill()
    workers._running[place].wait()


def test_status_of_a_killed_process_is_no_status_of_success() -> None:
    assert failed("front end EWR", -signal.SIGKILL, Path("log")).exit_status == 1


def test_demo_refuses_a_store_that_may_have_events(tmp_path: Path) -> None:
    store = tmp_path / "mine.db"
    store.write_bytes(b"")
    with pytest.raises(SettingsError, match=r"mine\.db exists, and may have events: name another file with --store"):
        demo.run(10, 0, 1, str(store), tmp_path / "output")
