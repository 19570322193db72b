"""Keyed state: what functions keep from one step to the next, with a changelog that it is restored from.

keyed           rule     the store of one task: what is committed, and above it what is not
memory          rule     the committed part in memory
rocks           adapter  the committed part in RocksDB
changelog       rule     the records of a changelog: changes, and the positions that they belong to
stores          acts     the stores of a worker: restores, writes and rolls them back
reading         acts     what is committed, read from a changelog beside the workers
"""
