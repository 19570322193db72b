"""Reads partitions without a group: their first and last stable offsets, their records, their newest record."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.errors import NotAuthorized, Retriable
from kstreams_py.kafka.clients import LazyClient, new_client
from kstreams_py.kafka.errors import UNREACHABLE, ClientLog, E, classify, name_object
from kstreams_py.kafka.topics import is_missing
from kstreams_py.kafka.unreadable import LastOfBatch, replace_unreadable, skip_batch
from kstreams_py.records import Message, Positions, TopicPartition

ENDS_SECONDS: Final = 5.0
"""Seconds for three requests for offsets: a request to a leader that is down does not move to its successor."""

ASK_SECONDS: Final = ENDS_SECONDS / 3
"""Seconds for one of these requests."""

UNKNOWN: Final = {E._UNKNOWN_PARTITION, E.UNKNOWN_TOPIC_OR_PART}


class Reader:
    """A consumer that joins no group; the first call makes it. See contracts.Cluster for its methods."""

    def __init__(
        self,
        configuration: Callable[[], Mapping[str, Any]],
        limit: float,
        offsets_limit: float,
        explain: Callable[..., Exception],
        last_of_batch: LastOfBatch = lambda _, first: first,
    ) -> None:
        """Makes no client yet.

        - `configuration`: returns the client's settings.
        - `limit`: seconds that each call may take.
        - `offsets_limit`: seconds that a call for the offsets of partitions may take.
        - `explain`: maps an error, and the `topics` that it concerns, to an exception.
        - `last_of_batch`: returns the last offset of a batch that cannot be decompressed.
        """
        self._configuration, self._explain, self._last_of_batch = configuration, explain, last_of_batch
        self._limit, self._offsets_limit = limit, offsets_limit
        self._client = LazyClient(self._make_client)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends the client for good."""
        self._client.close()

    def starts(self, partitions: Collection[TopicPartition], since: int | None = None) -> Positions:
        if since is None:
            return self._offsets(partitions, ck.OFFSET_BEGINNING)
        found = self._offsets(partitions, max(since, 0))
        # the answer for a partition without such a record is OFFSET_END
        return found | self.ends([tp for tp, offset in found.items() if offset < 0])

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        return self._offsets(partitions, ck.OFFSET_END)

    def count(self, topic: str) -> int:
        """Returns the number of partitions of a topic; 0 if it does not exist."""
        try:
            found = self.client.list_topics(topic, min(self._limit, ENDS_SECONDS)).topics[topic]
        except ck.KafkaException as error:
            raise self._explain(error.args[0], topics=[topic]) from None
        if found.error is not None and not is_missing(found):
            raise self._explain(found.error, topics=[topic])
        return len(found.partitions)

    def newest(self, partition: TopicPartition) -> Message | None:
        try:
            with self._lock:  # the processors of a slot share the reader, and each is a thread
                low, stable = self._watermarks(partition)
                window = 4  # a record and its marker are the usual tail
                while True:
                    start = max(low, stable - window)
                    found = self._between(partition, start, stable)
                    if found or start == low:
                        return found[-1] if found else None
                    window *= 8
        except ck.KafkaException as error:
            doing = name_object(f"reading the newest record of {partition}", error.args[0], topics=[partition.topic])
            raise classify(error.args[0], doing) from None

    def read(self, partition: TopicPartition, start: int = 0, limit: int | None = None) -> Sequence[Message]:
        try:
            with self._lock:
                low, stable = self._watermarks(partition)
                return self._between(partition, max(low, start), stable, limit)
        except ck.KafkaException as error:
            doing = name_object(f"reading {partition}", error.args[0], topics=[partition.topic])
            raise classify(error.args[0], doing) from None

    def _offsets(self, partitions: Collection[TopicPartition], which: int) -> Positions:
        if not partitions:
            return {}
        # the admin client would connect to a leader that is down thousands of times a second (measured: a whole core),
        # and would not look for its successor
        asked = [ck.TopicPartition(*tp, which) for tp in partitions]
        topics = {tp.topic for tp in partitions}
        begun, is_known, is_renewed = time.monotonic(), False, False
        while True:
            try:
                found = self.client.offsets_for_times(asked, ASK_SECONDS)
                if (failure := next((p.error for p in found if p.error is not None), None)) is None:
                    return {TopicPartition(p.topic, p.partition): p.offset for p in found}
            except ck.KafkaException as error:
                failure = error.args[0]
            why, exist = self._look_for_leaders(topics)
            is_known |= exist
            passed = time.monotonic() - begun
            if why is not None and passed > self._offsets_limit / 2 and not is_renewed:
                # a new client asks for a token at once; a client that got none waits for 10 s, then until it reconnects
                self._renew()
                is_renewed = True
            if passed > self._offsets_limit:
                # the client may ask a frozen broker for the leaders, too: if another broker has answered meanwhile,
                # brokers are up
                if is_known and failure.code() in UNREACHABLE | {E._UNKNOWN_PARTITION}:
                    raise Retriable(f"a partition of {', '.join(map(repr, sorted(topics)))} has no leader that answers")
                if why is not None:
                    self._renew()
                # while no broker answers, the client calls each partition unknown
                raise self._explain(why or failure, topics=topics)
            time.sleep(0.05)

    def _renew(self) -> None:
        """Ends the client, unless a thread reads records with it; the next request makes another one.

        A client that gets no answer from any broker may have forgotten all brokers for good: librdkafka #5301.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._client.end()
            finally:
                self._lock.release()

    def _look_for_leaders(self, topics: Collection[str]) -> tuple[Any, bool]:
        """Asks for the current leaders, because otherwise the client keeps the ones that it knows.

        Returns the error if no broker answers, or None, and whether a broker knows all of the topics.
        """
        exist = True
        for topic in topics:
            try:
                exist &= not is_missing(self.client.list_topics(topic, ASK_SECONDS).topics[topic])
            except ck.KafkaException as error:
                return error.args[0], False
        return None, exist

    def _watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """Returns the first and the last stable offset; retries for a partition that was just added."""
        deadline = time.monotonic() + self._limit
        while True:
            try:
                low, stable = self.client.get_watermark_offsets(ck.TopicPartition(*partition), self._limit)
            except ck.KafkaException as error:
                if error.args[0].code() not in UNKNOWN or time.monotonic() > deadline:
                    raise
                self.client.list_topics(partition.topic, self._limit)
                time.sleep(0.05)
            else:
                return low, stable

    def _between(self, partition: TopicPartition, start: int, stable: int, limit: int | None = None) -> list[Message]:
        """Returns the committed records from `start` on and before `stable`, at most `limit` of them."""
        found: list[Any] = []
        skipped: list[Message] = []
        wanted = sys.maxsize if limit is None else limit
        if start >= stable:
            return found
        # no local variable holds the client: the traceback of an exception would keep it alive after `close`
        self.client.assign([ck.TopicPartition(*partition, start)])
        deadline, reached = time.monotonic() + self._limit, start
        try:
            while time.monotonic() < deadline:
                for m in self.client.consume(min(1000, wanted - len(found) - len(skipped)), 0.05):
                    offset = m.offset() or 0
                    if (error := m.error()) is None:
                        found.append(m)
                        reached = offset + 1
                    elif error.code() == E._PARTITION_EOF:
                        reached = max(reached, offset)  # a new leader's high watermark may be behind for a moment
                    elif error.code() == E._BAD_COMPRESSION and offset >= reached:  # else it is fetched again
                        skipped.append(skip_batch(self.client, m, self._last_of_batch))
                        reached = skipped[-1].offset() + 1
                    elif error.code() == E.GROUP_AUTHORIZATION_FAILED:
                        continue  # the client looks for its group's coordinator, although it never joins
                    elif isinstance(failure := classify(error, f"reading topic {partition.topic!r}"), NotAuthorized):
                        raise failure  # not Retriable: the caller would retry forever
                if len(found) + len(skipped) == wanted or reached >= stable:
                    records = replace_unreadable(found)
                    return sorted([*records, *skipped], key=lambda m: m.offset()) if skipped else records
        finally:
            self.client.unassign()
        raise Retriable(f"{partition} could not be read to its end within {self._limit:g} s")

    @property
    def client(self) -> ck.Consumer:
        """The client; the first call makes it."""
        return self._client.get()

    def _make_client(self) -> ck.Consumer:
        configuration = {**self._configuration(), "group.id": "unused", "fetch.wait.max.ms": 10}
        return new_client(ck.Consumer, configuration, ClientLog("reader"))
