import asyncio

import quotes

from kstreams_py.testing import TestDriver


def test_quotes_are_asked_at_once_and_written_in_the_order_of_the_orders(monkeypatch):
    asked = []
    all_asked = asyncio.Event()

    async def answer(item):
        asked.append(item)
        if len(asked) == 3:
            all_asked.set()
        await all_asked.wait()  # nobody gets an answer before all have asked
        return {"bolt": 2, "nut": 1, "gear": 30}[item]

    monkeypatch.setattr(quotes, "ask_price", answer)
    with TestDriver(quotes.graph) as driver:
        for item in ("bolt", "nut", "gear"):
            driver.send("quote.orders", {"item": item, "quantity": 10}, key=item)
        driver.run()
        assert [(each.key, each.value["total"]) for each in driver.read("quote.quotes")] == [
            ("bolt", 20),
            ("nut", 10),
            ("gear", 300),
        ]
        assert driver.dead_letters() == []
