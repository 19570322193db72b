"""Keyed state: what functions see, what is committed with a step, and what is restored."""

from __future__ import annotations

from typing import Any

import kstreams_py as ks
from kstreams_py.formats.serdes import Json, String
from kstreams_py.state.keyed import KeyedStore
from kstreams_py.testing import TestDriver


def counting(**options: Any) -> ks.Graph:
    """Counts the words of a topic; the word "bad" raises after it was counted."""
    graph = ks.Graph("g", errors="g.errors")
    words = graph.topic("g.words", key=String(), value=String(), partitions=2)
    counts = graph.topic("g.counts", key=String(), value=Json(), partitions=2)

    @graph.map(words, to=counts, state=ks.State("counts"), **options)
    def count(word: str, state: KeyedStore[str, int]) -> int:
        seen: int = state.get(word, 0) + 1
        state.put(word, seen)
        if word == "bad":
            raise ValueError(word)
        return seen

    return graph


WORDS = ["a", "b", "a", "bad", "c", "a", "bad", "b", "d", "a"]


def send(driver: TestDriver, words: list[str]) -> None:
    for word in words:
        driver.send("g.words", word, key=word)


def test_state_counts_each_step_once_and_a_step_that_raises_not() -> None:
    with TestDriver(counting()) as driver:
        send(driver, WORDS)
        driver.run()
        assert driver.state("counts") == {"a": 4, "b": 2, "c": 1, "d": 1}
        assert sorted((r.key, r.value) for r in driver.read("g.counts")) == [
            ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2), ("c", 1), ("d", 1),
        ]  # fmt: skip
        assert len(driver.dead_letters()) == 2


def expected_outputs() -> list[tuple[Any, Any]]:
    with TestDriver(counting()) as driver:
        send(driver, WORDS)
        driver.run()
        return sorted((r.key, r.value) for r in driver.read("g.counts"))


def test_crash_at_any_request_counts_each_step_once() -> None:
    with TestDriver(counting(), slots=2) as driver:
        send(driver, WORDS)
        driver.run()
        points, outputs = driver.crash_points(), expected_outputs()
    assert {point.request for point in points} >= {"produce", "send_offsets", "commit_transaction", "read"}
    for point in points:
        with TestDriver(counting(), slots=2) as driver:
            send(driver, WORDS)
            driver.crash(point)
            driver.restart()
            driver.run()
            send(driver, ["a"])
            driver.run()
            assert driver.state("counts") == {"a": 5, "b": 2, "c": 1, "d": 1}, point
            assert sorted((r.key, r.value) for r in driver.read("g.counts")) == sorted([*outputs, ("a", 5)]), point
