"""Opens the registry that the settings name: schemas as files in a directory, or in a server over HTTP."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import filelock

from kstreams_py.errors import MissingSoftware, SchemaError, SettingsError, Unavailable
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.registry import REMEDY, Registry
from kstreams_py.formats.schemas import canonical, content_id, inline
from kstreams_py.secrets import redact, split_user

# The REST API's own codes: https://docs.confluent.io/platform/current/schema-registry/develop/api.html
_UNKNOWN: Final = (40401, 40402, 40403)  # subject, version, schema


_WAYS: Final = ("basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret")
"""The ways to sign in; each can be combined with a certificate."""

_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_NUMBERS: Final = re.compile(r"timeout|cache\.(capacity|latest\.ttl\.sec)|max\.retries|retries\.(max\.)?wait\.ms")

_PROXIES: Final = ("http", "https", "socks5", "socks5h")

_WRONG_PROXY: Final = (
    "its client does not take the URL of the proxy: correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY; in user and password "
    "write / ? # @ as %2F %3F %23 %40"
)


class SchemaRegistry:
    """A schema registry over HTTP. The address may have a user and a password; no message shows them."""

    def __init__(self, url: str, **settings: Any) -> None:
        """Creates the client of the registry.

        - `settings`: confluent-kafka's own, such as `ssl.ca.location` or `bearer.auth.token`; numbers may be strings.

        Raises MissingSoftware without the extra, and SettingsError for a wrong address or setting.
        """
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError  # noqa: PLC0415
        except ImportError as error:
            raise MissingSoftware(
                f"schema_registry_url needs the package {error.name!r}: pip install 'kstreams_py[registry]'"
            ) from None
        self._url, user = _without_user(url)
        if proxy := settings.get("proxy"):
            split_user(str(proxy), "schema_registry.proxy", "http://user:password@host:port", _PROXIES)
        credentials = {"basic.auth.user.info": user} if user else {}
        limits = {"timeout": 3, "max.retries": 1, "retries.wait.ms": 200}
        ways = [*credentials, *(name for name in _WAYS if name in settings)]
        if len(ways) > 1:
            raise SettingsError(
                f"schema registry at {self._url}: it takes one way to sign in: a user in its address, "
                f"{' or '.join(_WAYS)}: remove the others"
            )
        try:
            signing_in = credentials | _completed(settings)
            self._client = SchemaRegistryClient({"url": self._url, **limits, **signing_in})
        except OSError:
            files = ", ".join(f"{name} = {settings[name]!r}" for name in _FILES if name in settings)
            raise SettingsError(
                f"schema registry at {self._url}: {files}: one cannot be read as PEM, or its key needs another "
                "ssl.key.password: correct them"
            ) from None
        except (ValueError, TypeError) as error:
            if "proxy" in str(error):  # the error shows the URL of a proxy from the environment
                raise SettingsError(f"schema registry at {self._url}: {_WRONG_PROXY}") from None
            raise SettingsError(f"schema registry at {self._url}: {error}") from None
        except ImportError as error:
            raise MissingSoftware(f"schema registry at {self._url}: {error}") from None
        except Exception as error:  # from its HTTP library: it shows a part of the proxy's URL
            if type(error).__name__ != "InvalidURL":
                raise
            raise SettingsError(f"schema registry at {self._url}: {_WRONG_PROXY}") from None
        self._schema, self._refusal = Schema, SchemaRegistryError

    def register(self, subject: str, schema: str, /) -> int:
        """See Registry. The registry's own compatibility setting decides what a subject accepts."""
        schema_id: int = self._ask(self._client.register_schema, subject, self._schema(schema, "AVRO"))
        return schema_id

    def schema(self, schema_id: int, /) -> str:
        """See Registry. Inserts the named types of referenced schemas."""
        found = self._ask(self._client.get_schema, schema_id)
        if found.schema_type not in (None, "AVRO"):
            raise LookupError(f"id {schema_id} in the schema registry at {self._url} is {found.schema_type}, not Avro")
        text = str(found.schema_str)
        if not found.references:
            return text
        try:
            referenced = [json.loads(str(each)) for each in self._referenced(found.references)]
            return canonical(inline(json.loads(text), referenced))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SchemaError(
                f"id {schema_id} in the schema registry at {self._url} is not an Avro schema: {error!r}"
            ) from None

    def _referenced(self, references: Iterable[Any]) -> list[str]:
        """Returns the texts of the referenced schemas, and of the schemas that these reference."""
        found, left = dict[tuple[str, int], str](), [*references]
        while left:
            each = left.pop()
            if (each.subject, each.version) not in found:
                schema = self._ask(self._client.get_version, each.subject, each.version, True).schema
                found[each.subject, each.version] = schema.schema_str
                left += schema.references or ()
        return [*found.values()]

    def ids(self, subject: str, /) -> list[int]:
        """See Registry. Includes deleted schemas: their records may still exist."""
        found = set[int]()
        with suppress(LookupError):
            for each in self._ask(self._client.get_versions, subject, True):
                with suppress(LookupError):  # deleted permanently meanwhile
                    found.add(self._ask(self._client.get_version, subject, each, True).schema_id)
        return sorted(found)

    def _ask(self, call: Callable[..., Any], what: str | int, *arguments: object) -> Any:
        """Makes a request about `what` (a subject or an id), and maps its failure to an exception with a remedy."""
        where = f"schema registry at {self._url}"
        try:
            return call(what, *arguments)
        except self._refusal as error:
            status, code, message = error.http_status_code, error.error_code, error.error_message
        except Exception as error:
            message = f"{type(error).__name__}: {redact(str(error))}"
            raise Unavailable(
                f"no answer from the {where}: start it, or correct schema_registry_url ({message})"
            ) from None
        if code in _UNKNOWN:  # not every 404: a wrong address must not look like an unknown schema
            raise LookupError(f"{'id' if isinstance(what, int) else 'subject'} {what} is not in the {where}")
        if status == 409:
            raise SchemaError(f"a schema that does not fit subject {what!r}: {message}; {REMEDY}")
        if status == 422:
            raise SchemaError(f"the {where} refuses the schema of subject {what!r}: {message}")
        if status in (401, 403):
            raise Unavailable(f"the {where} refuses the credentials ({status}): correct them")
        raise Unavailable(f"the {where} answers with status {status}: {message}")


def _completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the client's settings: adds implied settings, and converts numbers from text. Raises ValueError."""
    found = {n: float(v) if _NUMBERS.fullmatch(n) and isinstance(v, str) else v for n, v in settings.items()}
    if "bearer.auth.token" in found:
        found.setdefault("bearer.auth.credentials.source", "STATIC_TOKEN")
    elif "bearer.auth.client.secret" in found:
        found.setdefault("bearer.auth.credentials.source", "OAUTHBEARER")
        found.setdefault("bearer.auth.scope", "")
    if "bearer.auth.credentials.source" in found:
        found.setdefault("bearer.auth.logical.cluster", "")  # for Confluent's cloud; others ignore it
    if "ssl.key.location" in found:
        found.setdefault("ssl.key.password", "")  # else OpenSSL asks for an encrypted key's password at the terminal
    return found


def _without_user(urls: str) -> tuple[str, str]:
    """Returns the comma-separated addresses without user and password, and the first `user:password`."""
    bare, users = list[str](), list[str]()
    for url in urls.split(","):
        info, address = split_user(url, "schema_registry_url", "http://user:password@host:port", ("http", "https"))
        bare.append(address)
        users += [unquote(info if ":" in info else f"{info}:")] if info else []
    return ",".join(bare), users[0] if users else ""


_LOCK_SECONDS_MAX: Final = 10.0


class FileRegistry:
    """Keeps schemas as files. A subject accepts a schema only if it can read data of all earlier ones.

    `<id>.avsc` holds a schema; the empty file `subjects/<subject>/<id>` registers it under a subject. An id is a hash
    of its schema, so all machines agree on it.
    """

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
                f"schema file {self._file(schema_id)} was changed: restore it: its id is the hash of its text"
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
    """Writes the whole file or nothing, and syncs it to disk: records that need the schema are committed next."""
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


def open_registry(url: str | None, directory: Path, client: Mapping[str, str]) -> Registry:
    """Opens the schema registry at `url` with its client's settings; without a URL, the files in the directory."""
    return FileRegistry(directory) if url is None else SchemaRegistry(url, **client)
