"""A Kafka cluster: its protocols, confluent-kafka behind them, and its administration.

In reading order:

membership         rule     who holds a static membership
contracts          rule     the protocols of a cluster, its consumers and its producers
transactions       rule     open transactions, and which of them never end
sizes              rule     the sizes of records and batches that topics take; bytes that were fetched
foreign_records    rule     recognizes records of other programs in the framework's own topics, and names them
own_topics         acts     creates the framework's own topics, and checks topic settings
leftovers          acts     finds transactions that an earlier producer left open and that no producer will end
log_batches        rule     batches of a partition as they are stored, and the records of brokers' own topics
commands           rule     Kafka's own commands, as a person types them
groups             rule     consumer groups as an operator sees them
described_cluster  rule     a cluster as its brokers describe it
partitioner        rule     the partition of a key, as Java's clients compute it
errors             adapter  maps librdkafka's error codes to the exceptions of errors.py, and watches its log
contact            adapter  says early that no broker answers, and why
clients            adapter  makes clients, makes calls that may not return, and ends clients
topics             adapter  looks topics up through a client
silence            adapter  warns of a member that reads nothing, with the reason
group_description  adapter  describes groups, even while a coordinator moves or is down
consumer           adapter  a static member of a group
producer           adapter  writes records, in transactions or without
administration     adapter  requests that only kafka-python can make: static members, open transactions
transaction_admin  adapter  requests about transactions: find them, read their logs, write markers
cluster_admin      adapter  requests that describe a cluster as a whole
topic_admin        adapter  describes and changes topics, and explains failed calls
unreadable         adapter  finds records that cannot be read: header names that are not text, values beyond a limit
reader             adapter  reads partitions without a group: their offsets, their records
cluster            adapter  makes consumers and producers, and passes requests on
"""
