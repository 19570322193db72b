"""Makes a SparkSession that reads Kafka and Avro, or raises an error with the reason."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from kstreams_py.embedded import class_archive
from kstreams_py.embedded.downloads import Artifact, Progress
from kstreams_py.embedded.jars import (
    SCALA_VERSION,
    cache_directory,
    cached,
    jars_beside_spark,
    pyspark_jars,
    spark_artifacts,
)
from kstreams_py.embedded.java import PREFERRED, SPARK_REMEDY, find_java, major_version
from kstreams_py.errors import MissingSoftware
from kstreams_py.graph.pipelines import SparkNeeds
from kstreams_py.sinks import TABLES, Delta
from kstreams_py.spark.private_api import silence
from kstreams_py.spark.start_output import hidden_start

try:
    from pyspark.sql import SparkSession
except ImportError:
    _HAS_PYSPARK = False
else:
    _HAS_PYSPARK = True
PySparkLogger: Any = None
with contextlib.suppress(ImportError):  # PySpark 3 has none
    from pyspark.logger import PySparkLogger

logger = logging.getLogger(__name__)

JARS: Final = "spark.jars"
PACKAGES: Final = "spark.jars.packages"
OF_DRIVER: Final = "SPARK_SUBMIT_OPTS"
"""The environment variable with options for the driver's JVM, in addition to those in the configuration."""

_PAGES: Final = {
    "spark.ui.enabled": "false",
    # even without its pages, Spark keeps their data: by default for 1,000 queries, 0.07 MB per run
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    # Spark also formats each plan for them, by default in full: a tenth of the CPU time of short runs
    "spark.sql.ui.explainMode": "simple",
}
"""Spark's configuration for its web pages."""

_IVY: Final = {"spark.jars.ivy": str(cache_directory() / "ivy")}
LISTENERS: Final = "spark.sql.queryExecutionListeners"
"""The setting that names a user's listeners. Spark's own listener logs the error of each plan, which is also raised."""

_SET_HOME: Final = "set SPARK_HOME to the directory of a Spark, or unset it"
_INSTALL_AGAIN: Final = "run pip install --force-reinstall pyspark"


def session(
    app: str = "kstreams_py",
    *,
    jars: Sequence[Path] | None = None,
    java: Path | None = None,
    quiet: bool = False,
    **conf: str,
) -> SparkSession:
    """Returns a SparkSession that can read Kafka and Avro; the running one if there is one.

    - `jars`: the Kafka and Avro jars of the installed Spark, as `embedded.jars.spark_jars()` returns them. By default
      the jars that `kstreams jars` has cached; if there are none, Spark fetches them into the cache.
    - `java`: the Java to use if JAVA_HOME is not set. By default the one on PATH, or else the one that
      `embedded.java.find_java` finds.
    - `quiet`: hide what Spark prints while it starts, unless the start fails; after the start, hide all but errors. It
      has no effect in a driver that spark-submit has started.
    - `conf`: further configuration, as in `session(**{"spark.driver.memory": "4g"})`, or the result of `delta_conf()`.

    Runs in two local threads if neither `conf` nor spark-submit sets a master. Raises MissingSoftware without PySpark,
    without a Java on which Spark runs, or with a Spark for another Scala. If `kstreams jars` has archived Spark's
    classes, the session uses the archive.
    """
    require_pyspark()
    _check_scala()
    _choose_java(java)
    hides = quiet and not _is_submitted()
    ours = _defaults() | _packages(jars) | (_hide_log() if hides else {})
    if hides and PACKAGES in ours:
        logger.info("Spark's jars for Kafka are not cached: Spark fetches them; `kstreams jars` caches them")
    if not _has_master(conf):
        here = "127.0.0.1"
        ours |= {"spark.master": "local[2]", "spark.driver.host": here, "spark.driver.bindAddress": here}
    if (ours | conf).get("spark.master", "").startswith("local"):
        # Spark would run Python functions with the python3 on PATH, which may lack installed packages
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name in (JARS, PACKAGES):
        if name in conf and name in ours:
            conf[name] += "," + ours[name]
    _map_classes()
    builder = SparkSession.builder.appName(app)
    for name, value in (ours | conf).items():
        builder = builder.config(name, value)
    try:
        with hidden_start() if hides else contextlib.nullcontext():
            spark = builder.getOrCreate()
        if hides and LISTENERS not in conf:
            with contextlib.suppress(MissingSoftware):  # without it, a wrong plan is logged twice
                silence(spark, "org.apache.spark.sql.util.ExecutionListenerBus")
        return spark
    except Exception as error:
        _check_java(error)
        if PACKAGES in ours:
            raise MissingSoftware(
                f"Spark did not start, with the jars that it fetches by itself ({coordinates()}): fetch them with "
                f"`kstreams jars`: {str(error).strip().partition(chr(10))[0]}"
            ) from error
        raise


def exec_spark_submit(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process with spark-submit, from SPARK_HOME or else from the installed PySpark.

    The driver runs in this Python if PYSPARK_DRIVER_PYTHON is not set. Raises MissingSoftware without PySpark, without
    spark-submit, without a Java, or with a Spark for another Scala.
    """
    require_pyspark()
    _check_scala()
    home = os.environ.get("SPARK_HOME")
    path = (Path(home) if home else pyspark_jars().parent) / "bin" / "spark-submit"
    if not path.is_file():
        raise MissingSoftware(f"{path} does not exist: {_SET_HOME if home else _INSTALL_AGAIN}")
    _choose_java(None)
    if not major_version(java := _java()):
        raise MissingSoftware(f"spark-submit cannot start, because {java} does not run: {SPARK_REMEDY}")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _map_classes()
    sys.stdout.flush()
    os.execv(path, [str(path), *arguments])


def require_pyspark() -> None:
    """Raises MissingSoftware without PySpark."""
    if not _HAS_PYSPARK:
        raise MissingSoftware("PySpark is not installed: run pip install 'kstreams_py[spark]'")


def path_of_archive() -> Path:
    """Returns the path of the archive of Spark's classes for a session's Java, whether it exists or not.

    Raises MissingSoftware without PySpark, or without a Java.
    """
    require_pyspark()
    _choose_java(None)
    java = Path(shutil.which(_java()) or "")
    if not java.is_file():
        raise MissingSoftware(f"{_java()} does not exist: {SPARK_REMEDY}")
    return class_archive.path_of(sorted(_spark_jars().resolve().glob("*.jar")), java)


def coordinates(others: Sequence[Artifact] = ()) -> str:
    """Returns the Maven coordinates of the jars with which the installed Spark reads Kafka and Avro, and of others."""
    return ",".join(map(str, (*spark_artifacts(), *others)))


def delta_conf() -> dict[str, str]:
    """Returns Spark's configuration for Delta Lake, for `session`. Raises MissingSoftware without delta-spark."""
    return conf_for(Delta.spark_needs)


def conf_for(needs: SparkNeeds) -> dict[str, str]:
    """Returns Spark's configuration for a kind of table. Spark fetches jars that are not cached.

    Raises MissingSoftware without the Python package of that kind.
    """
    artifacts = artifacts_for(needs)
    if not artifacts or cached(artifacts):
        return {**needs.conf}
    return {**needs.conf, PACKAGES: ",".join(map(str, artifacts)), **_IVY}


def artifacts_for(needs: SparkNeeds) -> tuple[Artifact, ...]:
    """Returns the jars for a kind of table, besides the jars for Kafka. Raises the same error as `conf_for`."""
    return tuple(Artifact(*coordinates.split(":")) for coordinates in needs.jars())


def table_artifacts() -> list[tuple[Artifact, ...]]:
    """Returns the jars of each kind of table that needs jars and whose Python package is installed."""
    found = list[tuple[Artifact, ...]]()
    for table in TABLES:
        with contextlib.suppress(MissingSoftware):
            found += [artifacts] if (artifacts := artifacts_for(table.spark_needs)) else []
    return found


def table_jars(progress: Progress | None = None) -> list[Path]:
    """Returns the jars of `table_artifacts`; fetches jars that are not cached. See `spark_jars`."""
    return [jar for artifacts in table_artifacts() for jar in jars_beside_spark(artifacts, progress)]


def _defaults() -> dict[str, str]:
    """Returns the configuration that each session gets."""
    return {
        **_PAGES,
        "spark.ui.showConsoleProgress": str(_is_watched()).lower(),
        # by default Spark keeps fetched records for 5 minutes, separately for each run
        "spark.kafka.consumer.fetchedData.cache.timeout": "30s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.globalTempDatabase": "kstreams",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96, the default, loses the time zone
        "spark.sql.shuffle.partitions": "4",
        # the time for Python to fetch Spark's rows: 15 s, the default, is too short on a busy machine
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|jaas|keystore[.]key",
    }


def _hide_log() -> dict[str, str]:
    """Hides PySpark's logs; returns the configuration that hides the log of Spark's Java process."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each connection that ends
    if PySparkLogger is not None:  # they log each error of a plan, which is raised as well, with its Java stack
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    return {"spark.log.level": "ERROR"}


def _packages(jars: Sequence[Path] | None) -> dict[str, str]:
    """Returns Spark's configuration for its jars; Spark fetches jars that are neither given nor cached.

    Cached jars for tables are always included: a later session uses the Java process of the first one.
    """
    jars = cached(spark_artifacts()) if jars is None else jars
    for_tables = [jar for artifacts in table_artifacts() for jar in cached(artifacts)]
    conf = {JARS: ",".join(map(str, [*jars, *for_tables]))} if jars or for_tables else {}
    return conf if jars else {**conf, PACKAGES: coordinates(), **_IVY}


def _has_master(conf: Mapping[str, str]) -> bool:
    """Whether a master is set: in `conf`, by spark-submit, or by its environment variables."""
    submitted = _is_submitted() or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return submitted or "spark.master" in conf or "SPARK_REMOTE" in os.environ


def _is_submitted() -> bool:
    """Whether spark-submit has started this process: Spark's Java process then runs already, with a log of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _check_scala() -> None:
    """Raises MissingSoftware if the Spark in SPARK_HOME is for a different Scala than the Kafka and Avro jars."""
    directory = _spark_jars()
    for jar in directory.glob("scala-library-*.jar"):
        found = jar.stem.removeprefix("scala-library-")
        if not found.startswith(f"{SCALA_VERSION}."):
            raise MissingSoftware(
                f"the Spark in {directory.parent} is for Scala {found}, and its Kafka and Avro jars are for Scala "
                f"{SCALA_VERSION}: unset SPARK_HOME, or set it to a Spark for Scala {SCALA_VERSION}"
            )


def _spark_jars() -> Path:
    """Returns the directory of the jars of the Spark that starts."""
    home = os.environ.get("SPARK_HOME")
    return Path(home, "jars") if home else pyspark_jars()


def _map_classes() -> None:
    """Makes the driver's JVM map the archive of Spark's classes, if there is one and no option names another."""
    given = os.environ.get(OF_DRIVER, "")
    if "-XX:SharedArchiveFile" in given or "-XX:ArchiveClassesAtExit" in given:
        return
    with contextlib.suppress(MissingSoftware, OSError):  # Spark, or `_check_java`, reports what is missing
        ours = class_archive.to_use(path_of_archive())
        os.environ[OF_DRIVER] = " ".join([*ours, given]).strip()


def _choose_java(java: Path | None) -> None:
    """Sets JAVA_HOME, unless it is set, to `java`, or to a Java that `find_java` finds if PATH has none."""
    if java is None and not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        with contextlib.suppress(MissingSoftware):  # `_check_java` raises it with the remedy for Spark
            java = find_java(for_spark=True)
    if java is not None:
        os.environ.setdefault("JAVA_HOME", str(java.resolve().parent.parent))


def _is_watched() -> bool:
    """Whether somebody sees Spark's standard error: it goes to a terminal or a notebook, not to a log."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _java() -> Path:
    """Returns the Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")


def _check_java(error: Exception) -> None:
    """Raises MissingSoftware if Spark did not start because Java is missing or has a version that Spark refuses."""
    java = _java()
    major = major_version(java)
    if not major:
        raise MissingSoftware(
            f"Spark did not start, because {java} does not run; it needs Java 17 or 21: {SPARK_REMEDY}"
        ) from error
    if major not in PREFERRED:
        raise MissingSoftware(
            f"Spark {version('pyspark')} did not start on Java {major} ({java}): set JAVA_HOME to a Java 17 or 21"
        ) from error
