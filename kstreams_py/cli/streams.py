"""Repairs the standard streams: closed ones, encodings that lack characters, outputs that cannot be written."""

from __future__ import annotations

import codecs
import os
import select
import sys
import traceback
from typing import Final, TextIO

from kstreams_py.printable import escape

ESCAPE: Final = "kstreams_escape"
"""The error handler that writes a character that an encoding lacks as \\uXXXX, as JSON does."""

NAMES: Final = ("stdin", "stdout", "stderr")

PRINTING: Final = (["kstreams_py", "cli"], ["typer", "_click"], ["rich", "console"])
"""The packages that print for a command."""


def repair() -> None:
    """Opens closed streams on the null device, and lets the outputs accept any character.

    Otherwise the next file or socket would get the file descriptor of a closed stream.
    """
    codecs.register_error(ESCAPE, _escape)
    for fd, name in enumerate(NAMES):
        mode = "w" if fd else "r"
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115, as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ESCAPE)


def echo(text: object, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Prints one line, with control characters escaped; a line of JSON stays the same."""
    print(escape(str(text)), file=file, flush=flush)


def echo_lines(text: str, *, file: TextIO | None = None, flush: bool = False) -> None:
    """Prints a text of several lines, made by join_lines() or indent_rest()."""
    print(escape(text, "\n\t"), file=file, flush=flush)


def is_of_output(error: BaseException) -> bool:
    """Returns whether an exception says that a command's output could not be written, such as on a full disk.

    An exception of a user's function does not count: it has a frame of that function.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    printed = frames and frames[-1].f_globals.get("__name__", "").split(".")[:2] in PRINTING
    return isinstance(error, OSError) and error.filename is None and bool(printed)


def flush_output() -> str:
    """Flushes standard output; returns why that failed, "" if it did not.

    A pipe whose reader has ended, such as `| head`, is not a failure.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        return str(error)
    return ""


def discard(stream: TextIO) -> None:
    """Discards the buffer of a stream that cannot be written, so that Python's flush at exit does not fail as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_read(stream: TextIO) -> bool:
    """Returns whether the output may still be read; False for a pipe whose reader has ended."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except OSError:  # the stream has no file descriptor, as in a test
        return True
    return not any(happened & select.POLLERR for _, happened in poll.poll(0))


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{text[at : at + 4]}" for at in range(0, len(text), 4)), error.end
