"""Tests of a graph of channels on peers in memory: `python -m pytest tests/test_departures_on_peers.py`."""

import pytest
from test_departures import loaded


@pytest.mark.parametrize("task", ["read-rows", "parse", "store"])
def test_peer_that_dies_while_another_one_is_frozen_leaves_each_row_once(task):
    with loaded() as driver:
        peers = driver.peers(5)
        driver.step()  # each peer has had a turn
        peers.kill(task)
        frozen = peers.freeze("parse")
        driver.advance(10)  # the others find it silent after 6 s
        peers.thaw(frozen)
        driver.run()
        assert sorted(driver.rows("store")) == [(1, "N14228"), (3, "N24211")]
        assert driver.source("rows").left == []
        assert peers.status == "flights-1  completed"
