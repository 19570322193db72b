"""The records of one file in order, from any position: lines of JSON, rows of CSV and of Parquet."""

from __future__ import annotations

import bisect
import csv
import gzip
import io
import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from kstreams_py.errors import DecodeError
from kstreams_py.formats.serdes import parse_json
from kstreams_py.graph.source import BadInput
from kstreams_py.printable import count_of, show_error
from kstreams_py.sources.sizes import READ_BYTES, weigh

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_MAX: Final = 16 * 2**20
"""Bytes of the longest record: a line, or the lines of a row of CSV."""

_BUFFER: Final = 128 * 2**10
_BATCH_ROWS: Final = 256
"""Rows of Parquet that are decoded together: the file may store one text of 1 MB once for all of them."""

_SKIPPED: Final = 1_024
"""Records that are skipped between two looks at the clock."""

_BOM: Final = b"\xef\xbb\xbf"


def _bad_input(reason: str) -> BadInput:
    return BadInput(DecodeError(reason))


_TOO_LONG: Final = _bad_input(f"it is longer than {RECORD_MAX >> 20} MB")
_NUL: Final = _bad_input("it has NUL bytes: the file is damaged, or not text in UTF-8")


class FilePosition(NamedTuple):
    """A place between two records.

    - `rows`: how many lines are before it; in Parquet, how many rows.
    - `offset`: how many bytes are before it, decompressed; 0 in Parquet.
    """

    rows: int = 0
    offset: int = 0


class FileRecord(NamedTuple):
    """A record that was found.

    - `number`: the number of its first line in the file; in Parquet, of its row. The first one is 1.
    - `rows`, `offset`: the position after it.
    - `data`: its raw data, for `decode`.
    """

    number: int
    rows: int
    offset: int
    data: Any


class OpenRecords(ABC):
    """An open file, which is read from a position on.

    - `file`: the file on the disk.
    - `is_finished`: whether `take` has returned the last record that the file has now.
    - `is_final`: whether appended bytes could change the records that were read.
    - `awaited`: what the incomplete last record lacks; "" if it lacks nothing, or only a newline.
    """

    can_seek = True
    """Whether reading can begin at any position."""

    def __init__(self, file: IO[bytes], rows: int) -> None:
        self.file = file
        self.is_finished = self.is_final = False
        self.awaited = ""
        self._ahead: list[FileRecord] = []
        """The records that were read after the position of the last `take`."""
        self._from = self._to = rows
        """The number of rows before the position of the last `take`, and before the next record."""
        self._records: Iterator[FileRecord] = iter(())

    def reaches(self, rows: int) -> bool:
        """Returns whether `take` can go on after this many rows."""
        return self._from <= rows and (rows <= self._to or not self.can_seek)

    def take(self, rows: int, limit: int, is_over: Callable[[], bool]) -> list[FileRecord]:
        """Returns up to `limit` records after this many rows. Records that are not claimed can be taken again.

        After an exception, the object cannot be used any more.

        - `is_over`: returns whether the time for skipping records is over; then `take` returns nothing.
        """
        ahead = self._ahead
        del ahead[: bisect.bisect_right(ahead, rows, key=lambda record: record.number)]
        self._from = rows
        if len(ahead) < limit and not self._fill(rows, limit, is_over):
            return []
        return ahead[:limit]

    def _fill(self, rows: int, limit: int, is_over: Callable[[], bool]) -> bool:
        """Reads ahead; returns whether there was time for it."""
        skipped, first = 0, None
        for record in self._records:
            if record.number <= rows:
                skipped += 1
                if skipped % _SKIPPED == 0 and is_over():
                    return False
                continue
            first = record.offset if first is None else first
            self._to = record.rows
            self._ahead.append(record)
            if len(self._ahead) >= limit or record.offset - first > READ_BYTES:
                return True
        self.is_finished = True
        return True

    @abstractmethod
    def size_at(self, offset: int) -> int:
        """Returns how many bytes of the file on the disk are known once it has been read up to an offset."""

    @abstractmethod
    def decode(self, data: Any) -> Any:
        """Returns the value of a record's data, or BadInput."""

    def weigh(self, data: Any) -> int:
        """Returns the bytes of a record that was decoded just now."""
        return weigh(data)

    def values(self, numbers: Collection[int]) -> dict[int, Any]:
        """Returns the values of records after the position, by number. The object cannot be used afterwards."""
        wanted, found = set(numbers), dict[int, Any]()
        for record in self._records:
            if record.number in wanted:
                found[record.number] = self.decode(record.data)
                if len(found) == len(wanted):
                    break
        return found

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


class _TooLong(ValueError):
    """A line is longer than RECORD_MAX, and was skipped. `size`: its bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


class _Lines:
    """The lines of a text, from a position on.

    - `is_complete`: whether the end of the text also ends its last line.
    - `is_final`: whether a line without a newline was read, or another result depends on where the text ends.
    - `end`: the offset at which the text ends; None if it ends with the file.
    """

    def __init__(self, data: Any, end: int | None, *, is_complete: bool) -> None:
        self._data, self._end = data, end
        self.is_complete, self.is_final = is_complete, False
        self.rows = self.offset = 0
        self._returned: list[tuple[bytes, int]] = []

    def seek(self, position: FilePosition) -> None:
        """Goes to a position."""
        self._data.seek(position.offset)
        self.rows, self.offset = position

    def take(self) -> bytes:
        """Returns the next line; `b""` at the end. Skips a line that is too long, and raises _TooLong."""
        if self._returned:
            line, size = self._returned.pop()
        elif self._end is not None and self.offset >= self._end:
            return b""
        else:
            line = self._data.readline(RECORD_MAX + 1)
            size = len(line)
            if line[-1:] != b"\n" and line:
                line, size = self._take_odd(line)
        self.rows += bool(size)
        self.offset += size
        if size > RECORD_MAX:
            raise _TooLong(size)
        return line.removeprefix(_BOM) if self.offset == size else line

    def _take_odd(self, line: bytes) -> tuple[bytes, int]:
        """Returns the next line and its size. `line`: the part that was read, without a newline."""
        size = len(line)
        while size > RECORD_MAX and line[-1:] != b"\n" and (line := self._data.readline(_BUFFER)):
            size += len(line)
        if line[-1:] == b"\n":
            return b"", size
        if not self.is_complete:
            return b"", 0
        self.is_final = True
        return line, size

    def put_back(self, taken: Sequence[tuple[bytes, int]]) -> None:
        """Puts the last lines back, each with its size, to be taken again."""
        self._returned += reversed(taken)
        self.rows -= len(taken)
        self.offset -= sum(size for _, size in taken)


class TextRecords(OpenRecords):
    """The records of a file of lines, which may be compressed by gzip."""

    def __init__(self, path: str, start: FilePosition, end: int | None, *, is_complete: bool) -> None:
        """Opens a file.

        - `start`: where to begin; a compressed file always begins at its start.
        - `end`: the offset up to which it is read; None for all.
        - `is_complete`: nothing more is appended: the last line needs no newline.
        """
        file: Any = Path(path).open("rb", buffering=0)  # noqa: SIM115 `close` closes it
        self.can_seek = not path.endswith(".gz")
        # another buffer around gzip would lose the data that was decompressed before an error
        self._data: Any = io.BufferedReader(file, _BUFFER) if self.can_seek else gzip.GzipFile(fileobj=file)
        self._lines = _Lines(self._data, end, is_complete=is_complete)
        self._is_damaged = False
        start = start if self.can_seek else FilePosition()
        super().__init__(file, start.rows)
        self._records = self._read(start)

    def size_at(self, offset: int) -> int:
        """See OpenRecords. For a compressed file, one more buffer is known; if the end of a file mattered, all is."""
        if self._is_damaged:
            return os.fstat(self.file.fileno()).st_size
        return offset if self.can_seek and not self.is_final else self.file.tell()

    def close(self) -> None:
        """Closes the file."""
        self._data.close()
        super().close()

    def _read(self, start: FilePosition) -> Iterator[FileRecord]:
        rows = 0
        try:
            if (unreadable := self._begin()) is not None:
                rows = unreadable.rows
                yield unreadable
            if start.rows > self._lines.rows:
                self._lines.seek(start)
            for record in self._split():
                rows = record.rows
                yield record
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            if isinstance(error, EOFError) and not self._lines.is_complete:  # the file is being written
                self.awaited = f"what follows: {error}"
                return
            self.is_final = self._is_damaged = True
            reason = f"it cannot be decompressed from here on: {error}"
            # the position is after what was read, so that another reader up to this position finds the error again
            yield FileRecord(rows + 1, rows + 1, self._lines.offset + 1, _bad_input(reason))

    def _begin(self) -> FileRecord | None:
        """Reads the part before the records; returns it as a record if it cannot be read."""
        return None

    def _split(self) -> Iterator[FileRecord]:
        lines = self._lines
        while True:
            try:
                if not (line := lines.take()):
                    return
                number = lines.rows
                if self._is_empty(line):
                    continue
                if (data := self._data_of(line)) is None:
                    return
            except _TooLong:
                number, data = lines.rows, _TOO_LONG
            self.is_final = lines.is_final
            yield FileRecord(number, lines.rows, lines.offset, data)

    @abstractmethod
    def _is_empty(self, line: bytes) -> bool:
        """Returns whether a line is skipped."""

    @abstractmethod
    def _data_of(self, line: bytes) -> Any:
        """Returns the data of the record that begins with a line; None if it has no end yet. Takes its other lines."""


class JsonRecords(TextRecords):
    """The lines of a file, each with a JSON value. Blank lines are skipped."""

    def _is_empty(self, line: bytes) -> bool:
        return line.isspace()

    def _data_of(self, line: bytes) -> Any:
        return line

    def decode(self, data: Any) -> Any:
        """See OpenRecords."""
        if type(data) is BadInput:
            return data
        try:
            return parse_json(data.decode("utf-8", "surrogateescape"))
        except RecursionError:
            return _bad_input("it is not readable JSON: it is nested too deeply")
        except json.JSONDecodeError as error:
            return _bad_input(f"it is not JSON: {error.msg.removesuffix(' at')} at column {error.colno}")
        except ValueError as error:  # NaN, 1e400, or an integer of too many digits
            return _bad_input(f"it is not readable JSON: {show_error(error)}")


class CsvRecords(TextRecords):
    """The rows of a CSV file, by the names in its first row. Empty lines are skipped.

    If a quoted field breaks the rules of CSV, or has no end, only the line in which its row began is refused.
    """

    def __init__(self, path: str, start: FilePosition, end: int | None, delimiter: str, *, is_complete: bool) -> None:
        """See TextRecords."""
        super().__init__(path, start, end, is_complete=is_complete)
        self._delimiter = delimiter
        self._names: list[str] | BadInput = []

    def _begin(self) -> FileRecord | None:
        header = next(self._split(), None)
        if header is None:
            return None
        names = self._fields(header.data)
        if isinstance(names, BadInput):
            self._names = _bad_input(f"the header of its file cannot be read: {names.error}")
            return header  # with other line ends, the header may contain all rows: then none follows
        if (double := _first_double(names)) is not None:
            self._names = _bad_input(f"the header of its file names {double!r} twice")
        else:
            self._names = names
        return None

    def _is_empty(self, line: bytes) -> bool:
        return not line.strip(b"\r\n")

    def _data_of(self, line: bytes) -> Any:
        return self._quoted(line) if b'"' in line else line

    def _quoted(self, first: bytes) -> list[str] | BadInput | None:
        """Returns the fields of the row that begins with a line; None if it has no end yet."""
        taken: list[tuple[bytes, int]] = []
        try:
            return next(csv.reader(self._follow(first, taken), delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            reason = f"it is not CSV: {error}"
        except _TooLong:
            reason = str(_TOO_LONG.error)
        if taken and not taken[-1][1]:
            if not self._lines.is_complete:
                self.awaited = f"the quote that ends a field of the row at line {self._lines.rows - len(taken) + 1}"
                return None
            self._lines.is_final = True
            taken.pop()
        self._lines.put_back(taken)
        return _bad_input(reason)

    def _follow(self, first: bytes, taken: list[tuple[bytes, int]]) -> Iterator[str]:
        """Yields a line and the next ones, which may belong to its row; adds the next ones, and the end, to `taken`."""
        size = len(first)
        yield first.decode("utf-8", "surrogateescape")
        while True:
            try:
                line = self._lines.take()
            except _TooLong as error:
                taken.append((b"", error.size))
                raise
            taken.append((line, len(line)))
            if not line:
                return
            size += len(line)
            if size > RECORD_MAX:
                raise _TooLong(size)
            yield line.decode("utf-8", "surrogateescape")

    def _fields(self, data: Any) -> list[str] | BadInput:
        if not isinstance(data, bytes):
            return _NUL if isinstance(data, list) and any("\0" in field for field in data) else data
        if b"\0" in data:
            return _NUL
        text = data.decode("utf-8", "surrogateescape").rstrip("\r\n")
        if "\r" in text:
            return _bad_input("it is not CSV: it has a carriage return outside of quotes")
        return text.split(self._delimiter)

    def decode(self, data: Any) -> Any:
        """See OpenRecords."""
        if isinstance(self._names, BadInput):
            return self._names
        fields = self._fields(data)
        if isinstance(fields, BadInput):
            return fields
        if len(fields) != len(self._names):
            return _bad_input(
                f"it has {count_of(len(fields), 'field')}, and the header of its file has {len(self._names)}"
            )
        return dict(zip(self._names, fields, strict=True))


class ParquetRecords(OpenRecords):
    """The rows of a Parquet file, read in batches of its row groups."""

    def __init__(self, path: str, start: FilePosition, *, is_complete: bool) -> None:
        """Opens a file.

        - `start`: where to begin.
        - `is_complete`: no program writes the file: if it cannot be opened, it is damaged.
        """
        import pyarrow as pa  # noqa: PLC0415 an extra
        from pyarrow import parquet  # noqa: PLC0415

        super().__init__(Path(path).open("rb"), start.rows)  # noqa: SIM115 `close` closes it
        self.is_final = True
        self._errors = pa.ArrowException, ValueError, OverflowError, OSError, EOFError
        """The exceptions of pyarrow for data that it cannot read or convert."""
        self._first, self._values = 1, list[Any]()
        """The number of the first row of the batch in memory, and its values."""
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        """The later batches in its row group."""
        self._broken: dict[int, tuple[int, BadInput]] = {}
        """By row group, the first row that cannot be read, with the reason."""
        self._short: dict[int, int] = {}
        """The row groups that have fewer rows than the end of the file says, each with the first one that it lacks."""
        self._row_bytes = 0
        """The decoded bytes of a row in memory, on average."""
        self._begins = [0]
        """The number of rows before each row group, and before the end."""
        try:
            self._table = parquet.ParquetFile(self.file)
        except self._errors as error:
            _raise_outage(error)
            self.awaited = f"what makes it a Parquet file: {error}"
            if is_complete:
                self._refuse_all(start, f"its file is not a readable Parquet file: {error}")
            return
        metadata, groups = self._table.metadata, range(self._table.num_row_groups)
        self._begins += accumulate(metadata.row_group(group).num_rows for group in groups)
        if self._begins[-1] != metadata.num_rows:
            counted = f"{metadata.num_rows} rows, and {self._begins[-1]} in its row groups"
            self._refuse_all(start, f"the end of its file counts {counted}")
            return
        self._records = self._number(start.rows)
        if reason := _unreadable_columns(self._table.schema_arrow):
            self._broken = dict.fromkeys(groups, (1, _bad_input(reason)))

    def _refuse_all(self, start: FilePosition, reason: str) -> None:
        """Makes the whole file one bad record."""
        self._begins, self._broken[0] = [0, 1], (1, _bad_input(reason))
        self._records = self._number(start.rows)

    def _number(self, rows: int) -> Iterator[FileRecord]:
        """Yields the records after this many rows, but only the first of the rows that a row group is found to lack."""
        for group, (begin, end) in enumerate(pairwise(self._begins)):
            for number in range(max(begin, rows) + 1, end + 1):
                if number > self._short.get(group, number):
                    break
                yield FileRecord(number, number, 0, number)

    def values(self, numbers: Collection[int]) -> dict[int, Any]:
        """See OpenRecords."""
        return {number: self.decode(number) for number in sorted(numbers) if number <= self._begins[-1]}

    def weigh(self, _: Any) -> int:
        """See OpenRecords."""
        return self._row_bytes

    def take(self, rows: int, limit: int, is_over: Callable[[], bool]) -> list[FileRecord]:
        """See OpenRecords: returns at most the rows that are decoded together with the first one."""
        if rows < self._begins[-1]:
            self.decode(rows + 1)
        decoded = self._first + len(self._values) - rows - 1
        return super().take(rows, min(limit, decoded) if decoded > 0 else limit, is_over)

    def size_at(self, _: int) -> int:
        """See OpenRecords: all bytes are known, because the last ones are an index of the file."""
        return os.fstat(self.file.fileno()).st_size

    def decode(self, data: Any) -> Any:
        """See OpenRecords: reads the row."""
        number: int = data
        if not 0 <= number - self._first < len(self._values):
            group = max(0, bisect.bisect_left(self._begins, number) - 1)
            broken, reason = self._broken.get(group, (number + 1, None))
            if number >= broken:
                return reason
            try:
                self._go_to(group, number)
            except self._errors as error:
                _raise_outage(error)
                # earlier rows are read again from the beginning of the group, if they are asked for
                self._group, unreadable = -1, _bad_input(f"its row group {group} cannot be read: {error}")
                self._broken[group] = self._first, unreadable
                return unreadable
        return self._values[number - self._first]

    def _go_to(self, group: int, number: int) -> None:
        """Reads the batch that has a row."""
        self._first += len(self._values)
        self._values = []
        if group != self._group or number < self._first:
            self._group, self._first = group, self._begins[group] + 1
            self._batches = self._split(self._table.iter_batches(_BATCH_ROWS, row_groups=[group], use_threads=False))
        for batch in self._batches:
            if number < self._first + len(batch):
                self._values = self._to_values(batch)
                return
            self._first += len(batch)
        self._short[group] = self._first
        raise EOFError("it has fewer rows than the end of the file says")

    def _split(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields batches in parts whose values fit into memory."""
        import pyarrow as pa  # noqa: PLC0415 an extra

        for batch in batches:
            if any(map(pa.types.is_dictionary, batch.schema.types)):
                batch.validate(full=True)  # its indexes may point at no value
                columns = [each.dictionary_decode() if hasattr(each, "dictionary") else each for each in batch.columns]
                batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)  # noqa: PLW2901
            self._row_bytes = batch.nbytes // max(len(batch), 1)
            rows = max(1, READ_BYTES // max(self._row_bytes, 1))
            yield from (batch.slice(at, rows) for at in range(0, len(batch), rows))

    def _to_values(self, batch: pa.RecordBatch) -> list[Any]:
        schema = _in_microseconds(batch.schema)
        try:
            batch.validate(full=True)  # otherwise a time after the end of its day would become one within the day
            return [*batch.cast(schema).to_pylist()]
        except self._errors:
            # a slice of a list has the values of the other rows, which are cast as well
            return [self._to_value(batch.take([at]), schema) for at in range(len(batch))]

    def _to_value(self, row: pa.RecordBatch, schema: pa.Schema) -> Any:
        try:
            row.validate(full=True)
            return row.cast(schema).to_pylist()[0]
        except self._errors as error:  # such as a timestamp with nanoseconds
            return _bad_input(f"it has a value that Python cannot represent: {error}")


def _in_microseconds(schema: pa.Schema) -> pa.Schema:
    """Returns a schema with microseconds instead of nanoseconds, which Python's times cannot hold.

    Otherwise a timestamp would keep its nanoseconds only if pandas is installed, because pyarrow then uses its types.
    """
    import pyarrow as pa  # noqa: PLC0415 an extra

    def fitted(field: pa.Field) -> pa.Field:
        kind, types = field.type, pa.types
        if types.is_timestamp(kind) and kind.unit == "ns":
            return field.with_type(pa.timestamp("us", kind.tz))
        if types.is_time64(kind) and kind.unit == "ns":
            return field.with_type(pa.time64("us"))
        if types.is_duration(kind) and kind.unit == "ns":
            return field.with_type(pa.duration("us"))
        if types.is_struct(kind):
            return field.with_type(pa.struct([fitted(kind.field(at)) for at in range(kind.num_fields)]))
        if types.is_map(kind):
            return field.with_type(pa.map_(fitted(kind.key_field), fitted(kind.item_field)))
        if types.is_fixed_size_list(kind):
            return field.with_type(pa.list_(fitted(kind.value_field), kind.list_size))
        if types.is_list(kind) or types.is_large_list(kind):
            make = pa.list_ if types.is_list(kind) else pa.large_list
            return field.with_type(make(fitted(kind.value_field)))
        if types.is_dictionary(kind):
            return fitted(field.with_type(kind.value_type))
        return field

    return pa.schema([fitted(field) for field in schema], schema.metadata)


def _unreadable_columns(schema: pa.Schema) -> str:
    """Returns why no row of a file can be read; "" if rows can."""
    if (double := _first_double(schema.names)) is not None:
        return f"its file has the column {double!r} twice"
    for field in schema:
        kind = str(field.type)
        if "list_view<" in kind and "[ns" in kind:  # pyarrow 26 loses values of views as it converts them
            return f"its column {field.name!r} has the type {kind}, whose nanoseconds cannot be converted"
    return ""


def _raise_outage(error: Exception) -> None:
    """Raises an error of the disk. For unreadable data, pyarrow raises the same class of error, without an errno."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _first_double(names: Sequence[str]) -> str | None:
    """Returns the first name that occurs more than once; None if none does."""
    return next((name for number, name in enumerate(names) if name in names[:number]), None)
