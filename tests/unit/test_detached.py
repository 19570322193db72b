"""embedded/detached.py without a broker: the file that names the brokers of `kstreams broker start`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kstreams_py.embedded import detached
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
