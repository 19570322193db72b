"""Resolves the broker's and Spark's jars from Maven, once, into the user's cache.

The resolver is the Ivy that ships with PySpark, with its default repositories. A set of jars is retrieved into a
temporary directory that is then renamed, so a directory under `jars/` is complete.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs

from kstreams_py.embedded.java import find_java
from kstreams_py.errors import MissingSoftware

KAFKA_VERSION: Final = "4.3.1"
SCALA_VERSION: Final = "2.13"

Progress = Callable[[str], None]


class Artifact(NamedTuple):
    """The coordinates of a Maven artifact."""

    organisation: str
    name: str
    revision: str

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"


# Kafka depends only on the logging interface: without a binding the broker logs nothing
_KAFKA: Final = (
    Artifact("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)


def cache_directory() -> Path:
    """The directory of all jars in the user's cache; it may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("kstreams_py"))


def kafka_classpath(progress: Progress | None = None) -> list[Path]:
    """Returns the jars of the embedded broker; fetches them (44 MB) if they are not cached.

    `progress` is called with a line of text for each step. Raises MissingSoftware if they cannot be fetched.
    """
    return resolve(_KAFKA, set(), progress)


def spark_jars(progress: Progress | None = None) -> list[Path]:
    """Returns Spark's Kafka and Avro jars, for its setting `spark.jars`; fetches them if they are not cached.

    `progress` is called with a line of text for each step. Raises MissingSoftware if they cannot be fetched.
    """
    return resolve(spark_artifacts(), module_names(pyspark_jars().glob("*.jar")), progress)


def spark_artifacts() -> tuple[Artifact, ...]:
    """The artifacts by which the installed PySpark reads Kafka and Avro. Raises MissingSoftware without PySpark."""
    pyspark = _pyspark_version()
    return (
        Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", pyspark),
        Artifact("org.apache.spark", f"spark-avro_{SCALA_VERSION}", pyspark),
    )


def _pyspark_version() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        raise MissingSoftware(
            "PySpark is not installed, and the Ivy in it fetches the jars: run pip install 'kstreams_py[spark]'"
        ) from None


def pyspark_jars() -> Path:
    """The directory of jars in the installed PySpark. Raises MissingSoftware without PySpark."""
    _pyspark_version()
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingSoftware("PySpark is installed but cannot be imported: run pip install --force-reinstall pyspark")
    return Path(spec.origin).parent / "jars"


def module_names(jars: Iterable[Path]) -> set[str]:
    """Names of jars without their versions, by which duplicates are left out."""
    return {re.sub(r"-\d[\w.\-]*$", "", jar.stem) for jar in jars}


def resolve(wanted: tuple[Artifact, ...], present: set[str], progress: Progress | None) -> list[Path]:
    """Returns the jars of `wanted` and of their dependencies, without the modules named in `present`.

    Fetches what is not cached; `progress` is called with a line of text for each step. Raises MissingSoftware.
    """
    final = _directory(wanted)
    if not final.is_dir():
        java, ivy = find_java(), _ivy_jar()
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=final.parent) as directory:
            work = Path(directory)
            (work / "ivy.xml").write_text(ivy_module(wanted, present))
            _run_ivy([str(java), "-jar", str(ivy)], work, wanted, progress)
            with contextlib.suppress(OSError):  # another process was faster: its directory has the same jars
                (work / "jars").rename(final)
    return cached(wanted)


def cached(wanted: tuple[Artifact, ...]) -> list[Path]:
    """Returns the cached jars of `wanted`; none if they were not fetched."""
    return sorted(_directory(wanted).glob("*.jar"))


def _directory(wanted: tuple[Artifact, ...]) -> Path:
    return cache_directory() / "jars" / "+".join(f"{artifact.name}-{artifact.revision}" for artifact in wanted)


def _ivy_jar() -> Path:
    found = sorted(pyspark_jars().glob("ivy-*.jar"))
    if not found:
        raise MissingSoftware("the installed PySpark has no Ivy jar: run pip install --force-reinstall pyspark")
    return found[-1]


def ivy_module(wanted: Iterable[Artifact], present: Iterable[str]) -> str:
    """Returns an ivy.xml that asks for `wanted`, and excludes the modules named in `present`."""
    dependencies = "".join(
        f'<dependency org="{artifact.organisation}" name="{artifact.name}" rev="{artifact.revision}" conf="default"/>'
        for artifact in wanted
    )
    excludes = "".join(f'<exclude module="{name}"/>' for name in sorted(present))
    return (
        '<ivy-module version="2.0"><info organisation="kstreams_py" module="jars"/>'
        f"<dependencies>{dependencies}{excludes}</dependencies></ivy-module>"
    )


def _run_ivy(ivy: list[str], work: Path, wanted: tuple[Artifact, ...], progress: Progress | None) -> None:
    options = ["-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"), "-types", "jar", "bundle"]
    pattern = f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"
    command = [*ivy, *options, "-retrieve", pattern]
    output: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as run:
        for line in run.stdout or ():
            output.append(line.strip())
            step = progress_line(line)
            if progress and step:
                progress(step)
    names = {jar.name for jar in (work / "jars").glob("*.jar")}
    missing = [artifact for artifact in wanted if f"{artifact.name}-{artifact.revision}.jar" not in names]
    if run.returncode or missing:
        log = _keep_log(output)
        raise MissingSoftware(
            f"could not fetch {', '.join(map(str, missing or wanted))}: check this machine's access to Maven's "
            f"repository (set a proxy in JAVA_TOOL_OPTIONS), then run it again; details in {log}"
        )


def progress_line(line: str) -> str | None:
    """Returns the text for the user for a line of Ivy's output; None for a line that shows no progress."""
    found = re.match(r"\s*found \S+#(\S+) in |downloading \S*/(\S+\.jar) ", line)
    if not found:
        return None
    return f"found {found[1].replace(';', ' ')}" if found[1] else f"downloading {found[2]}"


def _keep_log(lines: list[str]) -> Path:
    log = cache_directory() / "fetch.log"
    log.write_text("\n".join(lines) + "\n")
    return log
