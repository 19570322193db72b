"""Committed records of topics as columns: view() in a batch, stream() continuously; view_errors(): what they drop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from kstreams_py.errors import InputLost, MissingSoftware, SchemaError, SettingsError, TopicError
from kstreams_py.formats.registry import Registry
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.pipelines import DROP, FAIL
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.records import HASH_HEADER, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.spark.cut_filters import header_value, is_inside
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.decoding import check_serdes, decode
from kstreams_py.spark.reader_options import Bound, ReaderOptions, assigned, options
from kstreams_py.spark.sessions import coordinates, require_pyspark

with suppress(ImportError):  # `require_pyspark` raises the error with the remedy
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import functions as sf
    from pyspark.sql.streaming.readwriter import DataStreamReader

META: Final = ("key", "partition", "offset", "timestamp", "headers", "delivery_hash")
"""Columns in addition to the value's; `delivery_hash` is the header `ks-hash`, null if there is none."""

Inspect = Callable[["DataFrame", "Column"], "DataFrame"]
"""Takes the decoded records and the column of their decoding errors, before records with an error are dropped.

Returns the DataFrame from which the view is made.
"""


def view(
    spark: SparkSession,
    topic: Topic,
    *,
    registry: Registry | None = None,
    settings: Settings | None = None,
    start: Bound | Cut | None = None,
    end: Bound | Cut | None = None,
    flatten: bool = True,
    malformed: str = FAIL,
    inspect: Inspect | None = None,
) -> DataFrame:
    """Returns the committed records of a topic, decoded; each action reads them again.

    - `registry`: has the writers' Avro schemas under `<topic>-value`; None if all records have the topic's schema.
    - `settings`: Settings.load() by default.
    - `start`, `end`: see Bound; 'earliest' and 'latest' by default. With a Cut as `end`, the view has the records
      inside it; with an earlier Cut as `start`, it leaves out the records inside that one. In a series of such views,
      each record is in exactly one view.
    - `flatten`: makes a column for each field of an Avro record; otherwise there is one column `value`.
    - `malformed`: with "drop", the view leaves out records that do not decode; view_errors() has them.
    - `inspect`: see Inspect; for example to count records by Spark's `observe`.

    Columns are the value's fields, or `value` if it is not an Avro record, then META. Avro is decoded with the writer's
    schema and resolved to the topic's. JSON and text are strings (`json_columns` makes columns of JSON); everything
    else is binary. A tombstone has nulls in the value's columns.

    By default a record that does not decode makes the query fail, with topic, partition, offset and remedy. Raises
    SchemaError for a field with the name of a column of META, SettingsError for an invalid bound, MissingSoftware for a
    session without Kafka, BrokerUnavailable if no broker answers, TopicError for a topic that does not exist or was
    created again since the cut, and InputLost if records of the cut, or between two cuts, were deleted since.
    """
    settings = settings or Settings.load()
    check_serdes(topic)
    df = _load_batch(spark, topic.name, settings, start, end)
    return _columns(df, topic, registry, flatten=flatten, malformed=malformed, inspect=inspect)


def view_errors(
    spark: SparkSession,
    topic: Topic,
    *,
    registry: Registry | None = None,
    settings: Settings | None = None,
    start: Bound | Cut | None = None,
    end: Bound | Cut | None = None,
) -> DataFrame:
    """Returns the committed records of a topic that do not decode, which `view` with malformed="drop" leaves out.

    Parameters and errors are as in `view`. The columns are `error` (the reason with its remedy), `key` and `value`
    as they were written, `partition`, `offset`, `timestamp` and `headers`.
    """
    check_serdes(topic)
    return _errors(_load_batch(spark, topic.name, settings or Settings.load(), start, end), topic, registry)


def stream(
    spark: SparkSession,
    topic: Topic,
    *,
    registry: Registry | None = None,
    settings: Settings | None = None,
    start: Bound | None = None,
    max_offsets_per_trigger: int | None = None,
    flatten: bool = True,
    malformed: str = FAIL,
    inspect: Inspect | None = None,
) -> DataFrame:
    """Returns what `view` returns, as a stream: from its checkpoint, or without one from `start` (default: 'earliest').

    A batch ends at the last stable offset or after `max_offsets_per_trigger` offsets (None for no limit), markers and
    aborted records included; it can be empty. A query does not know schemas that are registered after its start.
    """
    settings = settings or Settings.load()
    check_serdes(topic)
    found = options(topic.name, settings, start=start, streaming=True, max_offsets_per_trigger=max_offsets_per_trigger)
    df = _load(lambda: spark.readStream, found)
    _check_topic(topic.name, settings)
    return _columns(df, topic, registry, flatten=flatten, malformed=malformed, inspect=inspect)


def _load_batch(
    spark: SparkSession, name: str, settings: Settings, start: Bound | Cut | None, end: Bound | Cut | None
) -> DataFrame:
    """Returns the committed records between two bounds or cuts, as Spark's Kafka reader returns them."""
    if isinstance(start, Cut) or isinstance(end, Cut):
        return _load_cut(spark, name, settings, start, end)
    df = _load(lambda: spark.read, options(name, settings, start=start, end=end))
    _check_topic(name, settings)
    return df


def _load_cut(
    spark: SparkSession, name: str, settings: Settings, start: Bound | Cut | None, end: Bound | Cut | None
) -> DataFrame:
    """Returns the records inside the cut `end`, without those inside the cut `start`."""
    if not isinstance(end, Cut):
        raise SettingsError("start is a cut, but end is not: make a later cut, and give it as end")
    if not isinstance(start, Cut | None):
        raise SettingsError(f"end is a cut, but start={start!r} is not: leave start out, or give an earlier cut")
    spans = end.spans(name, start)
    starts, ends = ({n: getattr(each, bound) for n, each in enumerate(spans)} for bound in ("start", "end"))
    df = _load(lambda: spark.read, assigned(options(name, settings, start=starts, end=ends), name, starts))
    # measured: two filters that leave nothing out take a twentieth of a small run's time
    if not end.is_settled(name):
        df = df.where(is_inside(end, name))
    if start is not None and not start.is_settled(name):
        df = df.where(~is_inside(start, name))
    _check_topic(name, settings, end.topic(name).topic_id, starts)
    return df


def _check_topic(
    name: str, settings: Settings, topic_id: str | None = None, starts: Mapping[int, int] | None = None
) -> None:
    """Asks the cluster for the topic: Spark reports only in a query, after 48 s, that no broker answers.

    - `topic_id`, `starts`: the topic's id and first offsets in a cut; None without a cut.
    """
    cluster = KafkaCluster(settings, patient=True)
    try:
        found = cluster.topics([name]).get(name)
        if found is None:
            raise TopicError(
                f"topic {name!r} does not exist at {settings.bootstrap_servers}: correct its name or create it"
            )
        if topic_id is not None and found.topic_id != topic_id:
            raise TopicError(f"topic {name!r} was deleted and created again since the cut: make a new cut")
        wanted = {TopicPartition(name, number): at for number, at in (starts or {}).items()}
        for tp, first in sorted(cluster.starts(wanted).items()):
            if first > wanted[tp]:
                raise InputLost(
                    f"{tp}: the records from offset {wanted[tp]} to {first - 1} were deleted since the cut: decide "
                    "whether to do without them, and make a new cut"
                )
    finally:
        cluster.close()


def _load(reader: Callable[[], DataFrameReader | DataStreamReader], found: ReaderOptions) -> DataFrame:
    require_pyspark()
    try:
        return reader().format("kafka").options(**found).load()
    except AnalysisException as error:
        raise MissingSoftware(
            f"this SparkSession cannot read Kafka ({error}): make it with kstreams_py.spark.session(), "
            f"or start it with --packages {coordinates()}"
        ) from None


def _columns(
    df: DataFrame,
    topic: Topic,
    registry: Registry | None,
    *,
    flatten: bool,
    malformed: str,
    inspect: Inspect | None,
) -> DataFrame:
    if malformed not in (FAIL, DROP):
        raise SettingsError(f"malformed={malformed!r} is not known: choose {FAIL!r} or {DROP!r}")
    df, key = decode(df, topic, "key", registry, fails=malformed == FAIL)
    df, value = decode(df, topic, "value", registry, fails=malformed == FAIL)
    error = None
    if key.error is not None and value.error is not None:
        error = sf.coalesce(key.error, value.error)
    if inspect is not None:
        df = inspect(df, sf.lit(None) if error is None else error)
    if error is not None:
        df = df.where(error.isNull())
    if flatten and value.fields:
        clashes = [field for field in value.fields if field.lower() in META]
        if clashes:
            raise SchemaError(
                f"topic {topic}: field {clashes[0]!r} of its value has the name of a column that every view has: "
                "use flatten=False, which leaves the value as one column `value`"
            )
        values = [value.column[field].alias(field) for field in value.fields]
    else:
        values = [value.column.alias("value")]
    return df.select(
        *values,
        key.column.alias("key"),
        *META[1:-1],
        header_value(HASH_HEADER).alias("delivery_hash"),
    )


def _errors(df: DataFrame, topic: Topic, registry: Registry | None) -> DataFrame:
    df, key = decode(df, topic, "key", registry, fails=False)
    df, value = decode(df, topic, "value", registry, fails=False)
    assert key.error is not None
    assert value.error is not None
    error = sf.coalesce(key.error, value.error)
    return df.where(error.isNotNull()).select(error.alias("error"), "key", "value", *META[1:-1])
