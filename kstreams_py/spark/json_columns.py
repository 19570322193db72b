"""JSON values as columns, by a given or sampled schema."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kstreams_py.errors import SchemaError
from kstreams_py.spark.views import META

with suppress(ImportError):  # whoever has a DataFrame has PySpark
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLED: Final = 1_000
"""The number of records from which a schema is sampled."""

_MALFORMED: Final = "ks_malformed"
"""A field that Spark fills with the text of a value that does not fit the schema."""


def json_columns(df: DataFrame, schema: StructType | str | None = None) -> DataFrame:
    """Returns a view or stream of JSON values with a column for each of their fields, in place of the column `value`.

    - `schema`: the fields, as a StructType or as text (`"quantity INT, unit_price DOUBLE"`); None samples them, which
      only a view allows.

    A field that a value does not have is null, and one that the schema does not have is left out. A value that is not a
    JSON object, or has a field of another type, fails the query that reads it, with partition and offset. Raises
    SchemaError for a schema that does not parse, and for a field with the name of another column.
    """
    fields = _parsed(schema) if schema is not None else sampled_schema(df)
    if clashes := [name for name in fields.names if name.lower() in META]:
        raise SchemaError(
            f"field {clashes[0]!r} has the name of a column that every view has: give a schema without it, or use "
            "pyspark's from_json() on the column `value`"
        )
    marked = StructType([*fields.fields, StructField(_MALFORMED, StringType())])
    decoded = sf.from_json("value", marked, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED})
    # Spark copies an expression into each filter on it; after explode() it is evaluated once
    df = df.withColumn("value", sf.explode(sf.array(decoded)))
    place = (sf.lit("partition "), sf.col("partition"), sf.lit(" offset "), sf.col("offset"))
    why = sf.lit(
        f": its value does not fit the schema {fields.simpleString()}: read it without json_columns() to see it"
    )
    value = sf.when(sf.col("value")[_MALFORMED].isNull(), sf.col("value")).otherwise(
        sf.raise_error(sf.concat(*place, why))
    )
    return df.select(*(value[name].alias(name) for name in fields.names), *META)


def sampled_schema(df: DataFrame, records: int = SAMPLED) -> StructType:
    """Returns the fields of the JSON values in the first `records` of a view, in order of name.

    Raises SchemaError for a stream, for a view without records, and if a value is not a JSON object.
    """
    if df.isStreaming:
        raise SchemaError("a stream cannot be sampled: give json_columns() a schema, such as sampled_schema(view(...))")
    values = [row["value"] for row in df.where(sf.col("value").isNotNull()).select("value").limit(records).collect()]
    if not values:
        raise SchemaError("there is no record to sample: give json_columns() a schema")
    # Spark infers one schema from an array of all values; unlike its JSON reader, this works in Spark Connect
    inferred = sf.schema_of_json(sf.lit(f"[{','.join(values)}]"))
    try:
        (row,) = df.sparkSession.range(1).select(inferred).collect()
        found = _parsed(f"found {row[0]}")["found"].dataType
    except (PySparkException, Py4JError, SchemaError):
        found = None
    if not (isinstance(found, ArrayType) and isinstance(found.elementType, StructType)):
        raise SchemaError("a value of the sample is not a JSON object: give json_columns() a schema")
    return found.elementType


def _parsed(schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    try:
        found = StructType.fromDDL(schema)
    except PySparkException as error:
        raise SchemaError(f"schema {schema!r} does not parse: write it as 'quantity INT, name STRING'") from error
    if not isinstance(found, StructType):
        raise SchemaError(f"schema {schema!r} has no fields: write it as 'quantity INT, name STRING'")
    return found
