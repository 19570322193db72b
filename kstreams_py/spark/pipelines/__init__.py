"""Pipelines: a function over committed topics, whose rows and cut its target stores in one atomic step.

In reading order:

inputs      adapter  the inputs of a pipeline as DataFrames, and the counts of records that its jobs read
places      rule     where runs end: the places of a stream's batches, and the ends of each run as text
runs        rule     the runs of a pipeline as its target stores them
frames      adapter  calls a pipeline's function, and turns Spark's errors into messages
parquet     adapter  Parquet files, published by one manifest
postgresql  adapter  a table in PostgreSQL
delta       adapter  a table of Delta Lake, whose log has the runs
kafka       adapter  a topic: records and runs in one transaction
targets     adapter  open_target(): the target of a pipeline
runner      acts     runs pipelines: the target stores rows and cut in one step
streaming   acts     runs streaming pipelines: the target stores each batch and its place in one step
driver      acts     runs several pipelines: batches one after another, and streams beside them
history     adapter  the runs of pipelines as an HTML page
"""
