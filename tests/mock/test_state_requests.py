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
from typing import Final

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.errors import Fatal, KStreamsError, NotAuthorized, Retriable
from kstreams_py.formats.serdes import Json, String
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.records import TopicPartition
from kstreams_py.state.changelog import Changelog, Position, positions_record
from kstreams_py.state.keyed import KeyedStore
from kstreams_py.state.memory import MemoryBase
from kstreams_py.state.stores import Stores
from tests.mock.cluster import Api, MockCluster
from tests.mock.plain import settings_of
from tests.mock.test_session_table import code_of

CHANGELOG: Final = "__ks.g.counts.changelog"

INPUT: Final = TopicPartition("in", 0)

STATE: Final = {f"k{number}": number for number in range(50)}

ATTEMPTS: Final = 10
"""More than any restore needs after one error."""

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
    """What a cell has seen: what a restore raised, and the state that one has then."""

    error: KStreamsError | None = None
    state: dict[str, int] = field(default_factory=dict)


def run(api: Api, code: int, *, forever: bool) -> Seen:
    """Restores under an error, and again once it is over; after one error until it has the state."""
    seen, seconds = Seen(), itertools.count()
    with MockCluster(brokers=1) as mock:
        mock.create(CHANGELOG, INPUT.topic)
        settings = SETTINGS.model_copy(update={"bootstrap_servers": mock.bootstrap_servers})
        with closing(DescribedCluster(settings)) as cluster:
            write_state(mock, cluster.topics([CHANGELOG])[CHANGELOG].topic_id)
            stores = Stores(
                "p: state 'counts'",
                Changelog(CHANGELOG, ""),
                {INPUT.topic: "id"},
                cluster,
                lambda *_: KeyedStore(MemoryBase(), String(), Json()),
                lambda: next(seconds) / 1000,
                "find",
            )
            inject(mock, api, code, forever=forever)
            for _ in range(ATTEMPTS):
                try:
                    stores.restore({INPUT: 7}, [INPUT])
                except KStreamsError as error:
                    seen.error = error.with_traceback(None)
                    if forever or api is Api.Metadata or not isinstance(error, Retriable):
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
        cells = [(cell.values[0], cell.values[1], cell.values[3]) for cell in CELLS]
        yield {cell: pool.submit(run, *cell[:2], forever=cell[2]) for cell in cells}  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(("api", "code", "outcome", "forever"), CELLS)
def test_restore_is_whole_or_does_not_return(
    api: Api,
    code: int,
    outcome: type[KStreamsError],
    forever: bool,
    futures: dict[tuple[Api, int, bool], Future[Seen]],
) -> None:
    seen = futures[api, code, forever].result()
    if forever:
        assert type(seen.error) is outcome
    assert isinstance(seen.error, Retriable | None) or (type(seen.error) is outcome and CHANGELOG in str(seen.error))
    assert seen.state == STATE
