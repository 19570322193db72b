"""What kstreams_py costs beside its peers: `python -m bench`, or scripts/bench, which makes the machine ready first.

All contestants run against one broker, one at a time, in every round one after the other, each in a process of its own
as its users start it. They are given the same job: read topics that are full already, write one, commit every 100 ms.

- records/s: offsets that the consumer group has committed, per second, from the first commit after the warm-up to the
  last; then the output is counted, and a run whose output is not whole does not count. A join counts the records of
  both its inputs.
- latency: from before a record is sent until a read_committed reader has it, at 1,000 records/s, each contestant with
  its own defaults.
- memory: what is resident after the first and after the last records of a long run.
- chaos: three workers under 3,000 records/s; `chaos.py`.

The loop by hand is what one writes who knows the client: its fetch settings, `consume` in lists, methods bound outside
the loop, a static member and a transactional id for each slot. It names no step, has no dead letters, and any error
ends it.
"""
