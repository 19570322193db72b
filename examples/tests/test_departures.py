"""Tests of a graph of channels without its files: `python -m pytest tests/test_departures.py`."""

import pytest

import kstreams_py as ks
from kstreams_py import sinks, sources
from kstreams_py.testing import TestDriver

graph = ks.Graph("flights")
rows = graph.source("rows", sources.SQLite("flights.db", table="departures", key="id"))
parsed = graph.channel("parsed")


@graph.map(rows, to=parsed)
def parse(row):
    return {**row, "plane": row["plane"].upper()}


@graph.sink(parsed, to=sinks.SQLite("planes.db", table="planes", columns={"id": int, "plane": str}))
def store(row):
    return row["id"], row["plane"]


def loaded():
    driver = TestDriver(graph)
    driver.source("rows").add({"id": 1, "plane": "n14228"}, {"id": 2, "plane": None}, {"id": 3, "plane": "n24211"})
    return driver


def test_planes_are_stored_and_a_row_without_one_is_refused():
    with loaded() as driver:
        driver.run()
        assert driver.rows("store") == [(1, "N14228"), (3, "N24211")]
        ((row, reason),) = driver.source("rows").refused
        assert (row["id"], reason) == (2, "parse: AttributeError: 'NoneType' object has no attribute 'upper'")


def test_row_whose_acknowledgement_is_lost_is_read_again_and_stored_once():
    with loaded() as driver:
        driver.lose("ack")
        driver.run()
        assert [row["id"] for row in driver.source("rows").left] == [1]
        driver.expire()  # the time-out passes, and no part of the row is under way
        driver.run()
        assert driver.source("rows").left == []
        assert driver.rows("store") == [(1, "N14228"), (3, "N24211")]


def crash_points():
    driver = loaded()
    driver.run()
    return driver.crash_points()


@pytest.mark.parametrize("point", crash_points(), ids=str)
def test_crash_anywhere_stores_each_row_once(point):
    with loaded() as driver:
        driver.crash(point)
        driver.restart()  # the leases of the dead process have ended
        driver.run()
        assert sorted(driver.rows("store")) == [(1, "N14228"), (3, "N24211")]
        assert driver.source("rows").left == []
