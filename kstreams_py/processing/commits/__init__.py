"""How outputs and offsets are committed: the guarantees, and the producer that they share.

In reading order:

states           rule  the states of a session, and its transitions
attempts         acts  attempts at a request: how often, how long after a failure, when the worker gives up
session          acts  one producer at a time, as the states allow
refused_outputs  rule  outputs that came back, of steps that are not run again
committer        acts  what the guarantees share: uncommitted steps, and how an attempt fails
guarantees       acts  exactly once, at least once, at most once, side by side
journaled        acts  exactly once with a journal: snapshot, choices, attempt and outputs, each durable before the next
storing          acts  the guarantees of processors whose rows are stored in a target
owed             acts  what a worker owes at most once: steps that are committed and were not run
opening          acts  which guarantee a processor has, its journal, what it writes, and where its rows are stored
"""
