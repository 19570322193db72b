"""The source files of a graph, and the wait for a change of one of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kstreams_py.errors import MissingSoftware

logger = logging.getLogger(__name__)

SUFFIXES: Final = (".py", ".avsc")

NO_GRAPH: Final = ("test_*.py", "conftest.py")
"""Files that are not part of a graph: workers do not depend on tests."""

SKIPPED: Final = ("__pycache__", "node_modules")

LOOK_MS: Final = 1_000
"""Milliseconds after which the files are compared without an event: a change may come before the watch begins."""

STEP_MS: Final = 50
"""Milliseconds without another event after which a change is complete: editors write a file in several steps."""

Stamps = dict[Path, tuple[int, int, int]]
"""The inode, the size and the modification time of each file."""


class Changes:
    """The files beside a graph, and in the directories below it that hold such files.

    An event only says that something may have changed; inodes, sizes and times tell which files have. Only these
    directories are watched, each by itself: a graph may be in a home directory, or beside a virtual environment with
    thousands of directories.
    """

    def __init__(self, directory: Path, but: Path) -> None:
        """Notes the state of the files, to find later changes. Raises MissingSoftware without watchfiles.

        - `but`: a directory to leave out: the directory of schemas, to which workers write.
        """
        try:
            import watchfiles  # noqa: PLC0415, optional
        except ImportError:
            raise MissingSoftware("`kstreams dev` needs watchfiles: pip install 'kstreams_py[reload]'") from None
        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it would log the number of events of each change
        self._watch = watchfiles.watch
        self._directory = directory.resolve()
        self._but = but.resolve()
        self._stamps = self._read_stamps()

    def watch(self, changed: Callable[[list[str]], None], stopped: threading.Event) -> None:
        """Calls `changed` with the names of the files at each change, until `stopped` is set. Runs in its own thread.

        If the system has no watch left, the files are compared every LOOK_MS milliseconds.
        """
        is_warned = False
        while not stopped.is_set():
            self._compare(changed)
            watched = set(self._directories())
            try:
                for _ in self._watch(
                    *watched,
                    watch_filter=lambda _, path: Path(path).suffix in SUFFIXES or Path(path).is_dir(),
                    step=STEP_MS,
                    stop_event=stopped,
                    rust_timeout=LOOK_MS,
                    yield_on_timeout=True,
                    raise_interrupt=False,
                    recursive=False,
                ):
                    self._compare(changed)
                    if set(self._directories()) != watched:
                        break
            except OSError as error:  # the directory is being replaced, or there are too many watches
                if not is_warned:
                    logger.warning("the files of %s are looked at every second: %s", self._directory, error)
                is_warned = True
                stopped.wait(LOOK_MS / 1000)

    def _compare(self, changed: Callable[[list[str]], None]) -> None:
        before, self._stamps = self._stamps, self._read_stamps()
        differing = {path for path, _ in before.items() ^ self._stamps.items()}
        if differing:
            changed(sorted(str(path.relative_to(self._directory)) for path in differing))

    def _read_stamps(self) -> Stamps:
        found: Stamps = {}
        for directory in self._directories():
            for path in _files(directory):
                try:
                    status = path.stat()
                except OSError:  # it has been removed since
                    continue
                found[path] = status.st_ino, status.st_size, status.st_mtime_ns
        return found

    def _directories(self) -> Iterator[Path]:
        """Yields the directory, and those below it with files of a graph, except hidden ones and virtual environments.

        Each comes once, even if several links lead to it.
        """
        waiting, seen = [self._directory], set[Path]()
        while waiting:
            directory = waiting.pop()
            try:
                place = directory.resolve()
            except (OSError, RuntimeError):  # it has been replaced by a link to itself since
                continue
            if place not in seen:
                seen.add(place)
                yield directory
                waiting += sorted(each for each in _entries(directory) if self._is_followed(each))

    def _is_followed(self, path: Path) -> bool:
        if path.name.startswith(".") or path.name in SKIPPED or path == self._but or not path.is_dir():
            return False
        return not (path / "pyvenv.cfg").exists() and any(True for _ in _files(path))


def _files(directory: Path) -> Iterator[Path]:
    for path in _entries(directory):
        if path.suffix in SUFFIXES and not any(map(path.match, NO_GRAPH)):
            yield path


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:  # it has been removed since, or this user may not read it
        return []
