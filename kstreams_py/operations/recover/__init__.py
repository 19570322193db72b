"""`kstreams recover`: shows where the tasks of a graph stand, audits its outputs, and moves its groups.

In reading order:

positions     rule  positions of processors: what moves where, and the file that keeps them
reset         acts  reads positions, and sets them in one transaction
task_status   rule  where a task stands and what its next start does, as text and as JSON
status        acts  reads where tasks stand, and decides as a worker would
comparison    rule  compares the outputs of a processor with its inputs by delivery hash
audit_report  rule  what an audit found, as text and as JSON
audit         acts  reads what a graph has read and written, and compares it
"""
