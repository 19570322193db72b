"""Benchmarks of kstreams_py and its peers: `python -m bench`, or scripts/bench, which sets the machine up first.

The contestants run against one broker, one after the other in every round, each in a process of its own, started as its
users start it. All have the same job: read topics that are already filled, write one, commit every 100 ms.

- records/s: offsets that the consumer group has committed, per second, from the first commit after the warm-up to the
  last. Then the output is counted; a run with an incomplete output does not count. A join counts the records of both
  its inputs.
- latency: from before a record is sent until a read_committed reader has it, at 1,000 records/s, each contestant with
  its own defaults.
- memory: resident memory after the first and the last records of a long run.
- chaos: three workers under 3,000 records/s; see chaos.py.

`python -m bench.idle` measures the cost of an idle worker and of its /metrics. `python -m bench.spark` measures the
cost of views, cuts and pipelines on Spark.

The loop by hand is written as by a user who knows the client well: with its fetch settings, `consume` in lists, methods
bound outside the loop, a static member and a transactional id for each slot. It has no steps and no dead letters, and
any error ends it.
"""
