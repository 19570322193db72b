"""Retries: a service that is away for a while. Its partition waits, and no order becomes a dead letter for it."""

import json
from http.client import HTTPConnection

import kstreams_py as ks

retry = ks.Retry(on=(ConnectionError, TimeoutError), attempts=8, backoff="200ms..30s", then="pause")
graph = ks.Graph("rates", errors="rates.errors", retry=retry)

prices = graph.topic("prices", key=ks.String(), value=ks.Json())
in_euros = graph.topic("prices.euro", key=ks.String(), value=ks.Json())


def ask_rate(currency):
    connection = HTTPConnection("127.0.0.1", 8000, timeout=2)
    try:
        connection.request("GET", f"/rates/{currency}")
        return json.load(connection.getresponse())["euros"]
    finally:
        connection.close()


@graph.map(prices, to=in_euros)
def convert(price):
    return {"euros": round(price["amount"] * ask_rate(price["currency"]), 2)}
