"""Committed topics as tables in Spark.

In reading order:

sessions        adapter  session(): a SparkSession with Kafka and Avro
reader_options  adapter  options(): where a reader of a topic starts and ends, and how it connects to the brokers
views           adapter  view() and stream(): committed records as columns
json_columns    adapter  json_columns(): JSON values as columns, by a schema that is given or sampled
"""

from kstreams_py.spark.json_columns import json_columns, sampled_schema
from kstreams_py.spark.reader_options import options
from kstreams_py.spark.sessions import session
from kstreams_py.spark.views import stream, view

__all__ = ["json_columns", "options", "sampled_schema", "session", "stream", "view"]
