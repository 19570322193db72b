"""Outputs that a topic always refuses: each becomes a dead letter, and all others are delivered as guaranteed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings, errors
from tests.system.app import GUARANTEES, MakeSettings, decode_dead_letter
from tests.system.harness import Cluster, RunningSlot, running

DAY_MS = 86_400_000


def no_key(value: bytes) -> ks.Out:
    return ks.Out(value, key=None)


def of_1970(value: bytes) -> ks.Out:
    return ks.Out(value, timestamp=1)


def of_next_week(value: bytes) -> ks.Out:
    return ks.Out(value, timestamp=int(time.time() * 1000) + 7 * DAY_MS)


def large(value: bytes) -> ks.Out:
    return ks.Out(value + b"x" * 5_000)


Result = Callable[[bytes], ks.Out]
REFUSED: dict[str, tuple[dict[str, str], Result, str]] = {
    "no key": ({"cleanup.policy": "compact"}, no_key, "INVALID_RECORD"),
    "too old": ({"message.timestamp.before.max.ms": str(DAY_MS)}, of_1970, "INVALID_"),
    "too new": ({"message.timestamp.after.max.ms": str(DAY_MS)}, of_next_week, "INVALID_"),
    "too large": ({"max.message.bytes": "2000"}, large, "max.message.bytes"),
}
"""Settings of the output topic, a result that it refuses, a word of the reason."""

first_guarantee = pytest.mark.parametrize(
    "guarantee", [GUARANTEES[0], *(pytest.param(each, marks=pytest.mark.long) for each in GUARANTEES[1:])]
)
"""The weaker guarantees search as they do for the outputs of a map, which the quick tier has under each guarantee."""


def numbered(count: int, bad: Collection[int] = (), prefix: str = "") -> list[bytes]:
    return [f"{prefix}{'bad' if i in bad else ''}{i}".encode() for i in range(count)]


def good(values: Sequence[bytes]) -> list[bytes]:
    return [value for value in values if b"bad" not in value]


def make_function(result: Result) -> Callable[[bytes], bytes | ks.Out]:
    return lambda value: result(value) if b"bad" in value else value


def read_refused_inputs(cluster: Cluster, topic: str, reason: str) -> list[tuple[bytes, ...]]:
    """The input values of each dead letter, after a check that each message has the reason of the refusal."""
    found = [decode_dead_letter(m) for m in cluster.read(topic)]
    other_messages = [each["exception_message"] for each in found if reason not in each["exception_message"]]
    assert other_messages == []
    kinds = {each["exception_class"].rpartition(".")[2] for each in found}
    assert kinds <= {"RecordTooLarge" if reason == "max.message.bytes" else "RecordRefused"}
    return [tuple(read["value"] for read in each["inputs"]) for each in found]


def keep_last_copies(values: Sequence[Any]) -> list[Any]:
    """Each value once, in the order of the last copies."""
    return list(dict.fromkeys(values[::-1]))[::-1]


def assert_delivered(guarantee: str, found: list[Any], expected: list[Any]) -> None:
    """Exactly once: equal. At least once: the last copies are equal. At most once: equal in any order."""
    if guarantee == "exactly_once":
        assert found == expected
    elif guarantee == "at_least_once":
        assert keep_last_copies(found) == expected, found
    else:
        assert Counter(map(repr, found)) == Counter(map(repr, expected))


class RefusingApp:
    """Two inputs, an output that refuses records, an output that accepts all, and a dead-letter topic."""

    def __init__(self, cluster: Cluster, name: str, refusal: str) -> None:
        config, self.result, self.reason = REFUSED[refusal]
        self.cluster, self.name = cluster, name
        self.left, self.right, self.target, self.other, self.errors = (
            f"{name}.{end}" for end in ("left", "right", "out", "other", "errors")
        )
        self.group = f"{name}.step"
        cluster.create(self.left, self.right, self.other, self.errors)
        cluster.create(self.target, config=config)
        cluster.partitions(self.target)  # returns once the broker knows it

    def write(self, topic: str, values: Sequence[bytes]) -> None:
        self.cluster.write(topic, values, keys=[b"k-" + value for value in values])

    def graph(self, guarantee: str, **options: Any) -> ks.Graph:
        graph = ks.Graph(self.name, guarantee=guarantee, errors=self.errors)
        graph.map(graph.topic(self.left), to=graph.topic(self.target), id="step", **options)(make_function(self.result))
        return graph

    def await_committed(self, left: int, right: int | None = None) -> None:
        self.cluster.await_committed(self.group, self.left, {0: left})
        if right is not None:
            self.cluster.await_committed(self.group, self.right, {0: right})

    @property
    def dead_letters(self) -> list[tuple[bytes, ...]]:
        return read_refused_inputs(self.cluster, self.errors, self.reason)


@pytest.fixture
def settings(settings: MakeSettings) -> MakeSettings:
    """Attempts of the search in less time: each one waits for the fetch from an idle input that was sent before it."""
    return partial(settings, kafka={"fetch.wait.max.ms": 50})


@pytest.fixture
def new_app(cluster: Cluster, name: str) -> Callable[[str], RefusingApp]:
    return lambda refusal: RefusingApp(cluster, name, refusal)


@pytest.mark.parametrize(
    ("guarantee", "refusal"),
    # the client reports each refusal as the same class of error; each guarantee searches for the record in its own way
    [
        pytest.param(guarantee, refusal, marks=() if is_quick else pytest.mark.long)
        for guarantee in GUARANTEES
        for refusal in REFUSED
        for is_quick in [refusal == "no key" or (guarantee, refusal) == ("exactly_once", "too large")]
    ],
)
def test_refused_outputs_are_dead_letters_and_all_others_are_delivered(
    new_app: Callable[[str], RefusingApp], settings: MakeSettings, guarantee: str, refusal: str
) -> None:
    """First one refused output among 60, then several among 20, the first and the last included."""
    app = new_app(refusal)
    values, later = numbered(60, [37]), numbered(20, [0, 12, 19], "later-")
    app.write(app.left, values)
    with running(app.graph(guarantee), settings()):
        app.await_committed(60)
        app.write(app.left, later)
        app.await_committed(80)
    assert_delivered(guarantee, app.cluster.values(app.target), good([*values, *later]))
    assert_delivered(guarantee, app.dead_letters, [(value,) for value in [*values, *later] if b"bad" in value])


@pytest.mark.parametrize("batch", [1, pytest.param(1_000, marks=pytest.mark.long)])
def test_refused_outputs_of_a_processor_with_a_journal_are_dead_letters(
    new_app: Callable[[str], RefusingApp], settings: MakeSettings, batch: int
) -> None:
    """Also the last output of a unit, whose place the journal records."""
    app, values = new_app("no key"), numbered(20, [0, 7, 19])
    app.write(app.left, values)
    with running(app.graph("exactly_once", persistence=ks.Journal(batch=batch)), settings()):
        app.await_committed(20)
    assert app.cluster.values(app.target) == good(values)
    assert app.dead_letters == [(value,) for value in values if b"bad" in value]


KINDS = ["join in batches", "alts"]
LONG_KINDS = [
    ("exactly_once", "generator"),  # as a fork, below, it has several outputs in one step
    ("exactly_once", "batch"),
    ("exactly_once", "join"),
    *((each, "join in batches") for each in GUARANTEES[1:]),
]


@pytest.mark.parametrize(
    ("guarantee", "kind"),
    [
        *(("exactly_once", kind) for kind in KINDS),
        *(pytest.param(*each, marks=pytest.mark.long) for each in LONG_KINDS),
    ],
)
def test_refused_output_of_each_kind_of_processor_makes_a_dead_letter_of_its_step(
    new_app: Callable[[str], RefusingApp], settings: MakeSettings, guarantee: str, kind: str
) -> None:
    app = new_app("no key")
    of_one = make_function(app.result)
    graph = ks.Graph(app.name, guarantee=guarantee, errors=app.errors)
    left, right, target = (graph.topic(each) for each in (app.left, app.right, app.target))
    values, seconds = numbered(50, [0, 7, 25]), numbered(50, prefix="r-")
    expected: list[bytes] = good(values)
    dead: list[tuple[bytes, ...]] = [(value,) for value in values if b"bad" in value]
    ends: tuple[int, ...] = (50,)
    if kind == "batch":
        graph.map(left, to=target, id="step", batch=True)(lambda batch: [of_one(value) for value in batch])
    elif kind == "generator":

        def twice(value: bytes) -> Any:
            yield value + b"-first"
            yield of_one(value + b"-second")

        graph.map(left, to=target, id="step")(twice)
        expected = [value + end for value in good(values) for end in (b"-first", b"-second")]
        if guarantee == "at_most_once":  # the first output of a refused step is written; no function is called again
            expected += [value + b"-first" for value in values if b"bad" in value]
    elif kind.startswith("join"):
        if kind == "join":
            graph.join(left, right, by="order", to=target, id="step")(lambda a, b: of_one(a + b"+" + b))
        else:
            graph.join(left, right, by="order", to=target, id="step", batch=True)(
                lambda a, b: [of_one(x + b"+" + y) for x, y in zip(a, b, strict=True)]
            )
        pairs = list(zip(values, seconds, strict=True))
        expected = good([a + b"+" + b for a, b in pairs])
        dead = [(a, b) for a, b in pairs if b"bad" in a]
        ends = (50, 50)
    else:
        graph.alts(left, right, to=target, id="step")(of_one)
        ends = (50, 50)
    app.write(app.left, values)
    if len(ends) == 2:
        app.write(app.right, seconds)
    with running(graph, settings()):
        app.await_committed(*ends)
    found = app.cluster.values(app.target)
    if kind == "alts":
        for part in (good(values), seconds):
            assert_delivered(guarantee, [value for value in found if value in part], part)
        assert set(found) == {*good(values), *seconds}
    else:
        assert_delivered(guarantee, found, expected)
    assert_delivered(guarantee, app.dead_letters, dead)


@pytest.mark.long  # in the quick tier, an alts, and the forks of test_runner.py
@first_guarantee
def test_fork_with_one_refused_output_makes_a_dead_letter_of_the_step(
    new_app: Callable[[str], RefusingApp], settings: MakeSettings, guarantee: str
) -> None:
    app = new_app("no key")
    of_one = make_function(app.result)
    graph = ks.Graph(app.name, guarantee=guarantee, errors=app.errors)
    left, target, other = (graph.topic(each) for each in (app.left, app.target, app.other))
    graph.map(left, to=[target, other], id="step")(lambda value: {target: of_one(value), other: value})
    values = numbered(50, [0, 7, 25])
    app.write(app.left, values)
    with running(graph, settings()):
        app.await_committed(50)
    expected, others = good(values), app.cluster.values(app.other)
    assert_delivered(guarantee, app.cluster.values(app.target), expected)
    if guarantee == "exactly_once":
        assert others == expected, "a dead letter replaces all outputs of its step"
    elif guarantee == "at_least_once":  # the other output of a refused step may have been written
        assert [value for value in keep_last_copies(others) if value in expected] == expected
    else:
        assert_delivered(guarantee, others, values)
    assert_delivered(guarantee, app.dead_letters, [(value,) for value in values if b"bad" in value])


def run_until_failure(graph: ks.Graph, settings: Settings) -> BaseException | None:
    """Runs slot 0 until it ends by itself, and returns its exception."""
    slot = RunningSlot(graph, settings)
    try:
        slot.join()
    finally:
        slot.slot.stop()
    return slot.failure


@pytest.mark.parametrize(
    ("guarantee", "refusal"),
    [
        ("exactly_once", "no key"),
        *(pytest.param("exactly_once", each, marks=pytest.mark.long) for each in [*REFUSED][1:]),
        *(pytest.param(weaker, "no key", marks=pytest.mark.long) for weaker in GUARANTEES[1:]),
    ],
)
def test_refused_output_without_dead_letters_stops_the_worker_and_names_the_cause(
    new_app: Callable[[str], RefusingApp], settings: MakeSettings, guarantee: str, refusal: str
) -> None:
    app = new_app(refusal)
    values = numbered(300, [237])
    app.write(app.left, values)
    failure = run_until_failure(app.graph(guarantee, errors=None), settings())
    assert isinstance(failure, errors.RecordRefused), failure
    assert failure.exit_status == 2
    assert repr(app.target) in str(failure)
    assert app.reason in str(failure)
    reached = app.cluster.committed(app.group, app.left).get(0, 0)
    found = app.cluster.values(app.target)
    if guarantee == "exactly_once":
        assert found == values[:reached]
        assert reached <= 237
    elif guarantee == "at_least_once":
        assert set(values[:reached]) <= set(found) <= {*good(values)}
        assert reached <= 237
    else:
        assert Counter(found) == Counter(good(values[:reached]))
    corrected = ks.Graph(app.name, guarantee=guarantee)
    corrected.map(corrected.topic(app.left), to=corrected.topic(app.target), id="step")(lambda value: value)
    with running(corrected, settings()):
        app.await_committed(300)
    expected = [v for i, v in enumerate(values) if i != 237] if guarantee == "at_most_once" else values
    assert_delivered(guarantee, app.cluster.values(app.target), expected)


@first_guarantee
def test_refused_dead_letter_stops_the_worker_and_names_topic_and_cause(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    source, target, dead = f"{name}.in", f"{name}.out", f"{name}.errors"
    cluster.create(source)
    cluster.create(target, config={"cleanup.policy": "compact"})
    cluster.create(dead, config={"max.message.bytes": "100"})  # less than the least dead letter
    cluster.partitions(dead)  # returns once the broker knows it
    values = numbered(100, [40])
    keys = [None if b"bad" in value else value for value in values]
    cluster.write(source, values, keys=keys)
    graph = ks.Graph(name, guarantee=guarantee, errors=dead)
    graph.map(graph.topic(source), to=graph.topic(target), id="step")(lambda value: value)
    failure = run_until_failure(graph, settings())
    assert isinstance(failure, errors.RecordRefused), failure
    assert failure.exit_status == 2
    assert repr(dead) in str(failure)
    assert "max.message.bytes" in str(failure)
    assert cluster.read(dead) == []
    reached = cluster.committed(f"{name}.step", source).get(0, 0)
    found = cluster.values(target)
    if guarantee == "exactly_once":
        assert (found, reached <= 40) == (values[:reached], True)
    elif guarantee == "at_least_once":
        assert (set(values[:reached]) <= set(found), reached <= 40) == (True, True)
    else:
        assert Counter(found) == Counter(good(values[:reached]))
