"""The development of a graph: a new project.

In reading order:

project  adapter  writes a new project: a graph, its tests, and what its deployment needs
"""
