"""`kstreams dead-letters`: reads the dead letters of a graph, and replays or discards the selected ones.

In reading order:

text          acts  shows dead letters as text and as JSON
reader        acts  reads the dead letters of a graph, and their marks
originals     acts  reads the inputs of dead letters from their topics, and compares them with the copies
steps         acts  runs the step of a dead letter through its processor, without writing
transactions  acts  writes outputs and marks in one transaction, and allows one replay or discard at a time
replay        acts  replays the selected dead letters
discard       acts  marks the selected dead letters as discarded
"""
