"""Schemas in Confluent's schema registry, or in one with the same REST API, through confluent-kafka's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from kstreams_py.errors import MissingSoftware, SchemaError, SettingsError, Unavailable
from kstreams_py.formats.registry import REMEDY
from kstreams_py.settings import split_user

# The REST API's own codes: https://docs.confluent.io/platform/current/schema-registry/develop/api.html
_UNKNOWN: Final = (40401, 40402, 40403)  # subject, version, schema


class SchemaRegistry:
    """A schema registry over HTTP. The address may hold user and password; no message shows them."""

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
        credentials = {"basic.auth.user.info": user} if user else {}
        limits = {"timeout": 3, "max.retries": 1, "retries.wait.ms": 200}
        try:
            self._client = SchemaRegistryClient({"url": self._url, **limits, **credentials, **settings})
        except (ValueError, TypeError, OSError) as error:
            raise SettingsError(f"schema registry at {self._url}: {error}") from None
        self._schema, self._refusal = Schema, SchemaRegistryError

    def register(self, subject: str, schema: str, /) -> int:
        """See Registry. The registry's own compatibility setting decides what a subject accepts."""
        schema_id: int = self._ask(self._client.register_schema, subject, self._schema(schema, "AVRO"))
        return schema_id

    def schema(self, schema_id: int, /) -> str:
        """See Registry."""
        found = self._ask(self._client.get_schema, schema_id)
        if found.schema_type not in (None, "AVRO"):
            raise LookupError(f"id {schema_id} in the schema registry at {self._url} is {found.schema_type}, not Avro")
        return str(found.schema_str)

    def ids(self, subject: str, /) -> list[int]:
        """See Registry. Includes deleted schemas: their records may still exist."""
        try:
            versions = self._ask(self._client.get_versions, subject, True)
            return sorted({self._ask(self._client.get_version, subject, each, True).schema_id for each in versions})
        except LookupError:
            return []

    def _ask(self, call: Callable[..., Any], what: str | int, *arguments: object) -> Any:
        """Makes a request about `what` (a subject or an id), and maps its failure to an exception with a remedy."""
        where = f"schema registry at {self._url}"
        try:
            return call(what, *arguments)
        except self._refusal as error:
            status, code, message = error.http_status_code, error.error_code, error.error_message
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise Unavailable(
                f"no answer from the {where}: start it, or correct schema_registry_url ({message})"
            ) from None
        if code in _UNKNOWN:  # not any 404: a wrong address must not look like an unknown schema
            raise LookupError(f"{'id' if isinstance(what, int) else 'subject'} {what} is not in the {where}")
        if status == 409:
            raise SchemaError(f"a schema that does not fit subject {what!r}: {message}; {REMEDY}")
        if status == 422:
            raise SchemaError(f"the {where} refuses the schema of subject {what!r}: {message}")
        if status in (401, 403):
            raise Unavailable(f"the {where} refuses the credentials ({status}): correct them")
        raise Unavailable(f"the {where} answers with status {status}: {message}")


def _without_user(urls: str) -> tuple[str, str]:
    """The addresses (separated by commas) without user and password, and the first of those as `user:password`."""
    bare, users = list[str](), list[str]()
    for url in urls.split(","):
        info, address = split_user(url, "schema_registry_url", "http://user:password@host:port", ("http", "https"))
        bare.append(address)
        users += [unquote(info if ":" in info else f"{info}:")] if info else []
    return ",".join(bare), users[0] if users else ""
