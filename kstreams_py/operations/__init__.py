"""Tools for topics: send and print records, replay dead letters, end hanging transactions, move groups, diagnose.

A folder for each command, then the modules that several of them use:

records/       `kstreams send` and `tail`
dead_letters/  `kstreams dead-letters`
recover/       `kstreams recover`
transactions/  `kstreams transactions`
doctor/        `kstreams doctor`
topics         acts  `kstreams topics delete`: topics of what a graph no longer declares, or that are named
sources        acts  `kstreams sources`: what the claims of a graph's sources show, and refused inputs read again
clusters       acts  `kstreams job` and `cluster`: a cluster of peers as a person sees it, and commands for it
order          acts  `kstreams order`: objects of event ordering that are stuck, and the operator's decision on each
acls           rule  `kstreams acls`: the rights that a graph needs, by role, and the commands that grant them
pages          acts  reads the records between two offsets in pages, so that memory is bounded
committed      acts  finds the topics of a graph and reads the committed offsets of its processors
"""
