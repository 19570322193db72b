"""`kstreams transactions`: finds open transactions that hang, and ends them.

In reading order:

hanging  rule  what an open transaction holds back, and what its coordinator decided about it
abort    acts  finds open transactions that hang, and ends one of them
"""
