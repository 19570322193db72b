"""Processes: a slot in each, supervised, with their progress.

In reading order:

slot_number  rule     the slot number of `--slot`, taken from the place where the process runs
kubernetes   rule     a StatefulSet with a pod for each slot, as YAML
systemd      rule     a unit of systemd
reports      rule     the reports of a worker on its processors, and their sums over slots
status       rule     the status of a run: its slots at one moment, and the state of each worker
health       rule     whether a run is alive and ready
series       rule     the table of all series of /metrics
remedies     rule     what is not well in a run, why, and what to do
live_picture rule     the graph's picture for the page
folding      rule     how many log lines alike become few, with counts
logs         adapter  the log of the command: format, level, what each line is about
watch        acts     detects loops and processes that stand still; warns, and has them replaced
hidden       acts     finds inputs whose newest records open transactions hide, and whose these are
held_events  acts     warns of events that wait for the ones before them
lines        rule     the lines of worker processes, whole, each with its slot
dashboard    rule     the rows of the live table
progress     adapter  a live table in a terminal with the workers' output above it, plain lines elsewhere
slot         acts     one worker process: a loop for each processor, drained together
pipe         acts     carries reports from a worker to its supervisor
output       acts     carries what a worker prints to its supervisor, or past one that is stopped or has ended
supervised   acts     one slot over all its worker processes: reports, ends, restarts
supervisor   acts     a process for each slot, restarted, stopped together
observed     acts     the newest status of a run, with rates and failures, between its threads
overview     acts     the contents of /status
page         acts     the page /
exposition   adapter  the series in Prometheus' text format
endpoints    acts     the answers of /, /metrics, /livez, /readyz, /status
server       adapter  the HTTP server of a run
span_export  adapter  where spans go: exporters by the OTEL_* variables
wiring       acts     builds a run: a slot on a real cluster, or a supervisor of several
start        acts     the Python functions run() and start()
"""
