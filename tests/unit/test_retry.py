"""graph/retry.py: which exceptions are tried again, how long apart; and what a declaration refuses."""

from __future__ import annotations

from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import GraphError
from tests.tables import each_case


def waits(retry: ks.Retry, chance: float, failures: int) -> list[float]:
    return [round(retry.wait(n, chance), 3) for n in range(1, failures + 1)]


def test_waits_double_between_their_bounds_and_chance_takes_up_to_half() -> None:
    retry = ks.Retry(backoff="200ms..3s")
    assert waits(retry, 1.0, 6) == [0.4, 0.8, 1.6, 3.0, 3.0, 3.0]
    assert waits(retry, 0.0, 6) == [0.2, 0.4, 0.8, 1.5, 1.5, 1.5]
    assert waits(retry, 0.5, 2) == [0.3, 0.6]
    assert retry.wait(1_000_000, 1.0) == 3.0


def test_wait_whose_bounds_are_equal_is_that_long() -> None:
    assert waits(ks.Retry(backoff="1.5s..1.5s"), 0.0, 3) == waits(ks.Retry(backoff="1.5s..1.5s"), 1.0, 3) == [1.5] * 3


@pytest.mark.parametrize(
    ("backoff", "bounds"), [("1ms..2ms", (0.001, 0.002)), ("0.5s..1m", (0.5, 60.0)), ("1m..2h", (60.0, 7200.0))]
)
def test_backoff_is_read_in_its_units(backoff: str, bounds: tuple[float, float]) -> None:
    retry = ks.Retry(backoff=backoff)
    assert (retry.shortest, retry.longest) == bounds


def test_retry_without_arguments_tries_network_errors_eight_times() -> None:
    assert str(ks.Retry()) == "on ConnectionError, TimeoutError, 8 attempts, 200ms..30s apart, then dead_letter"
    assert ks.Retry(on=OSError).classes == (OSError,)


@each_case(
    ("arguments", "message"),
    [
        ({"on": "ConnectionError"}, "Retry: on has 'C': give subclasses of Exception"),
        ({"on": (ValueError, 3)}, "Retry: on has 3: give subclasses of Exception"),
        ({"on": KeyboardInterrupt}, "Retry: on has <class 'KeyboardInterrupt'>: give subclasses of Exception"),
        ({"on": ()}, "Retry: on has no class: name one, or leave retry= out"),
        ({"on": ks.Stop}, "Retry: on has Stop, by which a function stops its worker on purpose: leave it out"),
        ({"attempts": 1}, "Retry: attempts is 1: give 2 or more: the first call counts"),
        ({"attempts": True}, "Retry: attempts is True: give 2 or more: the first call counts"),
        ({"attempts": "8"}, "Retry: attempts is '8': give 2 or more: the first call counts"),
        ({"then": "skip"}, "Retry: then 'skip' is not known: choose dead_letter, stop, pause"),
        (
            {"backoff": "1s"},
            "Retry: backoff '1s' is not a shortest and a longest wait: write them as '200ms..30s', in ms, s, m or h",
        ),
        (
            {"backoff": 5},
            "Retry: backoff 5 is not a shortest and a longest wait: write them as '200ms..30s', in ms, s, m or h",
        ),
        (
            {"backoff": "2s..1s"},
            "Retry: backoff '2s..1s' is not from a wait above 0 to a longer one: give the shorter first",
        ),
        (
            {"backoff": "0s..1s"},
            "Retry: backoff '0s..1s' is not from a wait above 0 to a longer one: give the shorter first",
        ),
    ],
)
def test_argument_that_is_not_usable_is_refused_with_its_remedy(arguments: Any, message: str) -> None:
    with pytest.raises(GraphError) as refused:
        ks.Retry(**arguments)
    assert str(refused.value) == message


def test_option_that_is_no_retry_is_refused_of_graph_and_processor() -> None:
    wrong: Any = 3
    with pytest.raises(GraphError, match=r"^graph 'g': retry is 3: give Retry\(\.\.\.\), or None for no retries$"):
        ks.Graph("g", retry=wrong)
    graph = ks.Graph("g")
    graph.topic("a"), graph.topic("x")
    with pytest.raises(GraphError, match=r"^processor 'p': retry is 3: give Retry\(\.\.\.\), or None for no retries$"):
        graph.map("a", to="x", id="p", retry=wrong)(lambda value: value)


def test_processor_has_the_retry_of_its_graph_unless_it_has_its_own() -> None:
    of_graph, own = ks.Retry(), ks.Retry(attempts=2)
    graph = ks.Graph("g", retry=of_graph)
    graph.topic("a"), graph.topic("x")
    graph.map("a", to="x", id="p")(lambda value: value)
    graph.map("a", to="x", id="q", retry=own)(lambda value: value)
    graph.map("a", to="x", id="r", retry=None)(lambda value: value)
    assert [processor.retry for processor in graph.processors] == [of_graph, own, None]
    lines = [line.strip() for line in graph.describe().splitlines() if line.startswith("    retries")]
    assert lines == [
        "retries       on ConnectionError, TimeoutError, 8 attempts, 200ms..30s apart, then dead_letter",
        "retries       on ConnectionError, TimeoutError, 2 attempts, 200ms..30s apart, then dead_letter",
    ]
