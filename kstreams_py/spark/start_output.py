"""Hides what Spark and Ivy print while Spark's Java process starts, and shows the last lines if the start fails."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Final
from weakref import finalize

STDERR: Final = 2

LINES: Final = 30
"""The number of last lines that are shown if a start fails."""

KEPT_BYTES: Final = 64 * 1024

MARK: Final = b"\0started\0"
"""Written to the pipe after a start: output before this mark comes from the start, even if it is read later."""

LAST_SECONDS: Final = 2.0
"""Seconds to wait for the last lines of a process that ends."""


@contextlib.contextmanager
def hidden_start() -> Iterator[None]:
    """Hides what a process started in the block prints to standard error, and passes on what it prints after the block.

    The process inherits a pipe in place of this process's standard error. In the block, no other thread may print.
    """
    sys.stderr.flush()
    shown = os.dup(STDERR)
    relay = _Relay(shown)
    end = relay.pass_on
    try:
        yield
    except Exception:
        end = relay.show_last
        raise
    finally:
        os.dup2(shown, STDERR)
        end()


class _Relay:
    """Replaces standard error by a pipe, and reads the pipe in a thread that ends with the last process that writes.

    - `shown`: a duplicate of the descriptor of the real standard error; it is closed with this object.
    """

    def __init__(self, shown: int) -> None:
        self._kept: bytes | None = b""
        """The newest output of the start; None once output is passed on."""
        self._lock = threading.Lock()
        self._shown = shown
        finalize(self, os.close, shown)
        self._pipe, self._write = os.pipe()
        os.dup2(self._write, STDERR)
        self._thread = threading.Thread(target=self._read, name="output of Spark", daemon=True)
        self._thread.start()

    def show_last(self) -> None:
        """Reads the output of a failed start to its end, prints its last lines, and passes on later output."""
        os.close(self._write)
        self._thread.join(LAST_SECONDS)
        with self._lock:
            lines = (self._kept or b"").splitlines(keepends=True)
            self._print(b"".join(lines[-LINES:]))
            self._kept = None

    def pass_on(self) -> None:
        """Drops the output of the start, and passes on later output."""
        os.write(self._write, MARK)
        os.close(self._write)

    def _read(self) -> None:
        with os.fdopen(self._pipe, "rb", buffering=0) as pipe:
            while data := pipe.read(KEPT_BYTES):
                with self._lock:
                    if self._kept is None:
                        self._print(data)
                        continue
                    before, mark, after = (self._kept + data).partition(MARK)
                    self._kept = None if mark else before[-KEPT_BYTES:]
                    self._print(after)

    def _print(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the reader of standard error has gone: Spark must go on
            while data:
                data = data[os.write(self._shown, data) :]
