"""Calls that overlap: each order waits for a slow service, and many wait at once. Outputs keep their order."""

import asyncio

import kstreams_py as ks

retry = ks.Retry(on=(ConnectionError, TimeoutError), attempts=8, backoff="200ms..30s", then="dead_letter")
graph = ks.Graph("quotes", errors="quotes.errors", retry=retry)

orders = graph.topic("quote.orders", key=ks.String(), value=ks.Json())
quotes = graph.topic("quote.quotes", key=ks.String(), value=ks.Json())


async def ask_price(item):
    reader, writer = await asyncio.open_connection("127.0.0.1", 8001)
    try:
        writer.write(f"{item}\n".encode())
        return int(await reader.readline())
    finally:
        writer.close()


@graph.map(orders, to=quotes, concurrency=64, order="key")
async def quote(order):
    async with asyncio.timeout(5):
        price = await ask_price(order["item"])
    return {**order, "total": price * order["quantity"]}
