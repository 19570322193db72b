"""The next start of a graph: where its tasks resume, and what would end it.

In reading order:

states      acts  checks states as the next start does
next_start  acts  decides, as a worker does, what the next start of a processor does with a task
refusals    acts  ends a start before a processor reads, if another one would be refused
"""
