"""settings.py: precedence of the sources, refusals and their messages, secrets that are never shown."""

from __future__ import annotations

import errno
import os
import re
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kstreams_py.errors import SettingsError
from kstreams_py.secrets import SecretUrl, redact
from kstreams_py.settings import OTHER_VARIABLES, OWNED, ClientSettings, Settings, explain
from tests.tables import each_case
from tests.unit.fakes import raise_error

SECRETS = {
    "sasl.username": "alice",
    "sasl.password": "hunter2",
    "ssl.key.pem": "-----BEGIN",
    "ssl.key.password": "letmein",
    "ssl.certificate.pem": "MIIB",
    "sasl.oauthbearer.client.secret": "s3cr3t",
    "sasl.oauthbearer.config": "vault=opensesame",
    "sasl.oauthbearer.assertion.private.key.passphrase": "mellon",
}

REGISTRY_SECRETS = {
    "ssl.key.password": "letmein",
    "basic.auth.user.info": "alice:hunter2",
    "bearer.auth.token": "ey.token",
    "bearer.auth.client.secret": "s3cr3t",
}


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("KSTREAMS_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kstreams.toml"


def read_refusal(file: Path | None = None, **arguments: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.load(file, **arguments)
    return str(caught.value)


def are_equal(one: Settings, other: Settings) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in Settings.model_fields)


# The sources of a setting.


def test_defaults_are_for_a_broker_on_this_machine() -> None:
    settings = Settings.load()
    assert (settings.schema_directory.name, settings.state_directory.name) == ("schemas", "state")
    places = {"schema_directory", "state_directory"}
    assert {name: getattr(settings, name) for name in Settings.model_fields if name not in places} == {
        "bootstrap_servers": "127.0.0.1:9092",
        "schema_registry_url": None,
        "auto_offset_reset": "earliest",
        "commit_interval_ms": 100,
        "commit_records": 100_000,
        "value_bytes_max": 64 << 20,
        "transaction_timeout_ms": 10_000,
        "session_timeout_ms": 15_000,
        "request_timeout_ms": 15_000,
        "drain_timeout_ms": 10_000,
        "stuck_timeout_ms": None,
        "held_timeout_ms": 60_000,
        "leave_on_stop": False,
        "http": None,
        "http_hosts": "",
        "http_errors": True,
        "livez_timeout_ms": None,
        "tracing": False,
        "kafka": {},
        "schema_registry": {},
        "clusters": {},
    }


def test_arguments_override_the_environment_which_overrides_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("commit_interval_ms = 1\ncommit_records = 2\ndrain_timeout_ms = 3\n")
    monkeypatch.setenv("KSTREAMS_COMMIT_INTERVAL_MS", "10")
    monkeypatch.setenv("KSTREAMS_COMMIT_RECORDS", "20")
    settings = Settings.load(file, commit_interval_ms=100, commit_records=None)
    assert (settings.commit_interval_ms, settings.commit_records, settings.drain_timeout_ms) == (100, 20, 3)
    assert settings.request_timeout_ms == 15_000


def test_client_settings_of_all_sources_are_merged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('[kafka]\nlinger.ms = 1\n"socket.timeout.ms" = 2\nclient.rack = "file"\n')
    monkeypatch.setenv("KSTREAMS_KAFKA__SOCKET_TIMEOUT_MS", "2000")
    assert Settings.load(file, kafka={"debug": "broker"}).kafka == {
        "debug": "broker",
        "socket.timeout.ms": "2000",
        "linger.ms": "1",
        "client.rack": "file",
    }


def test_client_settings_may_be_one_variable_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTREAMS_KAFKA", '{"linger.ms": 7}')
    assert Settings.load().kafka == {"linger.ms": "7"}


def test_tables_in_the_file_are_the_dotted_names_of_the_client(file: Path) -> None:
    file.write_text(
        '[kafka]\nsasl.password = "p"\nsasl.oauthbearer.method = "oidc"\n"ssl.ca.location" = "ca"\n'
        "enable.ssl.certificate.verification = false\nSOCKET_KEEPALIVE_ENABLE = true\n"
        "[kafka.fetch]\nwait.max.ms = 5\nerror.backoff.ms = 1.5\n"
    )
    assert dict(Settings.load(file).kafka) == {
        "sasl.password": "p",
        "sasl.oauthbearer.method": "oidc",
        "ssl.ca.location": "ca",
        "enable.ssl.certificate.verification": "false",
        "socket.keepalive.enable": "true",
        "fetch.wait.max.ms": "5",
        "fetch.error.backoff.ms": "1.5",
    }


@pytest.mark.parametrize(
    "password", ["plain", "1e5", "0123", "true", "null", '"quoted"', '{"a": 1}', "{", "[1]", " a b ", "", "ü", "a=b;c'"]
)
def test_settings_passed_through_the_environment_are_loaded_unchanged(
    password: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = Settings.load(
        bootstrap_servers="a:1,b:2",
        schema_registry_url=f"https://user:{len(password)}@registry:8081",
        schema_directory=tmp_path,
        auto_offset_reset="latest",
        commit_interval_ms=5,
        stuck_timeout_ms=60_000,
        kafka={"sasl.password": password, "socket.timeout.ms": 2_000, "enable.metrics.push": False},
    )
    environment = settings.as_environment()
    assert all(name.startswith("KSTREAMS_") for name in environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert are_equal(Settings.load(), settings)


def test_settings_that_are_not_set_are_not_in_the_environment_of_another_process() -> None:
    environment = Settings.load().as_environment()
    assert "KSTREAMS_SCHEMA_REGISTRY_URL" not in environment
    assert "KSTREAMS_STUCK_TIMEOUT_MS" not in environment
    assert environment["KSTREAMS_COMMIT_INTERVAL_MS"] == "100"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings.load().commit_records = 1


# Refusals.


@each_case(
    ("arguments", "message"),
    [
        ({"bootstrap_servers": "broker"}, "bootstrap_servers = 'broker' (argument): 'broker' is not host:port"),
        ({"bootstrap_servers": "a:1, :2"}, "bootstrap_servers = 'a:1, :2' (argument): ':2' is not host:port"),
        ({"bootstrap_servers": 4}, "bootstrap_servers = 4 (argument): write a string, in quotes"),
        ({"auto_offset_reset": "none"}, "auto_offset_reset = 'none' (argument): write 'earliest' or 'latest'"),
        ({"commit_interval_ms": 0}, "commit_interval_ms = 0 (argument): write an integer greater than 0"),
        ({"commit_records": -1}, "commit_records = -1 (argument): write an integer greater than 0"),
        ({"drain_timeout_ms": "soon"}, "drain_timeout_ms = 'soon' (argument): write an integer"),
        ({"drain_timeout_ms": 1.5}, "drain_timeout_ms = 1.5 (argument): write an integer"),
        ({"leave_on_stop": "maybe"}, "leave_on_stop = 'maybe' (argument): write true or false"),
        ({"schema_directory": 4}, "schema_directory = 4 (argument): write a path, in quotes"),
        ({"comit_records": 1}, "comit_records (argument): there is no such setting: did you mean commit_records?"),
        ({"colour": "green"}, "colour (argument): there is no such setting: `kstreams config show` lists all"),
        ({"kafka": "linger.ms=1"}, "kafka (argument): expected a table of librdkafka settings"),
        (
            {"commit_interval_ms": 10_000},
            (
                "commit_interval_ms (10000) must be below transaction_timeout_ms (10000), or the broker "
                "aborts each transaction before its commit (commit_interval_ms: argument)"
            ),
        ),
        (
            {"stuck_timeout_ms": 999},
            (
                "stuck_timeout_ms (999) must be at least 1000 and commit_interval_ms (100), or workers that "
                "make progress count as stuck (stuck_timeout_ms: argument)"
            ),
        ),
        (
            {"stuck_timeout_ms": 4_999, "commit_interval_ms": 5_000},
            (
                "stuck_timeout_ms (4999) must be at least 1000 and commit_interval_ms (5000), or workers that make "
                "progress count as stuck (commit_interval_ms: argument; stuck_timeout_ms: argument)"
            ),
        ),
        ({"stuck_timeout_ms": 0}, "stuck_timeout_ms = 0 (argument): write an integer greater than 0"),
        (
            {"transaction_timeout_ms": 15_001},
            (
                "transaction_timeout_ms (15001) must not exceed session_timeout_ms (15000), or a dead "
                "worker's transaction outlives its membership (transaction_timeout_ms: argument)"
            ),
        ),
        (
            {"commit_records": 0, "commit_interval_ms": -1},
            (
                "commit_interval_ms = -1 (argument): write an integer greater than 0; "
                "commit_records = 0 (argument): write an integer greater than 0"
            ),
        ),
    ],
)
def test_refusal_names_the_setting_and_what_is_wrong(arguments: dict[str, Any], message: str) -> None:
    assert read_refusal(**arguments) == message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "KSTREAMS_COMMIT_RECORDS",
            "0",
            "commit_records = '0' (KSTREAMS_COMMIT_RECORDS): write an integer greater than 0",
        ),
        (
            "KSTREAMS_KAFKA__ACKS",
            "1",
            "kafka.acks (KSTREAMS_KAFKA__ACKS): acks belongs to the framework: it follows from the durability",
        ),
        ("KSTREAMS_KAFKA", "{", "KSTREAMS_KAFKA does not parse as JSON: correct it, or use KSTREAMS_KAFKA__<NAME>"),
    ],
)
def test_settings_constructed_and_loaded_are_refused_alike(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    for make in (Settings, Settings.load):
        with pytest.raises(SettingsError) as caught:
            make()
        assert (type(caught.value), str(caught.value)) == (SettingsError, message)


def test_timeouts_at_their_limits_are_accepted() -> None:
    settings = Settings.load(commit_interval_ms=14_999, transaction_timeout_ms=15_000, session_timeout_ms=15_000)
    assert settings.transaction_timeout_ms == settings.session_timeout_ms
    assert Settings.load(stuck_timeout_ms=1_000).stuck_timeout_ms == 1_000
    assert Settings.load(stuck_timeout_ms=2_000, commit_interval_ms=2_000).stuck_timeout_ms == 2_000


@each_case("name", OWNED)
def test_settings_that_the_framework_owns_are_refused_with_the_reason(name: str) -> None:
    found = read_refusal(kafka={name: "1"})
    assert found == f"kafka.{name} (argument): {name} belongs to the framework: {OWNED[name]}"


def test_settings_that_the_framework_owns_are_refused_in_environment_and_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[kafka]\nisolation.level = 1\n")
    reason = "isolation.level belongs to the framework: inputs are always read_committed"
    assert read_refusal(file) == f"kafka.isolation.level ({file}, line 2, table [kafka]): {reason}"
    monkeypatch.setenv("KSTREAMS_KAFKA__ISOLATION_LEVEL", "read_uncommitted")
    assert read_refusal(file) == f"kafka.isolation.level (KSTREAMS_KAFKA__ISOLATION_LEVEL): {reason}"


def test_alias_of_a_setting_that_the_framework_owns_is_refused() -> None:
    assert read_refusal(kafka={"metadata.broker.list": "a:1"}).startswith(
        "kafka.metadata.broker.list (argument): metadata.broker.list belongs to the framework: "
    )


def test_file_that_is_missing_or_not_toml_is_refused_by_name(file: Path) -> None:
    assert read_refusal(file) == f"settings file {file} does not exist: correct --config"
    assert read_refusal(file.parent) == f"settings file {file.parent} cannot be read: Is a directory: correct --config"
    file.write_text("commit_records = \n")
    assert read_refusal(file) == f"settings file {file} does not parse: Invalid value (at line 1, column 18)"
    file.write_bytes(b"\xff")
    assert read_refusal(file).startswith(f"settings file {file} does not parse: 'utf-8' codec can't decode byte 0xff")


def test_pipe_is_read_once_for_the_values_and_where_they_come_from(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("commit_records = 5\n",))
    writer.start()
    shown = {each.name: each for each in explain(pipe)}
    writer.join()
    assert shown["commit_records"] == ("commit_records", "5", f"{pipe}, line 1")


def test_file_that_cannot_be_read_is_refused_by_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.touch()
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: raise_error(denied))
    assert read_refusal(file) == f"settings file {file} cannot be read: Permission denied: correct --config"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\ncommit_records = 0\n", "commit_records = 0 ({file}, line 2): write an integer greater than 0"),
        (
            "retries = 3\ncommit_records = 'many'\n",
            (
                "commit_records = 'many' ({file}, line 2): write an integer; "
                "retries ({file}, line 1): there is no such setting: `kstreams config show` lists all"
            ),
        ),
        (
            "# all of the client\n[kafak]\nsasl.password = 'hunter2'\n",
            (
                "kafak ({file}, line 2): there is no such setting: did you mean kafka?; "
                "librdkafka's settings belong under "
                "[kafka]"
            ),
        ),
        (
            "socket.timeout.ms = 5\n",
            (
                "socket ({file}, line 1): there is no such setting: `kstreams config show` lists all; librdkafka's "
                "settings belong under [kafka]"
            ),
        ),
        ("kafka = 5\n", "kafka ({file}, line 1): expected a table of librdkafka settings"),
        (
            "kafka = { acks = 1 }\n",
            "kafka.acks ({file}, line 1): acks belongs to the framework: it follows from the durability",
        ),
        (
            "[kafka]\n'client.id' = 1\n",
            "kafka.client.id ({file}, line 2, table [kafka]): client.id belongs to the framework: "
            + OWNED["client.id"],
        ),
    ],
)
def test_setting_of_a_file_that_is_refused_is_named_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    assert read_refusal(file) == message.format(file=file)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("KSTREAMS_COMIT_RECORDS", "did you mean KSTREAMS_COMMIT_RECORDS?"),
        ("kstreams_log_levle", "did you mean KSTREAMS_LOG_LEVEL?"),
        ("KSTREAMS_KAFKA_SASL_PASSWORD", "did you mean KSTREAMS_KAFKA__SASL_PASSWORD?"),
        ("KSTREAMS_ZZZ", "`kstreams config show` lists all"),
    ],
)
def test_variable_that_is_no_setting_is_refused(name: str, close: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "hunter2")
    assert read_refusal() == f"{name} is not a setting of kstreams_py: {close} (correct it, or unset it)"


def test_variables_of_other_things_are_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_VARIABLES:
        monkeypatch.setenv(name, "1")
    assert Settings.load().commit_records == 100_000


def test_each_variable_that_the_code_names_is_known() -> None:
    root = Path(__file__).parents[2]
    files = [path for place in ("kstreams_py", "docker", "bench", "scripts") for path in (root / place).rglob("*")]
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in (".py", ".yaml", ".md", "") and path.is_file()
    )
    settings = {f"KSTREAMS_{name.upper()}" for name in Settings.model_fields}
    named = set(re.findall(r"KSTREAMS_[A-Z]\w*\b(?!__)", text))
    single = ("KSTREAMS_KAFKA_", "KSTREAMS_CLUSTERS_", "KSTREAMS_SCHEMA_REGISTRY__")
    assert {name for name in named if not name.startswith(single)} <= settings | OTHER_VARIABLES.keys()


def test_each_setting_is_explained_with_its_origin_and_without_secrets(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("commit_records = 5\ndrain_timeout_ms = 6\n[kafka]\nsasl.password = 'hunter2'\nclient.rack = 'a'\n")
    monkeypatch.setenv("KSTREAMS_DRAIN_TIMEOUT_MS", "7")
    monkeypatch.setenv("KSTREAMS_KAFKA__CLIENT_RACK", "b")
    monkeypatch.setenv("KSTREAMS_SCHEMA_REGISTRY_URL", "https://alice:hunter2@registry")
    shown = {each.name: (each.value, each.origin) for each in explain(file, bootstrap_servers="a:1")}
    assert {name: each for name, each in shown.items() if each[1] != "default"} == {
        "bootstrap_servers": ("a:1", "argument"),
        "schema_registry_url": ("https://***@registry", "KSTREAMS_SCHEMA_REGISTRY_URL"),
        "commit_records": ("5", f"{file}, line 1"),
        "drain_timeout_ms": ("7", "KSTREAMS_DRAIN_TIMEOUT_MS"),
        "kafka.sasl.password": ("***", f"{file}, line 4, table [kafka]"),
        "kafka.client.rack": ("b", "KSTREAMS_KAFKA__CLIENT_RACK"),
    }
    assert shown["stuck_timeout_ms"] == ("not set", "default")
    assert shown["leave_on_stop"] == ("false", "default")
    assert {name for name in shown if "." not in name} == Settings.model_fields.keys() - {
        "kafka",
        "schema_registry",
        "clusters",
    }


CLUSTERS = """
[kafka]
client.rack = "a"

[clusters.west]
bootstrap_servers = "west:9092"

[clusters.west.kafka]
sasl.password = "hunter2"
"""


def test_other_clusters_have_settings_of_their_own_from_file_and_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(CLUSTERS)
    monkeypatch.setenv("KSTREAMS_CLUSTERS__WEST__KAFKA__CLIENT_RACK", "b")
    monkeypatch.setenv("KSTREAMS_CLUSTERS__EAST_1__BOOTSTRAP_SERVERS", "east:9093")
    settings = Settings.load(file)
    west, east = settings.of_cluster("west"), settings.of_cluster("east_1")
    assert (west.bootstrap_servers, dict(west.kafka)) == (
        "west:9092", {"sasl.password": "hunter2", "client.rack": "b"},
    )  # fmt: skip
    assert (east.bootstrap_servers, dict(east.kafka), east.clusters) == ("east:9093", {}, {})
    assert west.commit_records == settings.commit_records
    assert "hunter2" not in repr(settings)
    shown = {each.name: (each.value, each.origin) for each in explain(file) if each.name.startswith("clusters")}
    assert shown == {
        "clusters.west.bootstrap_servers": ("west:9092", f"{file}, line 6, table [clusters.west]"),
        "clusters.west.kafka.sasl.password": ("***", f"{file}, line 9, table [clusters.west.kafka]"),
        "clusters.west.kafka.client.rack": ("b", "KSTREAMS_CLUSTERS__WEST__KAFKA__CLIENT_RACK"),
        "clusters.east_1.bootstrap_servers": ("east:9093", "KSTREAMS_CLUSTERS__EAST_1__BOOTSTRAP_SERVERS"),
    }


def test_settings_of_other_clusters_reach_the_workers_by_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(CLUSTERS)
    settings = Settings.load(file)
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[clusters.b]\n", "clusters.b.bootstrap_servers ({file}): write it"),
        (
            '[clusters.b]\nbootstrap_servers = "b"\n',
            "clusters.b.bootstrap_servers ({file}, line 2, table [clusters.b]): 'b' is not host:port",
        ),
        (
            '[clusters.b]\nbootstrap_servers = "b:1"\nlinger = 3\n',
            (
                "clusters.b.linger ({file}, line 3, table [clusters.b]): there is no such setting: a cluster has "
                "bootstrap_servers and kafka"
            ),
        ),
        (
            '[clusters.B]\nbootstrap_servers = "b:1"\n',
            "clusters.B ({file}, line 2, table [clusters.B]): a cluster's name has a-z, 0-9 and single _ between them",
        ),
        ("clusters = 3\n", "clusters ({file}, line 1): write a table for each cluster, such as [clusters.west]"),
        (
            '[clusters.b]\nbootstrap_servers = "b:1"\n[clusters.b.kafka]\ngroup.id = "q"\n',
            (
                "clusters.b.kafka ({file}, line 2, table [clusters.b]): group.id belongs to the framework: it is the "
                "graph's name and the processor's"
            ),
        ),
    ],
)
def test_mistakes_in_the_settings_of_other_clusters_are_named_with_their_place(
    file: Path, text: str, message: str
) -> None:
    file.write_text(text)
    assert read_refusal(file) == message.format(file=file)


def test_cluster_that_no_setting_describes_is_named_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match=re.escape("clusters has no 'west', which a topic of the graph names: ")):
        Settings().of_cluster("west")


def test_variable_that_does_not_parse_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTREAMS_KAFKA", "linger.ms=1")
    file.write_text("")
    for message in (read_refusal(), read_refusal(file)):
        assert "KSTREAMS_KAFKA" in message
        assert not message.startswith("settings file")


# Secrets.


def test_secrets_do_not_show_in_any_text_of_the_settings() -> None:
    settings = Settings.load(schema_registry_url="https://user:pass@registry:8081", kafka=SECRETS | {"linger.ms": 5})
    kafka = settings.kafka
    for text in (repr(settings), str(settings), repr(kafka), str(kafka), f"{kafka}", str(settings.model_dump())):
        assert not [secret for secret in (*SECRETS.values(), "user:", "pass@") if secret in text]
        assert "'linger.ms': '5'" in text
    assert repr(kafka) == repr(dict.fromkeys(SECRETS, "***") | {"linger.ms": "5"})
    assert "schema_registry_url='https://***@registry:8081'" in repr(settings)


def test_secrets_of_the_schema_registry_do_not_show_and_reach_other_processes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[schema_registry]\nssl.ca.location = "ca.pem"\nbasic.auth.user.info = "alice:old"\n')
    monkeypatch.setenv("KSTREAMS_SCHEMA_REGISTRY__BASIC_AUTH_USER_INFO", "alice:hunter2")
    monkeypatch.setenv("KSTREAMS_SCHEMA_REGISTRY__PROXY", "http://bob:hunter2@proxy:1")
    settings = Settings.load(file, schema_registry={"timeout": 5, **REGISTRY_SECRETS})
    others = {"ssl.ca.location": "ca.pem", "proxy": "http://bob:hunter2@proxy:1", "timeout": "5"}
    assert dict(settings.schema_registry) == REGISTRY_SECRETS | others
    shown = {each.name: each.value for each in explain(file, schema_registry={"timeout": 5, **REGISTRY_SECRETS})}
    texts = [repr(settings), str(settings.model_dump()), str(shown)]
    assert [s for s in (*REGISTRY_SECRETS.values(), "alice", "bob") if any(s in text for text in texts)] == []
    assert shown["schema_registry.proxy"] == "http://***@proxy:1"
    assert {name for name in settings.secret_variables() if "REGISTRY" in name} == {
        f"KSTREAMS_SCHEMA_REGISTRY__{name.upper().replace('.', '_')}" for name in (*REGISTRY_SECRETS, "proxy")
    }
    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)
    assert are_equal(Settings.load(), settings)


def test_address_of_the_schema_registry_has_one_place(file: Path) -> None:
    file.write_text('[schema_registry]\nurl = "http://a"\n')
    assert read_refusal(file) == (
        f"schema_registry.url ({file}, line 2, table [schema_registry]): url belongs to the framework: use "
        "schema_registry_url"
    )


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"kafka": {"oauth_cb": print}}, "oauth_cb is a function: oauth_cb alone can be one, by its name "),
        ({"kafka": {"error_cb": print}}, "error_cb is a function: oauth_cb alone can be one, by its name "),
        ({"kafka": {"sasl": {"password": b"p"}}}, "sasl.password is a bytes: write a string, a number, true or false"),
        ({"kafka": {"debug": ["all"]}}, "debug is a list: write a string, a number, true or false"),
        ({"kafka": {"client.rack": None}}, "client.rack is a NoneType: write a string, a number, true or false"),
        ({"schema_registry": {"timeout": {1}}}, "timeout is a set: write a string, "),
    ],
)
def test_client_setting_that_is_no_text_is_refused_and_not_written_as_one(
    arguments: dict[str, Any], refusal: str
) -> None:
    assert read_refusal(**arguments).startswith(refusal)


def test_secrets_are_readable_as_values() -> None:
    settings = Settings.load(schema_registry_url="https://user:pass@registry:8081", kafka=SECRETS)
    assert (settings.schema_registry_url, dict(settings.kafka)) == ("https://user:pass@registry:8081", SECRETS)
    assert (len(settings.kafka), settings.kafka["sasl.password"]) == (len(SECRETS), "hunter2")


@pytest.mark.parametrize(
    "arguments",
    [
        {"kafka": {**SECRETS, "acks": 1}},
        {"kafka": SECRETS, "commit_records": 0},
        {"kafka": str(SECRETS)},
        {"schema_registry_url": "https://user:hunter2@registry", "commit_interval_ms": 20_000, "kafka": SECRETS},
    ],
)
def test_secrets_do_not_show_in_a_refusal_or_its_traceback(arguments: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load(**arguments)
    text = "".join(traceback.format_exception(caught.value))
    assert not [secret for secret in SECRETS.values() if secret in text]


def test_secrets_do_not_show_in_the_refusal_of_constructed_settings() -> None:
    table: Any = {**SECRETS, "acks": 1}
    with pytest.raises(SettingsError) as caught:
        Settings(kafka=table)
    assert str(caught.value) == "kafka.acks (argument): acks belongs to the framework: it follows from the durability"
    assert not [secret for secret in SECRETS.values() if secret in str(caught.value)]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@host:8081/path", "https://***@host:8081/path"),
        ("https://token@host", "https://***@host"),
        ("https://user:p@ss@host/path", "https://***@host/path"),
        ("https://user:p/a?s#s@host/path", "https://***@host/path"),
        ("https://host/path@here", "https://***@here"),
        ("http://a:b/c@one:1, http://d:e#f@two:2", "http://***@two:2"),
        ("postgresql://host/shop?user=me&password=hunter2", "postgresql://host/shop?user=me&password=***"),
        ("host=db user=me password='hunter 2' dbname=shop", "host=db user=me password=*** dbname=shop"),
        ("postgresql://host/shop?password=hunter2&sslmode=disable", "postgresql://host/shop?password=***"),
        ("host=db password='hunter'2 dbname=shop", "host=db password=***"),
        ("redis://me:hunter,x://2@host", "redis://***@host"),
        ("redis://me:hunter password=2@host", "redis://***@"),
        ('{"sasl.password": "hunter2", "acks": "all"}', '{"sasl.password": ***, "acks": "all"}'),
        ("user:hunter2@host", "***@host"),
        ("https://host:8081", "https://host:8081"),
    ],
)
def test_urls_are_shown_without_user_and_password(url: str, shown: str) -> None:
    assert (redact(url), repr(SecretUrl(url)), str(SecretUrl(url))) == (shown, repr(shown), url)


@each_case(
    ("text", "shown"),
    [
        ("a" * 100_000, None),
        ("passw" * 20_000, None),
        ("token" + " " * 100_000, None),
        ("." * 100_000 + "=", None),
        (" " * 100_000 + "a", None),
        ("a://" * 20_000, None),
        ("passw" * 20_000 + "=b", "passw" * 20_000 + "=***"),
        ("passw='" + "\\x" * 50_000, "passw=***"),
    ],
)
def test_long_text_is_redacted_in_time_that_grows_with_its_length(text: str, shown: str | None) -> None:
    """One of 5,000 characters took more than ten minutes: a pattern that looks back never ends."""
    assert redact(text) == (text if shown is None else shown)


def test_client_settings_are_a_mapping_that_compares_by_content() -> None:
    settings = ClientSettings({"linger": {"ms": 5}})
    assert (list(settings), settings == {"linger.ms": "5"}, settings == ClientSettings({"linger_ms": "5"})) == (
        ["linger.ms"], True, True,
    )  # fmt: skip
    assert Settings.load(kafka=settings).kafka is settings


def test_variables_that_kubernetes_sets_for_a_service_named_kstreams_are_no_mistakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = "SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT PORT_80_TCP PORT_80_TCP_PROTO WEB_PORT_80_TCP_ADDR"
    for name in names.split():
        monkeypatch.setenv(f"KSTREAMS_{name}", "tcp://10.0.0.1:80")
    assert Settings() == Settings.load()
    monkeypatch.setenv("KSTREAMS_PORTS", "1")
    with pytest.raises(SettingsError, match=r"^KSTREAMS_PORTS is not a setting of kstreams_py: "):
        Settings()
