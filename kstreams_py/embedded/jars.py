"""The broker's and Spark's jars in the user's cache, fetched once from Maven.

`jars.toml` beside this file locks the jars: their paths in a Maven repository and their checksums. `scripts/lock-jars`
writes it. Jars that it does not name, such as those of another PySpark, are resolved when they are fetched, and only
over https; their checksums are kept beside them. A set of jars is fetched into a temporary directory that is then
renamed, so a directory under `jars/` is complete. Each process compares the jars with their checksums before it uses
them.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Final

import platformdirs
from filelock import FileLock, Timeout

from kstreams_py.embedded.downloads import REPOSITORY, Artifact, Jar, Progress, digest_of, fetch, repository
from kstreams_py.embedded.downloads import resolve as resolve_artifacts
from kstreams_py.errors import MissingSoftware
from kstreams_py.secrets import redact

logger = logging.getLogger(__name__)

KAFKA_VERSION: Final = "4.3.1"
SCALA_VERSION: Final = "2.13"

SUMS: Final = "SHA256SUMS"
"""The file with the checksums of jars that the lock does not name, in the format of sha256sum."""

_verified: Final = set[Path]()
"""The directories whose jars this process has compared with their checksums."""

# Kafka depends only on the logging interface: without a binding the broker logs nothing
KAFKA: Final = (
    Artifact("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)


def cache_directory() -> Path:
    """Returns the directory of all jars in the user's cache; it may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("kstreams_py"))


def kafka_classpath(progress: Progress | None = None) -> list[Path]:
    """Returns the jars of the embedded broker; fetches them (44 MB) if they are not cached.

    `progress` is called with a line of text for each step. Raises MissingSoftware if they cannot be fetched.
    """
    return resolve(KAFKA, set(), progress)


def spark_jars(progress: Progress | None = None) -> list[Path]:
    """Returns Spark's Kafka and Avro jars, for its setting `spark.jars`; fetches them if they are not cached.

    `progress` is called with a line of text for each step. Raises MissingSoftware if they cannot be fetched.
    """
    return jars_beside_spark(spark_artifacts(), progress)


def jars_beside_spark(wanted: tuple[Artifact, ...], progress: Progress | None = None) -> list[Path]:
    """Returns the jars of `wanted` that PySpark lacks, for its setting `spark.jars`; see `spark_jars`."""
    return resolve(wanted, module_names(pyspark_jars().glob("*.jar")), progress)


def spark_artifacts() -> tuple[Artifact, ...]:
    """Returns the artifacts with which PySpark reads Kafka and Avro. Raises MissingSoftware without PySpark."""
    pyspark = _pyspark_version()
    return (
        Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", pyspark),
        Artifact("org.apache.spark", f"spark-avro_{SCALA_VERSION}", pyspark),
    )


def has_pyspark() -> bool:
    """Returns whether PySpark is installed."""
    try:
        return bool(version("pyspark"))
    except PackageNotFoundError:
        return False


def _pyspark_version() -> str:
    if not has_pyspark():
        raise MissingSoftware(
            "PySpark is not installed, and its version decides on the jars: run pip install 'kstreams_py[spark]'"
        )
    return version("pyspark")


def pyspark_jars() -> Path:
    """Returns the directory of jars in the installed PySpark. Raises MissingSoftware without PySpark."""
    _pyspark_version()
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingSoftware("PySpark is installed but cannot be imported: run pip install --force-reinstall pyspark")
    return Path(spec.origin).parent / "jars"


def module_names(jars: Iterable[Path]) -> set[str]:
    """Returns the names of jars without their versions, by which duplicates are found."""
    return {re.sub(r"-\d[\w.\-]*$", "", jar.stem) for jar in jars}


def resolve(wanted: tuple[Artifact, ...], present: set[str], progress: Progress | None) -> list[Path]:
    """Returns the jars of `wanted` and of their dependencies, without the modules named in `present`.

    Fetches what is not cached, one process at a time; `progress` is called with a line of text for each step. Raises
    MissingSoftware.
    """
    if found := cached(wanted):
        return found
    say = progress or (lambda _: None)
    final = _directory(wanted)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(say):
            if not cached(wanted):
                _fetch(wanted, present, final, say)
    except OSError as error:
        raise MissingSoftware(
            f"{cache_directory()} cannot be written: {error.strerror}: free space, or set XDG_CACHE_HOME to "
            "another directory"
        ) from None
    return cached(wanted)


def _one_at_a_time(say: Progress) -> FileLock:
    """Acquires the lock of the cache, and returns it; calls `say` if it has to wait for another process."""
    lock = FileLock(cache_directory() / "fetching.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another process fetches jars: waiting for it")
        lock.acquire()
    return lock


def _fetch(wanted: tuple[Artifact, ...], present: set[str], final: Path, say: Progress) -> None:
    """Fetches the locked jars of `wanted`, or else the jars to which it resolves, into a new directory."""
    jars = list(_locked(final.name))
    if is_new := not jars:
        names = ", ".join(map(str, wanted))
        if not repository().startswith("https://"):
            raise MissingSoftware(
                f"no checksums of {names} are shipped, and {redact(repository())} could answer anything: use a "
                f"repository with https ({REPOSITORY}), or the version of PySpark in constraints.txt"
            )
        say(f"resolving {names}")
        jars = [jar for jar in resolve_artifacts(wanted) if not module_names([Path(jar.name)]) & present]
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=final.parent) as directory:
        work = Path(directory, "jars")
        work.mkdir()
        fetch(jars, work, say)
        if is_new:
            sums = "".join(f"{digest_of(path)}  {path.name}\n" for path in sorted(work.iterdir()))
            (work / SUMS).write_text(sums, encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)  # an incomplete directory, from which jars were deleted
        work.rename(final)


def cached(wanted: tuple[Artifact, ...]) -> list[Path]:
    """Returns the cached jars of `wanted`; none if they were not fetched, or if a jar was deleted or changed."""
    directory = _directory(wanted)
    sums = _sums(directory)
    found = [directory / name for name in sorted(sums)]
    if not all(path.is_file() for path in found):
        return []
    if found and directory not in _verified:  # once in each process: reading 60 MB takes 60 ms
        if changed := [path.name for path in found if digest_of(path) != sums[path.name]]:
            logger.warning("%s in %s is not what was fetched: it is not used", ", ".join(changed), directory)
            return []
        _verified.add(directory)
    return found


def _sums(directory: Path) -> dict[str, str]:
    """Returns the checksums of a directory's jars by name: the lock's, or else those kept beside the jars."""
    if locked := {jar.name: jar.sha256 or "" for jar in _locked(directory.name)}:
        return locked
    try:
        lines = (directory / SUMS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


@cache
def _locked(name: str) -> tuple[Jar, ...]:
    """Returns the locked jars of a directory; none if the lock does not have it."""
    locked = tomllib.loads((files("kstreams_py.embedded") / "jars.toml").read_text(encoding="utf-8"))
    return tuple(Jar(path, sha256) for path, sha256 in locked.get(name, {}).items())


def _directory(wanted: tuple[Artifact, ...]) -> Path:
    return cache_directory() / "jars" / directory_name(wanted)


def directory_name(wanted: tuple[Artifact, ...]) -> str:
    """Returns the name of the directory of these jars, and of their table in the lock."""
    return "+".join(f"{artifact.name}-{artifact.revision}" for artifact in wanted)
