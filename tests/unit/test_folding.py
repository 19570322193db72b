"""terminal/logs.py: log lines that repeat become few, with exact counts; each says what it is about."""

from __future__ import annotations

import ast
import json
import logging
from io import StringIO
from pathlib import Path

import pytest

import kstreams_py
from kstreams_py.log_fields import answers, away, repeated
from kstreams_py.running.terminal import logs
from kstreams_py.running.terminal.logs import MINUTE, NEW_WRITTEN, TEXTS, WRITTEN, Folded, FoldedOutage, Repeats, named
from kstreams_py.testing import ManualClock

INFO, WARNING = logging.INFO, logging.WARNING


# Brokers that are away.


@pytest.fixture(autouse=True)
def without_context() -> None:
    logs.set_context()  # a test before may have run a worker in this thread


def test_outage_is_a_line_when_it_begins_one_each_minute_and_one_with_the_totals() -> None:
    outage = FoldedOutage()
    written = [outage.failed("ends", INFO, f"no answer {second}", second) for second in range(70)]
    assert [second for second, is_written in enumerate(written) if is_written] == [0]
    assert outage.due(59.9) is None
    assert outage.due(70.0) == Folded(INFO, "broker away for 70 s, 70 attempts; no answer 69")
    assert outage.due(129.9) is None, "the next line is due a minute after the one before"
    assert outage.answered("ends", 130.0) == Folded(INFO, "answers again: a broker was away for 130 s, 70 attempts")
    assert (outage.due(500.0), outage.finish(500.0)) == (None, None)


def test_outage_lasts_until_all_that_failed_have_succeeded() -> None:
    outage = FoldedOutage()
    assert [outage.failed(who, INFO, "no", 1.0) for who in ("ends", "p", "p")] == [True, False, False]
    assert outage.answered("q", 2.0) is None, "it has not failed"
    assert outage.answered("p", 3.0) is None
    assert outage.answered("ends", 21.0) == Folded(INFO, "answers again: a broker was away for 20 s, 3 attempts")


def test_attempt_at_a_higher_level_is_written_and_sets_the_level_of_what_follows() -> None:
    outage = FoldedOutage()
    written = [outage.failed("p", level, "no", 0.0) for level in (INFO, INFO, WARNING, WARNING)]
    assert written == [True, False, True, False]
    assert outage.answered("p", 1.0) == Folded(WARNING, "answers again: a broker was away for 1 s, 4 attempts")


def test_outage_with_one_line_ends_without_one_and_the_next_counts_from_zero() -> None:
    outage = FoldedOutage()
    assert outage.failed("p", INFO, "no", 0.0)
    assert outage.answered("p", 1.0) is None
    assert [outage.failed("p", INFO, "no", 100.0) for _ in range(2)] == [True, False]
    assert outage.answered("p", 105.0) == Folded(INFO, "answers again: a broker was away for 5 s, 2 attempts")


def test_outage_is_counted_at_the_end_of_the_process() -> None:
    outage = FoldedOutage()
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
    assert (written + counted, written) == (1_000, 2 * (WRITTEN + 2)), "in windows of 10, 20 and 40 s"


def test_lines_that_go_on_become_a_count_each_minute_and_begin_anew_after_a_pause() -> None:
    repeats, written, counts = Repeats(), [], []
    for second in range(201):
        written += [second] if repeats.take("failures", "x", WARNING, second) else []
        counts += [(second, line.text) for line in repeats.due(second)]
    assert written == [0, 1, 2, 3, 4, 11, 31, 71, 131, 191]
    assert [second for second, _ in counts] == [10, 30, 70, 130, 190]
    assert counts[0][1] == "6 more failures in 10 s, last x"
    assert repeats.due(250.0)[0].text == "9 more failures in 60 s, last x"
    assert [repeats.take("failures", "x", WARNING, 260.0), repeats.due(310.0)] == [True, []]
    assert [repeats.take("failures", "x", WARNING, 400.0) for _ in range(WRITTEN + 1)] == [True] * WRITTEN + [False]


def test_first_line_with_a_new_text_is_written_whatever_numbers_it_has() -> None:
    repeats = Repeats()
    written: list[int] = []
    for number in range(6_000):
        error = f"KeyError: 'vat' at offset {number}" if number % 50 == 25 else f"ValueError: bad, at {number}"
        written += [number] if repeats.take("dead letters of processor p", error, WARNING, number / 10) else []
        repeats.due(number / 10)
    assert [number for number in written if number % 50 == 25] == [25]
    assert len(written) < 30


def test_texts_that_are_all_different_are_bounded() -> None:
    """Words that stand for a value of each record: no number tells them apart."""
    words = (f"no {chr(97 + a)}{chr(97 + b)}{chr(97 + c)}" for a in range(26) for b in range(26) for c in range(26))
    repeats, last = Repeats(), 0
    written: list[str] = []
    for number, word in zip(range(6_000), words, strict=False):
        if repeats.due(number / 10):
            last = len(written)
        written += [word] if repeats.take("refusals", word, WARNING, number / 10) else []
    assert len(written) - last == 1 + NEW_WRITTEN, "of one window"
    assert len(written) < 100
    assert [len(kind.texts) <= TEXTS for kind in repeats._kinds.values()] == [True]


def test_first_line_at_a_higher_level_is_written_in_each_window() -> None:
    repeats = Repeats()
    for _ in range(WRITTEN + 1):
        repeats.take("failures of g.p.0", "aborted", INFO, 0.0)
    assert [repeats.take("failures of g.p.0", "aborted", WARNING, 5.0) for _ in range(2)] == [True, False]
    what = "failures of g.p.0"
    assert repeats.due(10.0) == [Folded(WARNING, f"2 more {what} in 10 s, last aborted", what)]
    levels = (INFO, INFO, WARNING, INFO)
    assert [repeats.take(what, "aborted", level, 11.0) for level in levels] == [True, False, True, False]
    assert repeats.due(30.0) == [Folded(INFO, f"2 more {what} in 20 s, last aborted", what)]


def test_count_of_lines_that_are_all_the_same_names_no_last_one() -> None:
    repeats = Repeats()
    for _ in range(WRITTEN + 2):
        repeats.take("aborts of g.p.0", "", INFO, 0.0)
    assert repeats.due(10.0) == [Folded(INFO, "2 more aborts of g.p.0 in 10 s", "aborts of g.p.0")]


def test_few_lines_are_written_as_they_are() -> None:
    repeats = Repeats()
    assert [repeats.take("a", "x", INFO, 1.0) for _ in range(WRITTEN)] == [True] * WRITTEN
    assert (repeats.due(100.0), repeats.finish(100.0)) == ([], [])


# What a line is about.

ABOUT: dict[str, object] = {"graph": "shop", "processor": "price", "slot": 0}


@pytest.mark.parametrize(
    ("message", "fields", "text"),
    [
        ("hello", {}, "hello"),
        ("hello", ABOUT, "[shop price slot 0] hello"),
        ("price: waits", {"graph": "shop", "processor": "price", "partition": 3}, "[shop partition 3] price: waits"),
        ("shop.price.0: fenced", ABOUT, "[shop slot 0] shop.price.0: fenced"),
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


def test_outage_ends_where_only_warnings_are_written_though_its_end_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with `kstreams run -q`: without its end, the log would say each minute that the broker is away."""
    monkeypatch.setattr(logs, "TICK", 3_600.0)
    monkeypatch.setenv(logs.LEVEL_VARIABLE, "WARNING")
    logs.configure()
    (folding,), clock = logging.getLogger().handlers, ManualClock()
    assert isinstance(folding, logs.Folding)
    monkeypatch.setattr(folding, "_clock", clock)
    logger = logging.getLogger("kstreams_py.test")
    logger.info("plain")
    for number in range(WRITTEN):
        logger.info("bad %d", number, extra=repeated("bad ones"))
    logger.info("no answer", extra=away("ends"))
    logger.warning("nothing is read", extra=away("p"))
    clock.advance(MINUTE)
    folding.write_due()
    for who in ("ends", "p"):
        logger.info("again", extra=answers(who))
    for number in range(WRITTEN):
        logger.warning("worse %d", number, extra=repeated("bad ones"))
    clock.advance(10 * MINUTE)
    folding.write_due()
    assert [line.partition("WARNING kstreams_py.test: ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "nothing is read",
        f"broker away for {MINUTE:.0f} s, 2 attempts; nothing is read",
        *(f"worse {number}" for number in range(WRITTEN)),
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
    assert logs.dress(1, "1", b"\xff") == rb"[1] \xff", "what a function prints"
    wrapped = json.loads(logs.dress(2, "1", b"Traceback \xff"))
    assert {**wrapped, "timestamp": ""} == {
        "level": "INFO", "logger": "stderr", "message": "Traceback \\xff", "slot": 1, "timestamp": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "level", "message", "processor", "text"),
    [
        ("dev", logging.INFO, "changed: a.py", None, "[dev] changed: a.py"),
        ("dev", logging.ERROR, "no:\n    retrun 1\x1b", None, "[dev] ERROR no:\n[dev]         retrun 1\\u001b"),
        ("", logging.INFO, "price: holds a[0]", "price", "price: holds a[0]"),
        ("", logging.WARNING, "a broker is away", "price", "WARNING price: a broker is away"),
        ("", logging.WARNING, "shop.price.0: taken", "price", "WARNING shop.price.0: taken"),
    ],
)
def test_each_line_of_the_short_format_begins_with_its_source_and_has_no_time(
    source: str, level: int, message: str, processor: str | None, text: str
) -> None:
    record = logging.LogRecord("kstreams_py.development", level, "", 0, "%s", (message,), None)
    vars(record).update(graph="shop", processor=processor, slot=0, partition=3)
    assert logs._Short(source).format(record) == text


# What folds.

PACKAGE = Path(kstreams_py.__file__).parent
REPEATS = (
    "processing/commits/session.py",
    "processing/tasks/waits.py",
    "processing/commits/attempts.py",
    "processing/tasks/committed.py",
)
ONCE = {"%s: its transaction is left to its time-out: %s", "%s: %s; looking for the record"}
"""Lines that a worker writes once, at its end, or a few times while it looks for a record that is refused."""


def calls_of(path: Path) -> list[ast.Call]:
    return [each for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(each, ast.Call)]


@pytest.mark.parametrize("path", [*REPEATS, "kafka/silence.py"])
def test_lines_of_modules_that_try_again_and_again_say_how_they_are_folded(path: str) -> None:
    logged = {"logger.info", "logger.warning", "logger.log"}
    calls = [call for call in calls_of(PACKAGE / path) if ast.unparse(call.func) in logged]
    bare = {
        argument.value
        for call in calls
        if not any(keyword.arg == "extra" for keyword in call.keywords)
        for argument in call.args[:1]
        if isinstance(argument, ast.Constant)
    }
    assert calls
    assert bare <= ONCE


@pytest.mark.parametrize("package", ["kafka", "processing"])
def test_lines_that_repeat_are_folded_for_each_worker_apart(package: str) -> None:
    """Many run in one process: what one says must not hide what another says once."""
    paths = (PACKAGE / package).glob("*.py")
    names = [call.args[0] for path in paths for call in calls_of(path) if ast.unparse(call.func) == "repeated"]
    assert names
    assert [ast.unparse(name) for name in names if isinstance(name, ast.Constant)] == []
