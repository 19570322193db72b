"""Spark reads exactly the committed records of a real broker: transactions, decoding, bounds, options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from kstreams_py.embedded.jars import spark_jars
from kstreams_py.errors import BrokerUnavailable, DecodeError, MissingSoftware, SchemaError, SettingsError, TopicError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.formats.schemas import canonical
from kstreams_py.formats.serdes import Bytes, Json, Serde, String, bind
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.topology import Graph
from kstreams_py.settings import ClientSettings, Settings
from kstreams_py.spark import create_views, cut, json_columns, options, sampled_schema, stream, view, view_errors
from kstreams_py.spark.decoding import decode
from kstreams_py.spark.sessions import table_jars
from kstreams_py.spark.views import META
from tests.hostile.avro_values import logical
from tests.signing_in import make_certificates
from tests.system.harness import Cluster, metadata
from tests.unit.test_serdes import MemoryRegistry, array, enum, of_map, record
from tests.waiting import WAIT, wait_until

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning"
)  # collect() leaves its socket to the garbage collector

NOON = 1_700_000_000_000
"""Milliseconds; the record at offset n of any topic here has a timestamp n seconds later."""


@pytest.fixture
def settings(broker: Any) -> Settings:
    return Settings(bootstrap_servers=broker.bootstrap_servers)


class Writer:
    """A transactional producer of one topic; the timestamps follow the given offsets."""

    def __init__(self, broker: Any, topic: str) -> None:
        self._topic = topic
        self._ends: dict[int, int] = {}
        self._reader = ck.Consumer({
            "bootstrap.servers": broker.bootstrap_servers, "group.id": "unused", "isolation.level": "read_uncommitted"
        })  # fmt: skip
        config = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": f"writer-{topic}-{os.urandom(4).hex()}",
        }
        self._producer = ck.Producer(config)
        self._producer.init_transactions(30)

    def begin(self, records: Mapping[int, bytes | None], partition: int = 0, **more: Any) -> None:
        """Begins a transaction and writes records, given by their future offsets; they are acknowledged on return."""
        self._producer.begin_transaction()
        self.write(records, partition, **more)

    def write(self, records: Mapping[int, bytes | None], partition: int = 0, **more: Any) -> None:
        for offset, value in records.items():
            self._producer.produce(self._topic, value, partition=partition, timestamp=NOON + offset * 1000, **more)
        assert self._producer.flush(30) == 0
        self._ends[partition] = 0

    def commit(self) -> None:
        self._note_ends()
        self._producer.commit_transaction(30)
        self._wait_for_markers()

    def abort(self) -> None:
        self._note_ends()
        self._producer.abort_transaction(30)
        self._wait_for_markers()

    def _note_ends(self) -> None:
        self._ends = {partition: self._end(partition) for partition in self._ends}

    def _wait_for_markers(self) -> None:
        """Waits for the markers: a commit returns before the coordinator has written them."""
        wait_until(lambda: all(self._end(p) != end for p, end in self._ends.items()), "every partition has its marker")
        self._ends = {}

    def _end(self, partition: int) -> int:
        end: int = self._reader.get_watermark_offsets(ck.TopicPartition(self._topic, partition), 10)[1]
        return end

    def transactions(self, log: str, *partitions: int) -> None:
        """Writes a log given as text: `c3` commits three records, `a2` aborts two; each ends in a marker."""
        offset = 0
        for word in log.split():
            self._producer.begin_transaction()
            for partition in partitions or (0,):
                self.write(numbers(offset, offset + int(word[1:])), partition)
            self.commit() if word[0] == "c" else self.abort()
            offset += int(word[1:]) + 1


def numbers(start: int, end: int) -> dict[int, bytes | None]:
    """Records whose values are their offsets."""
    return {offset: str(offset).encode() for offset in range(start, end)}


def admin(broker: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create(
    broker: Any,
    name: str,
    *,
    partitions: int = 1,
    key: Serde | None = None,
    value: Serde | None = None,
    config: Mapping[str, str] = MappingProxyType({}),
) -> Topic:
    client = admin(broker)
    client.create_topics([NewTopic(name, partitions, 1, config=dict(config))])[name].result(30)
    # the controller has answered; the broker learns of the topic later
    wait_until(lambda: name in metadata(client).topics, f"{name} is known")
    return Graph("spark").topic(name, key=key or String(), value=value or String())


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    """Collects a data frame sorted by partition and offset, with timestamps in milliseconds."""
    found = df.withColumn("timestamp", sf.unix_millis("timestamp")).collect()
    return [tuple(row) for row in sorted(found, key=lambda row: (row["partition"], row["offset"]))]


def plain(offset: int, partition: int = 0) -> tuple[Any, ...]:
    """The row of a record made by `numbers`."""
    return (str(offset), None, partition, offset, NOON + offset * 1000, None, None)


# Transactions.


def read_out(spark: SparkSession, topic: Topic, settings: Settings, *, streaming: bool, **more: Any) -> list[Any]:
    """The rows of a view, or of all batches of a stream, by default with three offsets each."""
    if streaming:
        return drain(stream(spark, topic, settings=settings, **{"max_offsets_per_trigger": 3, **more}))
    return rows(view(spark, topic, settings=settings, **more))


LOGS = {"a5": [], "a5 c3": [6, 7, 8], "c3 a5": [0, 1, 2], "c2 a3 c2": [0, 1, 7, 8], "c1 c1 a1 c2": [0, 2, 6, 7]}
"""Logs, each that of a partition, and the offsets of their committed records."""


def test_read_committed_skips_markers_and_aborted_records(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    topic = create(broker, topic_name, partitions=len(LOGS))
    for partition, log in enumerate(LOGS):
        Writer(broker, topic_name).transactions(log, partition)
    visible = [plain(offset, partition) for partition, offsets in enumerate(LOGS.values()) for offset in offsets]
    assert read_out(spark, topic, settings, streaming=False) == visible
    streamed = read_out(spark, topic, settings, streaming=True, max_offsets_per_trigger=12)
    assert sorted(streamed, key=lambda row: row[2:4]) == visible


STARTS = {2: [3, 4], 6: [], 9: [], 10: []}
"""Where a stream starts: at a marker, at aborted records, at the last marker, at the end; and the visible offsets."""


def test_read_committed_stream_from_what_is_not_visible_returns_what_comes_after(
    spark: SparkSession, settings: Settings, two_and_two: Topic
) -> None:
    start = dict.fromkeys(range(len(BOUNDED)), 10) | dict(enumerate(STARTS))
    found = read_out(spark, two_and_two, settings, streaming=True, start=start, max_offsets_per_trigger=30)
    assert found == [plain(offset, number) for number, offsets in enumerate(STARTS.values()) for offset in offsets]


BOUNDED = {
    "marker first and last": (2, 6, [3, 4]),
    "marker last": (0, 3, [0, 1]),
    "marker in the middle": (1, 5, [1, 3, 4]),
    "marker alone": (2, 3, []),
    "aborted alone": (6, 8, []),
    "empty": (3, 3, []),
    "from earliest": (-2, 4, [0, 1, 3]),
    "to latest": (4, -1, [4]),
}
"""The bounds of a view, by partition, and the visible offsets between."""


def test_read_committed_view_bounded_by_offsets_returns_the_visible_records_between(
    spark: SparkSession, settings: Settings, two_and_two: Topic
) -> None:
    bounds = list(BOUNDED.values())
    start = {number: first for number, (first, _, _) in enumerate(bounds)}
    end = {number: last for number, (_, last, _) in enumerate(bounds)}
    found = rows(view(spark, two_and_two, settings=settings, start=start, end=end))
    assert found == [plain(offset, number) for number, (_, _, offsets) in enumerate(bounds) for offset in offsets]


@pytest.fixture(scope="module")
def two_and_two(broker: Any) -> Topic:
    """In each partition: offsets 0 1 (marker 2) 3 4 (marker 5), then aborted 6 7 8 (marker 9)."""
    name = f"test-two-and-two-{os.urandom(4).hex()}"
    topic = create(broker, name, partitions=len(BOUNDED))
    Writer(broker, name).transactions("c2 c2 a3", *range(len(BOUNDED)))
    return topic


def test_read_committed_log_that_starts_at_a_marker_returns_the_records_after_it(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    topic = create(broker, topic_name)
    Writer(broker, topic_name).transactions("c2 c2")
    delete_before(broker, topic_name, 2)
    for streaming in (False, True):
        assert read_out(spark, topic, settings, streaming=streaming) == [plain(3), plain(4)]


def delete_before(broker: Any, topic: str, offset: int) -> None:
    client, where = admin(broker), ck.TopicPartition(topic, 0, offset)
    client.delete_records([where])[where].result(30)


@pytest.mark.long  # its gaps are as those of markers and aborted records
def test_read_committed_log_that_was_compacted_has_what_is_left(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    """The gaps that compaction leaves, before and after markers, are not loss."""
    how = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    topic = create(broker, topic_name, config=how)
    writer, cluster = Writer(broker, topic_name), Cluster(broker.bootstrap_servers)
    for start, end in ((0, 3), (4, 6)):
        writer.begin(numbers(start, end), key=b"pen")
        writer.commit()
    last = 6

    def close_segment() -> None:
        nonlocal last
        writer.begin({last + 1: b"ink"}, key=b"ink")
        writer.commit()
        last += 2

    def left() -> list[int]:
        return [m.offset() for m in cluster.read(topic_name)]

    def is_compacted() -> bool:
        """What is written closes the segment before, which then is compacted."""
        close_segment()
        return left()[0] == 5

    wait_until(is_compacted, "the log is compacted")
    time.sleep(0.2)  # the next record is alone in the newest segment, so that nothing is left to be compacted
    close_segment()
    wait_until(lambda: left() == [5, last - 1], "nothing is left to be compacted")
    graph = Graph("spark")
    graph.topic(topic_name)
    for found in (
        read_out(spark, topic, settings, streaming=False),
        read_out(spark, topic, settings, streaming=True),
        rows(view(spark, topic, settings=settings, end=cut(graph, settings=settings))),
    ):
        assert [row[3] for row in found] == [5, last - 1]


def test_read_committed_view_open_transaction_ends_at_the_last_stable_offset(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    topic = create(broker, topic_name)
    early, late = Writer(broker, topic_name), Writer(broker, topic_name)
    early.begin(numbers(0, 2))
    early.commit()
    late.begin(numbers(3, 5))
    early.begin(numbers(5, 7))
    early.commit()
    found = view(spark, topic, settings=settings)
    assert rows(found) == [plain(0), plain(1)]
    late.commit()
    assert rows(found) == [plain(offset) for offset in (0, 1, 3, 4, 5, 6)]


@pytest.mark.long  # quick are the batches of a log, and the last stable offset of a view
def test_read_committed_stream_of_consecutive_transactions_returns_each_batch_once(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str, tmp_path: Path
) -> None:
    """The sequence of Spark's own KafkaMicroBatchSourceSuite, with three offsets per batch."""
    topic = create(broker, topic_name)
    writer = Writer(broker, topic_name)
    batches: list[list[tuple[Any, ...]]] = []
    query = (
        stream(spark, topic, settings=settings, max_offsets_per_trigger=3)
        .writeStream.foreachBatch(lambda df, _: batches.append(rows(df)))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )

    def new_batches() -> list[list[tuple[Any, ...]]]:
        query.processAllAvailable()
        found = batches[:]
        batches.clear()
        return found

    def of(*offsets: int) -> list[tuple[Any, ...]]:
        return [plain(offset) for offset in offsets]

    try:
        writer.begin(numbers(0, 5))
        assert new_batches() == [[]]  # Spark always runs the first batch of a query
        writer.commit()
        assert new_batches() == [of(0, 1, 2), of(3, 4)]
        writer.begin(numbers(6, 11))
        writer.abort()
        assert new_batches() == [[], []]
        writer.begin(numbers(12, 17))
        writer.commit()
        assert new_batches() == [of(12, 13, 14), of(15, 16)]
        for first, end in ((18, 19), (20, 21), (22, 24)):
            writer.begin(numbers(first, end))
            writer.commit()
        assert [row for batch in new_batches() for row in batch] == of(18, 20, 22, 23)
    finally:
        query.stop()


def test_no_loss_deleted_records_fail_the_query(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    topic = create(broker, topic_name)
    Writer(broker, topic_name).transactions("c3 c2")
    delete_before(broker, topic_name, 2)
    for streaming in (False, True):
        with pytest.raises(Exception, match=r"data may have been lost|out of range"):
            read_out(spark, topic, settings, streaming=streaming, start={0: 0})


def drain(df: DataFrame) -> list[tuple[Any, ...]]:
    """Collects all records that a stream has now."""
    found: list[tuple[Any, ...]] = []
    query = df.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch))).trigger(availableNow=True).start()
    assert query.awaitTermination(int(WAIT))
    return found


def test_no_loss_view_that_ends_after_the_last_stable_offset_fails_the_query(
    spark: SparkSession, broker: Any, topic_name: str
) -> None:
    """Such a view waits for pollTimeoutMs, which is short here."""
    topic = create(broker, topic_name)
    Writer(broker, topic_name).transactions("c2")
    open_one = Writer(broker, topic_name)
    open_one.begin(numbers(3, 5))
    short = Settings(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=1000)
    with pytest.raises(Exception, match="out of range"):
        view(spark, topic, settings=short, end={0: 5}).collect()
    open_one.commit()
    assert rows(view(spark, topic, settings=short, end={0: 5})) == [plain(offset) for offset in (0, 1, 3, 4)]


# Bounds by time, and several partitions.


def at(offset: float) -> datetime:
    """The timestamp of the record at an offset."""
    return datetime.fromtimestamp(NOON / 1000, UTC) + timedelta(seconds=offset)


@pytest.fixture(scope="module")
def two_partitions(broker: Any) -> Topic:
    """Partition 0: 0 to 3 (marker 4), partition 1: 0 and 1 (marker 2)."""
    name = f"test-two-partitions-{os.urandom(4).hex()}"
    topic = create(broker, name, partitions=2)
    writer = Writer(broker, name)
    writer.begin(numbers(0, 4), partition=0)
    writer.write(numbers(0, 2), partition=1)
    writer.commit()
    return topic


ALL = [plain(0), plain(1), plain(2), plain(3), plain(0, 1), plain(1, 1)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param(None, None, ALL, id="all", marks=pytest.mark.long),
        pytest.param(
            {0: 1, 1: 1}, {0: 3, 1: -1}, [plain(1), plain(2), plain(1, 1)], id="offsets", marks=pytest.mark.long
        ),
        pytest.param(at(1), at(3), [plain(1), plain(2), plain(1, 1)], id="times"),
        pytest.param(at(-9), at(99), ALL, id="times-around", marks=pytest.mark.long),
        pytest.param(at(0.5), None, [plain(1), plain(2), plain(3), plain(1, 1)], id="time-between-records"),
        pytest.param(at(1.5), at(2), [], id="times-with-nothing-between"),
        pytest.param(at(99), None, [], id="time-after-the-last", marks=pytest.mark.long),
        pytest.param({0: 2, 1: 0}, at(3), [plain(2), plain(0, 1), plain(1, 1)], id="offsets-to-time"),
    ],
)
def test_bounds_view_of_two_partitions_returns_the_records_between(
    spark: SparkSession, settings: Settings, two_partitions: Topic, start: Any, end: Any, expected: list[Any]
) -> None:
    """Long are those without a time that divides the records: the tests of transactions bound views by offsets."""
    assert rows(view(spark, two_partitions, settings=settings, start=start, end=end)) == expected


def test_bounds_adjacent_views_return_each_record_once(
    spark: SparkSession, settings: Settings, broker: Any, topic_name: str
) -> None:
    """Timestamps are out of order: a bound is an offset, so that each record is in one view."""
    topic = create(broker, topic_name)
    writer = Writer(broker, topic_name)
    writer.begin({offset: str(offset).encode() for offset in (5, 1, 9, 2, 7, 3)})
    writer.commit()
    before = rows(view(spark, topic, settings=settings, end=at(6)))
    after = rows(view(spark, topic, settings=settings, start=at(6)))
    assert [[row[0] for row in found] for found in (before, after)] == [["5", "1"], ["9", "2", "7", "3"]]


def test_bounds_stream_from_a_time_returns_records_from_that_time_on(
    spark: SparkSession, settings: Settings, two_partitions: Topic
) -> None:
    found = drain(stream(spark, two_partitions, settings=settings, start=at(1)))
    assert found == [plain(1), plain(2), plain(3), plain(1, 1)]


# Decoding.

FIRST = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}]}
NOW: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "long"], "default": None},
        {"name": "stops", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}


@pytest.fixture
def registry(tmp_path: Path) -> FileRegistry:
    return FileRegistry(tmp_path / "schemas")


def encode(schema: Any, registry: FileRegistry, topic: str, value: Any) -> bytes:
    found = bind(Avro(schema), registry, f"{topic}-value").serialize(value)
    assert found is not None
    return found


def write_flights(broker: Any, registry: FileRegistry, name: str) -> list[tuple[Any, ...]]:
    """Writes records of two schemas, a tombstone, keys, headers and a delivery hash; returns the rows to expect."""
    writer = Writer(broker, name)
    digest = bytes(range(16))
    headers = [("ks-hash", digest), ("from", b"EWR"), ("from", None)]
    writer.begin({0: encode(FIRST, registry, name, {"carrier": "UA"})}, key=b"N1")
    new = encode(NOW, registry, name, {"carrier": "DL", "delay": 7, "stops": ["ATL", "ORD"]})
    writer.write({1: new}, key="Ñ2".encode(), headers=headers)
    writer.write({2: None}, key=b"N1", headers=[("from", b"JFK")])
    writer.write({3: encode(NOW, registry, name, {"carrier": "", "delay": None, "stops": []})})
    writer.commit()
    return [
        (("UA", None, []), "N1", 0, 0, NOON, None, None),
        (("DL", 7, ["ATL", "ORD"]), "Ñ2", 0, 1, NOON + 1000, headers, digest),
        (None, "N1", 0, 2, NOON + 2000, [("from", b"JFK")], None),
        (("", None, []), None, 0, 3, NOON + 3000, None, None),
    ]


def test_decoding_view_of_two_writer_schemas_has_the_readers_columns(
    spark: SparkSession, broker: Any, settings: Settings, registry: FileRegistry, topic_name: str
) -> None:
    topic = create(broker, topic_name, value=Avro(NOW))
    expected = write_flights(broker, registry, topic_name)
    flat = [(*(value or (None, None, None)), *rest) for value, *rest in expected]

    found = view(spark, topic, registry=registry, settings=settings)

    assert found.columns == ["carrier", "delay", "stops", *META]
    assert found.dtypes[:3] == [("carrier", "string"), ("delay", "bigint"), ("stops", "array<string>")]
    assert rows(found) == flat
    assert rows(found.filter("delay > 5")) == [flat[1]]
    assert drain(stream(spark, topic, registry=registry, settings=settings)) == flat
    nested = view(spark, topic, registry=registry, settings=settings, flatten=False)
    assert nested.columns == ["value", *META]
    assert rows(nested) == expected, "the struct of a tombstone is null"


def test_decoding_view_without_a_registry_decodes_the_declared_schema(
    spark: SparkSession, broker: Any, settings: Settings, registry: FileRegistry, topic_name: str
) -> None:
    topic = create(broker, topic_name, key=Avro({"type": "string"}), value=Avro(FIRST))
    key = bind(Avro({"type": "string"}), registry, f"{topic_name}-key").serialize("N1")
    writer = Writer(broker, topic_name)
    writer.begin({0: encode(FIRST, registry, topic_name, {"carrier": "UA"})}, key=key)
    writer.commit()
    assert rows(view(spark, topic, settings=settings)) == [("UA", "N1", 0, 0, NOON, None, None)]


@pytest.mark.parametrize(
    ("key", "value", "raw", "expected"),
    [
        (Bytes(), Bytes(), b"\xff\0", (b"\xff\0", b"\xff\0")),
        (Bytes(), String(), "é".encode(), ("é", "é".encode())),
        (String(), Json(), b'{"a":1}', ('{"a":1}', '{"a":1}')),
    ],
)
def test_decoding_view_of_text_and_bytes_has_strings_and_binaries(
    spark: SparkSession,
    broker: Any,
    settings: Settings,
    topic_name: str,
    key: Serde,
    value: Serde,
    raw: bytes,
    expected: tuple[Any, Any],
) -> None:
    topic = create(broker, topic_name, key=key, value=value)
    writer = Writer(broker, topic_name)
    writer.begin({0: raw}, key=raw)
    writer.write({1: None})
    writer.commit()
    assert rows(view(spark, topic, settings=settings)) == [
        (*expected, 0, 0, NOON, None, None),
        (None, None, 0, 1, NOON + 1000, None, None),
    ]


NARROW = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "int"}]}

LATE = {"type": "record", "name": "Flight", "fields": [{"name": "delay", "type": ["null", "long"], "default": None}]}
"""Each field may be null, and so tells nothing of a record that does not decode."""

FLIGHT: dict[str, Any] = {"carrier": "UA", "delay": None, "stops": []}


def cut_short(schema: Any, registry: FileRegistry, topic: str) -> bytes:
    """FLIGHT in this schema, without its last byte."""
    return encode(schema, registry, topic, {each["name"]: FLIGHT[each["name"]] for each in schema["fields"]})[:-1]


MALFORMED = [
    pytest.param(Avro(FIRST), b"\0\0\0\0\x09\4UA", "has schema id 9, which is not under {}-value", id="unknown-id"),
    pytest.param(Avro(FIRST), b"\0\0", "is not in the Avro wire format", id="short", marks=pytest.mark.long),
    pytest.param(
        Avro(FIRST), b"\1\0\0\0\1\4UA", "is not in the Avro wire format", id="no-zero-byte", marks=pytest.mark.long
    ),
    pytest.param(Avro(FIRST), b"", "is not in the Avro wire format", id="empty", marks=pytest.mark.long),
    pytest.param(Avro(NOW), FIRST, "does not decode as Avro(Flight)", id="cut-short", marks=pytest.mark.long),
    pytest.param(Avro(NOW), NOW, "does not decode as Avro(Flight)", id="last-field-cut-short", marks=pytest.mark.long),
    pytest.param(
        Avro(LATE), LATE, "does not decode as Avro(Flight)", id="all-may-be-null-cut-short", marks=pytest.mark.long
    ),
    pytest.param(
        Avro(NARROW),
        FIRST,
        "which Avro(Flight) cannot read: Flight.carrier was string",
        id="unreadable",
        marks=pytest.mark.long,
    ),
    pytest.param(String(), b"\xff", "is not text in UTF-8", id="not-text", marks=pytest.mark.long),
    pytest.param(Json(), b"\xff", "is not text in UTF-8", id="not-json-text", marks=pytest.mark.long),
]


"""Quick is a check of the registry: the tables of a graph and keys that are not records have those of Spark. Each of
the others fails in the same expression."""


def write_malformed(
    broker: Any, registry: FileRegistry, others: FileRegistry, name: str, value: Serde, raw: Any
) -> tuple[Topic, bytes]:
    """Writes a tombstone, the record and one that decodes, whose schema is of another registry; returns the record."""
    good = b"7"
    if isinstance(value, Avro):
        schema = json.loads(value.schema)
        flight = FLIGHT | ({"carrier": 7} if schema == NARROW else {})
        good = encode(schema, others, name, {each["name"]: flight[each["name"]] for each in schema["fields"]})
    written = cut_short(raw, registry, name) if isinstance(raw, dict) else raw
    topic = create(broker, name, value=value)
    writer = Writer(broker, name)
    writer.begin({0: None, 1: written, 2: good}, key=b"k")
    writer.commit()
    return topic, written


@pytest.mark.parametrize(("value", "raw", "message"), MALFORMED)
def test_decoding_record_that_does_not_decode_fails_or_is_dropped_and_named(
    spark: SparkSession,
    broker: Any,
    settings: Settings,
    registry: FileRegistry,
    tmp_path: Path,
    topic_name: str,
    value: Serde,
    raw: Any,
    message: str,
) -> None:
    topic, written = write_malformed(broker, registry, FileRegistry(tmp_path / "others"), topic_name, value, raw)
    with pytest.raises(PySparkException) as caught:
        view(spark, topic, registry=registry, settings=settings).collect()
    assert f"topic {topic_name}[0] offset 1: its value " in str(caught.value)
    assert message.format(topic_name) in str(caught.value)
    found = view(spark, topic, registry=registry, settings=settings, malformed="drop")
    assert [tuple(row) for row in found.select("key", "offset").collect()] == [("k", 0), ("k", 2)]
    failed = view_errors(spark, topic, registry=registry, settings=settings)
    (row,) = failed.collect()
    assert row["error"].startswith("its value ")
    assert message.format(topic_name) in row["error"]
    assert (bytes(row["key"]), bytes(row["value"]), row["partition"], row["offset"]) == (b"k", written, 0, 1)
    assert failed.columns == ["error", "key", "value", "partition", "offset", "timestamp", "headers"]


@pytest.mark.long  # a stream decodes by the expressions of a view; test_streaming_pipelines has one in the quick tier
@pytest.mark.parametrize(("value", "raw"), [pytest.param(*each.values[:2], id=each.id) for each in MALFORMED])
def test_decoding_stream_leaves_out_the_record_that_does_not_decode(
    spark: SparkSession,
    broker: Any,
    settings: Settings,
    registry: FileRegistry,
    tmp_path: Path,
    topic_name: str,
    value: Serde,
    raw: Any,
) -> None:
    topic, _ = write_malformed(broker, registry, FileRegistry(tmp_path / "others"), topic_name, value, raw)
    streamed = drain(stream(spark, topic, registry=registry, settings=settings, malformed="drop"))
    assert [offset for *_, offset, _, _, _ in streamed] == [0, 2]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (["null", "string"], ["UA", None]),
        pytest.param({"type": "array", "items": "string"}, [["a", "b"], []], marks=pytest.mark.long),
        pytest.param({"type": "long"}, [700, 8], marks=pytest.mark.long),
    ],
    ids=["union", "array", "long"],
)
def test_decoding_key_and_value_that_are_no_records_are_told_from_errors(
    spark: SparkSession,
    broker: Any,
    settings: Settings,
    registry: FileRegistry,
    topic_name: str,
    schema: Any,
    values: Any,
) -> None:
    key = Avro(["null", "string"])
    topic = create(broker, topic_name, key=key, value=Avro(schema))
    written = [encode(schema, registry, topic_name, value) for value in values]
    text = bind(key, registry, f"{topic_name}-key").serialize("N1")
    assert text is not None
    writer = Writer(broker, topic_name)
    writer.begin({0: written[0]}, key=b"plain")
    writer.write({1: written[0], 2: written[1]}, key=text)
    writer.write({3: written[0][:-1]}, key=text)
    writer.write({4: written[0]}, key=text[:-1])
    writer.commit()
    found = view(spark, topic, registry=registry, settings=settings, malformed="drop")
    rows = found.select("value", "key", "offset").collect()
    assert [tuple(row) for row in rows] == [(values[0], "N1", 1), (values[1], "N1", 2)]
    rows = (
        view_errors(spark, topic, registry=registry, settings=settings)
        .sort("offset")
        .select("offset", "error")
        .collect()
    )
    assert [tuple(row) for row in rows] == [
        (0, "its key is not in the Avro wire format: read the topic as Bytes() to see it"),
        (3, f"its value does not decode as {topic.value!r}: read the topic as Bytes() to see it"),
        (4, f"its key does not decode as {key!r}: read the topic as Bytes() to see it"),
    ]
    with pytest.raises(PySparkException, match=rf"topic {topic_name}\[0\] offset 3: its value does not decode as Avro"):
        view(spark, topic, registry=registry, settings=settings).where("offset = 3").collect()


def test_malformed_that_is_not_known_is_refused(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    topic = create(broker, topic_name)
    with pytest.raises(SettingsError, match=r"malformed='skip' is not known: choose 'fail' or 'drop'"):
        view(spark, topic, settings=settings, malformed="skip")


def test_topics_of_a_graph_are_tables_of_spark_sql(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    graph = Graph("shop")
    orders = graph.topic(f"{topic_name}.orders", value=String())
    create(broker, orders.name)
    writer = Writer(broker, orders.name)
    writer.begin({0: b"pen", 1: b"\xff"})
    writer.commit()
    assert create_views(spark, graph, settings=settings) == "kstreams"
    table = f"select value from kstreams.`{orders}` order by offset"
    assert [tuple(row) for row in spark.sql(table).collect()] == [("pen",)]
    failed = spark.sql(f"select error, offset from kstreams.`{orders}_errors`").collect()
    assert [tuple(row) for row in failed] == [("its value is not text in UTF-8: read the topic as Bytes()", 1)]
    writer.begin({3: b"ink"})
    writer.commit()
    assert [tuple(row) for row in spark.sql(table).collect()] == [("pen",), ("ink",)]


def test_topic_without_a_view_is_left_out_of_spark_sql_with_a_warning(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph("shop")
    orders = graph.topic(f"{topic_name}.orders", value=String())
    missing = graph.topic(f"{topic_name}.missing", value=String())
    latin = graph.topic(f"{topic_name}.latin", value=String("latin-1"))
    far = graph.topic(f"{topic_name}.far", cluster="west")
    for each in (orders, latin):
        create(broker, each.name)
    create_views(spark, graph, settings=settings)
    tables = {each.name for each in spark.catalog.listTables("kstreams")}
    assert {name for name in tables if name.startswith(topic_name)} == {orders.name, f"{orders}_errors"}
    assert [message[: message.index(":")] for message in caplog.messages] == [
        f"no view of topic {each}" for each in (missing, latin, far)
    ]


def test_decoding_calls_no_python_function_for_a_row(
    spark: SparkSession, broker: Any, settings: Settings, registry: FileRegistry, topic_name: str
) -> None:
    graph = Graph("plans")
    given, shown = graph.topic(create(broker, f"{topic_name}.in").name), dict[str, str]()
    pairs = (Avro({"type": "string"}), Avro(NOW)), (String(), Json()), (Bytes(), Bytes())
    topics = [
        graph.topic(create(broker, f"{topic_name}.{number}").name, key=key, value=value)
        for number, (key, value) in enumerate(pairs)
    ]
    graph.map(given, to=topics, id="writer")(lambda value: {})
    old, new = (cut(graph, [each.name for each in topics], settings=settings) for _ in range(2))
    for topic in topics:
        named: dict[str, Any] = {"registry": registry, "settings": settings}
        whole = view(spark, topic, **named)
        frames = {
            "view": whole,
            "errors": view_errors(spark, topic, **named),
            "cut": view(spark, topic, **named, malformed="drop", start=old, end=new),
            "stream": stream(spark, topic, **named),
        }
        if isinstance(topic.value, Json):
            frames["columns"] = json_columns(whole, "quantity INT")
        shown |= {f"{topic.value!r} {what}": plan(frame) for what, frame in frames.items()}
    assert [what for what, text in shown.items() if "Python" in text] == []
    by_python = whole.select(sf.udf(lambda value: value)("value"))
    assert "Python" in plan(by_python)


def test_reading_plain_values_has_the_plan_of_sparks_reader(
    spark: SparkSession, broker: Any, settings: Settings, topic_name: str
) -> None:
    topic = create(broker, topic_name, key=Bytes(), value=Bytes())
    by_hand = spark.read.format("kafka").options(**options(topic_name, settings)).load()
    ours, theirs = (
        df.selectExpr("count(*)", "sum(length(value))")._jdf.queryExecution().executedPlan().toString()
        for df in (view(spark, topic, settings=settings), by_hand)
    )
    numbers = re.compile(r"(#|plan_id=)\d+L?")
    assert numbers.sub("", ours) == numbers.sub("", theirs)


def plan(df: DataFrame) -> str:
    """The logical and physical plans of a data frame."""
    return str(df._jdf.queryExecution().toString())


def test_decoding_field_with_the_name_of_a_column_is_refused_unless_not_flattened(
    spark: SparkSession, broker: Any, settings: Settings, registry: FileRegistry, topic_name: str
) -> None:
    schema = {"type": "record", "name": "Odd", "fields": [{"name": "Offset", "type": "int"}]}
    topic = create(broker, topic_name, value=Avro(schema))
    writer = Writer(broker, topic_name)
    writer.begin({0: encode(schema, registry, topic_name, {"Offset": 3})})
    writer.commit()
    with pytest.raises(SchemaError, match=rf"topic {topic_name}: field 'Offset' .* use flatten=False"):
        view(spark, topic, registry=registry, settings=settings)
    found = view(spark, topic, registry=registry, settings=settings, flatten=False)
    assert rows(found) == [((3,), None, 0, 0, NOON, None, None)]


def test_decoding_text_in_another_encoding_is_refused(spark: SparkSession, settings: Settings) -> None:
    topic = Graph("spark").topic("latin", value=String("latin-1"))
    with pytest.raises(SchemaError, match=r"topic latin: .* its value is in latin-1: declare it as Bytes"):
        view(spark, topic, settings=settings)


AS_COLUMNS: list[tuple[Any, Any, Any, dict[bytes, Any]]] = [
    (
        record(a="int", b="string", c=of_map("string"), d=array(["null", "string"])),
        {},
        None,
        {
            b"\2\2x\2\2k\2v\0\2\0\0": {"a": 1, "b": "x", "c": {"k": "v"}, "d": [None]},
            b"\2\2x\2\2k\2v\0\2\0\0more": None,
            b"\2\2x\2\2k\2v\0\2\0": None,
            b"\2\2\xff\0\0": None,
            b"\2\2x\2\2\xff\2v\0\0": None,
            b"\2\2x\2\2k\2\xff\0\0": None,
            b"\2\2x\0\2\2\2\xff\0": None,
            b"\2\2x\1\2\0": None,
            b"\2\1x\0\0": None,
            b"": None,
        },
    ),
    (record(a=["null", "int"]), record(a="int"), None, {b"\2\2": {"a": 1}, b"\0": None}),
    (record(a=enum("A", "B")), record(a=enum("A")), None, {b"\0": {"a": "A"}, b"\2": None}),
    (record(a="int", b="double"), record(a="int"), None, {b"\2" + bytes(8): {"a": 1}, b"\2" + bytes(7): None}),
    (["null", record(a="int")], record(a="long"), None, {b"\2\2": {"a": 1}, b"\2\2x": None}),
    (
        record(a=logical("long", "timestamp-millis")),
        record(a=logical("long", "timestamp-micros")),
        "t.R.a was timestamp-millis and is timestamp-micros",
        {b"\2": None},
    ),
    (
        record(a=logical("bytes", "decimal", precision=6, scale=2)),
        record(a=logical("bytes", "decimal", precision=6, scale=4)),
        "t.R.a was decimal(6, 2) and is decimal(6, 4)",
        {b"\2\1": None},
    ),
    (
        record(a=logical("bytes", "decimal", precision=3, scale=2)),
        {},
        None,
        {b"\4\3\xe7": {"a": Decimal("9.99")}, b"\4\3\xe8": None},
    ),
    (
        record(a="int", b=["null", "t.R"]),
        record(a="int"),
        "it has a record that contains itself",
        {b"\2" + b"\2\2" * 9_999 + b"\0": None},
    ),
    ({"type": "string"}, {}, None, {b"\2x": "x", b"\2\xff": None, b"\2xy": None}),
]


def test_decoding_of_avro_has_the_values_of_the_table_in_spark_and_in_python(spark: SparkSession) -> None:
    for writer, other, reason, table in AS_COLUMNS:
        registry = MemoryRegistry(canonical(writer))
        serde = Avro(other or writer)
        topic = Graph("spark").topic("t", value=serde)
        records = [(None, b"\0\0\0\0\1" + body, 0, n) for n, body in enumerate(table)]
        df = spark.createDataFrame(records, "key binary, value binary, partition int, offset long")
        df, decoded = decode(df, topic, "value", registry, fails=False)
        assert decoded.error is not None
        rows = df.sort("offset").select(decoded.column.alias("value"), decoded.error.alias("error")).collect()
        values = [row["value"].asDict() if isinstance(row["value"], Row) else row["value"] for row in rows]
        errors = [row["error"] for row in rows]
        assert [None if error else value for value, error in zip(values, errors, strict=True)] == [*table.values()]
        for body, error, expected in zip(table, errors, table.values(), strict=True):
            try:
                assert serde.bind(registry, "t-value").deserialize(b"\0\0\0\0\1" + body) == expected
            except DecodeError:
                assert expected is None
            assert (error is not None) == (expected is None)
            assert reason is None or reason in error


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (record(a=["null", "t.R"]), "it has a record that contains itself"),
        (record(a="int", A="int"), "its fields 'a' and 'A' differ by case alone"),
        (record(a=array(record("I", b="int", B="int"))), "its fields 'b' and 'B' differ by case alone"),
        (record(), "it has no fields"),
        (record(a=array("null")), "it has an array whose items take no bytes"),
    ],
    ids=["recursive", "case", "case, inside", "no fields", "nulls"],
)
def test_decoding_schema_that_spark_cannot_show_is_refused_with_the_remedy(schema: Any, problem: str) -> None:
    topic = Graph("spark").topic("t", key=Avro(schema))
    for kind in (view, stream, view_errors):
        reader: Any = kind
        with pytest.raises(SchemaError) as raised:
            reader(None, topic, settings=Settings())
        assert str(raised.value) == (
            f"topic t: Spark cannot show Avro(t.R) as columns: {problem}; declare the key as Bytes() for the view"
        )


# Options.

SETTINGS = Settings(bootstrap_servers="a:1,b:2", request_timeout_ms=4000)
COMMON = {
    "subscribe": "flights",
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafkaConsumer.pollTimeoutMs": "8000",
    "kafka.bootstrap.servers": "a:1,b:2",
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "50",
    "kafka.request.timeout.ms": "4000",
    "kafka.default.api.timeout.ms": "8000",
}


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ({}, {"startingOffsets": "earliest", "endingOffsets": "latest"}),
        (
            {"start": {1: 7, 0: -2}, "end": {0: 5, 1: -1}},
            {"startingOffsets": '{"flights": {"0": -2, "1": 7}}', "endingOffsets": '{"flights": {"0": 5, "1": -1}}'},
        ),
        (
            {"start": at(0), "end": at(1.5)},
            {
                "startingTimestamp": str(NOON),
                "startingOffsetsByTimestampStrategy": "latest",
                "endingTimestamp": str(NOON + 1500),
            },
        ),
        ({"streaming": True}, {"startingOffsets": "earliest"}),
        (
            {"streaming": True, "start": "latest", "max_offsets_per_trigger": 9},
            {"startingOffsets": "latest", "maxOffsetsPerTrigger": "9"},
        ),
    ],
)
def test_options_contain_exactly_the_expected_entries(arguments: dict[str, Any], more: dict[str, str]) -> None:
    assert options("flights", SETTINGS, **arguments) == {**COMMON, **more}


def test_options_poll_timeout_is_30_seconds_by_default() -> None:
    assert options("flights", Settings())["kafkaConsumer.pollTimeoutMs"] == "30000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": "latest"}, "start='latest': a view would be empty"),
        ({"end": "earliest"}, "end='earliest': a view would be empty"),
        ({"start": "newest"}, "start='newest': give 'earliest', 'latest', an offset for each partition"),
        ({"start": at(0).replace(tzinfo=None)}, "has no time zone"),
        ({"start": at(1), "end": at(0)}, "is before its start"),
        ({"streaming": True, "end": "latest"}, "a stream has no end"),
    ],
)
def test_options_invalid_bound_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        options("flights", SETTINGS, **arguments)


def client_settings(**kafka: str) -> Settings:
    named = {name.replace("__", "."): value for name, value in kafka.items()}
    return Settings(bootstrap_servers="a:1", kafka=ClientSettings(named))


def extra(settings: Settings) -> dict[str, str]:
    """The options translated from librdkafka's settings."""
    plain_options = options("flights", client_settings())
    return {name: value for name, value in options("flights", settings).items() if name not in plain_options}


def test_options_translate_password_settings_of_a_client_to_java(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    settings = client_settings(
        security__protocol="sasl_ssl",
        sasl__mechanisms="SCRAM-SHA-512",
        sasl__username="jo",
        sasl__password='p"w\\',
        ssl__ca__location=certificates.path("ca.pem"),
        ssl__endpoint__identification__algorithm="none",
        reconnect__backoff__ms="70",
        linger__ms="5",
    )
    assert extra(settings) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="jo" password="p\\"w\\\\";'
        ),
        "kafka.ssl.truststore.location": certificates.path("ca.pem"),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.reconnect.backoff.ms": "70",
    }


def test_options_translate_certificate_settings_of_a_client_to_java(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    settings = client_settings(
        security__protocol="ssl",
        ssl__certificate__location=certificates.path("client.pem"),
        ssl__key__location=certificates.path("client.key"),
        ssl__key__password="pw",
    )
    assert extra(settings) == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.certificate.chain": certificates.client.certificate,
        "kafka.ssl.keystore.key": certificates.client.key,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.key.password": "pw",
    }
    (tmp_path / "client.key").unlink()
    with pytest.raises(SettingsError, match=r"^ssl\.key\.location = .*client\.key' is not a readable file"):
        options("flights", settings)


def test_options_sasl_mechanism_without_a_java_translation_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"sasl\.mechanism GSSAPI .* your own kafka\.sasl\.\*$"):
        options("flights", client_settings(security__protocol="SASL_SSL", sasl__mechanism="GSSAPI"))


def test_options_show_secrets_only_on_request() -> None:
    found = options(
        "flights",
        client_settings(
            security__protocol="SASL_PLAINTEXT", sasl__mechanism="PLAIN", sasl__username="jo", sasl__password="hush"
        ),
    )
    assert "hush" in found["kafka.sasl.jaas.config"]
    assert [text for text in (repr(found), str(found), f"{found}", found.lines()) if "hush" in text] == []
    assert "hush" in found.lines(secrets=True)


def test_options_lines_are_python_code_that_sets_them() -> None:
    lines = options("flights", SETTINGS, start={0: 5}).lines()
    assert lines.splitlines()[-3:] == [
        '.option("kafkaConsumer.pollTimeoutMs", "8000")',
        '.option("startingOffsets", "{\\"flights\\": {\\"0\\": 5}}")',
        '.option("subscribe", "flights")',
    ]
    taken: dict[str, str] = {}

    class Reader:
        def option(self, name: str, value: str) -> Reader:
            taken[name] = value
            return self

    eval(f"(reader\n{lines})", {"reader": Reader()})
    assert taken == options("flights", SETTINGS, start={0: 5})


# Sessions and missing software.


def test_session_uses_the_jars_that_setup_downloads(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.jars") == ",".join(map(str, [*spark_jars(), *table_jars()]))
    assert any(jar.name.startswith("delta-spark_") for jar in table_jars())


@pytest.mark.long  # quick is what Spark is told to run them by, in the next test
def test_python_functions_run_by_the_python_of_the_driver(spark: SparkSession) -> None:
    path = sf.udf(lambda _: sys.executable)
    assert spark.range(1).select(path("id")).collect()[0][0] == sys.executable


def test_session_is_local_in_utc_and_quiet(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert (spark.sparkContext.master, spark.conf.get("spark.sql.session.timeZone")) == ("local[2]", "UTC")
    assert (conf.get("spark.ui.enabled"), conf.get("spark.driver.bindAddress")) == ("false", "127.0.0.1")
    assert spark.sparkContext.pythonExec == sys.executable


@pytest.mark.long  # memory of a session that makes many runs
def test_session_forgets_what_its_pages_would_show(spark: SparkSession) -> None:
    for _ in range(60):
        spark.range(1).collect()
    tracker, store = spark.sparkContext.statusTracker(), spark._jsparkSession.sharedState().statusStore()
    wait_until(lambda: len(tracker.getJobIdsForGroup()) <= 50, "jobs are forgotten")
    wait_until(lambda: store.executionsCount() <= 20, "queries are forgotten")


def in_new_process(code: str, environment: Mapping[str, str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=WAIT,
        check=False,
    )  # fmt: skip
    return ran.stdout + ran.stderr


JSON_VALUES = (b'{"quantity": 1, "note": "a"}', b'{"quantity": 2, "unit_price": 0.5}', None)
JSON_ROWS = [(1, None, "a"), (2, 0.5, None), (None, None, None)]


@pytest.fixture
def orders(broker: Any, settings: Settings, topic_name: str) -> tuple[Topic, Callable[[bytes], None]]:
    """A topic of JSON with JSON_VALUES, and a function that writes one more value."""
    topic = create(broker, topic_name, value=Json())
    producer = ck.Producer({"bootstrap.servers": broker.bootstrap_servers})

    def write(value: bytes | None) -> None:
        producer.produce(topic_name, value)
        producer.flush()

    for value in JSON_VALUES:
        write(value)
    return topic, write


@pytest.mark.parametrize(
    "schema",
    [
        # quick is a schema that is given to values which do not fit
        pytest.param("quantity INT, unit_price DOUBLE, note STRING", id="given", marks=pytest.mark.long),
        pytest.param(None, id="sampled"),
    ],
)
def test_json_values_are_columns_by_a_schema_that_is_given_or_sampled(
    spark: SparkSession, settings: Settings, orders: tuple[Topic, Callable[[bytes], None]], schema: str | None
) -> None:
    df = json_columns(view(spark, orders[0], settings=settings), schema)
    assert df.columns[-6:] == list(META)
    assert sorted(df.columns[:-6]) == ["note", "quantity", "unit_price"]
    found = df.orderBy("offset").select("quantity", "unit_price", "note").collect()
    assert [tuple(row) for row in found] == JSON_ROWS


def test_json_value_that_does_not_fit_the_schema_fails_the_query_and_is_named(
    spark: SparkSession, settings: Settings, orders: tuple[Topic, Callable[[bytes], None]]
) -> None:
    topic, write = orders
    for value in (b'{"quantity": "many"}', b"[1]", b"{"):
        write(value)
    df = json_columns(view(spark, topic, settings=settings), "quantity INT")
    assert [row[0] for row in df.where("offset < 3").orderBy("offset").select("quantity").collect()] == [1, 2, None]
    for offset in (3, 4, 5):
        with pytest.raises(Exception, match=rf"partition 0 offset {offset}: its value does not fit the schema struct"):
            df.where(f"offset = {offset}").select("quantity").collect()
    with pytest.raises(SchemaError, match="a value of the sample is not a JSON object"):
        sampled_schema(view(spark, topic, settings=settings))


def test_json_schema_that_does_not_parse_clashes_or_cannot_be_sampled_is_refused(
    spark: SparkSession, settings: Settings, broker: Any, topic_name: str
) -> None:
    topic = create(broker, topic_name, value=Json())
    empty = view(spark, topic, settings=settings)
    with pytest.raises(SchemaError, match="schema 'quantity' does not parse: write it as"):
        json_columns(empty, "quantity")
    with pytest.raises(SchemaError, match="field 'Offset' has the name of a column that every view has"):
        json_columns(empty, "Offset INT")
    with pytest.raises(SchemaError, match="there is no record to sample"):
        json_columns(empty)
    with pytest.raises(SchemaError, match="a stream cannot be sampled"):
        json_columns(stream(spark, topic, settings=settings))


@pytest.mark.parametrize("read", [view, stream])
def test_topic_that_does_not_exist_is_named_before_any_query(
    spark: SparkSession, settings: Settings, read: Callable[..., DataFrame]
) -> None:
    with pytest.raises(TopicError) as missing:
        read(spark, Graph("spark").topic("no-such-topic"), settings=settings)
    assert str(missing.value) == (
        f"topic 'no-such-topic' does not exist at {settings.bootstrap_servers}: correct its name or create it"
    )


@pytest.mark.parametrize("read", [view, stream])
def test_broker_that_does_not_answer_is_one_message_before_any_query(
    spark: SparkSession, read: Callable[..., DataFrame]
) -> None:
    away = Settings.load(bootstrap_servers="127.0.0.1:9", request_timeout_ms=500)
    with pytest.raises(BrokerUnavailable, match=r"no Kafka broker answers at 127\.0\.0\.1:9 \(.*\): start one"):
        read(spark, Graph("spark").topic("flights"), settings=away)


def test_missing_software_without_pyspark_is_named() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from kstreams_py import spark\n"
        "assert spark.options('flights')['subscribe'] == 'flights'\n"
        "spark.session()"
    )
    assert in_new_process(code, {}).splitlines()[-1] == (
        "kstreams_py.errors.MissingSoftware: PySpark is not installed: run pip install 'kstreams_py[spark]'"
    )


def test_missing_software_java_that_is_absent_or_wrong_is_named(tmp_path: Path) -> None:
    expected = {"none": "java does not run; it needs Java 17 or 21: install it"}
    for version in ("11.0.2", "25.0.1"):
        java = tmp_path / version / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(
            f"""#!/bin/sh\n[ "$1" = -version ] && echo 'openjdk version "{version}"' >&2 && exit 0\nexit 1\n"""
        )
        java.chmod(0o755)
        expected[version] = f"did not start on Java {version.partition('.')[0]}"
    code = (
        "import os\nfrom kstreams_py import errors, spark\n"
        f"for name in {list(expected)!r}:\n"
        f"    os.environ['JAVA_HOME'] = {str(tmp_path)!r} + '/' + name\n"
        "    try:\n        spark.session()\n"
        "    except errors.MissingSoftware as error:\n        print('told', error)"
    )
    told = [line for line in in_new_process(code, {}).splitlines() if line.startswith("told Spark")]
    assert [message in line for message, line in zip(expected.values(), told, strict=True)] == [True] * 3, told


def test_missing_software_session_without_kafka_is_named(settings: Settings) -> None:
    class Bare:
        """A reader of a session without the Kafka packages."""

        read = property(lambda self: self)

        def format(self, name: str) -> Bare:
            return self

        def options(self, **_: str) -> Bare:
            return self

        def load(self) -> None:
            raise AnalysisException("Failed to find data source: kafka.")

    with pytest.raises(MissingSoftware, match=r"Failed to find data source: kafka.*kstreams_py\.spark\.session\(\)"):
        view(Bare(), Graph("spark").topic("flights"), settings=settings)  # type: ignore[arg-type]
