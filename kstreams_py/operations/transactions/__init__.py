"""`kstreams transactions`: finds hanging transactions, and ends them.

In reading order:

hanging  rule  what an open transaction holds back, and what its coordinator decided about it
abort    acts  finds hanging transactions, and ends one of them
"""
