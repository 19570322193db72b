"""One order of events for each object, from many producers to the last consumer.

In reading order:

events     rule     events of an object, and their place in its order
decisions  rule     an operator's decision on an object, as a record of the events' topic
chain      rule     the consumer's rule: each event of an object once, after the one before it
held       rule     held events, the states of objects and their stops, in the store of a task
steps      rule     the atomic steps of a worker on a store, and their sequence
storage    rule     the protocol of a store
sqlite     adapter  a store in an SQLite file
redis      adapter  a store in Redis
front_end  acts     changes an object and queues its events in one atomic step
worker     acts     takes queued events, and sends each object's events in a fixed order
sending    acts     sends events to one topic, with the object as the key, and keeps each object in one partition
status     rule     the status of a store, for operators
"""

from kstreams_py.ordering.front_end import Ordering

__all__ = ["Ordering"]
