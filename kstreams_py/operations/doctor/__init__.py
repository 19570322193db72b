"""`kstreams doctor`: finds what holds readers back or endangers a promise, each with its remedy.

In reading order:

findings  rule  derives the findings from the facts
facts     acts  reads the facts from the cluster
"""
