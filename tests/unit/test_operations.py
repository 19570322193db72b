"""Dead letters: read back, marked, replayed; on a cluster in memory, which the replay dies at every request of."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    GraphError,
    OutcomeUnknown,
    Replaced,
    Retriable,
    RowRefused,
    TopicError,
    UserMistake,
)
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.hashes import pack_offset
from kstreams_py.graph.sink import Evidence, SinkConnection
from kstreams_py.kafka.contracts import ProducerMode, TopicInfo
from kstreams_py.operations.dead_letters.reader import LetterReader
from kstreams_py.operations.dead_letters.replay import ReplayOutcome, Summary, plan_replay, replay
from kstreams_py.operations.dead_letters.transactions import ReplayTransactions
from kstreams_py.processing.dead_letters.letters import Letter, LetterPlace, LetterSelection, group
from kstreams_py.records import HASH_HEADER, Message, Step, TopicPartition
from kstreams_py.sinks import SqliteTable
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import Isolation, MemoryCluster, MemoryRegistry, TestDriver
from kstreams_py.testing.request_faults import RequestFault
from tests.tables import each_case

EVERYTHING = LetterSelection()


class Crash(BaseException):
    """The process of a replay dies."""


@dataclass
class Shop:
    """A graph whose functions fail until `mended`, and its letters."""

    build: Callable[[Shop, ks.Graph], None]
    guarantee: str = "exactly_once"
    mended: bool = False
    calls: list[tuple[Any, str]] = field(default_factory=list)
    """The value and the delivery hash of each call of a function."""

    def __post_init__(self) -> None:
        self.registry = MemoryRegistry()
        self.graph = self.declare()
        self.driver = TestDriver(self.graph, registry=self.registry)
        self.cluster = self.driver.cluster
        self.settings = Settings()

    def declare(self) -> ks.Graph:
        graph = ks.Graph("shop", guarantee=self.guarantee, errors="dead")
        self.build(self, graph)
        return graph

    def call(self, value: Any, step: Step) -> None:
        """Notes a call; raises until the functions are mended."""
        self.calls.append((value, step.delivery_hash.hex()))
        if not self.mended:
            raise KeyError("price")

    @property
    def environment(self) -> Environment:
        clock = self.driver.clock
        return Environment(
            self.cluster, self.registry, self.settings, clock, clock.advance, open_sink=self.driver._open_sink
        )

    def fail(self, *values: str, topic: str = "orders", **options: Any) -> None:
        """Sends values, and lets the workers fail with them."""
        for value in values:
            self.driver.cluster.append(topic, value.encode(), value.encode(), **options)
        self.driver.run()

    def mend(self) -> None:
        self.mended = True
        self.calls.clear()

    def replay(
        self,
        selection: LetterSelection = EVERYTHING,
        graph: ks.Graph | None = None,
        *,
        unverified: bool = False,
        takes_discarded: bool = False,
    ) -> Replayed:
        act = partial(replay, unverified=unverified, takes_discarded=takes_discarded)
        return self._act(act, selection, graph)

    def plan(self, selection: LetterSelection = EVERYTHING) -> Replayed:
        return self._act(plan_replay, selection, None)

    def _act(self, act: Callable[..., Summary], selection: LetterSelection, graph: ks.Graph | None) -> Replayed:
        reports: list[tuple[str, str, str]] = []

        def report(letter: Letter, outcome: ReplayOutcome, why: str) -> None:
            reports.append((str(letter.place), str(outcome), why))

        summary = act(graph or self.graph, self.environment, selection, report)
        return Replayed(reports, {str(each): n for each, n in summary.counts.items() if n}, summary)

    def outputs(self, topic: str) -> list[tuple[bytes | None, str]]:
        """The committed values of a topic, each with its delivery hash, in order."""
        return [(m.value(), hash_of(m)) for m in self.cluster.records(topic)]

    def letters(self) -> list[Letter]:
        return list(LetterReader(self.graph, self.environment).letters())

    def waiting(self) -> list[LetterPlace]:
        """The letters that no mark says are replayed."""
        reader = LetterReader(self.graph, self.environment)
        marks = reader.marks()
        return [letter.place for letter in reader.letters() if letter.place not in marks]


@dataclass
class Replayed:
    """What a replay reported, and its counts."""

    reports: list[tuple[str, str, str]]
    counts: dict[str, int]
    summary: Summary


def hash_of(m: Message) -> str:
    return (dict(m.headers() or []).get(HASH_HEADER) or b"").hex()


def declare_map(shop: Shop, graph: ks.Graph) -> None:
    graph.topic("orders", partitions=1)
    graph.topic("priced")

    @graph.map("orders", to="priced")
    def price(value: bytes, step: Step) -> bytes:
        shop.call(value, step)
        return value.upper()


def declare_fork(shop: Shop, graph: ks.Graph) -> None:
    graph.topic("orders", partitions=1)
    graph.topic("priced")
    graph.topic("copied")

    @graph.map("orders", to=["priced", "copied"])
    def price(value: bytes, step: Step) -> dict[str, bytes]:
        shop.call(value, step)
        return {"priced": value.upper(), "copied": value}


def declare_generator(shop: Shop, graph: ks.Graph) -> None:
    graph.topic("orders", partitions=1)
    graph.topic("priced")

    @graph.map("orders", to="priced")
    def price(value: bytes, step: Step) -> Iterator[bytes]:
        yield value.upper()
        shop.call(value, step)
        yield value


def declare_batch(shop: Shop, graph: ks.Graph) -> None:
    graph.topic("orders", partitions=1)
    graph.topic("priced")

    @graph.map("orders", to="priced", batch=True)
    def price(values: list[bytes], steps: list[Step]) -> list[bytes]:
        for value, step in zip(values, steps, strict=True):
            shop.call(value, step)
        return [value.upper() for value in values]


def declare_join(shop: Shop, graph: ks.Graph) -> None:
    graph.topic("orders", partitions=1)
    graph.topic("rates", partitions=1)
    graph.topic("priced")

    @graph.join("orders", "rates", by="order", to="priced")
    def price(order: bytes, rate: bytes, step: Step) -> bytes:
        shop.call((order, rate), step)
        return order + b"*" + rate


def declare_alts(shop: Shop, graph: ks.Graph) -> None:
    graph.topic("orders", partitions=1)
    graph.topic("rates", partitions=1)
    graph.topic("priced")

    @graph.alts("orders", "rates", to="priced")
    def price(value: bytes, step: Step) -> bytes:
        shop.call(value, step)
        return step.topic.encode() + b":" + value


def declare_sink(shop: Shop, graph: ks.Graph) -> None:
    graph.topic("orders", partitions=1)

    @graph.sink("orders")
    def price(value: bytes, step: Step) -> None:
        shop.call(value, step)


KINDS: dict[str, tuple[Callable[[Shop, ks.Graph], None], dict[str, list[bytes]]]] = {
    "map": (declare_map, {"priced": [b"A", b"B"]}),
    "fork": (declare_fork, {"priced": [b"A", b"B"], "copied": [b"a", b"b"]}),
    "generator": (declare_generator, {"priced": [b"A", b"a", b"B", b"b"]}),
    "batch": (declare_batch, {"priced": [b"A", b"B"]}),
    "join": (declare_join, {"priced": [b"a*x", b"b*y"]}),
    "alts": (declare_alts, {"priced": [b"orders:a", b"orders:b", b"rates:x", b"rates:y"]}),
    "sink": (declare_sink, {}),
}
"""Each kind, and the committed values of its outputs after a replay."""


def failed_shop(kind: str, guarantee: str = "exactly_once") -> Shop:
    """A shop with the letters of two steps (of an alts, four), whose functions are mended now."""
    shop = Shop(KINDS[kind][0], guarantee)
    if "rates" in shop.graph.topics:
        for rate in (b"x", b"y"):
            shop.cluster.append("rates", rate)
    shop.fail("a", "b")
    shop.mend()
    return shop


def expected_hashes(shop: Shop) -> Counter[str]:
    return Counter(letter.delivery_hash.hex() for letter in shop.letters())


# Each kind, each guarantee.


@each_case("guarantee", Guarantee)
@each_case("kind", KINDS)
def test_replay_runs_each_letter_once_with_the_delivery_hash_of_its_first_delivery(kind: str, guarantee: str) -> None:
    shop = failed_shop(kind, guarantee)
    hashes, letters = expected_hashes(shop), len(shop.letters())
    done = shop.replay()
    assert (done.counts, done.summary.is_complete) == ({"replayed": letters}, True)
    assert Counter(digest for _, digest in shop.calls) == hashes
    for topic, values in KINDS[kind][1].items():
        found = shop.outputs(topic)
        assert sorted(value or b"" for value, _ in found) == sorted(values)
        assert {digest for _, digest in found} == set(hashes)
    assert shop.waiting() == []
    calls = len(shop.calls)
    again = shop.replay()
    assert (again.reports, again.counts, len(shop.calls)) == ([], {}, calls)


def test_replay_keeps_key_headers_and_timestamp_of_the_input() -> None:
    shop = Shop(declare_map)
    shop.fail("a", headers=[("trace", b"1")], timestamp=1_600_000_000_000)
    shop.mend()
    shop.replay()
    (m,) = shop.cluster.records("priced")
    digest = shop.letters()[0].delivery_hash
    assert (m.key(), m.headers(), m.timestamp()[1]) == (
        b"a",
        [("trace", b"1"), (HASH_HEADER, digest)],
        1_600_000_000_000,
    )


def test_replay_of_an_empty_value_is_that_of_any_other() -> None:
    shop = Shop(declare_map)
    shop.fail("", "a")
    shop.mend()
    assert shop.replay().counts == {"replayed": 2}
    assert [value for value, _ in shop.outputs("priced")] == [b"", b"A"]


def test_replay_writes_nothing_to_inputs_and_no_dead_letter() -> None:
    shop = failed_shop("join")
    before = {name: len(shop.cluster.records(name)) for name in ("orders", "rates", "dead")}
    shop.mended = False
    shop.replay()
    assert {name: len(shop.cluster.records(name)) for name in before} == before


def test_replay_of_a_join_gives_the_inputs_in_the_order_of_the_graph() -> None:
    shop = failed_shop("join")
    turned = ks.Graph("shop", errors="dead")
    for topic in ("orders", "rates", "priced"):
        turned.topic(topic)

    @turned.join("rates", "orders", by="order", to="priced", id="price")
    def price(rate: bytes, order: bytes) -> bytes:
        return b"rate " + rate + b" order " + order

    assert shop.replay(graph=turned).counts == {"replayed": 2}
    assert [value for value, _ in shop.outputs("priced")] == [b"rate x order a", b"rate y order b"]


# Crashes.


@contextmanager
def watched(shop: Shop, die_at: int | None = None, *, applied: bool = True) -> Iterator[list[str]]:
    """Yields the requests of one process, which dies at one of them; a dead process makes no other."""
    made: list[str] = []
    dead = False

    def watch(name: str, _: object) -> None:
        nonlocal dead
        if dead:
            raise Crash
        made.append(name)
        if len(made) == die_at:
            dead = True
            if not applied:
                raise Crash
            shop.cluster.faults.inject("", error=Crash(), applied=True)

    shop.cluster.faults.watch(watch)
    try:
        yield made
    finally:
        shop.cluster.faults.watch(lambda *_: None)


def requests_of_a_replay(kind: str) -> list[str]:
    shop = failed_shop(kind)
    with watched(shop) as made:
        shop.replay()
    return made


@pytest.mark.parametrize(
    ("kind", "applied"),
    [
        *(pytest.param(kind, True, id=f"{kind}-carried out") for kind in KINDS),
        # a request that is lost leaves what the one before it has left, which is carried out: quick for one kind
        *(
            pytest.param(kind, False, id=f"{kind}-lost", marks=[] if kind == "fork" else pytest.mark.long)
            for kind in KINDS
        ),
    ],
)
def test_replay_that_dies_at_any_request_sends_nothing_twice_and_loses_nothing(kind: str, applied: bool) -> None:
    made = requests_of_a_replay(kind)
    assert {"init_transactions", "produce", "commit_transaction", "read"} <= set(made)
    for number in range(1, len(made) + 1):
        shop = failed_shop(kind)
        with watched(shop, number, applied=applied), pytest.raises(Crash):
            shop.replay()
        shop.replay()
        assert shop.waiting() == [], (number, made[number - 1])
        for topic, values in KINDS[kind][1].items():
            found = sorted(value or b"" for value, _ in shop.outputs(topic))
            assert found == sorted(values), (number, made[number - 1])
        assert {digest for _, digest in shop.calls} == set(expected_hashes(shop))
        assert shop.replay().counts == {}


def test_mutation_of_a_replay_that_reads_no_marks_sends_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ReplayTransactions._read_marks

    def read_none(self: ReplayTransactions) -> None:
        read(self)
        self.marks = {}

    monkeypatch.setattr(ReplayTransactions, "_read_marks", read_none)
    with pytest.raises(AssertionError, match="'replayed': 2"):
        test_replay_that_dies_at_any_request_sends_nothing_twice_and_loses_nothing("fork", applied=True)


@each_case("error", [Retriable("away"), Abortable("failed"), OutcomeUnknown("no answer")])
@each_case("applied", [True, False])
@each_case("request_name", ["init_transactions", "produce", "add_partition", "commit_transaction"])
@each_case("nth", [1, 2])
def test_replay_whose_request_fails_goes_on_and_sends_once(
    request_name: str, nth: int, applied: bool, error: Exception
) -> None:
    if request_name == "commit_transaction" and (
        isinstance(error, Retriable) or (applied and type(error) is Abortable)
    ):
        error = OutcomeUnknown("no answer")  # a commit is never Retriable, nor carried out and Abortable
    shop = failed_shop("fork")
    shop.cluster.faults.inject(request_name, nth=nth, error=error, applied=applied)
    done = shop.replay()
    assert done.counts == {"replayed": 2}
    assert [value for value, _ in shop.outputs("priced")] == [b"A", b"B"]
    assert [value for value, _ in shop.outputs("copied")] == [b"a", b"b"]
    assert shop.waiting() == []


def test_late_request_of_a_replay_makes_a_new_producer_before_the_next_transaction() -> None:
    shop = Shop(declare_map)
    shop.fail(*(f"v{number:03}" for number in range(250)))
    shop.mend()
    shop.cluster.faults.inject("commit_transaction", nth=2, late=5.0)
    with watched(shop) as made:
        assert shop.replay().counts == {"replayed": 250}
    assert made.count("init_transactions") == 2
    assert [value for value, _ in shop.outputs("priced")] == [f"V{number:03}".encode() for number in range(250)]


def test_replay_that_dies_between_a_row_of_a_sink_and_its_mark_stores_the_row_once(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "shop.sqlite", "orders", ["value"])

    def declare(shop: Shop, graph: ks.Graph) -> None:
        graph.topic("orders", value=ks.String())

        @graph.sink("orders")
        def store(value: str, step: Step) -> None:
            shop.call(value, step)
            table.insert([(step.delivery_hash, value)])

    shop = Shop(declare)
    shop.fail("a", "b")
    shop.mend()
    shop.cluster.faults.inject("commit_transaction", nth=2, error=Crash(), applied=False)
    with pytest.raises(Crash):
        shop.replay()
    assert (len(list(table.rows())), len(shop.waiting())) == (2, 2)
    assert shop.replay().counts == {"replayed": 2}
    assert (sorted(row[1] for row in table.rows()), len(shop.calls)) == (["a", "b"], 4)


@dataclass(frozen=True)
class Table:
    """The declaration of a target; the rows go to one in memory."""

    evidence: Evidence
    columns: tuple[str, ...] = ("value",)

    def open(self, consumer: str) -> SinkConnection:
        raise AssertionError(consumer)


def storing_shop(evidence: Evidence) -> Shop:
    """A shop with a sink that returns rows, whose letters are there and whose function is mended now."""

    def declare(shop: Shop, graph: ks.Graph) -> None:
        graph.topic("orders", value=ks.String())

        @graph.sink("orders", to=Table(evidence))
        def store(value: str, step: Step) -> list[tuple[str]]:
            shop.call(value, step)
            return [(value,), (value.upper(),)]

    shop = Shop(declare)
    shop.fail("a", "b")
    shop.mend()
    return shop


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("request_name", ["connect_sink", "store", "commit_transaction"])
def test_replay_that_dies_around_rows_of_a_target_stores_each_once(request_name: str, applied: bool) -> None:
    shop = storing_shop(Evidence.HASH)
    assert shop.driver.rows("store") == []
    nth = 2 if request_name == "commit_transaction" else 1
    shop.cluster.faults.inject(request_name, nth=nth, error=Crash(), applied=applied)
    with pytest.raises(Crash):
        shop.replay()
    shop.replay()
    assert (shop.driver.rows("store"), shop.waiting()) == ([("a",), ("A",), ("b",), ("B",)], [])


def test_letter_whose_row_is_refused_stays_and_its_neighbours_are_replayed() -> None:
    shop = storing_shop(Evidence.HASH)
    for nth in (1, 2):  # both rows together, then those of the first letter
        shop.cluster.faults.inject("store", nth=nth, error=RowRefused("too long", 0), applied=False)
    replayed = shop.replay()
    assert replayed.counts == {"replayed": 1, "failed again": 1}
    assert [why for _, outcome, why in replayed.reports if outcome == "failed again"] == ["too long"]
    assert shop.driver.rows("store") == [("b",), ("B",)]


def test_letter_of_a_processor_that_stores_offsets_stays_with_the_remedy() -> None:
    shop = storing_shop(Evidence.OFFSETS)
    replayed = shop.replay()
    assert (replayed.counts, shop.driver.rows("store"), shop.calls) == ({"cannot be replayed": 2}, [], [])
    assert replayed.reports[0][2] == (
        f"its processor stores offsets with its rows in {Table(Evidence.OFFSETS)}, which prove nothing about a single "
        "step: send its record again by `kstreams tail orders --partition 0 --from 0 -n 1 | kstreams send orders`, "
        "then discard the dead letter (`kstreams dead-letters discard`); to the other readers of the topic it is a new "
        "record"
    )


# Two replays.


@pytest.mark.parametrize("place", ["function", "produce", "commit_transaction"])
def test_second_replay_fences_the_first_which_ends_and_nothing_is_doubled(place: str) -> None:
    shop = failed_shop("map")
    second: list[Replayed] = []

    def begin_second(name: str, _: object) -> None:
        # after the record by which the first replay begins
        if name == place and not second and shop.calls:
            second.append(Replayed([], {}, Summary()))
            second[0] = shop.replay()

    shop.cluster.faults.watch(begin_second)
    if place == "function":
        call = shop.call

        def noting(value: Any, step: Step) -> None:
            call(value, step)
            begin_second("function", None)

        shop.call = noting  # type: ignore[method-assign]
    with pytest.raises(Replaced, match="another replay or discard of graph 'shop' has begun"):
        shop.replay()
    assert second[0].counts == {"replayed": 2}
    assert [value for value, _ in shop.outputs("priced")] == [b"A", b"B"]
    assert shop.replay().counts == {}


@pytest.mark.parametrize("first_of_second", [0, 1, 3])
def test_replay_that_another_overtook_repeats_none_of_what_that_one_did(first_of_second: int) -> None:
    """The commit of the first is lost without an answer while the second runs and ends: nothing says `fenced`."""
    shop = Shop(declare_map)
    values = [f"v{number:03}" for number in range(150)]
    shop.fail(*values)
    shop.mend()
    letters = shop.letters()
    overtaken = [letters[first_of_second].place, letters[120].place]
    commits = 0

    def overtake(name: str, _: object) -> RequestFault | None:
        nonlocal commits
        commits += name == "commit_transaction"
        if name != "commit_transaction" or commits != 2:
            return None
        for place in overtaken:
            assert shop.replay(LetterSelection(partition=0, offset=place.offset)).counts == {"replayed": 1}
        return RequestFault(OutcomeUnknown("no answer"), applied=False, late=None)

    shop.cluster.faults.watch(overtake)
    shop.replay()
    assert Counter(value for value, _ in shop.outputs("priced")) == Counter(v.upper().encode() for v in values)
    assert shop.waiting() == []
    assert Counter(value for value, _ in shop.calls)[b"v120"] == 1


def test_replay_does_not_begin_while_a_hanging_transaction_hides_the_marks() -> None:
    shop = failed_shop("map")
    shop.replay()
    other = shop.cluster.producer(ProducerMode(transactional=True, acks=-1, may_repeat=True), "other")
    other.init_transactions()
    other.begin_transaction()
    other.write([("__ks.shop.replayed", b"", b"[]", 0, None, None, 0, None)])
    shop.settings = Settings(request_timeout_ms=2_000)
    with pytest.raises(BrokerUnavailable, match="a hanging transaction hides which dead letters are replayed"):
        shop.replay()
    assert [value for value, _ in shop.outputs("priced")] == [b"A", b"B"]


# Letters that stay.


def test_letter_whose_function_raises_again_stays_and_is_tried_once() -> None:
    shop = failed_shop("map")
    shop.mended = False
    (first, second) = shop.letters()
    done = shop.replay()
    assert (done.counts, done.summary.is_complete, len(shop.calls)) == ({"failed again": 2}, False, 2)
    assert done.reports == [
        (
            str(letter.place),
            "failed again",
            f"KeyError: 'price' (reading orders[0]@{at}, delivery {letter.delivery_hash.hex()})",
        )
        for at, letter in enumerate((first, second))
    ]
    assert (shop.waiting(), len(shop.letters())) == ([first.place, second.place], 2)
    shop.mend()
    assert shop.replay().counts == {"replayed": 2}


@each_case("then", ["dead_letter", "stop", "pause"])
@each_case("kind", KINDS)
def test_letter_of_a_processor_with_retry_that_raises_again_stays_and_is_tried_once(kind: str, then: str) -> None:
    shop = failed_shop(kind)
    for processor in shop.graph.processors:
        object.__setattr__(processor, "retry", ks.Retry(on=KeyError, then=then))
    shop.mended = False
    letters = len(shop.waiting())
    done = shop.replay()
    assert (done.counts, len(shop.waiting()), len(shop.calls)) == ({"failed again": letters}, letters, letters)
    shop.mend()
    assert (shop.replay().counts, shop.waiting()) == ({"replayed": letters}, [])


def test_letters_around_one_that_fails_again_are_replayed() -> None:
    shop = Shop(declare_map)
    shop.fail("a", "b", "c")
    shop.mend()
    call = shop.call

    def picky(value: Any, step: Step) -> None:
        call(value, step)
        if value == b"b":
            raise ValueError("still")

    shop.call = picky  # type: ignore[method-assign]
    done = shop.replay()
    assert (done.counts, [value for value, _ in shop.outputs("priced")]) == (
        {"replayed": 2, "failed again": 1},
        [b"A", b"C"],
    )
    assert shop.waiting() == [LetterPlace("dead", 0, shop.letters()[1].place.offset)]


def test_letter_whose_output_is_refused_stays_and_its_neighbours_are_replayed() -> None:
    shop = Shop(declare_map)
    shop.fail("a", "b", "c")
    shop.mend()
    large = ks.Graph("shop", errors="dead")
    large.topic("orders")
    large.topic("priced")

    @large.map("orders", to="priced")
    def price(value: bytes) -> bytes:
        return b"x" * 2_000_000 if value == b"b" else value

    done = shop.replay(graph=large)
    assert done.counts == {"replayed": 2, "failed again": 1}
    (why,) = [why for _, outcome, why in done.reports if outcome == "failed again"]
    assert re.match(r"a record \(2000\d+ bytes\) is larger than topic 'priced' takes", why)
    assert [value for value, _ in shop.outputs("priced")] == [b"a", b"c"]
    assert len(shop.waiting()) == 1


def test_letters_of_a_missing_processor_or_of_changed_inputs_stay_with_a_message() -> None:
    shop = failed_shop("map")
    gone = ks.Graph("shop", errors="dead")
    gone.topic("orders")
    gone.sink("orders", id="other")(print)
    message = "graph 'shop' no longer has processor 'price': declare it again"
    assert [why for *_, why in shop.replay(graph=gone).reports] == [message] * 2
    renamed = ks.Graph("shop", errors="dead")
    renamed.topic("orders2")
    renamed.sink("orders2", id="price")(print)
    message = "it read 'orders', and processor 'price' reads 'orders2' now: declare the inputs as they were"
    done = shop.replay(graph=renamed)
    assert ([why for *_, why in done.reports], done.counts) == ([message] * 2, {"cannot be replayed": 2})
    assert len(shop.waiting()) == 2


def test_step_of_at_most_once_whose_other_outputs_are_written_stays() -> None:
    shop = Shop(declare_fork, "at_most_once", mended=True)
    huge = "x" * 999_000
    shop.cluster.append("orders", huge.encode(), b"k" * 1_500)
    shop.driver.run()
    letters = shop.letters()
    assert {letter.error for letter in letters} == {"kstreams_py.errors.RecordTooLarge"}
    done = shop.replay()
    assert done.counts == {"cannot be replayed": len(letters)}
    assert done.reports[0][2].startswith(
        "a topic refused one output of its step, and the others are written already (at most once)"
    )


def test_function_that_raises_stop_ends_the_replay_after_what_is_done_is_committed() -> None:
    shop = Shop(declare_map)
    shop.fail("a", "b", "c")
    shop.mend()
    call = shop.call

    def stopping(value: Any, step: Step) -> None:
        call(value, step)
        if value == b"b":
            raise ks.Stop("enough")

    shop.call = stopping  # type: ignore[method-assign]
    done = shop.replay()
    place = shop.letters()[1].place
    assert (done.counts, done.summary.stopped) == ({"replayed": 1}, f"{place}: its function raised Stop: enough")
    assert [value for value, _ in shop.outputs("priced")] == [b"A"]


def test_exception_that_stops_a_worker_stops_the_replay_after_a_commit() -> None:
    shop = Shop(declare_map)
    shop.fail("a", "b")
    strict = ks.Graph("shop", errors="dead")
    strict.topic("orders")
    strict.topic("priced")

    @strict.map("orders", to="priced", stop_on=ConnectionError)
    def price(value: bytes) -> bytes:
        if value == b"b":
            raise ConnectionError("the shop is closed")
        return value

    with pytest.raises(ConnectionError, match="the shop is closed"):
        shop.replay(graph=strict)
    assert ([value for value, _ in shop.outputs("priced")], len(shop.waiting())) == ([b"a"], 1)


# Letters that were cut.


LARGE = b"v" * 999_950


def cut_shop() -> Shop:
    shop = Shop(declare_sink)
    shop.cluster.append("orders", LARGE, b"k")
    shop.driver.run()
    shop.mend()
    (letter,) = shop.letters()
    assert not letter.has_whole_inputs
    return shop


def test_letter_whose_traceback_alone_was_cut_is_replayed_from_the_letter() -> None:
    shop = Shop(declare_map)
    shop.cluster.append("orders", LARGE[:-450], b"k")
    shop.driver.run()
    shop.mend()
    (letter,) = shop.letters()
    assert (letter.cut.startswith("traceback: "), letter.has_whole_inputs) == (True, True)
    assert shop.replay().counts == {"replayed": 1}


def test_letter_that_was_cut_is_replayed_with_the_record_that_is_still_in_its_topic() -> None:
    shop = cut_shop()
    assert shop.replay().counts == {"replayed": 1}
    assert shop.calls == [(LARGE, shop.letters()[0].delivery_hash.hex())]


@pytest.mark.parametrize("how", ["deleted record", "deleted topic", "topic created again"])
def test_letter_that_was_cut_stays_if_its_record_is_gone(how: str) -> None:
    shop = cut_shop()
    if how == "deleted record":
        shop.cluster.append("orders", b"next")
        shop.cluster.truncate(TopicPartition("orders", 0), 1)
    else:
        shop.cluster.faults.delete_topic("orders")
    if how == "topic created again":
        shop.cluster.create_topics([("orders", 1, -1, {})])
        shop.cluster.append("orders", LARGE)
    done = shop.replay()
    assert (done.counts, shop.calls, len(shop.waiting())) == ({"cannot be replayed": 1}, [], 1)
    assert done.reports[0][2].startswith("it was cut to fit its topic (")
    assert done.reports[0][2].endswith(": send the record again by hand")


# Letters that differ from the records that they name.


@each_case("gone", ["deleted records", "deleted topic", "topic created again"])
@each_case("kind", ["map", "join"])
def test_letter_whose_inputs_are_gone_is_replayed_if_the_user_says_so(kind: str, gone: str) -> None:
    shop = failed_shop(kind)
    hashes = expected_hashes(shop)
    if gone == "deleted records":
        shop.cluster.truncate(TopicPartition("orders", 0), 2)
    else:
        shop.cluster.faults.delete_topic("orders")
    if gone == "topic created again":
        shop.cluster.create_topics([("orders", 1, -1, {})])
    why = "its inputs are no longer in their topics"
    if gone != "deleted records":
        why = "its delivery hash does not match its inputs' topics and offsets"
    stays = shop.replay()
    assert (stays.counts, shop.calls, {reason for *_, reason in stays.reports}) == (
        {"cannot be replayed": 2},
        [],
        {f"{why}, and nothing shows that a worker wrote it: --unverified trusts its content"},
    )
    assert shop.replay(unverified=True).counts == {"replayed": 2}
    assert Counter(digest for _, digest in shop.outputs("priced")) == hashes


def forge(shop: Shop, letter: Letter, **changes: Any) -> None:
    """Appends a dead letter as anyone may write it who may write to the topic."""
    forged = replace(letter, **changes)
    encode = bind(dead_letters(), shop.registry, "dead-value").serialize
    inputs = [
        {
            "topic": each.name,
            "partition": each.number,
            "offset": each.at,
            "timestamp": each.milliseconds,
            "key": each.own_key,
            "value": each.data,
            "headers": [{"name": name, "value": value} for name, value in each.pairs],
        }
        for each in forged.inputs
    ]
    content = {
        "processor": forged.processor,
        "delivery_hash": forged.delivery_hash,
        "exception_class": forged.error,
        "exception_message": forged.message,
        "traceback": forged.traceback,
        "inputs": inputs,
        "cut": forged.cut or None,
    }
    shop.cluster.append("dead", encode(content))


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "value": ({"data": b"1000000"}, "it differs from orders[0]@0 in its value, so no worker wrote it"),
    "no value": ({"data": None}, "it differs from orders[0]@0 in its value, so no worker wrote it"),
    "key": ({"own_key": b"another"}, "it differs from orders[0]@0 in its key, so no worker wrote it"),
    "headers": ({"pairs": (("a", b"b"),)}, "it differs from orders[0]@0 in its headers, so no worker wrote it"),
    "timestamp": ({"milliseconds": 1}, "it differs from orders[0]@0 in its timestamp, so no worker wrote it"),
    "offset": ({"at": 1}, "its delivery hash is of another version"),
    "partition": ({"number": 1}, "its delivery hash does not match its inputs' topics and offsets"),
}


@each_case("forged", FORGED)
def test_forged_letter_stays_and_the_record_that_it_names_is_replayed(forged: str) -> None:
    changes, why = FORGED[forged]
    shop = failed_shop("map")
    (letter, _) = shop.letters()
    shop.cluster.truncate(TopicPartition("dead", 0), 1)  # the real one is not read first
    forge(shop, letter, inputs=(replace(letter.inputs[0], **changes),))
    for unverified in (False, "offset" not in why):
        done = shop.replay(unverified=unverified)
        stays = [reason for _, outcome, reason in done.reports if outcome == "cannot be replayed"]
        assert len(stays) == 1
        assert stays[0].startswith(why)
    assert shop.outputs("priced") == [(b"B", hash_of(shop.cluster.records("priced")[0]))]
    forge(shop, letter)
    assert shop.replay().counts == {"cannot be replayed": 1, "replayed": 2}, "it stands for no letter of its delivery"
    assert [value for value, _ in shop.outputs("priced")] == [b"B", b"A"]


@each_case("inputs", [(), (-1, 0), (0, -1)])
def test_forged_letter_that_names_no_record_is_no_letter(inputs: tuple[int, ...]) -> None:
    shop = failed_shop("map")
    (letter, _) = shop.letters()
    named = (replace(letter.inputs[0], number=inputs[0], at=inputs[1]),) if inputs else ()
    forge(shop, letter, inputs=named)
    done = shop.replay()
    assert (done.counts, done.summary.unreadable) == (
        {"replayed": 2},
        ["dead[0]@3 is not a dead letter: it names no record that was read"],
    )


def test_forged_letter_of_more_records_than_its_processor_reads_at_once_stays() -> None:
    shop = failed_shop("map")
    (letter, _) = shop.letters()
    shop.cluster.truncate(TopicPartition("dead", 0), 2)
    forge(shop, letter, inputs=letter.inputs * 2)
    done = shop.replay(unverified=True)
    assert (done.counts, done.reports[0][2]) == (
        {"cannot be replayed": 1},
        "it read 'orders', 'orders', and processor 'price' reads 'orders' now: declare the inputs as they were",
    )


def test_topics_of_letters_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = failed_shop("map")
    shop.cluster.faults.delete_topic("orders")
    asked: list[list[str]] = []
    topics = MemoryCluster.topics

    def asking(cluster: MemoryCluster, names: Any) -> Any:
        asked.append(sorted(names))
        return topics(cluster, names)

    monkeypatch.setattr(MemoryCluster, "topics", asking)
    assert shop.plan().counts == {"cannot be replayed": 2}
    assert asked.count(["orders"]) == 1


def test_letter_with_the_hash_of_another_record_stays() -> None:
    shop = failed_shop("map")
    (first, second) = shop.letters()
    forge(shop, first, delivery_hash=first.delivery_hash[:8] + second.delivery_hash[8:], inputs=second.inputs)
    forge(shop, first, delivery_hash=b"\0" * 8 + first.delivery_hash[8:])
    done = shop.replay()
    assert done.counts == {"replayed": 3, "cannot be replayed": 1}
    assert [value for value, _ in shop.outputs("priced")] == [b"A", b"B"]


@each_case("guarantee", Guarantee)
def test_letter_of_a_record_that_the_workers_have_not_read_stays_until_they_have(guarantee: str) -> None:
    shop = failed_shop("map", guarantee)
    (_, letter) = shop.letters()
    shop.cluster.append("orders", b"c", b"c")
    (record,) = shop.cluster.read(TopicPartition("orders", 0), 2)
    early = replace(letter.inputs[0], at=2, data=b"c", own_key=b"c", milliseconds=record.timestamp()[1])
    forge(shop, letter, delivery_hash=letter.delivery_hash[:8] + pack_offset(2), inputs=(early,))
    stays = shop.replay()
    assert (stays.counts, [why for *_, why in stays.reports if why]) == (
        {"replayed": 2, "cannot be replayed": 1},
        ["group 'shop.price' is at orders[0]@2, and its workers will read orders[0]@2: start them first"],
    )


def test_letter_of_a_group_without_committed_offsets_stays() -> None:
    shop = failed_shop("map")
    shop.cluster.faults.forget_positions("shop.price")
    done = shop.replay()
    assert (done.counts, done.reports[0][2]) == (
        {"cannot be replayed": 2},
        (
            "group 'shop.price' has committed no offset of orders[0], and its workers will read orders[0]@0: start "
            "them first"
        ),
    )


def test_inputs_are_read_ahead_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(declare_map)
    shop.fail(*map(str, range(300)))
    shop.mend()
    asked: list[int | None] = []
    read = MemoryCluster.read

    def reading(cluster: MemoryCluster, partition: TopicPartition, start: int = 0, limit: int | None = None) -> Any:
        if partition.topic == "orders":
            asked.append(limit)
        return read(cluster, partition, start, limit)

    monkeypatch.setattr(MemoryCluster, "read", reading)
    assert shop.replay().counts == {"replayed": 300}
    assert asked == [1, 2, 4, 8, 16, 32, 64, 128, 128]


# Which letters.


def test_letters_of_one_delivery_are_replayed_once_and_marked_together() -> None:
    shop = Shop(declare_map, "at_least_once")
    shop.fail("a")
    (m,) = shop.cluster.records("dead")
    shop.cluster.append("dead", m.value(), m.key(), m.headers())  # what a crash before the offset commit leaves
    shop.mend()
    planned = shop.plan(LetterSelection(partition=0, offset=1))
    done = shop.replay(LetterSelection(partition=0, offset=1))
    assert (planned.counts, done.counts, len(shop.calls), shop.waiting()) == ({"replayed": 2}, {"replayed": 2}, 1, [])


def test_letter_of_a_delivery_that_failed_again_after_its_replay_waits() -> None:
    shop = failed_shop("map")
    shop.replay()
    (m, _) = shop.cluster.records("dead")
    shop.cluster.append("dead", m.value(), m.key(), m.headers())  # the group's offsets were set back
    assert len(shop.waiting()) == 1
    assert shop.replay().counts == {"replayed": 1}
    assert [value for value, _ in shop.outputs("priced")] == [b"A", b"B", b"A"]


def test_replay_asks_no_cluster_for_topics_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has no right to the name of a topic is refused, though the topic is not there."""
    shop = failed_shop("map")
    shop.mend()
    graph, asked, find = shop.declare(), set[str](), shop.cluster.topics
    graph.map("orders", to=graph.topic("far", cluster="west"), errors=None, id="far")(lambda value: value)
    shop.cluster.named("west").create_topics([("far", 1, -1, {})])

    def topics(names: Collection[str]) -> dict[str, TopicInfo]:
        asked.update(names)
        return find(names)

    monkeypatch.setattr(shop.cluster, "topics", topics)
    assert shop.replay(graph=graph).counts == {"replayed": 2}
    assert "far" not in asked


def test_marks_of_a_topic_that_was_created_again_do_not_count() -> None:
    shop = failed_shop("map")
    shop.replay()
    content = [(m.value(), m.key(), m.headers()) for m in shop.cluster.records("dead")]
    shop.cluster.faults.delete_topic("dead")
    shop.cluster.create_topics([("dead", 1, -1, {})])
    for each in content:
        shop.cluster.append("dead", *each)
    assert len(shop.waiting()) == 2


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (EVERYTHING, ["a", "b", "c"]),
        (LetterSelection(error="KeyError"), ["a", "c"]),
        (LetterSelection(error="builtins.KeyError"), ["a", "c"]),
        (LetterSelection(error="Key"), []),
        (LetterSelection(processor="price"), ["a", "b"]),
        (LetterSelection(processor="price", error="KeyError"), ["a"]),
        (LetterSelection(since=1_600_000_002_000), ["b", "c"]),
        (LetterSelection(partition=0, offset=2), ["b"]),
        (LetterSelection(topic="dead", partition=0), ["a", "b", "c"]),
        (LetterSelection(partition=1), []),
    ],
)
def test_filters_choose_letters_and_combine(selection: LetterSelection, chosen: list[str]) -> None:
    values: list[str] = []
    graph, registry = ks.Graph("shop", errors="dead"), MemoryRegistry()
    graph.topic("orders", value=ks.String())
    graph.topic("returns", value=ks.String())
    mended = False

    def fail(value: str) -> None:
        if mended:
            values.append(value)
        else:
            raise (ValueError if value == "b" else KeyError)(value)

    graph.sink("orders", id="price")(fail)
    graph.sink("returns", id="refund")(fail)
    with TestDriver(graph, registry=registry) as driver:
        for second, (topic, value) in enumerate([("orders", "a"), ("orders", "b"), ("returns", "c")], 1):
            driver.send(topic, value, timestamp=1_600_000_000_000 + second * 1000)
            driver.run()
        mended = True
        environment = Environment(driver.cluster, registry, Settings(), driver.clock, driver.clock.advance)
        planned: list[Letter] = []
        plan_replay(graph, environment, selection, lambda letter, *_: planned.append(letter))
        assert values == []
        replay(graph, environment, selection, lambda *_: None)
    assert values == chosen
    assert [(each.inputs[0].data or b"").decode() for each in planned] == chosen


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (LetterSelection(processor="prize"), "graph 'shop' has no processor 'prize': it has price"),
        (LetterSelection(topic="deaf"), "topic 'deaf' has no dead letters of graph 'shop': they are in dead"),
        (
            LetterSelection(partition=0, offset=99),
            "no dead letter of graph 'shop' at partition 0, offset 99 fits: `kstreams dead-letters show` prints places",
        ),
    ],
)
def test_selection_of_what_does_not_exist_is_refused(selection: LetterSelection, message: str) -> None:
    shop = failed_shop("map")
    for act in (shop.replay, shop.plan):
        with pytest.raises(UserMistake) as raised:
            act(selection)
        assert str(raised.value) == message
    assert (shop.calls, len(shop.waiting())) == ([], 2)


def test_dry_run_runs_and_writes_nothing_and_names_what_cannot_be_replayed() -> None:
    shop = failed_shop("map")
    with watched(shop) as made:
        planned = shop.plan()
    assert planned.reports == [(str(letter.place), "replayed", "") for letter in shop.letters()]
    assert (shop.calls, set(made) <= {"topics", "ends", "read", "group_offsets"}) == ([], True)
    assert shop.cluster.topics(["__ks.shop.replayed"]) == {}


def test_records_that_are_no_dead_letters_and_letters_of_other_graphs_are_left_alone() -> None:
    shop = failed_shop("map")
    shop.cluster.append("dead", b"no letter")
    shop.cluster.append("dead", None, b"k")
    serde = shop.graph.topics["dead"].value.bind(shop.registry, "dead-value")  # type: ignore[attr-defined]
    content = serde.deserialize(shop.cluster.records("dead")[0].value())
    for foreign in ("shop.eu.price", "shopping.price"):
        shop.cluster.append("dead", serde.serialize(content | {"processor": foreign}))
    done = shop.replay()
    assert done.counts == {"replayed": 2}
    starts = [why.partition(":")[0] for why in done.summary.unreadable]
    assert starts == ["dead[0]@3 is not a dead letter", "dead[0]@4 is a tombstone, not a dead letter"]


def test_of_many_records_that_are_no_letters_the_first_are_named_the_rest_counted() -> None:
    shop = failed_shop("map")
    for _ in range(25):
        shop.cluster.append("dead", b"no letter")
    unreadable = shop.replay().summary.unreadable
    assert (len(unreadable), unreadable[-1]) == (21, "5 more records")


def test_graph_without_dead_letters_and_a_missing_topic_are_refused() -> None:
    shop = failed_shop("map")
    bare = ks.Graph("bare")
    bare.topic("orders")
    bare.sink("orders", id="price")(print)
    with pytest.raises(GraphError, match="graph 'bare' has no topic for dead letters"):
        shop.replay(graph=bare)
    shop.cluster.faults.delete_topic("dead")
    with pytest.raises(TopicError, match="missing topics: dead"):
        shop.replay()


def test_many_letters_are_read_in_pages_and_committed_in_several_transactions() -> None:
    shop = Shop(declare_map)
    values = [f"v{number:04}" for number in range(450)]
    shop.fail(*values)
    shop.mend()
    with watched(shop) as made:
        assert shop.replay().counts == {"replayed": 450}
    assert made.count("commit_transaction") == 1 + 5
    assert [value for value, _ in shop.outputs("priced")] == [value.upper().encode() for value in values]


def test_replay_leaves_no_output_open_or_aborted_when_it_ends() -> None:
    shop = failed_shop("map")
    shop.replay()
    uncommitted = shop.cluster.records("priced", Isolation.UNCOMMITTED)
    assert [m.value() for m in uncommitted] == [b"A", b"B"]


def test_marks_of_letters_that_are_deleted_are_deleted_by_the_next_replay() -> None:
    shop = failed_shop("map")
    shop.replay()
    first, second = shop.letters()
    shop.cluster.truncate(TopicPartition("dead", 0), second.place.offset)
    with watched(shop) as made:
        assert shop.replay().counts == {}
    records = shop.cluster.records("__ks.shop.replayed")
    keys = [json.loads(m.key() or b"") for m in records if m.value() is None]
    assert ([key[2:] for key in keys], made.count("commit_transaction")) == ([[0, first.place.offset]], 2)
    with watched(shop) as made:
        assert shop.replay().counts == {}
    assert (made.count("commit_transaction"), shop.waiting()) == (1, [])


# Counts.


def test_groups_count_waiting_and_replayed_letters_with_times_and_an_example() -> None:
    shop = Shop(declare_map)
    for second, value in enumerate("abc"):
        shop.fail(value, timestamp=1_600_000_000_000 + second * 1000)
    shop.mend()
    shop.replay(LetterSelection(partition=0, offset=shop.letters()[2].place.offset))
    marks = LetterReader(shop.graph, shop.environment).marks()
    letters = shop.letters()
    groups = group((letter, marks.get(letter.place)) for letter in letters)
    ((key, found),) = groups.items()
    assert key == ("shop.price", "builtins.KeyError")
    assert (found.waiting, found.replayed, found.first, found.last) == (2, 1, 1_600_000_000_000, 1_600_000_002_000)
    assert found.example == letters[1]


def test_marks_name_topic_id_place_and_delivery() -> None:
    shop = failed_shop("map")
    shop.replay()
    topic_id = shop.cluster.topics(["dead"])["dead"].topic_id
    marks = [
        (json.loads(m.key() or b""), json.loads(m.value() or b"{}"))
        for m in shop.cluster.records("__ks.shop.replayed")
        if m.key() != b'"begun"'
    ]
    assert marks == [
        (
            ["dead", topic_id, 0, letter.place.offset],
            {"processor": "shop.price", "delivery_hash": letter.delivery_hash.hex()},
        )
        for letter in shop.letters()
    ]
