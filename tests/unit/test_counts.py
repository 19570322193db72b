"""The counts that operators read are those of the topics, whichever attempts fail under each guarantee."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest

from kstreams_py.errors import Abortable, ClientError, Fenced, KStreamsError, OutcomeUnknown, Retriable
from kstreams_py.graph.declarations import State
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence
from kstreams_py.graph.topology import Graph
from kstreams_py.metrics import Counters, StepCounts
from kstreams_py.processing import worker as worker_module
from kstreams_py.processing.commits.tally import Tally
from kstreams_py.processing.worker import Worker
from kstreams_py.records import HASH_HEADER, Positions
from kstreams_py.testing import CrashPoint, TestDriver
from kstreams_py.testing import driver as driver_module
from kstreams_py.testing.memory_clients import MemoryProducer
from kstreams_py.testing.request_faults import Crash
from tests.unit.plant import A0, A1, ALO, AMO, EO, Plant, leave_commits_unanswered, numbers
from tests.unit.test_at_most_once import go_on, stall
from tests.unit.test_stored_rows import Table

FED = 12
COMMITS = ("commit", "commit_transaction", "store")


def mixed(value: bytes) -> bytes | None:
    """Of twelve records eight become outputs, and two fail."""
    if value.endswith((b"3", b"7")):
        raise LookupError(value)
    return None if value.endswith((b"4", b"8")) else value


def in_rows(value: bytes) -> tuple[str, int] | None:
    found = mixed(value)
    return None if found is None else (found.decode(), 1)


def in_state(value: bytes, state: Any) -> bytes | None:
    state.put("n", state.get("n", 0) + 1)
    return mixed(value)


CASES: dict[str, Callable[[Graph], object]] = {
    "exactly once": lambda graph: graph.map("a", to="x", id="p")(mixed),
    "at least once": lambda graph: graph.map("a", to="x", id="p", guarantee=ALO)(mixed),
    "at most once": lambda graph: graph.map("a", to="x", id="p", guarantee=AMO)(mixed),
    "overlapping": lambda graph: graph.map("a", to="x", id="p", concurrency=3, order="none")(mixed),
    "overlapping, at least once": lambda graph: graph.map("a", to="x", id="p", concurrency=3, guarantee=ALO)(mixed),
    "state": lambda graph: graph.map("a", to="x", id="p", state=State("n"))(in_state),
    "journal": lambda graph: graph.map("a", to="x", id="p", persistence="journal")(mixed),
    "journal, dropped": lambda graph: graph.map("a", to="x", id="p", persistence="journal", errors=None)(mixed),
    "journal, elsewhere": lambda graph: graph.map("a", to="z", id="p", persistence="journal", errors=None)(mixed),
    "rows by hash": lambda graph: graph.sink("a", to=Table(), id="p")(in_rows),
    "rows with offsets": lambda graph: graph.sink("a", to=Table(Evidence.OFFSETS), id="p")(in_rows),
}


class Counted:
    """A driver of one processor, which gets twelve records in three portions, and the workers that it has had."""

    def __init__(self, case: str, patch: pytest.MonkeyPatch) -> None:
        graph = Graph("g", errors="dead")
        graph.topic("a")
        graph.topic("x")
        graph.topic("z", cluster="other")
        CASES[case](graph)
        (self._processor,) = graph.processors
        self.workers: list[Worker] = []
        open_worker = worker_module.open_worker

        def opening(*arguments: Any) -> Worker:
            self.workers.append(open_worker(*arguments))
            return self.workers[-1]

        patch.setattr(driver_module, "open_worker", opening)
        self.driver = TestDriver(graph, partitions=2)
        self._left = [numbers(first, first + 4) for first in range(0, FED, 4)]

    def fail(self, point: CrashPoint, error: ClientError) -> None:
        """Makes a request of the run fail."""
        faults = self.driver.cluster.named(point.cluster).faults
        faults.inject(point.request, nth=point.nth, error=error, applied=point.applied)

    def run(self) -> None:
        """Runs all portions; the next process goes on where one ends by an error."""
        while True:
            try:
                self.driver.restart()
                self.driver.run()
            except KStreamsError:
                assert len(self.workers) < 9
            if self.driver.down:
                continue
            if not self._left:
                break
            for number, value in enumerate(self._left.pop(0)):
                self.driver.send("a", value.encode(), partition=number % 2)
        self.driver.close()

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts of all workers together: records in and out, dead letters, dropped steps."""
        names = ("records_in", "records_out", "dead_letters", "dropped")
        return tuple(sum(getattr(worker.counters, name) for worker in self.workers) for name in names)

    @property
    def topics(self) -> tuple[int, ...]:
        """What the topics have, without copies, and the steps that failed without a dead letter."""
        outputs = sum(self._distinct(topic.name) for topic in self._processor.outputs)
        rows = len(self.driver.rows("p")) if self._processor.target else 0
        letters = (self._distinct("dead"), 0) if self._processor.errors else (0, 2)
        return FED, outputs + rows, *letters

    @property
    def unacknowledged(self) -> Counter[str]:
        """Records of which no worker knows whether they are written, by topic."""
        return sum((worker.committer.session.lost for worker in self.workers), Counter[str]())

    def _distinct(self, topic: str) -> int:
        records = self.driver._holding(topic).records(topic)
        return len({dict(m.headers() or ())[HASH_HEADER] for m in records})


def points_of(case: str, patch: pytest.MonkeyPatch) -> list[CrashPoint]:
    """The commits of a run without faults, and every third of its other requests, carried out or lost."""
    with patch.context() as inner:
        run = Counted(case, inner)
        run.run()
        letters = (2, 0) if run._processor.errors else (0, 2)
        assert run.counts == run.topics == (FED, 8, *letters)
        points = enumerate(run.driver.crash_points()[2:])  # the first request is made before there is a worker
        return [point for at, point in points if at % 3 == 0 or point.request in COMMITS]


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_topics_whichever_request_fails(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most once, outputs without an acknowledgement are not counted, although some are written."""
    transactional = "least" not in case and "most" not in case
    errors: list[type[ClientError]] = [Retriable, Abortable, Retriable]
    if transactional:
        errors = [OutcomeUnknown, Retriable, Fenced, Abortable, OutcomeUnknown]
    rolled_back = 0
    for point, kind in zip(points_of(case, monkeypatch), cycle(errors), strict=False):
        is_answer = point.applied and point.request in COMMITS  # a commit that is carried out is not refused
        error = errors[0] if is_answer and kind is Abortable else kind
        with monkeypatch.context() as patch:
            run = Counted(case, patch)
            run.fail(point, error("injected"))
            run.run()
            counted, (steps, outputs, letters, dropped) = run.counts, run.topics
            if case == "at most once" and point.applied:
                lost = run.unacknowledged
                outputs, letters = outputs - lost["x"], letters - lost["dead"]
            assert counted == (steps, outputs, letters, dropped), (str(point), error)
            rolled_back += sum(worker.counters.rolled_back for worker in run.workers)
    assert bool(rolled_back) == (case != "at most once")


@pytest.mark.parametrize("case", ["exactly once", "journal", "rows with offsets"])
def test_counts_of_a_process_that_dies_and_of_the_next_are_those_of_the_topics(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies before it hears of its commit has not counted it."""
    for point in points_of(case, monkeypatch):
        with monkeypatch.context() as patch:
            run = Counted(case, patch)
            run.fail(point, Crash())  # type: ignore[arg-type]
            run.run()
            if point.applied and point.request in COMMITS:
                assert all(some <= there for some, there in zip(run.counts, run.topics, strict=True)), str(point)
                assert FED - run.counts[0] in (0, 4), "the steps of one commit, if it had any"
            else:
                assert run.counts == run.topics, str(point)


# Commits without an answer: the offsets at which the worker goes on decide.


def counts_of(worker: Worker) -> tuple[int, int, int]:
    return worker.counters.records_in, worker.counters.records_out, worker.counters.rolled_back


@pytest.mark.parametrize(
    ("after", "positions", "expected"),
    [
        ({A0: 3}, {A0: 3}, (5, 0)),
        ({A0: 3}, {A0: 2}, (0, 5)),
        ({A0: 3, A1: 4}, {A0: 3}, (5, 0)),
        ({A0: 3, A1: 4}, {A0: 3, A1: 3}, (0, 5)),
        ({A0: 3}, {A1: 9}, (0, 5)),
    ],
    ids=["at them", "before them", "at some, others moved away", "before some", "all moved away"],
)
def test_commit_without_an_answer_is_counted_if_the_worker_goes_on_behind_it(
    after: Positions, positions: Positions, expected: tuple[int, int]
) -> None:
    counters = Counters()
    tally = Tally(counters)
    tally.ran(StepCounts(5, 4))
    tally.ask(after)
    tally.rolled_back()
    assert (counters.records_in, counters.rolled_back) == (0, 0), "it is not known yet"
    tally.decide(positions)
    assert (counters.records_in, counters.rolled_back) == expected
    tally.decide(positions)
    tally.rolled_back()
    assert (counters.records_in, counters.rolled_back) == expected, "once"


def test_steps_behind_a_part_that_is_committed_are_rolled_back_alone() -> None:
    counters = Counters()
    tally = Tally(counters)
    tally.ran(StepCounts(5, 4, 0, 1))
    tally.ask({A1: 2}, StepCounts(2, 0, 0, 1))
    tally.committed(StepCounts(2, 0, 0, 1))
    tally.rolled_back()
    assert (counters.records_in, counters.records_out, counters.dropped, counters.rolled_back) == (2, 0, 1, 3)


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
@pytest.mark.parametrize("guarantee", [EO, ALO])
def test_commit_without_an_answer_is_never_counted_twice_if_the_membership_is_lost(
    guarantee: Guarantee, applied: bool
) -> None:
    """Another worker may have run its steps: nobody knows who has committed them."""
    plant = Plant(guarantee=guarantee)
    plant.feed("a", *numbers(0, 4))
    first = plant.started()
    first.run_turn()
    if guarantee is EO:
        plant.cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=applied)
    else:
        leave_commits_unanswered(plant, applied=applied)
    first.run_turn()
    second = stall(plant, True, *numbers(4, 6))
    go_on(plant, first)
    counted = first.counters.records_in + second.counters.records_in
    assert (counted, first.counters.rolled_back) == (2 if applied else 6, 4)
    assert set(plant.out()) == set(numbers(0, 6))


def test_commit_without_an_answer_before_the_end_is_counted_as_rolled_back() -> None:
    plant = Plant()
    plant.feed("a", "1")
    worker = plant.started()
    worker.run_turn()
    plant.cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=False)
    worker.finish()
    worker.close()
    assert counts_of(worker) == (0, 0, 1)


# At most once: steps are not run again; outputs are counted once they are acknowledged.


def test_at_most_once_dead_letters_are_counted_in_place_of_refused_outputs() -> None:
    """The topics have them, although no step has failed."""

    def function(value: bytes) -> Iterator[bytes]:
        yield from [value.ljust(2_000)] * 2 if value in (b"1", b"3") else [value]

    plant = Plant(function=function, guarantee=AMO, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", *numbers(0, 5))
    worker = plant.worker()
    plant.run(worker)
    assert (counts_of(worker), worker.counters.dead_letters) == ((5, len(plant.out()), 0), plant.dead_letter_count)
    assert (len(plant.out()), plant.dead_letter_count) == (3, 2)
    assert worker.counters.bytes_out == 3 + sum(len(m.value() or b"") for m in plant.cluster.records("dead"))


@pytest.mark.parametrize("knows", [True, False], ids=["topics are known", "topics are not known"])
@pytest.mark.parametrize("waits", [True, False], ids=["one output waits", "none waits"])
def test_at_most_once_lost_dead_letters_are_not_counted_in_place_of_later_outputs(
    waits: bool, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is dropped with the partitions; later outputs are written before the next commit."""
    drop = MemoryProducer.drop

    def drop_in_silence(producer: MemoryProducer) -> None:
        drop(producer)
        producer.lost = Counter({"": producer.lost.total()})

    if not knows:
        monkeypatch.setattr(MemoryProducer, "drop", drop_in_silence)
    plant = Plant(function=mixed, guarantee=AMO, linger=60.0)
    plant.feed("a", "2", "3", "13")
    worker = plant.started()
    worker.run_turn()
    if waits:
        plant.feed("a", "5")
        with monkeypatch.context() as patch:
            patch.setattr(MemoryProducer, "write", raise_full)
            worker.run_turn()
    stall(plant, False, "10", "11")
    assert go_on(plant, worker) == ["5", "10", "11"][not waits :]
    assert counts_of(worker) == (5 + waits, 2 + waits, 0)
    assert worker.counters.dead_letters == plant.dead_letter_count == 0


def raise_full(producer: MemoryProducer, outputs: object) -> None:
    raise Retriable("the producer's queue stayed full")
