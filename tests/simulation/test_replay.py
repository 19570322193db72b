"""A plan determines its run: KSTREAMS_SIMULATION_SEED=PLAN pytest tests/simulation -k replay."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kstreams_py.testing.memory_clients import MemoryProducer
from tests.simulation.plan import Plan
from tests.simulation.suite import run
from tests.simulation.world import World

ROOT = Path(__file__).parent.parent.parent
SEED = os.environ.get("KSTREAMS_SIMULATION_SEED", "1")


def test_replay_of_the_seed_in_the_environment() -> None:
    run(Plan.parse(SEED))


def test_plan_parsed_from_its_text_is_equal() -> None:
    for seed in range(1, 200):
        plan = Plan.random(seed)
        assert Plan.parse(str(plan)) == plan
    assert str(Plan.parse("map:exactly_once:7/2:dies@17:late@3")) == "map:exactly_once:7/2:dies@17:late@3"


def test_failed_run_prints_a_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryProducer, "_raise_failed", lambda self: self._failed.clear())
    worlds = (World(Plan.random(seed)).run() for seed in range(2, 500, 2))
    failed = next(world for world in worlds if world.violations)
    with pytest.raises(AssertionError) as caught:
        run(failed.plan)
    command = re.search(r"again: KSTREAMS_SIMULATION_SEED=(\S+) pytest tests/simulation -k replay", str(caught.value))
    assert command is not None
    again = World(Plan.parse(command[1])).run()
    assert (again.violations, again.trace) == (failed.violations, failed.trace)
    assert World(Plan.parse(str(failed.plan.seed))).run().violations == failed.violations


def test_run_of_a_seed_is_the_same_in_processes_with_other_string_hashes() -> None:
    """The hashes of strings differ between processes, and with them the order of sets."""
    program = (
        "import logging; logging.disable(logging.CRITICAL)\n"
        "from tests.simulation.plan import Plan\n"
        "from tests.simulation.world import World\n"
        "for seed in range(1, 31): print(World(Plan.random(seed)).run().trace)"
    )
    here = [f"{World(Plan.random(seed)).run().trace}" for seed in range(1, 31)]
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    there = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.splitlines() == here
