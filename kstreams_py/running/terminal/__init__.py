"""The terminal of a run: its log, the lines that workers print, and a live table below them.

In reading order:

lines      rule     the lines of worker processes, whole, each with its slot
folding    rule     replaces log lines that repeat by one with their count
logs       adapter  the log of the command: format, level, what each line is about
dashboard  rule     the rows of the live table
progress   adapter  a live table in a terminal with the workers' output above it, plain lines elsewhere
"""
