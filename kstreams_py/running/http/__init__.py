"""The HTTP server of a run: its page, status, health and metrics.

In reading order:

series      rule     the table of all series of /metrics
exposition  adapter  the series in Prometheus' text format
remedies    rule     finds what is wrong in a run, why, and what to do
observed    acts     shares the newest status of a run, with rates and failures, between threads
overview    acts     the contents of /status
picture     rule     the graph's picture for the page
page        acts     the page /
endpoints   acts     the answers of /, /metrics, /livez, /readyz, /status
server      adapter  the server: connections, their limits and their deadlines
"""
