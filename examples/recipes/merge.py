"""Alts: one record of whichever input is ready. Orders of two channels become one stream, each with its channel."""

import kstreams_py as ks

graph = ks.Graph("merge", errors="merge.errors")

web = graph.topic("orders.web", key=ks.String(), value=ks.Json())
shop = graph.topic("orders.shop", key=ks.String(), value=ks.Json())
orders = graph.topic("orders.all", key=ks.String(), value=ks.Json())


@graph.alts(web, shop, to=orders)
def merge(order, step):
    return {**order, "channel": step.topic.removeprefix("orders.")}
