"""running/folding.py and logs.py: many log lines alike become few, with exact counts; each says what it is about."""

from __future__ import annotations

import json
import logging
from io import StringIO

import pytest

from kstreams_py.log_fields import answers, away, repeated
from kstreams_py.running import logs
from kstreams_py.running.folding import WRITTEN, Folded, Outage, Repeats, named
from kstreams_py.testing import ManualClock

INFO, WARNING = logging.INFO, logging.WARNING


# Brokers that are away.


def test_outage_is_a_line_when_it_begins_one_each_minute_and_one_with_the_totals() -> None:
    outage = Outage()
    written = [outage.failed("ends", INFO, f"no answer {second}", second) for second in range(70)]
    assert [second for second, is_written in enumerate(written) if is_written] == [0]
    assert outage.due(59.9) is None
    assert outage.due(70.0) == Folded(INFO, "broker away for 70 s, 70 attempts; no answer 69")
    assert outage.due(129.9) is None, "the next line is due a minute after the one before"
    assert outage.answered("ends", 130.0) == Folded(INFO, "answers again: a broker was away for 130 s, 70 attempts")
    assert (outage.due(500.0), outage.finish(500.0)) == (None, None)


def test_outage_lasts_until_all_that_failed_have_succeeded() -> None:
    outage = Outage()
    assert [outage.failed(who, INFO, "no", 1.0) for who in ("ends", "p", "p")] == [True, False, False]
    assert outage.answered("q", 2.0) is None, "it has not failed"
    assert outage.answered("p", 3.0) is None
    assert outage.answered("ends", 21.0) == Folded(INFO, "answers again: a broker was away for 20 s, 3 attempts")


def test_attempt_at_a_higher_level_is_written_and_sets_the_level_of_what_follows() -> None:
    outage = Outage()
    assert [outage.failed("p", level, "no", 0.0) for level in (INFO, INFO, WARNING, WARNING)] == [
        True,
        False,
        True,
        False,
    ]
    assert outage.answered("p", 1.0) == Folded(WARNING, "answers again: a broker was away for 1 s, 4 attempts")


def test_outage_whose_lines_were_all_written_ends_without_one_and_the_next_counts_from_zero() -> None:
    outage = Outage()
    assert outage.failed("p", INFO, "no", 0.0)
    assert outage.answered("p", 1.0) is None
    assert [outage.failed("p", INFO, "no", 100.0) for _ in range(2)] == [True, False]
    assert outage.answered("p", 105.0) == Folded(INFO, "answers again: a broker was away for 5 s, 2 attempts")


def test_outage_is_counted_at_the_end_of_the_process() -> None:
    outage = Outage()
    assert [outage.failed("p", INFO, "no", 0.0) for _ in range(3)] == [True, False, False]
    assert outage.finish(9.0) == Folded(INFO, "the process ends: a broker was away for 9 s, 3 attempts")
    assert outage.finish(9.0) is None


# Lines that repeat.


def test_first_lines_of_a_window_are_written_and_the_others_counted() -> None:
    repeats, written = Repeats(), 0
    for number in range(42):
        written += repeats.take("dead letters of processor p", f"KeyError: '{number}'", WARNING, 0.1 * number)
    assert (written, repeats.due(9.9)) == (WRITTEN, [])
    what = "dead letters of processor p"
    assert repeats.due(10.0) == [Folded(WARNING, f"37 more {what} in 10 s, last KeyError: '41'", what)]
    assert repeats.finish(10.0) == [], "all are counted"


def test_kinds_are_counted_apart_and_each_line_is_written_or_counted_once() -> None:
    repeats, written, counted = Repeats(), 0, 0
    for number in range(1_000):
        now = number * 0.07
        written += repeats.take("ab"[number % 2], "x", WARNING, now)
        counted += sum(int(line.text.split()[0].replace(",", "")) for line in repeats.due(now))
    counted += sum(int(line.text.split()[0].replace(",", "")) for line in repeats.finish(70.0))
    assert (written + counted, written) == (1_000, 2 * 7 * WRITTEN)


def test_few_lines_are_written_as_they_are() -> None:
    repeats = Repeats()
    assert [repeats.take("a", "x", INFO, 1.0) for _ in range(WRITTEN)] == [True] * WRITTEN
    assert (repeats.due(100.0), repeats.finish(100.0)) == ([], [])


# What a line is about.


@pytest.mark.parametrize(
    ("message", "fields", "text"),
    [
        ("hello", {}, "hello"),
        ("hello", {"graph": "shop", "processor": "price", "slot": 0}, "[shop price slot 0] hello"),
        ("price: waits", {"graph": "shop", "processor": "price", "partition": 3}, "[shop partition 3] price: waits"),
        (
            "shop.price.0: fenced",
            {"graph": "shop", "processor": "price", "slot": 0},
            "[shop slot 0] shop.price.0: fenced",
        ),
        ("prices are high", {"processor": "price"}, "[price] prices are high"),
    ],
)
def test_text_has_what_it_is_about_in_front_unless_it_says_so(
    message: str, fields: dict[str, object], text: str
) -> None:
    assert named(message, fields) == text


# The handler.


class Log:
    """A logger whose records are folded by a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logs, "TICK", 3_600.0)  # the test itself says when
        self.clock, self.out = ManualClock(), StringIO()
        target = logging.StreamHandler(self.out)
        target.setFormatter(logging.Formatter("%(levelname)s %(processor)s: %(message)s"))
        self.folding = logs.Folding(target, self.clock)
        self.logger = logging.Logger("kstreams_py.test")
        self.logger.addHandler(self.folding)

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def test_handler_folds_what_says_how_and_passes_the_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    log.logger.info("plain", extra={"processor": "p"})
    for number in range(7):
        log.logger.warning("bad %d", number, extra=repeated("bad ones", f"KeyError {number}", processor="p"))
    for _ in range(3):
        log.logger.info("no answer", extra=away("p", processor="p"))
    log.clock.advance(12.0)
    log.folding.write_due()
    log.logger.info("again", extra=answers("p", processor="p"))
    assert log.lines == [
        "INFO p: plain",
        *(f"WARNING p: bad {number}" for number in range(5)),
        "INFO p: no answer",
        "WARNING p: 2 more bad ones in 12 s, last KeyError 6",
        "INFO None: answers again: a broker was away for 12 s, 3 attempts",
    ]


def test_handler_writes_all_counts_when_it_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    for number in range(6):
        log.logger.warning("bad %d", number, extra=repeated("bad ones", f"KeyError {number}", processor="p"))
    log.folding.flush()
    assert log.lines[WRITTEN:] == ["WARNING p: 1 more bad ones in 0 s, last KeyError 5"]


# Lines of workers.


def test_lines_of_workers_have_their_slot_and_lines_of_json_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"level": "INFO", "slot": 1}'
    assert logs.dress(1, "1", line) == b"[1] " + line, "text"
    monkeypatch.setenv("KSTREAMS_LOG_FORMAT", "json")
    assert [logs.dress(output, "1", line) for output in (1, 2)] == [line, line]
    assert logs.dress(1, "1", b"\xff") == b"[1] \xff", "what a function prints"
    wrapped = json.loads(logs.dress(2, "1", b"Traceback \xff"))
    assert {**wrapped, "timestamp": ""} == {
        "level": "INFO", "logger": "stderr", "message": "Traceback \\xff", "slot": 1, "timestamp": "",
    }  # fmt: skip
