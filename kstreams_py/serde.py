"""Bytes <-> values: Avro through fastavro, JSON, strings, bytes; the wire format. Defines Serde and Registry.

A serde is any object with `serialize` and `deserialize`; tombstones (None) never reach it. One that offers `bind` is
asked once per topic for a serde of its own. A value or bytes that do not fit are the error of one record (ValueError,
TypeError, DecodeError: handled); a wrong schema or a registry that does not answer stops the worker.

Avro travels in the Confluent wire format: a zero byte, the writer's schema id in 4 bytes (big endian), the Avro body.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from reprlib import Repr
from typing import Any, ClassVar, Final, Protocol

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType, to_parsing_canonical_form
from fastavro.validation import ValidationError, validate

from kstreams_py.errors import DecodeError, SchemaError, SettingsError


class Serde(Protocol):
    """Turns values into bytes and back; called for each record, from one thread at a time."""

    def serialize(self, value: Any, /) -> bytes | None:
        """The bytes of a value. Any exception is an error of this record, but one of kstreams_py's own stops."""

    def deserialize(self, data: bytes, /) -> Any:
        """The value of bytes. Raises DecodeError for bytes that are not what it expects."""


class Registry(Protocol):
    """Where writers' schemas are kept, by id. Each call raises Unavailable if it gets no answer in a finite time."""

    def register(self, subject: str, schema: str, /) -> int:
        """The id of a schema (JSON text), always the same one; SchemaError if the subject does not allow it."""

    def schema(self, schema_id: int, /) -> str:
        """The JSON text of a schema; LookupError, saying where it was looked for, if there is none of that id."""

    def ids(self, subject: str, /) -> list[int]:
        """All ids ever registered under a subject, ascending: the writers' schemas of its topic."""


def bind(serde: Serde, registry: Registry, subject: str) -> Serde:
    """The serde to use for one subject: `T-value` or `T-key` of a topic T (TopicNameStrategy)."""
    bound: Serde = serde.bind(registry, subject) if hasattr(serde, "bind") else serde
    return bound


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes as they are; the default."""

    identity: ClassVar[bool] = True
    """Bytes stay as they are in both directions, so that a loop may leave out the call."""

    def serialize(self, value: Any, /) -> bytes:
        """Raises TypeError for anything but bytes."""
        if isinstance(value, bytes):
            return value
        raise TypeError(f"{_show(value)} is not bytes: return bytes, or give the topic a serde, such as Json()")

    def deserialize(self, data: bytes, /) -> bytes:
        """The same bytes."""
        return data


@dataclass(frozen=True, slots=True)
class String:
    """Text, in UTF-8 unless told otherwise."""

    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            "a".encode(self.encoding)
        except LookupError:
            raise SettingsError(f"String({self.encoding!r}): there is no such text encoding") from None

    def serialize(self, value: Any, /) -> bytes:
        """Raises TypeError for anything but str, ValueError for what the encoding cannot say."""
        if isinstance(value, str):
            return value.encode(self.encoding)
        raise TypeError(f"{_show(value)} is not a str: return a str, or give the topic another serde")

    def deserialize(self, data: bytes, /) -> str:
        """Raises DecodeError for bytes that are not text of the encoding."""
        try:
            return data.decode(self.encoding)
        except ValueError as error:
            raise DecodeError(f"these bytes are not text in {self.encoding}: {error}") from None


def _no_such_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


_to_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_from_json: Final = json.JSONDecoder(parse_constant=_no_such_number).decode


@dataclass(frozen=True, slots=True)
class Json:
    """JSON (RFC 8259) in UTF-8, without spaces; NaN and infinities are refused, as they are not JSON."""

    def serialize(self, value: Any, /) -> bytes:
        """Raises TypeError or ValueError, as json.dumps does, for what JSON cannot say."""
        return _to_json(value).encode()

    def deserialize(self, data: bytes, /) -> Any:
        """Raises DecodeError for bytes that are not JSON in UTF-8."""
        try:
            return _from_json(data.decode())
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"these bytes are not JSON in UTF-8: {error}") from None


# Avro.

JsonSchema = str | dict[str, Any] | list[Any]
Names = dict[str, dict[Any, Any]]

_HEAD: Final = struct.Struct(">xI")
_MISFIT: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_UNREADABLE: Final = (SchemaResolutionError, EOFError, *_MISFIT)


class Avro:
    """Avro by a schema: the path of an .avsc file, or the schema itself as parsed JSON.

    Records are dicts with exactly the schema's fields; those with a default may be left out. What is read is resolved
    from its writer's schema to this one: fields with defaults, aliases, promotions (Avro 1.11, "Schema Resolution").

    The worker binds it to its registry and to the subject of each topic; `registry` is one to use instead. The first
    value written registers the schema; a reader registers nothing. Raises SchemaError for a schema that is wrong.
    """

    __slots__ = ("_copies", "_fits", "_own", "_parsed", "_registry", "name", "schema")

    def __init__(self, schema: JsonSchema | Path, *, registry: Registry | None = None) -> None:
        source = f"schema file {Path(schema).absolute()}" if isinstance(schema, str | Path) else "the schema"
        raw = _read(Path(schema), source) if isinstance(schema, str | Path) else _unparsed(schema)
        self._parsed, names = _parse(raw, source)
        self._fits = _quick_check(self._parsed, names, {})
        # fastavro hands out the default itself: a function that changes a list would change it for all records.
        self._copies = any(isinstance(field.get("default"), list | dict) for field in _fields(names))
        self.name: str = _name(self._parsed)
        """The schema's full name."""
        self.schema: str = canonical(raw)
        """The schema's canonical JSON text, as it is registered."""
        self._registry = registry
        self._own = None if registry is None else self.bind(registry, self.name)

    def __repr__(self) -> str:
        return f"Avro({self.name})"

    def bind(self, registry: Registry, subject: str) -> Serde:
        """This schema, with the registry to find writers' schemas in and the subject to register it under."""
        registry = self._registry or registry
        return _Bound(self._writer(registry, subject), self._reader(registry))

    def serialize(self, value: Any, /) -> bytes | None:
        """As the worker does, if a registry was given; the subject is the schema's full name."""
        return self._unbound().serialize(value)

    def deserialize(self, data: bytes, /) -> Any:
        """As the worker does, if a registry was given."""
        return self._unbound().deserialize(data)

    def _unbound(self) -> Serde:
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
        """Raises ValueError naming the field, if fastavro's slow validation (six writes long) finds what is wrong."""
        try:
            validate(value, self._parsed)
        except ValidationError as error:
            found = error.errors[0]
            kinds = " or ".join(dict.fromkeys(_name(each.schema) for each in error.errors if each.field == found.field))
            what = f"field {found.field}" if found.field else "it"
            given = "None or missing" if found.datum is None else _show(found.datum)
            raise ValueError(f"value does not fit schema {self.name}: {what} is {given}, not {kinds}") from None
        except _MISFIT:
            return  # a logical type's own conversion failed: the writer's error says it

    def _reader(self, registry: Registry) -> Callable[[bytes], Any]:
        """`deserialize` as a closure, with what it takes to read each writer's schema, by the first five bytes."""
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
            # Files on another machine need not be there for a schema that this program has itself.
            if schema_id != content_id(self.schema):
                raise DecodeError(f"written with an unknown schema: {error.args[0]}") from None
            text = self.schema
        # A writer's defaults are not used; fastavro refuses some that are right: 0 for {"type": "double"}.
        raw = json.loads(text, object_hook=lambda each: {k: v for k, v in each.items() if k != "default"})
        writer, _ = _parse(raw, f"the schema with id {schema_id}")
        if to_parsing_canonical_form(writer) == to_parsing_canonical_form(self._parsed):
            return self._parsed, None, False  # resolving would change nothing, and takes twice the time
        return writer, self._parsed, self._copies


@dataclass(frozen=True, slots=True)
class _Bound:
    """An Avro schema bound to a registry and a subject."""

    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]


def canonical(schema: JsonSchema) -> str:
    """The one JSON text of a schema: sorted keys, no spaces."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def content_id(text: str) -> int:
    """A schema's id where no server counts: the first 31 bits of BLAKE2b of its canonical text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest()) >> 1


def _read(path: Path, source: str) -> JsonSchema:
    try:
        schema: JsonSchema = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SchemaError(f"{source} does not exist: correct the path, or start where it is relative to") from None
    except OSError as error:
        raise SchemaError(f"{source} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SchemaError(f"{source} is not JSON: {error}") from None
    return schema


def _unparsed(schema: JsonSchema) -> JsonSchema:
    """A copy without the notes that fastavro's parse_schema leaves at the top."""
    if isinstance(schema, list):
        return [_unparsed(each) for each in schema]
    if isinstance(schema, dict):
        return deepcopy({name: value for name, value in schema.items() if not name.startswith("__")})
    return schema


def _parse(raw: JsonSchema, source: str) -> tuple[Any, Names]:
    """fastavro's form of a schema, and its named types. Raises SchemaError naming `source` and what is wrong."""
    names: Names = {}
    try:
        parsed = parse_schema(raw, names)
        for field in _fields(names):
            first = field["type"][0] if isinstance(field["type"], list) else field["type"]
            if isinstance(field.get("default"), str) and _kind(first, names) in ("bytes", "fixed"):
                field["default"] = field["default"].encode("iso-8859-1")  # as the specification says; fastavro does not
    except UnknownType as error:
        why = f"unknown type {_name(error.name)!r}: correct it, or define it in the same schema"
    except KeyError as error:
        why = f"{error} is missing"
    except (SchemaParseException, ValueError, IndexError) as error:
        why = str(error)
    except (TypeError, AttributeError):
        why = "a type in it is neither a name, an object nor a list"
    else:
        return parsed, names
    raise SchemaError(f"{source} is not an Avro schema: {why}")


def _fields(names: Names) -> Iterator[dict[str, Any]]:
    """All fields of all records."""
    return (field for named in names.values() for field in named.get("fields", ()))


def _kind(schema: Any, names: Names) -> str:
    """`int`, `record`, `union` and so on, of a schema or of the name of one."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    return "union" if isinstance(schema, list) else str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _name(schema: Any) -> str:
    """A schema in a message."""
    if isinstance(schema, list):
        return " or ".join(map(_name, schema))
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else str(schema)


_brief: Final = Repr()
_brief.maxstring = _brief.maxother = 60


def _show(value: object) -> str:
    """A value in a message: short, with its type."""
    return f"{_brief.repr(value)} ({type(value).__name__})"


# What fastavro writes though it does not fit: 3.7 as the int 3, 2**40 as an int that others cannot read, "false" as
# true, "abc" as an array of three strings. Its own validation finds these but takes six times as long as the write.

Check = Callable[[Any], bool]

_CODES: Final = {"int": "i", "long": "q", "float": "d", "double": "d"}
_NOT_PACKED: Final = (struct.error, LookupError, TypeError, AttributeError, OverflowError)


def _quick_check(schema: Any, names: Names, made: dict[str, Check | None]) -> Check | None:
    """A check for such values: False means "look closer". None where fastavro's own checks are enough."""
    named: Any = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(named, dict) and "logicalType" in named:
        return None
    match kind := _kind(schema, names):
        case "int" | "long" | "float" | "double":
            return _number_check(struct.Struct("=" + _CODES[kind]))
        case "boolean":
            return lambda value: isinstance(value, bool)
        case "null":
            return lambda value: value is None
        case "array":
            fits = _quick_check(named["items"], names, made)
            return lambda value: isinstance(value, (list, tuple)) and (fits is None or all(map(fits, value)))
        case "map":
            fits = _quick_check(named["values"], names, made)
            return fits and (lambda value: isinstance(value, dict) and all(map(fits, value.values())))
        case "record" | "error":
            name = named["name"]
            if name in made:  # a record inside itself: its check is still being made
                return lambda value: (inner := made[name]) is None or inner(value)
            made[name] = None
            made[name] = _record_check(named, names, made)
            return made[name]
    return None


def _number_check(number: struct.Struct) -> Check:
    pack = number.pack

    def fits(value: Any) -> bool:
        try:
            pack(value)
        except _NOT_PACKED:
            return False
        return True

    return fits


def _record_check(record: dict[Any, Any], names: Names, made: dict[str, Check | None]) -> Check | None:
    """All numbers that must be there are checked by one call of struct.pack; 0.2 microseconds for twelve of them."""
    fields = record["fields"]
    checks = {f["name"]: fits for f in fields if (fits := _quick_check(f["type"], names, made)) is not None}
    if not checks:
        return None
    numbers = {f["name"]: _CODES[f["type"]] for f in fields if f["type"] in tuple(_CODES) and "default" not in f}
    if len(numbers) < 2:  # itemgetter gives a tuple for two or more
        numbers = {}
    pack = struct.Struct("=" + "".join(numbers.values())).pack
    pick: Any = itemgetter(*numbers) if numbers else (lambda _: ())
    others = tuple((name, fits) for name, fits in checks.items() if name not in numbers)

    def fits_record(value: Any) -> bool:
        try:
            pack(*pick(value))
            for name, fits in others:
                if name in value and not fits(value[name]):
                    return False
        except _NOT_PACKED:
            return False
        return True

    return fits_record


# Compatibility: can a new schema read what an older one wrote?

_PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def unreadable(reader: JsonSchema, writer: JsonSchema) -> str | None:
    """Why data of the writer's schema cannot be read by the reader's, naming the field; None if all of it can be.

    The rules of "Schema Resolution" in the Avro 1.11 specification, decided from the schemas alone, as far as fastavro
    follows them (names are compared without their namespace).
    """
    parsed_reader, readers = _parse(reader, "the reader's schema")
    parsed_writer, writers = _parse(writer, "the writer's schema")
    return next(_Resolution(readers, writers, set()).problems(parsed_reader, parsed_writer, _name(parsed_reader)), None)


@dataclass(frozen=True, slots=True)
class _Resolution:
    """One comparison of two schemas: their named types, and the pairs of names that were compared."""

    readers: Names
    writers: Names
    compared: set[tuple[str, str]]

    def problems(self, r: Any, w: Any, where: str) -> Iterator[str]:
        """What keeps `r` from reading `w`; `where` is the path of the field."""
        r = self.readers.get(r, r) if isinstance(r, str) else r
        w = self.writers.get(w, w) if isinstance(w, str) else w
        if isinstance(w, list):
            for branch in w:
                yield from self.problems(r, branch, where)
            return
        if isinstance(r, list):
            found = [(next(self.problems(branch, w, where), None), branch) for branch in r]
            if all(problem for problem, _ in found):
                alike = [problem for problem, branch in found if _kind(branch, self.readers) == _kind(w, {})]
                yield alike[0] if len(alike) == 1 and alike[0] else f"{where} was {_name(w)} and is {_name(r)}"
            return
        was, now = _kind(w, {}), _kind(r, {})
        if was != now:
            if now not in _PROMOTIONS.get(was, ()):
                yield f"{where} was {_name(w)} and is {_name(r)}"
        elif was in ("array", "map"):
            inner = {"array": "items", "map": "values"}[was]
            yield from self.problems(r[inner], w[inner], f"{where}.{inner}")
        elif was in ("record", "error", "enum", "fixed"):
            yield from self._named(was, r, w, where)

    def _named(self, kind: str, r: Any, w: Any, where: str) -> Iterator[str]:
        """Types that have names: those must agree, or be aliases."""
        short = w["name"].rpartition(".")[2]
        if short != r["name"].rpartition(".")[2] and not {short, w["name"]} & set(r.get("aliases", ())):
            yield f"{where} was {w['name']} and is {r['name']}"
        elif kind == "fixed" and r["size"] != w["size"]:
            yield f"{where} had {w['size']} bytes and has {r['size']}"
        elif kind == "enum" and "default" not in r and (gone := set(w["symbols"]) - set(r["symbols"])):
            yield f"{where} has lost the symbol {min(gone)} and has no default"
        elif kind in ("record", "error") and (r["name"], w["name"]) not in self.compared:
            self.compared.add((r["name"], w["name"]))
            written = {field["name"]: field for field in w["fields"]}
            for field in r["fields"]:
                path = f"{where}.{field['name']}"
                old = next((written[n] for n in (field["name"], *field.get("aliases", ())) if n in written), None)
                if old is not None:
                    yield from self.problems(field["type"], old["type"], path)
                elif "default" not in field:
                    yield f"{path} is new and has no default"
