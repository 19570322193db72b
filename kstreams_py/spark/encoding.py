"""Rows as the keys and values of records, the counterpart of decoding.py. No row passes through Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kstreams_py.errors import SettingsError
from kstreams_py.formats.avro import Avro
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import Json, Serde, String
from kstreams_py.graph.declarations import Topic
from kstreams_py.spark.decoding import check_serdes
from kstreams_py.spark.pipelines.frames import column

with suppress(ImportError):  # whoever has a DataFrame has PySpark
    from pyspark.sql import functions as sf
    from pyspark.sql.avro.functions import from_avro, to_avro

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY, VALUE = "key", "value"

_WHOLE: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
"""Options of JSON: without them Spark leaves out fields that are null, and cuts microseconds."""

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")


class Encoder:
    """Turns rows into the records of a topic.

    The key is the named column, otherwise the column `key`; null without one. The value is the column `value`, or a
    record or object of the columns. For JSON, text is taken as it is, and other types are converted.
    """

    def __init__(self, what: str, topic: Topic, registry: Registry, key: str | None) -> None:
        """`what`: names the rows in messages. `key`: the column of the key; None for `key`, if the rows have it."""
        check_serdes(topic)
        self._what, self._topic, self._registry, self._key = what, topic, registry, key

    def encode(self, rows: DataFrame) -> DataFrame:
        """Returns the columns `key` and `value`, as bytes.

        Registers the schemas of Avro. Raises SettingsError for columns that the topic does not take.
        """
        kinds = dict(rows.dtypes)
        name = self._key or (KEY if KEY in kinds else None)
        key = sf.lit(None).cast("binary") if name is None else self._encode_column(rows, name, KEY)
        return rows.select(key.alias(KEY), self._encode_value(rows, kinds, name).alias(VALUE))

    def _encode_value(self, rows: DataFrame, kinds: Mapping[str, str], key: str | None) -> Column:
        """Returns the value; it may include the column of the key, unless that is called `key`."""
        serde = self._topic.value
        names = [name for name in kinds if name != KEY]
        record = record_fields(serde)
        if record is None and (VALUE in kinds or not isinstance(serde, Json)):
            if VALUE not in kinds or (left := [name for name in names if name not in (VALUE, key)]):
                found = "no column `value`" if VALUE not in kinds else f"a column {left[0]!r} beside `value`"
                raise SettingsError(
                    f"{self._what}: its rows have {found}, and values of topic {self._topic} are {serde!r}: return "
                    "`key` and `value`, or give the topic Json() or an Avro record"
                )
            return self._encode_column(rows, VALUE, VALUE)
        if record is None:
            return sf.to_json(sf.struct(*map(column, names)), _WHOLE).cast("binary")
        assert isinstance(serde, Avro)
        if missing := [name for name in record if name not in names]:
            raise SettingsError(f"{self._what}: its rows have no column {missing[0]!r}, which {serde!r} has: return it")
        if foreign := [name for name in names if name not in record and name != key]:
            raise SettingsError(f"{self._what}: {serde!r} has no field {foreign[0]!r}: leave that column out")
        return self._to_avro(rows, serde, VALUE, {name: kinds[name] for name in record})

    def _encode_column(self, rows: DataFrame, name: str, part: str) -> Column:
        """Returns a column as a key or value."""
        serde: Serde = getattr(self._topic, part)
        content, kind = column(name), dict(rows.dtypes)[name]
        if isinstance(serde, Avro):
            return self._to_avro(rows, serde, part, {name: kind})
        if isinstance(serde, Json) and kind != "string":
            is_nested = kind.startswith(("struct", "array", "map"))
            content, kind = (sf.to_json(content, _WHOLE) if is_nested else content.cast("string")), "string"
        wanted = "string" if isinstance(serde, String | Json) else "binary"
        if kind != wanted:
            raise SettingsError(
                f"{self._what}: column {name!r} is {kind}, and the {part} of topic {self._topic} is {serde!r}: return "
                f"it as {wanted}"
            )
        return content.cast("binary")

    def _to_avro(self, rows: DataFrame, serde: Avro, part: str, kinds: Mapping[str, str]) -> Column:
        """Returns a record of the columns, or the only column, in the wire format; null where that column is null."""
        is_record = record_fields(serde) is not None
        reader = rows.sparkSession.range(0).select(from_avro(sf.lit(b""), serde.schema).alias(VALUE))
        taken = dict(reader.select(f"{VALUE}.*").dtypes) if is_record else dict.fromkeys(kinds, reader.dtypes[0][1])
        columns = []
        for name, kind in kinds.items():
            wanted = taken[name]
            if kind != wanted and not (kind in _INTEGERS and wanted in _INTEGERS):  # Spark refuses values that overflow
                raise SettingsError(
                    f"{self._what}: column {name!r} is {kind}, and {serde!r} takes {wanted}: cast it to that"
                )
            columns.append(column(name).cast(wanted).alias(name))
        schema_id = self._registry.register(f"{self._topic}-{part}", serde.schema)
        content = to_avro(sf.struct(*columns) if is_record else columns[0], serde.schema)
        encoded = sf.concat(sf.lit(b"\0" + schema_id.to_bytes(4)), content)
        return encoded if is_record else sf.when(columns[0].isNotNull(), encoded)


def record_fields(serde: Serde) -> list[str] | None:
    """Returns the names of the fields of an Avro record; None for any other value."""
    if not isinstance(serde, Avro):
        return None
    schema = json.loads(serde.schema)
    is_record = isinstance(schema, dict) and schema["type"] == "record"
    return [field["name"] for field in schema["fields"]] if is_record else None
