"""Jobs that read and write topics: each record at least once, known by its hash; dead letters come before acks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import Abortable, ClientError, Fatal, OutcomeUnknown, Retriable
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.jobs.environment import job_environment
from kstreams_py.jobs.job import Job
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.sources.suspects import DEATHS_MAX, REASON
from kstreams_py.steps.environment import Environment
from kstreams_py.testing.contents import MemoryRegistry
from kstreams_py.testing.memory_cluster import ManualClock, MemoryCluster
from kstreams_py.testing.request_faults import Crash, RequestFault

RECORDS = 20

SESSION = 10.0

BAD = 7
"""The record for which a function raises."""


class TopicPlant:
    """A graph from a topic over a channel to a topic, on a cluster in memory, whose process dies at some requests."""

    def __init__(
        self, seed: int = 0, settings: Mapping[str, str] | None = None, serde: ks.Serde[Any] | None = None
    ) -> None:
        """`settings`: those of the topic that is written. `serde`: of the values that are read."""
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock, session_timeout=SESSION)
        self.cluster.create_topics([("in", 2, -1, {}), ("out", 2, -1, settings or {}), ("errors", 1, -1, {})])
        self.registry = MemoryRegistry()
        self.deadly = set[int]()
        """Values that end the process."""
        self.results: dict[int, Any] = {}
        """By value, what a function returns instead."""
        self.graph = ks.Graph("plant", value=ks.Json(), errors="errors")
        parsed = self.graph.channel("parsed")
        self.graph.map(self.graph.topic("in", value=serde or ks.Json()), to=parsed, id="parse")(self.parse)
        self.graph.map(parsed, to=self.graph.topic("out", key=ks.String()), id="write")(self.write)
        self.graph.validate()
        for number in range(RECORDS):
            self.cluster.append("in", str(number).encode(), partition=number % 2)
        self._seed, self._slots = random.Random(seed), 0
        self.jobs: list[Job] = []
        self.requests, self.dies_at = 0, 0

    def parse(self, value: int) -> int:
        if value in self.deadly:
            raise Crash
        if value == BAD:
            raise ValueError(f"no {value}")
        return value + 100

    def write(self, value: int) -> Any:
        return self.results.get(value, ks.Out(value, key=str(value)))

    def start(self, slot: int = 0) -> Job:
        """Starts a process."""
        environment = Environment(
            self.cluster, self.registry, Settings(session_timeout_ms=int(SESSION * 1000)), self.clock,
            self.clock.advance,
        )  # fmt: skip
        made = replace(
            job_environment(self.graph, slot, environment),
            clock=self.clock,
            sleep=self.clock.advance,
            entropy=self._seed.randbytes,
            chance=self._seed.random,
        )
        self.jobs.append(Job("plant", self.graph.tasks, made))
        return self.jobs[-1]

    def watch(self, _: str, __: object) -> RequestFault | None:
        self.requests += 1
        if self.requests == self.dies_at:
            raise Crash
        return None

    def is_done(self) -> bool:
        """Whether the group has passed all records."""
        ends = {TopicPartition("in", number): RECORDS // 2 for number in range(2)}
        return self.cluster.groups["plant.in"] == ends

    def finish(self, *jobs: Job) -> None:
        """Gives jobs their turns until everything is done."""
        for _ in range(2_000):
            if self.is_done():
                return
            for job in jobs:
                job.turn()
            self.clock.advance(0.2)
        raise AssertionError(f"it does not end: {self.cluster.groups['plant.in']}")

    def check(self) -> None:
        """Checks that each record is written, that copies have the same hash, and that one is a dead letter."""
        written = {(m.key(), m.value(), dict(m.headers() or ())["ks-hash"]) for m in self.cluster.records("out")}
        expected = {number + 100 for number in range(RECORDS) if number != BAD}
        assert {(key, value) for key, value, _ in written} == {(str(n).encode(), str(n).encode()) for n in expected}
        assert len({digest for *_, digest in written}) == len(written) == len(expected)
        letters = {(dict(m.headers() or ())["ks-proc"], m.key()) for m in self.cluster.records("errors")}
        assert letters == {(b"plant.parse", None)}


def test_job_reads_and_writes_topics_once_without_faults() -> None:
    plant = TopicPlant()
    plant.finish(plant.start())
    plant.check()
    assert len(plant.cluster.records("out")) == RECORDS - 1
    assert len(plant.cluster.records("errors")) == 1


def test_death_at_each_request_loses_no_record_and_no_dead_letter() -> None:
    plant = TopicPlant()
    plant.cluster.faults.watch(plant.watch)
    plant.finish(plant.start())
    total = plant.requests
    assert total > 10
    for number in range(1, total + 1):
        plant = TopicPlant(number)
        plant.dies_at = number
        plant.cluster.faults.watch(plant.watch)
        with pytest.raises(Crash):
            plant.finish(plant.start())
        plant.clock.advance(SESSION + 1)
        plant.finish(plant.start())
        plant.check()


ERRORS: dict[str, ClientError] = {
    "retriable": Retriable("no answer"),
    "abortable": Abortable("aborted"),
    "unknown": OutcomeUnknown("unknown"),
    "fatal": Fatal("fatal"),
}


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("error", ERRORS)
def test_error_of_each_request_of_the_producer_loses_nothing(error: str, *, applied: bool) -> None:
    for nth in (1, 2, 3):  # the third one is that of the dead letter
        plant = TopicPlant()
        job = plant.start()
        plant.cluster.faults.inject("produce", nth=nth, error=ERRORS[error], applied=applied)
        plant.finish(job)
        plant.check()
        assert plant.cluster.faults.requests.count("produce") > nth


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("error", [Retriable("no answer"), Abortable("not its own")])
@pytest.mark.parametrize("request_name", ["commit", "committed", "consume", "starts"])
def test_error_of_each_request_of_the_consumer_loses_nothing(
    request_name: str, error: ClientError, *, applied: bool
) -> None:
    plant = TopicPlant()
    job = plant.start()
    plant.cluster.faults.inject(request_name, error=error, applied=applied)
    plant.finish(job)
    plant.check()
    assert request_name in plant.cluster.faults.requests


class Surly(ks.Serde[int]):
    """A user's serde, which raises what it likes."""

    def serialize(self, value: int, /) -> bytes:
        return str(value).encode()

    def deserialize(self, data: bytes, /) -> int:
        if data == b"5":
            raise ArithmeticError("no 5")
        return int(data)


def test_record_that_cannot_be_decoded_becomes_a_dead_letter_beside_good_ones() -> None:
    plant = TopicPlant(serde=Surly())
    plant.finish(plant.start())
    assert len(plant.cluster.records("out")) == RECORDS - 2
    assert {dict(m.headers() or ())["ks-error"] for m in plant.cluster.records("errors")} == {
        b"ValueError",
        b"ArithmeticError",
    }


def test_records_that_are_given_back_are_read_again_in_order_and_each_failure_counts() -> None:
    plant = TopicPlant()
    (inputs,) = plant.start()._inputs.values()
    connection = inputs.connection
    found = [claim for _ in range(5) for claim in connection.read(RECORDS, alone=True)]
    values = [*range(0, RECORDS, 2), *range(1, RECORDS, 2)]  # one partition after the other
    for attempts, failed in enumerate((False, True, True)):
        connection.give_back(found[::-1], failed=failed)
        if attempts == 2:
            assert (connection.read(RECORDS, alone=False), connection.waits_alone) == ([], True), "these are suspects"
        found = [*connection.read(RECORDS, alone=True)]
        assert [(claim.value, claim.attempts) for claim in found] == [(value, attempts) for value in values]
    connection.close()  # which is no death
    (inputs,) = plant.start()._inputs.values()
    found = [claim for _ in range(5) for claim in inputs.connection.read(RECORDS, alone=True)]
    assert sorted((claim.value, claim.attempts) for claim in found) == [(value, 2) for value in range(RECORDS)]
    inputs.connection.ack(found)
    assert (inputs.connection.read(RECORDS, alone=False), inputs.connection.waits_alone) == ([], False)
    inputs.connection.close()
    assert plant.is_done(), "a clean end commits what is done"


def test_claims_that_were_given_back_outlive_a_rebalance() -> None:
    plant = TopicPlant()
    job = plant.start()
    for _ in range(3):
        job.turn()
    (inputs,) = job._inputs.values()
    claims = inputs.connection.read(4, alone=True)
    assert claims
    inputs.connection.give_back(claims, failed=True)
    other = plant.start(1)  # takes one of the partitions
    plant.finish(job, other)
    plant.check()


def test_two_workers_share_the_partitions_and_one_goes_on_when_the_other_dies() -> None:
    plant = TopicPlant()
    first, second = plant.start(0), plant.start(1)
    for _ in range(3):
        first.turn()
        second.turn()
    for number in range(RECORDS, RECORDS + 4):
        plant.cluster.append("in", str(number).encode(), partition=number % 2)
    plant.clock.advance(0.1)
    first.turn()  # it dies with what it has read
    plant.clock.advance(SESSION + 1)
    for _ in range(100):
        second.turn()
        plant.clock.advance(0.3)
    values = Counter(int(m.value() or b"") for m in plant.cluster.records("out"))
    assert {value - 100 for value in values} == {*range(RECORDS + 4)} - {BAD}


REFUSED: dict[str, tuple[dict[str, str], ks.Out[Any], str]] = {
    "without a key": ({"cleanup.policy": "compact"}, ks.Out(3, key=None), "without a key"),
    "too large": ({"max.message.bytes": "500"}, ks.Out("x" * 1_000, key="3"), "is larger than topic"),
    "a value that the serde does not take": ({}, ks.Out({1, 2}, key="3"), "set"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_output_becomes_a_dead_letter_and_the_others_are_written(case: str) -> None:
    settings, refused, told = REFUSED[case]
    plant = TopicPlant(settings=settings)
    plant.results[103] = refused
    plant.finish(plant.start())
    expected = sorted(str(number + 100).encode() for number in range(RECORDS) if number not in (3, BAD))
    assert sorted(m.value() or b"" for m in plant.cluster.records("out")) == expected
    serde = bind(dead_letters(), plant.registry, "errors-value")
    letters = [serde.deserialize(m.value() or b"") for m in plant.cluster.records("errors")]
    assert sorted((each["processor"], each["inputs"][0]["value"]) for each in letters) == [
        ("plant.parse", b"7"),
        ("plant.write", b"3"),
    ]
    assert told in next(each["exception_message"] for each in letters if each["processor"] == "plant.write")


def test_records_that_end_workers_become_dead_letters_and_others_lose_nothing() -> None:
    plant = TopicPlant()
    plant.deadly = {4, 5}
    for _ in range(DEATHS_MAX + 2):  # each is alone at its last two deaths
        with pytest.raises(Crash):
            plant.finish(plant.start())
        plant.clock.advance(SESSION + 1)
    plant.finish(plant.start())
    serde = bind(dead_letters(), plant.registry, "errors-value")
    letters = [serde.deserialize(m.value() or b"") for m in plant.cluster.records("errors")]
    assert sorted((each["processor"], each["inputs"][0]["value"], each["exception_message"]) for each in letters) == [
        ("plant.parse", b"4", REASON), ("plant.parse", b"5", REASON), ("plant.parse", b"7", "no 7"),
    ]  # fmt: skip
    written = {int(m.value() or b"") - 100 for m in plant.cluster.records("out")}
    assert written == {*range(RECORDS)} - {4, 5, BAD}


def test_clean_ends_rebalances_and_lost_memberships_count_no_death() -> None:
    plant, deaths = TopicPlant(), Counter[int]()
    plant.clock.advance(1)
    for number in range(3):
        jobs = [plant.start(number)]
        for seconds in (0.2, SESSION + 1, 0.2, 0.2, 0.2):  # the membership is lost, and taken again
            (inputs,) = jobs[0]._inputs.values()
            claims = inputs.connection.read(RECORDS, alone=True)
            deaths.update(claim.attempts for claim in claims)
            inputs.connection.give_back(claims, failed=False)
            plant.clock.advance(seconds)
        jobs.append(plant.start(number + 1))  # the partitions are shared out again
        for job in [*jobs, *jobs, *jobs]:
            job.turn()
        for job in jobs:
            job.close()
    assert (deaths[0] > RECORDS, {*deaths}) == (True, {0})
