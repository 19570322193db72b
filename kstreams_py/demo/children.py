"""Processes that end when their demonstration ends, even if it is killed, because their standard input ends.

`python -m kstreams_py.demo.children MODULE ARGUMENTS` runs a module as `python -m MODULE ARGUMENTS` does.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

Child = subprocess.Popen[bytes]

_ORPHANED: Final = 1


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
    """Starts a process that signals from the terminal do not reach. Its output is appended to the log.

    - `arguments`: a module, and its command-line arguments.
    - `environment`: variables in addition to those of this process.
    """
    command = [sys.executable, "-P", "-m", "kstreams_py.demo.children", *arguments]
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env=os.environ | dict(environment),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def end(child: Child) -> None:
    """Kills a process if it still runs, and waits for its end."""
    child.kill()
    child.wait()
    if child.stdin is not None:
        child.stdin.close()


def _end_with_parent() -> None:
    while os.read(0, 1):  # not the buffered reader, whose lock would be held when the interpreter exits
        pass
    os._exit(_ORPHANED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
