"""Where writers' schemas are kept: files in a directory, or a schema registry over HTTP.

`FileRegistry` needs no server: `<id>.avsc` holds a schema, `subjects/<subject>/<id>` (empty) says that the subject has
it. Ids are made of the schemas, so that all machines agree on them. `SchemaRegistry` speaks to Confluent's registry, or
to one with the same REST API, through confluent-kafka's client.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from kstreams_py.errors import MissingSoftware, SchemaError, SettingsError, Unavailable
from kstreams_py.serde import Registry, canonical, content_id, unreadable

_LOCK_SECONDS_MAX: Final = 10.0
_REMEDY: Final = "give each new field a default and only widen types, or write to a new topic"


def open_registry(url: str | None, directory: Path) -> Registry:
    """The schema registry at the address, or the files in the directory where there is no address."""
    return FileRegistry(directory) if url is None else SchemaRegistry(url)


class FileRegistry:
    """Schemas as files. A subject takes a schema only if it can read what all earlier ones wrote."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def register(self, subject: str, schema: str, /) -> int:
        """See serde.Registry. Processes that register at the same time wait for one another, 10 s at most."""
        text = canonical(json.loads(schema))
        schema_id = content_id(text)
        mark = self._marks(subject) / str(schema_id)
        try:
            if mark.exists() and self._file(schema_id).exists():
                self._same(schema_id, text)
                return schema_id
            mark.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if self._file(schema_id).exists():
                    self._same(schema_id, text)
                self._admit(subject, text)
                _write_durably(self._file(schema_id), text)
                _write_durably(mark, "")
        except OSError as error:
            raise Unavailable(f"schema directory {self._directory} cannot be written: {error}") from None
        return schema_id

    def schema(self, schema_id: int, /) -> str:
        """See serde.Registry. Raises SchemaError for a file that was changed by hand."""
        try:
            text = self._file(schema_id).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise LookupError(
                f"id {schema_id} is not in {self._directory}: share that directory with the writer, "
                "or set schema_registry_url"
            ) from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"schema file {self._file(schema_id)} cannot be read: {error}") from None
        if content_id(text) != schema_id:
            raise SchemaError(
                f"schema file {self._file(schema_id)} was changed: restore it, its id stands for its text"
            )
        return text

    def ids(self, subject: str, /) -> list[int]:
        """See serde.Registry."""
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

    def _same(self, schema_id: int, text: str) -> None:
        if self.schema(schema_id) != text:
            raise SchemaError(
                f"id {schema_id} already stands for another schema in {self._directory}: change any doc in the new one"
            )

    def _admit(self, subject: str, text: str) -> None:
        """Refuses a schema that cannot read what is in the subject's topic (Confluent calls it BACKWARD_TRANSITIVE)."""
        for older in self.ids(subject):
            try:
                problem = unreadable(json.loads(text), json.loads(self.schema(older)))
            except LookupError as error:
                raise SchemaError(f"no schema can be added to subject {subject!r}: {error.args[0]}") from None
            if problem:
                raise SchemaError(
                    f"a schema that does not fit subject {subject!r}: it cannot read what schema {older} wrote, "
                    f"as {problem}; {_REMEDY}"
                )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time; the system lets go of the lock of a process that dies."""
        deadline = time.monotonic() + _LOCK_SECONDS_MAX
        with (self._directory / ".lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"another process has held {file.name} for too long") from None
                    time.sleep(0.01)
            yield


def _write_durably(path: Path, text: str) -> None:
    """All of it or nothing, and on the disk: records that need the schema are about to be committed."""
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


# The REST API's own codes: https://docs.confluent.io/platform/current/schema-registry/develop/api.html
_UNKNOWN: Final = (40401, 40402, 40403)  # subject, version, schema


class SchemaRegistry:
    """A schema registry over HTTP. The address may hold user and password; they show nowhere."""

    def __init__(self, url: str, **settings: Any) -> None:
        """`settings` are confluent-kafka's own, such as `basic.auth.user.info` or `ssl.ca.location`.

        Raises MissingSoftware without the extra, SettingsError for an address or a setting that is wrong.
        """
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError  # noqa: PLC0415
        except ImportError as error:
            raise MissingSoftware(
                f"schema_registry_url needs the package {error.name!r}: pip install 'kstreams_py[registry]'"
            ) from None
        self._url, user = _without_user(url)
        given = {"basic.auth.user.info": user} if user else {}
        limits = {"timeout": 3, "max.retries": 1, "retries.wait.ms": 200}
        try:
            self._client = SchemaRegistryClient({"url": self._url, **limits, **given, **settings})
        except (ValueError, TypeError, OSError) as error:
            raise SettingsError(f"schema registry at {self._url}: {error}") from None
        self._schema, self._refusal = Schema, SchemaRegistryError

    def register(self, subject: str, schema: str, /) -> int:
        """See serde.Registry. What a subject allows is the registry's own compatibility setting."""
        schema_id: int = self._ask(self._client.register_schema, subject, self._schema(schema, "AVRO"))
        return schema_id

    def schema(self, schema_id: int, /) -> str:
        """See serde.Registry."""
        found = self._ask(self._client.get_schema, schema_id)
        if found.schema_type not in (None, "AVRO"):
            raise LookupError(f"id {schema_id} in the schema registry at {self._url} is {found.schema_type}, not Avro")
        return str(found.schema_str)

    def ids(self, subject: str, /) -> list[int]:
        """See serde.Registry. Schemas that were deleted count: their records may still be there."""
        try:
            versions = self._ask(self._client.get_versions, subject, True)
            return sorted({self._ask(self._client.get_version, subject, each, True).schema_id for each in versions})
        except LookupError:
            return []

    def _ask(self, call: Callable[..., Any], what: str | int, *arguments: object) -> Any:
        """The answer about `what` (a subject or an id), or the error whose name says what to do."""
        where = f"schema registry at {self._url}"
        try:
            return call(what, *arguments)
        except self._refusal as error:
            status, code, said = error.http_status_code, error.error_code, error.error_message
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise Unavailable(
                f"no answer from the {where}: start it, or correct schema_registry_url ({said})"
            ) from None
        if code in _UNKNOWN:  # not any 404: a wrong address must not look like an unknown schema
            raise LookupError(f"{'id' if isinstance(what, int) else 'subject'} {what} is not in the {where}")
        if status == 409:
            raise SchemaError(f"a schema that does not fit subject {what!r}: {said}; {_REMEDY}")
        if status == 422:
            raise SchemaError(f"the {where} refuses the schema of subject {what!r}: {said}")
        if status in (401, 403):
            raise Unavailable(f"the {where} refuses the credentials ({status}): correct them")
        raise Unavailable(f"the {where} answers with status {status}: {said}")


def _without_user(urls: str) -> tuple[str, str]:
    """The addresses (separated by commas) without user and password, and the first of those as `user:password`."""
    bare, users = list[str](), list[str]()
    for url in urls.split(","):
        try:
            parts = urlsplit(url.strip())
            info, _, host = parts.netloc.rpartition("@")
            clear = parts.scheme in ("http", "https") and host and "@" not in parts.path + parts.query + parts.fragment
        except ValueError:
            clear = False
        if not clear:
            raise SettingsError(
                "schema_registry_url is not of the form http://user:password@host:port: correct it; "
                "in user and password write / , @ as %2F %2C %40"
            ) from None
        bare.append(parts._replace(netloc=host).geturl())
        users += [unquote(info if ":" in info else f"{info}:")] if info else []
    return ",".join(bare), users[0] if users else ""
