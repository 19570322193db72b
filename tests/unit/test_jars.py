"""embedded/jars.py: names of jars and their resolution, without network and Java."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from kstreams_py.embedded import jars
from kstreams_py.embedded.jars import Artifact, ivy_module, module_names, progress_line


def test_ivy_module_lists_dependencies_and_excludes_present_modules() -> None:
    wanted = [Artifact("org.a", "one", "1.0"), Artifact("org.b", "two", "2.0")]
    assert ivy_module(wanted, {"snappy", "guava"}) == (
        '<ivy-module version="2.0"><info organisation="kstreams_py" module="jars"/><dependencies>'
        '<dependency org="org.a" name="one" rev="1.0" conf="default"/>'
        '<dependency org="org.b" name="two" rev="2.0" conf="default"/>'
        '<exclude module="guava"/><exclude module="snappy"/></dependencies></ivy-module>'
    )


def test_module_names_are_jar_names_without_versions() -> None:
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


def test_jars_in_the_cache_are_used_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_: str(tmp_path))
    cached = tmp_path / "jars" / f"kafka_2.13-{jars.KAFKA_VERSION}+log4j-slf4j-impl-2.25.4" / "a.jar"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert jars.kafka_classpath() == [cached]
