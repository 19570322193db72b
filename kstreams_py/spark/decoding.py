"""The bytes of keys and values as columns, and why some do not decode. No row passes through Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kstreams_py.errors import SchemaError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.schemas import content_id
from kstreams_py.formats.serdes import Json, String
from kstreams_py.graph.declarations import Topic

with suppress(ImportError):  # `require_pyspark` raises the error with the remedy
    from pyspark.sql import functions as sf
    from pyspark.sql.avro.functions import from_avro

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DECODED: Final = "ks_decoded"
"""A field with the default true, added to a reader's schema all of whose fields may be null.

from_avro returns a record of nulls for bytes that it cannot decode; in a decoded record this field is true.
"""

_NEVER_NULL: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")
"""Types of Avro of which a decoded field is never null."""

_WRAPPED: Final = "ks_value"
"""The field with a value that is no record: a record of one field has the bytes of that (Avro's specification)."""


class Decoded(NamedTuple):
    """A decoded key or value.

    - `column`: the value; null where it does not decode.
    - `fields`: of an Avro record; empty for any other value.
    - `error`: why it does not decode, as text; null where it does. None if the query fails instead.
    """

    column: Column
    fields: Sequence[str]
    error: Column | None


class _Case(NamedTuple):
    """What some records have: a value, or the reason why they have none."""

    condition: Column
    value: Column | None
    why: str | Column = ""


def check_encodings(topic: Topic) -> None:
    """Raises SchemaError for text that Spark does not decode."""
    for part in ("key", "value"):
        serde = getattr(topic, part)
        if isinstance(serde, String) and serde.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            raise SchemaError(
                f"topic {topic}: Spark reads text in UTF-8, and its {part} is in {serde.encoding}: declare it as "
                "Bytes() for the view, and decode it there with pyspark's decode()"
            )


def decode(
    df: DataFrame, topic: Topic, part: str, registry: Registry | None, *, fails: bool
) -> tuple[DataFrame, Decoded]:
    """Returns a frame with what has to be added to that of Spark's Kafka reader, and the columns of one part.

    - `part`: "key" or "value".
    - `registry`: as in view().
    - `fails`: the query fails at a record that does not decode.
    """
    serde, raw = getattr(topic, part), sf.col(part)
    if isinstance(serde, String | Json):
        text = raw.cast("string")
        no_text = "is not text in UTF-8: read the topic as Bytes()"
        column, error = _choose(raw, [_Case(sf.is_valid_utf8(text), text)], no_text, topic, part, fails=fails)
        return df, Decoded(column, (), error)
    if not isinstance(serde, Avro):
        return df, Decoded(raw, (), None if fails else sf.lit(None).cast("string"))
    reader = json.loads(serde.schema)
    fields = [field["name"] for field in reader["fields"]] if _is_record(reader) else []
    marker = _marker(_shape(reader))
    cases, why = _avro_cases(raw, topic, part, registry)
    column, error = _choose(raw, cases, why, topic, part, fails=fails)
    # Spark copies an expression into each filter on it; after explode() it is evaluated once (2 to 7 times as fast)
    name = f"ks_{part}"
    broken = f"does not decode as {serde!r}: read the topic as Bytes() to see it"
    if error is None:
        df, found = df.withColumn(name, sf.explode(sf.array(column))), sf.col(name)
        found = sf.when(found.isNull() | found[marker].isNotNull(), found).otherwise(_fail(topic, part, broken))
    else:
        both = sf.struct(column.alias("value"), error.alias("error"))
        df, found, error = df.withColumn(name, sf.explode(sf.array(both))), sf.col(name)["value"], sf.col(name)["error"]
        is_broken = found.isNotNull() & found[marker].isNull()
        error = sf.coalesce(error, sf.when(is_broken, sf.lit(f"its {part} {broken}")))
    if marker == _DECODED and fields:
        found = found.dropFields(_DECODED)
    return df, Decoded(found if fields else found[_WRAPPED], fields, error)


def _choose(
    raw: Column, cases: Sequence[_Case], otherwise: str | Column, topic: Topic, part: str, *, fails: bool
) -> tuple[Column, Column | None]:
    """The value of the first case that holds, and the error; `otherwise` is why a record of no case has no value."""
    nothing = sf.lit(None)

    def value_of(case: _Case) -> Column:
        if case.value is not None:
            return case.value
        return _fail(topic, part, case.why) if fails else nothing

    value = error = sf.when(raw.isNull(), nothing)
    for case in cases:
        value = value.when(case.condition, value_of(case))
        error = error.when(case.condition, nothing if case.value is not None else _explain(part, case.why))
    if fails:
        return value.otherwise(_fail(topic, part, otherwise)), None
    return value, error.otherwise(_explain(part, otherwise))


def _explain(part: str, why: str | Column) -> Column:
    return sf.concat(sf.lit(f"its {part} "), sf.lit(why))


def _fail(topic: Topic, part: str, why: str | Column) -> Column:
    place = (sf.lit(f"topic {topic}["), sf.col("partition"), sf.lit("] offset "), sf.col("offset"), sf.lit(": "))
    return sf.raise_error(sf.concat(*place, _explain(part, why)))


def _is_record(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "record"


def _shape(reader: Any) -> Any:
    """The schema of the records that are decoded: the reader's, or of a record around its value."""
    return reader if _is_record(reader) else _wrap(reader)


def _marker(shape: Any) -> str:
    """A field that is null only in what does not decode: one of the schema's, or else _DECODED.

    Measured: to resolve an added field takes a tenth of the time of decoding.
    """
    never_null = (field["name"] for field in shape["fields"] if field["type"] in _NEVER_NULL)
    return next(never_null, _DECODED)


def _wrap(schema: Any) -> Any:
    """The schema of a record of one field, with a value of this schema."""
    return {"type": "record", "name": "KsWrapped", "fields": [{"name": _WRAPPED, "type": schema}]}


def _avro_cases(raw: Column, topic: Topic, part: str, registry: Registry | None) -> tuple[list[_Case], Column]:
    """The cases of Avro in the wire format, each record with the schema whose id it has; why others do not decode."""
    serde: Avro = getattr(topic, part)
    reader = json.loads(serde.schema)
    is_wrapped = not _is_record(reader)
    shape = _shape(reader)
    if _marker(shape) == _DECODED:
        shape = {**shape, "fields": [*shape["fields"], {"name": _DECODED, "type": "boolean", "default": True}]}
    how = {"mode": "PERMISSIVE", "avroSchema": json.dumps(shape)}
    head, body = sf.substring(raw, 1, 5), sf.expr(f"substring({part}, 6)")
    no_wire = "is not in the Avro wire format: read the topic as Bytes() to see it"
    cases = list[_Case]()
    for schema_id, writer in _writers(serde.schema, registry, f"{topic}-{part}").items():
        problem = unreadable(reader, json.loads(writer))
        written = json.dumps(_wrap(json.loads(writer))) if is_wrapped else writer
        value = None if problem else from_avro(body, written, how)
        why = f"was written with schema {schema_id}, which {serde!r} cannot read: {problem}"
        cases.append(_Case(head == sf.lit(b"\0" + schema_id.to_bytes(4)), value, why))
    cases.append(_Case((sf.length(raw) < 5) | (sf.substring(raw, 1, 1) != sf.lit(b"\0")), None, no_wire))
    remedy = (
        f", which is not under {topic}-{part}: restart the query if it is new, or give the registry of its writer"
        if registry is not None
        else f", which is not that of {serde!r}: give view() or stream() the registry of its writer"
    )
    schema_id_found = sf.conv(sf.hex(sf.substring(raw, 2, 4)), 16, 10)
    return cases, sf.concat(sf.lit("has schema id "), schema_id_found, sf.lit(remedy))


def _writers(own: str, registry: Registry | None, subject: str) -> dict[int, str]:
    """The schemas of a topic's writers, by id: the reader's own, with its id in a file registry, and the registry's."""
    found = {content_id(own): own}
    if registry is not None:
        for schema_id in registry.ids(subject):
            with suppress(LookupError):  # its records then do not decode, and the reason names the remedy
                found[schema_id] = registry.schema(schema_id)
    return found
