"""Bad input to the real command: one message that names the mistake and the remedy, an exit status, nothing changed."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.formats.registries import FileRegistry
from tests.system.command import Finished, command, kstreams, read_contents
from tests.system.harness import NONE, Cluster, Config

MakeSettings = Callable[..., Settings]

MISTAKE, UNAVAILABLE = 2, 3
"""Exit statuses: the user corrects what the message names; the user repairs a service that does not answer."""

MODES = {"one worker": ("--slot", 0), "two workers": ("--workers", 2)}
SHORT = {"KSTREAMS_TRANSACTION_TIMEOUT_MS": "2000"}
"""The client retries refused records, and those behind them, for this long before it reports the refusal."""

PASSWORD = "open sesame 1e5"
"""Must not be in any output. It has several words and ends like a number."""

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    return value
"""


def check_refusal(done: Finished, status: int, *words: str) -> str:
    """Checks status and words of the only error message of a command, and returns the message."""
    assert done.status == status, done
    assert "Traceback" not in done.err
    assert len(done.error_lines) == 1, done
    _, kind, message = done.error_lines[0].split(": ", 2)
    assert [word for word in words if word not in message] == [], message
    assert kind.isidentifier()
    return message


class CopyApp:
    """A graph file that copies, its topics with three records, and the environment of its command."""

    def __init__(self, directory: Path, name: str, cluster: Cluster, settings: Settings) -> None:
        self.directory, self.name, self.cluster = directory, name, cluster
        self.file = directory / "copying_graph.py"
        self.source, self.target = f"{name}.in", f"{name}.out"
        self.environment = settings.as_environment()
        self.topics = {self.source: f"{name}.copy", self.target: ""}
        self.write(GRAPH)

    def create(self, partitions: int = 1, config: Config = NONE) -> None:
        """Creates the topics of GRAPH; the settings are the output's."""
        self.cluster.create(self.source, partitions=partitions)
        self.cluster.create(self.target, partitions=partitions, config=config)
        self.cluster.write(self.source, [b"0", b"1", b"2"])

    def write(self, text: str, **values: Any) -> None:
        self.file.write_text(text.format(name=self.name, **values))

    def run(self, *options: object, target: str | None = None, **changed: str) -> Finished:
        return kstreams(
            "run", target or f"{self.file}:graph", *options, environment={**self.environment, **changed},
            cwd=self.directory,
        )  # fmt: skip

    def check_is_refused(
        self,
        status: int,
        *words: str,
        modes: Iterable[str] = ("one worker", "two workers"),
        done: int = 0,
        **changed: str,
    ) -> list[str]:
        """Checks that one worker and two end with this message, and that topics and offsets are unchanged.

        Returns what each has written to stderr. `done`: how many records are copied before the mistake is found.
        """
        before = self.contents()
        ended = [self.run(*MODES[mode], **changed) for mode in modes]
        for each in ended:
            check_refusal(each, status, *words)
        self.check_done(before, done)
        return [each.err for each in ended]

    def check_done(self, before: dict[str, Any], done: int) -> None:
        """Checks that the first records are copied and committed, and nothing else has changed."""
        if done:
            read, _ = before[self.source]
            before = before | {self.source: (read, {0: done}), self.target: (read[:done], None)}
        assert self.contents() == before

    def contents(self) -> dict[str, Any]:
        return read_contents(self.cluster, self.topics)

    def check_copies(self, *values: bytes, **changed: str) -> None:
        """Runs the worker until all records are committed: the refusal before has harmed nothing."""
        with command(
            self.directory, "run", f"{self.file}:graph", "--slot", 0, environment={**self.environment, **changed}
        ) as running:
            try:
                self.cluster.await_committed(f"{self.name}.copy", self.source, {0: len(values)})
            except AssertionError as error:
                raise AssertionError(running.text) from error
        self.cluster.await_markers(self.target)
        assert self.cluster.values(self.target) == list(values)


@pytest.fixture
def app(tmp_path: Path, name: str, cluster: Cluster, settings: MakeSettings) -> CopyApp:
    return CopyApp(tmp_path, name, cluster, settings(request_timeout_ms=5_000))


# The broker.


def test_unreachable_broker_is_named_with_how_to_start_one(app: CopyApp) -> None:
    for mode in MODES.values():
        done = app.run(*mode, "-b", "127.0.0.1:9", KSTREAMS_REQUEST_TIMEOUT_MS="800")
        check_refusal(done, UNAVAILABLE, "127.0.0.1:9", "kstreams broker start", "--bootstrap-servers")


def test_malformed_broker_address_is_refused(app: CopyApp) -> None:
    for address in ("localhost", "127.0.0.1:http", "127.0.0.1:9092,"):
        check_refusal(app.run("-b", address), MISTAKE, "bootstrap_servers", "host:port")


def credentials(address: str, password: str) -> dict[str, str]:
    return {
        "KSTREAMS_BOOTSTRAP_SERVERS": address,
        "KSTREAMS_KAFKA__SECURITY_PROTOCOL": "sasl_plaintext",
        "KSTREAMS_KAFKA__SASL_MECHANISM": "PLAIN",
        "KSTREAMS_KAFKA__SASL_USERNAME": "alice",
        "KSTREAMS_KAFKA__SASL_PASSWORD": password,
        "KSTREAMS_LOG_LEVEL": "DEBUG",
    }


def test_secrets_are_not_in_librdkafkas_messages_about_settings(app: CopyApp) -> None:
    for mechanism in ("PLAIN", "PLAN"):
        done = app.run(
            "--slot", 0,
            KSTREAMS_REQUEST_TIMEOUT_MS="1500",
            **{**credentials("127.0.0.1:9", PASSWORD), "KSTREAMS_KAFKA__SASL_MECHANISM": mechanism},
            KSTREAMS_KAFKA__SSL_KEY_PASSWORD=PASSWORD,
            KSTREAMS_KAFKA__DEBUG="security,conf",
        )  # fmt: skip
        assert (done.status in (MISTAKE, UNAVAILABLE), len(done.error_lines)) == (True, 1), done
        assert PASSWORD not in done.out + done.err


def test_secrets_are_not_in_the_repr_of_settings(settings: MakeSettings) -> None:
    kafka = {"sasl.password": PASSWORD, "ssl.key.pem": PASSWORD, "sasl.oauthbearer.client.secret": PASSWORD}
    loaded = settings(kafka=kafka, schema_registry_url=f"http://alice:{PASSWORD.replace(' ', '')}@127.0.0.1:9")
    shown = f"{loaded!r} {loaded} {loaded.kafka} {loaded.kafka!r} {loaded.model_dump_json()}"
    assert PASSWORD not in shown
    assert PASSWORD.replace(" ", "") not in shown
    assert loaded.kafka["sasl.password"] == PASSWORD


def test_password_of_an_unreachable_schema_registry_is_not_shown(app: CopyApp) -> None:
    app.create()
    app.write(SCHEMA_GRAPH, value=json.dumps({"type": "string"}), result="'text'")
    before = app.contents()
    done = app.run("--slot", 0, KSTREAMS_SCHEMA_REGISTRY_URL="http://alice:sesame@127.0.0.1:9", **DEBUG)
    check_refusal(done, UNAVAILABLE, "http://127.0.0.1:9", "schema_registry_url")
    assert "sesame" not in done.out + done.err
    assert app.contents() == before


DEBUG = {"KSTREAMS_LOG_LEVEL": "DEBUG"}


# Topics.


def test_missing_topics_are_named_with_how_to_create_them(app: CopyApp) -> None:
    app.cluster.create(app.source)
    app.cluster.write(app.source, [b"0"])
    before = read_contents(app.cluster, {app.source: f"{app.name}.copy"})
    for mode in MODES.values():
        message = check_refusal(app.run(*mode), MISTAKE, app.target, "kstreams topics create", "--create-topics")
        assert app.source not in message
    assert read_contents(app.cluster, {app.source: f"{app.name}.copy"}) == before


DECLARED = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.map(graph.topic("{name}.in", partitions=2), to=graph.topic("{name}.out", {declared}))
def copy(value):
    return value
"""

MISMATCHES = (
    ("partitions=3", ("has 1 partitions", "declares 3")),
    ("config={'retention.ms': 5}", ("retention.ms", "5", "kafka-configs --alter")),
    ("config={'cleanup.policy': 'compact'}", ("cleanup.policy=delete", "compact")),
)


def test_topic_with_other_settings_than_declared_is_named(app: CopyApp) -> None:
    app.create()
    for declared, words in MISMATCHES:
        app.write(DECLARED.replace(", partitions=2", ""), declared=declared)
        app.check_is_refused(MISTAKE, app.target, *words)


def test_topic_that_cannot_be_created_as_declared_is_named(app: CopyApp) -> None:
    for declared, word in (
        ("config={'retention.ms': 'soon'}", "retention.ms"),
        ("config={'no.such': 1}", "no.such"),
        ("replication=3", "replication"),
    ):
        app.write(DECLARED, declared=declared)
        done = kstreams("topics", "create", f"{app.file}:graph", environment=app.environment)
        check_refusal(done, MISTAKE, app.target, word)


TWO_INPUTS = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.{kind}(graph.topic("{name}.in"), graph.topic("{name}.other"), {how}to=graph.topic("{name}.out"), id="copy")
def copy(*values):
    return values[0]
"""


def test_join_of_inputs_with_unequal_partitions_is_named(app: CopyApp) -> None:
    other = f"{app.name}.other"
    app.create(partitions=2)
    app.cluster.create(other, partitions=3)
    app.write(TWO_INPUTS, kind="join", how='by="order", ')
    app.check_is_refused(MISTAKE, app.source, other, "2 partitions", "with 3", "same number")


def test_journal_topic_with_compaction_is_refused(app: CopyApp) -> None:
    topic = f"__ks.{app.name}.copy.journal"
    app.create(partitions=2)
    app.cluster.create(f"{app.name}.other", partitions=2)
    app.cluster.create(
        topic, partitions=2, config={"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
    )
    app.write(TWO_INPUTS, kind="alts", how="")
    app.check_is_refused(MISTAKE, topic, "cleanup.policy", "--alter")


def test_topic_deleted_while_the_worker_runs_is_named_and_nothing_is_half_committed(
    cluster: Cluster, settings: MakeSettings, name: str, tmp_path: Path
) -> None:
    """Two workers run at once: one loses its input, the other its output."""
    apps = {}
    for deleted in ("in", "out"):
        (tmp_path / deleted).mkdir()
        apps[deleted] = CopyApp(tmp_path / deleted, f"{name}-{deleted}", cluster, settings(request_timeout_ms=5_000))
        apps[deleted].create()
    with contextlib.ExitStack() as stack:
        workers = {}
        for deleted, app in apps.items():
            run = ("run", f"{app.file}:graph", "--slot", 0)
            environment = {**app.environment, **SHORT}
            workers[deleted] = stack.enter_context(command(app.directory, *run, environment=environment))
        for app in apps.values():
            cluster.await_committed(f"{app.name}.copy", app.source, {0: 3})
        for future in cluster.admin.delete_topics([f"{name}-{deleted}.{deleted}" for deleted in apps]).values():
            future.result()
        cluster.write(apps["out"].source, [b"3"])
        for deleted, worker in workers.items():
            assert worker.wait() == MISTAKE, worker.text
            messages = re.findall("^error: TopicError: (.*)$", worker.text, re.MULTILINE)
            assert len(messages) == 1, worker.text
            assert f"{name}-{deleted}.{deleted}" in messages[0]
            assert "kstreams topics create" in messages[0]
    assert cluster.committed(f"{name}-out.copy", apps["out"].source) == {0: 3}
    cluster.await_markers(apps["in"].target)
    assert cluster.values(apps["in"].target) == [b"0", b"1", b"2"]


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


def test_graph_that_does_not_import_is_named_with_file_and_line(app: CopyApp) -> None:
    for module, (text, words) in MODULES.items():
        app.file.write_text(text)
        mode = MODES["one worker" if module in ("syntax", "exit") else "two workers"]
        message = check_refusal(app.run(*mode), MISTAKE, *words)
        assert "<frozen" not in message, "the message names a line of the user's files, not one inside Python"


def test_target_that_names_no_graph_is_refused(app: CopyApp) -> None:
    for target, *words in (
        ("copying_graph:", "'copying_graph:'", "module:graph"),
        (":graph", "':graph'", "module:graph"),
        ("copying_graph:nosuch", "copying_graph", "'nosuch'", "name after the colon"),
        ("no_such_module:graph", "no_such_module", "start from the directory"),
        ("no/such/file.py:graph", "there is no file", "'no/such/file.py'", "correct the path"),
    ):
        message = check_refusal(app.run(target=target), MISTAKE, *words)
        assert "<frozen" not in message


def test_file_with_no_or_several_graphs_is_refused_by_each_command(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    for text, words in (
        ("", "holds no Graph: make one at its top level, such as graph = ks.Graph('shop')"),
        ("b, a = ks.Graph('one'), ks.Graph('two')\n", f"holds several graphs: write one of {file}:a, {file}:b"),
    ):
        file.write_text(f"import kstreams_py as ks\n{text}")
        for verb in (["run"], ["graph"], ["topics", "check"], ["slots", "list"]):
            done = kstreams(*verb, file, environment={})
            assert (done.status, done.error_lines) == (2, [f"error: GraphError: '{file}' {words}"]), verb


def test_file_with_one_graph_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text("import kstreams_py as ks\ngraph = ks.Graph('one')\ngraph.sink(graph.topic('a'), id='p')(print)\n")
    done = kstreams("graph", file, environment={})
    assert (done.status, done.out.splitlines()[0]) == (0, "graph one: exactly_once, committed, dead letters none")


def test_graph_image_that_cannot_be_written_is_named(app: CopyApp) -> None:
    file = app.directory / "no-such-directory" / "graph.svg"
    done = kstreams("graph", f"{app.file}:graph", "-f", "svg", "-o", file, environment={})
    check_refusal(done, MISTAKE, str(file))


# Schemas.

SCHEMA_GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out", value=ks.Avro({value})))
def copy(value):
    return {result}
"""


def test_schema_file_that_does_not_parse_is_named(app: CopyApp) -> None:
    file = app.directory / "value.avsc"
    app.create()
    app.write(SCHEMA_GRAPH, value=repr(str(file)), result="None")
    for content, *words in (
        (None, "does not exist", "correct the path"),
        ("{", "is not JSON"),
        ('{"type": "nothing"}', "is not an Avro schema", "nothing"),
    ):
        if content is not None:
            file.write_text(content)
        app.check_is_refused(MISTAKE, str(file), *words)


NUMBER = {"type": "record", "name": "V", "fields": [{"name": "n", "type": "int"}]}
TEXT = {"type": "record", "name": "V", "fields": [{"name": "n", "type": "string"}]}


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("one worker"),
        # in the quick tier, an output that is too large shows that the message of several workers is one
        pytest.param("two workers", marks=pytest.mark.long),
    ],
)
def test_schema_that_does_not_fit_its_subject_is_refused_before_anything_is_written(
    app: CopyApp, settings: MakeSettings, mode: str
) -> None:
    app.cluster.create(app.source, app.target, partitions=2)
    for partition in range(2):  # every worker has records to process
        app.cluster.write(app.source, [b"0", b"1"], partition=partition)
    ks.Avro(NUMBER).bind(FileRegistry(settings().schema_directory), f"{app.target}-value").serialize({"n": 1})
    app.write(SCHEMA_GRAPH, value=TEXT, result="{'n': 'text'}")
    words = (f"{app.target}-value", "int", "string", "write to a new topic")
    app.check_is_refused(MISTAKE, *words, modes=[mode])


def test_schema_directory_that_cannot_be_written_is_named(app: CopyApp) -> None:
    app.create()
    app.write(SCHEMA_GRAPH, value=NUMBER, result="{'n': 1}")
    file = app.directory / "no-directory"
    file.touch()
    before = app.contents()
    check_refusal(app.run("--slot", 0, KSTREAMS_SCHEMA_DIRECTORY=str(file)), UNAVAILABLE, str(file))
    assert app.contents() == before


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

SIDES: dict[str, tuple[int, Config]] = {"client": (2_000_000, NONE), "broker": (50_000, {"max.message.bytes": "10000"})}


@pytest.mark.parametrize("side", SIDES)
def test_exactly_once_too_large_output_stops_the_worker_behind_what_is_done(app: CopyApp, side: str) -> None:
    """Of two workers, one finds the mistake: the supervisor reports it once."""
    size, config = SIDES[side]
    app.create(config=config)
    app.write(LARGE_GRAPH, size=size, pause=0, guarantee="exactly_once")
    words = (app.target, "max.message.bytes", "KSTREAMS_KAFKA__MESSAGE_MAX_BYTES", "smaller")
    # what finds it, the client or the broker, does not matter to a supervisor
    modes = ["one worker", "two workers"] if side == "client" else ["one worker"]
    found = app.check_is_refused(MISTAKE, *words, modes=modes, done=1, **SHORT)
    if side == "client":
        assert [len(re.findall("^error: ", each, re.MULTILINE)) for each in found] == [1, 1], found


@pytest.mark.parametrize(
    "side",
    ["client", pytest.param("broker", marks=pytest.mark.long)],  # the test above has what each of them answers
)
def test_at_least_once_too_large_output_stops_the_worker_behind_what_is_done(app: CopyApp, side: str) -> None:
    size, config = SIDES[side]
    app.create(config=config)
    app.write(LARGE_GRAPH, size=size, pause=0, guarantee="at_least_once")
    check_refusal(app.run("--slot", 0, **SHORT), MISTAKE, app.target, "max.message.bytes", "errors=")
    assert app.cluster.committed(f"{app.name}.copy", app.source) == {0: 1}


def test_too_large_output_is_written_once_the_setting_in_the_message_is_raised(app: CopyApp) -> None:
    app.create(config={"max.message.bytes": "3000000"})
    app.write(LARGE_GRAPH, size=2_000_000, pause=0, guarantee="exactly_once")
    check_refusal(app.run("--slot", 0), MISTAKE, "KSTREAMS_KAFKA__MESSAGE_MAX_BYTES")
    app.check_copies(b"0", b"x" * 2_000_000, b"2", KSTREAMS_KAFKA__MESSAGE_MAX_BYTES="3000000")


def test_too_large_output_refused_in_mid_transaction_stops_with_the_same_message(app: CopyApp) -> None:
    """The delivery fails long before the commit, while the worker writes more."""
    app.create(config={"max.message.bytes": "10000"})
    app.cluster.write(app.source, [str(i).encode() for i in range(3, 2_000)])
    app.write(LARGE_GRAPH, size=50_000, pause=0.001, guarantee="exactly_once")
    before = app.contents()
    done = app.run("--slot", 0, KSTREAMS_COMMIT_INTERVAL_MS="1900", **SHORT)
    check_refusal(done, MISTAKE, app.target, "max.message.bytes", f"copy: reading {app.source}[0]@1")
    app.check_done(before, 1)


def test_many_small_outputs_fit_a_topic_whose_size_limit_is_below_a_batch(app: CopyApp) -> None:
    """The client sends batches of up to 1 MB and does not split them, so a batch must not exceed the topic's limit."""
    app.create(config={"max.message.bytes": "10000"})
    values = [b"0", b"1", b"2"] + [f"{i:0100}".encode() for i in range(3, 1_000)]
    app.cluster.write(app.source, values[3:])
    app.check_copies(*values)


# A full disk under a sink.

SINK_GRAPH = """
import sqlite3
from pathlib import Path
import kstreams_py as ks
from kstreams_py.sinks import SqliteTable

if (pages := Path({pages!r})).exists():  # without a mounted small disk, SQLite's own limit gives the same error
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
    """A directory with little free space: a file system of its own, or a limit that SINK_GRAPH sets."""

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

    def free_space(self) -> None:
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


def test_sink_on_a_full_disk_stops_and_writes_each_row_once_when_space_is_freed(app: CopyApp, disk: Disk) -> None:
    app.cluster.create(app.source, f"{app.name}.errors")
    values = [f"{i:0{20_000}}".encode() for i in range(200)]
    app.cluster.write(app.source, values)
    file = disk.directory / "rows.sqlite"
    app.write(SINK_GRAPH, file=str(file), pages=str(disk.pages))
    check_refusal(app.run("--slot", 0), UNAVAILABLE, str(file), "disk is full", "free space")
    assert app.cluster.committed(f"{app.name}.copy", app.source).get(0, 0) < 200
    run = ("run", f"{app.file}:graph", "--workers", 1)
    with command(app.directory, *run, environment=app.environment) as running:
        running.await_text("slot 0 ended by SinkUnavailable: .*: restarting it")  # space may be freed meanwhile
        disk.free_space()
        app.cluster.await_committed(f"{app.name}.copy", app.source, {0: 200})
        running.process.terminate()
        assert running.wait() == 0, running.text
    with contextlib.closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT value, count(*) FROM rows GROUP BY value ORDER BY value").fetchall()
    assert rows == [(value, 1) for value in values]
    assert app.cluster.read(f"{app.name}.errors") == [], "a full disk makes no dead letter"


# Settings.

OWNED = {
    "ACKS": "durability",
    "METADATA_BROKER_LIST": "--bootstrap-servers",
    "LOG_LEVEL": "client's log",
    "LOG_CONNECTION_CLOSE": "client's log",
    "CLIENT_ID": "slot",
}
"""Settings of librdkafka that the framework owns, aliases included, each with a word of the reason."""


def test_owned_setting_is_refused_with_the_reason(app: CopyApp) -> None:
    for setting, reason in OWNED.items():
        changed = {f"KSTREAMS_KAFKA__{setting}": "1", "KSTREAMS_REQUEST_TIMEOUT_MS": "1500"}
        check_refusal(app.run(**changed), MISTAKE, setting.lower().replace("_", "."), reason)


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


def test_settings_file_that_is_wrong_is_named_with_the_setting(app: CopyApp) -> None:
    file = app.directory / "settings.toml"
    app.environment = {"KSTREAMS_BOOTSTRAP_SERVERS": app.environment["KSTREAMS_BOOTSTRAP_SERVERS"]}
    for text, words in SETTINGS.values():
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        check_refusal(app.run("--config", file), MISTAKE, *words)


def test_settings_file_that_is_missing_is_named(app: CopyApp) -> None:
    check_refusal(app.run("--config", "no-such.toml"), MISTAKE, "no-such.toml", "--config")


def test_wrong_environment_variable_is_named(app: CopyApp) -> None:
    for variable, value, *words in (
        ("KSTREAMS_COMMIT_INTERVAL_MS", "soon", "commit_interval_ms", "integer"),
        ("KSTREAMS_KAFKA", "{", "KSTREAMS_KAFKA"),
        ("KSTREAMS_LOG_LEVEL", "LOUD", "KSTREAMS_LOG_LEVEL", "LOUD", "INFO"),
        ("KSTREAMS_SCHEMA_REGISTRY_URL", "ftp://127.0.0.1", "schema_registry_url", "http://"),
    ):
        check_refusal(app.run("--slot", 0, **{variable: value}), MISTAKE, *words)


def test_malformed_slot_numbers_are_refused(app: CopyApp) -> None:
    for slots in ("a", "3-1", "0,0", "1-"):
        check_refusal(app.run(f"--slots={slots}"), MISTAKE, "--slots", "4-7")
