"""A unit of systemd that runs the slots of one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import NOT_RESTARTED, RESTART_SECONDS

# KillMode: only the supervisor gets SIGTERM, and drains its workers. OOMPolicy: it also restarts a worker that the
# kernel ended. No WatchdogSec: nothing would answer it; stuck_timeout_ms watches the workers. Of what systemd can take
# away, all is but MemoryDenyWriteExecute, ProcSubset and UMask: libraries compile, ask for the machine's memory, and
# others read the files of sinks.
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
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
{written}PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Unit:
    """What a unit is made of.

    - `graph`: the graph's name.
    - `command`: the command line, an absolute path first.
    - `directory`: where it starts, an absolute path.
    - `environment`: variables that all users of the machine may read.
    - `environment_file`: an absolute path of a file with the others, NAME=VALUE each; None for none.
    - `grace_seconds`: from SIGTERM to SIGKILL.
    - `written`: absolute paths that it may write, beside temporary files; those that are missing are left out.
    """

    graph: str
    command: Sequence[str]
    directory: str
    user: str
    environment: Mapping[str, str]
    environment_file: str | None
    grace_seconds: int
    written: Sequence[str]


def unit(wanted: Unit) -> str:
    """The text of a `.service` file."""
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in wanted.environment.items()]
    lines += [] if wanted.environment_file is None else [f"EnvironmentFile={_path(wanted.environment_file)}"]
    return _TEMPLATE.format(
        graph=_path(wanted.graph),
        user=wanted.user,
        directory=_path(wanted.directory),
        environment="".join(f"{line}\n" for line in lines),
        command=" ".join(_quoted(part.replace("$", "$$")) for part in wanted.command),
        restart_seconds=RESTART_SECONDS,
        not_restarted=" ".join(map(str, NOT_RESTARTED)),
        grace_seconds=wanted.grace_seconds,
        written="".join(f"ReadWritePaths={_quoted(f'-{path}')}\n" for path in wanted.written),
    )


def _path(text: str) -> str:
    """A value of a whole line: only `%` has a meaning in it."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """One word of a line, in quotes where it needs them."""
    escaped = _path(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped if escaped == text and text.isprintable() and not set(text) & set(" ';#") else f'"{escaped}"'
