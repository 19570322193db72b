"""One step, whatever brought its records: the function called, and its outputs, its rows or its dead letter.

In reading order:

plan          rule     the input of the functions (an intake of steps) and their result (a plan of outputs)
rows          rule     makes rows from the results of a step, for a sink's target
outputs       rule     makes records from the results of a step
dead_letters  rule     makes a record for a step that failed
failures      rule     what follows a failure: another attempt, the end of the worker, or a dead letter
calls         acts     concurrent calls of a function, on an event loop or in threads
tracing       rule     puts steps in spans, and their trace context in the headers of their outputs
otel          adapter  spans of steps and commits, by OpenTelemetry
target        acts     the connection to a sink's target, and how the worker reacts to its errors
environment   acts     what the engine works with: a cluster, settings, a clock
"""
