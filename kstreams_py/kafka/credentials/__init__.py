"""How clients sign in to a cluster: librdkafka's settings, checked, and translated for each of the three clients.

In reading order:

tokens   acts     OAUTHBEARER tokens: one for all clients of a process, renewed before it expires
sources  adapter  sources of tokens: a user's function, an OIDC server, AWS
sign_in  adapter  checks the settings, and translates them for confluent-kafka and kafka-python
java     adapter  the settings of Java's client, which Spark uses
"""
