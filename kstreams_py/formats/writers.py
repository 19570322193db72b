"""The schemas of a topic's writers: which of them readers follow, and why they refuse the others.

The writer of a record chooses the schema id in it. The id affects only that record: any fault in its schema becomes a
DecodeError. Readers wait only for a registry that does not answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from kstreams_py.errors import DecodeError, SchemaError, Unavailable
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.schemas import JsonSchema, content_id, parse, parsing_form
from kstreams_py.printable import show_error

UNKNOWN_SECONDS: Final = 1.0
"""Seconds for which a refused id is remembered; only a few, because its schema may soon be registered."""

UNKNOWN_MAX: Final = 1_000
"""The number of refused ids that are remembered."""


def subjects_of(subject: str, name: str) -> tuple[str, str, str]:
    """Returns the subjects of a topic's schemas, one for each Confluent strategy: topic, topic and record, record.

    - `subject`: `T-key` or `T-value`.
    - `name`: the full name of the reader's schema.
    """
    return subject, f"{subject.rpartition('-')[0]}-{name}", name


def followed_ids(registry: Registry, subject: str, name: str) -> Iterator[int]:
    """Yields the ids of the schemas that readers of a topic follow, those under its own subject first.

    Raises Unavailable if the registry does not answer for that subject. Leaves out other subjects that it does not
    answer for: the reader may lack the right to them.
    """
    first, *others = subjects_of(subject, name)
    yield from registry.ids(first)
    for each in others:
        with suppress(Unavailable):
            yield from registry.ids(each)


def read_text(text: str, source: str) -> JsonSchema:
    """Parses a writer's schema, without defaults: only readers use them, and fastavro refuses some valid ones.

    Raises SchemaError, which names `source`, for text that is not JSON.
    """
    try:
        schema: JsonSchema = json.loads(
            text, object_hook=lambda each: {name: value for name, value in each.items() if name != "default"}
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise SchemaError(f"{source} is not JSON: {show_error(error)}") from None
    return schema


class Writers:
    """Finds the schemas of one subject's writers by their ids."""

    def __init__(
        self,
        registry: Registry,
        subject: str | None,
        own: tuple[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes no request.

        - `subject`: the subject whose schemas are followed; None for any.
        - `own`: the name and text of the reader's schema, which is always followed.
        """
        self._registry, self._subject, self._clock = registry, subject, clock
        self._name, self._text = own
        self._refused: dict[int, tuple[float, str]] = {}

    def find(self, schema_id: int) -> JsonSchema:
        """Returns the schema with an id. Raises DecodeError if readers do not follow it; may raise Unavailable."""
        at, why = self._refused.get(schema_id, (0.0, ""))
        if why and self._clock() - at < UNKNOWN_SECONDS:
            raise DecodeError(why)
        try:
            return self._find(schema_id)
        except DecodeError as error:
            if len(self._refused) >= UNKNOWN_MAX:
                self._refused.clear()
            self._refused[schema_id] = self._clock(), str(error)
            raise

    def _find(self, schema_id: int) -> JsonSchema:
        try:
            schema = self._ask(schema_id)
        except Unavailable:
            if self._is_followed(schema_id):
                raise
            # the registry answers: does it refuse only this id, or was it away a moment ago?
            with suppress(Unavailable):
                schema = self._ask(schema_id)
                if self._is_own(schema):
                    return schema
            raise DecodeError(self._foreign(schema_id)) from None
        if not self._is_own(schema) and not self._is_followed(schema_id):
            raise DecodeError(self._foreign(schema_id))
        return schema

    def _ask(self, schema_id: int) -> JsonSchema:
        try:
            return read_text(self._registry.schema(schema_id), f"the schema with id {schema_id}")
        except LookupError as error:
            # This program's own schema can be read even if the writer's schema directory is on another machine.
            if schema_id == content_id(self._text):
                return read_text(self._text, self._name)
            raise DecodeError(f"written with an unknown schema: {error.args[0]}") from None
        except SchemaError as error:
            raise DecodeError(f"written with a schema that cannot be used: {error}") from None

    def _is_own(self, schema: JsonSchema) -> bool:
        """Returns whether a schema has the same encoding as the reader's own schema."""
        with suppress(SchemaError):
            return _form(schema) == _form(read_text(self._text, self._name))
        return False

    def _is_followed(self, schema_id: int) -> bool:
        """Returns whether a schema is registered under a subject of the topic. Raises Unavailable."""
        return self._subject is None or schema_id in followed_ids(self._registry, self._subject, self._name)

    def _foreign(self, schema_id: int) -> str:
        return (
            f"written with schema {schema_id}, which is not under subject {self._subject}: "
            "if it is a writer's of this topic, register it there"
        )


def _form(schema: Any) -> str:
    return parsing_form(parse(schema, "a schema")[0])
