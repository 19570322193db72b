"""The bench measures kstreams_py beside a plain loop, and writes rates and ratios to its table, JSON and plot.

That of Spark prints what each of its measures found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import WAIT

pytestmark = pytest.mark.long


def test_bench_measures_kstreams_py_beside_a_plain_loop(broker: Any, tmp_path: Path) -> None:
    ours, plain = "pass-through: kstreams_py, no header", "pass-through: by hand"
    done = subprocess.run(
        [
            *[sys.executable, "-m", "bench", "--bootstrap-servers", broker.bootstrap_servers, "--out", str(tmp_path)],
            *["--only", "pass-through", "--contestant", "kstreams_py, no header", "--contestant", "by hand"],
            *["--rounds", "1", "--records", "100000"],
        ],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert set(found["rows"]) == {ours, plain, f"{plain}, with header"}, done.stdout
    rates = {row: measures["records/s"]["median"] for row, measures in found["rows"].items()}
    assert min(rates.values()) > 0
    reached = {(target["row"], target["asked"]): target["reached"] for target in found["targets"] if target["reached"]}
    assert reached == {(ours, f"≥ 0.75 x {plain}"): rates[ours] / rates[plain]}
    assert found["missing"] == {}
    assert f"{rates[ours]:,.0f}" in done.stdout
    assert (tmp_path / "results.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")


@pytest.mark.timeout(600)  # four starts of Spark, and of a pipeline that follows
def test_bench_of_spark_measures_views_cuts_and_pipelines() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark", "--quick", "--records", "2000"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    rows = re.findall(r"^│ (.+?) +│ +(-?[\d.]+)", done.stdout, flags=re.MULTILINE)
    assert [name for name, _ in rows] == [
        "read and count",
        "Avro decoded",
        "transactions beside cuts",
        "cut, median",
        "cut, longest",
        "run with 1 % new",
        "commit to row, median",
        "growth of python",
        "growth of java",
        "growth of heap",
        "growth of a run",
    ], done.stdout + done.stderr
    assert min(float(figure) for name, figure in rows if not name.startswith("growth")) > 0
    assert done.returncode == ("missed" in done.stdout), "small numbers may miss targets, and nothing else fails"
