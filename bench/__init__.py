"""Benchmarks of kstreams_py and its peers: `python -m bench`, or scripts/bench, which sets the machine up first.

The contestants run against one broker, one at a time, in every round one after the other, each in a process of its own
as its users start it. All have the same job: read topics that are filled already, write one, commit every 100 ms.

- records/s: offsets that the consumer group has committed, per second, from the first commit after the warm-up to the
  last. Then the output is counted; a run with an incomplete output does not count. A join counts the records of both
  its inputs.
- latency: from before a record is sent until a read_committed reader has it, at 1,000 records/s, each contestant with
  its own defaults.
- memory: resident memory after the first and after the last records of a long run.
- chaos: three workers under 3,000 records/s; see chaos.py.

`python -m bench.idle` measures alone what an idle worker costs, and its /metrics; `python -m bench.spark` what views,
cuts and pipelines on Spark cost.

The loop by hand is as a user writes it who knows the client well: its fetch settings, `consume` in lists, methods bound
outside the loop, a static member and a transactional id for each slot. It has no steps and no dead letters, and any
error ends it.
"""
