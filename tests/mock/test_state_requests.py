"""The requests that only a state makes, each with the error codes that it may get, once and for ever.

A restore asks for the id of its changelog (DescribeTopics, which is Metadata), for its ends (ListOffsets), and reads it
(Fetch). Whatever a broker answers, a restore that returns has the state of the changelog, whole; any other asks for
another attempt (Retriable), or ends the worker with a message that names the changelog. Produce to a changelog is that
of any output (test_session_table.py), in the same transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.errors import Fatal, KStreamsError, NotAuthorized, Retriable
from kstreams_py.formats.serdes import Json, String
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.records import TopicPartition
from kstreams_py.state.changelog import Changelog, Position, positions_record
from kstreams_py.state.keyed import MemoryBase, TaskStore
from kstreams_py.state.stores import Stores
from tests.mock.cluster import Api, MockCluster
from tests.mock.plain import settings_of
from tests.mock.test_session_table import code_of

CHANGELOG: Final = "__ks.g.counts.changelog"

INPUT: Final = TopicPartition("in", 0)

STATE: Final = {f"k{number}": number for number in range(50)}

ATTEMPTS: Final = 30
"""More than any restore needs after one error, and after attempts that a slow machine answers too late."""

SETTINGS: Final = Settings(request_timeout_ms=2_000, session_timeout_ms=4_000, transaction_timeout_ms=4_000)

WAITS, ENDS, REFUSED = Retriable, Fatal, NotAuthorized

TABLE: Final = (
    (
        Api.ListOffsets,
        (
            "FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION KAFKA_STORAGE_ERROR"
            " OFFSET_NOT_AVAILABLE REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT NETWORK_EXCEPTION disconnected"
        ),
        WAITS,
    ),
    (Api.ListOffsets, "UNKNOWN_TOPIC_OR_PART UNKNOWN OFFSET_OUT_OF_RANGE UNSUPPORTED_FOR_MESSAGE_FORMAT", ENDS),
    (Api.ListOffsets, "TOPIC_AUTHORIZATION_FAILED", REFUSED),
    (
        Api.Fetch,
        (
            "NOT_LEADER_FOR_PARTITION UNKNOWN_TOPIC_OR_PART FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH"
            " KAFKA_STORAGE_ERROR OFFSET_NOT_AVAILABLE OFFSET_OUT_OF_RANGE UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID"
            " INVALID_MSG UNKNOWN LEADER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT NETWORK_EXCEPTION"
            " disconnected"
        ),
        WAITS,
    ),
    (Api.Fetch, "TOPIC_AUTHORIZATION_FAILED", REFUSED),
    (Api.Metadata, "LEADER_NOT_AVAILABLE UNKNOWN_TOPIC_OR_PART REQUEST_TIMED_OUT disconnected", WAITS),
    (Api.Metadata, "UNKNOWN TOPIC_EXCEPTION", ENDS),
    (Api.Metadata, "TOPIC_AUTHORIZATION_FAILED", REFUSED),
)
"""Requests, their error codes, and what a restore raises while they last."""


class DescribedCluster(KafkaCluster):
    """A cluster whose topics are described without their settings, which a mock cluster does not know."""

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        described = self._topics.client.describe_topics(ck.TopicCollection(sorted(names)), request_timeout=self._limit)
        found = self._topics._known(described, self._limit)
        return {n: TopicInfo(n, str(t.topic_id), len(t.partitions), 1, {}) for n, t in found.items()}


@dataclass
class Seen:
    """What a cell has seen: what its restores raised, and the state that one has then."""

    errors: list[KStreamsError] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)


def run(api: Api, code: int, outcome: type[KStreamsError], *, forever: bool) -> Seen:
    """Restores under an error until it has its outcome, and then until it has the state.

    On a slow machine any attempt may be answered too late, and then asks for another one.
    """
    seen, seconds = Seen(), itertools.count()
    with MockCluster(brokers=1) as mock:
        mock.create(CHANGELOG, INPUT.topic)
        settings = SETTINGS.model_copy(update={"bootstrap_servers": mock.bootstrap_servers})
        with closing(DescribedCluster(settings.model_copy(update={"request_timeout_ms": 60_000}))) as patient:
            write_state(mock, patient.topics([CHANGELOG])[CHANGELOG].topic_id)
        with closing(DescribedCluster(settings)) as cluster:
            stores = Stores(
                "p: state 'counts'",
                Changelog(CHANGELOG, ""),
                {INPUT.topic: "id"},
                cluster,
                lambda *_: TaskStore(MemoryBase(), String(), Json()),
                lambda: next(seconds) / 1000,
            )
            inject(mock, api, code, forever=forever)
            for _ in range(ATTEMPTS):
                try:
                    stores.restore({INPUT: 7}, [INPUT])
                except KStreamsError as error:
                    seen.errors.append(error.with_traceback(None))
                    lasts = forever or api is Api.Metadata or outcome is not Retriable
                    if lasts and type(error) is outcome:
                        mock.clear()
                        mock.set_topic_error(CHANGELOG, 0)
                else:
                    seen.state = dict(stores.by_partition[0].range())
                    break
    return seen


def write_state(mock: MockCluster, changelog_id: str) -> None:
    producer = ck.Producer(settings_of(mock))
    for key, value in STATE.items():
        producer.produce(CHANGELOG, b"%d" % value, key.encode())
    record = positions_record(Changelog(CHANGELOG, changelog_id), 0, {INPUT.topic: Position("id", 7)})
    producer.produce(CHANGELOG, record[1], record[2])
    assert producer.flush(30) == 0


def inject(mock: MockCluster, api: Api, code: int, *, forever: bool) -> None:
    if api is Api.Metadata and code != ck.KafkaError._TRANSPORT:
        mock.set_topic_error(CHANGELOG, code)
    elif forever:
        mock.answer_always(api, code)
    else:
        mock.answer(api, code, code)


CELLS: Final = [
    pytest.param(api, code_of(name), outcome, forever, id=f"{api.name} {name} {'for ever' if forever else 'once'}")
    for api, codes, outcome in TABLE
    for name in codes.split()
    for forever in (True, False)
]


@pytest.fixture(scope="module")
def futures() -> Iterator[dict[tuple[Api, int, bool], Future[Seen]]]:
    """Runs all cells in parallel: most of them wait."""
    with ThreadPoolExecutor(len(CELLS)) as pool:
        cells: list[Any] = [cell.values for cell in CELLS]
        yield {
            (api, code, forever): pool.submit(run, api, code, outcome, forever=forever)
            for api, code, outcome, forever in cells
        }


@pytest.mark.parametrize(("api", "code", "outcome", "forever"), CELLS)
def test_restore_is_whole_or_does_not_return(
    api: Api, code: int, outcome: type[KStreamsError], forever: bool, futures: dict[tuple[Api, int, bool], Future[Seen]]
) -> None:
    seen = futures[api, code, forever].result()
    if forever:
        assert outcome in map(type, seen.errors)
    for error in seen.errors:
        assert isinstance(error, Retriable) or (type(error) is outcome and CHANGELOG in str(error))
    assert seen.state == STATE
