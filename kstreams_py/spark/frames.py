"""DataFrames of a pipeline: its function called, and Spark's errors as messages that name the pipeline."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import GraphError, InputLost, PipelineFailed, RowRefused, SettingsError
from kstreams_py.graph.pipelines import Pipeline

with suppress(ImportError):  # whoever has a session has PySpark
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as Rows
    from pyspark.sql import SparkSession

_LOST: Final = re.compile(r"data may have been lost|out of range|offset was changed")

_GROUPED: Final = "ks_rows"

PLAN_CHARACTERS: Final = 20_000
"""The most that is kept of a plan."""


def call(pipeline: Pipeline, frames: Sequence[Any]) -> Rows:
    """The rows of a pipeline. Raises GraphError for an unknown column, and for a result that is no DataFrame."""
    try:
        found = pipeline.function(*frames)
    except AnalysisException as error:
        raise GraphError(f"{pipeline}: its function does not fit its topics: {_first_line(error)}") from error
    if not isinstance(found, DataFrame):
        raise GraphError(f"{pipeline}: its function returned {type(found).__name__}: return a DataFrame")
    if found.isStreaming:
        raise GraphError(
            f"{pipeline}: its function returned a stream: return a DataFrame that is made of its arguments"
        )
    return found


def columns_of(rows: Rows) -> dict[str, str]:
    """The name of Spark's type of each column."""
    return dict(rows.dtypes)


def explain(rows: Rows) -> str:
    """Spark's formatted plan of the rows, as it is before they are computed; cut off after PLAN_CHARACTERS."""
    with redirect_stdout(io.StringIO()) as out:  # Spark only prints it
        rows.explain("formatted")
    plan = out.getvalue().strip()
    return plan if len(plan) <= PLAN_CHARACTERS else f"{plan[:PLAN_CHARACTERS]}\n... {len(plan):,} characters in all"


def check_key(what: str, rows: Rows, key: Sequence[str]) -> None:
    """Raises RowRefused for a key that is null or there twice."""
    if not key:
        return
    nulls = sf.lit(False)
    for name in key:
        nulls = nulls | sf.col(f"`{name}`").isNull()
    groups = rows.groupBy(*(sf.col(f"`{name}`") for name in key)).agg(sf.count("*").alias(_GROUPED))
    found = groups.where(nulls | (sf.col(_GROUPED) > 1)).head()
    if found is not None:
        shown = ", ".join(f"{name}={found[name]!r}" for name in key)
        raise RowRefused(
            f"{what}: {found[_GROUPED]} rows have the key {shown}, which is to tell rows apart: group by it, or give "
            "another key=",
            0,
        )


@contextmanager
def reported(pipeline: Pipeline) -> Iterator[None]:
    """Raises PipelineFailed, or InputLost, with the first line of an error of Spark."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if _LOST.search(text):
            raise InputLost(
                f"{pipeline}: records were deleted while it read them: run it again with more retention, or reset it: "
                f"{_first_line(error)}"
            ) from error
        raise PipelineFailed(f"{pipeline}: Spark failed: {_cause(text)}; the last published table stays") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].strip()


def _cause(text: str) -> str:
    """The innermost reason in the text of an error of Java, otherwise its first line."""
    reasons = re.findall(r"^(?:Caused by: )?[\w.]+(?:Exception|Error): (.+)$", text, flags=re.MULTILINE)
    return reasons[-1].strip() if reasons else text.strip().partition("\n")[0]


def query_rows(session: SparkSession, query: str, limit: int) -> Iterator[Mapping[str, Any]]:
    """The first rows of a query, as dicts. Raises SettingsError for a query that does not fit."""
    try:
        rows = session.sql(query).limit(limit)
    except PySparkException as error:
        raise SettingsError(f"the query does not fit: {_first_line(error)}") from None
    for row in rows.collect():
        yield row.asDict(recursive=True)
