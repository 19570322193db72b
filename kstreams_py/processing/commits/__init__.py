"""How outputs and offsets are committed: the guarantees, and the producer that they share.

In reading order:

states           rule  the states of a session, and its transitions
attempts         acts  attempts at a request: how many, how long to wait between them, when the worker gives up
session          acts  one producer at a time, as the states allow
tally            rule  counts steps once it is known whether they are committed
refused_outputs  rule  outputs that the broker refused, whose steps are not run again
committer        acts  the base of the guarantees: uncommitted steps, and failed attempts
guarantees       acts  exactly once, at least once, at most once, side by side
journaled        acts  exactly once with a journal: snapshot, choices, attempt and outputs, each durable before the next
storing          acts  the guarantee of processors whose target stores the offsets with the rows
owed             acts  the steps that a worker owes under at_most_once: they are committed, but were not run
opening          acts  the guarantee of a processor, its journal, and the partitions that it writes
"""
