"""Parses and names Avro schemas, and makes the canonical text under which they are registered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from hashlib import blake2b
from typing import Any, Final

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType, to_parsing_canonical_form

from kstreams_py.errors import SchemaError

JsonSchema = str | dict[str, Any] | list[Any]
"""A schema as parsed JSON."""

Names = dict[str, dict[Any, Any]]
"""The named types of a schema, as fastavro parses them."""


_NESTED_MAX: Final = 300
"""The maximum depth of nested objects and lists in a schema: parsing recurses without a limit of its own."""

_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_TYPES: Final = frozenset((*_PRIMITIVES, "record", "error", "enum", "fixed", "array", "map"))
"""The types that are not names."""

_FLAT: Final = (str, bytes, bytearray, int, float, type(None))


def is_deeper(value: Any, limit: int) -> bool:
    """Returns whether mappings and sequences in a value are nested deeper than `limit`, or it contains itself."""
    level = _containers([value])
    for _ in range(limit):
        if not level:
            return False
        level = _containers(child for each in level for child in (each.values() if isinstance(each, Mapping) else each))
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    """Returns the values that contain other values, each once."""
    found = {id(each): each for each in values if not isinstance(each, _FLAT)}
    return [each for each in found.values() if isinstance(each, Mapping | Sequence)]


def canonical(schema: JsonSchema) -> str:
    """Returns the canonical JSON text of a schema: sorted keys, no spaces."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def content_id(text: str) -> int:
    """Returns a schema's id if no server assigns one: the first 31 bits of BLAKE2b of its canonical text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest()) >> 1


def unparsed(schema: JsonSchema) -> JsonSchema:
    """Returns a copy without the keys that fastavro's parse_schema adds at the top."""
    if isinstance(schema, list):
        return [unparsed(each) for each in schema]
    if isinstance(schema, dict):
        return deepcopy({name: value for name, value in schema.items() if not name.startswith("__")})
    return schema


def parse(raw: JsonSchema, source: str) -> tuple[Any, Names]:
    """Returns fastavro's form of a schema, and its named types. Raises SchemaError with `source` and the error."""
    names: Names = {}
    if is_deeper(raw, _NESTED_MAX):
        raise SchemaError(f"{source} has more than {_NESTED_MAX} objects and lists inside one another: make it flatter")
    try:
        parsed = parse_schema(raw, names)
        for field in fields_of(names):
            first = field["type"][0] if isinstance(field["type"], list) else field["type"]
            if isinstance(field.get("default"), str) and kind_of(first, names) in ("bytes", "fixed"):
                field["default"] = field["default"].encode("iso-8859-1")  # as the specification says; fastavro does not
    except UnknownType as error:
        reason = f"unknown type {name_of(error.name)!r}: correct it, or define it in the same schema"
    except KeyError as error:
        reason = f"{error} is missing"
    except (SchemaParseException, ValueError, IndexError, ArithmeticError) as error:
        reason = str(error)
    except (TypeError, AttributeError):
        reason = "a type in it is neither a name, an object nor a list"
    else:
        return parsed, names
    raise SchemaError(f"{source} is not an Avro schema: {reason}")


def parsing_form(parsed: Any) -> str:
    """Returns a text that is equal for schemas with the same encoding and names ("Parsing Canonical Form")."""
    return str(to_parsing_canonical_form(parsed))


def fields_of(names: Names) -> Iterator[dict[str, Any]]:
    """Yields all fields of all records."""
    return (field for named in names.values() for field in named.get("fields", ()))


def kind_of(schema: Any, names: Names) -> str:
    """Returns the kind of a schema, which may be given by name: `int`, `record`, `union` and so on."""
    schema = names.get(schema, schema) if isinstance(schema, str) else schema
    return "union" if isinstance(schema, list) else str(schema["type"]) if isinstance(schema, dict) else str(schema)


def inline(schema: JsonSchema, referenced: Iterable[JsonSchema]) -> JsonSchema:
    """Returns a schema with the definitions of named types from other schemas, each where it is used first."""
    found: dict[str, Any] = {}
    for each in referenced:
        _qualify(each, "", found)
    whole: JsonSchema = _define(_qualify(schema, "", {}), found, set())
    return whole


def _qualify(schema: Any, namespace: str, found: dict[str, Any]) -> Any:
    """Returns a schema with the full names of types; adds its named types to `found`."""
    if isinstance(schema, list):
        return [_qualify(each, namespace, found) for each in schema]
    if isinstance(schema, str):
        return schema if schema in _TYPES or "." in schema or not namespace else f"{namespace}.{schema}"
    if not isinstance(schema["type"], str) or schema["type"] not in _TYPES:
        return _qualify(schema["type"], namespace, found)
    full = {**schema}
    if "name" in schema:
        space, _, name = schema["name"].rpartition(".")
        namespace = space or schema.get("namespace", namespace)
        full |= {"name": name, "namespace": namespace}
        found[f"{namespace}.{name}".lstrip(".")] = full
    full |= {key: _qualify(schema[key], namespace, found) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        full["fields"] = [{**each, "type": _qualify(each["type"], namespace, found)} for each in schema["fields"]]
    return full


def _define(schema: Any, found: dict[str, Any], defined: set[str]) -> Any:
    """Returns a qualified schema with a definition where a type is used first, and its name after that."""
    if isinstance(schema, list):
        return [_define(each, found, defined) for each in schema]
    if isinstance(schema, str):
        return _define(found[schema], found, defined) if schema in found and schema not in defined else schema
    full = {**schema}
    if "name" in schema:
        name = f"{schema['namespace']}.{schema['name']}".lstrip(".")
        if name in defined:
            return name
        defined.add(name)
    full |= {key: _define(schema[key], found, defined) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        full["fields"] = [{**each, "type": _define(each["type"], found, defined)} for each in schema["fields"]]
    return full


def name_of(schema: Any) -> str:
    """Returns the name of a schema for messages."""
    if isinstance(schema, list):
        return " or ".join(map(name_of, schema))
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else str(schema)
