"""Committed topics as tables in Spark.

In reading order:

sessions        adapter  session(): a SparkSession with Kafka and Avro
reader_options  adapter  options(): where a reader of a topic starts and ends, and how it connects to the brokers
views           adapter  view() and stream(): committed records as columns
"""

from kstreams_py.spark.reader_options import options
from kstreams_py.spark.sessions import session
from kstreams_py.spark.views import stream, view

__all__ = ["options", "session", "stream", "view"]
