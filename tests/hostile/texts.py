"""Texts of records and exceptions on their way out: none moves a cursor, or poses as another line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.cli import main
from kstreams_py.cli.streams import echo, echo_lines
from kstreams_py.errors import WorkersFailed
from kstreams_py.graph.topology import Graph
from kstreams_py.operations.dead_letters.text import Describer, group_as_json, groups_as_text
from kstreams_py.operations.doctor.findings import Finding, describe
from kstreams_py.operations.records.lines import Lines
from kstreams_py.processing.dead_letters.letters import Input, Letter, LetterPlace, Mark, group
from kstreams_py.running.http.endpoints import _health
from kstreams_py.running.output import STDERR, STDOUT
from kstreams_py.running.terminal import logs
from kstreams_py.testing import MemoryRegistry
from tests.hostile import Outcome, Place
from tests.unit.fakes import Read

FORGED: Final = "[7] 2026-05-01 12:00:00,000 ERROR kstreams_py: all is lost"
"""What a reader would take for a line of the log of slot 7."""

TEXTS: Final = {
    "a word": "order",
    "words of several scripts": "naïve 注文\u3000طلب می\u200cروم",
    "an emoji of several characters": "👩\u200d🚀",
    "a backslash": r"C:\new\temp",
    "a line break": f"a\n{FORGED}",
    "a carriage return": f"a\r{FORGED}",
    "both": f"a\r\n{FORGED}",
    "a next line": f"a\x85{FORGED}",
    "a line separator": f"a\u2028{FORGED}",
    "a paragraph separator": f"a\u2029{FORGED}",
    "a form feed": f"a\f{FORGED}",
    "a vertical tab": f"a\v{FORGED}",
    "a sequence that clears the screen": "a\x1b[2J\x1b[Hb",
    "a sequence that moves up": f"a\x1b[1A\x1b[2K{FORGED}",
    "a title": "a\x1b]0;root\x07b",
    "a copy to the clipboard": "a\x1b]52;c;cm0gLXJm\x07b",
    "a link": "a\x1b]8;;http://evil.example\x1b\\b\x1b]8;;\x1b\\",
    "a question to the terminal": "a\x1b[6nb",
    "a sequence of C1": "a\x9b2Jb",
    "backspaces": "good\b\b\b\bevil",
    "a delete": "a\x7fb",
    "a null": "a\0b",
    "an override of the order": "a\u202egpj.exe",
    "an isolate": "a\u2067b\u2066c\u2069",
    "a mark of order": "a\u200fb",
    "what is not seen": "a\u200b\u2060\ufeff\xadb",
    "tags": "a\U000e0041\U000e007fb",
    "a tab": "a\tb",
}

CHANGED: Final = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of characters that are not printable; scripts and emoji need the two joiners."""


def is_safe(text: str, breaks: str) -> bool:
    """Whether a reader sees each character where it is; `breaks` are those that the way out makes itself."""
    odd = {char for char in text if unicodedata.category(char) in CHANGED} - {"\u200c", "\u200d", *breaks}
    return not odd and not any(line.startswith(FORGED) for line in text.splitlines())


def enter(show: Callable[[str], str], texts: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """A text that is safe is shown as it is, any other one with escapes, and nothing of either is lost."""

    def outcome(text: str) -> Outcome:
        shown = show(text)
        assert is_safe(shown, "\n\t"), shown
        for word in ("naïve 注文\u3000طلب می\u200cروم", "👩\u200d🚀", "all is lost", "gpj.exe"):
            assert word not in text or word in shown or json.dumps(word)[1:-1] in shown, shown
        return Outcome.OUTPUT

    return {name: outcome(text) for name, text in texts.items()}


def printed(act: Callable[[], object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        act()
    return out.getvalue()


def logged(text: str, *, raised: bool) -> str:
    """A line of the log, in text, and with a traceback if it was raised."""
    record = logging.LogRecord("shop", logging.ERROR, "f", 1, "slot 0 ended by %s", (text,), None)
    if raised:
        try:
            raise ValueError(text)
        except ValueError as error:
            record.exc_info = (ValueError, error, error.__traceback__)
    shown = logs._Named("%(asctime)s %(levelname)s %(name)s: %(message)s").format(record)
    assert all(line.startswith("    ") for line in shown.split("\n")[1:])
    return shown


def logged_as_json(text: str) -> str:
    record = logging.LogRecord("shop", logging.ERROR, "f", 1, "slot 0 ended by %s", (text,), None)
    shown = logs._json_formatter().format(record)
    assert json.loads(shown)["message"] == f"slot 0 ended by {text}"
    return shown


def of_worker(text: str, output: int = STDOUT) -> str:
    """Lines that a worker prints, with its slot."""
    lines = [logs.dress(output, "3", line).decode() for line in f"{text}\n".encode().removesuffix(b"\n").split(b"\n")]
    assert all(line.startswith("[3] ") for line in lines)
    return "\n".join(lines)


def of_worker_in_json(text: str) -> str:
    """The same in the format of JSON, where a line of standard error becomes an object."""
    lines = [logs.dress(STDERR, "3", line).decode() for line in text.encode().split(b"\n")]
    assert [json.loads(line)["slot"] for line in lines] == [3] * len(lines)
    return "\n".join(lines)


def letter(text: str) -> Letter:
    data = text.encode()
    read = Input("a", 0, 1, 0, data, data, ((text, data), ("raw", b"\xff" + data)))
    place, trace = LetterPlace("dead", 0, 1), f"Traceback\n  {text}"
    return Letter(place, 0, text, b"0", f"shop.{text}", text, trace, (read,), text)


def describer() -> Describer:
    graph = Graph("g")
    graph.topic("a", key=ks.String(), value=ks.String())
    return Describer(graph, MemoryRegistry())


def shown_letter(text: str) -> str:
    shown = printed(lambda: echo_lines(describer().as_text(letter(text), Mark(0, text))))
    assert all(line.startswith(("dead[0]@1  ", "  ")) for line in shown.splitlines()), shown
    return shown


def letter_as_json(text: str) -> str:
    shown = printed(lambda: echo(describer().as_json(letter(text), Mark(0, text))))
    assert json.loads(shown)["message"] == text
    return shown


def listed_letters(text: str) -> str:
    groups = group([(letter(text), None), (letter(text), Mark(0, text))])
    table = printed(lambda: echo_lines(groups_as_text(groups)))
    assert len(table.splitlines()) == 4, table
    [((of, kind), each)] = groups.items()
    return table + printed(lambda: echo(group_as_json(of, kind, each)))


def tailed(text: str) -> str:
    data = text.encode()
    line = Lines("a", None, MemoryRegistry()).show(Read("a", 0, data, key=data, headers=[(text, data)]))
    shown = printed(lambda: echo(line))
    found = json.loads(shown)
    assert (found["key"], found["value"], found["headers"]) == (text, text, [[text, text]])
    return shown


def found_by_doctor(text: str) -> str:
    finding = Finding.__new__(Finding)
    for name in ("severity", "kind", "subject", "meaning", "remedy"):
        object.__setattr__(finding, name, text)
    shown = printed(lambda: echo_lines(describe(finding)))
    assert len(shown.splitlines()) == 2
    return shown


def at_the_end(text: str) -> str:
    shown = printed(lambda: main._show(WorkersFailed(f"slot 0 ended by ValueError: {text}")))
    assert all(line.startswith(("error: ", "    ")) for line in shown.splitlines())
    return shown


def way(name: str, show: Callable[[str], str], texts: Iterable[str] = TEXTS) -> Place:
    return Place(name, {each: (TEXTS[each], Outcome.OUTPUT) for each in texts}, partial(enter, show))


PLACES: Final = [
    way("a line of a command", lambda text: printed(lambda: echo(f"key {text}"))),
    way("the log as text", partial(logged, raised=False)),
    way("a traceback in the log as text", partial(logged, raised=True)),
    way("the log as JSON", logged_as_json),
    way("a line of a worker", of_worker),
    way("the error that ends a command", at_the_end),
    way("a dead letter, shown", shown_letter),
    way("a dead letter as JSON", letter_as_json),
    way("the list of dead letters", listed_letters),
    way("a record, tailed", tailed),
    way("a finding of the doctor", found_by_doctor),
    way("/livez and /readyz", lambda text: _health([f"slot 0 waits: {text}"]).body.decode()),
]
