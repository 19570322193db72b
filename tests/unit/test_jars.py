"""Finding Java and naming jars: the parts that touch neither the network nor a real Java."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from kstreams_py.errors import MissingSoftware
from kstreams_py.ports import jars
from kstreams_py.ports.jars import Artifact, find_java, ivy_module, module_names, parse_major_version, progress_line


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java: an empty home, an empty PATH, no JAVA_HOME."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def java_that_says(path: Path, text: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n/bin/echo '{text}' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=3\nopenjdk version "17.0.1" 2021-10-19', 17),
        ("command not found", 0),
        ("", 0),
    ],
)
def test_java_version_is_read_from_what_java_prints(text: str, major: int) -> None:
    assert parse_major_version(text) == major


def test_java_home_comes_before_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(home / "bin" / "java", 'openjdk version "17.0.1"')
    chosen = java_that_says(home / "jdk" / "bin" / "java", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home / "jdk"))
    assert find_java() == chosen


def test_java_that_spark_supports_comes_before_a_newer_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that_says(home / "jdk" / "bin" / "java", 'openjdk version "25.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home / "jdk"))
    chosen = java_that_says(home / ".jdk" / "jdk-17.0.1" / "bin" / "java", 'openjdk version "17.0.1"')
    assert find_java() == chosen


def test_java_newer_than_spark_supports_is_taken_when_alone(home: Path) -> None:
    chosen = java_that_says(home / "bin" / "java", 'openjdk version "25.0.1"')
    assert find_java() == chosen


def test_java_left_by_install_jdk_is_found_where_it_puts_it(home: Path) -> None:
    chosen = java_that_says(home / ".jre" / "jdk-17.0.1-jre" / "Contents" / "Home" / "bin" / "java", 'version "17.0.1"')
    assert find_java() == chosen


@pytest.mark.parametrize(("text", "status"), [('openjdk version "11.0.2"', 0), ('openjdk version "17.0.2"', 1)])
def test_java_that_is_old_or_broken_counts_as_missing(home: Path, text: str, status: int) -> None:
    java_that_says(home / "bin" / "java", text, status)
    with pytest.raises(MissingSoftware) as missing:
        find_java()
    assert str(missing.value) == (
        "Java 17 or 21 was not found: run scripts/setup, install it (Debian: apt install openjdk-17-jre-headless) "
        "or set JAVA_HOME to it"
    )


def test_ivy_module_asks_for_all_and_leaves_out_what_is_present() -> None:
    wanted = [Artifact("org.a", "one", "1.0"), Artifact("org.b", "two", "2.0")]
    assert ivy_module(wanted, {"snappy", "guava"}) == (
        '<ivy-module version="2.0"><info organisation="kstreams_py" module="jars"/><dependencies>'
        '<dependency org="org.a" name="one" rev="1.0" conf="default"/>'
        '<dependency org="org.b" name="two" rev="2.0" conf="default"/>'
        '<exclude module="guava"/><exclude module="snappy"/></dependencies></ivy-module>'
    )


def test_module_names_lose_their_versions_only() -> None:
    names = ["spark-sql_2.13-4.0.0.jar", "jackson-core-2.18.2.jar", "hive-storage-api-2.8.1.jar", "JTransforms-3.1.jar"]
    found = module_names(map(Path, names))
    assert found == {"spark-sql_2.13", "jackson-core", "hive-storage-api", "JTransforms"}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\tfound org.apache.kafka#kafka-clients;4.3.1 in public\n", "found kafka-clients 4.3.1"),
        ("downloading https://example.test/a/b/kafka-clients-4.3.1.jar ...\n", "downloading kafka-clients-4.3.1.jar"),
        ("\t[SUCCESSFUL ] org.jspecify#jspecify;1.0.0!jspecify.jar (147ms)\n", None),
        (".. (3kB)\n", None),
    ],
)
def test_progress_names_the_jar_and_no_host(line: str, shown: str | None) -> None:
    assert progress_line(line) == shown


def test_jars_in_the_cache_are_used_without_java(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_: str(home))
    cached = home / "jars" / f"kafka_2.13-{jars.KAFKA_VERSION}+log4j-slf4j-impl-2.25.4" / "a.jar"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert jars.kafka_classpath() == [cached]
