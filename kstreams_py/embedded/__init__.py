"""A real Kafka on this machine: the broker, its jars, its Java.

In reading order:

java           adapter  finds a Java and its version
downloads      adapter  fetches jars from a Maven repository, each checked by its checksum
jars           adapter  the broker's and Spark's jars in the user's cache, fetched once
class_archive  adapter  archives of a broker's and of Spark's classes, which a JVM maps
post_mortem    adapter  finds out why a broker ended
process_table  adapter  looks up other processes, on Linux and on macOS
nodes          adapter  the nodes of a data directory: ports, files, Kafka's settings
broker         adapter  an Apache Kafka of one or more nodes on the loopback, which ends with its owner
detached       adapter  the user's one detached cluster, which outlives the command that started it
"""

from kstreams_py.embedded.broker import EmbeddedKafka

__all__ = ["EmbeddedKafka"]
