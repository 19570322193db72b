"""Runs tests that a user has written, or that a document prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.waiting import WAIT


def run_tests(directory: Path, *arguments: str) -> int:
    """Runs pytest as a user does, with warnings as errors; returns how many tests passed.

    It would warn of TestDriver if it collected it as a test class.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.findall(r"(\d+) passed", done.stdout)[0])
