"""Code of documents passes, or is that of examples which pass: docs/testing.md, docs/delivery.md, docs/sinks.md."""

from __future__ import annotations

import operator
import re
import shutil
from pathlib import Path

from kstreams_py import embedded, testing
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.processing.journal.records import RecordType
from kstreams_py.testing import History, Kind, MemoryCluster, TestDriver
from tests.unit.users_tests import run_tests

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
DELIVERY = (ROOT / "docs" / "delivery.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"


def named_blocks(text: str) -> dict[str, str]:
    """The Python blocks of a document by their file names."""
    return dict(re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", text, flags=re.DOTALL))


def test_code_blocks_of_the_document_are_the_example_files() -> None:
    examples = {
        path.name: path.read_text(encoding="utf-8").split('"""\n\n', 1)[1] for path in (EXAMPLES / "tests").glob("*.py")
    }
    assert examples == named_blocks(TEXT)


def test_graph_of_the_page_of_sinks_is_the_recipe() -> None:
    recipe = (EXAMPLES / "recipes" / "items.py").read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert named_blocks((ROOT / "docs" / "sinks.md").read_text(encoding="utf-8")) == {"items.py": recipe}


def test_examples_pass_at_each_branch_and_more_than_50_crash_points(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "shop.py", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(EXAMPLES / "tests" / "test_shop.py", tmp_path / "tests")
    blocks = named_blocks(DELIVERY)
    assert blocks.keys() == {
        f"{test}{name}.py" for name in ("payments", "mirror", "prices", "orders") for test in ("", "test_")
    }
    for name, text in blocks.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert run_tests(tmp_path) > 50 + 8


def test_document_names_each_record_of_a_journal() -> None:
    assert set(re.findall(r"`(snapshot|snapshot-\w+|attempt-\w+)`", DELIVERY)) == set(RecordType)


def test_document_names_all_anomalies_and_only_calls_that_exist() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| ", TEXT.split("| anomaly | means | cannot be seen |")[1], flags=re.MULTILINE)
    assert sorted(rows) == sorted(Kind)
    cluster = MemoryCluster()
    named = re.findall(r"`cluster\.((?:faults\.)?\w+)", TEXT)
    assert len(named) == 5
    for name in named:
        assert operator.attrgetter(name)(cluster) is not None, name
    called = {name for name in re.findall(r"`(\w+)\(", TEXT) if not name[0].isupper()}
    known = {*dir(TestDriver), *vars(History), *vars(EmbeddedKafka), *vars(testing)}
    assert called - known == {"produce"}
    assert set(re.findall(r"`([A-Z][a-z]\w+)\(", TEXT)) <= {*testing.__all__, *embedded.__all__}
