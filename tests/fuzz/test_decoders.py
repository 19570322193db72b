"""Decoders take any bytes: a value, or one of their documented errors, in bounded time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.tables import each_case

RUNS = 20_000
"""Of each decoder."""


@each_case("name", TARGETS)
def test_encodings_that_the_fuzzer_begins_with_are_decoded(name: str) -> None:
    for seed in TARGETS[name].seeds:
        TARGETS[name].decode(seed)


@pytest.mark.long
@pytest.mark.timeout(1_800)  # a minute of CPU, beside other workers
def test_decoders_of_what_comes_from_outside_raise_only_their_documented_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", str(tmp_path), str(RUNS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failed = [line.partition(":")[0] for line in done.stdout.splitlines() if not line.endswith(": 0")]
    logs = "\n\n".join((tmp_path / f"{name}.log").read_text(errors="replace")[-4_000:] for name in failed)
    inputs = [f"{path.name}: {path.read_bytes()!r}" for path in sorted(tmp_path.glob("*-*")) if path.is_file()]
    assert (done.returncode, failed, inputs) == (0, [], []), logs or done.stderr
    assert len(done.stdout.splitlines()) == len(TARGETS)
