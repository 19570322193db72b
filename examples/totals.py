"""Reads the committed prices of shop.py with Spark."""

from shop import priced

from kstreams_py import spark

session = spark.session()
rows = spark.view(session, priced)
print(rows.select("key", "value", "partition", "offset").orderBy("key").collect())
