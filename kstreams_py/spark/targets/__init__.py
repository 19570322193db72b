"""Tables of pipelines: rows and the cut they are made of, stored in one atomic step.

In reading order:

opening     adapter  open_target(): the target of a pipeline
parquet     adapter  Parquet files, published by one manifest
postgresql  adapter  a table in PostgreSQL
delta       adapter  a table of Delta Lake, whose log has the runs
kafka       adapter  a topic: records and runs in one transaction
"""
