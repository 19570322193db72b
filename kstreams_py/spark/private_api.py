"""The parts of PySpark that have no public API: its private attributes, and the classes of Spark behind them.

If another release of PySpark lacks one of them, MissingSoftware names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import MissingSoftware

with suppress(ImportError):  # whoever has a session has PySpark
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TESTED: Final = "4.0"
"""The release of PySpark that has all these parts."""


def require(spark: SparkSession) -> None:
    """Raises MissingSoftware if PySpark, or a Spark Connect session, lacks a part that a run of a pipeline uses.

    The parts that a batch of a stream uses exist only in a batch, and are not checked.
    """
    if "connect" in type(spark).__module__:
        raise MissingSoftware("pipelines do not run in a session of Spark Connect: make it with spark.session()")
    rows = spark.range(1)
    explain(rows)
    optimized_plan(rows)
    open_path(spark, "file:///")
    with _needed("Observation", "SparkSession.observationManager"):
        _observations(spark, "ks_required")


def silence(spark: SparkSession, logger: str) -> None:
    """Turns off one logger of Spark's Java process."""
    with _needed("SparkSession._jvm", "Configurator", "Level"):
        java: Any = spark._jvm
        log4j = java.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


def explain(rows: DataFrame) -> str:
    """Returns Spark's formatted plan, as `rows.explain()` prints it: redirecting output would affect other threads."""
    with _needed("SparkContext._jvm", "DataFrame._jdf", "queryExecution", "PythonSQLUtils.explainString"):
        java: Any = rows.sparkSession.sparkContext._jvm
        return str(java.PythonSQLUtils.explainString(rows._jdf.queryExecution(), "formatted"))


def optimized_plan(rows: DataFrame) -> str:
    """Returns Spark's optimized plan, without the parts that the rows do not need."""
    with _needed("DataFrame._jdf", "queryExecution", "optimizedPlan"):
        return str(rows._jdf.queryExecution().optimizedPlan().toString())


def start_observation(name: str, spark: SparkSession, parent: DataFrame) -> Any:
    """Registers an Observation of the next job with `parent.observe(name, ...)`; PySpark's own observes the first job.

    - `parent`: the DataFrame on which `observe` was called, not its result.
    """
    with _needed("SparkSession._jvm", "Observation", "SparkSession._jsparkSession", "observationManager", "_jdf"):
        observation, manager = _observations(spark, name)
        manager.register(observation, parent._jdf)
        return observation


def observed_by_batch(query: StreamingQuery, names: Sequence[str]) -> Mapping[str, Any]:
    """Returns the observations, by name, of the batch that a stream is storing: its progress has them only later."""
    with _needed("StreamingQuery._jsq", "streamingQuery", "lastExecution", "observedMetrics"):
        observed = query._jsq.streamingQuery().lastExecution().observedMetrics()
        return {name: observed.get(name).get() for name in names if observed.contains(name)}


def open_path(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Returns Hadoop's file system of a path, and the path in it."""
    with _needed("SparkContext._jvm", "SparkContext._jsc", "hadoopConfiguration", "org.apache.hadoop.fs.Path"):
        context: Any = spark.sparkContext
        found = context._jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(context._jsc.hadoopConfiguration()), found


def _observations(spark: Any, name: str) -> tuple[Any, Any]:
    """Returns an Observation, and the object that registers it."""
    return spark._jvm.org.apache.spark.sql.Observation(name), spark._jsparkSession.observationManager()


@contextmanager
def _needed(*names: str) -> Iterator[None]:
    """Raises MissingSoftware for a missing attribute, class or method."""
    try:
        yield
    except Py4JJavaError:  # raised by the called method
        raise
    except (AttributeError, TypeError, Py4JError) as error:
        line = str(error).strip().partition("\n")[0]
        raise MissingSoftware(
            f"PySpark {version('pyspark')} lacks one of {', '.join(names)}, which kstreams_py uses ({line}): install "
            f"PySpark {TESTED}: pip install 'pyspark=={TESTED}.*'"
        ) from error
