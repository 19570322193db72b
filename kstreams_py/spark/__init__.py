"""Committed topics as tables in Spark.

In reading order:

start_output    acts     hides what Spark prints while it starts, unless it fails
private_api     adapter  the parts of PySpark that have no public API
sessions        adapter  session(): a SparkSession with Kafka and Avro
reader_options  adapter  options(): where a reader of a topic starts and ends, and how it connects to the brokers
cuts            rule     Cut: offsets of several topics that show each transaction whole
cut_files       adapter  a cut as a file
cutting         acts     cut(): asks the cluster in an order that keeps each transaction whole
cut_filters     adapter  whether a record is inside a cut, as a Spark expression
decoding        adapter  keys and values as columns, and the reason where one does not decode
encoding        adapter  rows as keys and values, the counterpart of decoding
views           adapter  view() and stream(): committed records as columns; view_errors(): what they drop
catalog         adapter  create_views(): the topics of a graph as tables of Spark SQL
json_columns    adapter  json_columns(): JSON values as columns, by a given or sampled schema
pipelines/               tables that a function makes from committed topics
archiving       adapter  writes the archive of Spark's classes by running pipelines once
"""

from kstreams_py.spark.catalog import create_views
from kstreams_py.spark.cut_files import read_cut, write_cut
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.cutting import cut
from kstreams_py.spark.json_columns import json_columns, sampled_schema
from kstreams_py.spark.reader_options import options
from kstreams_py.spark.sessions import delta_conf, session
from kstreams_py.spark.views import stream, view, view_errors

__all__ = [
    "Cut",
    "create_views",
    "cut",
    "delta_conf",
    "json_columns",
    "options",
    "read_cut",
    "sampled_schema",
    "session",
    "stream",
    "view",
    "view_errors",
    "write_cut",
]
