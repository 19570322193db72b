"""A graph with a fork, dead letters and a sink: `kstreams run shop.py:graph --workers 2 --create-topics`."""

import kstreams_py as ks

graph = ks.Graph("shop", errors="shop.errors")  # dead letters, in the same transaction

orders = graph.topic("shop.orders", key=ks.String(), value=ks.Json())
priced = graph.topic("shop.priced", key=ks.String(), value=ks.Json())
refused = graph.topic("shop.refused", key=ks.String(), value=ks.Json())


@graph.map(orders, to=[priced, refused])  # two outputs: a fork
def price(order):
    if order["quantity"] < 1:
        return {refused: order}
    return {priced: {**order, "total": order["quantity"] * order["unit_price"]}}


@graph.sink(priced)
def announce(order, step):  # asks for `step`: gets the delivery hash
    print(step.delivery_hash.hex(), step.key, order["total"])
