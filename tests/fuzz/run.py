"""Fuzzes targets: `python -m tests.fuzz.run DIRECTORY RUNS [NAME ...]`; all of them without names.

Atheris takes a process over, and its instrumentation of the package takes 15 seconds: so it is imported once, and each
target has a child. Below the directory are its seeds (NAME/), its log (NAME.log) and an input that it fails with
(NAME-crash-..., -timeout-..., -oom-...). Prints the exit status of each child; its own is 1 if one fails.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kstreams_py", "json"], enable_loader_override=False):
    from tests.fuzz.targets import ODD, TARGETS, Target

FLAGS = ("-seed=1", "-max_len=3000", "-len_control=0", "-timeout=100", "-rss_limit_mb=1024", "-print_final_stats=1")


def fuzz(name: str, target: Target, directory: Path, runs: int) -> None:
    """Does not return."""
    log = os.open(directory / f"{name}.log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    seeds = directory / name
    seeds.mkdir()
    for number, seed in enumerate([*target.seeds, *ODD]):
        (seeds / str(number)).write_bytes(seed)

    def test_one_input(data: bytes) -> None:
        with suppress(*target.errors):
            target.decode(data)

    atheris.Setup([name, str(seeds), *FLAGS, f"-runs={runs}", f"-artifact_prefix={directory / name}-"], test_one_input)
    atheris.Fuzz()
    os._exit(0)


def main() -> None:
    directory, runs, *names = sys.argv[1:]
    failed = False
    for name in names or TARGETS:
        if not (child := os.fork()):
            fuzz(name, TARGETS[name], Path(directory), int(runs))
        _, status = os.waitpid(child, 0)
        failed |= status != 0
        sys.stdout.write(f"{name}: {os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
