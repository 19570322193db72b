"""Committed records of topics as columns: view() in a batch, stream() continuously."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from kstreams_py.errors import InputLost, MissingSoftware, SchemaError, SettingsError, TopicError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.schemas import content_id
from kstreams_py.formats.serdes import Json, String
from kstreams_py.graph.declarations import Topic
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.records import HASH_HEADER, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.spark.cut_filters import header_value, is_inside
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.reader_options import Bound, Options, assigned, options
from kstreams_py.spark.sessions import coordinates, require_pyspark

with suppress(ImportError):  # `require_pyspark` raises the error with the remedy
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import functions as sf
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.streaming.readwriter import DataStreamReader

META: Final = ("key", "partition", "offset", "timestamp", "headers", "delivery_hash")
"""Columns in addition to the value's; `delivery_hash` is the header `ks-hash`, null without one."""


def view(
    spark: SparkSession,
    topic: Topic,
    *,
    registry: Registry | None = None,
    settings: Settings | None = None,
    start: Bound | Cut | None = None,
    end: Bound | Cut | None = None,
    flatten: bool = True,
) -> DataFrame:
    """Returns the committed records of a topic, decoded; each action reads them again.

    - `registry`: has the writers' Avro schemas under `<topic>-value`; None if all records have the topic's schema.
    - `settings`: Settings.load() by default.
    - `start`, `end`: see Bound; 'earliest' and 'latest' by default. With a Cut as `end`, what is inside it; with an
      earlier Cut as `start`, too, without what is inside that one. Each record then is in one of such views.
    - `flatten`: a column for each field of an Avro record; otherwise one column `value`.

    Columns are the value's fields, or `value` if it is not an Avro record, then META. Avro is decoded with the writer's
    schema and resolved to the topic's. JSON and text are strings (`json_columns` makes columns of JSON), all else is
    binary. A tombstone is null everywhere.

    A record that does not decode fails the query that reads it, with topic, partition, offset and remedy. Raises
    SchemaError for a field with the name of a column of META, SettingsError for an invalid bound, MissingSoftware for a
    session without Kafka, BrokerUnavailable if no broker answers, TopicError for a topic that does not exist or was
    created again since the cut, and InputLost if records between two cuts, or of one, were deleted since.
    """
    settings = settings or Settings.load()
    if isinstance(start, Cut) or isinstance(end, Cut):
        return _columns(_load_cut(spark, topic.name, settings, start, end), topic, registry, flatten=flatten)
    found = options(topic.name, settings, start=start, end=end)
    df = _columns(_load(lambda: spark.read, found), topic, registry, flatten=flatten)
    _check_topic(topic.name, settings)
    return df


def stream(
    spark: SparkSession,
    topic: Topic,
    *,
    registry: Registry | None = None,
    settings: Settings | None = None,
    start: Bound | None = None,
    max_offsets_per_trigger: int | None = None,
    flatten: bool = True,
) -> DataFrame:
    """Like `view`, as a stream: from its checkpoint, or from `start` ('earliest' by default) if it has none.

    A batch ends at the last stable offset or after `max_offsets_per_trigger` offsets (None for no limit), markers and
    aborted records included; it can be empty. A query does not know schemas that are registered after its start.
    """
    settings = settings or Settings.load()
    found = options(topic.name, settings, start=start, streaming=True, max_offsets_per_trigger=max_offsets_per_trigger)
    df = _columns(_load(lambda: spark.readStream, found), topic, registry, flatten=flatten)
    _check_topic(topic.name, settings)
    return df


def _load_cut(
    spark: SparkSession, name: str, settings: Settings, start: Bound | Cut | None, end: Bound | Cut | None
) -> DataFrame:
    """The records inside the cut `end`, without those inside the cut `start`."""
    if not isinstance(end, Cut):
        raise SettingsError("start is a cut, and end is none: make a later cut, and give it as end")
    if not isinstance(start, Cut | None):
        raise SettingsError(f"end is a cut, and start={start!r} is none: leave it out, or give an earlier cut")
    spans = end.spans(name, start)
    starts, ends = ({n: getattr(each, bound) for n, each in enumerate(spans)} for bound in ("start", "end"))
    df = _load(lambda: spark.read, assigned(options(name, settings, start=starts, end=ends), name, starts))
    df = df.where(is_inside(end, name))
    if start is not None:
        df = df.where(~is_inside(start, name))
    _check_topic(name, settings, end.topic(name).topic_id, starts)
    return df


def _check_topic(
    name: str, settings: Settings, topic_id: str | None = None, starts: Mapping[int, int] | None = None
) -> None:
    """Asks the cluster for the topic: Spark tells of a broker that does not answer only in a query, after 48 s.

    - `topic_id`, `starts`: those of the topic in a cut; None without one.
    """
    cluster = KafkaCluster(settings)
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


def _load(reader: Callable[[], DataFrameReader | DataStreamReader], found: Options) -> DataFrame:
    require_pyspark()
    try:
        return reader().format("kafka").options(**found).load()
    except AnalysisException as error:
        raise MissingSoftware(
            f"this SparkSession cannot read Kafka ({error}): make it with kstreams_py.spark.session(), "
            f"or start it with --packages {coordinates()}"
        ) from None


_DECODED: Final = "ks_decoded"
"""A field with the default true, added to the reader's schema.

from_avro returns a record of nulls for bytes that it cannot decode; in a decoded record this field is true.
"""

Fail = Callable[["str | Column"], "Column"]


def _columns(df: DataFrame, topic: Topic, registry: Registry | None, *, flatten: bool) -> DataFrame:
    df, key, key_fields = _decode(df, topic, "key", registry)
    df, value, value_fields = _decode(df, topic, "value", registry)
    if flatten and value_fields:
        clashes = [field for field in value_fields if field.lower() in META]
        if clashes:
            raise SchemaError(
                f"topic {topic}: field {clashes[0]!r} of its value has the name of a column that every view has: "
                "use flatten=False, which leaves the value as one column `value`"
            )
        values = [value[field].alias(field) for field in value_fields]
    else:
        values = [_without_mark(value, value_fields).alias("value")]
    return df.select(
        *values,
        _without_mark(key, key_fields).alias("key"),
        *META[1:-1],
        header_value(HASH_HEADER).alias("delivery_hash"),
    )


def _without_mark(column: Column, fields: Sequence[str]) -> Column:
    return column.dropFields(_DECODED) if fields else column


def _decode(
    df: DataFrame, topic: Topic, part: str, registry: Registry | None
) -> tuple[DataFrame, Column, Sequence[str]]:
    """Returns a frame, its column with the decoded key or value, and the fields if that is an Avro record."""
    serde, raw = getattr(topic, part), sf.col(part)

    def fail(why: str | Column) -> Column:
        place = (sf.lit(f"topic {topic}["), sf.col("partition"), sf.lit("] offset "), sf.col("offset"))
        return sf.raise_error(sf.concat(*place, sf.lit(f": its {part} "), sf.lit(why)))

    if isinstance(serde, String | Json):
        if isinstance(serde, String) and serde.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            raise SchemaError(
                f"topic {topic}: Spark reads text in UTF-8, and its {part} is in {serde.encoding}: declare it as "
                "Bytes() for the view, and decode it there with pyspark's decode()"
            )
        text = raw.cast("string")
        checked = sf.when(sf.is_valid_utf8(text), text).otherwise(
            fail("is not text in UTF-8: read the topic as Bytes()")
        )
        return df, sf.when(raw.isNull(), None).otherwise(checked), ()
    if not isinstance(serde, Avro):
        return df, raw, ()
    reader = json.loads(serde.schema)
    fields = [field["name"] for field in reader["fields"]] if _is_record(reader) else []
    # Spark copies an expression into each filter on it; after explode() it is evaluated once (2 to 7 times as fast)
    df = df.withColumn(part, sf.explode(sf.array(_from_wire(raw, topic, part, registry, fail))))
    if not fields:
        return df, raw, ()
    broken = fail(f"does not decode as {serde!r}: read the topic as Bytes() to see it")
    return df, sf.when(raw.isNull() | raw[_DECODED], raw).otherwise(broken), fields


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "record"


def _from_wire(raw: Column, topic: Topic, part: str, registry: Registry | None, fail: Fail) -> Column:
    """Decodes Avro in the wire format, with the schema whose id each record has."""
    serde: Avro = getattr(topic, part)
    reader = json.loads(serde.schema)
    how = {"mode": "FAILFAST", "avroSchema": serde.schema}
    if _is_record(reader):
        marked = [*reader["fields"], {"name": _DECODED, "type": "boolean", "default": True}]
        how = {"mode": "PERMISSIVE", "avroSchema": json.dumps({**reader, "fields": marked})}
    head, body = sf.substring(raw, 1, 5), sf.expr(f"substring({part}, 6)")
    cases = sf.when(raw.isNull(), None)
    for schema_id, writer in _writers(serde.schema, registry, f"{topic}-{part}").items():
        problem = unreadable(reader, json.loads(writer))
        decoded = (
            fail(f"was written with schema {schema_id}, which {serde!r} cannot read: {problem}")
            if problem
            else from_avro(body, writer, how)
        )
        cases = cases.when(head == sf.lit(b"\0" + schema_id.to_bytes(4)), decoded)
    schema_id_found = sf.conv(sf.hex(sf.substring(raw, 2, 4)), 16, 10)
    remedy = (
        f", which is not under {topic}-{part}: restart the query if it is new, or give the registry of its writer"
        if registry is not None
        else f", which is not that of {serde!r}: give view() or stream() the registry of its writer"
    )
    unknown = fail(sf.concat(sf.lit("has schema id "), schema_id_found, sf.lit(remedy)))
    no_wire = fail("is not in the Avro wire format: read the topic as Bytes() to see it")
    return cases.when((sf.length(raw) < 5) | (sf.substring(raw, 1, 1) != sf.lit(b"\0")), no_wire).otherwise(unknown)


def _writers(own: str, registry: Registry | None, subject: str) -> dict[int, str]:
    """The schemas of a topic's writers, by id: the reader's own, with its id in a file registry, and the registry's."""
    found = {content_id(own): own}
    if registry is not None:
        for schema_id in registry.ids(subject):
            with suppress(LookupError):  # its records then fail the query, with the remedy
                found[schema_id] = registry.schema(schema_id)
    return found
