"""The table of exit statuses in errors.py, and what is made from it."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from kstreams_py import errors
from kstreams_py.cli.main import app
from kstreams_py.errors import EXIT_STATUSES, NOT_RESTARTED, RESTART_SECONDS
from kstreams_py.running.supervised import FINAL

ROOT = Path(__file__).parents[2]


def test_table_has_each_status_of_an_exception_once() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = {each.exit_status for each in classes if issubclass(each, errors.KStreamsError)}
    statuses = [each.status for each in EXIT_STATUSES]
    assert raised | {0, 130, None} == set(statuses)
    assert len(set(statuses)) == len(statuses)


def test_only_failures_that_no_restart_remedies_are_not_restarted() -> None:
    assert {each.status: each.restart for each in EXIT_STATUSES} == {
        0: False, 1: True, 2: False, 3: True, 4: False, 5: False, 130: False, None: True
    }  # fmt: skip
    assert NOT_RESTARTED == (2, 4, 5, 130)
    assert all(("restart" in each.asks.split()[0]) == each.restart for each in EXIT_STATUSES)
    assert all(f"after {RESTART_SECONDS} s" in each.asks for each in EXIT_STATUSES if each.restart)


def test_supervisor_restarts_no_slot_after_them_and_leaves_one_that_is_replaced() -> None:
    assert set(NOT_RESTARTED) - FINAL == {errors.Replaced.exit_status}
    assert set(NOT_RESTARTED) > FINAL


def test_document_has_the_table() -> None:
    rows = [
        f"| {'other' if each.status is None else each.status} | {each.meaning} | {'yes' if each.restart else 'no'} | "
        f"{each.asks} |"
        for each in EXIT_STATUSES
    ]
    text = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (?:\d+|other) \| .*$", text, flags=re.MULTILINE) == rows
    assert f"`RestartPreventExitStatus={' '.join(map(str, NOT_RESTARTED))}`" in text


def test_help_of_run_has_the_table() -> None:
    shown = " ".join(CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "300"}).output.split())
    for each in EXIT_STATUSES:
        assert each.meaning in shown
        assert each.asks[1:] in shown
