"""Which records are next: a task is one processor on one partition number.

In reading order:

ledger     rule  how far each input partition is processed, and how far committed
choices    rule  which input each coming step of an alts reads
intake     rule  the steps that a worker takes from its tasks together
task       rule  one processor on one partition number, and the records that wait in it
ready      rule  the steps that are ready to be run, by arrival or by partition
tasks      rule  routes records to tasks, and takes the steps that are ready
waits      acts  partitions that wait before a step is run again
committed  acts  reads the committed offsets of the group
"""
