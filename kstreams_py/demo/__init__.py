"""The demonstrations of `kstreams demo`: real data, workers killed at random, results checked to the row.

In reading order:

flights_graph  adapter  the graph, as a user would write it
data           rule     the departures of 2013 from New York, and the results expected of them
data_files     adapter  reads the departures from their files
recoveries     rule     the time from each kill until the slot's next commit
traffic        acts     writes departures, reads committed records, kills workers
results        acts     reads all topics and the table in SQLite back
checks         rule     compares the results of a run with the expected ones
screen         adapter  shows the demo in the terminal
charts         adapter  draws the charts of the report
report         acts     writes the report, one HTML page
flights        adapter  the demonstration from start to end
"""
