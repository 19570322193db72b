"""Departures as the demo reads them, and a report of a run that never was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kstreams_py.demo import data, data_files
from kstreams_py.demo.checks import Check, ReadBack, judge
from kstreams_py.demo.data import FIELDS, ExpectedResults, Row
from kstreams_py.demo.flights_graph import graph
from kstreams_py.demo.recoveries import Kill
from kstreams_py.demo.traffic import Traffic
from kstreams_py.processing.dead_letters.letters import Input, Letter, LetterPlace

if TYPE_CHECKING:
    from kstreams_py.demo import report


def row(number: int, **changed: Any) -> Row:
    """A departure with a unique flight number."""
    usual = {
        "year": 2013, "month": 1 + number % 2, "day": 1, "dep_time": 600, "sched_dep_time": 555, "dep_delay": 5,
        "arr_time": 800, "sched_arr_time": 750, "arr_delay": number, "carrier": "UA" if number % 3 else "DL",
        "flight": number, "tailnum": f"N{number % 5}", "origin": ("EWR", "JFK", "LGA")[number % 3], "dest": "ORD",
        "air_time": 90, "distance": 733, "hour": 5, "minute": 55, "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    return tuple((usual | changed)[name] for name in FIELDS)


def rows() -> list[Row]:
    """Thirty departures: 25 departed, 3 cancelled (one without a tail number), 2 without an arrival delay."""
    cancelled = [row(n, dep_time=None, dep_delay=None, arr_time=None, arr_delay=None) for n in (100, 101)]
    nameless = row(102, dep_time=None, dep_delay=None, arr_time=None, arr_delay=None, tailnum=None)
    return [*map(row, range(25)), *cancelled, nameless, row(103, arr_delay=None), row(104, arr_delay=None)]


def perfect(expected: ExpectedResults) -> ReadBack:
    """The results of a run without a fault."""
    return ReadBack(
        inputs=expected.records,
        merged=expected.records,
        without_key=expected.without_tail_number,
        rows=expected.rows,
        deliveries={},
        stored=expected.rows["departed"],
        delays=expected.delays,
    )


def new_letter(message: str = "UA 103 departed, but has no arrival delay") -> report.ShownLetter:
    """A dead letter of a departure without an arrival delay."""
    from kstreams_py.demo.report import ShownLetter  # noqa: PLC0415 it imports Matplotlib

    read = Input("flights", 1, 20, 1_357_034_400_000, b"N3", b"", (("ks-hash", bytes(15) + b"\x01"), ("by", b"hand")))
    letter = Letter(
        LetterPlace("flights.errors", 2, 5), 1_357_034_400_000, "flights.split", bytes(15) + b"\x02",
        "builtins.ValueError", message, "Traceback (most recent call last)\n  ...\nValueError\n", (read,), "",
    )  # fmt: skip
    value = dict(zip(FIELDS, row(103, arr_delay=None), strict=True))
    headers = [("ks-hash", "..."), ("by", "hand")]
    inputs = [{"time": "2013-01-01T10:00:00Z", "key": "N3", "value": value, "headers": headers}]
    return ShownLetter(letter, {"inputs": inputs})


def new_report(
    checks: Sequence[Check] | None = None,
    *,
    arrivals: int = 40,
    recoveries: Sequence[float | None] = (1.25, None, 0.5),
    letters: Sequence[report.ShownLetter] | None = None,
    is_sample: bool = False,
) -> report.ReportedRun:
    """The contents of a report: twenty seconds of records, a kill every five seconds."""
    from kstreams_py.demo.report import CommandFacts, ReportedRun  # noqa: PLC0415 it imports Matplotlib

    seen = [(100.0 + n / 2, topic, 5) for n in range(arrivals) for topic in ("flights", "flights.departed")]
    killed = [Kill(100.2 + 5 * n, n % 3, 1000 + n) for n in range(len(recoveries))]
    expected = data.expect(rows())
    return ReportedRun(
        graph,
        judge(expected, perfect(expected)) if checks is None else checks,
        Traffic(100.0, seen, killed, recoveries, 1.25),
        expected.delays,
        data_files.carriers(),
        [new_letter()] if letters is None else letters,
        CommandFacts(7, 3, 61.0, is_sample=is_sample),
    )
