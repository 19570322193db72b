"""Translates librdkafka's settings for Java's client, which Spark uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kstreams_py.errors import SettingsError
from kstreams_py.kafka.credentials.sign_in import OAUTH, SignIn, shown
from kstreams_py.kafka.credentials.sources import pairs

_NAMES: Final = {
    **{
        name: name
        for name in (
            "client.dns.lookup", "client.rack", "connections.max.idle.ms", "metadata.max.age.ms",
            "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms",
            "socket.connection.setup.timeout.ms", "ssl.endpoint.identification.algorithm",
            "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password",
        )
    },
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
    "ssl.key.pem": "ssl.keystore.key",
}  # fmt: skip
"""Java's names of connection settings, by librdkafka's names. Settings neither here nor for SASL are left out."""

_ONLY_OPENSSL: Final = ("ssl.crl.location", "ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list")
"""Settings that make a connection safer, and that Java has under other names or not at all."""

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "AWS_MSK_IAM": "software.amazon.msk.auth.iam.IAMLoginModule",
}

OIDC_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
AWS_HANDLER: Final = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
"""This class is in the jar software.amazon.msk:aws-msk-iam-auth, which the Spark session needs."""

_ONLY_PKCS8: Final = re.compile(r"-----BEGIN (RSA|EC|DSA) PRIVATE KEY-----")


def of_java(kafka: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of Java's client.

    Raises SettingsError for a mechanism or certificate check without a counterpart, and for unusable files.
    """
    sign_in = SignIn(kafka)
    found = {_NAMES[name]: _value(name, value) for name, value in kafka.items() if name in _NAMES and value}
    if sign_in.get("security.protocol"):
        found["security.protocol"] = sign_in.protocol
    if sign_in.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise SettingsError(
            "enable.ssl.certificate.verification = false: Java's client, which Spark uses, verifies each certificate: "
            "set ssl.ca.location or ssl.ca.pem"
        )
    for name in filter(sign_in.get, _ONLY_OPENSSL):
        raise SettingsError(f"{name} has no counterpart in Java's client, which Spark uses: remove it")
    if found.keys() & {"ssl.truststore.location", "ssl.truststore.certificates"}:
        found["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.certificate.chain" in found:
        found["ssl.keystore.type"] = "PEM"
        if _ONLY_PKCS8.search(found["ssl.keystore.key"]):
            raise SettingsError(
                "ssl.key: Java's client, which Spark uses, takes a key in PKCS #8 only: convert it "
                "(`openssl pkcs8 -topk8`)"
            )
    elif "ssl.keystore.location" in found:
        found["ssl.keystore.type"] = "PKCS12"
    return found | _sasl(sign_in)


def _sasl(sign_in: SignIn) -> dict[str, str]:
    mechanism = sign_in.mechanism
    if not mechanism:
        return {}
    options: dict[str, str] = {}
    found = {"sasl.mechanism": mechanism}
    if mechanism == "AWS_MSK_IAM":
        found["sasl.client.callback.handler.class"] = AWS_HANDLER
    elif sign_in.is_oidc:
        if other := sign_in.other_grant:
            raise SettingsError(
                f"{other} has no counterpart in Java's client, which Spark uses: give Spark a user of its own"
            )
        found["sasl.login.callback.handler.class"] = OIDC_HANDLER
        found["sasl.oauthbearer.token.endpoint.url"] = sign_in.get(f"{OAUTH}token.endpoint.url")
        options = {"clientId": sign_in.get(f"{OAUTH}client.id"), "clientSecret": sign_in.get(f"{OAUTH}client.secret")}
        if scope := sign_in.get(f"{OAUTH}scope"):
            options["scope"] = scope
        options |= {f"extension_{name}": value for name, value in pairs(sign_in.get(f"{OAUTH}extensions"))}
        options |= _authorities_of_endpoint(sign_in)
    elif mechanism == "OAUTHBEARER":
        raise SettingsError(
            "oauth_cb is Python, and Spark reads and writes in Java: use sasl.oauthbearer.method = oidc with its "
            "client.id, client.secret and token.endpoint.url, or give Spark a user of its own for another listener"
        )
    elif mechanism not in _LOGIN_MODULES:
        raise SettingsError(
            f"sasl.mechanism {mechanism} has other settings in Java than in librdkafka: read the topic without "
            "view() and stream(), with the options of spark.options(...) and your own kafka.sasl.*"
        )
    else:
        options = {name: sign_in.get(f"sasl.{name}") for name in ("username", "password")}
    written = "".join(f" {name}={_quoted(value)}" for name, value in options.items())
    return found | {"sasl.jaas.config": f"{_LOGIN_MODULES[mechanism]} required{written};"}


def _authorities_of_endpoint(sign_in: SignIn) -> dict[str, str]:
    """Returns the JAAS options with the authorities to trust for the certificate of the token endpoint."""
    place = sign_in.get("https.ca.location")
    pem = _read("https.ca.location", place) if place and place != "probe" else sign_in.get("https.ca.pem")
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem} if pem else {}


def _value(name: str, value: str) -> str:
    if name == "ssl.endpoint.identification.algorithm":
        return "" if value.lower() == "none" else value
    if name in ("ssl.certificate.location", "ssl.key.location"):
        return _read(name, value)
    return value


def _read(name: str, place: str) -> str:
    try:
        return Path(place).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
        raise SettingsError(f"{name}{shown(place)} is not a PEM file that can be read: {reason}") from None


def _quoted(text: str) -> str:
    """Returns a text as a JAAS string, with line breaks escaped: a JAAS string cannot span lines."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
