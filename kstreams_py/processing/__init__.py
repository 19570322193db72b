"""Exactly-once processors: from a fetched record to its committed outputs.

A folder for each question, then the loop that asks them:

tasks/         which records are next
runners/       how their steps are run
journal/       what the journal topic records about deliveries, and what a restart concludes from it
commits/       how outputs and offsets are committed
starts/        where the next start resumes, and what would end it
dead_letters/  what became of the steps that failed, and how many still wait
topics         acts  creates and checks the topics of a graph, and follows inputs that grow
beginning      acts  where a group begins to read
intakes        acts  runs the steps that are ready, one intake at a time, and commits
worker         acts  the loop: from fetch to commit
"""
