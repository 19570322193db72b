"""Settings by which clients sign in: what contradicts itself, and files that are not what they should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from kstreams_py.errors import UserMistake
from kstreams_py.kafka.credentials.java import of_java
from kstreams_py.settings import ClientSettings, Settings
from tests.clusters import open_cluster
from tests.hostile import Outcome, Place
from tests.signing_in import PASSWORD, Certificates, issue, make_certificates

ACCEPTED, REFUSED = Outcome.OUTPUT, Outcome.REFUSED
SECRETS: Final = ("hunter2", PASSWORD, "s3cr3t")

PLAIN: Final = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
USER: Final = {"sasl.username": "alice", "sasl.password": "hunter2"}
OAUTH: Final = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OIDC: Final = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "a client",
    "sasl.oauthbearer.client.secret": "s3cr3t",
    "sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:9/token",
}
TLS: Final = {"security.protocol": "SSL"}
CERTIFICATE: Final = {"ssl.certificate.location": "{client.pem}", "ssl.key.location": "{client.key}"}
TEXTS: Final = {"ssl.certificate.pem": "{text of client.pem}", "ssl.key.pem": "{text of client.key}"}


def callback(_: str) -> tuple[str, float]:
    raise RuntimeError("no settings call it")


def _files(directory: Any) -> Certificates:
    made = make_certificates(directory)
    others = {
        "other.key": issue("another").key,
        "encrypted.key": made.client.encrypted_key(PASSWORD),
        "rsa.key": "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n",
        "named.pem": f"# Zertifizierungsstelle für Tests\n{made.authority.certificate}",
        "text.pem": "hunter2",
        "empty.pem": "",
        "cut.pem": made.authority.certificate[:80],
    }
    for name, text in others.items():
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "bytes.pem").write_bytes(b"\x30\x82\xff\xfe")
    return made


def _filled(kafka: Mapping[str, str], made: Certificates) -> ClientSettings:
    """The settings, with `{a file}` and `{text of a file}` replaced."""
    found = {}
    for name, value in kafka.items():
        file = value[1:-1].removeprefix("text of ")
        if value.startswith("{text of "):
            value = (made.directory / file).read_text(encoding="utf-8")  # noqa: PLW2901
        found[name] = made.path(file) if value.startswith("{") else value
    return ClientSettings(found)


def _outcome(use: Callable[[ClientSettings], object], kafka: ClientSettings) -> Outcome:
    """What becomes of settings; no message shows a secret."""
    try:
        use(kafka)
    except UserMistake as error:
        message = str(error)
    else:
        return ACCEPTED
    assert [secret for secret in (*SECRETS, "PRIVATE KEY") if secret in message] == []
    return REFUSED


def enter(rows: Mapping[str, Any], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """Opens a cluster, as each worker and command does before anything else."""
    made = _files(request.getfixturevalue("tmp_path"))

    def start(kafka: ClientSettings) -> None:
        open_cluster(Settings(bootstrap_servers="127.0.0.1:9", kafka=kafka))

    return {name: _outcome(start, _filled(kafka, made)) for name, kafka in rows.items()}


def enter_into_spark(rows: Mapping[str, Any], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """Translates the settings for Java's client."""
    made = _files(request.getfixturevalue("tmp_path"))

    return {name: _outcome(of_java, _filled(kafka, made)) for name, kafka in rows.items()}


PLACES: Final = [
    Place(
        "signing in, settings",
        {
            "nothing": ({}, ACCEPTED),
            "empty texts": ({"security.protocol": "", "sasl.mechanism": "", "ssl.ca.pem": ""}, ACCEPTED),
            # what would not be used
            "password without a protocol": (USER, REFUSED),
            "password with a protocol without SASL": ({**TLS, **USER}, REFUSED),
            "authorities without TLS": ({"ssl.ca.location": "{ca.pem}"}, REFUSED),
            "authorities over SASL without TLS": (
                {**PLAIN, **USER, "security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "{ca.pem}"},
                REFUSED,
            ),
            "callback without SASL": ({"oauth_cb": "tests.hostile.signing_in:callback"}, REFUSED),
            "callback with another mechanism": (
                {**PLAIN, **USER, "oauth_cb": "tests.hostile.signing_in:callback"},
                REFUSED,
            ),
            "verification switched off without TLS": ({"enable.ssl.certificate.verification": "false"}, REFUSED),
            # what there is not
            "unknown protocol": ({"security.protocol": "TLS"}, REFUSED),
            "unknown mechanism": ({**PLAIN, **USER, "sasl.mechanism": "PLAINTEXT"}, REFUSED),
            "mechanism in small letters": ({**PLAIN, **USER, "sasl.mechanism": "plain"}, ACCEPTED),
            "mechanism without a password": ({**PLAIN, "sasl.username": "alice"}, REFUSED),
            "mechanism without a user": ({**PLAIN, "sasl.password": "hunter2"}, REFUSED),
            "two names of the mechanism": ({**PLAIN, **USER, "sasl.mechanisms": "PLAIN"}, ACCEPTED),
            "two names of the mechanism that differ": ({**PLAIN, **USER, "sasl.mechanisms": "SCRAM-SHA-256"}, REFUSED),
            # tokens
            "tokens from nowhere": (OAUTH, REFUSED),
            "callback": ({**OAUTH, "oauth_cb": "tests.hostile.signing_in:callback"}, ACCEPTED),
            "callback that was a function": ({**OAUTH, "oauth_cb": str(callback)}, REFUSED),
            "callback without a module": ({**OAUTH, "oauth_cb": "callback"}, REFUSED),
            "callback of an unknown module": ({**OAUTH, "oauth_cb": "no_such_module:callback"}, REFUSED),
            "callback of another name": ({**OAUTH, "oauth_cb": "tests.hostile.signing_in:no_such"}, REFUSED),
            "callback that is not a function": ({**OAUTH, "oauth_cb": "tests.hostile.signing_in:USER"}, REFUSED),
            "callback whose module is a path": ({**OAUTH, "oauth_cb": "../signing_in.py:callback"}, REFUSED),
            "callback that is code": ({**OAUTH, "oauth_cb": "os:system('true')"}, REFUSED),
            "callback beside OIDC": ({**OAUTH, **OIDC, "oauth_cb": "tests.hostile.signing_in:callback"}, REFUSED),
            "OIDC": ({**OAUTH, **OIDC}, ACCEPTED),
            "OIDC by the other names": (
                {**OAUTH, **{name.replace(".client.", ".client.credentials.client."): v for name, v in OIDC.items()}},
                ACCEPTED,
            ),
            "OIDC without a secret": ({**OAUTH, **OIDC, "sasl.oauthbearer.client.secret": ""}, REFUSED),
            "OIDC without an endpoint": ({**OAUTH, **OIDC, "sasl.oauthbearer.token.endpoint.url": ""}, REFUSED),
            "OIDC at a file": ({**OAUTH, **OIDC, "sasl.oauthbearer.token.endpoint.url": "file:///etc"}, REFUSED),
            "OIDC with an extension that is none": ({**OAUTH, **OIDC, "sasl.oauthbearer.extensions": "pool"}, REFUSED),
            "OIDC with authorities that are no PEM": ({**OAUTH, **OIDC, "https.ca.pem": "hunter2"}, REFUSED),
            "OIDC with authorities twice": (
                {**OAUTH, **OIDC, "https.ca.pem": "{text of ca.pem}", "https.ca.location": "{ca.pem}"},
                REFUSED,
            ),
            "AWS without TLS": ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "AWS_MSK_IAM"}, REFUSED),
            # certificates
            "authorities in a file": ({**TLS, "ssl.ca.location": "{ca.pem}"}, ACCEPTED),
            "authorities in a text": ({**TLS, "ssl.ca.pem": "{text of ca.pem}"}, ACCEPTED),
            "authorities twice": ({**TLS, "ssl.ca.pem": "{text of ca.pem}", "ssl.ca.location": "{ca.pem}"}, REFUSED),
            "authorities in no file": ({**TLS, "ssl.ca.location": "/no/such/file"}, REFUSED),
            "authorities that are a text": ({**TLS, "ssl.ca.location": "{text.pem}"}, REFUSED),
            "authorities that are empty": ({**TLS, "ssl.ca.location": "{empty.pem}"}, REFUSED),
            "authorities that are cut off": ({**TLS, "ssl.ca.location": "{cut.pem}"}, REFUSED),
            "authorities that are bytes": ({**TLS, "ssl.ca.location": "{bytes.pem}"}, REFUSED),
            "authorities in a text that is no PEM": ({**TLS, "ssl.ca.pem": "hunter2"}, REFUSED),
            "authorities in a text that is a path": ({**TLS, "ssl.ca.pem": "{ca.pem}"}, REFUSED),
            "authorities in a text without line breaks": ({**TLS, "ssl.ca.pem": r"-----BEGIN C\nAA\n"}, REFUSED),
            "authorities under the name of one": ({**TLS, "ssl.ca.pem": "{text of named.pem}"}, ACCEPTED),
            "authorities in a text with characters": ({**TLS, "ssl.ca.pem": "Schlüssel"}, REFUSED),
            "certificate in files": ({**TLS, **CERTIFICATE}, ACCEPTED),
            "certificate in texts": ({**TLS, **TEXTS}, ACCEPTED),
            "certificate in both": ({**TLS, **CERTIFICATE, **TEXTS}, REFUSED),
            "certificate without a key": ({**TLS, "ssl.certificate.location": "{client.pem}"}, REFUSED),
            "key without a certificate": ({**TLS, "ssl.key.pem": "{text of client.key}"}, REFUSED),
            "key of another": ({**TLS, **CERTIFICATE, "ssl.key.location": "{other.key}"}, REFUSED),
            "key that is a certificate": ({**TLS, **CERTIFICATE, "ssl.key.location": "{client.pem}"}, REFUSED),
            "key that is a text": ({**TLS, **TEXTS, "ssl.key.pem": "hunter2"}, REFUSED),
            "key in place of its path": ({**TLS, **CERTIFICATE, "ssl.key.location": "{text of client.key}"}, REFUSED),
            "path with a zero byte": ({**TLS, "ssl.ca.location": "a\0b"}, REFUSED),
            "key path with a zero byte": ({**TLS, **CERTIFICATE, "ssl.key.location": "a\0b"}, REFUSED),
            "key in a directory": ({**TLS, **CERTIFICATE, "ssl.key.location": "/"}, REFUSED),
            "encrypted key without a password": (
                {**TLS, **CERTIFICATE, "ssl.key.location": "{encrypted.key}"},
                REFUSED,
            ),
            "encrypted key with another password": (
                {**TLS, **CERTIFICATE, "ssl.key.location": "{encrypted.key}", "ssl.key.password": "hunter2"},
                REFUSED,
            ),
            "encrypted key": (
                {**TLS, **CERTIFICATE, "ssl.key.location": "{encrypted.key}", "ssl.key.password": PASSWORD},
                ACCEPTED,
            ),
            "password of a key that has none": ({**TLS, **TEXTS, "ssl.key.password": "hunter2"}, ACCEPTED),
            "ciphers that there are not": ({**TLS, "ssl.cipher.suites": "ROT13"}, REFUSED),
            "revoked certificates in no file": ({**TLS, "ssl.crl.location": "/no/such/file"}, REFUSED),
        },
        enter,
    ),
    Place(
        "signing in, settings of Spark",
        {
            "OIDC": ({**OAUTH, **OIDC}, ACCEPTED),
            "callback": ({**OAUTH, "oauth_cb": "tests.hostile.signing_in:callback"}, REFUSED),
            "certificate in files": ({**TLS, **CERTIFICATE}, ACCEPTED),
            "key that Java does not read": ({**TLS, **CERTIFICATE, "ssl.key.location": "{rsa.key}"}, REFUSED),
            "no verification": ({**TLS, "enable.ssl.certificate.verification": "false"}, REFUSED),
            "revoked certificates": ({**TLS, "ssl.crl.location": "{ca.pem}"}, REFUSED),
            "ciphers": ({**TLS, "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"}, REFUSED),
            "curves": ({**TLS, "ssl.curves.list": "X25519"}, REFUSED),
            "tokens of a service account": (
                {**OAUTH, **OIDC, "sasl.oauthbearer.metadata.authentication.type": "azure_imds"},
                REFUSED,
            ),
            "tokens for an assertion": (
                {**OAUTH, **OIDC, "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
                REFUSED,
            ),
            "ticket": ({"security.protocol": "SASL_SSL"}, REFUSED),
            "password without a protocol": (USER, REFUSED),
        },
        enter_into_spark,
    ),
]
