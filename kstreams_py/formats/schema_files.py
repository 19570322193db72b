"""Reads schemas from files: those that a program names, and those that this package ships."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from kstreams_py.errors import SchemaError
from kstreams_py.formats.schemas import JsonSchema, unparsed
from kstreams_py.printable import show_error

SchemaSource = JsonSchema | Path
"""The path of an .avsc file, or a schema as parsed JSON; a str is a path."""


def load_schema(schema: SchemaSource) -> tuple[JsonSchema, str]:
    """Returns a schema as parsed JSON, and its name for messages; reads a file if `schema` is a path.

    Raises SchemaError for a file that does not exist, cannot be read or is not JSON.
    """
    if not isinstance(schema, str | Path):
        return unparsed(schema), "the schema"
    source = f"schema file {Path(schema).absolute()}"
    return _read(Path(schema), source), source


def shipped_schema(name: str) -> JsonSchema:
    """Returns the schema `schemas/<name>.avsc` of this package, as parsed JSON."""
    schema: JsonSchema = json.loads((files("kstreams_py") / "schemas" / f"{name}.avsc").read_text(encoding="utf-8"))
    return schema


def _read(path: Path, source: str) -> JsonSchema:
    try:
        schema: JsonSchema = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SchemaError(
            f"{source} does not exist: correct the path, or start from the directory that it is relative to"
        ) from None
    except OSError as error:
        raise SchemaError(f"{source} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SchemaError(f"{source} is not JSON: {show_error(error)}") from None
    return schema
