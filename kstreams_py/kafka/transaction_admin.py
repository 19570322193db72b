"""Requests about transactions: list, describe, find on partitions, read from logs, end with a marker."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.errors import KStreamsError, NotAuthorized, Retriable
from kstreams_py.kafka.administration import Requests, describe_transactions, look_at
from kstreams_py.kafka.groups import positions_partition
from kstreams_py.kafka.log_batches import Batch, Log, Prepared, log_key, prepared
from kstreams_py.kafka.transactions import TRANSACTIONS_TOPIC, Coordinated, Listed, OpenTransaction
from kstreams_py.records import TopicPartition

PAGE_BYTES: Final = 4 << 20
"""Bytes of a partition in one answer."""

READ_SHARE: Final = 0.5
"""The share of a request's time limit that reading a partition may take; the rest of the partition is not read."""

LARGEST_OFFSET: Final = (1 << 63) - 1
EARLIEST: Final = -2
"""The code for the first offset in ListOffsets."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The open transactions of each partition, and the reason for each partition that could not be looked at.

    The reason is NotAuthorized if a right is missing.
    """

    found: Mapping[TopicPartition, tuple[OpenTransaction, ...]]
    refused: Mapping[TopicPartition, KStreamsError]


class TransactionAdmin(Requests):
    """Makes requests about transactions. Raises the errors of Requests."""

    def listed(self, states: Collection[str], producer_ids: Collection[int]) -> tuple[Listed, ...]:
        """Returns the transactional ids on which this user has DESCRIBE, sorted.

        - `states`, `producer_ids`: returns only ids with one of these; empty for any.
        """

        def ask(client: Any) -> tuple[Listed, ...]:
            found = client.list_transactions(state_filters=sorted(states), producer_id_filters=sorted(producer_ids))
            return tuple(
                sorted(
                    (
                        Listed(each.transactional_id, each.state.value, each.producer_id, coordinator)
                        for coordinator, listed in found.items()
                        for each in listed
                    ),
                    key=lambda each: each.transactional_id,
                )
            )

        return self.ask("listing transactions", "DESCRIBE on transactional ids", ask)

    def described(self, transactional_id: str) -> Coordinated | None:
        """Returns the newest transaction of a transactional id; None if its coordinator does not know the id."""

        def ask(client: Any) -> Coordinated | None:
            from kafka.protocol.metadata import CoordinatorType  # noqa: PLC0415

            coordinator = client._manager.run(
                client._find_coordinator_id, transactional_id, CoordinatorType.TRANSACTION
            )
            return next(iter(describe_transactions(client, coordinator, [transactional_id])), None)

        try:
            transactional_id.encode()
        except UnicodeEncodeError:  # no such id exists; kafka-python would give no answer
            return None
        return self.ask(
            f"describing the transaction of {transactional_id!r}",
            f"DESCRIBE on transactional id {transactional_id!r}",
            ask,
        )

    def partitions(self, topics: Collection[str] | None = None) -> dict[str, int]:
        """Returns the partition count of each topic that exists.

        - `topics`: the names of the topics; None for all that this user may see.
        """

        def ask(client: Any) -> dict[str, int]:
            from kafka import errors  # noqa: PLC0415

            # for a name that UTF-8 cannot encode, kafka-python would report that no broker answers
            names = None if topics is None else sorted(filter(str.isascii, topics))
            found = {}
            for topic in client._manager.run(client._get_cluster_metadata, names)["topics"]:
                if topic["error_code"] == errors.TopicAuthorizationFailedError.errno:
                    raise errors.TopicAuthorizationFailedError(topic["name"])
                if not topic["error_code"]:
                    found[topic["name"]] = len(topic["partitions"])
            return found

        return self.ask("looking topics up", "DESCRIBE and READ on the topics", ask)

    def look(self, partitions: Collection[TopicPartition]) -> Looked:
        """Returns the open transactions of partitions, according to their leaders and their coordinators."""

        def ask(client: Any) -> Looked:
            found, refused = look_at(client, partitions)
            return Looked(found, {tp: self._refusal(error, tp) for tp, error in refused.items()})

        return self.ask("looking for open transactions", "READ on the topics", ask)

    def _refusal(self, error: Exception, partition: TopicPartition) -> KStreamsError:
        from kafka import errors  # noqa: PLC0415

        if isinstance(error, errors.AuthorizationError):
            return NotAuthorized(f"the broker does not allow it: grant this user READ on topic {partition.topic}")
        if isinstance(error, errors.LeaderNotAvailableError):
            return Retriable("it has no leader: start the brokers that host it")
        return Retriable(str(error))

    def max_timeout(self) -> float | None:
        """Returns the longest transaction timeout that the brokers accept, in seconds; None if they do not show it."""

        def ask(client: Any) -> float | None:
            from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415
            from kafka.errors import BrokerResponseError  # noqa: PLC0415

            name = "transaction.max.timeout.ms"
            broker = min(each.node_id for each in client._manager.cluster.brokers())
            try:
                resource = ConfigResource(ConfigResourceType.BROKER, str(broker), configs=[name])
                (found,) = client.describe_configs([resource], config_filter="all")["broker"].values()
            except BrokerResponseError:
                return None
            # without DESCRIBE_CONFIGS on the cluster, kafka-python returns no settings
            return int(found[name]["value"]) / 1000 if name in found else None

        return self.ask(f"reading the settings of the brokers at {self._address}", "DESCRIBE_CONFIGS", ask)

    def read(self, partition: TopicPartition, start: int, producer_id: int) -> Log:
        """Returns the batches of a partition from an offset on, with the records of one producer."""
        return self._read(partition, start, lambda batch: bool(batch.producer_id == producer_id))

    def decisions(self, transactional_id: str) -> tuple[tuple[Prepared, ...], bool]:
        """Returns the coordinator's decisions about an id's transactions, in order, and whether it read the whole log.

        Compaction deletes older decisions.
        """
        count = self.partitions([TRANSACTIONS_TOPIC]).get(TRANSACTIONS_TOPIC, 0)
        if not count:
            return (), True
        key = log_key(transactional_id)
        kept_in = TopicPartition(TRANSACTIONS_TOPIC, positions_partition(transactional_id, count))
        log = self._read(kept_in, None, lambda batch: batch.compression_type or key in bytes(batch._buffer))
        return tuple(prepared(log.batches, transactional_id)), log.is_complete

    def _read(self, partition: TopicPartition, start: int | None, is_wanted: Callable[[Any], object]) -> Log:
        """Returns the batches of a partition from an offset on (None: the first), with the wanted records."""

        def ask(client: Any) -> Log:
            from kafka import TopicPartition as Place  # noqa: PLC0415

            place, batches = Place(*partition), list[Batch]()
            leader = _leader(client, place)
            first = client.list_partition_offsets({place: EARLIEST})[place].offset
            offset, end, deadline = max(first, start or 0), LARGEST_OFFSET, time.monotonic() + self._limit * READ_SHARE
            while offset < end:
                answer = _fetch(client, leader, partition, offset)
                end, before = min(end, answer.high_watermark), offset
                for batch in _batches(answer):
                    batches.append(_batch(batch, bool(is_wanted(batch))))
                    offset = batch.last_offset + 1
                if offset == before or time.monotonic() > deadline:
                    break
            return Log(tuple(batches), offset >= end)

        return self.ask(f"reading {partition}", f"READ on topic {partition.topic}", ask)

    def last_of_batch(self, partition: TopicPartition, offset: int) -> int:
        """Returns the last offset of the batch that contains `offset`; `offset` if none does. Decompresses nothing."""

        def ask(client: Any) -> int:
            from kafka import TopicPartition as Place  # noqa: PLC0415

            answer = _fetch(client, _leader(client, Place(*partition)), partition, offset)
            batch = next(_batches(answer), None)
            return offset if batch is None else max(offset, int(batch.last_offset))

        return self.ask(f"reading {partition}", f"READ on topic {partition.topic}", ask)

    def write_marker(self, partition: TopicPartition, transaction: OpenTransaction, *, commits: bool) -> None:
        """Ends a transaction on one partition: writes the marker that its coordinator did not write."""

        def ask(client: Any) -> None:
            from kafka import TopicPartition as Place  # noqa: PLC0415
            from kafka import errors  # noqa: PLC0415
            from kafka.protocol.producer.transaction import WriteTxnMarkersRequest  # noqa: PLC0415

            marker = WriteTxnMarkersRequest.WritableTxnMarker
            request = WriteTxnMarkersRequest(
                markers=[
                    marker(
                        producer_id=transaction.producer_id,
                        producer_epoch=transaction.epoch,
                        transaction_result=commits,
                        topics=[
                            marker.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
                        ],
                        # the leader refuses an epoch below the last marker's (TRANSACTION_COORDINATOR_FENCED)
                        coordinator_epoch=transaction.coordinator_epoch,
                    )
                ]
            )
            answer = client._manager.run(client._manager.send, request, _leader(client, Place(*partition)))
            for code in (p.error_code for m in answer.markers for t in m.topics for p in t.partitions):
                if code:
                    raise errors.for_code(code)(str(partition))

        self.ask(f"writing a marker to {partition}", "ALTER on the cluster", ask)


def _leader(client: Any, place: Any) -> int:
    (leader,) = client._manager.run(client._async_get_leader_for_partitions, [place])
    return int(leader)


def _fetch(client: Any, leader: int, partition: TopicPartition, offset: int) -> Any:
    """Returns one page of a partition from an offset on, including open and aborted transactions."""
    from kafka import errors  # noqa: PLC0415
    from kafka.protocol.consumer import FetchRequest  # noqa: PLC0415

    topic = FetchRequest.FetchTopic
    wanted = topic.FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=PAGE_BYTES)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=PAGE_BYTES,
        isolation_level=0,
        topics=[topic(topic=partition.topic, partitions=[wanted])],
        max_version=12,  # from 13 on, topics are named by their ids
    )
    answer = client._manager.run(client._manager.send, request, leader)
    (found,) = answer.responses[0].partitions
    if found.error_code:
        raise errors.for_code(found.error_code)(str(partition))
    return found


def _batches(answer: Any) -> Iterator[Any]:
    """Returns the batches of a page, without decompressing them."""
    from kafka.record.memory_records import MemoryRecords  # noqa: PLC0415

    return iter(MemoryRecords(bytes(answer.records or b"")))


def _batch(batch: Any, is_wanted: bool) -> Batch:
    if batch.is_control_batch:
        (marker,) = batch
        return Batch(batch.base_offset, 0, batch.producer_id, True, commits=marker.commit)
    records = tuple((record.key, record.value) for record in batch) if is_wanted else ()
    return Batch(batch.base_offset, batch.records_count, batch.producer_id, batch.is_transactional, None, records)
