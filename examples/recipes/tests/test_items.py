import pytest
from items import graph

from kstreams_py.testing import TestDriver


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_crash_while_rows_are_stored_stores_each_row_once(applied):
    with TestDriver(graph) as driver:  # a target in memory takes the place of the table
        driver.send("basket.orders", {"items": {"bolt": 10, "nut": 10}}, key="alice")
        driver.send("basket.orders", {"items": {"gear": 1}, "cancelled": True}, key="bob")
        driver.crash("store", applied=applied)
        driver.restart()
        driver.run()
        assert driver.rows("store") == [("alice", "bolt", 10), ("alice", "nut", 10)]
        assert driver.dead_letters() == []
