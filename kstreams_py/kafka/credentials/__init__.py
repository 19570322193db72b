"""How clients sign in to a cluster: librdkafka's settings, read once, for each of the three clients.

In reading order:

tokens   acts     tokens of OAUTHBEARER: one for all clients of a process, asked for again before it expires
sources  adapter  where tokens come from: a function of the user, an OIDC server, AWS
sign_in  adapter  checks the settings; those of confluent-kafka and of kafka-python
java     adapter  those of Java's client, which Spark uses
"""
