"""spark/archiving.py, and sessions that map the archive of Spark's classes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kstreams_py.errors import MissingSoftware
from kstreams_py.spark import archiving, sessions

MAPPED: Final = """
from pathlib import Path
from kstreams_py.spark import session

spark = session()
assert spark.range(3).count() == 3
process = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
print(Path(f"/proc/{process}/maps").read_text())
spark.stop()
"""


class Executed(Exception):
    """In place of spark-submit."""


def execute(*_: object) -> None:
    raise Executed


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a script that says that it is Java 17, with an archive of its own classes."""
    home = tmp_path / "jdk"
    for directory in ("bin", "lib/server"):
        (home / directory).mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def driver_options(monkeypatch: pytest.MonkeyPatch, given: str | None) -> str:
    """The options that spark-submit gets for the driver's JVM."""
    monkeypatch.setattr(os, "execv", execute)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", given or "")
    if given is None:
        monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    with pytest.raises(Executed):
        sessions.exec_spark_submit([])
    return os.environ.get("SPARK_SUBMIT_OPTS", "")


def test_driver_maps_the_archive_that_exists_beside_the_options_that_were_given(
    java_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "classes.jsa"
    monkeypatch.setattr(sessions, "path_of_archive", lambda: archive)
    assert driver_options(monkeypatch, None) == ""
    assert driver_options(monkeypatch, "-Da=b") == "-Da=b"
    archive.touch()
    ours = f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    assert driver_options(monkeypatch, None) == ours
    assert driver_options(monkeypatch, "-Da=b") == f"{ours} -Da=b"
    for own in ("-XX:SharedArchiveFile=own.jsa", "-Da=b -XX:ArchiveClassesAtExit=own.jsa"):
        assert driver_options(monkeypatch, own) == own


def test_archive_has_another_path_for_another_spark_and_needs_a_java(
    java_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = sessions.path_of_archive()
    assert installed == sessions.path_of_archive()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.0.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert sessions.path_of_archive() != installed
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingSoftware, match=rf"^{tmp_path}/bin/java does not exist: install it"):
        sessions.path_of_archive()


@pytest.mark.parametrize(
    ("seconds", "module", "message"),
    [(0.0, "site", "within 0 s"), (60.0, "no_such_module", ".*No module named no_such_module")],
)
def test_archive_that_is_not_written_leaves_nothing_and_tells_why(
    java_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, module: str, message: str
) -> None:
    archive = tmp_path / "classes" / "spark.jsa"
    monkeypatch.setattr(archiving, "path_of_archive", lambda: archive)
    monkeypatch.setattr(archiving, "ARCHIVE_SECONDS", seconds)
    monkeypatch.setattr(archiving, "_PROGRAM", module)
    with pytest.raises(MissingSoftware, match=rf"^Java did not write {archive}:? {message}$"):
        archiving.archive_classes()
    assert list(archive.parent.iterdir()) == []


@pytest.mark.long
def test_archive_is_written_once_and_mapped_by_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "classes" / "spark.jsa"
    monkeypatch.setattr(archiving, "path_of_archive", lambda: archive)
    archiving.archive_classes()
    written = archive.stat()
    archiving.archive_classes()
    assert archive.stat() == written
    options = f"-XX:SharedArchiveFile={archive}"
    done = subprocess.run(
        [sys.executable, "-c", MAPPED], env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(rf"{re.escape(str(archive))}$", done.stdout, flags=re.MULTILINE)
