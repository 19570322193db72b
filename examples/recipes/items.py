"""Sink with a target: the function returns rows, and the worker stores each of them once in a table."""

import kstreams_py as ks
from kstreams_py import sinks

graph = ks.Graph("items", errors="items.errors")

orders = graph.topic("basket.orders", key=ks.String(), value=ks.Json())
table = sinks.SQLite("items.sqlite", table="items", columns={"customer": str, "item": str, "quantity": int})


@graph.sink(orders, to=table)
def store(order, step):
    if order.get("cancelled"):
        return None  # stores nothing
    return [(step.key, item, quantity) for item, quantity in order["items"].items()]
