"""Opens the registry that the settings name: files, or HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kstreams_py.formats.file_registry import FileRegistry
from kstreams_py.formats.http_registry import SchemaRegistry
from kstreams_py.formats.registry import Registry


def open_registry(url: str | None, directory: Path, client: Mapping[str, str]) -> Registry:
    """Opens the schema registry at `url` with its client's settings; without a URL, the files in the directory."""
    return FileRegistry(directory) if url is None else SchemaRegistry(url, **client)
