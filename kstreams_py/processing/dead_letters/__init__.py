"""The dead letters of a graph as they are read back, their marks, and how many of them wait.

In reading order:

letters   rule  a dead letter as it is read back, the selection of dead letters, and their counts
marks     rule  the records that mark dead letters as replayed or as discarded
waiting   rule  the offsets of a partition whose dead letters wait: they have no mark
counting  acts  counts the dead letters that wait, a bounded part of the topics at a time
"""
