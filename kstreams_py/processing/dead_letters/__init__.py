"""The dead letters of a graph, read back from their topics; their marks; and how many still wait.

In reading order:

letters   rule  a dead letter as it is read back, the selection of dead letters, and their counts
marks     rule  the records that mark dead letters as replayed or as discarded
waiting   rule  which dead letters of a partition still wait, that is, have no mark
counting  acts  counts the waiting dead letters; each call reads a bounded part of the topics
"""
