"""`kstreams demo jobs`: two jobs on peers that are killed and frozen while others join; a report of who ran what when.

In reading order:

aircraft_graph adapter  the second graph: groups flights by aircraft
faults         acts     the faults that hit the peers and the jobs, and after how many rows
timeline       rule     who ran what when, from the log of the cluster
checks         acts     compares the tables with the file, and the faults with the planned faults
peers          acts     the peers of the demo, and the faults that hit them
stage          acts     runs peers, jobs, faults and the screen together
charts         adapter  draws who ran what when
report         acts     writes the report, one HTML page
command        adapter  `kstreams demo jobs` from start to end
"""
