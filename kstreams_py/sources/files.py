"""The lines and rows of files as a source. Claims are rows in a SQLite file.

The files of a source are read in order, each from its beginning to its end: `kstreams_files` has, for each file, the
position up to which it was claimed. A record before that position without a claim is done. So only records that are
under way or refused have claims, and the claims file stays small. Every 10,000 lines, a position is stored in
`kstreams_file_marks`, so that a line can be found again from there.
"""

from __future__ import annotations

import csv
import glob
import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from kstreams_py.errors import DecodeError, MissingSoftware, SettingsError, SourceUnavailable, did_you_mean
from kstreams_py.graph.source import BadInput, SourceStatus
from kstreams_py.sinks.sqlite import transaction
from kstreams_py.sources import claims, records
from kstreams_py.sources.claims import CLAIMS, LEASE, ClaimedInputs, ClaimsFile, checked_lease, create_tables
from kstreams_py.sources.inspection import inspect_claims, retry_claims
from kstreams_py.sources.passes import LOOK_SECONDS
from kstreams_py.sources.records import CsvRecords, FilePosition, JsonRecords, OpenRecords, ParquetRecords
from kstreams_py.sources.sizes import READ_BYTES, weigh
from kstreams_py.sources.suspects import DELETED

logger = logging.getLogger(__name__)

FORMATS: Final = ("csv", "jsonl", "parquet")

PASS_SECONDS: Final = 10.0
"""The maximum seconds between two looks for new files and lines."""

MARKED_ROWS: Final = 10_000
"""Lines between two stored positions. To find a line again, up to this many lines are read."""

ROW_BITS: Final = 40
"""The bits of a record's number in its key; the bits above are the number of its file."""

OPEN_FILES: Final = 50
"""The maximum number of files that are open, and whose records are claimed together."""

PRINT_BYTES: Final = 4096
"""Bytes at each end of the part of a file that was read; its content is recognized by these."""

_FILES: Final = "kstreams_files"
_MARKS: Final = "kstreams_file_marks"

_COLUMNS: Final = {
    _FILES: ("reader", "file", "path", "rows", "offset", "size", "print", "final"),
    _MARKS: ("reader", "file", "rows", "offset"),
}

_CREATE: Final = f"""
CREATE TABLE IF NOT EXISTS {_FILES} (reader TEXT, file INTEGER, path TEXT NOT NULL, rows INTEGER NOT NULL,
    offset INTEGER NOT NULL, size INTEGER NOT NULL, print BLOB, final INTEGER NOT NULL, PRIMARY KEY (reader, file),
    UNIQUE (reader, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {_MARKS} (reader TEXT, file INTEGER, rows INTEGER, offset INTEGER NOT NULL,
    PRIMARY KEY (reader, file, rows)) WITHOUT ROWID;
"""


@dataclass(frozen=True, init=False)
class Files:
    """The lines of files, including lines that are appended and files that are added later.

    Files are read in the order of their names. Each record is an input: in CSV, a dict of the names in the first row to
    text; in JSON lines, the value of a line; in Parquet, a dict of column to value. A record that cannot be read is
    refused alone, with the reason. A file must keep its name, and only grow: any other change of what was read ends the
    job.

    The claims of all workers, which must run on one machine, are in a SQLite file. With another claims file, all files
    are read again, as other inputs. `kstreams sources list` names refused records by file and line.

    - `paths`: paths or patterns with *, ? and **, relative to where the job runs. Files that end with `.gz` are
      decompressed, by each worker from the beginning. Move them, and Parquet files, into place by renaming them.
    - `format`: "csv", "jsonl" or "parquet". Parquet needs pyarrow: `pip install 'kstreams_py[parquet]'`.
    - `claims`: the path of the SQLite file, on a local disk. It is created.
    - `ends`: nothing more is added: the job ends when all records are done. Without it, a line is read once it has its
      newline, and a row of CSV once its quotes are closed, too.
    - `delimiter`: the character between the fields of CSV.
    - `lease`: seconds after which the claims of a silent worker are taken over.
    """

    paths: tuple[str, ...]
    format: str
    claims: Path
    ends: bool
    delimiter: str
    lease: float

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        format: str,  # noqa: A002 the word of pyarrow and of Spark
        claims: str | Path,
        ends: bool = False,
        delimiter: str = ",",
        lease: float = LEASE,
    ) -> None:
        if format not in FORMATS:
            remedy = did_you_mean(str(format), FORMATS) or f"give one of {', '.join(FORMATS)}"
            raise SettingsError(f"format={format!r} is not a known format: {remedy}")
        if not str(claims):
            raise SettingsError("claims='': give the path of a SQLite file, which is created, such as 'claims.db'")
        seconds = checked_lease(lease)
        if len(delimiter) != 1 or delimiter in '"\r\n\0':
            raise SettingsError(f"delimiter={delimiter!r}: give one character that is neither a quote nor a newline")
        given = (paths,) if isinstance(paths, str | Path) else tuple(paths)
        if not given or not all(map(str, given)):
            raise SettingsError("a source of files has no path: give paths or patterns, such as 'data/*.jsonl'")
        vars(self).update(paths=tuple(str(Path(path)) for path in given), format=format, claims=Path(claims))
        vars(self).update(ends=ends, delimiter=delimiter, lease=seconds)

    def __str__(self) -> str:
        return ", ".join(self.paths)

    def check_software(self) -> None:
        """See NeedsSoftware."""
        if self.format == "parquet":
            try:
                import pyarrow.parquet  # noqa: F401, PLC0415 an extra
            except ImportError:
                remedy = "pip install 'kstreams_py[parquet]'"
                raise MissingSoftware(f"a source of Parquet files needs pyarrow: {remedy}") from None

    def open(self, reader: str) -> ClaimsFile:
        """See Source."""
        self.check_software()
        for path in self.paths:
            if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 a Path raises for some
                remedy = f"name files, or a pattern such as '{Path(path) / '*'}.{self.format}'"
                raise SettingsError(f"{path!r} is a directory, or not a regular file: {remedy}")
            if find_files(path):
                continue
            if self.ends:
                raise SettingsError(f"no file matches {path!r}: correct it, or leave out ends=True to wait for one")
            logger.warning("%s: no file matches yet", path)
        own = self._reader(reader)
        return ClaimsFile(self.claims, own, self.lease, _FileRecords(self, own))

    def inspect(self, reader: str, limit: int) -> SourceStatus:
        """See InspectedSource. The key of a record is shown as its file and its number there."""
        own = self._reader(reader)
        if not self.claims.is_file():
            return SourceStatus()
        return inspect_claims(self.claims, own, limit, partial(_find_places, own))

    def retry(self, reader: str, keys: Collection[str] | None) -> int:
        """See InspectedSource."""
        own = self._reader(reader)
        return retry_claims(self, self.claims, own, keys, partial(_find_places, own))

    def _reader(self, reader: str) -> str:
        """Returns the name under which claims are kept: in another format, a file has other records."""
        return f"{reader} {self.format}" + (f" {self.delimiter!r}" if self.format == "csv" else "")


def _find_places(reader: str, connection: sqlite3.Connection) -> Callable[[int], str]:
    """Returns the function that shows a key as the path of a file and the number of a record."""
    paths = dict[int, str]()
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_FILES,)).fetchone():
        paths |= connection.execute(f"SELECT file, path FROM {_FILES} WHERE reader = ?", (reader,))
    return partial(_show_place, paths)


def _show_place(paths: Mapping[int, str], key: int) -> str:
    """Returns a key as the path of a file and the number of a record. `paths`: by number."""
    return f"{paths.get(key >> ROW_BITS, key >> ROW_BITS)}:{_number_of(key)}"


def find_files(path: str) -> list[str]:
    """Returns the files of a path or pattern."""
    # a file name may look like a pattern
    found = [path] if os.path.lexists(path) else glob.glob(path, recursive=True)  # noqa: PTH207 keeps the name as given
    return [each for each in found if os.path.isfile(each)]  # noqa: PTH113 there may be many


class _Known(NamedTuple):
    """The row of a file in the claims file: see _COLUMNS.

    - `rows`, `offset`: the position up to which it was claimed.
    - `size`, `content`: how many bytes of it are known, and the hash of the first and last ones.
    - `is_final`: whether no bytes may follow.
    """

    rows: int
    offset: int
    size: int
    content: bytes | None
    is_final: int


class _Move(NamedTuple):
    """The claim of records of a file, between the positions of `before` and `after`."""

    file: int
    before: _Known
    after: _Known
    opened: OpenRecords


class _FileRecords(ClaimedInputs):
    """The records of files: see ClaimedInputs. The key of a record is the number of its file, and its number there."""

    forgets_done = True

    def __init__(self, source: Files, reader: str) -> None:
        self._source, self._reader = source, reader
        self._paths: dict[int, str] = {}
        """The paths of the files that were found, by their number."""
        self._left: list[int] = []
        """The files that the current pass over all files has yet to read; the next one is last."""
        self._read: dict[int, tuple[int, ...]] = {}
        """The signatures of the files that were read to their end, as they were then: see _signature."""
        self._opened: tuple[int, tuple[int, ...], OpenRecords] | None = None
        """The file that is being read, with its signature when it was opened."""
        self._closing: list[OpenRecords] = []
        """The files that a pass has left, but whose records may not be decoded yet."""
        self._warned = set[int]()
        self._moves: list[_Move] = []
        """The claims to make of the records of the last `find`."""
        self._has_found = False
        """Whether the current pass has found records."""
        self._passed_at = float("-inf")
        """When the last pass began, and the seconds that it has taken without finding records."""
        self._pass_seconds = 0.0

    def prepare(self, connection: sqlite3.Connection) -> None:
        """See ClaimedInputs."""
        csv.field_size_limit(max(csv.field_size_limit(), records.RECORD_MAX))  # for the whole process
        with transaction(connection):
            create_tables(connection, self._source.claims, _CREATE, _COLUMNS)
            claims_there = "SELECT 1 FROM sqlite_master WHERE name = ?"
            if connection.execute(claims_there, (CLAIMS,)).fetchone() is None:
                # somebody dropped them to read all again. Numbers and contents stay, so a key still means one record
                connection.execute(f"UPDATE {_FILES} SET rows = 0, offset = 0")

    def find(self, connection: sqlite3.Connection, _: str, limit: int) -> list[tuple[int, Any]]:
        """See ClaimedInputs: in passes over all files, in the order of their names."""
        self._release()
        self._moves, self.are_complete = [], False
        now = claims.read_clock()
        until = now + LOOK_SECONDS
        if not self._left:
            # a pass looks at all files: even if there are many, passes take at most a tenth of the time
            if now < self._passed_at + min(10 * self._pass_seconds, PASS_SECONDS):
                return []
            self._passed_at, self._pass_seconds, self._has_found = now, 0.0, False
            self._list_files(connection)
        found, size = list[tuple[int, Any]](), 0
        while self._left and len(found) < limit and size < READ_BYTES and len(self._moves) < OPEN_FILES:
            file = self._left[-1]
            with self._reading(file):
                found += self._look(connection, file, limit - len(found), until)
            # the file's records beyond a limit follow once these are claimed
            if (self._left and self._left[-1] == file) or claims.read_clock() > until:
                break
            size = sum(move.after.offset - move.before.offset for move in self._moves)
        self._has_found |= bool(found)
        self._pass_seconds += 0.0 if found else claims.read_clock() - now
        self.are_complete = self._source.ends and not self._left and not self._has_found
        return found

    def take(self, connection: sqlite3.Connection, found: Sequence[tuple[int, Any]]) -> Sequence[tuple[int, Any]]:
        """See ClaimedInputs: leaves out files whose records another worker has just claimed."""
        moved = f"UPDATE {_FILES} SET rows = ?, offset = ?, size = ?, print = ?, final = ?"
        taken = set[int]()
        for file, before, after, opened in self._moves:
            where = self._reader, file, before.rows
            if connection.execute(f"{moved} WHERE reader = ? AND file = ? AND rows = ?", (*after, *where)).rowcount:
                taken.add(file)
                if opened.can_seek and before.rows // MARKED_ROWS != after.rows // MARKED_ROWS:
                    mark = self._reader, file, after.rows, after.offset
                    connection.execute(f"INSERT OR IGNORE INTO {_MARKS} VALUES (?, ?, ?, ?)", mark)
        return found if len(taken) == len(self._moves) else [each for each in found if each[0] >> ROW_BITS in taken]

    def values(self, connection: sqlite3.Connection, keys: Sequence[int]) -> dict[int, None]:
        """See ClaimedInputs: `load` reads the values."""
        files = {key >> ROW_BITS for key in keys}
        if not files <= self._paths.keys():
            self._read_paths(connection)
        there = {file for file in files if self._is_there(file)}
        return {key: None for key in keys if key >> ROW_BITS in there}

    def name_of(self, key: int) -> str:
        """See ClaimedInputs."""
        return _show_place(self._paths, key)

    def load(self, connection: sqlite3.Connection, found: Sequence[tuple[int, Any]]) -> list[tuple[int, Any, int]]:
        """See ClaimedInputs."""
        again: dict[int, list[int]] = {}
        for key, item in found:
            if item is None:
                again.setdefault(key >> ROW_BITS, []).append(key)
        values = dict[int, Any]()
        for file, keys in again.items():
            with self._reading(file):
                values |= self._read_again(connection, file, keys)
        loaded = list[tuple[int, Any, int]]()
        for key, item in found:
            value = values[key] if item is None else item[0].decode(item[1])
            size = weigh(value) if item is None else item[0].weigh(item[1])
            if isinstance(value, BadInput):
                unit = "row" if self._source.format == "parquet" else "line"
                place = f"{self._paths[key >> ROW_BITS]}, {unit} {_number_of(key)}"
                value = BadInput(DecodeError(f"{place}: {value.error}"))
            loaded.append((key, value, size))
        if self._source.format == "parquet":  # `decode` has read the rows just now
            for file, _, after, opened in self._moves:
                self._check(self._paths[file], opened, after)
        self._moves = []
        return loaded

    def close(self) -> None:
        """See ClaimedInputs."""
        self._release()
        self._moves = []
        if self._opened is not None:
            self._opened[2].close()
            self._opened = None

    def _release(self) -> None:
        """Closes the files that a pass has left."""
        while self._closing:
            self._closing.pop().close()

    def _list_files(self, connection: sqlite3.Connection) -> None:
        """Begins a pass: finds the files, and gives new ones their numbers, in the order of their names."""
        names = set[str]()
        for path in self._source.paths:
            found = find_files(path)
            if not found and self._source.ends:
                raise SourceUnavailable(f"no file matches {path!r} any more: bring the files back", may_return=True)
            names.update(found)
        own = self._source.claims
        for name in names:
            if name.endswith(own.name) and os.path.realpath(name) == os.path.realpath(own):
                raise SettingsError(f"{name!r} has the claims, and matches {str(self._source)!r}: keep them elsewhere")
        if not names <= set(self._paths.values()):
            self._read_paths(connection)
        if new := sorted(names.difference(self._paths.values())):
            self._number_files(connection, new)
        numbers = {path: file for file, path in self._paths.items()}
        self._left = [numbers[name] for name in sorted(names, reverse=True)]

    def _number_files(self, connection: sqlite3.Connection, paths: Sequence[str]) -> None:
        numbered = (
            f"INSERT INTO {_FILES} SELECT ?1, 1 + coalesce(max(file), 0), CAST(?2 AS TEXT), 0, 0, 0, NULL, 0"
            f" FROM {_FILES} WHERE reader = ?1 ON CONFLICT (reader, path) DO NOTHING"
        )
        # if a crash of the machine lost a number, another file would get it, and with it keys that targets have seen
        connection.execute("PRAGMA synchronous = FULL")
        try:
            with transaction(connection):
                connection.executemany(numbered, [(self._reader, os.fsencode(path)) for path in paths])
        finally:
            connection.execute("PRAGMA synchronous = NORMAL")
        self._read_paths(connection)

    def _read_paths(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute(f"SELECT file, path FROM {_FILES} WHERE reader = ?", (self._reader,))
        self._paths = dict(rows.fetchall())

    def _look(self, connection: sqlite3.Connection, file: int, limit: int, until: float) -> list[tuple[int, Any]]:
        """Returns a file's next records with their keys, and notes the claims to make; leaves the file at its end."""
        path = self._paths[file]
        if (signature := _signature(path)) is None or self._read.get(file) == signature:
            self._leave(file)
            return []
        known = self._known(connection, file)
        opened = self._open_at(file, signature, known)
        found = opened.take(known.rows, limit, lambda: claims.read_clock() > until)
        self._check(path, opened, known)
        if found:
            _, rows, offset, _ = found[-1]
            size, content = opened.size_at(offset), known.content
            if size > known.size:
                content = _print(opened.file.fileno(), size)
            after = _Known(rows, offset, max(size, known.size), content, int(known.is_final or opened.is_final))
            self._moves.append(_Move(file, known, after, opened))
        elif opened.is_finished:
            self._read[file] = signature
            self._warn(file, opened)
        if opened.is_finished:
            self._leave(file)
        return [(file << ROW_BITS | each.number, (opened, each.data)) for each in found]

    def _open_at(self, file: int, signature: tuple[int, ...], known: _Known) -> OpenRecords:
        """Returns the open file, which can be read from the known position on."""
        if self._opened is not None:
            number, was, opened = self._opened
            # the buffer may differ from the content of the file now; opening a compressed file again would take long
            same = was == signature if opened.can_seek else was[:2] == signature[:2]
            if number == file and same and opened.reaches(known.rows):
                return opened
            opened.close()
        opened = self._open(self._paths[file], FilePosition(known.rows, known.offset))
        self._opened = file, signature, opened
        return opened

    def _open(self, path: str, start: FilePosition, end: int | None = None) -> OpenRecords:
        is_complete = self._source.ends or end is not None
        if self._source.format == "parquet":
            return ParquetRecords(path, start, is_complete=is_complete)
        if self._source.format == "csv":
            return CsvRecords(path, start, end, self._source.delimiter, is_complete=is_complete)
        return JsonRecords(path, start, end, is_complete=is_complete)

    def _leave(self, file: int) -> None:
        """Leaves a file in this pass. Its records may not be decoded yet."""
        self._left.pop()
        if self._opened is not None and self._opened[0] == file:
            self._closing.append(self._opened[2])
            self._opened = None

    def _warn(self, file: int, opened: OpenRecords) -> None:
        """Warns once of a file that cannot be read further: perhaps no program will ever write what it lacks."""
        if opened.awaited and not self._source.ends and file not in self._warned:
            self._warned.add(file)
            logger.warning("%s: waits for %s", self._paths[file], opened.awaited)

    def _known(self, connection: sqlite3.Connection, file: int) -> _Known:
        asked = f"SELECT rows, offset, size, print, final FROM {_FILES} WHERE reader = ? AND file = ?"
        return _Known(*connection.execute(asked, (self._reader, file)).fetchone())

    def _read_again(self, connection: sqlite3.Connection, file: int, keys: Sequence[int]) -> dict[int, Any]:
        """Returns the values of records that were claimed before, by their keys."""
        path, known, found = self._paths[file], self._known(connection, file), dict[int, Any]()
        asked = f"SELECT max(rows), offset FROM {_MARKS} WHERE reader = ? AND file = ? AND rows < ?"
        numbers: dict[FilePosition, set[int]] = {}
        for number in map(_number_of, keys):
            rows, offset = connection.execute(asked, (self._reader, file, number)).fetchone()
            numbers.setdefault(FilePosition(rows or 0, offset or 0), set()).add(number)
        with suppress(FileNotFoundError):
            for start, wanted in numbers.items():
                # only up to the claimed position, because the file may have ended elsewhere then
                with closing(self._open(path, start, known.offset)) as opened:
                    found |= opened.values(wanted)
                    self._check(path, opened, known)
        return {key: found.get(_number_of(key), BadInput(DecodeError(DELETED))) for key in keys}

    def _check(self, path: str, opened: OpenRecords, known: _Known) -> None:
        """Checks that a file has the known content. Call it after reading: data read before a change is intact.

        Raises SettingsError.
        """
        size = os.fstat(opened.file.fileno()).st_size
        if size < known.size:
            change = f"it has {size} bytes, of which {known.size} were read"
        elif known.content is not None and _print(opened.file.fileno(), known.size) != known.content:
            change = f"some of its first {known.size} bytes are different"
        elif known.is_final and size > known.size:
            change = f"it was read to its end at byte {known.size}, inside a record, and has {size} bytes"
        else:
            return
        raise SettingsError(
            f"{path} has changed since it was read: {change}: restore its content, or remove it and give the new "
            "content another name"
        )

    def _is_there(self, file: int) -> bool:
        path = self._paths[file]
        with self._reading(file):
            if _signature(path) is not None:
                return True
        if not Path(path).parent.exists():
            remedy = "mount it; or make it, if the file was deleted"
            raise SourceUnavailable(f"{path}: its directory is not there: {remedy}", may_return=True)
        return False

    @contextmanager
    def _reading(self, file: int) -> Iterator[None]:
        """Raises SourceUnavailable for errors of the disk in the block, and closes the file that is being read."""
        try:
            yield
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            is_right = isinstance(error, PermissionError)
            remedy = "give this user the right to read it, then start again" if is_right else "check its disk"
            told = f"{self._paths[file]}: {error.strerror or error}: {remedy}"
            raise SourceUnavailable(told, may_return=not is_right) from error


def _number_of(key: int) -> int:
    """Returns the number of a record in its file."""
    return key & ((1 << ROW_BITS) - 1)


def _signature(path: str) -> tuple[int, ...] | None:
    """Returns values that change with a file; None if there is no file."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _print(fd: int, size: int) -> bytes:
    """Returns a hash of the beginning and the end of the first `size` bytes of a file."""
    length = min(PRINT_BYTES, size)
    return blake2b(os.pread(fd, length, 0) + os.pread(fd, length, size - length), digest_size=16).digest()
