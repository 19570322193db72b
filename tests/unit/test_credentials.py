"""kafka/credentials/: what each of the three clients gets of librdkafka's settings, and how tokens are kept."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck
import pytest

from kstreams_py.errors import BrokerUnavailable, MissingSoftware, Retriable, SettingsError
from kstreams_py.formats.registries import open_registry
from kstreams_py.kafka.administration import GroupAdmin, connection
from kstreams_py.kafka.credentials import sources
from kstreams_py.kafka.credentials.java import AWS_HANDLER, OIDC_HANDLER, of_java
from kstreams_py.kafka.credentials.sign_in import SignIn
from kstreams_py.kafka.credentials.tokens import Token, TokenSource
from kstreams_py.kafka.errors import ClientLog, E, classify, refuses_credentials
from kstreams_py.records import TopicPartition
from kstreams_py.settings import ClientSettings, Settings
from tests.clusters import open_cluster
from tests.signing_in import (
    CLIENT,
    PASSWORD,
    SCOPE,
    SECRET,
    SIGNER,
    USER,
    Certificates,
    OidcServer,
    clients_of,
    fake_signer,
    make_certificates,
)
from tests.unit.fakes import raise_error
from tests.waiting import WAIT, wait_until

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def oidc() -> Iterator[OidcServer]:
    with closing(OidcServer()) as server:
        yield server


@pytest.fixture
def ways(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """librdkafka's settings of each way to sign in."""
    monkeypatch.setitem(sys.modules, SIGNER, fake_signer())
    servers = dict.fromkeys(("PLAIN", "SCRAM", "MTLS", "OAUTH"), "a:1")
    return {
        way: dict(ClientSettings(kafka))
        for way, (_, kafka) in clients_of(certificates, servers, "https://127.0.0.1:9/token").items()
    }


def raised_message(kind: type[Exception], call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments)
    return str(caught.value)


# What each client gets.


def test_confluent_kafka_gets_the_settings_as_they_are_and_tokens_from_a_source(
    ways: dict[str, dict[str, str]],
) -> None:
    """Capitals, because brokers compare mechanisms as they are; the name of a setting with two is one."""
    oauth = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    changed: dict[str, dict[str, Any]] = {
        "PLAIN": {},
        "SCRAM over TLS": {"sasl.mechanism": "SCRAM-SHA-512"},
        "a callback": {"oauth_cb": TokenSource, **oauth},
        "AWS MSK IAM": {"oauth_cb": TokenSource, **oauth},
    }
    for way, kafka in ways.items():
        found = SignIn(kafka).of_librdkafka()
        if "oauth_cb" in found:
            found["oauth_cb"] = type(found["oauth_cb"])
        left = {n: v for n, v in kafka.items() if n not in ("oauth.cb", "sasl.mechanisms")}
        assert (way, found) == (way, left | changed.get(way, {}))


def test_authorities_of_an_oidc_server_are_those_of_the_system(ways: dict[str, dict[str, str]]) -> None:
    """The library in the wheel has the path of Red Hat; on other systems it found none."""
    kafka = {name: value for name, value in ways["OIDC"].items() if not name.startswith("https.")}
    assert SignIn(kafka).of_librdkafka()["https.ca.location"] == "probe"


def test_kafka_python_gets_the_same_sign_in(ways: dict[str, dict[str, str]]) -> None:
    password = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    oauth = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    tokens = oauth | {"ssl_context": "a context", "sasl_oauth_token_provider": "a source"}
    names = {"ssl_context": "a context", "sasl_oauth_token_provider": "a source"}
    found = {}
    for way, kafka in ways.items():
        settings = Settings(bootstrap_servers="a:1, b:2", kafka=ClientSettings(kafka))
        found[way] = {name: names.get(name, value) for name, value in connection(settings).items()}
        assert found[way].pop("bootstrap_servers") == ["a:1", "b:2"]
    assert found == {
        "PLAIN": {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", **password},
        "SCRAM over TLS": {
            "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "ssl_context": "a context", **password,
        },
        "mTLS from files": {"security_protocol": "SSL", "ssl_context": "a context"},
        "mTLS from texts": {"security_protocol": "SSL", "ssl_context": "a context"},
        "OIDC": tokens,
        "a callback": tokens,
        "AWS MSK IAM": tokens,
    }  # fmt: skip


@pytest.mark.parametrize("written", ["none", "None"])
def test_java_checks_no_host_name_if_librdkafka_does_not(ways: dict[str, dict[str, str]], written: str) -> None:
    kafka = ways["mTLS from files"] | {"ssl.endpoint.identification.algorithm": written}
    assert of_java(kafka)["ssl.endpoint.identification.algorithm"] == ""


def test_private_key_from_a_text_is_in_no_file_afterwards(
    ways: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    SignIn(ways["mTLS from texts"]).of_kafka_python()
    assert list(tmp_path.iterdir()) == []


def test_java_gets_the_same_sign_in(ways: dict[str, dict[str, str]], certificates: Certificates) -> None:
    ca = {"ssl.truststore.location": certificates.path("ca.pem"), "ssl.truststore.type": "PEM"}
    tls = {"security.protocol": "SASL_SSL", **ca}
    client = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificates.client.certificate}
    login = "org.apache.kafka.common.security"
    user = f'required username="{USER}" password="hun\\"ter\\\\2";'
    pem = certificates.authority.certificate.replace("\n", "\\n")
    del ways["a callback"]
    assert {way: of_java(kafka) for way, kafka in ways.items() if way != "mTLS from texts"} == {
        "PLAIN": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f"{login}.plain.PlainLoginModule {user}",
        },
        "SCRAM over TLS": {
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": f"{login}.scram.ScramLoginModule {user}", **tls,
        },
        "mTLS from files": {
            "security.protocol": "SSL", "ssl.keystore.key": certificates.client.key, **ca, **client,
        },
        "OIDC": {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": OIDC_HANDLER,
            "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:9/token",
            "sasl.jaas.config": (
                f'{login}.oauthbearer.OAuthBearerLoginModule required clientId="{CLIENT}" clientSecret="{SECRET}" '
                f'scope="{SCOPE}" extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2" '
                f'ssl.truststore.type="PEM" ssl.truststore.certificates="{pem}";'
            ),
            **tls,
        },
        "AWS MSK IAM": {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.client.callback.handler.class": AWS_HANDLER,
            "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
            **tls,
        },
    }  # fmt: skip
    texts = of_java(ways["mTLS from texts"])
    assert texts.pop("ssl.keystore.key").startswith("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert texts == {
        "security.protocol": "SSL",
        "ssl.key.password": PASSWORD,
        "ssl.truststore.certificates": certificates.authority.certificate,
        "ssl.truststore.type": "PEM",
        **client,
    }


@pytest.mark.parametrize(
    ("kafka", "named"),
    [
        ({"security.protocol": "ssl", "ssl.keystore.location": "k.p12"}, "ssl.keystore.location"),
        ({"security.protocol": "ssl", "ssl.curves.list": "X25519"}, "ssl.curves.list"),
        (
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            },
            "sasl.oauthbearer.grant.type=urn:ietf:params:oauth:grant-type:jwt-bearer",
        ),
        (
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
            },
            "sasl.oauthbearer.metadata.authentication.type",
        ),
        (
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "OAUTHBEARER",
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
            },
            "enable.sasl.oauthbearer.unsecure.jwt",
        ),
    ],
)
def test_leave_on_stop_refuses_a_security_setting_without_a_counterpart(kafka: dict[str, str], named: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"^{re.escape(named)} has no counterpart in kafka-python, which asks about "
    ):
        open_cluster(Settings(kafka=ClientSettings(kafka), leave_on_stop=True))
    open_cluster(Settings(kafka=ClientSettings(kafka)))


def test_kafka_python_is_imported_whole_by_threads_that_need_it_at_once() -> None:
    """Its modules import each other, and a thread that began at another one got half of a module."""
    program = """
import sys, threading
from kstreams_py.kafka.administration import import_kafka
half, over, failed = threading.Event(), threading.Event(), []
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "kafka.admin.client":
            half.set()
            over.wait(0.5)  # the second thread is stopped by the lock, or it fails
sys.meta_path.insert(0, Slow())
def use():
    try:
        import_kafka()
        from kafka.net.sasl.oauth import AbstractTokenProvider
    except Exception as error:
        failed.append(error)
    over.set()
first, second = threading.Thread(target=use), threading.Thread(target=use)
first.start()
assert half.wait(60)
second.start()
first.join(), second.join()
print(failed)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_kafka_python_is_not_imported_with_the_command_line_and_knows_our_settings() -> None:
    """In their own process: the import of kafka-python warns, which is an error in the tests."""
    program = """
import sys, warnings
import kstreams_py.cli.main
print("kafka" in sys.modules, "kstreams_py.kafka.administration" in sys.modules)
from kstreams_py.kafka.administration import connection, import_kafka
from kstreams_py.kafka.credentials.sources import of_callback
import_kafka()
from kafka import KafkaAdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.manager import KafkaConnectionManager
taken = {"security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password",
         "sasl_kerberos_service_name", "sasl_oauth_token_provider", "bootstrap_servers"}
print(sorted(taken - set(KafkaAdminClient.DEFAULT_CONFIG)))
print(isinstance(of_callback("os:getcwd", ""), AbstractTokenProvider))
private = ["_find_coordinator_id", "_get_cluster_metadata", "_async_get_leader_for_partitions"]
print([name for name in private if not hasattr(KafkaAdminClient, name)], hasattr(KafkaConnectionManager, "run"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n[]\nTrue\n[] True\n"


def test_kafka_python_is_pinned_to_the_minor_version_whose_private_names_are_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pin,) = (each for each in project["dependencies"] if each.startswith("kafka-python"))
    installed = importlib.metadata.version("kafka-python")
    major, minor, _ = installed.split(".")
    assert pin == f"kafka-python>={installed},<{major}.{int(minor) + 1}"


# Tokens.


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Asked:
    """What gives tokens of 100 seconds, or raises what it is given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.count = 0
        self.failure: BaseException | None = None
        self.may_return = threading.Event()
        self.may_return.set()

    def __call__(self) -> Token:
        self.count += 1
        number = self.count
        self.may_return.wait()
        if self.failure is not None:
            raise self.failure
        return Token(f"t{number}", self._clock.now + 100)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def asked(clock: Clock) -> Asked:
    return Asked(clock)


@pytest.fixture
def source(clock: Clock, asked: Asked) -> TokenSource:
    return TokenSource("oauth_cb vault:token", asked, clock)


def refusal(source: TokenSource, limit: float = 30.0) -> str:
    with pytest.raises(BrokerUnavailable) as caught:
        source.get(limit)
    return str(caught.value)


NO_TOKEN: Final = "cannot sign in to any broker: oauth_cb vault:token provides no token: "


def test_token_is_asked_for_once_and_again_before_it_expires(clock: Clock, asked: Asked, source: TokenSource) -> None:
    found = []
    for now in (1_000, 1_079, 1_081, 1_160, 1_162):
        clock.now = now
        found.append((now, source.get().value, source("")[:2], source.token(), source.extensions()))
    first, second, third = (("t1", 1_100.0), ("t2", 1_181.0), ("t3", 1_262.0))
    rows = [(1_000, first), (1_079, first), (1_081, second), (1_160, second), (1_162, third)]
    assert found == [(now, given[0], given, given[0], {}) for now, given in rows]
    assert asked.count == 3


def test_callback_that_fails_is_an_outage_and_is_asked_again(
    clock: Clock, asked: Asked, source: TokenSource, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that has not expired is used meanwhile, and the log says why."""
    caplog.set_level("INFO", logger="kstreams_py.kafka.credentials.tokens")
    asked.failure = RuntimeError("the vault is sealed")
    assert refusal(source) == f"{NO_TOKEN}RuntimeError: the vault is sealed"
    asked.failure = SystemExit(3)
    assert refusal(source) == f"{NO_TOKEN}it raised SystemExit(3)"
    asked.failure = None
    assert source.get().value == "t3"
    asked.failure, clock.now = TimeoutError("no route"), 1_090
    assert source.get().value == "t3"
    clock.now = 1_100
    assert refusal(source) == f"{NO_TOKEN}TimeoutError: no route"
    asked.failure = None
    assert source.get().value == "t6"
    assert caplog.messages == [
        "oauth_cb vault:token provides tokens again",
        "oauth_cb vault:token provides no token: TimeoutError: no route; the previous one is used for another 10 s",
        "oauth_cb vault:token provides tokens again",
    ]


def test_callback_that_hangs_is_named_and_is_called_once_until_it_returns(
    clock: Clock, asked: Asked, source: TokenSource
) -> None:
    asked.may_return.clear()
    assert refusal(source, 0.01) == f"{NO_TOKEN}it has not returned for 0 s"
    clock.now += 40
    assert refusal(source, 0.01) == f"{NO_TOKEN}it has not returned for 40 s"
    assert asked.count == 1
    asked.may_return.set()
    assert (source.get().value, asked.count) == ("t1", 1)


def test_clients_that_ask_at_once_get_one_token(asked: Asked, source: TokenSource) -> None:
    asked.may_return.clear()
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(source.get().value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    asked.may_return.set()
    for thread in threads:
        thread.join()
    assert (found, asked.count) == (["t1"] * 8, 1)


def test_token_does_not_show_and_one_that_no_client_sends_is_refused() -> None:
    token = Token("ey.secret", 1.0, USER, {"pool": "p"})
    assert repr(token) == f"Token(expires=1.0, principal='{USER}', extensions={{'pool': 'p'}})"
    rows: list[tuple[str, dict[str, str]]] = [
        ("", {}), ("ey secret", {}), ("ey\x01auth=b", {}), ("ey.secret", {"auth": "b"}),
        ("ey.secret", {"pool-id": "p"}), ("ey.secret", {"pool": "p\x01auth=b"}),
    ]  # fmt: skip
    for value, extensions in rows:
        with pytest.raises(ValueError, match=r"other than visible ASCII|is not a SASL extension") as caught:
            Token(value, 1.0, "", extensions)
        assert "secret" not in str(caught.value)


def test_expired_token_is_a_failure_that_says_so(clock: Clock) -> None:
    source = TokenSource("oauth_cb vault:token", lambda: Token("t", clock.now), clock)
    assert refusal(source) == f"{NO_TOKEN}its token has expired: the expiry is in seconds since 1970"


# Where they come from.


def of_module(text: str, name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The target of function `token` in a module of this text, in a directory of sys.path."""
    (directory / f"{name}.py").write_text(f"import time\nLATER = time.time() + 60\n{text}")
    monkeypatch.syspath_prepend(directory)
    return f"{name}:token"


def test_callback_gets_the_config_and_returns_what_confluent_kafka_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "(config, LATER)": ("a=b", "", {}),
        "[config, int(LATER), 'alice']": ("a=b", "alice", {}),
        "(config, LATER, 'alice', {'pool': 'p'})": ("a=b", "alice", {"pool": "p"}),
    }
    found = {}
    for number, returned in enumerate(rows):
        name = f"callback_{tmp_path.name}_{number}".replace("-", "_")
        target = of_module(f"def token(config): return {returned}", name, tmp_path, monkeypatch)
        token = sources.of_callback(target, "a=b").get()
        found[returned] = (token.value, token.principal, dict(token.extensions))
        assert sources.of_callback(target, "a=b") is sources.of_callback(target, "a=b")
    assert found == rows
    for number, returned in enumerate(("7", "('t', 'soon')", "('t',)", "None", "('t', LATER, 'alice', 5)")):
        name = f"mistaken_{tmp_path.name}_{number}".replace("-", "_")
        target = of_module(f"def token(config): return {returned}", name, tmp_path, monkeypatch)
        assert "provides no token: it returned a" in refusal(sources.of_callback(target, "a=b"))


def test_config_of_a_callback_does_not_show_with_what_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def token(config): raise ValueError(f'no vault takes {config}')"
    source = sources.of_callback(of_module(text, "vault_that_tells", tmp_path, monkeypatch), "secret=hunter2")
    assert refusal(source).endswith("provides no token: ValueError: no vault takes ***")


def test_module_of_a_callback_is_looked_for_in_the_current_directory_last(tmp_path: Path) -> None:
    """As that of a graph is. Nothing there shadows a module, or is imported because a library looks for it."""
    for name in ("mine", "gssapi", "kafka"):
        (tmp_path / f"{name}.py").write_text(f"print('imported {name}')\ntoken = print\n")
    program = """
import sys
sys.path.remove("")
from kstreams_py.kafka.credentials.sources import of_callback
of_callback("os:getcwd", "")
before = list(sys.path)
of_callback("mine:token", "")
print([each for each in sys.path if each not in before] == [sys.argv[1]], sys.path[-1] == sys.argv[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.stdout == "imported mine\nTrue True\n"


def of_oidc(server: OidcServer, **changed: str) -> TokenSource:
    settings = {
        "client.id": CLIENT, "client.secret": SECRET, "scope": SCOPE, "token.endpoint.url": server.url,
        "extensions": "logicalCluster=lkc-1", **{name.replace("_", "."): value for name, value in changed.items()},
    }  # fmt: skip
    return sources.of_oidc({f"sasl.oauthbearer.{name}": value for name, value in settings.items()})


def test_oidc_server_is_asked_for_kafka_python_as_by_librdkafka(oidc: OidcServer) -> None:
    source = of_oidc(oidc)
    token = source.get()
    assert (token.principal, token.extensions, oidc.given) == (USER, {"logicalCluster": "lkc-1"}, 1)
    assert (of_oidc(oidc), of_oidc(oidc).get(), oidc.given) == (source, token, 1)


def test_oidc_server_that_refuses_the_client_is_no_outage_and_one_that_is_away_is(oidc: OidcServer) -> None:
    found = {}
    for name, source in {"secret": of_oidc(oidc, client_secret="no"), "scope": of_oidc(oidc, scope="no")}.items():
        with pytest.raises(BrokerUnavailable) as caught:
            source.get()
        found[name] = caught.value.may_return, str(caught.value).partition("/token provides no token: ")[2]
    for status in (302, 500, 503):
        oidc.status = status
        with pytest.raises(BrokerUnavailable) as caught:
            of_oidc(oidc).get()
        found[str(status)] = caught.value.may_return, str(caught.value).partition("/token provides no token: ")[2]
    correct = ": correct sasl.oauthbearer.client.id, client.secret and scope"
    assert found == {
        "secret": (False, f"it answers with status 401{correct}"),
        "scope": (False, f"it answers with status 400{correct}"),
        "302": (True, "it answers with status 302"),
        "500": (True, "it answers with status 500"),
        "503": (True, "it answers with status 503"),
    }


def test_signer_of_aws_is_asked_with_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = {"security.protocol": "sasl_ssl", "sasl.mechanism": "aws_msk_iam"}
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    signer: Any = fake_signer()
    regions: list[str] = []

    def sign(region: str) -> tuple[str, int]:
        regions.append(region)
        return f"of-{region}", int((time.time() + 900) * 1000)

    signer.generate_auth_token = sign
    monkeypatch.setitem(sys.modules, SIGNER, signer)
    sources.of_aws.cache_clear()
    assert "needs the region of the cluster: set AWS_REGION, or" in raised_message(SettingsError, SignIn, kafka)
    for region in ("", "region=eu-west-1"):
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
        tokens = SignIn({**kafka, "sasl.oauthbearer.config": region}).tokens
        assert tokens is not None
        assert tokens.get().value == f"of-{regions[-1]}"
    assert regions == ["us-east-2", "eu-west-1"]
    sources.of_aws.cache_clear()
    monkeypatch.delitem(sys.modules, SIGNER)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    assert raised_message(MissingSoftware, SignIn, kafka) == (
        "sasl.mechanism=AWS_MSK_IAM needs the package 'aws_msk_iam_sasl_signer': pip install 'kstreams_py[msk]'"
    )


# What the clients do with it.


OUTAGE: Final = "Failed to acquire SASL OAUTHBEARER token: Failed to connect to 127.0.0.1:1"
REFUSED: Final = 'Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}'


def test_tokens_that_do_not_come_are_an_outage_and_a_refused_client_is_not() -> None:
    rows = {OUTAGE: False, REFUSED: True, "Failed to acquire SASL OAUTHBEARER token: JWT lifetime": False, "SASL": True}
    assert {text: refuses_credentials(ck.KafkaError(E._AUTHENTICATION, text)) for text in rows} == rows
    assert isinstance(classify(ck.KafkaError(E._AUTHENTICATION, OUTAGE), "reading"), Retriable)
    log = ClientLog("a client")
    for text in (OUTAGE, REFUSED, OUTAGE):
        log.on_error(ck.KafkaError(E._AUTHENTICATION, text))
    assert log.error is not None
    assert (log.error.str(), log.connection) == (REFUSED, OUTAGE)


@pytest.mark.parametrize("of_callback", [True, False])
def test_token_that_expired_because_no_other_one_came_is_an_outage(
    source: TokenSource, asked: Asked, of_callback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client signs in with it until it has another one, and the broker refuses it: a worker ended by that."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    log = ClientLog("a client")
    if of_callback:
        log.tokens, asked.failure = source, RuntimeError("the vault is sealed")
        refusal(source)
    else:
        log.on_error(ck.KafkaError(E._AUTHENTICATION, OUTAGE))
    expired = ck.KafkaError(E._AUTHENTICATION, 'SASL authentication error: {"status":"invalid_token"}')
    log.on_error(expired)
    assert (log.refuses(expired), log.error is None or log.error.str() == OUTAGE) == (False, True)
    vars(log)["error"] = None
    now += 31
    log.on_error(expired)
    assert log.refuses(expired)
    assert log.error is expired


@pytest.mark.parametrize(
    ("code", "text", "is_refused"),
    [
        (
            E._AUTHENTICATION,
            "SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism: broker's",
            True,
        ),
        (E._AUTHENTICATION, "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's", False),
        (E._AUTHENTICATION, "SASL PLAIN mechanism handshake failed: Local: Timed out: broker's", False),
        (E._AUTHENTICATION, "handshake failed: Broker: Request not valid in current SASL state: broker's", False),
        (E._AUTHENTICATION, "SASL authentication error: Authentication failed: Invalid username or password", True),
        (E._SSL, "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker", True),
        (E._SSL, "SSL handshake failed: SSL transport error: Connection timed out", False),
    ],
)
def test_lost_connection_does_not_count_as_refused_credentials(code: int, text: str, is_refused: bool) -> None:
    error = ck.KafkaError(code, text)
    log = ClientLog("a client")
    log.on_error(error)
    assert (log.refuses(error), log.error) == (is_refused, error if is_refused else None)


def test_client_of_a_callback_without_tokens_is_not_made_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """confluent-kafka itself waits 10 s, and reports no reason. An admin client raises BrokerUnavailable."""
    target = of_module("def token(config): raise LookupError('no vault')", "vault_that_is_away", tmp_path, monkeypatch)
    kafka = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": target}
    settings = Settings(bootstrap_servers="127.0.0.1:1", kafka=ClientSettings(kafka))
    cluster = open_cluster(settings)
    why = f"cannot sign in to any broker: oauth_cb {target} provides no token: LookupError: no vault"
    assert raised_message(Retriable, cluster.consumer, "g", "g.0") == why
    assert raised_message(Retriable, cluster.ends, [TopicPartition("in", 0)]) == why
    assert raised_message(BrokerUnavailable, cluster.topics, ["in"]) == why
    assert raised_message(BrokerUnavailable, GroupAdmin(settings).describe, ["g"]) == why


def test_member_that_joins_again_without_a_token_keeps_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "tokens = [('t', LATER)]\ndef token(config): return tokens[0]"
    target = of_module(text, "vault_that_goes_away", tmp_path, monkeypatch)
    kafka = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": target}
    member = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", kafka=ClientSettings(kafka))).consumer("g", "g.0")
    monkeypatch.setattr(TokenSource, "get", lambda *_: raise_error(BrokerUnavailable("no vault")))
    with pytest.raises(Retriable, match="no vault"):
        member.rejoin()
    assert list(member.consume(1, 0.01)) == []
    member.close()


def test_token_is_renewed_by_the_client_before_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "calls = []\ndef token(config):\n    calls.append(1)\n    return 't', time.time() + 3"
    target = of_module(text, "vault_of_short_tokens", tmp_path, monkeypatch)
    kafka = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": target}
    member = open_cluster(Settings(bootstrap_servers="127.0.0.1:1", kafka=ClientSettings(kafka))).consumer("g", "g.0")
    wait_until(lambda: len(sys.modules["vault_of_short_tokens"].calls) >= 2, "another token", pause=0.05)
    member.close()


# What the document says.


def test_examples_of_the_document_are_accepted_as_printed(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the files and the secrets that it names elsewhere."""
    monkeypatch.setitem(sys.modules, SIGNER, fake_signer())
    text = (
        (ROOT / "docs" / "signing-in.md")
        .read_text(encoding="utf-8")
        .replace("/etc/kafka/", f"{certificates.directory}/")
    )
    (tmp_path / "vault.py").write_text(re.findall(r"<!-- vault.py -->\n```python\n(.*?)```", text, re.DOTALL)[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KSTREAMS_KAFKA__SASL_OAUTHBEARER_CLIENT_SECRET", SECRET)
    found = []
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        if "SCRAM" in block:
            monkeypatch.setenv("KSTREAMS_KAFKA__SASL_PASSWORD", PASSWORD)
        kafka = dict(Settings.load(file).kafka)
        if "SASL" not in block:  # the secrets are of other examples
            kafka = {name: value for name, value in kafka.items() if not name.startswith("sasl.")}
        sign_in = SignIn(kafka)
        found.append((sign_in.protocol, sign_in.mechanism))
        if sign_in.tokens is not None and "oauth.cb" in kafka:
            assert sign_in.tokens.token() == "a-token-for-shop"
    assert found == [
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SSL", ""),
        ("SASL_SSL", "OAUTHBEARER"),
        ("SASL_SSL", "OAUTHBEARER"),
        ("SASL_SSL", "AWS_MSK_IAM"),
        ("PLAINTEXT", ""),
    ]
    found_registry = Settings.load(tmp_path / "5.toml")
    open_registry(str(found_registry.schema_registry_url), tmp_path, found_registry.schema_registry)
