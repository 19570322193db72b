"""Jobs: tasks linked by channels in memory; an input is acknowledged once all made from it is done, else read again.

In reading order:

identity        rule  ids of inputs, patterns of copies, and origins, by which a repeated effect is recognized
acker           rule  finds out when everything that was made from an input is done
pending         rule  the inputs that are under way
adaptive_limit  rule  limits how many inputs or segments are taken, by the time that the last ones took
segments        rule  segments in batches
gathering       rule  pairs the branches of one segment
copies          acts  copies of values, so that no function changes a value that another function has
topic_deaths    rule  how often workers died while records were under way, as text beside the committed offset
topic_inputs    acts  the records of a topic as inputs
topic_outputs   acts  writes records of results, and dead letters, to topics
traces          rule  the contexts of traces beside the segments, and a span for each call
environment     acts  the environment of a job: its sources and targets, a clock, entropy, its limits
attempts        acts  the failed attempts of a task that are repeated, and what the log says of them
task            acts  calls the function of a task, sends or stores its results
runners         acts  runs a task: takes segments, calls its function, sends or stores the results, acknowledges
inputs          acts  claims the inputs of a source, acknowledges or refuses them
job             acts  the loop of a job in one process
cluster/              which peers and jobs there are, and who runs what: all peers agree through one log of commands
peers/                a job whose tasks run on several machines, one task at each peer
messengers/           how the peers of a cluster send each other segments, acknowledgements and ends of inputs
"""
