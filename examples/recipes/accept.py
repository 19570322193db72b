"""Two branches of each row, gathered again: needs no broker."""

import kstreams_py as ks
from kstreams_py import sinks, sources

graph = ks.Graph("accept")

orders = graph.source("orders", sources.SQLite("shop.db", table="orders", key="id", ends=True))
stock = graph.channel("stock")
credit = graph.channel("credit")
table = sinks.SQLite("decided.db", table="decided", columns={"id": int, "decision": str})


@graph.map(orders, to=stock, concurrency=8)
def check_stock(order):
    return order["quantity"] <= 100


@graph.map(orders, to=credit, concurrency=8)
def check_credit(order):
    return order["customer"] != "mallory"


@graph.sink(orders, stock, credit, to=table)  # the order, and the results of both checks of it
def decide(order, in_stock, has_credit):
    return order["id"], "accepted" if in_stock and has_credit else "refused"
