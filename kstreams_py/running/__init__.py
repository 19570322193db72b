"""Processes: a slot in each, supervised, with their progress.

In reading order:

reports      rule     the reports of a worker on its processors, and their sums over slots
status       rule     the status of a run: its slots at one moment, and the state of each worker
health       rule     decides whether a run is alive and ready
watch        acts     detects stuck loops and processes; warns, and has them replaced
hidden       acts     finds inputs whose newest records are hidden by open transactions, and who holds them open
waiting      acts     counts waiting dead letters while a graph runs
places       acts     names the function and the line where a thread or a call is stuck
jobs         acts     the tasks of a graph in one slot: a job in a thread, and its reports
slot         acts     one worker process: a loop for each processor, drained together
pipe         acts     carries reports from a worker to its supervisor
output       acts     carries the output of a worker to its supervisor, or past one that is stopped or has ended
supervised   acts     one slot across its worker processes: reports, ends, restarts
supervisor   acts     runs a process for each slot, restarts them, and stops them together
terminal/             the log, and a live table below the workers' output
http/                 the page of a run, its status, health and metrics
span_export  adapter  exports spans as the OTEL_* variables say
wiring       acts     builds a run: a slot on a real cluster, or a supervisor of several
peer_graphs  acts     loads the graphs that peers may run, and shows them as one
peer_reports acts     the reports of a peer
peers        acts     a peer as a process, and a supervisor of several
start        acts     the Python functions run() and start()
"""
