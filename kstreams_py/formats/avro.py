"""The serde Avro, through fastavro.

Records have the Confluent wire format: a zero byte, the writer's schema id in 4 bytes (big endian), the Avro body.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from fastavro import schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError
from fastavro.schema import to_parsing_canonical_form
from fastavro.validation import ValidationError, validate

from kstreams_py.errors import DecodeError, SchemaError
from kstreams_py.formats.fitting import quick_check
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.schema_files import SchemaSource, load_schema
from kstreams_py.formats.schemas import canonical, content_id, fields_of, name_of, parse
from kstreams_py.formats.serdes import Serde, show

_HEAD: Final = struct.Struct(">xI")
_MISFIT: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_UNREADABLE: Final = (SchemaResolutionError, EOFError, *_MISFIT)


class Avro(Serde[Any]):
    """Avro by a schema.

    - `schema`: the path of an .avsc file, or the schema as parsed JSON.
    - `registry`: the registry to use instead of the worker's; None for the worker's.

    Records are dicts with exactly the schema's fields; those with a default may be left out. Data is resolved from its
    writer's schema to this one: fields with defaults, aliases, promotions (Avro 1.11, "Schema Resolution").

    The worker binds the serde to the subject of each topic. The first value written registers the schema; a reader
    registers nothing. Raises SchemaError for a schema that is wrong.
    """

    __slots__ = ("_copies", "_fits", "_own", "_parsed", "_registry", "name", "schema")

    def __init__(self, schema: SchemaSource, *, registry: Registry | None = None) -> None:
        raw, source = load_schema(schema)
        self._parsed, names = parse(raw, source)
        self._fits = quick_check(self._parsed, names, {})
        # fastavro returns the default itself: a function that changes a list would change it for all records
        self._copies = any(isinstance(field.get("default"), list | dict) for field in fields_of(names))
        self.name: str = name_of(self._parsed)
        """The schema's full name."""
        self.schema: str = canonical(raw)
        """The schema's canonical JSON text, which is registered."""
        self._registry = registry
        self._own = None if registry is None else self.bind(registry, self.name)

    def __repr__(self) -> str:
        return f"Avro({self.name})"

    def bind(self, registry: Registry, subject: str) -> Serde:
        """A serde that looks writers' schemas up in the registry, and registers this schema under the subject."""
        registry = self._registry or registry
        return _Bound(self._writer(registry, subject), self._reader(registry))

    def serialize(self, value: Any, /) -> bytes | None:
        """Serializes as the worker does, under the schema's full name. Raises SchemaError without a registry."""
        return self._require_own().serialize(value)

    def deserialize(self, data: bytes, /) -> Any:
        """Deserializes as the worker does. Raises SchemaError without a registry."""
        return self._require_own().deserialize(data)

    def _require_own(self) -> Serde:
        if self._own is None:
            raise SchemaError(f"{self!r} has no registry: give it one, Avro(..., registry=...), or use its bind()")
        return self._own

    def _writer(self, registry: Registry, subject: str) -> Callable[[Any], bytes]:
        """`serialize` as a closure: nothing is looked up per record."""
        parsed, fits, head = self._parsed, self._fits, b""

        def serialize(value: Any) -> bytes:
            nonlocal head
            if fits is not None and not fits(value):
                self._look_closer(value)
            body = BytesIO()
            try:
                schemaless_writer(body, parsed, value, strict_allow_default=True)
            except _MISFIT as error:
                self._look_closer(value)
                raise ValueError(f"value does not fit schema {self.name}: {str(error)[:500]}") from None
            if not head:
                head = _HEAD.pack(registry.register(subject, self.schema))
            return head + body.getvalue()

        return serialize

    def _look_closer(self, value: Any) -> None:
        """Raises ValueError, which names the field, if fastavro's validation (as slow as six writes) finds an error."""
        try:
            validate(value, self._parsed)
        except ValidationError as error:
            found = error.errors[0]
            kinds = " or ".join(
                dict.fromkeys(name_of(each.schema) for each in error.errors if each.field == found.field)
            )
            what = f"field {found.field}" if found.field else "it"
            actual = "None or missing" if found.datum is None else show(found.datum)
            raise ValueError(f"value does not fit schema {self.name}: {what} is {actual}, not {kinds}") from None
        except _MISFIT:
            return  # the conversion of a logical type failed: the caller raises that error

    def _reader(self, registry: Registry) -> Callable[[bytes], Any]:
        """`deserialize` as a closure, which caches the resolution of each writer's schema by the first five bytes."""
        known: dict[bytes, tuple[Any, Any, bool]] = {}

        def deserialize(data: bytes) -> Any:
            source = BytesIO(data)
            head = source.read(5)
            if head not in known:
                known[head] = self._resolve(head, registry)
            writer, reader, copies = known[head]
            try:
                value = schemaless_reader(source, writer, reader)
            except _UNREADABLE as error:
                what = f"these bytes (schema id {_HEAD.unpack(head)[0]}) are not a value of schema {self.name}"
                raise DecodeError(f"{what}: {type(error).__name__}: {str(error)[:500]}") from None
            if source.read(1):
                raise DecodeError(f"{len(data) - source.tell() + 1} bytes too many after a value of schema {self.name}")
            return deepcopy(value) if copies else value

        return deserialize

    def _resolve(self, head: bytes, registry: Registry) -> tuple[Any, Any, bool]:
        """The writer's schema, the reader's if it differs, and whether defaults in the value must be copied."""
        if len(head) < 5 or head[0] != 0:
            raise DecodeError(
                f"not Avro in the wire format: starts with {head!r}, not with a zero byte and a schema id"
            )
        schema_id = int.from_bytes(head[1:])
        try:
            text = registry.schema(schema_id)
        except LookupError as error:
            # This program's own schema can be read even if the writer's schema directory is on another machine.
            if schema_id != content_id(self.schema):
                raise DecodeError(f"written with an unknown schema: {error.args[0]}") from None
            text = self.schema
        # A writer's defaults are not used; fastavro refuses some that are valid: 0 for {"type": "double"}.
        raw = json.loads(text, object_hook=lambda each: {k: v for k, v in each.items() if k != "default"})
        writer, _ = parse(raw, f"the schema with id {schema_id}")
        if to_parsing_canonical_form(writer) == to_parsing_canonical_form(self._parsed):
            return self._parsed, None, False  # resolving would change nothing, and takes twice the time
        return writer, self._parsed, self._copies


@dataclass(frozen=True, slots=True)
class _Bound:
    """An Avro schema bound to a registry and a subject."""

    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]
