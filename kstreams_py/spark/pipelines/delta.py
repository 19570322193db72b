"""A table of Delta Lake as the table of a pipeline: a run is stored as metadata of the commit that has its rows.

Each write has the number of its run (Delta's idempotent writes, `txnAppId` and `txnVersion`). If that number was
committed meanwhile, Delta refuses the write or leaves it out: only one of two simultaneous runs is published.
https://docs.delta.io/latest/delta-batch.html#idempotent-table-writes-in-foreachbatch
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import MissingSoftware, SettingsError, SinkUnavailable, StaleWriter
from kstreams_py.graph.loading import show_reset
from kstreams_py.graph.pipelines import Mode, Pipeline
from kstreams_py.sinks import Delta
from kstreams_py.spark.pipelines.frames import UNTAKEN, check_key, compute, find_cause, quote
from kstreams_py.spark.pipelines.runs import Published, check_owner, decode_published
from kstreams_py.spark.private_api import open_path

with suppress(ImportError):  # whoever has a session has PySpark
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_HARMLESS: Final = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "REORG")
"""Operations of others that change no rows."""

_UNUSUAL: Final = re.compile(r"[ ,;{}()\n\t=]")
"""Characters in column names that Delta takes only with column mapping, which older readers lack."""

_LOG: Final = "_delta_log"

_BROKEN: Final = re.compile(
    r"DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_TRUNCATED_TRANSACTION_LOG|JsonParse|_delta_log/\S+json"
)
"""Texts in errors for a log that lacks a commit, or has one that is not JSON."""

_NEWEST: Final = 10
"""The number of commits that are read first: a run is usually the newest one."""

_CONF: Final = "spark.databricks.delta."


class DeltaLakeTable:
    """A table of Delta Lake: see PipelineTarget."""

    def __init__(self, pipeline: Pipeline, target: Delta, session: Callable[[], SparkSession]) -> None:
        """`session`: opens a SparkSession with Delta Lake, which even reading needs."""
        try:
            from delta.tables import DeltaTable  # noqa: PLC0415 an extra
        except ImportError:
            raise MissingSoftware("a table of Delta Lake needs delta-spark: pip install 'kstreams_py[delta]'") from None
        self._tables = DeltaTable
        self._pipeline, self._path, self._session = pipeline, target.path, session

    def read(self) -> Published | None:
        """Reads the newest commit. Raises SettingsError for a table that others have made or changed."""
        published = self._published()
        if published is not None:
            self._check_files()
        return published

    def _published(self) -> Published | None:
        published, others = self._find()
        if others:
            raise SettingsError(
                f"version {others[0].version} of {self._path}, a {others[0].operation}, is not of {self._pipeline}: "
                f"name another table, or begin again with `{show_reset(self._pipeline)}`"
            )
        return published

    def publish(self, rows: DataFrame, previous: Published | None, finish: Callable[[int], Published]) -> Published:
        """Counts the rows, then commits them with the result of `finish` for their count."""
        made = compute(rows)
        count = made.count()
        if self._pipeline.mode is not Mode.APPEND:
            check_key(str(self._pipeline), made, self._pipeline.key)
        published = finish(count)
        if self._published() != previous:
            raise self._overtaken()
        spark = rows.sparkSession
        with self._reported(), _committing(spark, published):
            self._write(spark, made, is_new=previous is None)
        if self._published() != published:
            raise self._overtaken()
        return published

    def table(self, spark: SparkSession) -> DataFrame:
        """Returns the published rows."""
        if self.read() is None:
            raise SettingsError(f"{self._pipeline} has not run yet: run it first")
        return spark.read.format("delta").load(self._path)

    def reset(self) -> None:
        """Deletes the directory."""
        published, others = self._find()
        if published is None and others:
            raise SettingsError(f"{self._path} is a table that no pipeline has made: name another one")
        check_owner(self._pipeline, published)
        files, path = self._files(self._session(), "")
        if files.exists(path) and not files.delete(path, True):
            raise SinkUnavailable(f"{self._path} was not deleted as a whole: delete it by hand")

    def close(self) -> None:
        """Does nothing: nothing is open."""

    @property
    def _literally(self) -> str:
        """The path, escaped for Hadoop where it expects a pattern."""
        return re.sub(r"([][{}*?\\])", r"\\\1", self._path)

    def _files(self, spark: SparkSession, name: str) -> tuple[Any, Any]:
        """Returns Hadoop's file system of the table, and a path in it."""
        return open_path(spark, f"{self._path}/{name}")

    def _has_log(self, spark: SparkSession) -> bool:
        """Returns whether there is a table; isDeltaTable() would return False if the last read of the log had failed.

        A first run that died before its commit leaves an empty log, and files of rows. Raises SettingsError for a table
        whose log was removed.
        """
        files, log = self._files(spark, "_delta_log")
        is_there = files.exists(log)
        if is_there and (self._any(spark, "_delta_log/*.json") or not files.getFileStatus(log).isDirectory()):
            return True
        if self._any(spark, "_delta_log/[0-9_]*.*" if is_there else "*.parquet"):
            raise SettingsError(
                f"the log of {self._path}, {_LOG}, was removed by hand: restore it, or move the directory away: then "
                f"{self._pipeline} begins again"
            )
        return False

    def _any(self, spark: SparkSession, names: str) -> bool:
        """Returns whether there are files with such names."""
        files, pattern = open_path(spark, f"{self._literally}/{names}")
        return len(files.globStatus(pattern) or ()) > 0

    def _check_files(self) -> None:
        """Raises SettingsError if files of the newest version are missing, or if their sizes differ from the log."""
        spark = self._session()
        with self._reported():
            found = self._find_damage(spark)
            if found and found == self._find_damage(spark):  # otherwise another version was committed meanwhile
                raise SettingsError(
                    f"{self._path}: {found}: the directory was changed by hand: restore it, or begin again with "
                    f"`{show_reset(self._pipeline)}`"
                )

    def _find_damage(self, spark: SparkSession) -> str:
        """Returns how the files differ from the log; "" if they do not. Spark lists them, on any file system."""
        table = self._tables.forPath(spark, self._path)
        (total,) = table.detail().select("sizeInBytes").head() or (0,)
        wanted = {_name(path) for path in table.toDF().inputFiles()}
        listing = spark.read.format("binaryFile").options(recursiveFileLookup="true", pathGlobFilter="*.parquet")
        there = {_name(path): size for path, size in listing.load(self._literally).select("path", "length").collect()}
        if missing := sorted(wanted - there.keys()):
            return f"its file {missing[0]} is missing"
        size = sum(there[name] for name in wanted)
        if size == total:
            return ""
        adds = spark.read.schema("add STRUCT<path STRING, size BIGINT>").json(f"{self._literally}/{_LOG}/*.json")
        logged = {_name(path): size for path, size in adds.where("add IS NOT NULL").select("add.*").collect()}
        changed = sorted(name for name in wanted & logged.keys() if there[name] != logged[name])
        what = f"its file {changed[0]} has" if changed else "its files have"
        return f"{what} a size other than in its log"

    def _find(self) -> tuple[Published | None, list[Row]]:
        """Returns the newest commit of a pipeline, and the commits of others since."""
        spark = self._session()
        with self._reported():
            if not self._has_log(spark):
                return None, []
            table = self._tables.forPath(spark, self._path)
            for limit in (_NEWEST, None):  # the commit of each run contains all runs so far
                history = table.history() if limit is None else table.history(limit)
                commits = history.select("version", "operation", "userMetadata").collect()
                published, others = _newest(commits)
                if published is not None or len(commits) != limit:
                    break
        if published is None:
            others = others or commits[:1]  # a log without a run belongs to another program
        return published, others

    def _write(self, spark: SparkSession, rows: DataFrame, *, is_new: bool) -> None:
        mode, key = self._pipeline.mode, self._pipeline.key
        writer = rows.write.format("delta")
        if any(_UNUSUAL.search(name) for name in rows.columns):
            writer = writer.option("delta.columnMapping.mode", "name")
        if mode is Mode.COMPLETE:
            writer.mode("overwrite").option("overwriteSchema", "true").save(self._path)
        elif mode is Mode.APPEND or is_new:
            writer.mode("append").save(self._path)
        else:
            same = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in key)
            merge = self._tables.forPath(spark, self._path).alias("old").merge(rows.alias("new"), same)
            values: Any = {quote(name): f"new.{quote(name)}" for name in rows.columns}
            merge.whenMatchedUpdate(set=values).whenNotMatchedInsert(values=values).execute()

    def _overtaken(self) -> StaleWriter:
        return StaleWriter(f"{self._pipeline}: another run was published meanwhile: run it again")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raises StaleWriter, MissingSoftware or SinkUnavailable in place of Delta's errors."""
        try:
            yield
        except (PySparkException, Py4JError) as error:
            text = str(error)
            if "Concurrent" in type(error).__name__ or "DELTA_CONCURRENT" in text:
                raise self._overtaken() from error
            if "DELTA_CONFIGURE_SPARK_SESSION" in text or "DATA_SOURCE_NOT_FOUND" in text:
                raise MissingSoftware(
                    "this SparkSession has no Delta Lake: make it with spark.session(**spark.delta_conf())"
                ) from error
            if _BROKEN.search(text):
                raise SettingsError(
                    f"the log of {self._path}, {_LOG}, was changed by hand: restore it, or move the directory away: "
                    f"then {self._pipeline} begins again: {find_cause(text)}"
                ) from error
            if "DELTA_" in text and not UNTAKEN.search(text):  # which reported() handles
                raise SinkUnavailable(f"{self._pipeline}: {self._path}: {find_cause(text)}") from error
            raise


def _newest(commits: Sequence[Row]) -> tuple[Published | None, list[Row]]:
    """Returns the newest commit of a pipeline and others' commits since; without one, all that may change rows."""
    others: list[Row] = []
    for commit in commits:
        if commit.operation in _HARMLESS:  # an automatic operation after a run has the run's metadata
            continue
        with suppress(ValueError):
            return decode_published(json.loads(commit.userMetadata or "")), others
        others.append(commit)
    return None, others


def _name(path: str) -> str:
    """Returns the name of a file, which is unique in the table."""
    return path.rpartition("/")[2]


@contextmanager
def _committing(spark: SparkSession, published: Published) -> Iterator[None]:
    """Sets the metadata and the number of the next commit."""
    conf = {
        f"{_CONF}commitInfo.userMetadata": json.dumps(published.as_content()),
        f"{_CONF}write.txnAppId": published.owner,
        f"{_CONF}write.txnVersion": str(published.last.number),
    }
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in conf:
            spark.conf.unset(name)
