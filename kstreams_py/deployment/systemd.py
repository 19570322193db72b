"""A systemd unit that runs the slots of one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import NOT_RESTARTED, RESTART_SECONDS

# KillMode: only the supervisor gets SIGTERM, and drains its workers. OOMPolicy: if the kernel kills a worker, the unit
# goes on, and the supervisor restarts the worker. No WatchdogSec: no process notifies systemd; stuck_timeout_ms watches
# the workers. Left out on purpose: MemoryDenyWriteExecute (libraries compile code), ProcSubset (libraries ask for the
# size of the memory) and UMask (other users read the files of sinks).
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
class UnitParameters:
    """The parameters of a unit.

    - `graph`: the name of the graph.
    - `command`: the command line; its first word is an absolute path.
    - `directory`: the working directory, an absolute path.
    - `environment`: variables that all users of the machine may read.
    - `environment_file`: the absolute path of a file with further variables, one NAME=VALUE per line; or None.
    - `grace_seconds`: seconds from SIGTERM to SIGKILL.
    - `written`: absolute paths that the unit may write to, besides temporary files; systemd ignores missing paths.
    """

    graph: str
    command: Sequence[str]
    directory: str
    user: str
    environment: Mapping[str, str]
    environment_file: str | None
    grace_seconds: int
    written: Sequence[str]


def unit(wanted: UnitParameters) -> str:
    """Returns the text of a `.service` file."""
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
    """Escapes a value that takes the rest of a line: only `%` has a meaning there."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """Escapes one word of a line, and quotes it if necessary."""
    escaped = _path(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped if escaped == text and text.isprintable() and not set(text) & set(" ';#") else f'"{escaped}"'
