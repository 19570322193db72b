"""One step, whatever brought its records: the function called, and its outputs, its rows or its dead letter.

In reading order:

plan          rule     an intake of steps goes into the functions, a plan of outputs comes out
rows          rule     makes rows of the results of a step, for a sink's target
outputs       rule     makes records of the results of a step
retries       rule     which failures are tried again, and how often they were
dead_letters  rule     a step that failed, as a record
chains        rule     which calls may start: so many at once, and those of a chain one after the other
calls         acts     calls of a function that are under way at once, on an event loop or in threads
tracing       rule     steps in spans, and their trace context in the headers of their outputs
otel          adapter  spans of steps and commits, by OpenTelemetry
target        acts     the connection to a sink's target, and what its errors ask of the worker
"""
