"""`kstreams new`: writes a new project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kstreams_py.cli.streams import echo
from kstreams_py.development.project import write_project


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the name of the graph, its module and its directory")],
) -> None:
    """Write a new project to the directory NAME: a graph with a fork, dead letters and a sink, and its tests.

    The project has a pyproject.toml for pip, pytest and ruff, a Dockerfile and a compose.yaml for a broker and two
    workers in containers, and a README with the commands to test and to run it. Nothing is overwritten: an existing
    directory is refused.
    """
    for path in write_project(name, Path(name)):
        echo(path)
    print()
    echo(f"next: cd {name}, then the commands of README.md")
