"""The protocol of a registry, which keeps the schemas of writers by id."""

from __future__ import annotations

from typing import Final, Protocol

REMEDY: Final = "give each new field a default and only widen types, or write to a new topic"
"""The remedy for a schema that a subject refuses."""


class Registry(Protocol):
    """Keeps writers' schemas by id. Each call raises Unavailable if the registry does not answer in time."""

    def register(self, subject: str, schema: str, /) -> int:
        """Registers a schema (JSON text) under a subject, and returns its id: the same one each time.

        Raises SchemaError if the subject refuses the schema.
        """

    def schema(self, schema_id: int, /) -> str:
        """Returns the JSON text of a schema. Raises LookupError, which names the registry, for an unknown id."""

    def ids(self, subject: str, /) -> list[int]:
        """Returns all ids ever registered under a subject, ascending: the writers' schemas of its topic."""
