"""What to run: topics and the processors between them; how a graph is found and drawn.

In reading order:

guarantees    rule     the guarantees and durabilities that a graph declares
anomalies     rule     the kinds of anomalies, and which each guarantee tolerates
retry         rule     Retry: when a step is run again, and after what waits
sink          rule     Sink: the protocol of a table outside Kafka that stores each row once
source        rule     Source: the protocol of inputs that are claimed, and acknowledged when they are done
names         rule     the names of what a graph owns: groups, members, transactional ids, topics
declarations  rule     topics, processors, states, journals, orders of events: what is declared
channels      rule     channels, and the tasks that read or write them
pipelines     rule     Pipeline: a function of Spark DataFrames over topics, whose rows a target keeps
hashes        rule     the delivery hash of a step, and its place
limits        rule     what commands cannot do with a processor, and why
signatures    rule     the types of processors' functions, for type checkers
decorators    rule     the decorators of Graph: their options, and the functions that they take
topology      rule     Graph: takes declarations, and validates them as a whole
checks        rule     refuses wrong declarations
functions     rule     checks the signature of a processor's function
picture       rule     draws a graph as text, Mermaid or SVG
layout        rule     places the boxes and lines of the SVG
loading       adapter  imports the user's module, and finds the graph in it
"""
