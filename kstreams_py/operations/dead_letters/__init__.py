"""`kstreams dead-letters`: reads the dead letters of a graph, and replays the selected ones.

In reading order:

letters       rule  a dead letter as it is read back, the selection of dead letters, and their counts
marks         rule  the records that mark dead letters as replayed
text          acts  shows dead letters as text and as JSON
reader        acts  reads the dead letters of a graph, and their marks
originals     acts  reads the inputs of dead letters from their topics, and compares both
steps         acts  runs the step of a dead letter through its processor, without writing
transactions  acts  writes outputs and marks in one transaction, and allows one replay at a time
replay        acts  replays the selected dead letters
"""
