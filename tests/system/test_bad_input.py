"""Bad input through the real command: one message with the thing and the remedy, an exit status, nothing moved."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.ports.registry import FileRegistry
from tests.system.command import Finished, command, contents, kstreams
from tests.system.harness import Cluster, asking_for_password

MakeSettings = Callable[..., Settings]

MISTAKE, UNAVAILABLE = 2, 3
"""Exit statuses: correct what the message names; mend what does not answer."""

MODES = {"one worker": ("--slot", 0), "two workers": ("--workers", 2)}
SHORT = {"KSTREAMS_TRANSACTION_TIMEOUT_MS": "2000"}
"""So long the client goes on with records that the broker refuses, or what follows one, before it says so."""

each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)

PASSWORD = "open sesame 1e5"
"""Must never be seen in any output; it looks like more than one word, and ends like a number."""

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    return value
"""


def refused(done: Finished, status: int, *words: str) -> str:
    """The one message of a command that was refused; it has all these words."""
    assert done.status == status, done.err
    assert "Traceback" not in done.err
    assert len(done.mistakes) == 1, done.err
    _, kind, message = done.mistakes[0].split(": ", 2)
    assert [word for word in words if word not in message] == [], message
    assert kind.isidentifier()
    return message


class Place:
    """A graph file, its topics with three records to copy, and what the command needs to know."""

    def __init__(self, directory: Path, name: str, cluster: Cluster, settings: Settings) -> None:
        self.directory, self.name, self.cluster = directory, name, cluster
        self.file = directory / "copying_graph.py"
        self.source, self.target = f"{name}.in", f"{name}.out"
        self.environment = settings.as_environment()
        self.topics = {self.source: f"{name}.copy", self.target: ""}
        self.write(GRAPH)

    def create(self, partitions: int = 1, **config: str) -> None:
        """The topics of GRAPH; the settings are the output's."""
        self.cluster.create(self.source, partitions=partitions)
        self.cluster.create(self.target, partitions=partitions, **config)
        self.cluster.write(self.source, [b"0", b"1", b"2"])

    def write(self, text: str, **values: Any) -> None:
        self.file.write_text(text.format(name=self.name, **values))

    def run(self, *options: object, target: str | None = None, **changed: str) -> Finished:
        return kstreams(
            "run", target or f"{self.file}:graph", *options, environment={**self.environment, **changed},
            cwd=self.directory,
        )  # fmt: skip

    def refuses(self, status: int, *words: str, **changed: str) -> None:
        """One worker and two end with this message, and nothing has moved."""
        before = self.contents()
        for mode in MODES.values():
            refused(self.run(*mode, **changed), status, *words)
        assert self.contents() == before

    def contents(self) -> dict[str, Any]:
        return contents(self.cluster, self.topics)

    def copies(self, *values: bytes, **changed: str) -> None:
        """Runs the worker until all records are committed: what was refused has harmed nothing."""
        with command(
            self.directory, "run", f"{self.file}:graph", "--slot", 0, environment={**self.environment, **changed}
        ) as running:
            try:
                self.cluster.await_committed(f"{self.name}.copy", self.source, {0: len(values)})
            except AssertionError as error:
                raise AssertionError(running.text) from error
        assert self.cluster.values(self.target) == list(values)


@pytest.fixture
def place(tmp_path: Path, name: str, cluster: Cluster, settings: MakeSettings) -> Place:
    return Place(tmp_path, name, cluster, settings(request_timeout_ms=5_000))


# The broker.


@each_mode
def test_unreachable_broker_is_named_with_how_to_start_one(place: Place, mode: tuple[object, ...]) -> None:
    done = place.run(*mode, "-b", "127.0.0.1:9", KSTREAMS_REQUEST_TIMEOUT_MS="800")
    refused(done, UNAVAILABLE, "127.0.0.1:9", "kstreams broker start", "--bootstrap-servers")


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:http", "127.0.0.1:9092,"])
def test_address_that_is_none_is_refused(place: Place, address: str) -> None:
    refused(place.run("-b", address), MISTAKE, "bootstrap_servers", "host:port")


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[str, Cluster]]:
    """A broker that asks for a password: the address where it does so, and the cluster by a door where it does not."""
    with asking_for_password("alice", PASSWORD) as found:
        yield found


def credentials(address: str, password: str) -> dict[str, str]:
    return {
        "KSTREAMS_BOOTSTRAP_SERVERS": address,
        "KSTREAMS_KAFKA__SECURITY_PROTOCOL": "sasl_plaintext",
        "KSTREAMS_KAFKA__SASL_MECHANISM": "PLAIN",
        "KSTREAMS_KAFKA__SASL_USERNAME": "alice",
        "KSTREAMS_KAFKA__SASL_PASSWORD": password,
        "KSTREAMS_LOG_LEVEL": "DEBUG",
    }


def test_wrong_password_is_told_without_it(place: Place, guarded: tuple[str, Cluster]) -> None:
    done = place.run("--workers", 2, KSTREAMS_REQUEST_TIMEOUT_MS="3000", **credentials(guarded[0], f"not {PASSWORD}"))
    refused(done, UNAVAILABLE, guarded[0], "refuses the credentials", "sasl.")
    assert PASSWORD not in done.out + done.err


def test_missing_credentials_are_told(place: Place, guarded: tuple[str, Cluster]) -> None:
    done = place.run(KSTREAMS_REQUEST_TIMEOUT_MS="3000", KSTREAMS_BOOTSTRAP_SERVERS=guarded[0])
    refused(done, UNAVAILABLE, guarded[0], "security.protocol")


@pytest.mark.parametrize("workers", [("--slot", 0), ("--workers", 1)], ids=["one worker", "supervised"])
def test_right_password_from_environment_over_file_works_and_is_not_shown(
    place: Place, guarded: tuple[str, Cluster], workers: tuple[object, ...]
) -> None:
    place.cluster = guarded[1]
    place.create()
    file = place.directory / "settings.toml"
    file.write_text('[kafka]\nsasl.password = "of the file"\n')
    with command(
        place.directory, "run", f"{place.file}:graph", *workers, "--config", file,
        environment={**place.environment, **credentials(guarded[0], PASSWORD)},
    ) as running:  # fmt: skip
        place.cluster.await_committed(f"{place.name}.copy", place.source, {0: 3})
        running.process.terminate()
        assert running.wait() == 0, running.text
    assert place.cluster.values(place.target) == [b"0", b"1", b"2"]
    assert PASSWORD not in running.text
    assert "of the file" not in running.text


@pytest.mark.parametrize("mechanism", ["PLAIN", "PLAN"])
def test_secrets_are_not_in_what_librdkafka_says_of_settings(place: Place, mechanism: str) -> None:
    done = place.run(
        "--slot", 0,
        KSTREAMS_REQUEST_TIMEOUT_MS="1500",
        **{**credentials("127.0.0.1:9", PASSWORD), "KSTREAMS_KAFKA__SASL_MECHANISM": mechanism},
        KSTREAMS_KAFKA__SSL_KEY_PASSWORD=PASSWORD,
        KSTREAMS_KAFKA__DEBUG="security,conf",
    )  # fmt: skip
    assert done.status in (MISTAKE, UNAVAILABLE)
    assert len(done.mistakes) == 1
    assert PASSWORD not in done.out + done.err


def test_secrets_are_not_in_the_repr_of_settings(settings: MakeSettings) -> None:
    kafka = {"sasl.password": PASSWORD, "ssl.key.pem": PASSWORD, "sasl.oauthbearer.client.secret": PASSWORD}
    made = settings(kafka=kafka, schema_registry_url=f"http://alice:{PASSWORD.replace(' ', '')}@127.0.0.1:9")
    shown = f"{made!r} {made} {made.kafka} {made.kafka!r} {made.model_dump_json()}"
    assert PASSWORD not in shown
    assert PASSWORD.replace(" ", "") not in shown
    assert made.kafka["sasl.password"] == PASSWORD


def test_password_of_an_unreachable_schema_registry_is_not_shown(place: Place) -> None:
    place.create()
    place.write(SCHEMA_GRAPH, value=json.dumps({"type": "string"}), result="'text'")
    before = place.contents()
    done = place.run("--slot", 0, KSTREAMS_SCHEMA_REGISTRY_URL="http://alice:sesame@127.0.0.1:9", **DEBUG)
    refused(done, UNAVAILABLE, "http://127.0.0.1:9", "schema_registry_url")
    assert "sesame" not in done.out + done.err
    assert place.contents() == before


DEBUG = {"KSTREAMS_LOG_LEVEL": "DEBUG"}


# Topics.


@each_mode
def test_missing_topics_are_named_with_how_to_create_them(place: Place, mode: tuple[object, ...]) -> None:
    place.cluster.create(place.source)
    place.cluster.write(place.source, [b"0"])
    before = contents(place.cluster, {place.source: f"{place.name}.copy"})
    message = refused(place.run(*mode), MISTAKE, place.target, "kstreams topics create", "--create-topics")
    assert place.source not in message
    assert contents(place.cluster, {place.source: f"{place.name}.copy"}) == before


DECLARED = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.map(graph.topic("{name}.in", partitions=2), to=graph.topic("{name}.out", {declared}))
def copy(value):
    return value
"""

MISFITS = {
    "partitions": ("partitions=3", ("has 1 partitions", "declares 3")),
    "setting": ("config={'retention.ms': 5}", ("retention.ms", "5", "kafka-configs --alter")),
    "policy": ("config={'cleanup.policy': 'compact'}", ("cleanup.policy=delete", "compact")),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_topic_with_other_settings_than_declared_is_named(place: Place, misfit: str) -> None:
    declared, words = MISFITS[misfit]
    place.create()
    place.write(DECLARED.replace(", partitions=2", ""), declared=declared)
    place.refuses(MISTAKE, place.target, *words)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("config={'retention.ms': 'soon'}", ("retention.ms",)),
        ("config={'no.such': 1}", ("no.such",)),
        ("replication=3", ("replication",)),
    ],
    ids=["value", "name", "replication"],
)
def test_topic_that_cannot_be_created_as_declared_is_named(place: Place, declared: str, words: tuple[str, ...]) -> None:
    place.write(DECLARED, declared=declared)
    done = kstreams("topics", "create", f"{place.file}:graph", environment=place.environment)
    refused(done, MISTAKE, place.target, *words)


TWO_INPUTS = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.{kind}(graph.topic("{name}.in"), graph.topic("{name}.other"), to=graph.topic("{name}.out"), id="copy")
def copy(*values):
    return values[0]
"""


def test_join_of_inputs_with_unequal_partitions_is_named(place: Place) -> None:
    other = f"{place.name}.other"
    place.create(partitions=2)
    place.cluster.create(other, partitions=3)
    place.write(TWO_INPUTS, kind="join")
    place.refuses(MISTAKE, place.source, other, "2 partitions", "with 3", "same number")


def test_journal_that_would_lose_choices_is_named(place: Place) -> None:
    topic = f"__ks.{place.name}.copy.journal"
    place.create(partitions=2)
    place.cluster.create(f"{place.name}.other", partitions=2)
    place.cluster.create(topic, partitions=2, cleanup_policy="compact", retention_ms="-1", retention_bytes="-1")
    place.write(TWO_INPUTS, kind="alts")
    place.refuses(MISTAKE, topic, "cleanup.policy", "--alter")


def test_topic_deleted_while_the_worker_runs_is_named_and_nothing_is_half_committed(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path
) -> None:
    """Two workers at once: the one loses its input, the other its output."""
    places = {}
    for gone in ("in", "out"):
        (tmp_path / gone).mkdir()
        places[gone] = Place(tmp_path / gone, f"{name}-{gone}", cluster, settings(request_timeout_ms=5_000))
        places[gone].create()
    with contextlib.ExitStack() as stack:
        workers = {}
        for gone, place in places.items():
            run = ("run", f"{place.file}:graph", "--slot", 0)
            environment = {**place.environment, **SHORT}
            workers[gone] = stack.enter_context(command(place.directory, *run, environment=environment))
        for place in places.values():
            cluster.await_committed(f"{place.name}.copy", place.source, {0: 3})
        for future in cluster.admin.delete_topics([f"{name}-{gone}.{gone}" for gone in places]).values():
            future.result()
        cluster.write(places["out"].source, [b"3"])
        for gone, worker in workers.items():
            assert worker.wait() == MISTAKE, worker.text
            told = re.findall("^error: TopicError: (.*)$", worker.text, re.MULTILINE)
            assert len(told) == 1, worker.text
            assert f"{name}-{gone}.{gone}" in told[0]
            assert "kstreams topics create" in told[0]
    assert cluster.committed(f"{name}-out.copy", places["out"].source) == {0: 3}
    assert cluster.values(places["in"].target) == [b"0", b"1", b"2"]


# The graph.

MODULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "syntax": ("import kstreams_py as ks\n\ngraph = = 1\n", ("SyntaxError", "copying_graph.py", "line 3")),
    "import": ("\nimport no_such_thing\n", ("no_such_thing", "copying_graph.py", "line 2")),
    "exception": ("x = 1\n\n\n1 / 0\n", ("ZeroDivisionError", "copying_graph.py", "line 4")),
    "exit": ("import sys\nsys.exit(0)\n", ("SystemExit", "copying_graph.py", "line 2")),
    "graph error": ("import kstreams_py as ks\ngraph = ks.Graph('a b')\n", ("copying_graph.py", "'a b'")),
    "no processors": ("import kstreams_py as ks\ngraph = ks.Graph('empty')\n", ("'empty'", "no processors")),
    "wrong name": ("import kstreams_py as ks\ngraf = ks.Graph('a')\n", ("'graph'", "name after the colon")),
    "no graph": ("graph = 5\n", ("'graph'", "name after the colon")),
}


@pytest.mark.parametrize("module", MODULES)
def test_graph_that_does_not_import_is_named_with_file_and_line(place: Place, module: str) -> None:
    text, words = MODULES[module]
    place.file.write_text(text)
    mode = MODES["one worker" if module in ("syntax", "exit") else "two workers"]
    message = refused(place.run(*mode), MISTAKE, *words)
    assert "<frozen" not in message, "a place in the user's own files is named, not one inside Python"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("copying_graph", ("'copying_graph'", "module:graph")),
        ("copying_graph:", ("'copying_graph:'", "module:graph")),
        (":graph", ("':graph'", "module:graph")),
        ("copying_graph:nosuch", ("copying_graph", "'nosuch'", "name after the colon")),
        ("no_such_module:graph", ("no_such_module", "start from the directory")),
        ("no/such/file.py:graph", ("no/such/file.py", "No such file")),
        ("copying_graph.py", ("'copying_graph.py'", "path/to/file.py:graph")),
    ],
)
def test_target_that_names_no_graph_is_refused(place: Place, target: str, words: tuple[str, ...]) -> None:
    message = refused(place.run(target=target), MISTAKE, *words)
    assert "<frozen" not in message


def test_picture_that_cannot_be_written_is_named(place: Place) -> None:
    file = place.directory / "no-such-directory" / "graph.svg"
    done = kstreams("graph", f"{place.file}:graph", "-f", "svg", "-o", file, environment={})
    refused(done, MISTAKE, str(file))


# Schemas.

SCHEMA_GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out", value=ks.Avro({value})))
def copy(value):
    return {result}
"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("does not exist", "correct the path")),
        ("{", ("is not JSON",)),
        ('{"type": "nothing"}', ("is not an Avro schema", "nothing")),
    ],
    ids=["missing", "no JSON", "no Avro"],
)
def test_schema_file_that_does_not_parse_is_named(place: Place, content: str | None, words: tuple[str, ...]) -> None:
    file = place.directory / "value.avsc"
    if content is not None:
        file.write_text(content)
    place.create()
    place.write(SCHEMA_GRAPH, value=repr(str(file)), result="None")
    place.refuses(MISTAKE, str(file), *words)


NUMBER = {"type": "record", "name": "V", "fields": [{"name": "n", "type": "int"}]}
TEXT = {"type": "record", "name": "V", "fields": [{"name": "n", "type": "string"}]}


@each_mode
def test_schema_that_does_not_fit_its_subject_is_refused_before_anything_is_written(
    place: Place, settings: MakeSettings, mode: tuple[object, ...]
) -> None:
    place.cluster.create(place.source, place.target, partitions=2)
    for partition in range(2):  # every worker has something to do
        place.cluster.write(place.source, [b"0", b"1"], partition=partition)
    ks.Avro(NUMBER).bind(FileRegistry(settings().schema_directory), f"{place.target}-value").serialize({"n": 1})
    place.write(SCHEMA_GRAPH, value=TEXT, result="{'n': 'text'}")
    before = place.contents()
    refused(place.run(*mode), MISTAKE, f"{place.target}-value", "int", "string", "write to a new topic")
    assert place.contents() == before


@each_mode
def test_mistake_found_while_running_is_told_once(place: Place, mode: tuple[object, ...]) -> None:
    place.create()
    place.write(LARGE_GRAPH, size=2_000_000, pause=0, guarantee="exactly_once")
    done = place.run(*mode)
    assert done.err.count("larger than it takes") == 1, done.err


def test_schema_directory_that_cannot_be_written_is_named(place: Place) -> None:
    place.create()
    place.write(SCHEMA_GRAPH, value=NUMBER, result="{'n': 1}")
    file = place.directory / "no-directory"
    file.touch()
    before = place.contents()
    refused(place.run("--slot", 0, KSTREAMS_SCHEMA_DIRECTORY=str(file)), UNAVAILABLE, str(file))
    assert place.contents() == before


# Records that are too large.

LARGE_GRAPH = """
import time
import kstreams_py as ks

graph = ks.Graph({name!r}, guarantee={guarantee!r}, errors=None)

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    if value == b"1":
        return b"x" * {size}
    time.sleep({pause})
    return value
"""

SIDES = {"client": (2_000_000, {}), "broker": (50_000, {"max_message_bytes": "10000"})}
each_side = pytest.mark.parametrize("side", SIDES)


@each_side
def test_output_that_is_too_large_stops_and_nothing_is_visible(place: Place, side: str) -> None:
    size, config = SIDES[side]
    place.create(**config)
    place.write(LARGE_GRAPH, size=size, pause=0, guarantee="exactly_once")
    words = ("max.message.bytes", "KSTREAMS_KAFKA__MESSAGE_MAX_BYTES", "smaller")
    place.refuses(MISTAKE, place.target, *words, **SHORT)


@each_side
def test_at_least_once_output_that_is_too_large_stops_before_its_position_is_committed(place: Place, side: str) -> None:
    size, config = SIDES[side]
    place.create(**config)
    place.write(LARGE_GRAPH, size=size, pause=0, guarantee="at_least_once")
    refused(place.run("--slot", 0, **SHORT), MISTAKE, place.target, "max.message.bytes")
    assert place.cluster.committed(f"{place.name}.copy", place.source) == {0: 0}


def test_output_that_is_too_large_is_written_with_the_remedy_of_the_message(place: Place) -> None:
    place.create(max_message_bytes="3000000")
    place.write(LARGE_GRAPH, size=2_000_000, pause=0, guarantee="exactly_once")
    refused(place.run("--slot", 0), MISTAKE, "KSTREAMS_KAFKA__MESSAGE_MAX_BYTES")
    place.copies(b"0", b"x" * 2_000_000, b"2", KSTREAMS_KAFKA__MESSAGE_MAX_BYTES="3000000")


def test_output_refused_by_the_broker_in_mid_transaction_stops_with_the_same_message(place: Place) -> None:
    """The delivery fails long before the commit, while more is being written."""
    place.create(max_message_bytes="10000")
    place.cluster.write(place.source, [str(i).encode() for i in range(3, 2_000)])
    place.write(LARGE_GRAPH, size=50_000, pause=0.001, guarantee="exactly_once")
    before = place.contents()
    done = place.run("--slot", 0, KSTREAMS_COMMIT_INTERVAL_MS="1900", **SHORT)
    refused(done, MISTAKE, place.target, "max.message.bytes")
    assert place.contents() == before


def test_many_small_outputs_fit_a_topic_whose_limit_is_below_a_batch(place: Place) -> None:
    """The client sends batches of up to 1 MB and does not split them: they must not exceed the topic's limit."""
    place.create(max_message_bytes="10000")
    values = [b"0", b"1", b"2"] + [f"{i:0100}".encode() for i in range(3, 5_000)]
    place.cluster.write(place.source, values[3:])
    place.copies(*values)


# A full disk under a sink.

SINK_GRAPH = """
import sqlite3
from pathlib import Path
import kstreams_py as ks
from kstreams_py.ports.sinks import SqliteTable

if (pages := Path({pages!r})).exists():  # where no small disk can be had: SQLite's own limit gives the same error
    class Small(sqlite3.Connection):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.execute(f"PRAGMA max_page_count = {{pages.read_text()}}")

    connect = sqlite3.connect
    sqlite3.connect = lambda *arguments, **options: connect(*arguments, factory=Small, **options)

graph = ks.Graph({name!r}, errors="{name}.errors")
table = SqliteTable({file!r}, "rows", ["value"])

@graph.sink(graph.topic("{name}.in"), batch=True, id="copy")
def store(values, steps):
    table.insert([(step.delivery_hash, value) for value, step in zip(values, steps)])
"""


class Disk:
    """A directory with little room, until `make_room`: a file system of its own, or a limit that SINK_GRAPH sets."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pages = directory.with_name("pages")
        directory.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "kstreams-test", str(directory)]
        try:
            self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        except OSError:
            self.mounted = False
        if not self.mounted:
            self.pages.write_text("100")

    def make_room(self) -> None:
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,size=50m", str(self.directory)], check=True)
        self.pages.unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.directory)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.close()


def test_full_disk_under_a_sink_stops_and_with_room_again_every_row_is_there_once(place: Place, disk: Disk) -> None:
    place.cluster.create(place.source, f"{place.name}.errors")
    values = [f"{i:0{20_000}}".encode() for i in range(200)]
    place.cluster.write(place.source, values)
    file = disk.directory / "rows.sqlite"
    place.write(SINK_GRAPH, file=str(file), pages=str(disk.pages))
    refused(place.run("--slot", 0), UNAVAILABLE, str(file), "disk is full", "free space")
    assert place.cluster.committed(f"{place.name}.copy", place.source).get(0, 0) < 200
    run = ("run", f"{place.file}:graph", "--workers", 1)
    with command(place.directory, *run, environment=place.environment) as running:
        running.await_text("slot 0 ended by SinkUnavailable: .*: restarting it")  # somebody may be making room
        disk.make_room()
        place.cluster.await_committed(f"{place.name}.copy", place.source, {0: 200})
        running.process.terminate()
        assert running.wait() == 0, running.text
    with contextlib.closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT value, count(*) FROM rows GROUP BY value ORDER BY value").fetchall()
    assert rows == [(value, 1) for value in values]
    assert place.cluster.read(f"{place.name}.errors") == [], "a full disk is no error of a record"


# Settings.

OWNED = {
    "ACKS": "durability",
    "METADATA_BROKER_LIST": "--bootstrap-servers",
    "LOG_LEVEL": "client's log",
    "LOG_CONNECTION_CLOSE": "client's log",
    "CLIENT_ID": "slot",
}
"""Settings of librdkafka that the framework owns, aliases included, each with a word of the reason."""


@pytest.mark.parametrize("setting", OWNED)
def test_owned_setting_is_refused_with_the_reason(place: Place, setting: str) -> None:
    changed = {f"KSTREAMS_KAFKA__{setting}": "1", "KSTREAMS_REQUEST_TIMEOUT_MS": "1500"}
    refused(place.run(**changed), MISTAKE, setting.lower().replace("_", "."), OWNED[setting])


SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "owned": ("[kafka]\nacks = 1\n", ("acks", "durability", "settings.toml")),
    "owned, as a table": ("[kafka]\nenable.auto.commit = true\n", ("enable.auto.commit", "settings.toml")),
    "unknown to librdkafka": ('[kafka]\n"no.such.setting" = 1\n', ("no.such.setting", "[kafka]")),
    "wrong value for librdkafka": ('[kafka]\n"socket.timeout.ms" = "soon"\n', ("socket.timeout.ms", "[kafka]")),
    "unknown": ("no_such_setting = 1\n", ("no_such_setting", "settings.toml")),
    "wrong value": ('commit_interval_ms = "soon"\n', ("commit_interval_ms", "integer", "settings.toml")),
    "out of range": ("session_timeout_ms = 0\n", ("session_timeout_ms", "greater than 0", "settings.toml")),
    "contradiction": ("commit_interval_ms = 10000\n", ("commit_interval_ms (10000)", "transaction_timeout_ms")),
    "no table": ("kafka = 5\n", ("kafka", "table", "settings.toml")),
    "no TOML": ("[kafka\n", ("settings.toml", "does not parse", "line 1")),
    "no text": ("\udcff", ("settings.toml", "does not parse")),
}


@pytest.mark.parametrize("content", SETTINGS)
def test_settings_file_that_is_wrong_is_named_with_the_setting(place: Place, content: str) -> None:
    text, words = SETTINGS[content]
    file = place.directory / "settings.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    place.environment = {"KSTREAMS_BOOTSTRAP_SERVERS": place.environment["KSTREAMS_BOOTSTRAP_SERVERS"]}
    refused(place.run("--config", file), MISTAKE, *words)


def test_settings_file_that_is_missing_is_named(place: Place) -> None:
    refused(place.run("--config", "no-such.toml"), MISTAKE, "no-such.toml", "--config")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("KSTREAMS_COMMIT_INTERVAL_MS", "soon", ("commit_interval_ms", "integer")),
        ("KSTREAMS_KAFKA", "{", ("KSTREAMS_KAFKA",)),
        ("KSTREAMS_LOG_LEVEL", "LOUD", ("KSTREAMS_LOG_LEVEL", "LOUD", "INFO")),
        ("KSTREAMS_SCHEMA_REGISTRY_URL", "ftp://127.0.0.1", ("schema_registry_url", "http://")),
    ],
)
def test_variable_that_is_wrong_is_named(place: Place, variable: str, value: str, words: tuple[str, ...]) -> None:
    refused(place.run("--slot", 0, **{variable: value}), MISTAKE, *words)


@pytest.mark.parametrize("slots", ["a", "3-1", "0,0", "1-"])
def test_slots_that_are_none_are_refused(place: Place, slots: str) -> None:
    refused(place.run(f"--slots={slots}"), MISTAKE, "--slots", "4-7")
