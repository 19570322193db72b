"""Java and Maven jars: finds a Java, resolves the broker's and Spark's jars once into the user's cache.

The resolver is Ivy, as it ships inside the installed PySpark; where jars come from is Ivy's own default. A set of jars
is retrieved into a temporary directory and then renamed, so a directory under `jars/` is whole or not there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

import platformdirs

from kstreams_py.errors import MissingSoftware

KAFKA_VERSION: Final = "4.3.1"
SCALA_VERSION: Final = "2.13"

_OLDEST_JAVA: Final = 17
_PREFERRED_JAVA: Final = (17, 21)  # what Spark 4.0 supports; Kafka takes any from 17 on

Progress = Callable[[str], None]


class Artifact(NamedTuple):
    """One Maven artifact by its coordinates."""

    organisation: str
    name: str
    revision: str

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"


# Kafka declares only the logging interface; without a binding the broker is silent.
_KAFKA: Final = (
    Artifact("org.apache.kafka", f"kafka_{SCALA_VERSION}", KAFKA_VERSION),
    Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
)


def cache_directory() -> Path:
    """The directory in the user's cache that holds all jars; it may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("kstreams_py"))


def find_java() -> Path:
    """The `java` to run: Java 17 or 21 if there is one, else any newer than 17.

    Looks at JAVA_HOME, then PATH, then what the `install-jdk` package left in the home directory, and runs each
    candidate to learn its version. Raises MissingSoftware if none will do.
    """
    versions = {java: _major_version(java) for java in _candidates()}
    usable = [java for java, major in versions.items() if major >= _OLDEST_JAVA]
    preferred = [java for java in usable if versions[java] in _PREFERRED_JAVA]
    if not usable:
        raise MissingSoftware(
            "Java 17 or 21 was not found: run scripts/setup, install it (Debian: apt install openjdk-17-jre-headless) "
            "or set JAVA_HOME to it"
        )
    return (preferred or usable)[0]


def kafka_classpath(progress: Progress | None = None) -> list[Path]:
    """The jars of the embedded broker; fetches them (44 MB) if the cache does not have them.

    `progress` is called with one line of text per step. Raises MissingSoftware if they cannot be had.
    """
    return resolve(_KAFKA, set(), progress)


def spark_jars(progress: Progress | None = None) -> list[Path]:
    """The Kafka and Avro jars that the installed PySpark lacks, for its setting `spark.jars`; fetched if not cached.

    `progress` is called with one line of text per step. Raises MissingSoftware if they cannot be had.
    """
    pyspark = _pyspark_version()
    wanted = (
        Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", pyspark),
        Artifact("org.apache.spark", f"spark-avro_{SCALA_VERSION}", pyspark),
    )
    return resolve(wanted, module_names(_pyspark_jars().glob("*.jar")), progress)


def _candidates() -> Iterable[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    for kept in (Path.home() / ".jdk", Path.home() / ".jre"):
        for pattern in ("*/bin/java", "*/Contents/Home/bin/java"):
            yield from sorted(kept.glob(pattern), reverse=True)


def _major_version(java: Path) -> int:
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_major_version(ran.stderr + ran.stdout) if ran.returncode == 0 else 0


def parse_major_version(text: str) -> int:
    """The major version in the output of `java -version` (1.8 is 8), or 0 if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def _pyspark_version() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        raise MissingSoftware(
            "PySpark is not installed, and the Ivy in it fetches the jars: run pip install 'kstreams_py[spark]'"
        ) from None


def _pyspark_jars() -> Path:
    _pyspark_version()
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingSoftware("PySpark is installed but cannot be imported: run pip install --force-reinstall pyspark")
    return Path(spec.origin).parent / "jars"


def module_names(jars: Iterable[Path]) -> set[str]:
    """Names of jars without their versions: what must not come twice, whichever the version."""
    return {re.sub(r"-\d[\w.\-]*$", "", jar.stem) for jar in jars}


def resolve(wanted: tuple[Artifact, ...], present: set[str], progress: Progress | None) -> list[Path]:
    """Jars of `wanted` and of all they need, but for modules named in `present`."""
    final = cache_directory() / "jars" / "+".join(f"{artifact.name}-{artifact.revision}" for artifact in wanted)
    if not final.is_dir():
        java, ivy = find_java(), _ivy_jar()
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=final.parent) as directory:
            work = Path(directory)
            (work / "ivy.xml").write_text(ivy_module(wanted, present))
            _run_ivy([str(java), "-jar", str(ivy)], work, wanted, progress)
            with contextlib.suppress(OSError):  # another process was faster: its directory is as good
                (work / "jars").rename(final)
    return sorted(final.glob("*.jar"))


def _ivy_jar() -> Path:
    found = sorted(_pyspark_jars().glob("ivy-*.jar"))
    if not found:
        raise MissingSoftware("the installed PySpark has no Ivy jar: run pip install --force-reinstall pyspark")
    return found[-1]


def ivy_module(wanted: Iterable[Artifact], present: Iterable[str]) -> str:
    """An ivy.xml that asks for `wanted` and leaves out every module named in `present`."""
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
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as run:
        for line in run.stdout or ():
            said.append(line.strip())
            step = progress_line(line)
            if progress and step:
                progress(step)
    names = {jar.name for jar in (work / "jars").glob("*.jar")}
    missing = [artifact for artifact in wanted if f"{artifact.name}-{artifact.revision}.jar" not in names]
    if run.returncode or missing:
        log = _keep_log(said)
        raise MissingSoftware(
            f"could not fetch {', '.join(map(str, missing or wanted))}: check this machine's way to Maven's repository "
            f"(a proxy goes into JAVA_TOOL_OPTIONS), then run it again; details in {log}"
        )


def progress_line(line: str) -> str | None:
    """What to tell the user of a line of Ivy's output, or None if it is of no interest."""
    found = re.match(r"\s*found \S+#(\S+) in |downloading \S*/(\S+\.jar) ", line)
    if not found:
        return None
    return f"found {found[1].replace(';', ' ')}" if found[1] else f"downloading {found[2]}"


def _keep_log(lines: list[str]) -> Path:
    log = cache_directory() / "fetch.log"
    log.write_text("\n".join(lines) + "\n")
    return log
