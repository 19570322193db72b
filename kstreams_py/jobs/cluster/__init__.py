"""A cluster of peers: which peers there are, which jobs, and who runs what. All peers agree by one log of commands.

In reading order:

commands      rule  the entries of the log
state         rule  what all peers know after some entries: the replica
shares        rule  how many peers each job gets: the three schedulers
planner       rule  which peer gets which task, with as few moves as possible
slots         rule  which peer has which keys of a grouped task
fold          rule  applies a command to a replica
records       rule  the bytes of commands and replicas
heartbeats    rule  which peers are silent, and whether this one may still act
observations  rule  what is seen of a cluster besides its replica: ends, heartbeats, digests that differ
reactions     rule  what a peer appends in answer to a command
explanations  rule  why a job waits, and what would start it
log           acts  the log as peers use it, and one in memory
kafka_log     acts  the log in Kafka
watcher       acts  reads the log without being a member
membership    acts  one peer: applies the log, answers it, finds out which peers are silent
"""
