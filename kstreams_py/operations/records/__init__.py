"""`kstreams send` and `kstreams tail`: records as lines of JSON.

In reading order:

lines        acts  shows a record as a line of JSON, and parses a line as a record
topic        acts  finds the topic that a command names
send         acts  sends records to a topic, and reports which were sent
tail         acts  reads the records of a topic, and follows it
"""
