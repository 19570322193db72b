"""The user's detached cluster, which outlives the command that started it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from kstreams_py.embedded.broker import STOP_SECONDS, EmbeddedKafka
from kstreams_py.embedded.nodes import HOST, write_whole
from kstreams_py.embedded.post_mortem import full_disks
from kstreams_py.embedded.process_table import command_line
from kstreams_py.errors import SettingsError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the detached cluster.

    - `brokers`, `alive`: the number of its brokers, and how many of them run.
    - `full_disk`: the brokers that a full disk has ended, with the remedy; "" if there are none.
    """

    bootstrap_servers: str
    data_dir: Path
    brokers: int
    alive: int
    full_disk: str = ""

    @property
    def running(self) -> bool:
        """Whether every broker is alive."""
        return self.alive == self.brokers


def start(
    classpath: Sequence[Path],
    java: Path,
    *,
    brokers: int = 1,
    data_dir: Path | None = None,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Status:
    """Starts the user's detached cluster unless it runs already; returns its state once it is ready.

    Parameters and errors are as for EmbeddedKafka. Also raises SettingsError if a different cluster runs already.
    """
    before = status()
    if before and before.alive:
        _refuse_another(before, brokers, data_dir, port)
        return before
    if before and before.full_disk:
        logger.warning("the cluster in %s: %s", before.data_dir, before.full_disk)
    stop()
    _check_state_is_writable()
    directory = (data_dir or Path(tempfile.mkdtemp(prefix="kstreams-broker-"))).resolve()
    kafka = EmbeddedKafka(
        classpath, java, brokers=brokers, data_dir=directory, port=port, settings=settings, outlives=True
    )
    try:
        kafka.start()
        state = {"data_dir": str(directory), "temporary": data_dir is None, "pids": kafka.pids}
        write_whole(_state_file(), state | {"bootstrap_servers": kafka.bootstrap_servers})
    except BaseException:
        kafka.stop()
        if data_dir is None:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    kafka.release()
    return Status(kafka.bootstrap_servers, directory, brokers, brokers)


def stop() -> Status | None:
    """Stops the user's detached cluster and no other process; returns its previous state, None if there was none."""
    before, state = status(), _read_state()
    if before is None or state is None:
        return None
    for how in (signal.SIGKILL,) if state["temporary"] else (signal.SIGTERM, signal.SIGKILL):
        for pid in _alive(state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + STOP_SECONDS
        while _alive(state) and time.monotonic() < deadline:
            time.sleep(0.02)
    if state["temporary"]:
        shutil.rmtree(before.data_dir, ignore_errors=True)
    _state_file().unlink()
    return before


def status() -> Status | None:
    """Returns the state of the user's detached cluster; None if none was started."""
    state = _read_state()
    if state is None:
        return None
    pids, alive, directory = state["pids"], _alive(state), Path(state["data_dir"])
    full = full_disks(directory, (index for index, pid in enumerate(pids) if pid not in alive))
    return Status(state["bootstrap_servers"], directory, len(pids), len(alive), full)


def _state_file() -> Path:
    return Path(platformdirs.user_state_dir("kstreams_py"), "broker.json")


def _check_state_is_writable() -> None:
    """Raises SettingsError if the state cannot be written: no other command would find the started brokers."""
    directory = _state_file().parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise SettingsError(
            f"{directory} cannot be written: {error.strerror}: set XDG_STATE_HOME to another directory"
        ) from None


def _read_state() -> dict[str, Any] | None:
    """Reads the file that `start` writes; None if it does not exist. Raises SettingsError for other contents."""
    path = _state_file()
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        return {name: state[name] for name in ("data_dir", "temporary", "pids", "bootstrap_servers")}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}: set XDG_STATE_HOME to another directory"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise SettingsError(
            f"{path} is damaged: it names the brokers that `kstreams broker start` has started: end those that still "
            "run (`ps` shows their data directories, kstreams-broker-*), then remove the file"
        ) from None


def _alive(state: dict[str, Any]) -> list[int]:
    """Returns the process ids of live brokers. Command lines are compared: the system may have reused a process id."""
    return [pid for pid in state["pids"] if f"{state['data_dir']}/broker-" in command_line(pid)]


def _refuse_another(running: Status, brokers: int, data_dir: Path | None, port: int | None) -> None:
    """Raises SettingsError if the running cluster is not the one that the arguments ask for."""
    first = running.bootstrap_servers.split(",")[0]
    as_asked = (
        brokers == running.brokers
        and (data_dir is None or data_dir.resolve() == running.data_dir)
        and (port is None or f"{HOST}:{port}" == first)
    )
    if not as_asked:
        raise SettingsError(
            f"a different cluster runs already: {running.brokers} broker(s) at {running.bootstrap_servers}, data in "
            f"{running.data_dir}; use that one, or stop it first: kstreams broker stop"
        )
