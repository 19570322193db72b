"""The development of a graph: a new project, and a run that follows each change of its code.

In reading order:

project    adapter  writes a new project: a graph, its tests, and what its deployment needs
changes    adapter  the files that a graph is made of, and the wait for a change
broker     adapter  the broker of `kstreams dev`, whose data outlives it
following  acts     the records that a graph writes, decoded, as lines with their topic
version    acts     the process of one version of a graph's code: checks it, then runs it, then drains it
versions   acts     starts the process of a version, and passes on what it says and writes
session    acts     follows the code: a change, the new version checked, the old one drained, the new one run
"""
