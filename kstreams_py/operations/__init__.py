"""Tools for topics: send and print records, replay dead letters, end hanging transactions, move groups, diagnose.

A folder for each command, then the modules that several of them use:

records/       `kstreams send` and `tail`
dead_letters/  `kstreams dead-letters`
recover/       `kstreams recover`
transactions/  `kstreams transactions`
doctor/        `kstreams doctor`
topics         acts  `kstreams topics delete`: deletes topics that a graph no longer needs, or that are named
sources        acts  `kstreams sources`: shows a graph's sources by their claims, and lets refused inputs be read again
clusters       acts  `kstreams job` and `cluster`: describes a cluster of peers in words, and sends it commands
order          acts  `kstreams order`: finds stuck objects of event ordering, and writes an operator's decision on one
acls           rule  `kstreams acls`: the rights that a graph needs, by role, and the commands that grant them
pages          acts  reads the records between two offsets in pages, so that memory is bounded
committed      acts  finds the topics of a graph and reads the committed offsets of its processors
"""
