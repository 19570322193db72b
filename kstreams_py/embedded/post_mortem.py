"""Finds out why a broker ended, from its log since the last start and the free space of its file system."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kstreams_py.errors import SettingsError

MIN_FREE_BYTES: Final = 256 << 20
"""The free space that each broker needs to start: load fills less in a minute (measured: 33 MB after 8 s)."""

FULL_BYTES: Final = 1 << 20
"""With less free space a disk counts as full: the broker could not even write the reason for its end to its log."""

NO_SPACE: Final = "No space left on device"


def free_bytes(directory: Path) -> int:
    """Returns the free space of the file system of a directory, which need not exist yet."""
    return shutil.disk_usage(next(path for path in (directory, *directory.parents) if path.exists())).free


def check_space(directory: Path, brokers: int) -> None:
    """Raises SettingsError if the file system of a data directory has less than MIN_FREE_BYTES free for each broker."""
    free, needed = free_bytes(directory), brokers * MIN_FREE_BYTES
    if free < needed:
        raise SettingsError(
            f"{directory} has {_megabytes(free)} of free space, and {brokers} broker(s) need {_megabytes(needed)}: "
            "free some, or choose another data directory (--data-dir)"
        )


def mark_start(directory: Path) -> None:
    """Records where the log of a broker's next run begins, so that errors of earlier runs are not reported again."""
    log = directory / "server.log"
    (directory / "began").write_text(str(log.stat().st_size if log.exists() else 0))


def full_disks(data_dir: Path, brokers: Iterable[int]) -> str:
    """Returns which of these brokers a full disk has ended, with the remedy; "" if none."""
    full = [str(broker) for broker in brokers if _was_full(data_dir / f"broker-{broker}")]
    if not full:
        return ""
    return (
        f"broker {', '.join(full)} ended because its disk was full ({NO_SPACE}; {_megabytes(free_bytes(data_dir))} are "
        f"free now): free at least {_megabytes(MIN_FREE_BYTES)} for each broker, then start it again"
    )


def why_ended(directory: Path) -> str:
    """Returns why the last run of the broker in this directory ended or failed to start."""
    last = _last_run(directory)
    return f"{NO_SPACE}: {_megabytes(free_bytes(directory))} are free now" if _was_full(directory) else error_in(last)


def _was_full(directory: Path) -> bool:
    return NO_SPACE in _last_run(directory) or free_bytes(directory) < FULL_BYTES


def error_in(output: str) -> str:
    """Returns the last line of a JVM's output with an error, without the stack trace; otherwise the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        found = re.search(r"\w+(Exception|Error)\b.*|(ERROR|FATAL) .*", line)
        if found and not line.startswith("at "):
            return found[0]
    return lines[-1] if lines else "it wrote no output"


def _last_run(directory: Path) -> str:
    """Returns the output of a broker since its last start: its console, which each run starts empty, and its log."""
    console, log, began = (directory / name for name in ("console.log", "server.log", "began"))
    written = log.read_bytes() if log.exists() else b""
    start = int(began.read_text() or 0) if began.exists() else 0
    if start <= len(written):  # otherwise the log was rolled since
        written = written[start:]
    return f"{console.read_text(errors='replace') if console.exists() else ''}\n{written.decode(errors='replace')}"


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MB"
