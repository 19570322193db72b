"""The HTTP server of a run: its page, status, health and metrics.

In reading order:

series      adapter  the series of /metrics, and their text in Prometheus' format
brokers     rule     names the brokers that are away, from the reasons of the workers that wait for them
remedies    rule     finds what is wrong in a run, why, and what to do
coverage    rule     the cluster of peers: which task of which job has which peers, and why a job waits
observed    acts     shares the newest status of a run, with rates and failures, between threads
page        acts     the page /, with the graph's picture
runbook     acts     the page /runbook, to whose sections the findings link
endpoints   acts     the answers of /, /runbook, /metrics, /livez, /readyz, and /status with all that is known
server      adapter  the server: connections, their limits and their deadlines
"""
