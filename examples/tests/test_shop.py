"""Tests of shop.py without a broker: `python -m pytest tests/test_shop.py`."""

import pytest
from shop import graph, price, refused

from kstreams_py.testing import TestDriver


def test_function_is_a_plain_function():
    assert price({"quantity": 0}) == {refused: {"quantity": 0}}


def test_orders_are_priced_or_refused():
    with TestDriver(graph) as driver:
        driver.send("shop.orders", {"quantity": 2, "unit_price": 5}, key="order-1")
        driver.send("shop.orders", {"quantity": 0, "unit_price": 5}, key="order-2")
        driver.run()
        assert driver.values("shop.priced") == [{"quantity": 2, "unit_price": 5, "total": 10}]
        assert [record.key for record in driver.read("shop.refused")] == ["order-2"]


def test_order_without_a_price_is_a_dead_letter(kstreams_driver):
    driver = kstreams_driver(graph)  # a TestDriver, which the fixture closes
    driver.send("shop.orders", {"quantity": 1}, key="order-3")
    driver.run()
    (dead_letter,) = driver.dead_letters()
    failed = dead_letter.value  # a dict, by schemas/dead_letter.avsc
    assert (dead_letter.key, failed["processor"]) == (b"order-3", "shop.price")  # with its graph
    assert (failed["exception_class"], failed["exception_message"]) == ("builtins.KeyError", "'unit_price'")
    (read,) = failed["inputs"]  # one for each input of a join
    assert (read["topic"], read["key"], read["value"]) == ("shop.orders", b"order-3", b'{"quantity":1}')


def loaded():
    driver = TestDriver(graph)
    for number in range(10):
        driver.send("shop.orders", {"quantity": number, "unit_price": 5}, key=f"order-{number}")
    return driver


def crash_points():
    driver = loaded()
    driver.run()
    return driver.crash_points()


@pytest.mark.parametrize("point", crash_points(), ids=str)
def test_crash_anywhere_prices_each_order_once(point):
    with loaded() as driver:
        driver.crash(point)  # runs until the process dies there
        driver.restart()
        driver.run()
        assert [record.key for record in driver.read("shop.priced")] == [f"order-{n}" for n in range(1, 10)]
