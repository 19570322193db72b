"""Parquet files as the table of a pipeline, published by one manifest."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kstreams_py.errors import MissingSoftware, SettingsError, SinkUnavailable, StaleWriter
from kstreams_py.graph.loading import show_reset
from kstreams_py.graph.pipelines import Mode, Pipeline
from kstreams_py.sinks import Parquet
from kstreams_py.sinks.directory import CHECKPOINT, DATA, LOCK, MANIFEST, Directory, digest_end, reported
from kstreams_py.sinks.manifest import DataFile, Manifest, choose_merged
from kstreams_py.spark.pipelines.frames import check_key, column, observe, schema_of
from kstreams_py.spark.pipelines.runs import Published, check_owner, decode_published

with suppress(ImportError):  # whoever has a DataFrame has PySpark
    from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITTEN: Final = "ks_written"


class ParquetTable:
    """A directory of Parquet files: see PipelineTarget.

    Spark writes files that no manifest has yet. Under the lock, the manifest is compared with the one before the run,
    and replaced; it has the names of the files and the cut. Replaced files stay for an hour, for their readers.
    """

    def __init__(self, pipeline: Pipeline, target: Parquet) -> None:
        try:
            from pyarrow import parquet  # noqa: PLC0415 an extra
        except ImportError:
            raise MissingSoftware(
                "a table of Parquet files needs pyarrow: pip install 'kstreams_py[parquet]'"
            ) from None
        self._parquet = parquet
        self._pipeline = pipeline
        self._directory = Directory(target.directory)

    def read(self) -> Published | None:
        """Reads the manifest. Raises SettingsError if the directory was changed by hand, or is a sink's."""
        with reported(self._directory):
            manifest = self._directory.read()
            if manifest is None:
                self._check_new()
                return None
            published = self._published(manifest)
            self._check(manifest.files)
            return published

    def publish(self, rows: DataFrame, previous: Published | None, finish: Callable[[int], Published]) -> Published:
        """Stages the rows, then publishes them with the result of `finish` for their count."""
        spark, mode, key = rows.sparkSession, self._pipeline.mode, self._pipeline.key
        with reported(self._directory):
            self._directory.prepare()
            before = self._directory.read()
            staged = self._stage(rows)
            count = sum(file.rows for file in staged)
            if key and mode is not Mode.APPEND and count:
                check_key(str(self._pipeline), self._read_files(spark, staged), key)
            files = tuple(staged)
            if mode is Mode.APPEND and before is not None:
                files = (*before.files, *staged)
            elif mode is Mode.UPSERT and before is not None and before.files and staged:
                new = self._read_files(spark, staged)
                kept = self._read_files(spark, before.files).join(new.select(*map(column, key)), list(key), "left_anti")
                files = tuple(self._stage(kept.select(*map(column, new.columns)).union(new)))
            elif mode is Mode.UPSERT and before is not None and not staged:
                files = before.files
            published = finish(count)
            if mode is Mode.APPEND:
                files = self._merge(spark, files)
            self._replace(previous, published, files)
        return published

    def table(self, spark: SparkSession) -> DataFrame:
        """Returns the published rows."""
        with reported(self._directory):
            manifest = self._directory.read()
            if manifest is None:
                raise SettingsError(f"{self._pipeline} has not run yet: run it first")
            if not manifest.files:
                return spark.createDataFrame([], schema_of(manifest.columns))
            return self._read_files(spark, manifest.files)

    def reset(self) -> None:
        """Publishes no rows; the old files stay for an hour. Removes the checkpoint of a stream."""
        with reported(self._directory), self._directory.locked():
            manifest = self._directory.read()
            if manifest is not None:
                check_owner(self._pipeline, self._published(manifest))
                self._directory.retract(manifest)
            self._remove_checkpoint()

    def _remove_checkpoint(self) -> None:
        """Removes the whole checkpoint: Spark would use any part that is left, such as the state of other batches."""
        with suppress(FileNotFoundError):
            removed = self._directory.data / f"checkpoint-{uuid.uuid4().hex}"
            (self._directory.path / CHECKPOINT).rename(removed)
            shutil.rmtree(removed)

    def close(self) -> None:
        """Ends the threads that sync files."""
        self._directory.close()

    def _merge(self, spark: SparkSession, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """Returns the files, with one in place of several of the same size, because the next run opens all files."""
        while merged := choose_merged(files):
            made = self._stage(self._read_files(spark, merged).coalesce(1), is_one=True)
            if sum(file.rows for file in made) != sum(file.rows for file in merged):
                raise SinkUnavailable(f"{self._directory}: files that were merged have other rows: run it again")
            files = (*(file for file in files if file not in merged), *made)
        return files

    def _check(self, files: Sequence[DataFile]) -> None:
        """Raises SettingsError for a file that is not the published one; without a digest, only rows are counted."""
        for file in files:
            path = self._directory.data / file.name
            is_published = path.is_file() and (
                digest_end(path) == file.digest if file.digest else self._count(path) == file.rows
            )
            if not is_published:
                raise SettingsError(
                    f"{path} is not the file that was published: the directory was changed by hand: restore it, or "
                    f"begin again with `{show_reset(self._pipeline)}`"
                )

    def _read_files(self, spark: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Returns the rows of files; no file is ignored, whatever the session's settings are."""
        self._check(files)
        strict = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
        return spark.read.options(**strict).parquet(*self._paths(files))

    def _replace(self, previous: Published | None, published: Published, files: tuple[DataFile, ...]) -> None:
        with self._directory.locked():
            current = self._directory.read()
            if (None if current is None else self._published(current)) != previous:
                raise StaleWriter(f"{self._pipeline}: another run was published meanwhile: run it again")
            manifest = Manifest(published.columns, {}, files, published.as_content())
            old = {file.name for file in current.files} if current is not None else set()
            written = [self._directory.data / file.name for file in files if file.name not in old]
            if missing := [path for path in written if not path.exists()]:
                raise SinkUnavailable(f"{missing[0]}: the run was frozen until its files were removed: run it again")
            self._directory.replace(current, manifest, [*written, *{path.parent for path in written}])
            self._directory.sweep(manifest)

    def _published(self, manifest: Manifest) -> Published:
        if manifest.pipeline is None:
            raise SettingsError(
                f"{self._directory} has the rows of a sink: name another directory for {self._pipeline}"
            )
        try:
            return decode_published(manifest.pipeline)
        except ValueError as error:
            raise SinkUnavailable(f"{self._directory.path / MANIFEST}: {error}: restore it") from error

    def _check_new(self) -> None:
        """Raises SettingsError for a directory with files that no pipeline has written."""
        path = self._directory.path
        foreign = sorted({each.name for each in path.glob("*")} - {CHECKPOINT, DATA, LOCK, f"{MANIFEST}.new"})
        if foreign:
            raise SettingsError(
                f"{path} has {foreign[0]!r}, which no pipeline has written: name another directory, or move it away"
            )

    def _stage(self, rows: DataFrame, *, is_one: bool = False) -> Sequence[DataFile]:
        """Writes the rows to files with names that no manifest has, and returns the files; none without rows.

        - `is_one`: each partition becomes one file, however many rows it has.
        """
        directory = self._directory.data / f"run-{uuid.uuid4().hex}"
        counted = rows.observe(_WRITTEN, sf.count(sf.lit(1)).alias(_WRITTEN))
        writer = counted.write.option("maxRecordsPerFile", 0) if is_one else counted.write
        observed = observe(_WRITTEN, counted, rows)
        writer.parquet(_uri(directory))
        found = sorted(directory.glob("part-*.parquet"))
        files = [DataFile(f"{directory.name}/{path.name}", self._count(path), digest_end(path)) for path in found]
        written = observed.wait()
        if written is None or written[_WRITTEN] != sum(file.rows for file in files):
            # executors have their own disks, or a row was counted twice because its process died
            count = "an unknown number of" if written is None else f"{written[_WRITTEN]:,}"
            raise SinkUnavailable(
                f"{directory}: Spark wrote {count} rows, but {sum(file.rows for file in files):,} are there: the "
                "directory must be on a file system that this process and all of Spark's share; if it is, run it again"
            )
        return [file for file in files if file.rows]

    def _count(self, path: Path) -> int:
        try:
            return int(self._parquet.read_metadata(path).num_rows)
        except ValueError:  # pyarrow's error for a file that is not Parquet
            return -1

    def _paths(self, files: Sequence[DataFile]) -> list[str]:
        return [_uri(self._directory.data / file.name) for file in files]


def _uri(path: Path) -> str:
    """Returns the path as a URI: Spark would look for a path without a scheme on its default file system."""
    return f"file://{path}"
