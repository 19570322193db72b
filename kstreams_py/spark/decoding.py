"""The bytes of keys and values as columns, and the reason where one does not decode. No row passes through Python."""

from __future__ import annotations

import functools
import json
import operator
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kstreams_py.errors import SchemaError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.bounds import bounds_of
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.schemas import Names, content_id, kind_of, parse
from kstreams_py.formats.serdes import Json, String
from kstreams_py.formats.writers import followed_ids, read_text
from kstreams_py.graph.declarations import Topic

with suppress(ImportError):  # `require_pyspark` raises the error with the remedy
    from pyspark.sql import functions as sf
    from pyspark.sql.avro.functions import from_avro

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_END: Final = "ks_end"
"""A field after all others. A number is appended to each value: the field has it only if the value ends there.

from_avro returns a record of nulls for bytes that it cannot decode, and ignores bytes after a value.
"""

_END_NUMBER: Final = (1 << 61) + secrets.randbits(61)
"""The appended number; no writer of a value can know it."""

_END_BYTES: Final = bytes((_END_NUMBER << 1 >> 7 * n) & 0x7F | 0x80 for n in range(8)) + bytes([_END_NUMBER >> 55])
"""The number as Avro writes it; it has 62 bits."""

_WRAPPED: Final = "ks_value"
"""The field for a value that is not a record: a record of one field has the same bytes (Avro's specification)."""


class Decoded(NamedTuple):
    """A decoded key or value.

    - `column`: the value; null where it does not decode.
    - `fields`: the fields of an Avro record; empty for any other value.
    - `error`: why it does not decode, as text; null where it does. None if the query fails instead.
    """

    column: Column
    fields: Sequence[str]
    error: Column | None


class _Case(NamedTuple):
    """The records that meet a condition: their value, or the reason why they have none."""

    condition: Column
    value: Column | None
    why: str | Column = ""


def check_serdes(topic: Topic) -> None:
    """Raises SchemaError for text encodings and for schemas that Spark does not decode."""
    for part in ("key", "value"):
        serde = getattr(topic, part)
        if isinstance(serde, Avro) and (problem := _unfit(json.loads(serde.schema))):
            raise SchemaError(
                f"topic {topic}: Spark cannot show {serde!r} as columns: {problem}; declare the {part} as Bytes() for "
                "the view"
            )
        if isinstance(serde, String) and serde.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            raise SchemaError(
                f"topic {topic}: Spark reads text in UTF-8, and its {part} is in {serde.encoding}: declare it as "
                "Bytes() for the view, and decode it there with pyspark's decode()"
            )


def decode(
    df: DataFrame, topic: Topic, part: str, registry: Registry | None, *, fails: bool
) -> tuple[DataFrame, Decoded]:
    """Returns the frame of Spark's Kafka reader with the columns that decoding needs, and the decoded part.

    - `part`: "key" or "value".
    - `registry`: as in view().
    - `fails`: whether the query fails at a record that does not decode.
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
    cases, why = _avro_cases(raw, topic, part, registry)
    column, error = _choose(raw, cases, why, topic, part, fails=fails)
    # Spark copies an expression into each filter on it; after explode() it is evaluated once (2 to 7 times as fast)
    name = f"ks_{part}"
    broken = f"does not decode as {serde!r}: read the topic as Bytes() to see it"
    if error is None:
        df, found = df.withColumn(name, sf.explode(sf.array(column))), sf.col(name)
        found = sf.when(found.isNull() | _is_whole(found, reader), found).otherwise(_fail(topic, part, broken))
    else:
        both = sf.struct(column.alias("value"), error.alias("error"))
        df, found, error = df.withColumn(name, sf.explode(sf.array(both))), sf.col(name)["value"], sf.col(name)["error"]
        is_broken = found.isNotNull() & ~_is_whole(found, reader)
        error = sf.coalesce(error, sf.when(is_broken, sf.lit(f"its {part} {broken}")))
    return df, Decoded(found.dropFields(_END) if fields else found[_WRAPPED], fields, error)


def _is_whole(found: Column, reader: Any) -> Column:
    """Returns whether a value from from_avro covers all bytes, and its text is in UTF-8."""
    is_whole = found[_END].eqNullSafe(sf.lit(_END_NUMBER))
    schema, names = parse(reader, "the schema")
    if not _is_record(reader):
        is_text = _is_text(found[_WRAPPED], schema, names)
        return is_whole if is_text is None else is_whole & is_text
    for field in schema["fields"]:
        if (is_text := _is_text(found[field["name"]], field["type"], names)) is not None:
            is_whole &= is_text
    return is_whole


def _is_text(column: Column, schema: Any, names: Names) -> Column | None:
    """Returns whether all text in a column is in UTF-8, which from_avro does not check; None if it has no text."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    found: list[Column | None] = []
    match kind_of(schema, names):
        case "string":
            found = [sf.is_valid_utf8(column)]
        case "array":
            if _is_text(column, schema["items"], names) is not None:
                found = [sf.forall(column, lambda item: _text_of(item, schema["items"], names))]
        case "map":
            found = [sf.forall(sf.map_keys(column), sf.is_valid_utf8)]
            if _is_text(column, schema["values"], names) is not None:
                found.append(sf.forall(sf.map_values(column), lambda value: _text_of(value, schema["values"], names)))
        case "record" | "error":
            found = [_is_text(column[field["name"]], field["type"], names) for field in schema["fields"]]
        case "union":
            branches = [each for each in schema if kind_of(each, names) != "null"]
            columns = [column] if len(branches) == 1 else [column[f"member{n}"] for n in range(len(branches))]
            kinds = {kind_of(each, names) for each in branches}
            if kinds not in ({"int", "long"}, {"float", "double"}):  # Spark makes one type of these
                found = [_is_text(each, branch, names) for each, branch in zip(columns, branches, strict=True)]
    checks = [sf.coalesce(each, sf.lit(True)) for each in found if each is not None]
    return functools.reduce(operator.and_, checks) if checks else None


def _text_of(column: Column, schema: Any, names: Names) -> Column:
    found = _is_text(column, schema, names)
    assert found is not None
    return found


def _choose(
    raw: Column, cases: Sequence[_Case], otherwise: str | Column, topic: Topic, part: str, *, fails: bool
) -> tuple[Column, Column | None]:
    """Returns the value of the first matching case, and the error.

    `otherwise`: the reason why a record that matches no case has no value.
    """
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


def _ended(schema: Any, *, wrapped: bool) -> str:
    """Returns the text of a schema whose records end with the field _END.

    - `wrapped`: the records wrap the values of the schema; otherwise they are its own records.
    """
    whole = _wrap(schema) if wrapped else schema
    return json.dumps({**whole, "fields": [*whole["fields"], {"name": _END, "type": "long"}]})


def _unfit(schema: Any) -> str:
    """Returns why Spark cannot show values of a schema as columns; "" if it can."""
    if _is_record(schema) and not schema["fields"]:
        return "it has no fields"
    for record in parse(schema, "the schema")[1].values():
        names = [field["name"] for field in record.get("fields", ())]
        lower = [name.lower() for name in names]
        if alike := [name for name in names if lower.count(name.lower()) > 1]:
            return f"its fields {' and '.join(map(repr, alike))} differ by case alone"
    return _unsafe(schema)


def _unsafe(schema: Any) -> str:
    """Returns why a value of a schema could end Spark's process or fill its memory; "" if it cannot."""
    bounds = bounds_of(*parse(schema, "the schema"), "the schema")
    if bounds.depth:
        return "it has a record that contains itself"
    return "it has an array whose items take no bytes" if bounds.empty_items else ""


def _wrap(schema: Any) -> Any:
    """Returns the schema of a record with one field, which holds a value of this schema."""
    return {"type": "record", "name": "KsWrapped", "fields": [{"name": _WRAPPED, "type": schema}]}


def _avro_cases(raw: Column, topic: Topic, part: str, registry: Registry | None) -> tuple[list[_Case], Column]:
    """Returns a case for each schema id in the Avro wire format, and why other records do not decode."""
    serde: Avro = getattr(topic, part)
    reader = json.loads(serde.schema)
    head, body = sf.substring(raw, 1, 5), sf.concat(sf.expr(f"substring({part}, 6)"), sf.lit(_END_BYTES))
    no_wire = "is not in the Avro wire format: read the topic as Bytes() to see it"
    cases = list[_Case]()
    for schema_id, text in _writers(serde, registry, f"{topic}-{part}").items():
        value, why = _decoded(body, reader, text, f"the schema with id {schema_id}")
        reason = f"was written with schema {schema_id}, which {serde!r} cannot read: {why}"
        cases.append(_Case(head == sf.lit(b"\0" + schema_id.to_bytes(4)), value, reason))
    cases.append(_Case((sf.length(raw) < 5) | (sf.substring(raw, 1, 1) != sf.lit(b"\0")), None, no_wire))
    remedy = (
        f", which is not under {topic}-{part}: restart the query if it is new, or give the registry of its writer"
        if registry is not None
        else f", which is not that of {serde!r}: give view() or stream() the registry of its writer"
    )
    schema_id_found = sf.conv(sf.hex(sf.substring(raw, 2, 4)), 16, 10)
    return cases, sf.concat(sf.lit("has schema id "), schema_id_found, sf.lit(remedy))


def _decoded(body: Column, reader: Any, text: str, source: str) -> tuple[Column | None, str]:
    """Returns the values of a writer whose schema is `text`, or the reason why there are none."""
    try:
        writer = read_text(text, source)
        why = unreadable(reader, writer, any_value=True) or _unsafe(writer)
    except SchemaError as error:
        why = str(error)
    if why:
        return None, why
    wrapped = not (_is_record(reader) and _is_record(writer))
    how = {"mode": "PERMISSIVE", "avroSchema": _ended(reader, wrapped=wrapped)}
    found = from_avro(body, _ended(json.loads(text), wrapped=wrapped), how)
    if wrapped and _is_record(reader):
        found = sf.when(found[_END].isNotNull(), found[_WRAPPED].withField(_END, found[_END]))
    return found, ""


def _writers(serde: Avro, registry: Registry | None, subject: str) -> dict[int, str]:
    """Returns the schemas of a topic's writers by id, and the reader's own by the id that a file registry gives it."""
    found = {content_id(serde.schema): serde.schema}
    if registry is not None:
        for schema_id in followed_ids(registry, subject, serde.name):
            try:
                found[schema_id] = registry.schema(schema_id)
            except LookupError:  # records with this schema then do not decode, and the reason names the remedy
                continue
            except SchemaError as error:
                found[schema_id] = str(error)
    return found
