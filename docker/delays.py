"""A Spark job: departed flights and their mean arrival delay by airline, from the committed records."""

from __future__ import annotations

from pyspark.sql import functions as sf

from kstreams_py import Settings, spark
from kstreams_py.demo.flights_graph import departed
from kstreams_py.formats.registries import open_registry

settings = Settings.load()
registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
session = spark.session("delays by airline")
rows = spark.view(session, departed, registry=registry, settings=settings)
delays = rows.groupBy("carrier").agg(sf.count("*").alias("flights"), sf.round(sf.avg("arr_delay"), 2).alias("minutes"))
delays.orderBy("carrier").show(100)
session.stop()
