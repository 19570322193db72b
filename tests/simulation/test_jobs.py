"""Jobs over channels, whose process dies at each of its requests: every effect once, nothing lost."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.graph.source import BadInput
from kstreams_py.jobs import inputs
from kstreams_py.jobs.identity import Pattern, SegmentId
from kstreams_py.jobs.runners import Turned, shares
from kstreams_py.jobs.segments import Segments
from kstreams_py.sources.suspects import DEATHS_MAX, REASON
from kstreams_py.testing.memory_source import FREE, Kept
from tests.simulation.jobs import JobPlant, RowsOf, Table

Declared = tuple[list[Table], RowsOf]
"""The tables of a plant, and what each input must produce."""

INPUTS = 30


def declare_chain(plant: JobPlant) -> Declared:
    parsed, table = plant.graph.channel("parsed"), Table(plant)
    plant.graph.map(plant.rows, to=parsed, id="parse")(lambda value: value + 1)
    plant.graph.sink(parsed, to=table, id="store")(lambda value: (value,))
    return [table], lambda value: [[value + 1]]


def declare_filter(plant: JobPlant) -> Declared:
    even, table = plant.graph.channel("even"), Table(plant)
    plant.graph.map(plant.rows, to=even, id="filter")(lambda value: value if value % 2 == 0 else None)
    plant.graph.sink(even, to=table, id="store")(lambda value: (value,))
    return [table], lambda value: [[] if value % 2 else [value]]


def declare_several(plant: JobPlant) -> Declared:
    words, table = plant.graph.channel("words"), Table(plant)

    @plant.graph.map(plant.rows, to=words)
    def split(value: int) -> Any:
        yield from (value * 10 + each for each in range(value % 3))

    plant.graph.sink(words, to=table, id="store")(lambda value: (value,))
    return [table], lambda value: [[value * 10 + each for each in range(value % 3)]]


def declare_fork(plant: JobPlant) -> Declared:
    low, high = plant.graph.channel("low"), plant.graph.channel("high")
    plant.graph.map(plant.rows, to=[low, high], id="fork")(
        lambda value: {low: value, high: value} if value % 5 == 0 else {low if value < 15 else "high": value}
    )
    tables = [Table(plant), Table(plant)]
    plant.graph.sink(low, to=tables[0], id="store_low")(lambda value: (value,))
    plant.graph.sink(high, to=tables[1], id="store_high")(lambda value: [(value,), (-value,)])

    def rows_of(value: int) -> list[list[int]]:
        is_both = value % 5 == 0
        return [[value] if value < 15 or is_both else [], [value, -value] if value >= 15 or is_both else []]

    return tables, rows_of


def declare_diamond(plant: JobPlant) -> Declared:
    """Two tasks read one channel, and one task reads the outputs of both."""
    parsed, left, right = (plant.graph.channel(name) for name in ("parsed", "left", "right"))
    table = Table(plant)
    plant.graph.map(plant.rows, to=parsed, id="parse")(lambda value: value)
    plant.graph.map(parsed, to=left, id="first")(lambda value: value)
    plant.graph.map(parsed, to=right, id="second")(lambda value: -1 - value)
    plant.graph.sink(left, right, alts=True, to=table, id="store")(lambda value: (value,))
    return [table], lambda value: [[value, -1 - value]]


def declare_gather(plant: JobPlant) -> Declared:
    """Two branches of what a task yields, one of which has no value for some."""
    parts, left, right, both = (plant.graph.channel(name) for name in ("parts", "left", "right", "both"))
    table = Table(plant)

    @plant.graph.map(plant.rows, to=parts)
    def split(value: int) -> Any:
        yield from ((value, number) for number in range(3))

    plant.graph.map(parts, to=left, id="first")(lambda part: part)
    plant.graph.map(parts, to=right, id="second")(lambda part: None if part[0] % 4 == 0 else (part[0] * 100, part[1]))
    plant.graph.gather(left, right, to=both, id="pair")(lambda one, other: (*one, *other))
    plant.graph.sink(both, to=table, id="store")(lambda pair: (pair,))
    return [table], lambda value: [[(value, each, value * 100, each) for each in range(3) if value % 4]]


def declare_gather_at_sink(plant: JobPlant) -> Declared:
    """A sink that takes a value as it was read, and what two tasks made from it."""
    squares, negatives, table = plant.graph.channel("squares"), plant.graph.channel("negatives"), Table(plant)
    plant.graph.map(plant.rows, to=squares, id="square")(lambda value: value**2)
    plant.graph.map(plant.rows, to=negatives, id="negate")(lambda value: -value)
    plant.graph.sink(plant.rows, squares, negatives, to=table, id="store")(lambda *values: (values,))
    return [table], lambda value: [[(value, value**2, -value)]]


def declare_overlapping(plant: JobPlant) -> Declared:
    """Coroutines, and threads, several at once; those of a group one after another, also when one fails."""
    fetched = plant.graph.channel("fetched", group_by=lambda value: value % 5)
    parsed, table, calls = plant.graph.channel("parsed"), Table(plant), Counter[int]()

    @plant.graph.map(plant.rows, to=fetched, concurrency=4)
    async def fetch(value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    @plant.graph.map(fetched, to=parsed, concurrency=3, retry=ks.Retry(backoff="1s..2s"))
    def parse(value: int) -> int | None:
        calls[value] += 1
        if value % 7 == 0 and calls[value] == 1:
            raise ConnectionError
        return value if value % 2 else None

    plant.graph.sink(parsed, to=table, id="store")(lambda value: (value,))
    return [table], lambda value: [[] if value % 2 else [value + 1]]


def declare_refusals(plant: JobPlant) -> Declared:
    """Functions that raise, for a while or for ever, and rows that the target refuses."""
    parsed, calls = plant.graph.channel("parsed"), Counter[int]()
    table = Table(plant, refuses=lambda value: value in (3, 4))

    @plant.graph.map(plant.rows, to=parsed, retry=ks.Retry(attempts=3, backoff="1s..2s"))
    def parse(value: int) -> int:
        if value in (0, 7, 29):
            raise ValueError(f"no {value}")
        calls[value] += 1
        if value == 28 or (value % 9 == 2 and calls[value] == 1):
            raise ConnectionError(f"no answer for {value}")
        return value

    plant.graph.sink(parsed, to=table, id="store")(lambda value: (value,))
    reasons = {number: f"parse: ValueError: no {number}" for number in (0, 7, 29)}
    reasons |= {number: f"store: RowRefused: {number} is not taken" for number in (3, 4)}
    reasons |= {28: "parse: ConnectionError: no answer for 28"}
    return [table], lambda value: reasons.get(value) or [[value]]


GRAPHS: dict[str, Callable[[JobPlant], Declared]] = {
    "chain": declare_chain,
    "filter": declare_filter,
    "several": declare_several,
    "fork": declare_fork,
    "diamond": declare_diamond,
    "gather": declare_gather,
    "gather at a sink": declare_gather_at_sink,
    "overlapping": declare_overlapping,
    "refusals": declare_refusals,
}


def plant_of(graph: str, **options: Any) -> JobPlant:
    plant = JobPlant(range(INPUTS), **options)
    plant.tables, plant.rows_of = GRAPHS[graph](plant)
    return plant


def points_of(graph: str) -> range:
    """Returns the numbers of the points of a run without faults."""
    plant = plant_of(graph)
    plant.run_all()
    plant.check()
    assert plant.points >= 18, "claims, stores and acknowledgements of three batches"
    return range(1, plant.points + 1)


@pytest.mark.parametrize("graph", GRAPHS)
def test_job_stores_what_its_functions_return_and_acknowledges_every_input(graph: str) -> None:
    plant = plant_of(graph)
    plant.run()
    plant.check()


@pytest.mark.parametrize("graph", GRAPHS)
def test_death_at_each_point_leaves_each_effect_once_and_nothing_lost(graph: str) -> None:
    for point in points_of(graph):
        plant = plant_of(graph)
        plant.strikes[point] = plant.die
        plant.run_all()
        assert plant.strikes == {}
        plant.check()


@pytest.mark.parametrize("graph", GRAPHS)
def test_request_without_an_answer_at_each_point_is_made_again(graph: str) -> None:
    for point in points_of(graph):
        plant = plant_of(graph)
        plant.strikes[point] = plant.be_away
        plant.run_all()
        assert (plant.strikes, {each.deaths for each in plant.kept.values()}) == ({}, {0})
        plant.check()


@pytest.mark.parametrize("graph", GRAPHS)
def test_worker_that_wakes_up_past_its_lease_changes_nothing(graph: str) -> None:
    """At each point: another worker has taken its inputs over, and is done with them."""
    for point in points_of(graph):
        plant, seen = plant_of(graph), list[str]()

        def freeze(name: str, plant: JobPlant = plant, seen: list[str] = seen) -> None:
            plant.start()
            plant.freeze(name)
            seen.append(plant.show())

        plant.strikes[point] = freeze
        plant.run_all()
        assert seen == [plant.show()]
        plant.check()


def run_under_faults(graph: str, seed: int) -> None:
    chance = random.Random(seed)
    called, seconds = chance.choice([None, 2, 3]), chance.choice([0.0, 0.4])
    plant = plant_of(
        graph, batch=chance.choice([3, 10, INPUTS]), seed=seed, timeout=2.0, called=called, turn_seconds=seconds
    )
    plant.strikes = dict.fromkeys(chance.sample(range(1, 100), 6), plant.be_away)
    faults = chance.choices(["death", "freeze", "message"], k=4)  # fewer than DEATHS_MAX of one input
    plant.faulty = chance.sample(range(1, 40), faults.count("message"))
    for fault in faults:
        strike = plant.die if fault == "death" else partial(plant.freeze, turns=chance.randint(1, 80))
        plant.strikes |= {chance.randint(1, 60): strike} if fault != "message" else {}
    plant.run_all(workers=chance.randint(1, 2))
    plant.check()


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 1_060), marks=pytest.mark.long)], ids=["0 to 59", "60 to 1059"]
)
def test_random_faults_leave_each_effect_once_and_nothing_lost(graph: str, seeds: range) -> None:
    for seed in seeds:
        try:
            run_under_faults(graph, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_replayed_rows_are_written_again_and_stored_once() -> None:
    plant = plant_of("chain")
    plant.strikes[5] = plant.die  # before the first acknowledgement
    plant.run_all()
    (table,) = plant.tables
    assert (len(table.rows), table.written.total()) == (INPUTS, INPUTS + plant.batch)


@pytest.mark.parametrize("batch", [7, INPUTS])
def test_input_that_kills_its_workers_is_refused_and_no_other(batch: int) -> None:
    plant = JobPlant(range(INPUTS), batch=batch, called=4)
    plant.tables, plant.rows_of = [Table(plant)], lambda value: REASON if value == 13 else [[value]]

    @plant.graph.sink(plant.rows, to=plant.tables[0])
    def store(value: int) -> tuple[int]:
        if value == 13:
            plant.die("store")
        return (value,)

    plant.run_all()
    plant.check()


def test_messages_that_never_arrive_once_and_in_time_end_every_input() -> None:
    plant = plant_of("chain", timeout=2.0)
    plant.faulty, plant.rows_of = range(1, 1_000_000), None
    plant.run_all()
    assert {each.state for each in plant.kept.values()} == {"done", "refused"}
    assert {each.deaths for each in plant.kept.values() if each.state == "refused"} == {DEATHS_MAX}
    assert plant.tables[0].values == [*range(1, INPUTS + 1)]


@pytest.mark.parametrize("every", [1, 3])
def test_input_that_cannot_be_read_is_refused_and_no_function_gets_it(every: int) -> None:
    plant = JobPlant([BadInput(ValueError("bad")) if at % every == 0 else at for at in range(INPUTS)])
    plant.tables = [Table(plant)]
    plant.rows_of = lambda value: [[value]] if isinstance(value, int) else "plant:rows: ValueError: bad"
    plant.graph.sink(plant.rows, to=plant.tables[0], id="store")(lambda value: (value,))
    plant.run()
    plant.check()
    assert plant.now == 0.0, "it waits for nothing"


def test_many_refused_rows_do_not_write_the_others_again_and_again() -> None:
    plant = JobPlant(range(600), batch=600)
    table = Table(plant, refuses=lambda value: value % 2 == 0)

    @plant.graph.sink(plant.rows, to=table)
    def store(value: int) -> Any:
        yield (value,)
        yield (value if value % 3 else -value,)

    plant.run()
    assert list(plant.refused()) == [*range(0, 600, 2)]
    assert table.values == sorted(value for each in range(1, 600, 2) for value in (each, each if each % 3 else -each))
    assert max(table.written.values()) == 1
    assert plant.points < 4_000


def test_result_that_a_function_changes_later_keeps_what_it_was() -> None:
    plant = JobPlant(range(INPUTS))
    halves, words, tables = plant.graph.channel("halves"), plant.graph.channel("words"), [Table(plant), Table(plant)]
    buffer: dict[str, list[int]] = {"n": [0]}

    @plant.graph.map(plant.rows, to=halves)
    def fill(value: int) -> Any:
        buffer["n"][0] = value
        return buffer

    @plant.graph.map(plant.rows, to=words)
    def split(value: int) -> Any:
        word = {"n": value}
        for number in range(2):
            word["part"] = number
            yield word

    plant.graph.sink(halves, to=tables[0], id="store_halves")(lambda half: (half["n"][0],))
    plant.graph.sink(words, to=tables[1], id="store_words")(lambda word: ((word["n"], word["part"]),))
    plant.run()
    assert tables[0].values == [*range(INPUTS)]
    assert tables[1].values == [(value, part) for value in range(INPUTS) for part in range(2)]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"oen": 0}, "returned a value for 'oen': its to= has one, other: name one of these, or add the channel there"),
        ("text", "has several outputs and returned a str: return a dict of channel to value, for one, other"),
        ({"one": ks.Out(2)}, "returned an Out: a channel has no keys, headers or timestamps: return 2"),
    ],
)
def test_result_that_fits_no_channel_ends_the_job_with_the_remedy(result: Any, told: str) -> None:
    plant = JobPlant(range(3))
    one, other = plant.graph.channel("one"), plant.graph.channel("other")
    plant.graph.map(plant.rows, to=[one, other], id="fork")(lambda _: result)
    plant.graph.sink(one, other, alts=True, id="end")(lambda value: value)
    with pytest.raises(ks.GraphError) as ended:
        plant.run()
    assert str(ended.value) == f"task 'fork' {told}"
    assert {each.state for each in plant.source.kept["plant:rows"].values()} == {"free"}


def test_branch_with_two_results_ends_the_job_with_the_remedy() -> None:
    plant = JobPlant(range(3))
    twice, both = plant.graph.channel("twice"), plant.graph.channel("both")

    @plant.graph.map(plant.rows, to=twice)
    def double(value: int) -> Any:
        yield from (value, value)

    plant.graph.gather(twice, plant.rows, to=both, id="pair")(lambda one, other: None)
    plant.graph.sink(both, id="end")(lambda value: value)
    with pytest.raises(ks.GraphError) as ended:
        plant.run()
    assert str(ended.value) == (
        "task 'pair': input 1 has two values that come from the same segment: gather before the function that yields "
        "several results"
    )


class Flaky:
    """A function that raises at its first calls with each value."""

    def __init__(self, failures: int) -> None:
        self.calls = Counter[int]()
        self._failures = failures

    def __call__(self, value: int) -> tuple[int]:
        self.calls[value] += 1
        if value % 10 == 0 and self.calls[value] <= self._failures:
            raise ConnectionError(f"no answer for {value}")
        return (value,)


def plant_with(retry: ks.Retry, failures: int) -> tuple[JobPlant, Table, Flaky]:
    plant, flaky = JobPlant(range(INPUTS), timeout=1.0), Flaky(failures)
    table = Table(plant)
    plant.graph.sink(plant.rows, to=table, id="store", retry=retry)(flaky)
    return plant, table, flaky


@pytest.mark.parametrize("then", ["dead_letter", "stop", "pause"])
def test_segment_is_run_again_until_it_succeeds_and_does_not_expire(then: str) -> None:
    plant, table, flaky = plant_with(ks.Retry(attempts=4, backoff="1s..8s", then=then), failures=3)
    plant.run()
    assert flaky.calls == {value: 4 if value % 10 == 0 else 1 for value in range(INPUTS)}
    assert (table.values, table.written.total(), plant.refused()) == ([*range(INPUTS)], INPUTS, {})
    assert plant.now >= 1 + 2 + 4, "the waits double, less up to a half each"


def test_segment_that_always_fails_is_refused_after_its_last_attempt() -> None:
    plant, table, flaky = plant_with(ks.Retry(attempts=3), failures=99)
    plant.run()
    assert {value: calls for value, calls in flaky.calls.items() if calls > 1} == {0: 3, 10: 3, 20: 3}
    assert plant.refused() == {v: f"store: ConnectionError: no answer for {v}" for v in (0, 10, 20)}
    assert table.values == [value for value in range(INPUTS) if value % 10]


def test_segment_that_always_fails_stops_the_job_if_its_retry_says_so() -> None:
    plant, _, flaky = plant_with(ks.Retry(attempts=3, then="stop"), failures=99)
    with pytest.raises(ConnectionError, match=r"no answer for \d+"):
        plant.run()
    assert max(flaky.calls.values()) == 3
    assert "claimed" not in {each.state for each in plant.source.kept["plant:rows"].values()}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_value_that_a_function_changes_is_unchanged_for_other_readers_and_attempts(concurrency: int) -> None:
    plant = JobPlant([{"n": [1]}])
    seen: list[tuple[str, Any]] = []

    def change(name: str, failures: int) -> Callable[[Any], None]:
        left = [failures]

        def changed(value: Any) -> None:
            seen.append((name, deepcopy(value)))
            value["n"].append(name)
            if left[0]:
                left[0] -= 1
                raise ConnectionError

        return changed

    options: Any = {"retry": ks.Retry(), "concurrency": concurrency}
    for name, failures in (("first", 1), ("second", 0), ("third", 2)):
        plant.graph.sink(plant.rows, id=name, **options)(change(name, failures))
    plant.run()
    assert {repr(value) for _, value in seen} == {repr({"n": [1]})}
    assert Counter(name for name, _ in seen) == {"first": 2, "second": 1, "third": 3}


@pytest.mark.parametrize(
    ("error", "deaths"),
    [(ks.Stop("enough"), 0), (KeyError("listed"), 0), (ks.SinkUnavailable("full"), 0), (ks.InputLost("deleted"), 0),
     (MemoryError("large"), 1)],
)  # fmt: skip
def test_error_that_stops_the_job_gives_the_inputs_back(error: Exception, deaths: int) -> None:
    plant = JobPlant([1])

    @plant.graph.sink(plant.rows, stop_on=KeyError, retry=ks.Retry(on=Exception))
    def end(_: int) -> None:
        raise error

    with suppress(type(error)):
        plant.run()
    (kept,) = plant.source.kept["plant:rows"].values()
    assert (kept.state, kept.deaths) == ("free", deaths)


@pytest.mark.parametrize("retry", [None, ks.Retry(on=ks.SinkUnavailable, attempts=3)])
def test_target_that_a_function_finds_away_ends_the_job_and_loses_nothing(retry: ks.Retry | None) -> None:
    """It is not an outage of the sink, for which the turn would wait: the results of the others would be dropped."""
    plant = JobPlant(range(INPUTS))
    table, left = Table(plant), [3]

    @plant.graph.sink(plant.rows, to=table, retry=retry)
    def store(value: int) -> tuple[int]:
        if value == 3 and left[0]:
            left[0] -= 1
            raise ks.SinkUnavailable("locked", may_return=True)
        return (value,)

    ended = 0
    while left[0]:
        with suppress(ks.SinkUnavailable):
            plant.run()
        ended += 1
        assert "claimed" not in {each.state for each in plant.source.kept["plant:rows"].values()}
    plant.run()
    assert table.values == [*range(INPUTS)] or plant.refused()
    assert ended == (3 if retry is None else 1)


def test_function_that_raises_stop_iteration_refuses_its_input_and_no_other() -> None:
    plant = JobPlant(range(INPUTS))
    table = Table(plant)
    plant.graph.sink(plant.rows, to=table, id="find")(lambda value: (next(each for each in [value] if each != 7),))
    plant.run()
    assert plant.refused() == {7: "find: RuntimeError: the function raised StopIteration"}
    assert table.values == [value for value in range(INPUTS) if value != 7]


def test_gather_that_fails_is_run_again_with_the_same_values_and_no_others() -> None:
    plant = JobPlant([{"a": value, "b": -value} for value in range(INPUTS)], batch=3)
    left, right, table = plant.graph.channel("left"), plant.graph.channel("right"), Table(plant)
    plant.graph.map(plant.rows, to=[left, right], id="fork")(lambda row: {left: row, right: row})
    calls = Counter[int]()

    @plant.graph.sink(left, right, to=table, retry=ks.Retry(backoff="1s..1s"))
    def pair(one: Any, other: Any) -> tuple[Any]:
        calls[one["a"]] += 1
        assert one == other
        one["a"] += 1000
        if calls[one["a"] - 1000] == 1:
            raise ConnectionError
        return ((one["a"], other["a"]),)

    plant.run()
    assert plant.refused() == {}
    assert table.values == [(value + 1000, value) for value in range(INPUTS)]


def test_branch_that_is_lost_expires_although_the_other_waits_at_a_gather() -> None:
    plant = JobPlant(range(3), timeout=60.0)
    left, right, table = plant.graph.channel("left"), plant.graph.channel("right"), Table(plant)
    plant.graph.map(plant.rows, to=[left, right], id="fork")(lambda value: {left: value, right: value})
    plant.graph.sink(left, right, to=table, id="pair")(lambda one, other: ((one, other),))
    job = plant.start()
    runner = job.tasks[1]

    def lose(now: float) -> Turned:
        runner._inboxes[1].take(INPUTS)
        return type(runner).turn(runner, now)

    runner.turn = lose  # type: ignore[method-assign]
    job.turn()
    del runner.turn
    assert table.values == []
    plant.now = 60.0
    plant.finish(job)
    assert table.values == [(value, value) for value in range(3)]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_function_that_exits_ends_the_job_by_an_error_and_not_the_process(concurrency: int) -> None:
    plant = JobPlant([1])
    plant.graph.sink(plant.rows, id="end", concurrency=concurrency)(lambda _: sys.exit(0))
    with pytest.raises(ks.FunctionExited, match=r"end: <lambda> \(test_jobs.py:\d+\) ended by SystemExit: 0"):
        plant.run()


@pytest.mark.parametrize("deaths", [0, 2])
def test_inputs_that_wait_for_another_attempt_do_not_keep_others_out(deaths: int) -> None:
    """`deaths`: of the last input, which is a suspect of these, and read alone."""
    plant, table, stored = JobPlant(range(400)), None, set[int]()
    table = Table(plant)

    @plant.graph.sink(plant.rows, to=table, retry=ks.Retry(on=ConnectionError, attempts=2, then="pause"))
    def store(value: int) -> tuple[int]:
        plant.now += 0.03
        if value < 25 and len(stored) < 375:
            raise ConnectionError
        stored.add(value)
        return (value,)

    plant.source.kept["plant:rows"] = {399: Kept(FREE, owner=0, deaths=deaths)} if deaths else {}
    plant.finish(plant.start())
    assert table.values == [*range(400)]


def test_full_inbox_does_not_keep_the_others_waiting() -> None:
    inboxes = [Segments([SegmentId(b"")] * count, [Pattern(0)] * count, values=[0] * count) for count in (100, 3, 50)]
    for free, expected in ((30, [3, 14, 13]), (0, [0, 0, 0]), (1_000, [3, 50, 100])):
        assert [share for _, share in shares(inboxes, free)] == expected


def test_function_that_becomes_slow_ends_its_turn() -> None:
    plant = JobPlant(range(100), batch=100)
    table, seconds = Table(plant), 0.0

    @plant.graph.sink(plant.rows, to=table)
    def store(value: int) -> tuple[int]:
        plant.now += 5.0 if value >= 20 else 0.0
        return (value,)

    job = plant.start()
    while not job.is_exhausted:
        began = plant.now
        job.turn()
        seconds = max(seconds, plant.now - began)
    assert (seconds, table.values) == (5.0, [*range(100)])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_calls_of_a_group_come_one_after_another_also_after_a_failure(*, asynchronous: bool) -> None:
    plant = JobPlant(range(INPUTS), batch=INPUTS)
    grouped, table = plant.graph.channel("grouped", group_by=lambda value: 1 / (value - 13) and value % 3), Table(plant)
    active, seen, failed = Counter[int](), list[int](), set[int]()

    def begin(value: int) -> None:
        active[value % 3] += 1
        assert active[value % 3] == 1
        seen.append(value)

    def end(value: int) -> tuple[int]:
        active[value % 3] -= 1
        if value % 7 == 5 and value not in failed:
            failed.add(value)
            raise ConnectionError(value)
        return (value,)

    async def fetch(value: int) -> tuple[int]:
        begin(value)
        await asyncio.sleep(0.001)
        return end(value)

    def call(value: int) -> tuple[int]:
        begin(value)
        time.sleep(0.001)
        return end(value)

    plant.graph.map(plant.rows, to=grouped, id="pass")(lambda value: value)
    plant.graph.sink(grouped, to=table, id="store", concurrency=8, retry=ks.Retry())(fetch if asynchronous else call)
    plant.run()
    assert plant.refused() == {13: "store: ZeroDivisionError: division by zero"}
    assert table.values == [value for value in range(INPUTS) if value != 13]
    assert failed == {5, 12, 19, 26}
    for group in range(3):
        first = [*dict.fromkeys(value for value in seen if value % 3 == group)]
        assert first == [value for value in range(INPUTS) if value % 3 == group and value != 13]


def test_function_gets_the_same_delivery_hash_at_each_attempt() -> None:
    plant = JobPlant(range(3), batch=1)
    hashes: list[tuple[int, bytes]] = []
    plant.graph.sink(plant.rows, id="end")(lambda value, step: hashes.append((value, step.delivery_hash)))
    plant.strikes[3] = plant.die  # before the first acknowledgement
    plant.run_all()
    assert [value for value, _ in hashes] == [0, 1, 2, 0] or [value for value, _ in hashes] == [0, 0, 1, 2]
    assert len({*hashes}) == len({found for _, found in hashes}) == 3
    assert {len(found) for _, found in hashes} == {16}


def test_lost_acknowledgement_is_read_again_after_the_timeout_and_not_before() -> None:
    plant = JobPlant(range(3), timeout=60.0)
    table = Table(plant)
    plant.graph.sink(plant.rows, to=table, id="store")(lambda value: (value,))
    job = plant.start()
    lost: list[object] = []
    ack, job._acker.ack = job._acker.ack, lambda *acks: lost.append(acks) or []  # type: ignore[method-assign,func-returns-value]
    assert job.turn()
    job._acker.ack = ack  # type: ignore[method-assign]
    plant.now = 59.9
    assert not job.turn()
    plant.now = 60.0
    plant.finish(job)
    assert len(lost) == 1
    assert table.written.total() == 6
    assert table.values == [0, 1, 2]


@pytest.mark.parametrize(("most", "concurrency"), [(100, 1), (2, 16)])
def test_inputs_under_way_are_bounded_while_the_target_is_away(most: int, concurrency: int) -> None:
    plant = JobPlant(range(1_000), batch=50, max_pending=most)
    table = Table(plant)
    plant.graph.sink(plant.rows, to=table, id="store", concurrency=concurrency)(lambda value: (value,))
    job, table.is_away = plant.start(), True
    for _ in range(50):
        job.turn()
        assert sum(len(each.pending) for each in job._inputs.values()) <= most
    table.is_away = False
    plant.finish(job)
    assert table.values == [*range(1_000)]


def test_bytes_under_way_are_bounded_while_the_target_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "UNDER_WAY_BYTES", 1_000)
    plant = JobPlant([f"{number:0100}" for number in range(200)], batch=4)
    table = Table(plant)
    plant.graph.sink(plant.rows, to=table, id="store")(lambda value: (value,))
    job, table.is_away = plant.start(), True
    for _ in range(50):
        job.turn()
    assert [len(each.pending) for each in job._inputs.values()] == [12], "one read after 8 are under way"
    table.is_away = False
    plant.finish(job)
    assert table.values == [f"{number:0100}" for number in range(200)]


def test_stopped_job_gives_back_what_is_under_way() -> None:
    plant = JobPlant(range(3))
    table = Table(plant)
    plant.graph.sink(plant.rows, to=table, id="store")(lambda value: (value,))
    table.is_away = True
    turns = iter([False, False, True])
    plant.start().run(lambda: next(turns))
    assert {each.state for each in plant.source.kept["plant:rows"].values()} == {"free"}
    table.is_away = False
    plant.run()
    assert table.values == [0, 1, 2]
