"""The columns of a sink: their names and types, and the rows that do not fit them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from math import isinf, isnan
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from kstreams_py.errors import RowRefused, SettingsError, StaleWriter
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.records import Positions

HASH_COLUMN: Final = "delivery_hash"

_HALF: Final = re.compile("[\ud800-\udfff]")
"""A lone half of a surrogate pair: in a Python string, a whole pair is one character."""

Columns = Sequence[str] | Mapping[str, type]
"""Names, or the Python type of each name: `{"carrier": str, "month": int}`."""

Types = tuple[type | None, ...]
"""The Python type of each column; None if it is not known."""


def split_columns(columns: Columns, known: Collection[type]) -> tuple[tuple[str, ...], Types]:
    """Returns the names and the types of declared columns.

    `known`: the types that the target has. Raises SettingsError if there is no column, or if a column is declared
    twice, is reserved, or has another type.
    """
    if isinstance(columns, str):
        raise SettingsError(f"columns={columns!r} is a string: write ({columns!r},)")
    names = tuple(columns)
    types = tuple(columns.values()) if isinstance(columns, Mapping) else (None,) * len(names)
    if not names:
        raise SettingsError("a sink needs columns: columns=(...)")
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"column {name!r} is declared twice: leave one out")
    if HASH_COLUMN in names:
        raise SettingsError(f"column {HASH_COLUMN!r} is the sink's own: choose another name")
    for name, kind in zip(names, types, strict=True):
        if kind is not None and kind not in known:
            raise SettingsError(
                f"column {name!r} has the type {name_type(kind)}, which the target does not have: "
                f"choose {_listed(known)}"
            )
    return names, types


def read_evidence(evidence: Evidence | str, possible: Collection[Evidence]) -> Evidence:
    """Returns the declared evidence. Raises SettingsError for evidence that the target does not keep."""
    if evidence in possible:
        return Evidence(evidence)
    kept = " or ".join(map(repr, map(str, possible)))
    raise SettingsError(f"the target does not keep evidence={str(evidence)!r}: choose {kept}")


def name_type(kind: object) -> str:
    if isinstance(kind, type):
        return "None" if kind is type(None) else kind.__name__
    return f"{kind!r}, not a Python type"


def format_columns(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"


def check_table(target: str, needed: Sequence[str], found: Collection[str], unfilled: Collection[str]) -> None:
    """Raises SettingsError if an existing table does not have the needed columns.

    - `found`: the columns of the table.
    - `unfilled`: the columns of the table that need a value: they have no default, and are not generated.
    """
    if set(needed) - set(found) or set(unfilled) - set(needed):
        raise SettingsError(
            f"{target} has the columns {format_columns(found)}, but the sink stores {format_columns(needed)}: "
            "declare the columns of the table, or name another table"
        )


FLOATS: Final = frozenset({float, int})
"""The types that a column of floats takes: integers too, if a float holds them exactly."""


class TakenValues(NamedTuple):
    """The values that a column takes besides None.

    - `types`: their types, without subclasses; None if the target itself decides.
    - `nan`: whether it stores NaN.
    - `infinity`: whether it stores infinity.
    - `aware`: True if a time must have a time zone, False if it must have none; None for other types.
    - `converted`: the texts that it turns into numbers; None if there are none.
    - `bits`: the bits of the integers that it stores, including the sign; None if it stores integers of any size.
    - `nul`: whether it stores text with NUL.
    """

    types: frozenset[type] | None
    nan: bool = True
    infinity: bool = True
    aware: bool | None = None
    converted: re.Pattern[str] | None = None
    bits: int | None = None
    nul: bool = True


def check_rows(rows: Sequence[Row], names: Sequence[str], accepted: Sequence[TakenValues]) -> None:
    """Raises RowRefused for the first row with a wrong number of values, or a value that its column does not take."""
    values = list(map(attrgetter("values"), rows))
    if set(map(len, values)) - {len(names)}:
        index = next(index for index, row in enumerate(values) if len(row) != len(names))
        raise RowRefused(f"the row has {len(values[index])} values, but the columns are {format_columns(names)}", index)
    refused: list[tuple[int, str]] = []
    for number, (name, taken) in enumerate(zip(names, accepted, strict=True)):
        found = _refused(list(map(itemgetter(number), values)), taken)
        refused += [(index, f"column {name!r} takes {reason}") for index, reason in found]
    if refused:
        index, reason = min(refused)
        raise RowRefused(f"{reason}: return a value that it takes", index)


def _refused(column: list[Any], taken: TakenValues) -> Iterator[tuple[int, str]]:
    """Yields the indices of values that a column does not take, with the reason; at least the first for each reason."""
    types, kinds = taken.types, set(map(type, column)) - {type(None)}
    if types is not None and (foreign := kinds - types):
        index = next(index for index, value in enumerate(column) if type(value) in foreign)
        yield index, f"{_listed(types)}, but the value is of type {name_type(type(column[index]))}"
    if float in kinds and not (taken.nan and taken.infinity):
        floats = [(i, value) for i, value in enumerate(column) if type(value) is float]
        yield from ((i, "no NaN") for i, value in floats if isnan(value) and not taken.nan)
        yield from ((i, "no infinity") for i, value in floats if isinf(value) and not taken.infinity)
    if int in kinds and taken.bits is not None:
        limit = 2 ** (taken.bits - 1)
        large = (i for i, value in enumerate(column) if type(value) is int and not -limit <= value < limit)
        yield from ((i, f"integers of {taken.bits} bits") for i in large)
    if int in kinds and types == FLOATS:
        large = (i for i, value in enumerate(column) if type(value) is int and not -(2**53) <= value <= 2**53)
        yield from ((i, "float, which does not hold an integer beyond 2**53") for i in large)
    if Decimal in kinds:
        yield from ((i, "no sNaN") for i, value in enumerate(column) if type(value) is Decimal and value.is_snan())
    if str in kinds:
        yield from _refused_texts([(i, value) for i, value in enumerate(column) if type(value) is str], taken)
    if types is not None and taken.aware is not None:
        offsets = [(i, value.utcoffset()) for i, value in enumerate(column) if type(value) in types]
        reason = f"times {'with' if taken.aware else 'without'} a time zone"
        yield from ((i, reason) for i, offset in offsets if (offset is not None) != taken.aware)
        yield from ((i, "UTC offsets of whole seconds") for i, offset in offsets if offset and offset.microseconds)


def _refused_texts(texts: list[tuple[int, str]], taken: TakenValues) -> Iterator[tuple[int, str]]:
    half = "no text with half of a surrogate pair, which UTF-8 cannot encode"
    yield from ((i, half) for i, value in texts if not value.isascii() and _HALF.search(value))
    if not taken.nul:
        yield from ((i, "no text with NUL") for i, value in texts if "\0" in value)
    if (converted := taken.converted) is not None:
        number = "no text that looks like a number, which it would convert to a number"
        yield from ((i, number) for i, value in texts if converted.fullmatch(value))


def _listed(types: Iterable[type]) -> str:
    return " or ".join(sorted(map(name_type, types)))


def check_expected(target: str, stored: Positions, expected: Positions) -> None:
    """Raises StaleWriter if the stored offsets differ from those that the writer expects."""
    if stored == expected:
        return
    differing = sorted(tp for tp in {*stored, *expected} if stored.get(tp) != expected.get(tp))
    shown = ", ".join(f"{tp}: {stored.get(tp, 'none')}, expected {expected.get(tp, 'none')}" for tp in differing[:3])
    raise StaleWriter(f"{target}: another writer has moved the stored offsets ({shown})")


def first_refused(rows: Sequence[Row], accepts: Callable[[Sequence[Row]], bool]) -> int | None:
    """Returns the index of the first row that a target refuses; None if it now refuses none.

    `accepts`: whether the target takes the given first rows. If it refuses the first n rows, it also refuses n + 1.
    """
    index = bisect_left(range(len(rows)), True, key=lambda last: not accepts(rows[: last + 1]))
    return index if index < len(rows) else None
