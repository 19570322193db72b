"""`kstreams recover`: shows where the tasks of a graph stand, audits its outputs, and moves or deletes its groups.

In reading order:

positions     rule  the moves of positions, and the file that stores positions
reset         acts  reads positions, and sets them in one transaction
consequences  acts  says what follows from moves: what is written again, what stays, what a start refuses
task_status   rule  where a task stands and what its next start does, as text and as JSON
status        acts  reads where tasks stand, and decides what their next start does
forget        acts  deletes what is kept of a processor that is no longer declared
comparison    rule  compares the outputs of a processor with its inputs by delivery hash
audit_report  rule  the report of an audit, as text and as JSON
audit         acts  reads the inputs, outputs and offsets of a graph, and compares them
"""
