from merge import graph

from kstreams_py.testing import TestDriver


def test_orders_of_both_channels_come_out_with_their_channel():
    with TestDriver(graph) as driver:
        driver.send("orders.web", {"item": "tea"}, key="a")
        driver.send("orders.shop", {"item": "milk"}, key="b")
        driver.run()
        merged = {each.key: each.value for each in driver.read("orders.all")}
        assert merged == {"a": {"item": "tea", "channel": "web"}, "b": {"item": "milk", "channel": "shop"}}
