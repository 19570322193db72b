"""The examples of docs/testing.md, run as printed: the test on a real broker, and the history check of a real run."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from kstreams_py import Settings
from tests.system.harness import Cluster, running
from tests.waiting import WAIT

EXAMPLES = Path(__file__).parents[2] / "examples"
MakeSettings = Callable[..., Settings]


def run_history_check(directory: Path) -> str:
    """Runs the example and returns its output."""
    with redirect_stdout(StringIO()) as out:
        runpy.run_path(str(directory / "tests" / "check_shop.py"), run_name="__main__")
    return out.getvalue()


@pytest.mark.long  # with a broker of its own
def test_example_on_a_real_broker_runs_as_printed_without_a_warning(tmp_path: Path) -> None:
    """The example uses public names only: it finds Java and the jars, starts a broker, and starts and stops a graph."""
    (tmp_path / "tests").mkdir()
    for path in ("shop.py", "tests/test_shop_on_kafka.py"):
        shutil.copy(EXAMPLES / path, tmp_path / path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "tests/test_shop_on_kafka.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert (done.returncode, re.findall(r"(\d+) passed", done.stdout)) == (0, ["1"]), done.stdout


def test_example_history_check_finds_a_foreign_record_in_a_real_run(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    for path in ("shop.py", "tests/check_shop.py"):
        text = (EXAMPLES / path).read_text(encoding="utf-8")
        for old, new in {
            '"shop.': f'"{name}.',
            '"shop"': f'"{name}"',
            "127.0.0.1:9092": cluster.bootstrap_servers,
        }.items():
            text = text.replace(old, new)
        (tmp_path / path).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shop", tmp_path / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(shop := importlib.util.module_from_spec(spec))
    monkeypatch.setitem(sys.modules, "shop", shop)
    cluster.create(*[f"{name}.{topic}" for topic in ("orders", "priced", "refused", "errors")])
    prices = [{"unit_price": 5}, {}]
    orders = [{"quantity": number % 3, **prices[number == 7]} for number in range(10)]
    cluster.write(
        f"{name}.orders",
        [json.dumps(order).encode() for order in orders],
        keys=[b"order-%d" % number for number in range(10)],
    )
    with running(shop.graph, settings()):
        cluster.await_committed(f"{name}.price", f"{name}.orders", {0: 10})
    assert run_history_check(tmp_path) == "no anomalies\n"
    cluster.write(f"{name}.priced", [b"{}"], keys=[b"order-1"])
    assert run_history_check(tmp_path).splitlines()[0] == "1 foreign"
