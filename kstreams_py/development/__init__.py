"""The development of a graph: a new project, and a run that follows each change of its code.

In reading order:

project    adapter  writes a new project: a graph, its tests, and the files of its deployment
changes    adapter  the source files of a graph, and the wait for a change
broker     adapter  the broker of `kstreams dev`, whose data is kept
version    acts     the process of one version of a graph's code: checks, runs and drains it
versions   acts     starts the process of a version, and passes on its reports and its output
session    acts     follows the code: checks the new version, drains the old one, runs the new one
"""
