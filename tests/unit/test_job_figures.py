"""What a job shows while it runs: what is under way of each source, and why inputs are read again."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from io import StringIO
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.metrics import PendingFigures, WorkerState
from kstreams_py.running.jobs import JobLoop
from kstreams_py.running.terminal.logs import Folding
from kstreams_py.testing.memory_source import MemorySource
from tests.simulation.jobs import JobPlant, Table

INPUTS = 4


def plant_of(function: Callable[[int], Any] = lambda value: (value,), **options: Any) -> tuple[JobPlant, Table]:
    plant = JobPlant(range(INPUTS), timeout=60.0)
    table = Table(plant)
    plant.graph.sink(plant.rows, to=table, id="store", **options)(function)
    return plant, table


def refuse_one(value: int) -> tuple[int]:
    if value == 1:
        raise ValueError("no 1")
    return (value,)


def exhaust_memory(value: int) -> tuple[int]:
    if value == 1:
        raise MemoryError
    return (value,)


def lose_acknowledgements(plant: JobPlant) -> None:
    job = plant.start()
    ack, job._acker.ack = job._acker.ack, lambda *_: []  # type: ignore[method-assign]
    job.turn()
    job._acker.ack = ack  # type: ignore[method-assign]
    plant.now += 60.0
    plant.finish(job)


def die_once(plant: JobPlant) -> None:
    plant.strikes[3] = plant.die
    plant.run_all()


def die_until_refused(plant: JobPlant) -> None:
    plant.source.inputs.clear()
    plant.source.inputs[7] = 7
    plant.strikes = dict.fromkeys(range(3, 18, 3), plant.die)  # each time before it stores
    plant.run_all()


def run_until_error(plant: JobPlant) -> None:
    with suppress(MemoryError):
        plant.run()


COUNTED: dict[str, tuple[Callable[[JobPlant], object], Any, dict[str, int]]] = {
    "a death": (die_once, {}, {"done": INPUTS, "died": INPUTS}),
    "lost acknowledgements": (lose_acknowledgements, {}, {"done": INPUTS, "expired": INPUTS}),
    "an exception": (run_until_error, {}, {"raised": 1, "done": INPUTS - 1}),
    "a refusal": (JobPlant.run, {}, {"done": INPUTS - 1, "refused": 1, "failed": 1}),
    "five deaths": (die_until_refused, {}, {"refused": 1}),
}


def test_time_of_calls_that_overlap_is_counted_by_call() -> None:
    plant, _ = plant_of(concurrency=4)
    plant.run()
    (task,) = plant._jobs[-1].tasks
    assert sum(task.counters.step_seconds.counts) == INPUTS


@pytest.mark.parametrize("what", COUNTED)
def test_inputs_are_counted_by_their_end_and_by_why_they_are_read_again(what: str) -> None:
    run, options, expected = COUNTED[what]
    function = {"an exception": exhaust_memory, "a refusal": refuse_one}.get(what, lambda value: (value,))
    plant, _ = plant_of(function, **options)
    run(plant)
    job = plant._jobs[-1]
    (task,) = job.tasks
    found = {name.split(":")[1]: count for name, count in job.measures().items() if count}
    assert found | ({"failed": task.failed} if task.failed else {}) == expected
    assert job.show_pending() == {"rows": PendingFigures()}


def test_oldest_input_is_shown_with_its_age_while_the_target_is_away() -> None:
    plant, table = plant_of()
    plant.source.inputs = {"k" * 100: 0}
    job, table.is_away = plant.start(), True
    job.turn()
    plant.now += 5.0
    assert job.show_pending() == {"rows": PendingFigures(1, 5.0, f"'{'k' * 56}...", ("store",))}


def test_tasks_that_have_something_of_the_oldest_input_are_shown_also_during_a_call() -> None:
    plant, seen = JobPlant([0]), list[tuple[str, ...]]()
    left, right = plant.graph.channel("left"), plant.graph.channel("right")

    def look(*values: Any) -> Any:
        seen.append(plant._jobs[-1].show_pending()["rows"].tasks)
        return values[0]

    for name, channel in (("first", left), ("second", right)):
        plant.graph.map(plant.rows, to=channel, id=name)(look)
    plant.graph.sink(left, right, id="pair")(look)
    plant.run()
    assert seen == [("first", "second"), ("second", "pair"), ("pair",)]


def test_gather_counts_what_finds_no_pair_and_a_source_that_is_away_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = JobPlant(range(INPUTS))
    left, right = plant.graph.channel("left"), plant.graph.channel("right")
    plant.graph.map(plant.rows, to=left, id="first")(lambda value: value)
    plant.graph.map(plant.rows, to=right, id="second")(lambda value: None if value % 2 else value)
    plant.graph.sink(left, right, id="pair")(lambda one, other: None)
    job = plant.start()
    plant.finish(job)
    assert [task.measures().get("unpaired") for task in job.tasks] == [None, None, INPUTS // 2]

    def fail(*_: object, **__: object) -> None:
        raise ks.SourceUnavailable("rows.db: locked", may_return=True)

    monkeypatch.setattr("tests.simulation.jobs.Connection.read", fail)
    plant.now += 1.0
    job.turn()
    assert job.show_pending() == {"rows": PendingFigures(why="rows.db: locked")}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_service_that_is_away_is_told_at_once_in_few_lines_and_when_it_is_over(
    concurrency: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    calls = Counter[int]()

    def call(value: int) -> tuple[int]:
        calls[value] += 1
        if calls[value] < 4:
            raise ConnectionError("refused")
        return (value,)

    retry = ks.Retry(attempts=3, backoff="4s..4s", then="pause")
    plant, _ = plant_of(call, retry=retry, concurrency=concurrency)
    job, shown = plant.start(), dict[tuple[WorkerState, str], None]()
    monkeypatch.setattr("kstreams_py.running.jobs.Job", lambda *_: job)
    loop = JobLoop(plant.graph, 0, JobEnvironment(), lambda _: None)
    while not job.is_exhausted:
        plant.turn(job)
        plant.now += 2.0
        (report,) = loop.reports(None)
        shown[report.state, report.why] = None
    job.close()
    assert [*shown] == [
        (WorkerState.RETRYING, "4 values wait for another attempt: ConnectionError: refused"),
        (WorkerState.RUNNING, ""),
    ]
    target = logging.StreamHandler(out := StringIO())
    target.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    with closing(Folding(target, lambda: 0.0)) as folding:
        for record in caplog.records:
            folding.handle(record)
        folding.flush()
    # calls in threads fail in any order
    assert re.sub(r"input \d of", "input N of", out.getvalue()).splitlines() == [
        "WARNING store: input N of plant:rows waits: ConnectionError: refused; attempt 2 of 3 is in 4.0 s",
        "INFO store: nothing waits for another attempt any more, after 12 failed attempts in 12 s",
        "WARNING 11 more failed attempts of task store in 0 s, last ConnectionError: refused",
    ]


def test_first_warning_of_a_refused_input_names_the_commands(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(value: int) -> None:
        raise ValueError(value)

    monkeypatch.setattr("kstreams_py.jobs.job.InspectedSource", MemorySource)
    plant, _ = plant_of(refuse)
    plant.run()
    commands = "`kstreams sources list GRAPH` prints refused inputs, `kstreams sources retry GRAPH --source rows --all`"
    what = "it is refused once all that was made from it is done"
    warnings = [f"plant:rows: input {value} fails: store: ValueError: {value}: {what}" for value in range(INPUTS)]
    assert caplog.messages == [f"{warnings[0]}; {commands} lets them be read again", *warnings[1:]]


def test_closed_job_shows_nothing_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise ConnectionError

    plant, _ = plant_of(fail, retry=ks.Retry())
    job, lags = plant.start(), list[int | None]()
    monkeypatch.setattr("kstreams_py.running.jobs.Job", lambda *_: job)
    loop = JobLoop(plant.graph, 0, JobEnvironment(), lambda _: None)
    for act in (job.turn, job.close):
        act()
        lags += [report.lag for report in loop.reports(None)]
    assert lags == [INPUTS, 0]
