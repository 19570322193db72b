"""A graph of map, fork, join and alts whose workers are stopped, killed and frozen; an oracle computes each output.

One recorded run per guarantee shows that each partition of each output has the outputs of its inputs, in their order,
with their keys and delivery hashes, and that each step that raises has one dead letter. A fault costs nothing under
exactly_once, and elsewhere one run of consecutive outputs, repeated or lost. Kinds of processor, calls that overlap and
chains of processors are in the same run. State, targets and journals are in three_brokers/, a zombie of the weaker
guarantees in test_membership.py.
"""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import Settings
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from kstreams_py.testing import Expected, Kind, explain
from tests.clusters import open_cluster
from tests.system.app import SHORT, MakeSettings, decode_dead_letter
from tests.system.harness import WorkerProcess, wait_until
from tests.system.promises import assert_kept
from tests.system.recorder import Reader, Record, Recorder

PARTITIONS = 4

INPUTS = ("orders", "payments", "refunds")
OUTPUTS = ("priced", "even", "odd", "paid", "booked")

GRAPH = """
import asyncio
import random
import time

import kstreams_py as ks

graph = ks.Graph({name!r}, guarantee={guarantee!r}, errors="{name}.errors")
orders, payments, refunds, priced, even, odd, paid, booked = [
    graph.topic(f"{name}.{{topic}}")
    for topic in "orders payments refunds priced even odd paid booked".split()
]

@graph.map(orders, to=priced{key})
{a}def price(value):
    {wait}
    number = int(value.split(b"-")[1])
    if number % 50 == 7:
        raise ValueError("no price")
    return b"%s=%d" % (value, 3 * number)

@graph.map(priced, to=[even, odd]{none})
def split(value):
    {block}
    total = int(value.split(b"=")[1])
    if total % 5 == 0:
        return {{even: value, odd: value}}
    return {{odd if total % 2 else even: value}}

@graph.join(even, payments, by="order", to=paid{none})
{a}def pay(order, payment):
    {wait}
    return order + b" by " + payment

@graph.alts(odd, refunds, to=booked{key})
{a}def book(value):
    {wait}
    return b"booked " + value
"""

ONE_BY_ONE = {"key": "", "none": "", "a": "", "wait": "", "block": ""}
"""What the graph has in its places if its functions are called one after the other."""


def overlapping(guarantee: Guarantee) -> dict[str, str]:
    """The same for calls that overlap: of async functions, and of a plain one in threads; each takes a while."""
    is_ordered = guarantee is Guarantee.AT_MOST_ONCE
    orders = {order: f', concurrency=16, order="{"partition" if is_ordered else order}"' for order in ("key", "none")}
    wait = "await asyncio.sleep(random.random() / 50)"
    return {**orders, "a": "async ", "wait": wait, "block": "time.sleep(random.random() / 50)"}


Copy = tuple[bytes, bytes | None, bytes]
"""Value, key and delivery hash of an output."""


def parse_number(order: bytes) -> int:
    return int(order.split(b"-")[1].split(b"=")[0])


class Oracle:
    """Computes the expected outputs of all committed inputs, independently of the graph's functions."""

    def __init__(self, name: str, topics: Mapping[str, Sequence[Any]], topic_ids: Mapping[str, str]) -> None:
        self.name = name
        self.topics = topics
        self.ids = topic_ids

    def records(self, topic: str, partition: int) -> list[Any]:
        return [m for m in self.topics[topic] if m.partition() == partition]

    def copies(self, topic: str, partition: int) -> list[Copy]:
        return [(m.value(), m.key(), dict(m.headers())["ks-hash"]) for m in self.records(topic, partition)]

    def hash(self, processor: str, *read: Any) -> bytes:
        """The delivery hash of a step that read one record, or one record of each input."""
        if len(read) == 1:
            m = read[0]
            prefix = hash_prefix(f"{self.name}.{processor}", m.topic(), self.ids[m.topic()], m.partition())
            return prefix + pack_offset(m.offset())
        tailers = ((m.topic(), self.ids[m.topic()], m.partition(), m.offset()) for m in read)
        return joined_hash(f"{self.name}.{processor}", tailers)

    def priced(self, p: int) -> list[Copy]:
        return [
            (m.value() + b"=%d" % (parse_number(m.value()) * 3), m.key(), self.hash("price", m))
            for m in self.records("orders", p)
            if parse_number(m.value()) % 50 != 7
        ]

    def split(self, p: int, wanted: Callable[[int], bool]) -> list[Copy]:
        return [
            (m.value(), m.key(), self.hash("split", m))
            for m in self.records("priced", p)
            if wanted(parse_number(m.value()) * 3)
        ]

    def even(self, p: int) -> list[Copy]:
        return self.split(p, lambda total: total % 5 == 0 or total % 2 == 0)

    def odd(self, p: int) -> list[Copy]:
        return self.split(p, lambda total: total % 5 == 0 or total % 2 == 1)

    def paid(self, p: int) -> list[Copy]:
        pairs = zip(self.records("even", p), self.records("payments", p), strict=False)
        return [(b"%s by %s" % (a.value(), b.value()), a.key(), self.hash("pay", a, b)) for a, b in pairs]

    def booked(self, topic: str, p: int) -> list[Copy]:
        """The outputs of one input: alts chooses the order between its inputs."""
        return [(b"booked " + m.value(), m.key(), self.hash("book", m)) for m in self.records(topic, p)]

    def assert_kept(self, guarantee: Guarantee, faults: int, stalls: Mapping[str, int]) -> None:
        """Checks that each partition of each output keeps the guarantee after these faults.

        `stalls`: how often workers of each processor have lost their partitions without a fault of the test.
        """
        for p in range(PARTITIONS):
            for short, processor in (("priced", "price"), ("even", "split"), ("odd", "split"), ("paid", "pay")):
                found, expected = self.copies(short, p), getattr(self, short)(p)
                assert_kept(guarantee, found, expected, faults, stalls=stalls[processor])
            booked = self.copies("booked", p)
            of_input = [self.booked(topic, p) for topic in ("odd", "refunds")]
            assert {*booked} <= {*of_input[0], *of_input[1]}
            for expected in of_input:
                wanted = {*expected}
                found = [copy for copy in booked if copy in wanted]
                assert_kept(guarantee, found, expected, faults, stalls=stalls["book"])


class Verified:
    """The graph's topics, its worker processes, and the records of its inputs."""

    def __init__(
        self,
        directory: Path,
        name: str,
        settings: Settings,
        cleanup: ExitStack,
        guarantee: Guarantee,
        calls: Mapping[str, str] = ONE_BY_ONE,
    ) -> None:
        self.name = name
        self.settings = settings
        self.recorder = Recorder(settings.bootstrap_servers)
        self.topic = {short: f"{name}.{short}" for short in (*INPUTS, *OUTPUTS)}
        self.errors = f"{name}.errors"
        journal = f"__ks.{name}.book.journal"
        self.recorder.cluster.create(*self.topic.values(), journal, partitions=PARTITIONS)
        self.recorder.cluster.create(self.errors)
        self.file = directory / "verified_graph.py"
        self.file.write_text(GRAPH.format(name=name, guarantee=guarantee.value, **calls))
        self.workers: dict[int, WorkerProcess] = {}
        self.ended: list[WorkerProcess] = []
        self._cleanup = cleanup
        self._random = random.Random(4)

    def record(self, number: int) -> Record:
        """Creates orders, payments and refunds in turn, numbered, each with one of 40 keys."""
        short = INPUTS[number % 3]
        key = b"%d" % self._random.randrange(40)
        return self.topic[short], b"%s-%d" % (short.encode(), number // 3), key, -1

    def start(self, *slots: int) -> None:
        for slot in slots:
            self.recorder.history.fault(f"worker {slot} is added")
            self.workers[slot] = worker = WorkerProcess(self.file, slot, self.settings.as_environment())
            self._cleanup.callback(worker.kill)

    def end(self, signum: signal.Signals, *slots: int) -> None:
        for slot in slots:
            if signum is signal.SIGTERM:  # before it has a handler, the worker would die of the signal
                wait_until(lambda: ": holds " in self.workers[slot].text, f"worker {slot} has begun")  # noqa: B023
            self.recorder.history.fault(f"{signum.name} to worker {slot}")
            self.workers[slot].send(signum)
        for slot in slots:
            worker = self.workers.pop(slot)
            self.ended.append(worker)
            assert worker.wait() == (0 if signum is signal.SIGTERM else -signum), worker.text

    def freeze(self, slot: int) -> None:
        """Freezes a worker until its sessions have ended, and another has its partitions: it wakes up as a zombie."""
        worker, groups = self.workers[slot], [f"{self.name}.{each}" for each in ("price", "split", "pay", "book")]
        wait_until(lambda: worker.text.count(": holds ") >= len(groups), f"worker {slot} has begun")
        self.recorder.history.fault(f"worker {slot} is frozen")
        worker.send(signal.SIGSTOP)
        for group in groups:
            is_member = f"{group}.{slot}"
            wait_until(
                lambda: is_member not in self.recorder.cluster.members(group),  # noqa: B023
                f"{is_member} is given up",
                pause=0.25,
            )
        worker.send(signal.SIGCONT)

    @property
    def stalls(self) -> dict[str, int]:
        """How often workers that have ended had lost partitions before they could deliver, by processor."""
        text = "".join(worker.text for worker in self.ended)
        lost = r": at most once: the partitions are lost|\.\d+: the membership was lost"
        return {each: len(re.findall(rf"\b{each}({lost})", text)) for each in ("price", "split", "pay", "book")}

    def finish(self) -> None:
        """Ends the workers once no step can read more; records of the join may still wait for partners.

        Under at_most_once, offsets are committed before outputs are written, so outputs that a drain writes are
        processed too.
        """
        self._await_read_out()
        while True:
            before, slots = self._ends(), list(self.workers)
            self._await_read_out()
            self.end(signal.SIGTERM, *slots)
            if self._ends() == before:
                return
            self.start(*slots)

    def _ends(self) -> list[dict[int, int]]:
        return [self.recorder.ends(name) for name in self.topic.values()]

    def _await_read_out(self) -> None:
        recorder, topic = self.recorder, self.topic
        for processor, inputs in (("price", ["orders"]), ("split", ["priced"]), ("book", ["odd", "refunds"])):
            recorder.await_done(f"{self.name}.{processor}", *(topic[short] for short in inputs))

        def is_each_pair_taken() -> bool:
            """Whether the offsets of all pairs are committed; calls under way may still add to a side."""
            sides = {topic[short]: recorder.cluster.read(topic[short]) for short in ("even", "payments")}
            even, payments = (Counter(m.partition() for m in side) for side in sides.values())
            taken = [
                Counter(m.partition() for m in found if m.offset() < positions.get(m.partition(), 0))
                for side, found in sides.items()
                for positions in [recorder.committed(f"{self.name}.pay", side)]
            ]
            return taken == [even & payments] * 2

        # not by the outputs: under at_most_once, a killed worker may lose some of them
        wait_until(is_each_pair_taken, "each pair is processed")
        recorder.await_no_open_transaction(*topic.values(), self.errors)


def expectations(topic: Mapping[str, str], guarantee: Guarantee) -> Iterable[Expected]:
    """The expected outputs for the history's checker, which compares contents only."""

    def price(m: Any) -> list[tuple[str, bytes, bytes]]:
        number = parse_number(m.value)
        return [] if number % 50 == 7 else [(topic["priced"], m.key, m.value + b"=%d" % (3 * number))]

    def split(m: Any) -> list[tuple[str, bytes, bytes]]:
        total = 3 * parse_number(m.value)
        to = ["even", "odd"] if total % 5 == 0 else ["odd" if total % 2 else "even"]
        return [(topic[short], m.key, m.value) for short in to]

    def book(m: Any) -> list[tuple[str, bytes, bytes]]:
        return [(topic["booked"], m.key, b"booked " + m.value)]

    yield Expected(topic["orders"], to=topic["priced"], outputs=price, guarantee=guarantee)
    yield Expected(topic["priced"], to=[topic["even"], topic["odd"]], outputs=split, guarantee=guarantee)
    yield Expected(
        [topic["even"], topic["payments"]],
        to=topic["paid"],
        outputs=lambda a, b: [(topic["paid"], a.key, a.value + b" by " + b.value)],
        guarantee=guarantee,
    )
    yield Expected(topic["odd"], to=topic["booked"], outputs=book, guarantee=guarantee)
    yield Expected(topic["refunds"], to=topic["booked"], outputs=book, guarantee=guarantee)


QUICK = {(Guarantee.EXACTLY_ONCE, True), (Guarantee.AT_MOST_ONCE, True)}
"""Guarantees of the quick tier, and whether calls overlap; test_guarantees.py has a worker killed at_least_once."""

FAULTS = 8
"""Workers that start or end in a round of `disturb`."""


def disturb(app: Verified, reader: Reader, *, freezes: bool) -> None:
    """Kills, stops, freezes and replaces workers, then kills all at once; outputs are read after each change."""
    app.end(signal.SIGKILL, 0)
    app.start(0)
    reader.await_more(20)
    app.end(signal.SIGTERM, 1)
    app.start(2)
    reader.await_more(20)
    if freezes:
        app.freeze(2)
        reader.await_more(20)
    app.end(signal.SIGKILL, 0, 2)
    app.start(0, 1)
    reader.await_more(20)


CELLS = [
    pytest.param(
        guarantee,
        overlap,
        rounds,
        per_second,
        marks=() if rounds == 1 and (guarantee, overlap) in QUICK else pytest.mark.long,
        id=f"{'overlapping' if overlap else 'one by one'}-{'one round' if rounds == 1 else 'six rounds'}-{guarantee}",
    )
    for overlap in (False, True)
    for rounds, per_second in ((1, 80), (6, 600))
    for guarantee in Guarantee
]
"""In the quick tier, calls overlap, which changes what is committed when.

The committer is the same in both columns: it gets a plan of steps that are done, in the order of their partition.
At_most_once commits an intake before calls that overlap; exactly_once commits what has settled in one transaction.
"""


@pytest.mark.parametrize(("guarantee", "overlap", "rounds", "per_second"), CELLS)
def test_workers_stopped_killed_and_added_outputs_equal_the_oracles(
    tmp_path: Path, name: str, settings: MakeSettings, guarantee: Guarantee, overlap: bool, rounds: int, per_second: int
) -> None:
    """A worker is frozen past its session under exactly_once: the others cannot refuse what a zombie has sent."""
    calls = overlapping(guarantee) if overlap else ONE_BY_ONE
    # fewer commits than every 100 ms by twelve members, and still several between two faults
    short_lived = settings(**(SHORT | {"commit_interval_ms": 300}))
    with ExitStack() as cleanup:
        app = Verified(tmp_path, name, short_lived, cleanup, guarantee, calls)
        recorder = app.recorder
        with recorder.reading(*(app.topic[short] for short in OUTPUTS)) as reader:
            with recorder.feeding(app.record, at_once=600, per_second=per_second):
                app.start(0, 1)
                reader.await_more(50)
                for _ in range(rounds):
                    disturb(app, reader, freezes=guarantee is Guarantee.EXACTLY_ONCE)
            app.finish()
            reader.finish()
    ids = {topic: found.topic_id for topic, found in open_cluster(short_lived).topics([*app.topic.values()]).items()}
    oracle = Oracle(name, {short: recorder.cluster.read(topic) for short, topic in app.topic.items()}, ids)
    oracle.assert_kept(guarantee, FAULTS * rounds, app.stalls)
    anomalies = recorder.anomalies(*expectations(app.topic, guarantee))
    if any(app.stalls.values()):  # the oracle has bounded what came late
        anomalies = [each for each in anomalies if each.kind is not Kind.ORDER_BROKEN]
    assert not anomalies, explain(anomalies)
    dead_letters = [decode_dead_letter(m) for m in recorder.cluster.read(app.errors)]
    refused = [m for m in oracle.topics["orders"] if parse_number(m.value()) % 50 == 7]
    found = Counter((m["delivery_hash"], m["inputs"][0]["value"]) for m in dead_letters)
    expected = Counter((oracle.hash("price", m), m.value()) for m in refused)
    if guarantee is Guarantee.EXACTLY_ONCE:
        assert found == expected
    elif guarantee is Guarantee.AT_LEAST_ONCE:
        assert found.keys() == expected.keys()
    else:
        assert found <= expected
