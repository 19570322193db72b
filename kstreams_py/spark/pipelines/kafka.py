"""A topic as the table of a pipeline: records and runs in one Kafka transaction.

Spark makes the bytes of each record, and the driver's transactional producer only passes them on. Spark's own writer
has no transactions: if a restarted task writes records twice, the duplicates stay.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kstreams_py.errors import (
    Abortable,
    ClientError,
    DecodeError,
    Fenced,
    OutcomeUnknown,
    Refused,
    Retriable,
    SettingsError,
    SinkUnavailable,
    StaleWriter,
    TopicError,
    Unavailable,
)
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.hashes import hash_prefix, pack_offset
from kstreams_py.graph.loading import show_reset
from kstreams_py.graph.names import runs_topic
from kstreams_py.graph.pipelines import RUNS_SETTINGS, Mode, Pipeline
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import TRANSACTIONAL, Output, Producer
from kstreams_py.kafka.foreign_records import foreign, parse_json
from kstreams_py.kafka.leftovers import Leftovers
from kstreams_py.kafka.own_topics import ensure_topics
from kstreams_py.kafka.sizes import batch_bytes
from kstreams_py.kafka.transactions import place_options
from kstreams_py.records import HASH_HEADER, PLACE_HEADER, Message, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.spark.cut_filters import header_value
from kstreams_py.spark.encoding import KEY, Encoder
from kstreams_py.spark.pipelines.frames import check_key, compute
from kstreams_py.spark.pipelines.runs import Published, check_owner, decode_published
from kstreams_py.spark.views import view

with suppress(ImportError):  # whoever has a DataFrame has PySpark
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRANSACTION_MS: Final = 60_000
"""The shortest time-out of a run's transaction; the rows are made before it begins."""

POLL_SECONDS: Final = 0.05

RUNS_BYTES: Final = 900_000
"""The maximum size of the record of the runs in bytes: clients and brokers take 1 MB by default."""

_RESET: Final = "reset_by"
"""The field with the pipeline that is reset, in the record of the runs while a reset is under way."""

_TOPIC_ID: Final = "topic_id"
"""The field with the broker's id of the topic, in the record of the runs: a topic that is created again has another."""

_CHUNK: Final = 5_000
"""The number of records that are queued at a time."""


class KafkaTable:
    """A topic: see PipelineTarget. Readers of committed records see a run as a whole, each record once.

    The runs are in a compacted topic beside it, whose newest committed record counts. The topic determines the
    transactional id: of two drivers, the one that began its transaction first is fenced.
    """

    def __init__(self, pipeline: Pipeline, topic: Topic, settings: Settings) -> None:
        limit = max(settings.transaction_timeout_ms, TRANSACTION_MS)
        self._settings = settings.model_copy(update={"transaction_timeout_ms": limit})
        self._pipeline, self._topic = pipeline, topic
        self._cluster = KafkaCluster(self._settings, patient=True)
        self._runs = TopicPartition(runs_topic(topic.name), 0)
        self._registry = open_registry(
            settings.schema_registry_url, settings.schema_directory, settings.schema_registry
        )
        self._key = pipeline.key[0] if pipeline.key else None

    def read(self) -> Published | None:
        """Reads the newest record of the runs. Raises SettingsError for a topic that others write, and TopicError."""
        with self._reported():
            partitions = self._partitions()
            published = self._read_runs()
            if published is None:
                self._check_new(partitions)
            return published

    def publish(self, rows: DataFrame, previous: Published | None, finish: Callable[[int], Published]) -> Published:
        """Makes the records, then writes them and the result of `finish` for their count in one transaction."""
        made = compute(rows)  # before the transaction: it may take long
        records = Encoder(str(self._pipeline), self._topic, self._registry, self._key).encode(made)
        count = made.count()
        if self._pipeline.mode is Mode.UPSERT:
            check_key(str(self._pipeline), made, self._pipeline.key)
        published = finish(count)

        has_tried = False

        def write(producer: Producer) -> Published:
            nonlocal has_tried
            found = self._read_runs()
            if has_tried and found is not None and found.last == published.last:  # an answer was lost
                return published
            if found != previous:
                raise StaleWriter(f"{self._pipeline}: another run was published meanwhile: run it again")
            has_tried = True
            outputs = self._outputs(records, previous, published.last.number)
            content = encode_runs(published, self._topic_id())
            self._transact(producer, outputs, content, published.last.number + 1)
            return published

        with self._reported():
            return self._attempt(write)

    def table(self, spark: SparkSession) -> DataFrame:
        """Returns the committed records; in mode upsert only the newest of each key."""
        if self.read() is None:
            raise SettingsError(f"{self._pipeline} has not run yet: run it first")
        found = view(spark, self._topic, registry=self._registry, settings=self._settings)
        if self._pipeline.mode is not Mode.UPSERT:
            return found
        # by the number of the run: a key may have moved to an added partition
        number = sf.substring(header_value(PLACE_HEADER), 9, 8)
        newest = sf.row_number().over(Window.partitionBy(KEY).orderBy(number.desc(), sf.col("offset").desc()))
        return found.withColumn("ks_age", newest).where("ks_age = 1").drop("ks_age")

    def reset(self) -> None:
        """Deletes the records, then the runs. The next reset continues one that was interrupted."""

        def delete(producer: Producer) -> None:
            content = self._read_content()
            if content is None:
                self._check_new(self._partitions())
                return
            if _RESET not in content:
                check_owner(self._pipeline, decode_published(content))
            elif content[_RESET] != self._pipeline.owner:
                raise SettingsError(f"{self._pipeline}: topic {self._topic} is reset by pipeline {content[_RESET]!r}")
            # no run may continue from runs whose records are gone
            self._transact(producer, iter(()), json.dumps({_RESET: self._pipeline.owner}).encode(), 0)
            partitions = self._partitions()
            starts = self._cluster.starts(partitions)
            for tp, end in self._cluster.ends(partitions).items():
                if starts[tp] < end:
                    self._cluster.truncate(tp, end)
            self._transact(producer, iter(()), None, 0)

        with self._reported():
            self._attempt(delete)

    def close(self) -> None:
        """Closes the clients."""
        self._cluster.close()

    def _partitions(self) -> list[TopicPartition]:
        found = self._cluster.topics([self._topic.name])
        if not found:
            raise TopicError(
                f"{self._pipeline}: topic {self._topic.name!r} does not exist: run `kstreams topics create` with its "
                "graph, or correct its name"
            )
        return [TopicPartition(self._topic.name, number) for number in range(found[self._topic.name].partitions)]

    def _check_new(self, partitions: Sequence[TopicPartition]) -> None:
        """Raises SettingsError for a topic that has records, or had records and lacks its runs."""
        runs = self._runs.topic
        if any(self._newest(tp) is not None for tp in partitions):
            raise SettingsError(
                f"topic {self._topic} has records that no pipeline has written: name another topic for "
                f"{self._pipeline}; or, if {runs} was deleted, delete {self._topic}, too, and create it again"
            )
        known = bool(self._cluster.topics([runs])) and any(self._cluster.ends([self._runs]).values())
        if not known and any(self._cluster.starts(partitions).values()):
            raise SettingsError(
                f"topic {self._topic} had records, which were deleted, and {runs} has no runs: readers may have them, "
                f"so a first run of {self._pipeline} may write them twice: delete the topic, and create it again"
            )

    def _topic_id(self) -> str:
        return self._cluster.topics([self._topic.name])[self._topic.name].topic_id

    def _runs_id(self) -> str:
        return self._cluster.topics([self._runs.topic])[self._runs.topic].topic_id

    def _read_runs(self) -> Published | None:
        content = self._read_content()
        if content is not None and _RESET in content:
            raise SettingsError(
                f"{self._pipeline}: a reset of topic {self._topic} was interrupted: run "
                f"`{show_reset(self._pipeline)}` again"
            )
        if content is None:
            return None
        if content.get(_TOPIC_ID, topic_id := self._topic_id()) != topic_id:  # older releases did not store the id
            raise SettingsError(
                f"{self._pipeline}: topic {self._topic} was deleted and created again since its last run, whose "
                f"records are gone: `{show_reset(self._pipeline)}` lets it begin again"
            )
        return decode_published(content)

    def _read_content(self) -> dict[str, Any] | None:
        """Returns the content of the newest record of the runs; None without a record, and for a tombstone."""
        topic = self._runs.topic
        newest = self._newest(self._runs) if self._cluster.topics([topic]) else None
        if newest is not None and newest.key() != (key := self._topic.name.encode()):
            why = f"its key is not {self._topic.name!r}"
            logger.warning("%s: it is passed over", foreign(newest, "a record of the runs of a pipeline", why))
            newest = next((m for m in reversed(self._cluster.read(self._runs)) if m.key() == key), None)
        if newest is None:
            return None
        try:
            return _decode(newest.value())
        except (DecodeError, ValueError) as error:
            raise TopicError(
                f"{foreign(newest, 'a record of the runs of a pipeline', error)}: write the previous record again, as "
                f"the newest; or delete {topic} and {self._topic}, and create {self._topic}: {self._pipeline} then "
                "begins again"
            ) from None

    def _newest(self, partition: TopicPartition) -> Message | None:
        """Returns the newest committed record; retries for a while, as a new topic may not have a leader yet."""
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
        while True:
            try:
                return self._cluster.newest(partition)
            except Retriable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def _attempt(self, step: Callable[[Producer], T]) -> T:
        """Runs a step; after an unknown outcome or an error that may pass, retries it for a while with a new producer.

        The new producer ends the transaction of the previous one; the step checks what is stored.
        """
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
        while True:
            try:
                with self._producer() as producer:
                    return step(producer)
            except (OutcomeUnknown, Retriable, Abortable) as error:
                if time.monotonic() > deadline:
                    raise
                logger.warning("%s: topic %s: %s; trying again", self._pipeline, self._topic, error)

    @contextmanager
    def _producer(self) -> Iterator[Producer]:
        """Yields a producer that has fenced the previous one, whose transaction has ended."""
        ensure_topics(self._cluster, {self._runs.topic: (1, RUNS_SETTINGS)})
        topics = self._cluster.topics([self._topic.name, self._runs.topic])
        producer = self._cluster.producer(TRANSACTIONAL, self._runs.topic, batch_bytes(topics.values()))
        try:
            producer.init_transactions()
            partitions = [*self._partitions(), self._runs]
            options = place_options(self._settings.bootstrap_servers)
            Leftovers(self._cluster, options, self._runs.topic, partitions, "").require_none()
            yield producer
        finally:
            producer.drop()

    def _transact(self, producer: Producer, outputs: Iterator[Output], content: bytes | None, next_run: int) -> None:
        """Writes outputs and the runs' record in one transaction, with the offset that identifies their run to a cut.

        - `next_run`: the offset of the pipeline's group: the place of the first run that is not written.

        Raises a ClientError; uncommitted records then stay invisible.
        """
        producer.begin_transaction()
        try:
            while chunk := list(itertools.islice(outputs, _CHUNK)):
                producer.write(chunk)
            producer.write([(self._runs.topic, content, self._topic.name.encode(), 0, None, None, 0, None)])
            with closing(self._cluster.consumer(self._pipeline.owner, self._runs.topic)) as group:
                producer.send_offsets({self._runs: next_run}, group)
        except BaseException:
            with suppress(ClientError):  # otherwise readers would wait for the transaction's time-out
                producer.abort_transaction()
            raise
        producer.commit_transaction()
        self._await_markers()

    def _await_markers(self) -> None:
        """Waits until readers see the committed records: a commit returns before its markers are written."""
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
        with suppress(ClientError, Unavailable):  # the commit stays; a reader may see it later
            partitions = [*self._partitions(), self._runs]
            written = self._cluster.ends(partitions, committed=False)
            while any(end < written[tp] for tp, end in self._cluster.ends(partitions).items()):
                if time.monotonic() > deadline:
                    return
                time.sleep(POLL_SECONDS)

    def _outputs(self, records: DataFrame, previous: Published | None, number: int) -> Iterator[Output]:
        """Yields the records of a run, each with the place of the run and a hash.

        The hash is made from the state from which the run continues, the bytes, and the number of equal records so far:
        a run that is made again, at a later cut, gives its records the same hashes.
        """
        topic, runs = self._topic.name, self._runs
        place = hash_prefix(self._pipeline.owner, runs.topic, self._runs_id(), runs.partition) + pack_offset(number)
        seed = f"{self._pipeline.owner}\n{'' if previous is None else previous.last.cut}".encode()
        equal = Counter[bytes]()
        for row in records.toLocalIterator():
            key, value = (None if each is None else bytes(each) for each in row)
            content = blake2b(seed, digest_size=16)
            for part in (key, value):
                content.update(b"\0" if part is None else b"\1" + pack_offset(len(part)) + part)
            first = content.digest()
            content.update(pack_offset(equal[first]))
            equal[first] += 1
            headers = [(HASH_HEADER, content.digest()), (PLACE_HEADER, place)]
            yield topic, value, key, -1, None, None, 0, headers

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raises SinkUnavailable or StaleWriter in place of a client's errors."""
        try:
            yield
        except Refused as error:
            raise error.mistake from None
        except Fenced:
            raise StaleWriter(
                f"{self._pipeline}: another run has begun, or the transaction took longer than "
                f"{self._settings.transaction_timeout_ms} ms (transaction_timeout_ms): run it again"
            ) from None
        except ClientError as error:
            raise SinkUnavailable(
                f"{self._pipeline}: topic {self._topic}: {error}: run it again", may_return=isinstance(error, Retriable)
            ) from error


def _decode(value: bytes | None) -> dict[str, Any] | None:
    """Returns the content of a record of the runs, or of a reset; None for a tombstone. Raises ValueError."""
    if value is None:
        return None
    content = parse_json(value)
    if not isinstance(content, dict):
        raise ValueError("it has no runs of a pipeline")
    if not all(isinstance(content.get(name, ""), str) for name in (_RESET, _TOPIC_ID)):
        raise ValueError("it names no pipeline, or no topic id")
    if _RESET not in content:
        decode_published(content)
    return content


def encode_runs(published: Published, topic_id: str) -> bytes:
    """Returns the record of the runs, with as many of the newest runs as a record takes."""
    while True:
        content = json.dumps(published.as_content() | {_TOPIC_ID: topic_id}).encode()
        if len(content) <= RUNS_BYTES or len(published.runs) == 1:
            return content
        published = published._replace(runs=published.runs[1:])
