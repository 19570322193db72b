"""Schemas as files in a directory, without a server.

`<id>.avsc` holds a schema; the empty file `subjects/<subject>/<id>` registers it under a subject. An id is a hash of
its schema, so all machines agree on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import filelock

from kstreams_py.errors import SchemaError, Unavailable
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.registry import REMEDY
from kstreams_py.formats.schemas import canonical, content_id

_LOCK_SECONDS_MAX: Final = 10.0


class FileRegistry:
    """Keeps schemas as files. A subject accepts a schema only if it can read data of all earlier ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def register(self, subject: str, schema: str, /) -> int:
        """See Registry. Processes that register at the same time wait for one another, for at most 10 s."""
        text = canonical(json.loads(schema))
        schema_id = content_id(text)
        mark = self._marks(subject) / str(schema_id)
        try:
            if mark.exists() and self._file(schema_id).exists():
                self._check_same(schema_id, text)
                return schema_id
            mark.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if self._file(schema_id).exists():
                    self._check_same(schema_id, text)
                self._check_evolution(subject, text)
                _write_durably(self._file(schema_id), text)
                _write_durably(mark, "")
        except OSError as error:
            raise Unavailable(f"schema directory {self._directory} cannot be written: {error}") from None
        return schema_id

    def schema(self, schema_id: int, /) -> str:
        """See Registry. Raises SchemaError for a file that was changed by hand."""
        try:
            text = self._file(schema_id).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise LookupError(
                f"id {schema_id} is not in {self._directory}: share that directory with the writer, "
                "or set schema_registry_url"
            ) from None
        except OSError as error:
            raise Unavailable(f"schema file {self._file(schema_id)} cannot be read: {error}") from None
        except ValueError:  # not UTF-8
            text = ""
        if content_id(text) != schema_id:
            raise SchemaError(
                f"schema file {self._file(schema_id)} was changed: restore it, its id is the hash of its text"
            )
        return text

    def ids(self, subject: str, /) -> list[int]:
        """See Registry."""
        try:
            return sorted(int(mark.name) for mark in self._marks(subject).iterdir() if mark.name.isdigit())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unavailable(f"schema directory {self._directory} cannot be read: {error}") from None

    def _file(self, schema_id: int) -> Path:
        return self._directory / f"{schema_id}.avsc"

    def _marks(self, subject: str) -> Path:
        return self._directory / "subjects" / quote(subject, safe="")

    def _check_same(self, schema_id: int, text: str) -> None:
        if self.schema(schema_id) != text:
            raise SchemaError(
                f"id {schema_id} is that of another schema in {self._directory}: change any doc in the new one"
            )

    def _check_evolution(self, subject: str, text: str) -> None:
        """Refuses a schema that cannot read the records of the subject's topic (Confluent's BACKWARD_TRANSITIVE)."""
        for older in self.ids(subject):
            try:
                problem = unreadable(json.loads(text), json.loads(self.schema(older)))
            except LookupError as error:
                raise SchemaError(f"no schema can be added to subject {subject!r}: {error.args[0]}") from None
            if problem:
                raise SchemaError(
                    f"a schema that does not fit subject {subject!r}: it cannot read what schema {older} wrote, "
                    f"as {problem}; {REMEDY}"
                )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Admits one writer at a time; the system releases the lock of a process that dies."""
        lock = self._directory / ".lock"
        try:
            with filelock.FileLock(lock, _LOCK_SECONDS_MAX, poll_interval=0.01):
                yield
        except filelock.Timeout:
            raise TimeoutError(f"another process has held {lock} for too long") from None


def _write_durably(path: Path, text: str) -> None:
    """Writes a whole file or nothing, and to the disk: records that need the schema are committed next."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
