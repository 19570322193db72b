"""Rows for a sink's target: made from the function's results, and carried among the outputs of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, cast

from kstreams_py.errors import GraphError, did_you_mean
from kstreams_py.graph.functions import show_type
from kstreams_py.graph.sink import Row
from kstreams_py.kafka.contracts import TOPIC, VALUE, Output

ROWS: Final = ""
"""Stands for the topic of an output whose value is a Stored, which goes to the target."""

VALUE_BYTES: Final = 8
"""The size counted for a value that is neither text nor bytes."""


class Stored:
    """A row in place of an output's value. It has no length, so that it is never taken for bytes."""

    __slots__ = ("row",)

    def __init__(self, row: Row) -> None:
        self.row = row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row.delivery_hash)

    def __repr__(self) -> str:
        return f"Stored({self.row})"


class Rows:
    """Makes the rows of one processor's steps."""

    def __init__(self, processor: str, columns: Sequence[str]) -> None:
        """`processor` is the processor's id; `columns` are the columns of its target."""
        self._processor = processor
        self._columns = tuple(columns)

    def of(self, results: Iterable[Any], digest: bytes) -> list[Output]:
        """Returns the rows of the step with this delivery hash. Raises GraphError for a result that is not a row."""
        return [
            cast(Output, (ROWS, Stored(Row(row_hash(digest, number), values)), None, -1, None, None, 0, None))
            for number, values in enumerate(self.values_of(results))
        ]

    def are_rows(self, results: Sequence[Any]) -> bool:
        """Returns whether each result is a tuple with a value for each column, and so a row already."""
        return {*map(type, results)} <= {tuple} and {*map(len, results)} <= {len(self._columns)}

    def values_of(self, results: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        """Returns the values of each row; a result is a row, or a list of rows. Raises GraphError as `of` does."""
        for result in results:
            in_list = type(result) is list
            for row in result if in_list else (result,):
                if row is not None:
                    yield self._checked(row, in_list=in_list)

    def _checked(self, row: Any, *, in_list: bool) -> tuple[Any, ...]:
        columns, what = self._columns, f"processor {self._processor!r} returned"
        if isinstance(row, Mapping):
            if unknown := [name for name in row if name not in columns]:
                close = did_you_mean(str(unknown[0]), columns) or f"its target has {', '.join(columns)}"
                raise GraphError(f"{what} a value for column {unknown[0]!r}: {close}")
            if missing := [name for name in columns if name not in row]:
                raise GraphError(f"{what} no value for column {missing[0]!r}: give one, or None")
            return tuple(row[name] for name in columns)
        if not isinstance(row, tuple):
            listed = " in a list, which is one of rows" if in_list else ""
            raise GraphError(
                f"{what} {show_type(row)}{listed}: return a row, as a tuple or a dict of column to value, a list "
                "of rows, or None for no rows"
            )
        if len(row) != len(columns):
            raise GraphError(f"{what} a row of {len(row)} values for columns {', '.join(columns)}: give one for each")
        return tuple(row)


def row_hash(digest: bytes, number: int) -> bytes:
    """Returns the hash of a row by its number in its step; the first row has the delivery hash of the step."""
    return digest if number == 0 else blake2b(digest + number.to_bytes(8, "big"), digest_size=16).digest()


def split(outputs: Iterable[Output]) -> tuple[list[Row], list[Output]]:
    """Returns the rows among outputs, and the other outputs; each in order."""
    rows: list[Row] = []
    others: list[Output] = []
    for output in outputs:
        if output[TOPIC] == ROWS:
            rows.append(cast(Stored, output[VALUE]).row)
        else:
            others.append(output)
    return rows, others


def size_of(value: Any) -> int:
    """Returns the bytes of an output's value; in a row, VALUE_BYTES for each value that is neither text nor bytes."""
    if isinstance(value, Stored):
        return sum(len(each) if isinstance(each, str | bytes) else VALUE_BYTES for each in value.row.values)
    return 0 if value is None else len(value)
