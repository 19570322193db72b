"""Outputs that a topic always refuses: dead letters in their place, and everything else is delivered as guaranteed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings, errors
from tests.system.harness import Cluster, RunningSlot, running
from tests.system.test_errors import GUARANTEES, letter

MakeSettings = Callable[..., Settings]
DAY_MS = 86_400_000


def no_key(value: bytes) -> ks.Out:
    return ks.Out(value, key=None)


def of_1970(value: bytes) -> ks.Out:
    return ks.Out(value, timestamp=1)


def of_next_week(value: bytes) -> ks.Out:
    return ks.Out(value, timestamp=int(time.time() * 1000) + 7 * DAY_MS)


def large(value: bytes) -> ks.Out:
    return ks.Out(value + b"x" * 5_000)


Bad = Callable[[bytes], ks.Out]
REFUSED: dict[str, tuple[dict[str, str], Bad, str]] = {
    "no key": ({"cleanup_policy": "compact"}, no_key, "INVALID_RECORD"),
    "too old": ({"message_timestamp_before_max_ms": str(DAY_MS)}, of_1970, "INVALID_"),
    "too new": ({"message_timestamp_after_max_ms": str(DAY_MS)}, of_next_week, "INVALID_"),
    "too large": ({"max_message_bytes": "2000"}, large, "max.message.bytes"),
}
"""Settings of the output topic, a result that it refuses, a word of the reason."""

each_refusal = pytest.mark.parametrize("refusal", REFUSED)
each_guarantee = pytest.mark.parametrize("guarantee", GUARANTEES)


def numbered(count: int, bad: Collection[int] = (), prefix: str = "") -> list[bytes]:
    return [f"{prefix}{'bad' if i in bad else ''}{i}".encode() for i in range(count)]


def good(values: Sequence[bytes]) -> list[bytes]:
    return [value for value in values if b"bad" not in value]


def function_of(result: Bad) -> Callable[[bytes], bytes | ks.Out]:
    return lambda value: result(value) if b"bad" in value else value


def refused_letters(cluster: Cluster, topic: str, reason: str) -> list[tuple[bytes, ...]]:
    """Of each dead letter the values that were read; all of them tell of the refusal."""
    found = [letter(m) for m in cluster.read(topic)]
    told = [each["exception_message"] for each in found if reason not in each["exception_message"]]
    assert told == []
    kinds = {each["exception_class"].rpartition(".")[2] for each in found}
    assert kinds <= {"RecordTooLarge" if reason == "max.message.bytes" else "RecordRefused"}
    return [tuple(read["value"] for read in each["inputs"]) for each in found]


def last_copies(values: Sequence[Any]) -> list[Any]:
    """Each value once, where its last copy is."""
    return list(dict.fromkeys(values[::-1]))[::-1]


def assert_delivered(guarantee: str, found: list[Any], expected: list[Any]) -> None:
    """Exactly once: equal. At least once: all there, the last copies in order. At most once: each once."""
    if guarantee == "exactly_once":
        assert found == expected
    elif guarantee == "at_least_once":
        assert last_copies(found) == expected, found
    else:
        assert Counter(map(repr, found)) == Counter(map(repr, expected))


class Refusing:
    """Inputs, an output that refuses, another that takes everything, and dead letters."""

    def __init__(self, cluster: Cluster, name: str, refusal: str) -> None:
        config, self.result, self.reason = REFUSED[refusal]
        self.cluster, self.name = cluster, name
        self.left, self.right, self.target, self.other, self.errors = (
            f"{name}.{end}" for end in ("left", "right", "out", "other", "errors")
        )
        self.group = f"{name}.step"
        cluster.create(self.left, self.right, self.other, self.errors)
        cluster.create(self.target, **config)
        cluster.partitions(self.target)  # the broker knows it

    def write(self, topic: str, values: Sequence[bytes]) -> None:
        self.cluster.write(topic, values, keys=[b"k-" + value for value in values])

    def graph(self, guarantee: str, **options: Any) -> ks.Graph:
        graph = ks.Graph(self.name, guarantee=guarantee, errors=self.errors)
        graph.map(graph.topic(self.left), to=graph.topic(self.target), id="step", **options)(function_of(self.result))
        return graph

    def await_positions(self, left: int, right: int | None = None) -> None:
        self.cluster.await_committed(self.group, self.left, {0: left})
        if right is not None:
            self.cluster.await_committed(self.group, self.right, {0: right})

    @property
    def letters(self) -> list[tuple[bytes, ...]]:
        return refused_letters(self.cluster, self.errors, self.reason)


@pytest.fixture
def refusing(cluster: Cluster, name: str) -> Callable[[str], Refusing]:
    return lambda refusal: Refusing(cluster, name, refusal)


@each_guarantee
@each_refusal
def test_refused_outputs_are_dead_letters_and_all_others_are_delivered(
    refusing: Callable[[str], Refusing], settings: MakeSettings, guarantee: str, refusal: str
) -> None:
    """One among hundreds; then several, the first and the last among them."""
    place = refusing(refusal)
    values, later = numbered(400, [237]), numbered(100, [0, 60, 99], "later-")
    place.write(place.left, values)
    with running(place.graph(guarantee), settings()):
        place.await_positions(400)
        place.write(place.left, later)
        place.await_positions(500)
    assert_delivered(guarantee, place.cluster.values(place.target), good([*values, *later]))
    assert_delivered(guarantee, place.letters, [(value,) for value in [*values, *later] if b"bad" in value])


KINDS = ["batch", "generator", "join", "join in batches", "alts"]


@pytest.mark.parametrize(
    ("guarantee", "kind"),
    [*(("exactly_once", kind) for kind in KINDS), *((weaker, "join in batches") for weaker in GUARANTEES[1:])],
)
def test_every_kind_of_processor_finds_the_step_of_a_refused_output(
    refusing: Callable[[str], Refusing], settings: MakeSettings, guarantee: str, kind: str
) -> None:
    place = refusing("no key")
    of_one = function_of(place.result)
    graph = ks.Graph(place.name, guarantee=guarantee, errors=place.errors)
    left, right, target = map(graph.topic, (place.left, place.right, place.target))
    values, seconds = numbered(300, [0, 7, 150]), numbered(300, prefix="r-")
    expected: list[bytes] = good(values)
    buried: list[tuple[bytes, ...]] = [(value,) for value in values if b"bad" in value]
    ends: tuple[int, ...] = (300,)
    if kind == "batch":
        graph.map(left, to=target, id="step", batch=True)(lambda batch: [of_one(value) for value in batch])
    elif kind == "generator":

        def twice(value: bytes) -> Any:
            yield value + b"-first"
            yield of_one(value + b"-second")

        graph.map(left, to=target, id="step")(twice)
        expected = [value + end for value in good(values) for end in (b"-first", b"-second")]
        if guarantee == "at_most_once":  # what was not refused is there, and nothing is called again
            expected += [value + b"-first" for value in values if b"bad" in value]
    elif kind.startswith("join"):
        if kind == "join":
            graph.join(left, right, to=target, id="step")(lambda a, b: of_one(a + b"+" + b))
        else:
            graph.join(left, right, to=target, id="step", batch=True)(
                lambda a, b: [of_one(x + b"+" + y) for x, y in zip(a, b, strict=True)]
            )
        pairs = list(zip(values, seconds, strict=True))
        expected = good([a + b"+" + b for a, b in pairs])
        buried = [(a, b) for a, b in pairs if b"bad" in a]
        ends = (300, 300)
    else:
        graph.alts(left, right, to=target, id="step")(of_one)
        ends = (300, 300)
    place.write(place.left, values)
    if len(ends) == 2:
        place.write(place.right, seconds)
    with running(graph, settings()):
        place.await_positions(*ends)
    found = place.cluster.values(place.target)
    if kind == "alts":
        for part in (good(values), seconds):
            assert_delivered(guarantee, [value for value in found if value in part], part)
        assert set(found) == {*good(values), *seconds}
    else:
        assert_delivered(guarantee, found, expected)
    assert_delivered(guarantee, place.letters, buried)


@each_guarantee
def test_fork_of_which_one_output_is_refused(
    refusing: Callable[[str], Refusing], settings: MakeSettings, guarantee: str
) -> None:
    place = refusing("no key")
    of_one = function_of(place.result)
    graph = ks.Graph(place.name, guarantee=guarantee, errors=place.errors)
    left, target, other = map(graph.topic, (place.left, place.target, place.other))
    graph.map(left, to=[target, other], id="step")(lambda value: {target: of_one(value), other: value})
    values = numbered(300, [0, 7, 150])
    place.write(place.left, values)
    with running(graph, settings()):
        place.await_positions(300)
    expected, beside = good(values), place.cluster.values(place.other)
    assert_delivered(guarantee, place.cluster.values(place.target), expected)
    if guarantee == "exactly_once":
        assert beside == expected, "a step is a dead letter as a whole"
    elif guarantee == "at_least_once":  # beside a refused output, the other may have been written
        assert [value for value in last_copies(beside) if value in expected] == expected
    else:
        assert_delivered(guarantee, beside, values)
    assert_delivered(guarantee, place.letters, [(value,) for value in values if b"bad" in value])


def failure_of(graph: ks.Graph, settings: Settings) -> BaseException | None:
    """How slot 0 ends by itself."""
    slot = RunningSlot(graph, settings)
    try:
        slot.join()
    finally:
        slot.slot.stop()
    return slot.failure


@pytest.mark.parametrize(
    ("guarantee", "refusal"),
    [*(("exactly_once", refusal) for refusal in REFUSED), *((weaker, "no key") for weaker in GUARANTEES[1:])],
)
def test_without_dead_letters_the_worker_ends_with_topic_and_cause_and_nothing_is_lost(
    refusing: Callable[[str], Refusing], settings: MakeSettings, guarantee: str, refusal: str
) -> None:
    place = refusing(refusal)
    values = numbered(300, [237])
    place.write(place.left, values)
    failure = failure_of(place.graph(guarantee, errors=None), settings())
    assert isinstance(failure, errors.RecordRefused), failure
    assert failure.exit_status == 2
    assert repr(place.target) in str(failure)
    assert place.reason in str(failure)
    reached = place.cluster.committed(place.group, place.left).get(0, 0)
    found = place.cluster.values(place.target)
    if guarantee == "exactly_once":
        assert found == values[:reached]
        assert reached <= 237
    elif guarantee == "at_least_once":
        assert set(values[:reached]) <= set(found) <= {*good(values)}
        assert reached <= 237
    else:
        assert Counter(found) == Counter(good(values[:reached]))
    corrected = ks.Graph(place.name, guarantee=guarantee)
    corrected.map(corrected.topic(place.left), to=corrected.topic(place.target), id="step")(lambda value: value)
    with running(corrected, settings()):
        place.await_positions(300)
    expected = [v for i, v in enumerate(values) if i != 237] if guarantee == "at_most_once" else values
    assert_delivered(guarantee, place.cluster.values(place.target), expected)


@each_guarantee
def test_refused_dead_letter_ends_the_worker_with_its_topic_and_cause(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    source, target, dead = f"{name}.in", f"{name}.out", f"{name}.errors"
    cluster.create(source)
    cluster.create(target, dead, cleanup_policy="compact")
    cluster.partitions(dead)  # the broker knows it
    values = numbered(100, [40])
    keys = [None if b"bad" in value else value for value in values]  # a dead letter has its input's key
    cluster.write(source, values, keys=keys)
    graph = ks.Graph(name, guarantee=guarantee, errors=dead)
    graph.map(graph.topic(source), to=graph.topic(target), id="step")(lambda value: value)
    failure = failure_of(graph, settings())
    assert isinstance(failure, errors.RecordRefused), failure
    assert failure.exit_status == 2
    assert repr(dead) in str(failure)
    assert "INVALID_RECORD" in str(failure)
    assert cluster.read(dead) == []
    reached = cluster.committed(f"{name}.step", source).get(0, 0)
    found = cluster.values(target)
    if guarantee == "exactly_once":
        assert (found, reached <= 40) == (values[:reached], True)
    elif guarantee == "at_least_once":
        assert (set(values[:reached]) <= set(found), reached <= 40) == (True, True)
    else:
        assert Counter(found) == Counter(good(values[:reached]))
