"""Peers: a job whose tasks run on several machines, one task at each peer.

In reading order:

routes         rule  which peer gets each segment
audits         rule  finds the inputs that have lost a segment
entries        rule  the acker of a job at one peer, and the acknowledgements for other peers' ackers
fingerprints   acts  the fingerprint of a graph, which tells peers that they have the same code
reachability   rule  which members do not reach each other over the network, and which to use instead
agreement      rule  which reader of a job may read its suspects, alone
outbox         acts  sends segments to the peers of the tasks that read them
input_task     acts  the task that reads a source
function_task  acts  a task that calls a function
peer           acts  the loop of a peer
"""
