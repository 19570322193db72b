"""Names the place where a thread or a call is stuck: the function, the file and the line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from kstreams_py.jobs import inputs, task
from kstreams_py.processing.runners import runner
from kstreams_py.steps import calls

PLACE_AFTER: Final = 1.0
"""Seconds without progress before the frames of a loop's thread are read.

Reading the frames of a running thread has crashed a worker (SIGSEGV in Python 3.11.7).
"""

_ENGINE: Final = tuple(
    f"{directory}{os.sep}"
    for directory in (Path(runner.__file__).parents[1], Path(calls.__file__).parent, Path(task.__file__).parent)
)

_CALLERS: Final = {runner.__file__, calls.__file__, task.__file__, inputs.__file__}
"""The modules that call what is outside of the engine: functions of users, sinks, sources."""


def place_of(find_frame: Callable[[], FrameType | None]) -> str:
    """Returns the place where a thread or call is stuck: in what the engine has called, or in the engine itself."""
    called, frame = None, find_frame()
    while frame is not None and not frame.f_code.co_filename.startswith(_ENGINE):
        called, frame = frame, frame.f_back
    was_called = frame is None or frame.f_code.co_filename in _CALLERS
    shown = called if called is not None and was_called else frame
    if shown is None:
        return "no known place"
    return f"{shown.f_code.co_name} ({Path(shown.f_code.co_filename).name}, line {shown.f_lineno})"
