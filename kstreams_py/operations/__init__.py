"""Tools for topics: records sent, printed; dead letters shown, replayed; transactions found, ended; positions moved.

In reading order:

letters              rule  a dead letter as it is read back, which ones are chosen, and their counts
marks                rule  the records that mark dead letters as replayed
described            acts  dead letters as text and as JSON
lines                acts  a record as a line of JSON, and a line of JSON as a record
pages                acts  reads the records between two offsets page by page, so that memory is bounded
named_topic          acts  the topic that a command names
sending              acts  sends records to a topic, and says which were sent
uncommitted          acts  reads records whatever became of their transactions, and tells what did
tailing              acts  reads the records of a topic, and follows them
reading              acts  reads the dead letters of a graph, and their marks
committed            acts  finds the topics of a graph, and reads the committed offsets of its processors
originals            acts  finds the inputs of dead letters in their topics, and compares them
steps                acts  runs the step of a dead letter through its processor, without writing
replay_transactions  acts  one replay at a time: outputs and marks in one transaction
row_writer           acts  stores the rows of replayed steps
replay               acts  replays the dead letters that are chosen
stopped_objects      acts  objects of event ordering that do not go on, and what an operator decides of them
hanging              rule  what an open transaction holds back, and what its coordinator decided about it
ending               acts  finds open transactions that hang, and ends them
positions            rule  positions of processors: what moves where, and the file that keeps them
moving               acts  reads positions, and sets them in one transaction
task_status          rule  where a task stands and what its next start does, as text and as JSON
standing             acts  reads where tasks stand, and decides as a worker would
auditing             rule  compares the outputs of a processor with its inputs by delivery hash
audit_report         rule  what an audit found, as text and as JSON
comparing            acts  reads what a graph has read and written, and audits it
diagnosis            rule  what holds a reader back or endangers a promise
rights               rule  the rights that a graph needs, by role, as commands that grant them
examining            acts  collects the facts of a diagnosis
"""
