"""A unit of systemd that runs the slots of one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kstreams_py.errors import NOT_RESTARTED, RESTART_SECONDS

# KillMode: only the supervisor gets SIGTERM, and drains its workers. OOMPolicy: it also restarts a worker that the
# kernel ended. No WatchdogSec: nothing would answer it; stuck_timeout_ms watches the workers.
_TEMPLATE: Final = """\
[Unit]
Description=kstreams: {graph}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
WorkingDirectory={directory}
{environment}ExecStart={command}
Restart=on-failure
RestartSec={restart_seconds}s
RestartPreventExitStatus={not_restarted}
KillMode=mixed
TimeoutStopSec={grace_seconds}s
OOMPolicy=continue

[Install]
WantedBy=multi-user.target
"""


def unit(
    graph: str,
    command: Sequence[str],
    *,
    directory: str,
    user: str,
    environment: Mapping[str, str],
    environment_file: str | None,
    grace_seconds: int,
) -> str:
    """The text of a `.service` file.

    - `graph`: the graph's name.
    - `command`: the command line, an absolute path first.
    - `directory`: where it starts, an absolute path.
    - `environment`: variables that all users of the machine may read.
    - `environment_file`: an absolute path of a file with the others, NAME=VALUE each; None for none.
    - `grace_seconds`: from SIGTERM to SIGKILL.
    """
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()]
    lines += [] if environment_file is None else [f"EnvironmentFile={_path(environment_file)}"]
    return _TEMPLATE.format(
        graph=_path(graph),
        user=user,
        directory=_path(directory),
        environment="".join(f"{line}\n" for line in lines),
        command=" ".join(_quoted(part.replace("$", "$$")) for part in command),
        restart_seconds=RESTART_SECONDS,
        not_restarted=" ".join(map(str, NOT_RESTARTED)),
        grace_seconds=grace_seconds,
    )


def _path(text: str) -> str:
    """A value of a whole line: only `%` has a meaning in it."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """One word of a line, in quotes where it needs them."""
    escaped = _path(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped if escaped == text and text.isprintable() and not set(text) & set(" ';#") else f'"{escaped}"'
