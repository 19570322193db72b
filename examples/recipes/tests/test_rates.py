import rates

from kstreams_py.testing import TestDriver


def test_service_that_is_away_holds_the_orders_back_and_makes_no_dead_letter(monkeypatch):
    failures = [ConnectionRefusedError("nobody listens"), TimeoutError("no answer")]

    def answer(currency):
        if failures:
            raise failures.pop()
        return {"USD": 0.5, "GBP": 2.0}[currency]

    monkeypatch.setattr(rates, "ask_rate", answer)
    with TestDriver(rates.graph) as driver:
        driver.send("prices", {"amount": 10, "currency": "USD"}, key="a")
        driver.send("prices", {"amount": 10, "currency": "GBP"}, key="b")
        for _ in range(2):
            driver.run()
            assert driver.retrying == {"convert"}
            driver.advance(30)  # moves the clock to the next attempt
        driver.run()
        assert driver.retrying == set()
        assert [(each.key, each.value["euros"]) for each in driver.read("prices.euro")] == [("a", 5.0), ("b", 20.0)]
        assert driver.dead_letters() == []
