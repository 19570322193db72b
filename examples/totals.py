"""Reads the committed prices of shop.py with Spark."""

import sys

from shop import priced

import kstreams_py as ks
from kstreams_py import spark

session = spark.session()
try:
    rows = spark.view(session, priced)
except ks.KStreamsError as error:  # no broker answers, or the topic does not exist
    sys.exit(f"error: {error}")
print(rows.select("key", "value", "partition", "offset").orderBy("key").collect())
