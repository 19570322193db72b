"""The messengers over which the peers of a cluster send each other segments, acknowledgements and ends of inputs.

A peer packs segments into frames, and offers them to the link of the other peer; the links give frames to a messenger
when they are due, and take what it has received.

In reading order:

pins      rule     ids of inputs that name the peers of their acker and of their input
values    acts     values as bytes: each arrives exactly as it was sent, or is refused
frames    rule     the frames that two peers send each other
packing   acts     makes frames from segments, and segments from frames
backoff   rule     the waits between attempts
lanes     rule     the numbers and the unaccepted frames of one lane of a link, and the answers to them
link      rule     the link to one other peer, which loses and doubles nothing: lanes, credit, epochs
links     rule     the links of a peer to all others
contract  rule     what a peer needs from a messenger, and its settings
queues    acts     the frames that have come and were not received yet
inproc    acts     a messenger between threads of one process
zmq       adapter  a messenger over ZeroMQ
http      adapter  a messenger over HTTP
registry  acts     the messengers by name
"""
