"""Why a broker ended: what its log says since its last start, and how much room its file system has."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kstreams_py.errors import SettingsError

ROOM_BYTES: Final = 256 << 20
"""What each broker must find free at its start: less is full within a minute of load (measured: 33 MB after 8 s)."""

FULL_BYTES: Final = 1 << 20
"""With less, a broker's own log may lack the reason of its end, because it could not be written either."""

NO_SPACE: Final = "No space left on device"


def free_bytes(directory: Path) -> int:
    """What is free where a directory is, or will be."""
    return shutil.disk_usage(next(path for path in (directory, *directory.parents) if path.exists())).free


def check_room(directory: Path, brokers: int) -> None:
    """Raises SettingsError if so many brokers would soon fill the file system of a data directory."""
    free, needed = free_bytes(directory), brokers * ROOM_BYTES
    if free < needed:
        raise SettingsError(
            f"{directory} has {_megabytes(free)} of room, and {brokers} broker(s) need {_megabytes(needed)}: free "
            "some, or choose another data directory (--data-dir)"
        )


def mark_start(directory: Path) -> None:
    """Remembers where the log of a broker's next run begins: what an earlier run died of is not said again."""
    log = directory / "server.log"
    (directory / "began").write_text(str(log.stat().st_size if log.exists() else 0))


def full_disks(data_dir: Path, brokers: Iterable[int]) -> str:
    """Which of these brokers, that have ended, ended because of a full disk, and what to do; "" if none did."""
    full = [str(broker) for broker in brokers if _was_full(data_dir / f"broker-{broker}")]
    if not full:
        return ""
    return (
        f"broker {', '.join(full)} ended because its disk was full ({NO_SPACE}; {_megabytes(free_bytes(data_dir))} are "
        f"free now): free at least {_megabytes(ROOM_BYTES)} for each broker, then start it again"
    )


def why_ended(directory: Path) -> str:
    """Why the last run of the broker in this directory ended, or why it did not begin."""
    last = _last_run(directory)
    return f"{NO_SPACE}: {_megabytes(free_bytes(directory))} are free now" if _was_full(directory) else error_in(last)


def _was_full(directory: Path) -> bool:
    return NO_SPACE in _last_run(directory) or free_bytes(directory) < FULL_BYTES


def error_in(output: str) -> str:
    """The last line of a JVM's output that tells of an error, without its stack; else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        found = re.search(r"\w+(Exception|Error)\b.*|(ERROR|FATAL) .*", line)
        if found and not line.startswith("at "):
            return found[0]
    return lines[-1] if lines else "it said nothing"


def _last_run(directory: Path) -> str:
    """What a broker wrote since its last start; its console is its own for each run."""
    console, log, began = (directory / name for name in ("console.log", "server.log", "began"))
    written = log.read_bytes() if log.exists() else b""
    start = int(began.read_text() or 0) if began.exists() else 0
    if start <= len(written):  # else the log was rolled since
        written = written[start:]
    return f"{console.read_text(errors='replace') if console.exists() else ''}\n{written.decode(errors='replace')}"


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MB"
