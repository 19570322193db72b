"""Exactly-once processors: from a fetched record to its committed outputs.

In the order of a record's life, then what only some processors need:

environment      acts     what the engine works with: a cluster, settings, a clock
ledger           rule     how far each input partition is processed, and how far that is committed
plan             rule     an intake of steps goes into the functions, a plan of outputs comes out
task             rule     one processor on one partition number, and the records that wait in it
ready            rule     steps that are ready to be run, by arrival or by partition
tasks            rule     routes records to tasks, and takes the steps that are ready
rows             rule     makes rows of the results of a step, for a sink's target
outputs          rule     makes records of the results of a step
retries          rule     which failures are tried again, and how often they were
tracing          rule     steps in spans, and their trace context in the headers of their outputs
runner           rule     calls the function for each step
chains           rule     which calls may start: so many at once, and those of a chain one after the other
calls            acts     calls of a function that are under way at once, on an event loop or in threads
ordered_runner      acts     applies events in the order of their objects
overlapping_runner  acts  runs steps whose calls overlap; outputs and offsets stay in order
runners          acts     makes the runner of a processor, and the dead letters of its steps
pace             rule     how many records to take at once
states           rule     the states of a session, and its transitions
attempts         acts     attempts at a request: how often, how long after a failure, when the worker gives up
session          acts     one producer at a time, as the states allow
committer        acts     what the guarantees share: uncommitted steps, and how an attempt fails
guarantees       acts     exactly once, at least once, at most once, side by side
target           acts     the connection to a sink's target, and what its errors ask of the worker
storing          acts     the guarantees of processors whose rows are stored in a target
committed        acts     reads the committed offsets of the group
beginning        acts     where a group begins to read
waits            acts     partitions that wait before a step is run again
worker           acts     the loop: from fetch to commit
topics           acts     creates and checks the topics of a graph
growth           acts     checks inputs again, and extends journals, when partitions are added
dead_letters     rule     a step that failed, as a record
search           rule     finds the step whose output a topic refuses
refused_outputs  rule     outputs that came back, of steps that are not run again
otel             adapter  spans of steps and commits, by OpenTelemetry
choices          rule     which input each coming step of an alts reads
choices_journal  acts     saves the choices of an alts
committers       acts     which guarantee a processor has, its journal, what it writes, and where its rows are stored
"""
