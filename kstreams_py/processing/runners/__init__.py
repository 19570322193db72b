"""How the steps of an intake are run: one after the other, overlapping, or in the order of their objects.

In reading order:

runner       rule  calls the function for each step
ordered      acts  applies events in the order of their objects
overlapping  acts  runs steps whose calls overlap; outputs and offsets stay in order
opening      acts  makes the runner of a processor, with its dead letters and the stores of its state
"""
