"""The descriptors that code has opened and not closed, whatever other threads of this process open meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest

OPENERS: Final = ("open", "pipe", "dup")
"""Functions of `os`: Python's `tempfile` and `subprocess` call them too; a Kafka client's threads do not."""


class OpenedDescriptors:
    """What is opened through `os` from now until `monkeypatch` is undone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened: list[tuple[int, tuple[int, int]]] = []
        for name in OPENERS:
            monkeypatch.setattr(os, name, self._recorded(getattr(os, name)))

    def still_open(self) -> list[int]:
        """Those that nobody has closed; a number that was closed and given to another file is not one."""
        return [fd for fd, file in self._opened if _file_of(fd) == file]

    def _recorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            for fd in result if isinstance(result, tuple) else [result]:
                file = _file_of(fd)
                assert file is not None
                self._opened.append((fd, file))
            return result

        return call


def _file_of(fd: int) -> tuple[int, int] | None:
    """Its device and inode, or None if it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
