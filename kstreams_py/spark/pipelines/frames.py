"""DataFrames of a pipeline: calls its function, and turns Spark's errors into messages that name the pipeline."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import BrokerUnavailable, GraphError, InputLost, PipelineFailed, RowRefused, SettingsError
from kstreams_py.formats.serdes import Json
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.spark import private_api

with suppress(ImportError):  # whoever has a session has PySpark
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import (
        AnalysisException,
        PySparkAttributeError,
        PySparkException,
        PySparkTypeError,
        PySparkValueError,
    )
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf
    from pyspark.storagelevel import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql import DataFrame as Rows
    from pyspark.sql.streaming.query import StreamingQuery

_LOST: Final = re.compile(r"data may have been lost|out of range|offset was changed")

_UNANSWERED: Final = re.compile(
    r"kafka\.common\.errors\.\w*(?:Timeout|Disconnect|Network)\w*Exception|Cannot fetch record for offset"
)
"""Errors of Spark's Kafka reader after its time-outs."""

_CHANGED: Final = (
    (r"STATE_STORE_\w*(?:SCHEMA|ROW_FORMAT|TYPE_CHANGE)", "the state has other columns: restore the function, declare"),
    ("STREAMING_STATEFUL_OPERATOR_NOT_MATCH", "it has other stateful operations: restore it, declare"),
    # Spark has begun a state in the checkpoint, so that the previous function no longer fits either
    (r"/state/\d+/\d+/\S+ does not exist|CANNOT_LOAD_STATE", "it keeps a state now, which Spark has begun: declare"),
    ("sources in the checkpoint offsets", "it reads another number of topics: restore it, declare"),
)
"""By Spark's error: how a stream's function differs from that in its checkpoint, and how the remedy begins."""

UNTAKEN: Final = re.compile(r"UNSUPPORTED_DATA_TYPE|EMPTY_SCHEMA_NOT_SUPPORTED|COLUMN_CONTAINS_NULL_TYPE|empty group")
"""Texts in a target's errors for columns whose types it lacks."""

_UNRESOLVED: Final = re.compile(r"UNRESOLVED_COLUMN|cannot be resolved|ATTRIBUTE_NOT_SUPPORTED|is not supported")
"""Texts in the errors of a column that the DataFrame lacks."""

_GROUPED: Final = "ks_rows"

OBSERVED_SECONDS: Final = 60.0
"""Seconds that Spark's listener may take; other queries of the session may delay it, and a run to Parquet needs it."""

PLAN_CHARACTERS: Final = 20_000
"""The maximum length of a plan; the rest is not kept."""


def call(pipeline: Pipeline, frames: Sequence[Any]) -> Rows:
    """Returns the rows of a pipeline. Raises GraphError for an unknown column, or if the result is not a DataFrame."""
    try:
        found = pipeline.function(*frames)
    except (AnalysisException, PySparkAttributeError, PySparkTypeError, PySparkValueError) as error:
        remedy = _fields_of_json(pipeline) if _UNRESOLVED.search(str(error)) else ""
        raise GraphError(f"{pipeline}: its function does not fit its topics: {_first_line(error)}{remedy}") from error
    if not isinstance(found, DataFrame):
        raise GraphError(f"{pipeline}: its function returned {type(found).__name__}: return a DataFrame")
    if found.isStreaming is (pipeline.checkpoint is None):
        kind = "a stream" if found.isStreaming else "no stream"
        raise GraphError(f"{pipeline}: its function returned {kind}: return a DataFrame that is made of its arguments")
    return found


def _fields_of_json(pipeline: Pipeline) -> str:
    """Returns how the fields of JSON become columns, for a pipeline that reads JSON; "" for another one."""
    names = [topic.name for topic in pipeline.inputs if isinstance(topic.value, Json)]
    if not names:
        return ""
    return (
        f": the JSON of {', '.join(names)} is one column, value: make its fields columns with "
        'kstreams_py.spark.json_columns(df, "item STRING, quantity INT"), then name them'
    )


def columns_of(rows: Rows) -> dict[str, str]:
    """Returns each column with the name of its type in Spark."""
    return dict(rows.dtypes)


def quote(name: str) -> str:
    """Returns the quoted name of a column, for an expression."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """Returns the column of this name, which may have any characters."""
    return sf.col(quote(name))


def compute(rows: Rows) -> Rows:
    """Computes the rows once, and returns them as they are stored on the disks of Spark's processes.

    If a process dies, the next job fails: computing its rows again may give other rows in other partitions.
    """
    return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


def observe(name: str, rows: Rows, parent: Rows) -> ObservedCounts:
    """Begins to observe the next job that makes these rows.

    - `name`: the name in a call `parent.observe(name, ...)` in their plan.
    - `parent`: the DataFrame on which `observe` was called.

    PySpark's Observation observes the first job, which may be one of the function's own.
    """
    return ObservedCounts(private_api.start_observation(name, rows.sparkSession, parent))


class ObservedCounts:
    """The counts of a job; Spark's listener reports them a few milliseconds after the job."""

    def __init__(self, observation: Any) -> None:
        self._observation = observation

    def wait(self) -> Mapping[str, int] | None:
        """Waits for the counts, and returns them by name; None if the listener does not report them."""
        deadline = time.monotonic() + OBSERVED_SECONDS
        while not self._observation.future().isCompleted():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.005)
        return dict(self._observation.getAsJava())


def evaluate(rows: Rows) -> None:
    """Computes rows for the side effects, such as moving the watermark of a stream."""
    rows.write.format("noop").mode("overwrite").save()


def schema_of(columns: Mapping[str, str]) -> str:
    """Returns the names and Spark types of columns as a schema in Spark's DDL."""
    return ", ".join(f"{quote(name)} {kind}" for name, kind in columns.items())


def explain(rows: Rows) -> str:
    """Returns Spark's formatted plan of the rows before they are computed; cut off after PLAN_CHARACTERS."""
    plan = private_api.explain(rows).strip()
    return plan if len(plan) <= PLAN_CHARACTERS else f"{plan[:PLAN_CHARACTERS]}\n... {len(plan):,} characters in all"


def begin_explaining(rows: Rows) -> Callable[[], str]:
    """Begins to explain rows while the job that makes them runs; returns a function that waits for the plan."""
    found = Future[str]()

    def run() -> None:
        try:
            found.set_result(explain(rows.select("*")))  # a separate plan: the job may change the rows' own
        except Exception as error:
            found.set_exception(error)

    Thread(target=run, name="explaining", daemon=True).start()
    return found.result


def check_key(what: str, rows: Rows, key: Sequence[str]) -> None:
    """Raises RowRefused for a key that is null or not unique."""
    if not key:
        return
    nulls = sf.lit(False)
    for name in key:
        nulls = nulls | column(name).isNull()
    groups = rows.groupBy(*map(column, key)).agg(sf.count("*").alias(_GROUPED))
    found = groups.where(nulls | (sf.col(_GROUPED) > 1)).head()
    if found is not None:
        shown = ", ".join(f"{name}={found[name]!r}" for name in key)
        raise RowRefused(
            f"{what}: {found[_GROUPED]} rows have the key {shown}, which must tell rows apart: group by it, or give "
            "another key=",
            0,
        )


@contextmanager
def reported(pipeline: Pipeline) -> Iterator[None]:
    """Raises PipelineFailed, InputLost or BrokerUnavailable, with the cause or the first line of Spark's error.

    Raises SettingsError for columns that the target does not take, and for a stream whose checkpoint belongs to another
    function: Spark's own text suggests switching its check off.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        changes = (change for pattern, change in _CHANGED if re.search(pattern, text))
        if pipeline.checkpoint is not None and (change := next(changes, None)):
            raise SettingsError(
                f"{pipeline}: its checkpoint {pipeline.checkpoint} belongs to another function: {change} another "
                "pipeline with a target of its own, or begin again: delete the checkpoint, and run `kstreams pipeline "
                "reset`"
            ) from error
        if UNTAKEN.search(text):
            raise SettingsError(
                f"{pipeline}: {pipeline.target} does not take its columns: {find_cause(text)}: return other types"
            ) from error
        if _LOST.search(text):
            raise InputLost(
                f"{pipeline}: records were deleted while it read them: run it again with more retention, or reset it: "
                f"{_first_line(error)}"
            ) from error
        if _UNANSWERED.search(text):
            topics = " or ".join(topic.name for topic in pipeline.inputs)
            raise BrokerUnavailable(
                f"{pipeline}: the broker of {topics} does not answer Spark ({find_cause(text)}): check it, and "
                "run the pipeline again; the last published table stays"
            ) from error
        raise PipelineFailed(f"{pipeline}: Spark failed: {find_cause(text)}; the last published table stays") from error


def start_query(
    rows: Rows, output_mode: str, checkpoint: str, every: float | None, store: Callable[[Rows, int], None]
) -> StreamingQuery:
    """Starts a query that calls `store` with each batch and its number.

    - `output_mode`: Spark's output mode.
    - `every`: seconds between two batches; None for a query that ends when it has read all existing records.
    """
    trigger: dict[str, Any] = {"availableNow": True} if every is None else {"processingTime": f"{every} seconds"}
    writer = rows.writeStream.outputMode(output_mode).option("checkpointLocation", checkpoint)
    return writer.trigger(**trigger).foreachBatch(store).start()


def read_text(rows: Rows, path: str) -> str:
    """Returns the text of a file, on any file system that Spark knows."""
    (row,) = rows.sparkSession.read.text(path, wholetext=True).collect()
    return str(row[0])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].strip()


def find_cause(text: str) -> str:
    """Returns the innermost reason in the text of a Java error, or else its first line."""
    reasons = re.findall(r"^(?:Caused by: )?[\w.]+(?:Exception|Error): (.+)$", text, flags=re.MULTILINE)
    return reasons[-1].strip() if reasons else text.strip().partition("\n")[0]


def query_rows(session: SparkSession, query: str, limit: int) -> Iterator[Mapping[str, Any]]:
    """Yields the first rows of a query, as dicts. Raises SettingsError for a query that does not fit."""
    try:
        rows = session.sql(query).limit(limit)
    except PySparkException as error:
        raise SettingsError(f"the query does not fit: {_first_line(error)}") from None
    for row in rows.collect():
        yield row.asDict(recursive=True)
