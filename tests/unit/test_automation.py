"""The workflow and the hooks: they call what a person calls."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from tests.tiers import PARTS

ROOT = Path(__file__).parents[2]


def test_workflow_runs_what_ci_runs_and_each_python_on_each_system() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands == {"all": [".ci/run"], "pythons": ["scripts/test-pythons python"]}
    assert jobs["pythons"]["strategy"]["matrix"] == {
        "os": ["ubuntu-latest", "macos-latest"],
        "python": ["3.11", "3.12", "3.13"],
    }
    for command in (".ci/run", "scripts/test-pythons"):
        assert os.access(ROOT / command, os.X_OK)


def test_workflow_of_the_night_runs_each_part_of_the_long_tier_and_all_mutations() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "long.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["part"]["strategy"]["matrix"] == {"part": [*PARTS]}
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands == {"part": ["scripts/test-long ${{ matrix.part }}"], "mutations": ["scripts/mutate"]}
    for command in ("scripts/test-long", "scripts/mutate"):
        assert os.access(ROOT / command, os.X_OK)


def test_hooks_are_local_and_call_the_linters_of_the_test_script() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    entries = [hook["entry"].removesuffix(" --force-exclude") for hook in config["repos"][0]["hooks"]]
    assert entries == [".venv/bin/ruff check", ".venv/bin/ruff format", ".venv/bin/mypy"]
    script = (ROOT / "scripts" / "test").read_text(encoding="utf-8")
    assert [entry for entry in entries if entry not in script] == []
