"""embedded/ without a broker: the file that names those of `kstreams broker start`, and the end of their processes."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kstreams_py.embedded import detached
from kstreams_py.embedded.broker import EmbeddedKafka
from kstreams_py.errors import SettingsError


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "state" / "broker.json"
    monkeypatch.setattr(detached, "_state_file", lambda: file)
    return file


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "3", '{"pids": [1]}'])
def test_damaged_file_is_refused_with_what_to_do_and_kept(state: Path, tmp_path: Path, text: str) -> None:
    state.parent.mkdir()
    state.write_text(text)
    for call in (detached.status, detached.stop, lambda: detached.start([], tmp_path)):
        with pytest.raises(SettingsError) as caught:
            call()
        assert str(caught.value) == (
            f"{state} is damaged: it names the brokers that `kstreams broker start` has started: end those that still "
            "run (`ps` shows their data directories, kstreams-broker-*), then remove the file"
        )
    assert state.read_text() == text


def test_file_that_cannot_be_read_is_named(state: Path) -> None:
    state.mkdir(parents=True)
    with pytest.raises(SettingsError) as caught:
        detached.status()
    assert str(caught.value) == f"{state} cannot be read: Is a directory: set XDG_STATE_HOME to another directory"


def test_file_that_cannot_be_written_is_refused_before_a_broker_starts(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    data = tmp_path / "data"
    with pytest.raises(SettingsError) as caught:
        detached.start([], tmp_path, data_dir=data)
    assert (
        str(caught.value)
        == f"{state.parent} cannot be written: Read-only file system: set XDG_STATE_HOME to another directory"
    )
    assert not data.exists()


class Guard:
    """Notes what the shell is told that kills the brokers if this process dies."""

    def __init__(self) -> None:
        self.told, self.stdin = list[bytes](), self

    def write(self, line: bytes) -> None:
        self.told.append(line)

    def flush(self) -> None:
        pass

    def communicate(self) -> None:
        """Ends the shell's input, at which it kills the process ids of the last line."""
        self.told.append(b"end")


@pytest.mark.parametrize("keeps_data", [False, True])
def test_guard_forgets_a_broker_that_has_ended_and_kills_no_later_process_of_its_id(
    tmp_path: Path, keeps_data: bool
) -> None:
    cluster: Any = EmbeddedKafka([], tmp_path, data_dir=tmp_path if keeps_data else None)
    guard = cluster._guard = Guard()
    first, second = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    cluster._running = {0: first, 1: second}
    cluster.stop()
    assert guard.told == [b"%d\n" % second.pid, b"\n", b"end"]
    assert (first.returncode, second.returncode) == (-(15 if keeps_data else 9),) * 2
