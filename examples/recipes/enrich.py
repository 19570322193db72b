"""Rows of a table, enriched over HTTP, stored in another table, each once: needs no broker."""

import json
from contextlib import closing
from http.client import HTTPConnection

import kstreams_py as ks
from kstreams_py import sinks, sources

SERVICE = "127.0.0.1:8002"

graph = ks.Graph("enrich", retry=ks.Retry(on=(ConnectionError, TimeoutError), then="pause"))

orders = graph.source("orders", sources.SQLite("shop.db", table="orders", key="id", ends=True))
priced = graph.channel("priced")
table = sinks.SQLite("priced.db", table="priced", columns={"id": int, "item": str, "cents": int})


@graph.map(orders, to=priced, concurrency=16)  # sixteen requests at once
def price(order):
    with closing(HTTPConnection(SERVICE, timeout=5)) as connection:
        connection.request("GET", f"/prices/{order['item']}")
        response = connection.getresponse()
        answer = response.read()
    if response.status != 200:
        raise LookupError(f"no price of {order['item']!r}: status {response.status}")
    return {**order, "cents": order["quantity"] * json.loads(answer)}


@graph.sink(priced, to=table)
def store(order):
    return {"id": order["id"], "item": order["item"], "cents": order["cents"]}
