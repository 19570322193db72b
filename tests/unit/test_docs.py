"""docs/testing.md: its code blocks are the files of examples/tests/, and the one without a broker passes as printed."""

from __future__ import annotations

import operator
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kstreams_py import embedded, testing
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.testing import History, Kind, MemoryCluster, TestDriver

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"


def test_code_blocks_of_the_document_are_the_example_files() -> None:
    blocks = re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", TEXT, flags=re.DOTALL)
    examples = {
        path.name: path.read_text(encoding="utf-8").split('"""\n\n', 1)[1] for path in (EXAMPLES / "tests").glob("*.py")
    }
    assert examples == dict(blocks)


def test_example_passes_without_a_warning_at_more_than_50_crash_points(tmp_path: Path) -> None:
    """-W error: pytest would warn of TestDriver if it collected it as a test class."""
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
    rows = re.findall(r"^\| ([a-z ]+) \| ", TEXT.split("| anomaly | means | cannot be seen |")[1], flags=re.MULTILINE)
    assert sorted(rows) == sorted(Kind)
    cluster = MemoryCluster()
    named = re.findall(r"`cluster\.((?:faults\.)?\w+)", TEXT)
    assert len(named) == 5
    for name in named:
        assert operator.attrgetter(name)(cluster) is not None, name
    called = {name for name in re.findall(r"`(\w+)\(", TEXT) if not name[0].isupper()}
    known = {*vars(TestDriver), *vars(History), *vars(EmbeddedKafka), *vars(testing)}
    assert called - known == {"produce"}
    assert set(re.findall(r"`([A-Z][a-z]\w+)\(", TEXT)) <= {*testing.__all__, *embedded.__all__}
