"""The demonstrations of `kstreams demo`: real data, workers killed at random, results checked to the row.

In reading order:

flights_graph  adapter  the graph, as a user would write it
data           rule     the departures of 2013 from New York, and their expected results
data_files     adapter  reads the departures from their files
recoveries     rule     the time from each kill until the slot's next commit
traffic        acts     writes departures, reads committed records, kills and freezes workers
checks         acts     reads the results of a run, and compares them with the expected ones
screen         adapter  shows the demo in the terminal
charts         adapter  draws the charts of the report
report         acts     writes the report, one HTML page
flights        adapter  `kstreams demo flights` from start to end
aircraft       rule     the events of aircraft in the file of departures
children       acts     processes that end with the demonstration
front_end      acts     a process that changes aircraft, and sends events with and without event ordering
order_workers  acts     the workers of event ordering, restarted after each kill
order_checks   acts     reads the topics as consumers do, and compares the results with the file
ordering_graph adapter  the three consumer groups, as a user would write them
order_consumers acts    the processes of the consumer groups, and the result of each group
ordering       adapter  `kstreams demo ordering` from start to end
channels_graph adapter  the graph over channels, as a user would write it
channel_checks acts     compares the stored rows with the rows that follow from the file
channel_tables adapter  the tables that are read and written, and counts of both
channels       adapter  `kstreams demo channels` from start to end

The package `jobs` has `kstreams demo jobs`.
"""
