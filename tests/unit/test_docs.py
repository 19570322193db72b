"""docs/testing.md: its examples are those of examples/tests/, and the one without a broker runs as printed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from kstreams_py import testing
from kstreams_py.testing import History, Kind, MemoryLog, TestDriver

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"


def test_examples_are_the_blocks_of_the_document() -> None:
    blocks = re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", TEXT, flags=re.DOTALL)
    examples = {
        path.name: path.read_text(encoding="utf-8").split('"""\n\n', 1)[1] for path in (EXAMPLES / "tests").glob("*.py")
    }
    assert examples == dict(blocks)


def test_example_runs_as_printed_without_a_warning_and_its_crash_points_are_many(tmp_path: Path) -> None:
    """pytest would warn of TestDriver, which is named as a test is."""
    shutil.copy(EXAMPLES / "shop.py", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(EXAMPLES / "tests" / "test_shop.py", tmp_path / "tests")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "tests/test_shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 50


def test_document_names_all_anomalies_and_only_calls_that_exist() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| ", TEXT.split("| anomaly | means |")[1], flags=re.MULTILINE)
    assert sorted(rows) == sorted(Kind)
    for name in re.findall(r"`(?:driver\.)?log\.(\w+)", TEXT):
        assert hasattr(MemoryLog, name), name
    called = {name for name in re.findall(r"`(\w+)\(", TEXT) if not name[0].isupper()}
    known = {*vars(TestDriver), *vars(History), *vars(testing)}
    assert called - known == {"produce"}
    assert set(re.findall(r"`([A-Z][a-z]\w+)\(", TEXT)) <= set(testing.__all__)
