"""Parquet files as the target of a sink, published by one manifest."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kstreams_py.errors import MissingSoftware, RowRefused, SettingsError, SinkUnavailable
from kstreams_py.graph.pipelines import Mode, SparkNeeds
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.sinks.columns import (
    FLOATS,
    TakenValues,
    check_expected,
    check_rows,
    format_columns,
    name_type,
    split_columns,
)
from kstreams_py.sinks.directory import CHECKPOINT, Directory, digest_end, reported
from kstreams_py.sinks.manifest import DataFile, Manifest, choose_merged

if TYPE_CHECKING:
    import pyarrow as pa

_DICTIONARY_ROWS: Final = 50_000

_DIGITS: Final = Context(prec=38, traps=[InvalidOperation, Inexact])
_LAST_DIGIT: Final = Decimal("1E-18")
"""The last digit of a decimal, which has 38 digits, 18 of them after the point, as in Spark."""

_TYPES: Final[dict[type, TakenValues]] = {
    str: TakenValues(frozenset({str})),
    int: TakenValues(frozenset({int}), bits=64),
    float: TakenValues(FLOATS),
    bool: TakenValues(frozenset({bool})),
    bytes: TakenValues(frozenset({bytes})),
    Decimal: TakenValues(frozenset({Decimal})),
    datetime.datetime: TakenValues(frozenset({datetime.datetime}), aware=True),
    datetime.date: TakenValues(frozenset({datetime.date})),
}


@dataclass(frozen=True, init=False)
class Parquet:
    """A directory of Parquet files. Needs pyarrow: `pip install 'kstreams_py[parquet]'`.

    `_manifest.json`, which is replaced as a whole, has the names of the published files and the next offsets of the
    inputs. Read the table with `files()`: other files in `_data` are not published yet, or no longer. Small files are
    merged into larger ones as the table grows. Several workers may write to one directory, on a file system with flock.

    - `directory`: created if it is missing.
    - `columns`: a mapping of name to Python type: str, int (64 bits), float, bool, bytes, Decimal (38 digits, 18 of
      them after the point, as in Spark), date, and datetime with a time zone. None for a pipeline, whose rows have
      their own columns.

    Raises SettingsError if the columns are not possible, and if `directory` is a URL.
    """

    directory: Path
    columns: tuple[str, ...]
    types: tuple[type, ...]
    spark_needs: ClassVar = SparkNeeds(makes_files=True)

    def __init__(self, directory: Path | str, *, columns: Mapping[str, type] | None = None) -> None:
        names, types = ((), ()) if columns is None else split_columns(columns, _TYPES)
        if None in types:
            raise SettingsError(f"a Parquet sink needs the types of its columns: columns={{{names[0]!r}: str, ...}}")
        if "://" in str(directory):
            raise SettingsError(
                f"{str(directory)!r} is a URL: give Parquet the path of a directory, or use ks.Delta(...), which takes "
                "URLs"
            )
        vars(self).update(directory=Path(directory), columns=names, types=types)

    @property
    def evidence(self) -> Evidence:
        """The next offsets, which are in the manifest."""
        return Evidence.OFFSETS

    @property
    def pipeline_modes(self) -> Collection[Mode]:
        """All modes."""
        return tuple(Mode)

    @property
    def checkpoint(self) -> str:
        """The URI of a streaming pipeline's checkpoint: Spark's default file system may be another one."""
        return f"file://{Directory(self.directory).path / CHECKPOINT}"

    def __str__(self) -> str:
        return f"{self.directory}"

    def files(self) -> list[Path]:
        """Returns the absolute paths of the published files: the whole table, each row once.

        A reader has an hour to read them. Raises SinkUnavailable if the manifest cannot be read.
        """
        with reported(self):
            directory = Directory(self.directory)
            manifest = directory.read()
            return [directory.data / file.name for file in manifest.files] if manifest is not None else []

    def check(self, rows: Sequence[Row]) -> None:
        """See RowRules. Without pyarrow, the number of digits of a Decimal is not checked."""
        _check_types(self, rows)
        with contextlib.suppress(ImportError):
            import pyarrow as pa  # noqa: PLC0415 an extra

            _to_table(pa, self, rows)

    def check_software(self) -> None:
        """See NeedsSoftware."""
        try:
            import pyarrow.parquet  # noqa: F401, PLC0415 an extra
        except ImportError:
            raise MissingSoftware("a Parquet sink needs pyarrow: pip install 'kstreams_py[parquet]'") from None

    def open(self, consumer: str) -> ParquetConnection:
        """Creates the directory if it is missing. `consumer`: the owner of the stored offsets.

        Raises SinkUnavailable, SettingsError if the directory has other columns, and MissingSoftware without pyarrow.
        """
        return ParquetConnection(self, consumer)

    def inspect(self) -> None:
        """See Inspectable."""
        self.check_software()
        with reported(self):
            _read_manifest(self, Directory(self.directory))


class ParquetConnection:
    """One worker's writer of a directory: see SinkConnection.

    A data file is written before the lock is taken. Under the lock, the manifest is read, compared with the offsets
    that the writer expects, and replaced once the files are on the disk. The kernel releases the lock of a process that
    dies.
    """

    def __init__(self, sink: Parquet, consumer: str) -> None:
        sink.check_software()
        import pyarrow as pa  # noqa: PLC0415 an extra
        from pyarrow import fs, parquet  # noqa: PLC0415

        self._pa, self._parquet, self._disk = pa, parquet, fs.LocalFileSystem()
        self._sink = sink
        self._consumer = consumer
        _to_table(pa, sink, ())  # pyarrow imports pandas with its first array, which must not delay a write
        self._directory = Directory(sink.directory)
        self._data = self._directory.data
        with reported(sink):
            self._directory.prepare()
            with self._directory.locked():
                self._directory.sweep(self._read())

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        """Reads the published next offsets of these partitions."""
        with reported(self._sink):
            return self._stored(self._read(), partitions)

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        """Publishes rows and positions by one manifest; returns how many rows are new, which is all of them."""
        _check_types(self._sink, rows)
        table = _to_table(self._pa, self._sink, rows)
        with reported(self._sink):
            staged = self._stage(table) if rows else None
            try:
                with self._directory.locked():
                    manifest = self._read()
                    check_expected(str(self._sink), self._stored(manifest, {*positions, *expected}), expected)
                    self._publish(manifest, staged, positions)
            except BaseException:
                if staged is not None and staged.name not in {file.name for file in self._read().files}:
                    (self._data / staged.name).unlink(missing_ok=True)
                raise
        return len(rows)

    def close(self) -> None:
        """Ends the threads that sync files."""
        self._directory.close()

    def _publish(self, manifest: Manifest, staged: DataFile | None, positions: Positions) -> None:
        """Replaces the manifest, and merges files if there are enough of one size. Needs the lock."""
        if staged is not None and not (self._data / staged.name).exists():
            raise SinkUnavailable(f"{self._sink}: the writer was frozen until its file was removed", may_return=True)
        written = [] if staged is None else [staged]
        following = manifest.with_write(self._consumer, positions, written)
        merged = choose_merged(following.files)
        if merged:
            read = [self._read_file(file) for file in merged]
            written.append(self._stage(self._pa.concat_tables(read)))
            following = following.with_merge(merged, written[-1])
        self._directory.replace(manifest, following, [self._data / file.name for file in written])
        if merged:
            self._directory.sweep(following)

    def _read_file(self, file: DataFile) -> pa.Table:
        """Returns a published file's rows. Raises SinkUnavailable if the file was replaced."""
        path = self._data / file.name
        if file.digest and digest_end(path) != file.digest:
            raise SinkUnavailable(
                f"{path} is not the file that was published: the directory was changed by hand: restore it, then start "
                "again"
            )
        return self._parquet.ParquetFile(path).read(use_threads=False)

    def _stage(self, table: pa.Table) -> DataFile:
        """Writes a data file, under a name that no manifest has yet."""
        name = f"part-{uuid.uuid4().hex}.parquet"
        # dictionaries save time if values repeat over many rows; for few rows, they double it
        uses_dictionary = table.num_rows >= _DICTIONARY_ROWS
        self._parquet.write_table(table, self._data / name, filesystem=self._disk, use_dictionary=uses_dictionary)
        return DataFile(name, table.num_rows, digest_end(self._data / name))

    def _read(self) -> Manifest:
        return _read_manifest(self._sink, self._directory)

    def _stored(self, manifest: Manifest, partitions: Collection[TopicPartition]) -> Positions:
        stored = manifest.positions.get(self._consumer, {})
        return {tp: stored[tp] for tp in partitions if tp in stored}


def _read_manifest(sink: Parquet, directory: Directory) -> Manifest:
    """Returns the published manifest. Raises SettingsError if it has other columns."""
    declared = _typed(sink)
    manifest = directory.read() or Manifest(declared)
    if manifest.pipeline is not None:
        raise SettingsError(f"{sink} is the table of pipeline {manifest.pipeline['owner']!r}: name another directory")
    if dict(manifest.columns) != declared:
        raise SettingsError(
            f"{sink} has the columns {_shown(manifest.columns)}, but the sink stores {_shown(declared)}: "
            "declare the columns of the directory, or name another directory"
        )
    return manifest


def _typed(sink: Parquet) -> dict[str, str]:
    return dict(zip(sink.columns, map(name_type, sink.types), strict=True))


def _shown(columns: Mapping[str, str]) -> str:
    return format_columns(f"{name} {kind}" for name, kind in columns.items())


def _arrow_type(pa: Any, kind: type) -> Any:
    types = {
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        bytes: pa.binary(),
        Decimal: pa.decimal128(_DIGITS.prec, 18),
        datetime.datetime: pa.timestamp("us", tz="UTC"),
        datetime.date: pa.date32(),
    }
    return types[kind]


def _check_types(sink: Parquet, rows: Sequence[Row]) -> None:
    check_rows(rows, sink.columns, [_TYPES[kind] for kind in sink.types])


def _to_table(pa: Any, sink: Parquet, rows: Sequence[Row]) -> pa.Table:
    """Returns the rows as columns. Raises RowRefused for a value that the type of its column does not hold."""
    schema = pa.schema([(name, _arrow_type(pa, kind)) for name, kind in zip(sink.columns, sink.types, strict=True)])
    columns = zip(*(row.values for row in rows), strict=True) if rows else ((),) * len(schema)
    arrays = [_to_array(pa, sink, list(values), field) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _to_array(pa: Any, sink: Parquet, values: list[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_decimal(field.type):
        values = [*_fit_decimals(sink, values, field.name)]
    try:
        return pa.array(values, field.type)
    except pa.ArrowException as error:
        for index, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except pa.ArrowException as refusal:
                raise RowRefused(f"{sink}: column {field.name!r} does not take the value: {refusal}", index) from error
        raise


def _fit_decimals(sink: Parquet, values: Sequence[Decimal | None], name: str) -> Iterator[Decimal | None]:
    """Yields decimals with 18 digits after the point: given an exponent of -999999999, pyarrow ends the process."""
    for index, value in enumerate(values):
        try:
            yield value if value is None or not value.is_finite() else _DIGITS.quantize(value, _LAST_DIGIT)
        except DecimalException:
            raise RowRefused(
                f"{sink}: column {name!r} does not take the value: it has more than 20 digits before the point, or "
                "more than 18 after it", index
            ) from None  # fmt: skip
