"""Tools for the topics of a graph: dead letters, listed, shown, replayed.

In reading order:

letters       rule  a dead letter as it is read back, which ones are chosen, and their counts
marks         rule  the records that mark dead letters as replayed
described     acts  dead letters as text and as JSON
reading       acts  reads the dead letters of a graph, and their marks
steps         acts  runs the step of a dead letter through its processor, without writing
transactions  acts  one replay at a time: outputs and marks in one transaction
replay        acts  replays the dead letters that are chosen
"""
