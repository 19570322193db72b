"""`kstreams doctor`: finds what holds readers back or endangers a promise, and names the remedies.

In reading order:

findings     rule  what a finding is, and the facts from which the rules derive it
of_clusters  rule  finds what is wrong on a cluster
of_graphs    rule  finds what is wrong with a graph
diagnosis    rule  all findings, the worst first
facts        acts  reads the facts from the cluster
"""
