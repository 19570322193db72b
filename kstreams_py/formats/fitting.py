"""A quick check whether a value fits an Avro schema, for values that fastavro writes though they do not fit.

fastavro writes 3.7 as the int 3, 2**40 as an int that others cannot read, "false" as true, "abc" as an array of three
strings. Its own validation finds these errors but takes six times as long as the write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from kstreams_py.formats.schemas import Names, kind_of

Check = Callable[[Any], bool]

_CODES: Final = {"int": "i", "long": "q", "float": "d", "double": "d"}
_NOT_PACKED: Final = (struct.error, LookupError, TypeError, AttributeError, OverflowError)


def quick_check(schema: Any, names: Names, known: dict[str, Check | None]) -> Check | None:
    """Makes a check whose False means "look closer"; None if fastavro's own checks suffice.

    - `names`: the named types of the schema.
    - `known`: the checks of records by name, with None while they are being made; pass an empty dict.
    """
    named: Any = names.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(named, dict) and "logicalType" in named:
        return None
    match kind := kind_of(schema, names):
        case "int" | "long" | "float" | "double":
            return _number_check(struct.Struct("=" + _CODES[kind]))
        case "boolean":
            return lambda value: isinstance(value, bool)
        case "null":
            return lambda value: value is None
        case "array":
            fits = quick_check(named["items"], names, known)
            return lambda value: isinstance(value, (list, tuple)) and (fits is None or all(map(fits, value)))
        case "map":
            fits = quick_check(named["values"], names, known)
            return fits and (lambda value: isinstance(value, dict) and all(map(fits, value.values())))
        case "record" | "error":
            name = named["name"]
            if name in known:  # a record inside itself: its check is still being made
                return lambda value: (inner := known[name]) is None or inner(value)
            known[name] = None
            known[name] = _record_check(named, names, known)
            return known[name]
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


def _record_check(record: dict[Any, Any], names: Names, known: dict[str, Check | None]) -> Check | None:
    """Checks all required numbers by one call of struct.pack (measured: 0.2 microseconds for twelve of them)."""
    fields = record["fields"]
    checks = {f["name"]: fits for f in fields if (fits := quick_check(f["type"], names, known)) is not None}
    if not checks:
        return None
    numbers = {f["name"]: _CODES[f["type"]] for f in fields if f["type"] in tuple(_CODES) and "default" not in f}
    if len(numbers) < 2:  # itemgetter returns a tuple for two or more
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
