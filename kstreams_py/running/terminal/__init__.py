"""The terminal of a run: its log, the lines that workers print, and a live table below them.

In reading order:

lines      rule     joins the output of worker processes into whole lines, each with its slot
logs       adapter  the log of the command: its format, its level, and the context of each line
progress   adapter  a live table in a terminal with the workers' output above it, plain lines elsewhere
"""
