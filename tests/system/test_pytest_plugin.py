"""The fixture `kstreams_broker` of the pytest plugin, in a project of its own."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import WAIT

TESTS = """
import pytest
from confluent_kafka.admin import AdminClient


@pytest.mark.parametrize("number", [1, 2])
def test_broker_answers(kstreams_broker, number):
    assert len(AdminClient({"bootstrap.servers": kstreams_broker}).list_topics(timeout=20).brokers) == 1
    print("broker at", kstreams_broker)
"""


@pytest.mark.long  # in the quick tier, unit/test_pytest_plugin.py has the plugin
def test_broker_is_started_once_for_the_session_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    options = ("-q", "-s", "-W", "error", "-p", "no:cacheprovider", "-p", "kstreams_pytest")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout
    first, second = re.findall(r"broker at (\S+)", done.stdout)
    assert first == second
    host, _, port = first.partition(":")
    with socket.socket() as client:
        assert client.connect_ex((host, int(port))) != 0
