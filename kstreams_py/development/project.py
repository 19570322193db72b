"""Writes a new project: a graph, its tests, and the files of its deployment.

The directory `project/` holds a project named shop. In its files, the new name replaces that name.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Final

from kstreams_py.errors import SettingsError

FILES: Final = Path(__file__).with_name("project")
SUFFIX: Final = ".in"
"""The suffix of each file, so that no tool takes it for a file of this package."""

NAME: Final = re.compile(r"[a-z](?:_?[a-z0-9]){0,40}")
"""The names that a module and a container image may both have: an image takes no _ at the end, and no two in a row."""

EXAMPLE: Final = re.compile(r"(?<![a-z])shop(?![a-z])")


def write_project(name: str, directory: Path) -> list[Path]:
    """Writes the files of a new project, and returns their paths.

    - `name`: the name of the graph and its module, and the beginning of its topics' names.
    - `directory`: the directory to create; nothing is written if it exists.

    Raises SettingsError for a name that no module can have or that an installed module has, and for a directory that
    exists or cannot be written; it then leaves nothing behind.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(f"{name!r} cannot be the name of a module: write a-z, 0-9 and single _, a letter first")
    if directory.exists():
        raise SettingsError(f"{directory} exists, and nothing is overwritten: choose another name, or remove it")
    if name == "tests" or importlib.util.find_spec(name) is not None:
        raise SettingsError(f"{name!r} is the name of a module that is there already: choose another name")
    try:
        directory.mkdir()
    except OSError as error:
        raise SettingsError(f"{directory} cannot be written: {error.strerror}: choose another directory") from None
    try:
        return [_write(each, name, directory) for each in sorted(FILES.rglob(f"*{SUFFIX}"))]
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise SettingsError(f"{directory} cannot be written: {error.strerror}: choose another directory") from None


def _write(source: Path, name: str, directory: Path) -> Path:
    place = source.relative_to(FILES).as_posix().removesuffix(SUFFIX)
    path = directory / EXAMPLE.sub(name, place).replace("dot-", ".")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXAMPLE.sub(name, source.read_text(encoding="utf-8")), encoding="utf-8")
    return path
