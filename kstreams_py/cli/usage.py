"""The form of --help: commands in panels, and a name for the value of each option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

PANELS: Final = ("Start", "Inspect", "Repair", "Deploy", "Spark", "Ordering", "Peers")
"""The panels of `kstreams --help`, in their order."""

VALUES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--brokers", "--partitions", "--replicas", "--workers", "-n"), "N"),
    "--advertised": "HOST",
    "--allow": "MODULE",
    "--bootstrap-servers": "HOST:PORT",
    "--config": "FILE",
    "--conf": "NAME=VALUE",
    "--contains": "TEXT",
    "--cut": "FILE",
    "--data-dir": "DIRECTORY",
    "--error": "CLASS",
    "--header": "NAME=VALUE",
    "--html": "FILE",
    "--http": "HOST:PORT",
    "--log-format": "text|json",
    "--messenger": "zmq|http",
    "--older-than": "DURATION",
    "--output": "PATH",
    "--since": "TIME",
    "--timeout": "SECONDS",
    "--until": "TIME",
    "--wait": "SECONDS",
    "--write": "DIRECTORY",
}
"""Names for the values of options. The value of any other option is named by the last word of the option's name."""


class Command(TyperCommand):
    """A command whose help shows nothing beside a flag."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters, each with a name for its value."""
        return _named(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands; its help shows them panel by panel."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters, each with a name for its value."""
        return _named(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands, in the order of their panels."""
        panels = {name: getattr(each, "rich_help_panel", None) for name, each in self.commands.items()}
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: PANELS.index(panels[name]) if panels[name] in PANELS else len(PANELS))


def improve_help(app: typer.Typer) -> None:
    """Sets these classes for an app's commands and groups, and for those of its groups."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            improve_help(group.typer_instance)


def _named(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if not each.opts[0].startswith("-"):
            each.metavar = each.metavar or each.name.upper()
            each.display_type_rich = _show_nothing  # typer's `<str>` says less than the argument's name
        elif each.is_flag or each.count:
            each.metavar = ""  # without it, typer shows `<bool>` or `<int>` as if a value had to follow
        elif each.metavar is None:
            name = each.opts[0]
            each.metavar = VALUES.get(name) or name.rpartition("-")[2].upper()
    return parameters


def _show_nothing(**_: Any) -> str:
    return ""
