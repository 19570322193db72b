"""The command's log: its level and format, the context of each line, and the folding of similar lines."""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.log_fields import FOLD, repeated
from kstreams_py.printable import clean_line, escape, indent_rest
from kstreams_py.running.output import STDERR
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.terminal.lines import is_json, prefixed
from kstreams_py.secrets import redact

MINUTE: Final = 60.0
"""Seconds between two lines about a broker that is away."""

WINDOW: Final = 10.0
"""Seconds over which repeated lines are counted; doubles after each window with counted lines, up to MINUTE."""

WRITTEN: Final = 5
"""The number of lines of a kind that its first window writes. Later windows write one. All others are counted."""

NEW_WRITTEN: Final = 5
"""The number of further lines that each window writes because their text is new to the kind."""

TEXTS: Final = 100
"""The maximum number of texts that are remembered for a kind; the oldest is forgotten first."""

_NUMBER: Final = re.compile(r"\d+")
"""Ignored when texts are compared: offsets, times and ids."""


class Folded(NamedTuple):
    """A line that stands for others: its logging level and its text. `what`: the kind; "" for an outage."""

    level: int
    text: str
    what: str = ""


class FoldedOutage:
    """Folds all failed attempts in one process while a broker is away into a few lines with exact counts.

    One line says that a broker has gone away, one a minute that it is still away, and one that it is back. Times are
    seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._away: set[str] = set()
        self._since = self._said_at = 0.0
        self._attempts = self._hidden = 0
        self._level = 0
        self._newest = ""

    def failed(self, who: str, level: int, text: str, now: float) -> bool:
        """Counts a failed attempt. Returns whether to write its line: the first, and the first at a higher level."""
        if not self._away:
            self._since = self._said_at = now
            self._attempts = self._hidden = self._level = 0
        self._away.add(who)
        self._attempts += 1
        self._newest = text
        if level > self._level:
            self._level = level
            return True
        self._hidden += 1
        return False

    def answered(self, who: str, now: float) -> Folded | None:
        """Notes a success. Once everything that had failed has succeeded, returns the totals if lines were hidden."""
        if who not in self._away:
            return None
        self._away.discard(who)
        return None if self._away else self._end(now, "answers again: a broker was away")

    def due(self, now: float) -> Folded | None:
        """Returns the line that is due once a minute; None if none is due."""
        if not self._away or now - self._said_at < MINUTE:
            return None
        self._said_at = now
        return Folded(self._level, f"broker away for {self._counted(now)}; {self._newest}")

    def finish(self, now: float) -> Folded | None:
        """Returns the totals at the end of the process."""
        return self._end(now, "the process ends: a broker was away") if self._away else None

    def _end(self, now: float, what: str) -> Folded | None:
        self._away.clear()
        return Folded(self._level, f"{what} for {self._counted(now)}") if self._hidden else None

    def _counted(self, now: float) -> str:
        return f"{now - self._since:.0f} s, {self._attempts:,} attempts"


@dataclass(slots=True)
class _Kind:
    since: float
    window: float = WINDOW
    left: int = WRITTEN
    """The lines that may still be written in this window."""
    new_left: int = NEW_WRITTEN
    """The further lines with a new text that may still be written in this window."""
    texts: dict[str, None] = field(default_factory=dict)
    """The texts that were written, without their numbers."""
    level: int = 0
    """The highest level of a line written in this window."""
    hidden: int = 0
    hidden_level: int = 0
    newest: str = ""

    def take(self, newest: str, level: int) -> bool:
        text = _NUMBER.sub("", newest)
        is_new = text not in self.texts and self.new_left > 0
        if not (self.left or is_new or level > self.level):
            self.hidden += 1
            self.hidden_level, self.newest = max(self.hidden_level, level), newest
            return False
        if self.left:
            self.left -= 1
        elif is_new:
            self.new_left -= 1
        self.level = max(self.level, level)
        self.texts[text] = None
        if len(self.texts) > TEXTS:
            del self.texts[next(iter(self.texts))]
        return True


@dataclass
class Repeats:
    """Folds similar lines: some are written, the others counted; the longer they go on, the fewer are written.

    In each window, the first lines with a new text, up to a limit, and the first line at a higher level are written.
    """

    _kinds: dict[str, _Kind] = field(default_factory=dict)

    def take(self, what: str, newest: str, level: int, now: float, first: int = WRITTEN) -> bool:
        """Counts a line; returns whether to write it. `first`: how many lines a new kind writes."""
        return self._kinds.setdefault(what, _Kind(now, left=first)).take(newest, level)

    def due(self, now: float) -> list[Folded]:
        """Returns the counts of the windows that are over. A kind without counted lines counts as new again."""
        over = {what: kind for what, kind in self._kinds.items() if now - kind.since >= kind.window}
        found = self._end(now, list(over))
        for what, kind in over.items():
            if kind.hidden:
                self._kinds[what] = _Kind(now, min(2 * kind.window, MINUTE), left=1, texts=kind.texts)
        return found

    def finish(self, now: float) -> list[Folded]:
        """Returns all counts, at the end of the process."""
        return self._end(now, list(self._kinds))

    def _end(self, now: float, names: list[str]) -> list[Folded]:
        ended = [(what, self._kinds.pop(what)) for what in names]
        return [
            Folded(kind.hidden_level, f"{kind.hidden:,} more {what} in {now - kind.since:.0f} s{last}", what)
            for what, kind in ended
            for last in [f", last {kind.newest}" if kind.newest else ""]
            if kind.hidden
        ]


def named(message: str, fields: dict[str, object]) -> str:
    """Returns a message with its context in front, without the processor if the message begins with it.

    - `fields`: graph, processor, slot and partition, as far as known.
    """
    graph, processor = fields.get("graph"), fields.get("processor")
    said = processor is not None and message.startswith((f"{processor}:", f"{graph}.{processor}"))
    words = [str(graph)] if graph is not None else []
    words += [str(processor)] if processor is not None and not said else []
    words += [f"{name} {fields[name]}" for name in ("slot", "partition") if fields.get(name) is not None]
    return f"[{' '.join(words)}] {message}" if words else message


SHORT: Final = "short"
"""The format of `kstreams dev` and of the processes that it starts: no time and no module name."""

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

FORMATS: Final = ("text", "json")

LEVEL_VARIABLE: Final = "KSTREAMS_LOG_LEVEL"
FORMAT_VARIABLE: Final = "KSTREAMS_LOG_FORMAT"

FIELDS: Final = ("graph", "processor", "slot", "partition")
"""The context of a line, as far as known."""

OTEL_MAX: Final = 200
"""The maximum length of a line from OpenTelemetry, which may quote a whole record header."""

OTEL_HEADERS: Final = "opentelemetry.util.re"
"""The logger that quotes invalid headers in OTEL_EXPORTER_OTLP_HEADERS, which are often secrets."""

TICK: Final = 1.0
"""Seconds between two checks for folded lines that are due."""

_context: ContextVar[dict[str, object]] = ContextVar("context", default={})  # noqa: B039, it is never changed


def set_context(**fields: object) -> None:
    """Sets the context (see FIELDS) of this thread's lines from now on, including the lines of users' functions."""
    _context.set(fields)


def log_format() -> str:
    """Returns the format of KSTREAMS_LOG_FORMAT, text by default. Raises SettingsError."""
    return SHORT if os.environ.get(FORMAT_VARIABLE) == SHORT else _chosen(FORMAT_VARIABLE, "text", FORMATS, str.lower)


def _chosen(variable: str, default: str, among: tuple[str, ...], case: Callable[[str], str]) -> str:
    value = os.environ.get(variable, default)
    if case(value) not in among:
        kind = variable.removeprefix("KSTREAMS_").lower().replace("_", " ")
        raise SettingsError(f"{variable}={value} is not a {kind}: use one of {', '.join(among)}")
    return case(value)


def configure(source: str = "") -> None:
    """Configures the log on standard error from the two variables; may be called again.

    - `source`: stands in brackets before each line in the short format; "" for a worker, whose supervisor writes its
      slot there.

    Raises SettingsError for an invalid value, MissingSoftware for json without its library.
    """
    level = _chosen(LEVEL_VARIABLE, "INFO", LEVELS, str.upper)
    is_terminal = sys.stderr.isatty()
    target: logging.Handler
    if log_format() == "json":
        target = logging.StreamHandler()
        target.setFormatter(_json_formatter())
    elif log_format() == SHORT:
        target = logging.StreamHandler()
        target.setFormatter(_Short(source))
    elif is_terminal:
        # imported here: Rich takes an eighth of the start of a process, and workers have no terminal
        from rich.logging import RichHandler  # noqa: PLC0415

        from kstreams_py.running.terminal.progress import terminal  # noqa: PLC0415

        target = RichHandler(console=terminal(), show_path=False)
        target.setFormatter(_Named("%(message)s"))
    else:
        target = logging.StreamHandler()
        target.setFormatter(_Named("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    target.setLevel(level)
    handler = target if level == "DEBUG" else Folding(target)
    handler.addFilter(_add_context)
    handler.addFilter(tame)
    # a line at INFO ends an outage, even if only warnings are written
    logging.basicConfig(level=min(level, "INFO", key=LEVELS.index), handlers=[handler], force=True)
    # at DEBUG kafka-python logs the bytes of each request, with the SASL password; its errors are raised as well
    logging.getLogger("kafka").setLevel(logging.INFO if level == "DEBUG" else logging.CRITICAL)


def _json_formatter() -> logging.Formatter:
    try:
        from pythonjsonlogger.core import RESERVED_ATTRS  # noqa: PLC0415
        from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415
    except ImportError:
        raise MissingSoftware("the json log format needs python-json-logger: pip install 'kstreams_py[logs]'") from None
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        reserved_attrs=[*RESERVED_ATTRS, FOLD],
        timestamp=True,
    )


def _add_context(record: logging.LogRecord) -> bool:
    for name, value in _context.get().items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


def tame(record: logging.LogRecord) -> bool:
    """Marks OpenTelemetry's lines for folding, shortens them and removes secrets; passes all lines on.

    OpenTelemetry logs a line for each record with an invalid header, each attempt to reach a collector, and each lost
    span.
    """
    if record.name.startswith("opentelemetry."):
        if record.name == OTEL_HEADERS:
            text = "a header in an OTEL_* variable is left out: write name=value,name=value"
        else:
            text = _shortened(record)
        record.msg, record.args = text, ()
        vars(record).update(repeated(f"lines of {record.name}", text))
    return True


def _shortened(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # logging handles an error in a handler; an error in a filter would end a user's function
        text = str(record.msg)
    return escape(redact(text)[:OTEL_MAX]) + "..." * (len(text) > OTEL_MAX)


class _Named(logging.Formatter):
    """Formats text with its context in front, and indents further lines; a supervisor writes the slot itself."""

    def format(self, record: logging.LogRecord) -> str:
        return indent_rest(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, of logging
        wanted = [name for name in FIELDS if name != "slot" or REPORT_FD not in os.environ]
        fields = {name: value for name in wanted if (value := getattr(record, name, None)) is not None}
        record.message = named(record.message, fields)
        return super().formatMessage(record)


class _Short(logging.Formatter):
    """Formats text as the message with its processor, and a level from WARNING on; each line begins with the source."""

    def __init__(self, source: str) -> None:
        super().__init__("%(message)s")
        self._source = f"[{source}] " if source else ""

    def format(self, record: logging.LogRecord) -> str:
        lines = indent_rest(super().format(record)).split("\n")
        return "\n".join(self._source + line for line in lines)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, of logging
        graph, processor = (getattr(record, name, None) for name in ("graph", "processor"))
        is_named = processor is None or record.message.startswith((f"{processor}:", f"{graph}.{processor}"))
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        record.message = level + (record.message if is_named else f"{processor}: {record.message}")
        return super().formatMessage(record)


class Folding(logging.Handler):
    """Passes records at or above another handler's level on to it; folds records with a FOLD field (log_fields)."""

    def __init__(self, target: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        super().__init__()
        self._target = target
        self._clock = clock
        self._outage = FoldedOutage()
        self._repeats = Repeats()
        self._samples: dict[str, logging.LogRecord] = {}
        """The newest record of each kind; a folded line takes its fields from it."""
        self._ticker: threading.Thread | None = None
        self._closed = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        fold: tuple[Any, ...] | None = getattr(record, FOLD, None)
        if fold is None or (fold[0] == "repeated" and record.levelno < self._target.level):
            self._pass(record)
            return
        now = self._clock()
        match fold:
            case ("away", who):
                self._samples[""] = record
                is_written = self._outage.failed(who, record.levelno, record.getMessage(), now)
            case ("answers", who):
                is_written = False
                self._write(self._outage.answered(who, now))
            case (_, what, newest, *first):
                self._samples[what] = record
                is_written = self._repeats.take(what, newest, record.levelno, now, *first)
            case _:
                is_written = True
        if is_written:
            self._pass(record)
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="log", daemon=True)
            self._ticker.start()

    def write_due(self) -> None:
        """Writes the lines that are due."""
        with self.lock or threading.RLock():
            self._write(self._outage.due(self._clock()), *self._repeats.due(self._clock()))

    def flush(self) -> None:
        """Writes all counts, at the end of the process."""
        with self.lock or threading.RLock():
            self._write(self._outage.finish(self._clock()), *self._repeats.finish(self._clock()))
            self._target.flush()

    def _write(self, *lines: Folded | None) -> None:
        for line in lines:
            if line is not None:
                record = copy.copy(self._samples[line.what])
                record.msg, record.args, record.levelno = line.text, (), line.level
                record.levelname, record.created = logging.getLevelName(line.level), time.time()
                if not line.what:  # an outage concerns all processors
                    record.processor = None
                self._pass(record)

    def _pass(self, record: logging.LogRecord) -> None:
        if record.levelno >= self._target.level:
            self._target.handle(record)

    def close(self) -> None:
        """Ends the thread that writes the lines that are due."""
        self._closed.set()
        super().close()

    def _tick(self) -> None:
        while not self._closed.wait(TICK):
            self.write_due()


def finish() -> None:
    """Writes the remaining counts. Call this before an exit that skips Python's own shutdown."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def dress(output: int, slot: str, line: bytes) -> bytes:
    """Returns a line of a worker as its supervisor writes it: with its slot in front.

    In the json format, a JSON line stays as it is, and any other line of standard error becomes JSON with its slot.
    """
    if log_format() != "json":
        return prefixed(slot, line)
    if is_json(line):
        return clean_line(line)
    if output != STDERR:
        return prefixed(slot, line)
    fields = {
        "level": "INFO",
        "logger": "stderr",
        "message": line.decode(errors="backslashreplace"),
        "slot": int(slot) if slot.isdigit() else slot,
        "timestamp": datetime.now(UTC).isoformat(),
    }
    return json.dumps(fields).encode()
