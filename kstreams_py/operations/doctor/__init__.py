"""`kstreams doctor`: what holds a reader back or endangers a promise, each with its remedy.

In reading order:

findings  rule  the findings, from the facts
facts     acts  reads the facts from the cluster
"""
