"""Retries of steps: in place, in order, under each guarantee and of each kind, on the cluster in memory."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import DecodeError, DrainTimeout, OutcomeUnknown, Retriable
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.processing.commits.attempts import CALLS_MAX
from kstreams_py.processing.tasks import tasks
from kstreams_py.processing.worker import Worker
from kstreams_py.records import TopicPartition
from kstreams_py.running.terminal.logs import Folding
from kstreams_py.testing import TestDriver
from kstreams_py.testing.memory_clients import MemoryConsumer
from tests.tables import each_case
from tests.unit.plant import A0, A1, ALO, AMO, EO, Plant, fetch_always, numbers

KINDS = ["map", "fork", "join", "alts", "sink", "batch", "generator"]
RETRY = ks.Retry(attempts=4, backoff="1s..4s")


class Service:
    """What a function calls: away for the values that `fails` names."""

    def __init__(self, fails: Callable[[bytes], bool] = lambda value: True, error: Exception | None = None) -> None:
        self.is_away = True
        self.error = error or ConnectionError("no service")
        self.calls: list[bytes] = []
        self.hashes: dict[bytes, set[bytes]] = defaultdict(set)
        self.effects: list[bytes] = []
        self._fails = fails

    def ask(self, value: bytes, digest: bytes) -> bytes:
        self.calls.append(value)
        self.hashes[value].add(digest)
        if self.is_away and self._fails(value):
            raise self.error
        self.effects.append(value)
        return value


def of_partition_0(value: bytes) -> bool:
    return value.startswith(b"0")


def new_graph(
    kind: str, service: Service, guarantee: Guarantee = EO, retry: ks.Retry = RETRY, **options: Any
) -> ks.Graph:
    """A graph of one processor p, which asks the service for each value of a (a join: and drops those of b)."""
    graph = ks.Graph("g", errors="dead", guarantee=guarantee, retry=retry)
    for name in "abxy":
        graph.topic(name)

    def each(value: bytes, step: ks.Step) -> bytes:
        return service.ask(value, step.delivery_hash)

    def several(value: bytes, step: ks.Step) -> Iterator[bytes]:
        yield b"first of " + value
        yield each(value, step)

    match kind:
        case "fork":
            graph.map("a", to=["x", "y"], id="p", **options)(lambda v, step: dict.fromkeys("xy", each(v, step)))
        case "join":
            graph.join("a", "b", by="order", to="x", id="p", **options)(lambda v, w, step: each(v, step))
        case "alts":
            graph.alts("a", "b", to="x", id="p", **options)(each)
        case "sink":
            graph.sink("a", id="p", **options)(each)
        case "batch":
            graph.map("a", to="x", id="p", batch=True, **options)(
                lambda values, steps: [each(v, step) for v, step in zip(values, steps, strict=True)]
            )
        case "generator":
            graph.map("a", to="x", id="p", **options)(several)
        case _:
            graph.map("a", to="x", id="p", **options)(each)
    return graph


def new_driver(kind: str, service: Service, guarantee: Guarantee = EO, **options: Any) -> TestDriver:
    return TestDriver(new_graph(kind, service, guarantee, **options), partitions=2)


def feed(driver: TestDriver, kind: str, partition: int, *names: bytes) -> None:
    """Sends values, with the partition in front; a join gets a record of each input."""
    for name in names:
        driver.send("a", b"%d%s" % (partition, name), partition=partition)
        if kind == "join":
            driver.send("b", b"", partition=partition)


def at(driver: TestDriver, partition: int) -> int:
    """The committed offset of a partition of a."""
    return driver.committed("p")[TopicPartition("a", partition)]


@each_case("guarantee", Guarantee)
@each_case("kind", KINDS)
def test_service_that_is_away_makes_no_dead_letter_and_holds_one_partition_in_order(
    kind: str, guarantee: Guarantee
) -> None:
    service = Service(lambda value: value in (b"0b", b"0c"))
    driver = new_driver(kind, service, guarantee)
    feed(driver, kind, 0, b"a")
    driver.run()
    feed(driver, kind, 0, b"b", b"c")
    driver.run()
    assert (set(driver.retrying), service.effects, at(driver, 0)) == ({"p"}, [b"0a"], 1)
    feed(driver, kind, 1, b"a", b"b")
    feed(driver, kind, 0, b"d")
    driver.run()
    assert (service.effects, at(driver, 0), at(driver, 1)) == ([b"0a", b"1a", b"1b"], 1, 2)
    driver.advance(2)
    driver.run()
    assert (set(driver.retrying), service.calls.count(b"0b"), at(driver, 0)) == ({"p"}, 2, 1)
    service.is_away = False
    driver.advance(3.9)
    driver.run()
    assert service.calls.count(b"0b") == 2
    driver.advance(0.1)
    driver.run()
    assert (driver.retrying, driver.dead_letters(), at(driver, 0), at(driver, 1)) == (frozenset(), [], 4, 2)
    assert service.effects == [b"0a", b"1a", b"1b", b"0b", b"0c", b"0d"]
    if kind != "sink":
        outputs = [value for value in driver.values("x") if not value.startswith(b"first of ")]
        assert sorted(outputs) == sorted(service.effects)
    assert {value: len(digests) for value, digests in service.hashes.items()} == dict.fromkeys(service.effects, 1)


@each_case("guarantee", Guarantee)
@each_case("kind", KINDS)
def test_steps_that_keep_failing_become_dead_letters_with_the_number_of_attempts(
    kind: str, guarantee: Guarantee
) -> None:
    service = Service(lambda value: value == b"0a")
    driver = new_driver(kind, service, guarantee)
    feed(driver, kind, 0, b"a")
    driver.run()
    for _ in range(RETRY.attempts - 1):
        assert driver.dead_letters() == []
        driver.advance(4)
        driver.run()
    feed(driver, kind, 0, b"b")
    driver.run()
    (letter,) = driver.dead_letters()
    assert (dict(letter.headers)["ks-attempts"], letter.value["exception_message"]) == (b"4", "no service")
    assert (service.calls, at(driver, 0)) == ([b"0a"] * 4 + [b"0b"], 2)


def test_dead_letter_of_a_first_attempt_has_no_number_of_attempts() -> None:
    driver = new_driver("map", Service(error=LookupError("why")))
    feed(driver, "map", 0, b"a")
    driver.run()
    (letter,) = driver.dead_letters()
    assert [name for name, _ in letter.headers] == ["ks-type", "ks-proc", "ks-error"]


def test_batch_is_run_again_whole_and_only_the_failing_step_is_a_dead_letter() -> None:
    calls: list[list[bytes]] = []

    def function(values: list[bytes]) -> list[Any]:
        calls.append(values)
        return [ConnectionError(value) if value == b"b" else value for value in values]

    graph = ks.Graph("g", errors="dead", retry=RETRY)
    graph.topic("a"), graph.topic("x")
    graph.map("a", to="x", id="p", batch=True)(function)
    driver = TestDriver(graph)
    for value in (b"a", b"b", b"c"):
        driver.send("a", value)
    driver.run()
    driver.send("a", b"d")
    for _ in range(3):
        driver.advance(4)
        driver.run()
    assert calls == [[b"a", b"b", b"c"]] * 4 + [[b"d"]]
    assert (driver.values("x"), len(driver.dead_letters())) == ([b"a", b"c", b"d"], 1)


@each_case("guarantee", Guarantee)
@each_case("kind", KINDS)
def test_then_stop_stops_the_worker_and_its_next_start_reads_the_step_again(kind: str, guarantee: Guarantee) -> None:
    service = Service(lambda value: value == b"0b")
    driver = new_driver(kind, service, guarantee, retry=ks.Retry(attempts=2, backoff="1s..1s", then="stop"))
    feed(driver, kind, 0, b"a")
    driver.run()
    feed(driver, kind, 0, b"b", b"c")
    driver.run()
    driver.advance(1)
    with pytest.raises(ConnectionError, match="no service"):
        driver.run()
    assert (set(driver.down), at(driver, 0), driver.dead_letters()) == ({0}, 1, [])
    service.is_away = False
    driver.restart()
    driver.run()
    assert (service.effects, at(driver, 0)) == ([b"0a", b"0b", b"0c"], 3)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_then_pause_warns_again_and_again_until_an_attempt_succeeds(
    guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service()
    driver = new_driver("map", service, guarantee, retry=ks.Retry(attempts=2, backoff="10s..10s", then="pause"))
    feed(driver, "map", 0, b"a", b"b")
    driver.run()
    for _ in range(7):
        driver.advance(10)
        driver.run()
    warned = [
        record.getMessage() for record in caplog.records if record.name.endswith("waits") and record.levelno >= 30
    ]
    assert warned == [
        "p: partition 0 waits: ConnectionError: no service; attempt 2 of 2 is in 10.0 s",
        "p: partition 0 is paused after 4 attempts: ConnectionError: no service; the next is in 10.0 s",
        "p: partition 0 is paused after 7 attempts: ConnectionError: no service; the next is in 10.0 s",
    ]
    service.is_away = False
    driver.advance(10)
    driver.run()
    assert (driver.values("x"), driver.dead_letters(), at(driver, 0)) == ([b"0a", b"0b"], [], 2)


class Lines(logging.Handler):
    """Keeps the text of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def test_attempts_that_fail_are_a_few_lines_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    retry = ks.Retry(attempts=2, backoff="100ms..100ms", then="pause")
    driver = new_driver("map", Service(), Guarantee.EXACTLY_ONCE, retry=retry)
    feed(driver, "map", 0, b"a")
    driver.run()
    for _ in range(99):
        driver.advance(0.1)
        driver.run()
    lines = Lines()
    folding = Folding(lines, lambda: 0.0)
    for record in caplog.records:
        if record.name.endswith("waits"):
            folding.handle(record)
    folding.flush()
    what = "ConnectionError: no service"
    assert lines.found == [
        f"p: partition 0 waits: {what}; attempt 2 of 2 is in 0.1 s",
        *(f"p: partition 0 is paused after {n} attempts: {what}; the next is in 0.1 s" for n in range(2, 7)),
        f"94 more failed attempts of processor p in 0 s, last partition 0 is paused after 100 attempts: {what}",
    ]


@pytest.mark.parametrize("guarantee", Guarantee)
def test_classes_of_stop_on_go_before_those_of_retry(guarantee: Guarantee) -> None:
    driver = new_driver("map", service := Service(), guarantee, stop_on=OSError)
    feed(driver, "map", 0, b"a")
    with pytest.raises(ConnectionError):
        driver.run()
    assert service.calls == [b"0a"]


def test_stop_is_never_tried_again_and_neither_are_mistakes_nor_wrong_bytes() -> None:
    everything = ks.Retry(on=Exception)
    stopped = new_driver("map", Service(error=ks.Stop("enough")), retry=everything)
    feed(stopped, "map", 0, b"a")
    stopped.run()
    assert (set(stopped.down), stopped.retrying) == ({0}, frozenset())
    wrong = new_driver("fork", mistaken := Service(error=ks.GraphError("wrong")), retry=everything)
    feed(wrong, "fork", 0, b"a")
    with pytest.raises(ks.GraphError):
        wrong.run()
    undecoded = new_driver("map", Service(error=DecodeError("bytes")), retry=everything)
    feed(undecoded, "map", 0, b"a")
    undecoded.run()
    assert (mistaken.calls, len(undecoded.dead_letters())) == ([b"0a"], 1)


def test_sink_whose_target_is_away_can_be_tried_again() -> None:
    driver = new_driver(
        "sink", service := Service(error=ks.SinkUnavailable("locked")), retry=ks.Retry(on=ks.SinkUnavailable)
    )
    feed(driver, "sink", 0, b"a")
    driver.run()
    service.is_away = False
    driver.advance(30)
    driver.run()
    assert (service.calls, service.effects, at(driver, 0)) == ([b"0a"] * 2, [b"0a"], 1)


@each_case("guarantee", Guarantee)
@each_case("kind", KINDS)
def test_crash_while_a_partition_waits_loses_and_doubles_nothing(kind: str, guarantee: Guarantee) -> None:
    service = Service(of_partition_0)
    driver = new_driver(kind, service, guarantee)
    feed(driver, kind, 0, b"a", b"b")
    driver.run()
    driver.crash()
    service.is_away = False
    driver.restart()
    driver.run()
    assert (service.effects, at(driver, 0), driver.dead_letters()) == ([b"0a", b"0b"], 2, [])


@pytest.mark.parametrize("guarantee", Guarantee)
def test_drain_while_a_partition_waits_ends_at_once_and_the_next_start_reads_on(guarantee: Guarantee) -> None:
    service = Service(lambda value: value == b"1")
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=guarantee, retry=RETRY)
    plant.feed("a", *numbers(0, 3))
    plant.feed("a", "x", partition=1)
    worker = plant.worker()
    started = plant.clock()
    plant.run(worker)
    assert (worker.counters.retries, plant.clock() - started < 2, plant.saved) == (1, True, {A0: 1, A1: 1})
    service.is_away = False
    plant.run()
    assert (plant.out(), plant.saved) == (["0", "x", "1", "2"], {A0: 3, A1: 1})


@pytest.mark.parametrize("guarantee", Guarantee)
def test_rebalance_ends_the_wait_and_the_next_owner_reads_its_steps(guarantee: Guarantee) -> None:
    service = Service(of_partition_0)
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=guarantee, retry=RETRY)
    plant.feed("a", "0a", "0b")
    plant.feed("a", "1a", partition=1)
    first = plant.started()
    first.run_turn()
    first.run_turn()
    assert first.is_retrying
    second = plant.worker(slot=1)
    second.start()
    workers = [first, second]
    for _ in range(6):
        for worker in workers:
            worker.run_turn()
    held = {number: sorted(tp.partition for tp in worker._assigned or ()) for number, worker in enumerate(workers)}
    assert sorted(held.values()) == [[0], [1]]
    service.is_away = False
    plant.clock.advance(4)
    for _ in range(6):
        for worker in workers:
            worker.run_turn()
            plant.clock.advance(0.1)
    assert (sorted(plant.out()), plant.saved) == (["0a", "0b", "1a"], {A0: 2, A1: 1})


@pytest.mark.parametrize("guarantee", Guarantee)
def test_rewind_for_another_partition_neither_ends_the_wait_nor_forgets_the_attempts(guarantee: Guarantee) -> None:
    service = Service(of_partition_0)
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=guarantee, retry=RETRY)
    plant.feed("a", "0a", "0b")
    worker = plant.started()
    worker.run_turn()
    plant.clock.advance(2)
    worker.run_turn()
    assert service.calls == [b"0a"] * 2
    worker._must_rewind = True
    for _ in range(3):
        worker.run_turn()
    assert (worker.is_retrying, service.calls) == (True, [b"0a"] * 2)
    for _ in range(4):
        plant.clock.advance(4)
        for _ in range(3):
            worker.run_turn()
    assert (service.calls[:4], service.calls.count(b"0a")) == ([b"0a"] * 4, 4)


def test_commit_that_fails_before_the_wait_repeats_steps_and_keeps_the_attempts() -> None:
    service = Service(lambda value: value == b"1")
    plant = Plant(function=lambda value: service.ask(value, b""), retry=ks.Retry(attempts=3, backoff="1s..1s"))
    plant.feed("a", *numbers(0, 3))
    plant.cluster.faults.inject("commit_transaction", nth=1, error=OutcomeUnknown("lost"), applied=False)
    worker = plant.started()
    for _ in range(8):
        worker.run_turn()
        plant.clock.advance(1)
    assert (service.calls.count(b"1"), plant.out(), plant.dead_letter_count) == (3, ["0", "2"], 1)


def test_partition_that_waits_is_paused_and_read_again_afterwards() -> None:
    service = Service(of_partition_0)
    plant = Plant(function=lambda value: service.ask(value, b""), retry=RETRY)
    plant.feed("a", "0a")
    worker = plant.started()
    paused: list[set[TopicPartition]] = []
    pause = worker.consumer.pause

    def noting(partitions: Collection[TopicPartition]) -> None:
        paused.append(set(partitions))
        pause(partitions)

    worker.consumer.pause = noting  # type: ignore[method-assign]
    worker.run_turn()
    plant.feed("a", "0b")
    service.is_away = False
    plant.clock.advance(4)
    for _ in range(3):
        worker.run_turn()
        plant.clock.advance(0.1)
    assert (paused[0], paused[-1], plant.out()) == ({A0}, set(), ["0a", "0b"])


def test_join_whose_partition_waits_does_not_stall_another_at_its_limit_of_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "BUFFER_LIMIT", 5)
    service = Service(of_partition_0)
    plant = Plant("join", lambda a, b: service.ask(a, b""), retry=RETRY)
    plant.feed("a", *(f"0{n}" for n in range(20)))
    plant.feed("b", *numbers(0, 20))
    plant.feed("a", *(f"1{n}" for n in range(20)), partition=1)
    plant.feed("b", *numbers(0, 20), partition=1)
    worker = plant.started()
    fetch_always(worker, 3)
    for _ in range(60):
        worker.run_turn()
        plant.clock.advance(0.01)
    assert (plant.saved[A1], plant.saved.get(A0)) == (20, None)
    service.is_away = False
    plant.clock.advance(4)
    plant.run(worker)
    assert (plant.saved[A0], len(plant.out())) == (20, 40)


def test_alts_follows_its_choices_on_each_attempt_and_after_a_restart() -> None:
    service = Service()
    driver = TestDriver(new_graph("alts", service))
    driver.send("b", b"b1")
    driver.send("a", b"a1")
    driver.run()
    first = service.calls[0]
    driver.send("a", b"a2")
    driver.advance(4)
    driver.run()
    driver.crash()
    driver.restart()
    driver.run()
    service.is_away = False
    driver.advance(4)
    driver.run()
    assert service.calls[:4] == [first] * 4
    assert sorted(service.effects) == [b"a1", b"a2", b"b1"]
    assert {len(digests) for digests in service.hashes.values()} == {1}


def test_at_most_once_gives_back_again_what_found_no_answer() -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=AMO, retry=RETRY)
    plant.feed("a", "0")
    worker = plant.started()
    for nth in range(2, 7):
        plant.cluster.faults.inject("commit", nth=nth, error=Retriable("no answer"), applied=False)
    worker.run_turn()
    assert (plant.saved, worker.is_retrying) == ({A0: 1}, True)
    worker.run_turn()
    worker.run_turn()
    assert (plant.saved, worker.is_retrying) == ({}, True)


@pytest.mark.parametrize("late", [0.1, 3.0])
def test_at_most_once_late_commit_from_before_the_wait_loses_no_step(late: float) -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=AMO, retry=RETRY)
    plant.feed("a", "0", "1")
    worker = plant.started()
    plant.cluster.faults.inject("commit", error=None, late=late)
    for _ in range(8):
        worker.run_turn()
        plant.clock.advance(0.2)
    service.is_away = False
    plant.run(worker)
    plant.clock.advance(10)
    plant.run()
    assert (plant.out(), plant.saved) == (["0", "1"], {A0: 2})


def test_at_most_once_late_commit_of_a_step_run_again_repeats_no_step_behind_it() -> None:
    service = Service()

    def ask(value: bytes) -> bytes:
        plant.clock.advance(0.2)
        return service.ask(value, b"")

    plant = Plant(function=ask, guarantee=AMO, retry=RETRY)
    plant.feed("a", *numbers(0, 3))
    worker = plant.started()
    worker.run_turn()
    assert (worker.is_retrying, plant.saved) == (True, {})
    service.is_away = False
    plant.clock.advance(2)
    plant.cluster.faults.inject("commit", error=None, late=0.5)  # carried out, and once more behind the next ones
    for _ in range(8):
        worker.run_turn()
        plant.clock.advance(0.1)
    assert (plant.out(), plant.saved) == (numbers(0, 3), {A0: 3})


def test_at_most_once_late_commit_seen_by_the_next_look_loses_no_step_that_waits() -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=AMO, retry=RETRY)
    plant.feed("a", "0", "1")
    worker = plant.started()
    plant.cluster.faults.inject("commit", error=None, late=0.1)
    assert isinstance(worker.consumer, MemoryConsumer)
    worker.consumer.taint = lambda request: None  # type: ignore[method-assign]
    worker.run_turn()
    assert (plant.saved, worker.is_retrying) == ({}, True)
    plant.clock.advance(0.2)
    worker.consumer.tainted = True
    worker.run_turn()
    assert plant.saved == {A0: 2}
    service.is_away = False
    for _ in range(6):
        worker.run_turn()
        plant.clock.advance(1)
    assert (plant.out(), plant.saved) == (["0", "1"], {A0: 2})


def start_rejoined(plant: Plant, partition: int) -> Worker:
    """Starts a worker that has joined again for a late commit, and has no assignment yet; a step of it waits."""
    plant.feed("a", f"{partition}a", f"{partition}b", partition=partition)
    worker = plant.started()
    plant.cluster.faults.inject("commit", error=None, late=0.1)
    worker.run_turn()
    plant.clock.advance(0.2)
    worker.run_turn()
    assert (worker.is_retrying, worker._assigned, set(plant.saved.values())) == (True, None, {2})
    return worker


def test_at_most_once_rebalance_before_a_rejoined_worker_started_loses_no_step() -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=AMO, retry=RETRY)
    worker = start_rejoined(plant, partition=0)
    plant.cluster.faults.inject("committed", error=Retriable("no answer"), applied=False)
    worker.run_turn()
    assert (worker._assigned, worker._must_rewind) == ({A0, A1}, True)
    other = plant.worker(slot=1)
    other.start()
    for _ in range(3):
        worker.run_turn()
        other.run_turn()
    assert (plant.saved, worker._assigned, other._assigned) == ({}, {A0}, {A1})
    service.is_away = False
    plant.clock.advance(4)
    worker.run_turn()
    worker.run_turn()
    assert (plant.out(), plant.saved) == (["0a", "0b"], {A0: 2})


def test_at_most_once_steps_that_wait_and_are_lost_to_another_worker_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=AMO, retry=RETRY)
    worker = start_rejoined(plant, partition=1)
    other = plant.worker(slot=1)
    other.start()
    for _ in range(3):
        worker.run_turn()
        other.run_turn()
    assert (worker._assigned, other._assigned) == ({A0}, {A1})
    assert "p: at most once: steps that waited are lost: another worker has a[1], or had it meanwhile" in caplog.text


def test_at_most_once_drain_without_an_assignment_says_that_waiting_steps_are_lost() -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=AMO, retry=RETRY)
    worker = start_rejoined(plant, partition=0)
    plant.cluster.faults.begin_outage(600.0, ["committed"], lambda: False)
    with pytest.raises(DrainTimeout, match="steps that wait are lost: the group gave no assignment in time"):
        worker.finish()


def test_at_most_once_waiting_steps_without_an_answer_at_a_rebalance_are_called_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=AMO, retry=RETRY)
    plant.feed("a", "0")
    worker = plant.started()
    for nth in range(2, 2 + 2 * CALLS_MAX):
        plant.cluster.faults.inject("commit", nth=nth, error=Retriable("no answer"), applied=False)
    worker.run_turn()
    worker._on_revoked()
    assert plant.saved == {A0: 1}
    assert "p: at most once: steps that were not run may be lost" in caplog.text


@pytest.mark.parametrize("guarantee", [EO, ALO])
def test_no_transaction_and_no_output_is_open_while_the_only_partition_waits(guarantee: Guarantee) -> None:
    service = Service(lambda value: value == b"1")
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=guarantee, retry=RETRY)
    plant.feed("a", *numbers(0, 3))
    worker = plant.started()
    worker.run_turn()
    assert (worker.is_retrying, worker.committer.busy, worker.committer.session.age) == (True, False, 0.0)
    assert (plant.out(), plant.saved) == (["0"], {A0: 1})


@pytest.mark.parametrize("guarantee", Guarantee)
def test_attempts_are_kept_over_a_rebalance_after_which_the_partition_comes_back(guarantee: Guarantee) -> None:
    service = Service()
    plant = Plant(function=lambda value: service.ask(value, b""), guarantee=guarantee, retry=RETRY)
    plant.feed("a", "0a")
    worker = plant.started()
    worker.run_turn()
    plant.clock.advance(2)
    worker.run_turn()
    consume = worker.consumer.consume

    def consuming(limit: int, timeout: float) -> Sequence[Any]:
        plant.clock.advance(timeout)  # without an assignment the worker is idle, and commits
        return consume(limit, timeout)

    worker.consumer.consume = consuming  # type: ignore[method-assign]
    worker._on_revoked()
    for _ in range(3):
        worker.run_turn()
    worker._on_assigned({A0, A1})
    for _ in range(4):
        worker.run_turn()
        plant.clock.advance(4)
    assert (len(service.calls), plant.dead_letter_count) == (4, 1)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_slow_attempts_in_many_partitions_keep_the_membership_and_stall_no_other(guarantee: Guarantee) -> None:
    service = Service(lambda value: value != b"5")
    polled: list[list[bytes]] = []

    def ask(value: bytes) -> bytes:
        plant.clock.advance(10 if value != b"5" else 0)
        polled[-1].append(value)
        return service.ask(value, b"")

    plant = Plant(function=ask, guarantee=guarantee, partitions=6, session_timeout=1e6, retry=RETRY)
    for number in range(6):
        plant.feed("a", str(number), partition=number)
    worker = plant.started()
    for turn in range(12):
        polled.append([])
        if turn > 6:
            plant.feed("a", "5", partition=5)
        worker.run_turn()
    assert max(sum(value != b"5" for value in values) for values in polled) <= 2
    assert all(b"5" in one + next_ for one, next_ in pairwise(polled[8:]))
    assert worker.counters.retries > 5


def test_worker_that_waits_keeps_polling_its_group_until_the_next_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    service = Service(of_partition_0)
    plant = Plant(function=lambda value: service.ask(value, b""), retry=ks.Retry(backoff="100ms..1m"))
    plant.feed("a", "0")
    worker = plant.worker()
    plant.run(worker, idle=20)
    assert max(plant.timeouts) == 0.25
    assert 0.0 < min(timeout for timeout in plant.timeouts if timeout) < 0.25
    assert worker.counters.retries == service.calls.count(b"0") > 2
