"""Limits of Avro values, which are checked before fastavro decodes or encodes them.

fastavro recurses in C without a limit, so a value that is nested too deeply ends the process. It reads as many items as
a block claims, although items such as nulls take no bytes. For schemas that allow neither, the checks cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kstreams_py.errors import SchemaError
from kstreams_py.formats.schemas import Names, kind_of

DEPTH_MAX: Final = 200
"""The maximum depth of nested records, arrays and maps. A level takes over 1 kB of stack; a thread may have 512 kB."""

EMPTY_MAX: Final = 10_000
"""The maximum number of values without bytes: nulls, and records of nulls. The record's size limits all others."""

Scan = Callable[[bytes, int], object]
"""Raises ValueError, EOFError or LookupError if an encoded value, from an offset on, must not be decoded."""

_Skip = Callable[[bytes, int, int], int]
"""Takes the offset and the depth of a value, and returns the offset after it."""

_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_EMPTY: Final = ("null",)
_UNCHECKED: Final = ("null", "boolean", "float", "double", "fixed")
"""Kinds that fastavro skips without checking that the bytes exist."""

_VARINT_BYTES_MAX: Final = 10

_TOO_DEEP: Final = f"it is nested more than {DEPTH_MAX} deep"
_CUT_OFF: Final = "it ends too early"
_TOO_MANY: Final = f"it has more than {EMPTY_MAX:,} items that take no bytes"


class Bounds(NamedTuple):
    """The checks that values of a schema need.

    - `scan`: checks encoded values before they are decoded; None if no check is needed.
    - `depth`: whether the depth of values has to be checked before they are encoded.
    - `empty_items`: whether values also have to be checked by `scan` once they are encoded.
    """

    scan: Scan | None
    depth: bool
    empty_items: bool


def bounds_of(schema: Any, names: Names, source: str, *, skips: bool = False) -> Bounds:
    """Returns the checks that values of a parsed schema, with its named types, need.

    - `skips`: whether the reader's schema may lack some fields.

    Raises SchemaError, which names `source`, for a schema that no value fits, or whose values can never be decoded.
    """
    facts = _Facts(names)
    if not facts.is_finite(schema):
        raise SchemaError(f"{source} has no finite value: a record in it always contains itself; make a field nullable")
    if facts.empties(schema) > EMPTY_MAX:
        raise SchemaError(f"{source} has more than {EMPTY_MAX:,} fields that take no bytes: leave them out")
    depth = facts.depth(schema)
    if depth is not None and depth > DEPTH_MAX:
        raise SchemaError(f"{source} is nested more than {DEPTH_MAX} deep: make it flatter")
    empty_items = facts.has_endless_items(schema, _EMPTY)
    needs_scan = depth is None or empty_items or (skips and facts.has_endless_items(schema, _UNCHECKED))
    return Bounds(_Scanner(facts).scan_of(schema) if needs_scan else None, depth is None, empty_items)


class _Facts:
    """Facts about the types of a schema, independent of values."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._finite = set[str]()
        self._empties: dict[str, int] = {}
        self._depths: dict[str, int | None] = {}
        while found := {n for n, each in names.items() if n not in self._finite and self._has_finite(each)}:
            self._finite |= found

    def resolve(self, schema: Any) -> Any:
        """Returns the type itself, even if it is given by name."""
        return self.names.get(schema, schema) if isinstance(schema, str) else schema

    def inner(self, schema: Any) -> Sequence[Any]:
        """Returns the types inside a type."""
        match kind_of(schema, self.names):
            case "record" | "error":
                return [field["type"] for field in self.resolve(schema)["fields"]]
            case "array":
                return [schema["items"]]
            case "map":
                return [schema["values"]]
            case "union":
                return list(schema)
        return ()

    def is_finite(self, schema: Any) -> bool:
        """Returns whether a finite value of the type exists."""
        schema = self.resolve(schema)
        if isinstance(schema, dict) and "name" in schema:
            return schema["name"] in self._finite
        return self._has_finite(schema)

    def _has_finite(self, schema: Any) -> bool:
        match kind_of(schema, self.names):
            case "record" | "error":
                return all(map(self.is_finite, self.inner(schema)))
            case "union":
                return any(map(self.is_finite, schema))
        return True

    def is_of(self, kinds: Collection[str], schema: Any) -> bool:
        """Returns whether values of the type consist only of these kinds, or take no bytes."""
        schema = self.resolve(schema)
        kind = kind_of(schema, self.names)
        if kind in ("record", "error"):
            return all(self.is_of(kinds, each) for each in self.inner(schema))
        return kind in kinds or (kind == "fixed" and schema["size"] == 0)

    def empties(self, schema: Any) -> int:
        """Returns how many values without bytes there are in one value of the type and its nested records."""
        schema = self.resolve(schema)
        kind = kind_of(schema, self.names)
        if kind not in ("record", "error"):
            return int(self.is_of(_EMPTY, schema))
        if schema["name"] not in self._empties:
            # counted once for each type: several fields of one type can double the number at each level
            self._empties[schema["name"]] = sum(map(self.empties, self.inner(schema))) + int(not schema["fields"])
        return self._empties[schema["name"]]

    def depth(self, schema: Any) -> int | None:
        """Returns how deeply values of the type are nested; None for a type that can contain itself."""
        schema = self.resolve(schema)
        name = schema.get("name") if isinstance(schema, dict) else None
        if name in self._depths:
            return self._depths[name]
        if name is not None:
            self._depths[name] = None  # a type that contains itself meets this entry
        found: int | None = 0
        for each in self.inner(schema):
            below = self.depth(each)
            found = None if found is None or below is None else max(found, below)
        if found is not None and kind_of(schema, self.names) in ("record", "error", "array", "map"):
            found += 1
        if name is not None:
            self._depths[name] = found
        return found

    def has_endless_items(self, schema: Any, kinds: Collection[str]) -> bool:
        """Returns whether the schema has an array whose items consist only of these kinds."""
        seen, left = set[int](), [schema]
        while left:
            each = self.resolve(left.pop())
            if id(each) not in seen:
                seen.add(id(each))
                left += self.inner(each)
                if kind_of(each, self.names) == "array" and self.is_of(kinds, each["items"]):
                    return True
        return False


class _Scanner:
    """Makes functions that scan an encoded value as fastavro does, without decoding it."""

    def __init__(self, facts: _Facts) -> None:
        self._facts = facts
        self._left = EMPTY_MAX
        self._named: dict[str, _Skip] = {}

    def scan_of(self, schema: Any) -> Scan:
        skip = self._skip_of(schema)

        def scan(data: bytes, at: int) -> None:
            self._left = EMPTY_MAX
            if skip(data, at, 0) > len(data):
                raise EOFError(_CUT_OFF)

        return scan

    def _skip_of(self, schema: Any) -> _Skip:
        schema = self._facts.resolve(schema)
        match kind := kind_of(schema, self._facts.names):
            case "null" | "boolean" | "float" | "double":
                return _skip_of_size(_SIZES[kind])
            case "fixed":
                return _skip_of_size(schema["size"])
            case "bytes" | "string":
                return _skip_bytes
            case "record" | "error":
                return self._skip_of_record(schema)
            case "array":
                items = schema["items"]
                empties = self._facts.empties(items) if self._facts.is_of(_EMPTY, items) else 0
                return self._skip_of_blocks(self._skip_of(items), empties)
            case "map":
                value = self._skip_of(schema["values"])
                return self._skip_of_blocks(
                    lambda data, at, depth: value(data, _skip_bytes(data, at), depth), empties=0
                )
            case "union":
                return _skip_of_union([self._skip_of(each) for each in schema])
        return lambda data, at, _: _varint(data, at)[1]  # int, long, enum

    def _skip_of_record(self, record: Mapping[str, Any]) -> _Skip:
        name, fields = record["name"], list[_Skip]()
        if name in self._named:
            return self._named[name]

        def skip(data: bytes, at: int, depth: int) -> int:
            if depth >= DEPTH_MAX:
                raise ValueError(_TOO_DEEP)
            for field in fields:
                at = field(data, at, depth + 1)
            return at

        self._named[name] = skip
        fields += [self._skip_of(field["type"]) for field in record["fields"]]
        return skip

    def _skip_of_blocks(self, item: _Skip, empties: int) -> _Skip:
        """Returns the function for an array or a map; `empties`: values in an item, if all take no bytes; else 0."""

        def skip(data: bytes, at: int, depth: int) -> int:
            if depth >= DEPTH_MAX:
                raise ValueError(_TOO_DEEP)
            while True:
                count, end, at = _block(data, at)
                if count == 0:
                    return at
                self._left -= count * empties
                if self._left < 0:
                    raise ValueError(_TOO_MANY)
                if not empties and count > len(data) - at:
                    raise EOFError(_CUT_OFF)
                for _ in range(count):
                    at = item(data, at, depth + 1)
                if end not in (-1, at):  # fastavro follows the size if it skips a field, otherwise the items
                    raise ValueError("the size of a block differs from the size of its items")

        return skip


def _skip_of_size(size: int) -> _Skip:
    return lambda _data, at, _depth: at + size


def _skip_of_union(branches: Sequence[_Skip]) -> _Skip:
    def skip(data: bytes, at: int, depth: int) -> int:
        index, at = _varint(data, at)
        if index < 0:  # Python would take a branch from the end
            raise ValueError(f"a union has no branch {index}")
        return branches[index](data, at, depth)

    return skip


def _skip_bytes(data: bytes, at: int, _: int = 0) -> int:
    size, at = _varint(data, at)
    if size < 0:
        raise ValueError(f"a string or bytes of length {size}")
    return at + size


def _block(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns the number of items in a block, the offset after them (-1 if unknown), and the first one's offset."""
    count, at = _varint(data, at)
    if count >= 0:
        return count, -1, at
    size, at = _varint(data, at)
    return -count, at + size, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a number in zigzag and variable-length coding; returns it, and the offset after it."""
    found = shift = 0
    for place in range(at, at + _VARINT_BYTES_MAX):
        byte = data[place]
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), place + 1
        shift += 7
    raise ValueError(f"a number of more than {_VARINT_BYTES_MAX} bytes")
