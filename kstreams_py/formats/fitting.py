"""A quick check of whether a value fits an Avro schema: fastavro writes some values although they do not fit.

fastavro writes 3.7 as the int 3, 2**40 as an int that others cannot read, "false" as true, and "abc" as an array of
three strings. Its own validation finds these errors but takes six times as long as the write.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from kstreams_py.formats.logical import is_own
from kstreams_py.formats.schemas import Names, kind_of

Check = Callable[[Any], bool]

_CODES: Final = {"int": "i", "long": "q", "float": "f", "double": "d"}
_TYPES: Final = {"i": int, "q": int, "f": float, "d": float}
_EXACT: Final = {"f": 1 << 24, "d": 1 << 53}
"""Up to this number, every whole number equals a float."""
_LEAST: Final = 1e-38
"""Smaller numbers may become zero as floats of 32 bits."""
_NOT_PACKED: Final = (struct.error, LookupError, TypeError, AttributeError, OverflowError)


def quick_check(schema: Any, names: Names, known: dict[str, Check | None]) -> Check | None:
    """Makes a check whose False means "look closer"; returns None if fastavro's own checks suffice.

    - `names`: the named types of the schema.
    - `known`: the checks of records by name, None while a check is being made; pass an empty dict.
    """
    named: Any = names.get(schema, schema) if isinstance(schema, str) else schema
    if is_own(named):
        return None  # it is checked as it is written
    match kind := kind_of(schema, names):
        case "int" | "long" | "float" | "double":
            return _number_check(_CODES[kind])
        case "boolean":
            return lambda value: isinstance(value, bool)
        case "null":
            return lambda value: value is None
        case "fixed":
            return lambda value: isinstance(value, (bytes, bytearray))
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


def _number_check(code: str) -> Check:
    pack, usual = struct.Struct("=" + code).pack, _TYPES[code]

    def fits(value: Any) -> bool:
        try:
            pack(value)
        except _NOT_PACKED:
            return False
        return (type(value) is usual and code != "f") or _is_whole(value, code)

    return fits


def _is_whole(value: Any, code: str) -> bool:
    """Returns whether a number was packed unchanged: True would be packed as 1, and 1e-50 in 32 bits as 0."""
    if code == "f" and value and not abs(value) >= _LEAST:
        return False
    if isinstance(value, Decimal):
        return Decimal(repr(float(value))) == value
    return not isinstance(value, bool) and (not isinstance(value, int) or abs(value) <= _EXACT.get(code, math.inf))


def _record_check(record: dict[Any, Any], names: Names, known: dict[str, Check | None]) -> Check | None:
    """Makes a check that tests all required numbers at once: by type, or by packing them if a type is unusual."""
    fields = record["fields"]
    checks = {f["name"]: fits for f in fields if (fits := quick_check(f["type"], names, known)) is not None}
    if not checks:
        return None
    numbers = {f["name"]: _CODES[f["type"]] for f in fields if f["type"] in tuple(_CODES) and "default" not in f}
    are_usual, codes = _usual_numbers(numbers), [*numbers.values()]
    pack = struct.Struct("=" + "".join(codes)).pack
    others = tuple((name, fits) for name, fits in checks.items() if name not in numbers)

    def fits_record(value: Any) -> bool:
        try:
            if not are_usual(value):
                picked = [value[name] for name in numbers]
                pack(*picked)
                if not all(map(_is_whole, picked, codes)):
                    return False
            for name, fits in others:
                if name in value and not fits(value[name]):
                    return False
        except _NOT_PACKED:
            return False
        return True

    return fits_record


def _usual_numbers(numbers: Mapping[str, str]) -> Check:
    """Makes a check that the numbers of a record have the usual types, and lie in ranges that fastavro does not check.

    `numbers`: the codes by field name. The check is compiled, as dataclasses' methods are (measured: it takes a
    third of the time of a check of a tuple's types, and no longer than packing the tuple).
    """
    tests = {
        "i": "type(x := value[{}]) is int and -0x80000000 <= x <= 0x7fffffff",
        "q": "type(value[{}]) is int",
        "f": f"type(x := value[{{}}]) is float and ({_LEAST} <= x <= 3.4e38 or -3.4e38 <= x <= -{_LEAST} or x == 0)",
        "d": "type(value[{}]) is float",
    }
    found = " and ".join(tests[code].format(repr(name)) for name, code in numbers.items())
    check: Check = eval(f"lambda value: {found or True}")  # the text has only these tests and quoted names
    return check
