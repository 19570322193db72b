"""Keyed state: what functions keep from one step to the next, with a changelog that it is restored from.

keyed           rule     the store of one task: the committed part, and above it the uncommitted changes
rocks           adapter  the committed part in RocksDB
changelog       rule     the records of a changelog: changes, and the positions to which they belong
stores          acts     the stores of a worker: restores, writes and rolls them back
reading         acts     reads the committed state from a changelog, while workers write it
"""
