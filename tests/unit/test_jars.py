"""embedded/jars.py, embedded/downloads.py: the lock, the cache, checksums; with a Maven repository on the loopback."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from kstreams_py.embedded import downloads, jars
from kstreams_py.embedded.downloads import Artifact, Jar
from kstreams_py.embedded.jars import module_names
from kstreams_py.errors import MissingSoftware
from tests.waiting import wait_until

WANTED = (Artifact("org.a", "one", "1.0"),)
PATHS = ("org/a/one/1.0/one-1.0.jar", "org/b/two/2.0/two-2.0.jar")


class Repository:
    """A Maven repository on the loopback: its files, how often each was asked for, and which answers are cut short."""

    def __init__(self) -> None:
        self.files = {f"/{path}": path.encode() * 1000 for path in PATHS}
        self.asked: Counter[str] = Counter()
        self.cut: set[str] = set()
        self.hold = threading.Event()
        self.hold.set()
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.asked[self.path] += 1
                repository.hold.wait(30)
                content = repository.files.get(self.path)
                self.send_response(200 if content is not None else 404)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write((content or b"")[: 100 if self.path in repository.cut else None])
                self.close_connection = True

            def log_message(self, format: str, *_: Any) -> None:  # noqa: A002, the name of the base class
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def locked(self) -> tuple[Jar, ...]:
        return tuple(Jar(path, hashlib.sha256(self.files[f"/{path}"]).hexdigest()) for path in PATHS)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Repository]:
    """A repository whose jars are locked as those of WANTED."""
    found = Repository()
    locked = {jars.directory_name(WANTED): found.locked()}
    monkeypatch.setattr(jars, "_locked", lambda name: locked.get(name, ()))
    monkeypatch.setenv(downloads.REPOSITORY, found.url)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_: str(tmp_path))
    return tmp_path


def cached_files(cache: Path) -> dict[str, bytes]:
    """All files of the cache by their names, its lock left out."""
    return {path.name: path.read_bytes() for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_module_names_are_jar_names_without_versions() -> None:
    names = ["spark-sql_2.13-4.0.0.jar", "jackson-core-2.18.2.jar", "hive-storage-api-2.8.1.jar", "JTransforms-3.1.jar"]
    found = module_names(map(Path, names))
    assert found == {"spark-sql_2.13", "jackson-core", "hive-storage-api", "JTransforms"}


def test_lock_has_the_broker_with_its_own_clients_and_the_jars_of_the_pinned_pyspark() -> None:
    kafka, spark = (jars._locked(jars.directory_name(wanted)) for wanted in (jars.KAFKA, jars.spark_artifacts()))
    assert len(kafka) == 46
    names = {jar.name for jar in kafka}
    # log4j's parent manages an older kafka-clients, with which the broker does not start
    assert {f"kafka_2.13-{jars.KAFKA_VERSION}.jar", f"kafka-clients-{jars.KAFKA_VERSION}.jar"} <= names
    assert len(spark) == 5
    assert all(len(jar.sha256 or "") == 64 for jar in (*kafka, *spark))


def test_locked_jars_are_fetched_once_and_named_without_their_host(cache: Path, repository: Repository) -> None:
    shown: list[str] = []
    first = jars.resolve(WANTED, set(), shown.append)
    assert [path.name for path in first] == ["one-1.0.jar", "two-2.0.jar"]
    assert cached_files(cache) == {path.rpartition("/")[2]: repository.files[f"/{path}"] for path in PATHS}
    assert shown == ["fetched one-1.0.jar", "fetched two-2.0.jar"]
    assert jars.resolve(WANTED, set(), shown.append) == first
    assert set(repository.asked.values()) == {1}


def test_jar_that_was_deleted_from_the_cache_is_fetched_again(cache: Path, repository: Repository) -> None:
    first = jars.resolve(WANTED, set(), None)
    first[0].unlink()
    assert jars.cached(WANTED) == []
    assert jars.resolve(WANTED, set(), None) == first


def test_jar_with_another_checksum_is_refused_and_nothing_is_cached(cache: Path, repository: Repository) -> None:
    wanted = repository.locked()[1].sha256
    repository.files[f"/{PATHS[1]}"] = b"changed on the way"
    with pytest.raises(MissingSoftware) as refused:
        jars.resolve(WANTED, set(), None)
    found = hashlib.sha256(b"changed on the way").hexdigest()
    assert str(refused.value) == (
        f"could not fetch two-2.0.jar from {repository.url}: its sha256 is {found} and must be {wanted}: a proxy or "
        "the repository changed it; use another repository (KSTREAMS_MAVEN_REPOSITORY)"
    )
    assert cached_files(cache) == {}


NETWORK = "check the network (HTTPS_PROXY; another repository: KSTREAMS_MAVEN_REPOSITORY), then try again"


def test_download_that_ends_early_is_no_jar(cache: Path, repository: Repository) -> None:
    repository.cut.add(f"/{PATHS[0]}")
    with pytest.raises(MissingSoftware) as refused:
        jars.resolve(WANTED, set(), None)
    assert str(refused.value) == (
        f"could not fetch one-1.0.jar from {repository.url}: the connection ended before the file did: {NETWORK}"
    )
    assert cached_files(cache) == {}
    repository.cut.clear()
    assert len(jars.resolve(WANTED, set(), None)) == 2


def test_missing_jar_is_named_with_the_status(cache: Path, repository: Repository) -> None:
    del repository.files[f"/{PATHS[1]}"]
    with pytest.raises(MissingSoftware, match=r"two-2\.0\.jar from .*: HTTP status 404: check the network"):
        jars.resolve(WANTED, set(), None)


def test_repository_that_does_not_answer_is_named_without_its_password(
    cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(downloads.REPOSITORY, "http://alice:sesame@127.0.0.1:9/maven")
    with pytest.raises(MissingSoftware) as refused:
        jars.resolve(WANTED, set(), None)
    assert str(refused.value) == (
        "could not fetch one-1.0.jar from http://***@127.0.0.1:9/maven: no connection to the repository: " + NETWORK
    )


def test_repository_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(downloads.REPOSITORY, "/tmp/maven")
    with pytest.raises(MissingSoftware, match="KSTREAMS_MAVEN_REPOSITORY=/tmp/maven is not a URL"):
        downloads.repository()


def test_two_that_fetch_at_once_wait_for_one_another_and_fetch_once(cache: Path, repository: Repository) -> None:
    waits = threading.Event()
    repository.hold.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(jars.resolve, WANTED, set(), None)
        wait_until(lambda: bool(repository.asked), "the first one downloads")

        def notice(line: str) -> None:
            assert line == "another process fetches jars: waiting for it"
            waits.set()

        second = pool.submit(jars.resolve, WANTED, set(), notice)
        assert waits.wait(30)
        repository.hold.set()
        assert first.result(30) == second.result(30)
    assert set(repository.asked.values()) == {1}


UNLOCKED = (Artifact("org.a", "one", "2.0"),)


@pytest.fixture
def unlocked(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository that is taken for one with https, whose jars the lock does not have."""
    monkeypatch.setattr(jars, "resolve_artifacts", lambda _: [Jar(path) for path in PATHS])
    monkeypatch.setattr(jars, "repository", lambda: "https://repository.example")
    return repository


def test_jars_that_are_not_locked_are_checked_by_the_repositorys_own_checksum(
    cache: Path, unlocked: Repository
) -> None:
    with pytest.raises(MissingSoftware, match=r"one-1\.0\.jar from .*: the repository has no checksum of it"):
        jars.resolve(UNLOCKED, set(), None)
    for path in PATHS:
        content = unlocked.files[f"/{path}"]
        unlocked.files[f"/{path}.sha1"] = f"{hashlib.sha1(content).hexdigest()}  {path}".encode()
    found = jars.resolve(UNLOCKED, {"two"}, None)
    assert [path.name for path in found] == ["one-1.0.jar"]
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    assert (found[0].parent / "SHA256SUMS").read_text() == f"{digest}  one-1.0.jar\n"
    assert jars.resolve(UNLOCKED, {"two"}, None) == found


def test_jars_that_are_not_locked_are_refused_without_https(
    cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answers in place of the repository has a checksum of his own."""
    monkeypatch.setattr(jars, "resolve_artifacts", lambda _: pytest.fail("it was asked"))
    with pytest.raises(MissingSoftware) as refused:
        jars.resolve(UNLOCKED, set(), None)
    assert str(refused.value) == (
        f"no checksums of org.a:one:2.0 are shipped, and {repository.url} could answer anything: use a repository with "
        "https (KSTREAMS_MAVEN_REPOSITORY), or the version of PySpark in constraints.txt"
    )
    assert repository.asked == {}


@pytest.mark.parametrize("kind", ["locked", "not locked"])
def test_cached_jar_that_was_changed_is_not_used_and_is_fetched_again(
    kind: str, cache: Path, unlocked: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = WANTED if kind == "locked" else UNLOCKED
    for path in PATHS:
        unlocked.files[f"/{path}.sha256"] = hashlib.sha256(unlocked.files[f"/{path}"]).hexdigest().encode()
    first = jars.resolve(wanted, set(), None)
    before = first[1].stat()
    first[1].write_bytes(b"x" * before.st_size)
    os.utime(first[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert jars.cached(wanted) == first, "a process looks once"
    monkeypatch.setattr(jars, "_verified", set())  # as another one
    assert jars.cached(wanted) == []
    assert caplog.messages == [f"two-2.0.jar in {first[1].parent} is not what was fetched: it is not used"]
    assert jars.resolve(wanted, set(), None) == first
    assert first[1].read_bytes() == unlocked.files[f"/{PATHS[1]}"]


def test_jar_that_was_put_beside_the_cached_ones_is_not_used(cache: Path, repository: Repository) -> None:
    first = jars.resolve(WANTED, set(), None)
    (first[0].parent / "another-1.0.jar").touch()
    assert jars.cached(WANTED) == first


def test_cached_jars_need_no_network_no_java_and_no_jgo(
    cache: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = jars.resolve(WANTED, set(), None)
    monkeypatch.setattr(jars, "_verified", set())
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv(downloads.REPOSITORY, "http://127.0.0.1:9")
    for name in ("jgo", "requests"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    assert jars.resolve(WANTED, set(), None) == first


def test_without_jgo_the_message_names_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jgo", None)
    with pytest.raises(MissingSoftware) as missing:
        jars.kafka_classpath()
    assert str(missing.value) == (
        "jgo, which fetches the broker's and Spark's jars, is not installed: run pip install 'kstreams_py[broker]'"
    )


def test_cache_that_cannot_be_written_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "jars").touch()
    with pytest.raises(MissingSoftware) as refused:
        jars.kafka_classpath()
    assert str(refused.value) == (
        f"{cache} cannot be written: File exists: free space, or set XDG_CACHE_HOME to another directory"
    )
