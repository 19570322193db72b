"""The serde Avro, through fastavro.

Records have the Confluent wire format: a zero byte, the writer's schema id in 4 bytes (big endian), the Avro body.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final, NamedTuple

from fastavro import schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError
from fastavro.validation import ValidationError, validate

from kstreams_py.errors import DecodeError, EncodeError, SchemaError
from kstreams_py.formats.bounds import DEPTH_MAX, Scan, bounds_of
from kstreams_py.formats.evolution import unreadable
from kstreams_py.formats.fitting import quick_check
from kstreams_py.formats.logical import Misfit, adopt, expected_by, to_read, to_validate, to_write
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.schema_files import SchemaSource, load_schema
from kstreams_py.formats.schemas import (
    canonical,
    fields_of,
    is_deeper,
    kind_of,
    name_of,
    parse,
    parsing_form,
)
from kstreams_py.formats.serdes import Serde, show
from kstreams_py.formats.writers import Writers

_HEAD: Final = struct.Struct(">xI")
_MISFIT: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_UNREADABLE: Final = (SchemaResolutionError, EOFError, *_MISFIT)


class Avro(Serde[Any]):
    """Avro data with a schema.

    - `schema`: the path of an .avsc file, or the schema as parsed JSON.
    - `registry`: the registry to use instead of the worker's; None for the worker's.

    Records are dicts with exactly the schema's fields; fields with a default may be left out. Data is resolved from its
    writer's schema to this one: defaults, aliases and promotions apply (Avro 1.11, "Schema Resolution").

    Values are written unchanged or refused. They may be nested at most 200 deep, and may have at most 10,000 items that
    take no bytes; decimals may have at most 4,300 digits.

    The worker binds the serde to the subject of each topic. The first written value registers the schema; a reader
    registers nothing. Raises SchemaError for an invalid schema.
    """

    __slots__ = (
        *("_bounds", "_copies", "_fits", "_own", "_raw", "_reads", "_registry", "_validates", "_writes"),
        *("name", "schema"),
    )

    def __init__(self, schema: SchemaSource, *, registry: Registry | None = None) -> None:
        raw, source = load_schema(schema)
        parsed, _ = parse(raw, source)
        self._raw = raw
        self._reads = parse(to_read(raw), source)
        self._bounds = bounds_of(*self._reads, source)
        self._writes, names = parse(to_write(raw), source)
        self._fits = quick_check(self._writes, names, {})
        self._validates = parse(to_validate(raw), source)[0]
        # fastavro returns the default object itself: a function that changes a list would change it for all records
        self._copies = any(isinstance(field.get("default"), list | dict) for field in fields_of(names))
        self.name: str = name_of(parsed)
        """The schema's full name."""
        self.schema: str = canonical(raw)
        """The schema's canonical JSON text, which is registered."""
        self._registry = registry
        self._own = None if registry is None else self._bound(registry, self.name, None)

    def __repr__(self) -> str:
        return f"Avro({self.name})"

    def bind(self, registry: Registry, subject: str) -> Serde:
        """Returns a serde that looks up writers' schemas in the registry, and registers this schema under the subject.

        Besides this schema, it follows the schemas that are registered for the topic of the subject.
        """
        return self._bound(self._registry or registry, subject, subject)

    def _bound(self, registry: Registry, subject: str, followed: str | None) -> Serde:
        """Returns the bound serde. `followed`: the subject whose schemas are followed; None for any."""
        writers = Writers(registry, followed, (self.name, self.schema))
        schema, names = self._reads
        kinds = [kind_of(each, names) for each in (schema if isinstance(schema, list) else [schema])]
        return _Bound(self._writer(registry, subject), self._reader(writers), "null" in kinds)

    def serialize(self, value: Any, /) -> bytes | None:
        """Serializes as the worker does; the subject is the schema's full name.

        Raises SchemaError without a registry.
        """
        return self._require_own().serialize(value)

    def deserialize(self, data: bytes, /) -> Any:
        """Deserializes as the worker does. Raises SchemaError without a registry."""
        return self._require_own().deserialize(data)

    def _require_own(self) -> Serde:
        if self._own is None:
            raise SchemaError(f"{self!r} has no registry: give it one, Avro(..., registry=...), or use its bind()")
        return self._own

    def _writer(self, registry: Registry, subject: str) -> Callable[[Any], bytes]:
        """Returns `serialize` as a closure: nothing is looked up for each record."""
        parsed, fits, head = self._writes, self._fits, b""
        scan, may_be_deep, empty_items = self._bounds
        parts = list[bytes]()
        file: Any = _Parts(parts)

        def serialize(value: Any) -> bytes:
            nonlocal head
            if may_be_deep and is_deeper(value, DEPTH_MAX):
                raise EncodeError(f"value does not fit schema {self.name}: it is nested more than {DEPTH_MAX} deep")
            if fits is not None and not fits(value):
                self._look_closer(value)
            parts.append(head)
            try:
                schemaless_writer(file, parsed, value, strict_allow_default=True)
                data = b"".join(parts)
                if empty_items and scan is not None:
                    scan(data, len(head))
            except _MISFIT as error:
                self._look_closer(value)
                raise EncodeError(f"value does not fit schema {self.name}: {str(error)[:500]}") from None
            finally:
                parts.clear()
            if not head:
                head = _HEAD.pack(registry.register(subject, self.schema))
                return head + data
            return data

        return serialize

    def _look_closer(self, value: Any) -> None:
        """Raises EncodeError, with the field, if fastavro's validation (as slow as six writes) finds an error."""
        try:
            validate(value, self._validates)
        except ValidationError as error:
            found = error.errors[0]
            here = [each for each in error.errors if each.field == found.field]
            kinds = " or ".join(
                dict.fromkeys(
                    expected_by(each.schema) if isinstance(each.datum, Misfit) else name_of(each.schema)
                    for each in here
                )
            )
            what = f"field {found.field}" if found.field else "it"
            datum = found.datum.value if isinstance(found.datum, Misfit) else found.datum
            actual = "None or missing" if datum is None else show(datum)
            raise EncodeError(f"value does not fit schema {self.name}: {what} is {actual}, not {kinds}") from None
        except _MISFIT:
            return  # the conversion of a logical type failed: the caller raises that error

    def _reader(self, writers: Writers) -> Callable[[bytes], Any]:
        """Returns `deserialize` as a closure, which caches the resolution of schemas by the first five bytes."""
        known: dict[bytes, _Resolved] = {}
        refused: dict[bytes, str] = {}

        def resolve(head: bytes) -> _Resolved:
            if head not in refused:
                found = self._resolve(head, writers)
                if not isinstance(found, str):
                    return known.setdefault(head, found)
                refused[head] = found
            raise DecodeError(refused[head])

        def deserialize(data: bytes) -> Any:
            source = BytesIO(data)
            head = source.read(5)
            try:
                writer, reader, copies, scan = known[head]
            except KeyError:
                writer, reader, copies, scan = resolve(head)
            try:
                if scan is not None:
                    scan(data, 5)
                if reader is None:
                    value, left = schemaless_reader(source, writer), source.read()
                else:
                    value, left = _read_changed(data, writer, reader)
            except _UNREADABLE as error:
                what = f"these bytes (schema id {_HEAD.unpack(head)[0]}) are not a value of schema {self.name}"
                raise DecodeError(f"{what}: {type(error).__name__}: {str(error)[:500]}") from None
            if left:
                raise DecodeError(f"{len(left)} bytes too many after a value of schema {self.name}")
            return deepcopy(value) if copies else value

        return deserialize

    def _resolve(self, head: bytes, writers: Writers) -> _Resolved | str:
        """Returns how to read data with the schema id in `head`, or the reason why it cannot be read."""
        if len(head) < 5 or head[0] != 0:
            raise DecodeError(
                f"not Avro in the wire format: starts with {head!r}, not with a zero byte and a schema id"
            )
        schema_id = int.from_bytes(head[1:])
        raw, source, reader = writers.find(schema_id), f"the schema with id {schema_id}", self._reads[0]
        try:
            parse(raw, source)  # before its logical types are replaced: fastavro checks only its own types
            if problem := unreadable(self._raw, raw, any_value=True):
                return f"written with schema {schema_id}, which {self!r} cannot read: {problem}"
            written = parse(to_read(raw), source)
            if parsing_form(written[0]) == parsing_form(reader):
                # resolution would change nothing, and would take twice the time
                return _Resolved(reader, None, False, self._bounds.scan)
            writer = adopt(written, self._reads)
            scan = bounds_of(writer, written[1], source, skips=True).scan
        except SchemaError as error:
            return f"written with a schema that cannot be used: {error}"
        return _Resolved(writer, reader, self._copies, scan)


class _Parts:
    """A file that collects all writes in a list (measured: a BytesIO would take a twentieth of the encoding time)."""

    __slots__ = ("write",)

    def __init__(self, parts: list[bytes]) -> None:
        self.write = parts.append


class _Resolved(NamedTuple):
    """How data of one writer is read.

    - `writer`: its schema, parsed.
    - `reader`: the reader's schema; None if resolution would change nothing.
    - `copies`: whether defaults in the value must be copied.
    - `scan`: see bounds.
    """

    writer: Any
    reader: Any
    copies: bool
    scan: Scan | None


@dataclass(frozen=True, slots=True)
class _Bound:
    """An Avro schema bound to a registry and a subject."""

    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]
    has_null: bool
    """Whether some bytes decode to None."""


def _read_changed(data: bytes, writer: Any, reader: Any) -> tuple[Any, bytes]:
    """Returns a value, resolved from its writer's schema to its reader's, and the bytes after the value."""
    # fastavro skips fields without checking that they exist: if it reads the appended byte, a field is missing
    source = BytesIO(data + b"\0")
    source.seek(5)
    value, end = schemaless_reader(source, writer, reader), source.tell()
    if end > len(data):
        raise EOFError("it ends too early")
    return value, data[end:]
