"""Opens the registry that the settings name: of files, or over HTTP."""

from __future__ import annotations

from pathlib import Path

from kstreams_py.formats.file_registry import FileRegistry
from kstreams_py.formats.http_registry import SchemaRegistry
from kstreams_py.formats.registry import Registry


def open_registry(url: str | None, directory: Path) -> Registry:
    """Opens the schema registry at `url`, or the files in the directory if it is None."""
    return FileRegistry(directory) if url is None else SchemaRegistry(url)
