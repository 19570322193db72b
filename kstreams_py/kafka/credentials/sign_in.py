"""Checks the settings with which clients sign in, and translates them for confluent-kafka and kafka-python."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SettingsError
from kstreams_py.kafka.credentials.sources import ascii_of, of_aws, of_callback, of_oidc, pairs
from kstreams_py.kafka.credentials.tokens import TokenSource

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI")
PASSWORDS: Final = MECHANISMS[:3]
OAUTH: Final = "sasl.oauthbearer."

_ALIASES: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    f"{OAUTH}client.credentials.client.id": f"{OAUTH}client.id",
    f"{OAUTH}client.credentials.client.secret": f"{OAUTH}client.secret",
}
"""Settings of librdkafka that have two names."""

_OF_TLS: Final = re.compile(r"ssl\.|enable\.ssl\.")
_OF_SASL: Final = re.compile(r"sasl\.|oauth\.cb$|enable\.sasl\.")

_KNOWN: Final = re.compile(
    r"security\.protocol|oauth\.cb|enable\.ssl\.certificate\.verification"
    r"|ssl\.(ca|certificate|key)\.(location|pem)|ssl\.(key\.password|crl\.location|cipher\.suites)"
    r"|ssl\.endpoint\.identification\.algorithm|https\.ca\.(location|pem)"
    r"|sasl\.(mechanism|username|password)"
    # all of these except service.name fill the ticket cache, where kafka-python gets its tickets
    r"|sasl\.kerberos\.(service\.name|principal|keytab|kinit\.cmd|min\.time\.before\.relogin)"
    r"|sasl\.oauthbearer\.(method|client\.id|client\.secret|scope|extensions|token\.endpoint\.url|config|grant\.type)"
)
"""The settings that have a counterpart in kafka-python."""

_SECURITY: Final = re.compile(r"(sasl|ssl|security|https|enable\.ssl|enable\.sasl|oauth)\b")


class SignIn:
    """How the clients of one cluster sign in.

    - `protocol`, `mechanism`: as Kafka writes them; the mechanism is "" without SASL.
    - `tokens`: the source of OAUTHBEARER tokens; None if librdkafka gets its own, or if none are used.
    """

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """`kafka`: librdkafka's settings. Raises SettingsError if they contradict each other."""
        self._settings = _without_aliases(kafka)
        self.protocol = self._choice("security.protocol", PROTOCOLS, "PLAINTEXT")
        self.uses_tls = self.protocol.endswith("SSL")
        self.mechanism = ""
        self.tokens: TokenSource | None = None
        self._refuse_unused()
        if self.protocol.startswith("SASL"):
            self.mechanism = self._choice("sasl.mechanism", MECHANISMS, "GSSAPI")
            self._check_mechanism()
        if self.uses_tls:
            self._check_certificates()

    def get(self, name: str, default: str = "") -> str:
        """Returns a setting; "" counts as not set, as in librdkafka."""
        return self._settings.get(name) or default

    @property
    def is_oidc(self) -> bool:
        """Whether tokens come from an OIDC server."""
        return self.mechanism == "OAUTHBEARER" and self.get(f"{OAUTH}method").lower() == "oidc"

    @property
    def other_grant(self) -> str:
        """The setting by which librdkafka sends the OIDC server something other than a client id and secret, or ""."""
        usual = {f"{OAUTH}grant.type": "client_credentials", f"{OAUTH}metadata.authentication.type": "none"}
        return next((f"{name}={self.get(name)}" for name in usual if self.get(name, usual[name]) != usual[name]), "")

    @property
    def _of_brokers(self) -> str:
        """The mechanism as brokers know it: MSK's brokers take an AWS signature as an OAUTHBEARER token."""
        return "OAUTHBEARER" if self.mechanism == "AWS_MSK_IAM" else self.mechanism

    def of_librdkafka(self) -> dict[str, Any]:
        """Returns the settings as confluent-kafka takes them."""
        found: dict[str, Any] = dict(self._settings)
        found.pop("oauth.cb", None)
        if self.mechanism:  # in capitals: brokers compare it case-sensitively
            found["sasl.mechanism"] = self._of_brokers
        if self.tokens is not None:
            found["oauth_cb"] = self.tokens
        if self.is_oidc and not (self.get("https.ca.location") or self.get("https.ca.pem")):
            # by default, the library in the wheel looks for certificates only where Red Hat keeps them, and gets no
            # token on other systems
            found["https.ca.location"] = "probe"
        return found

    def of_kafka_python(self) -> dict[str, Any]:
        """Returns the settings as kafka-python takes them.

        Raises SettingsError for a security setting without a counterpart: it must not be left out silently.
        """
        for name in self._settings:
            if _SECURITY.match(name) and not _KNOWN.fullmatch(name):
                raise _no_counterpart(name)
        found: dict[str, Any] = {"security_protocol": self.protocol}
        if self.uses_tls:
            found["ssl_context"] = self._context()
        if self.mechanism:
            found["sasl_mechanism"] = self._of_brokers
        if self.mechanism in PASSWORDS:
            found["sasl_plain_username"] = self.get("sasl.username")
            found["sasl_plain_password"] = self.get("sasl.password")
        elif self.mechanism == "GSSAPI":
            found["sasl_kerberos_service_name"] = self.get("sasl.kerberos.service.name", "kafka")
        elif self.is_oidc:
            if other := self.other_grant:
                raise _no_counterpart(other)
            found["sasl_oauth_token_provider"] = of_oidc(self._settings)
        elif self.tokens is not None:
            found["sasl_oauth_token_provider"] = self.tokens
        return found

    def _choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        if (chosen := self.get(name, default).upper()) not in choices:
            raise SettingsError(f"{name} = {self.get(name)!r}: write one of {', '.join(choices)}")
        return chosen

    def _refuse_unused(self) -> None:
        """Raises SettingsError for settings without effect: librdkafka only logs that it connects without them."""
        for of_what, is_used, protocols in (
            (_OF_TLS, self.uses_tls, "SSL or SASL_SSL"),
            (_OF_SASL, self.protocol.startswith("SASL"), "SASL_SSL or SASL_PLAINTEXT"),
        ):
            names = [name for name in self._settings if of_what.match(name) and self.get(name)]
            if names and not is_used:
                raise SettingsError(
                    f"{min(names)} has no effect with security.protocol = {self.protocol}: set "
                    f"security.protocol to {protocols}, or remove {', '.join(sorted(names))}"
                )

    def _check_mechanism(self) -> None:
        callback = self.get("oauth.cb")
        if callback and self.mechanism != "OAUTHBEARER":
            raise SettingsError(
                f"oauth_cb has no effect with sasl.mechanism = {self.mechanism}: set that to OAUTHBEARER, or "
                "remove oauth_cb"
            )
        if self.mechanism in PASSWORDS:
            self._require("sasl.username", "sasl.password", because=f"sasl.mechanism = {self.mechanism}")
        elif self.mechanism == "AWS_MSK_IAM":
            if not self.uses_tls:
                raise SettingsError(
                    "sasl.mechanism = AWS_MSK_IAM needs security.protocol = SASL_SSL: Amazon has no other"
                )
            self.tokens = of_aws(dict(pairs(self.get(f"{OAUTH}config"))).get("region", ""))
        elif self.mechanism == "OAUTHBEARER":
            if callback and self.is_oidc:
                raise SettingsError(f"oauth_cb and {OAUTH}method = oidc exclude each other: remove one of them")
            if callback:
                self.tokens = of_callback(callback, self.get(f"{OAUTH}config"))
            elif self.is_oidc:
                self._check_oidc()
            elif self.get("enable.sasl.oauthbearer.unsecure.jwt").lower() != "true":
                raise SettingsError(
                    f"sasl.mechanism = OAUTHBEARER needs tokens: set {OAUTH}method = oidc with its client.id, "
                    "client.secret and token.endpoint.url, or oauth_cb = 'package.module:function'"
                )

    def _check_oidc(self) -> None:
        """Checks the settings of the grant client_credentials; librdkafka checks other grants itself."""
        if self.other_grant:
            return
        names = [f"{OAUTH}{name}" for name in ("client.id", "client.secret", "token.endpoint.url")]
        self._require(*names, because=f"{OAUTH}method = oidc")
        if not self.get(names[2]).startswith(("https://", "http://")):
            raise SettingsError(f"{names[2]} is not an HTTP address: write https://host/path")
        if "@" in self.get(names[2]):  # librdkafka logs the URL
            raise SettingsError(f"{names[2]} has a user or an @: set {names[0]} and {names[1]}, and write @ as %40")
        self._exclude("https.ca")
        pairs(self.get(f"{OAUTH}extensions"))
        if pem := self.get("https.ca.pem"):
            _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "https.ca.pem", pem)
        elif (place := self.get("https.ca.location")) and place != "probe":
            _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "https.ca.location", place)

    def _require(self, *names: str, because: str) -> None:
        if missing := [name for name in names if not self.get(name)]:
            raise SettingsError(f"{because} needs {' and '.join(missing)}: set {'it' if len(missing) == 1 else 'them'}")

    def _exclude(self, what: str) -> None:
        if self.get(f"{what}.location") and self.get(f"{what}.pem"):
            raise SettingsError(f"{what}.location and {what}.pem exclude each other: remove one of them")

    def _check_certificates(self) -> None:
        for what in ("ssl.ca", "ssl.certificate", "ssl.key"):
            self._exclude(what)
        has_certificate, has_key = (
            bool(self.get(f"{what}.location") or self.get(f"{what}.pem")) for what in ("ssl.certificate", "ssl.key")
        )
        if has_certificate != has_key:
            given, missing = ("ssl.certificate", "ssl.key") if has_certificate else ("ssl.key", "ssl.certificate")
            raise SettingsError(f"{given} needs {missing}, too: set {missing}.location or {missing}.pem")
        self._context()

    def _context(self) -> ssl.SSLContext:
        """Returns a context with the same authorities, certificate and checks as librdkafka.

        Raises SettingsError for a value that cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        verifies = self.get("enable.ssl.certificate.verification", "true").lower() == "true"
        checks_host = self.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
        context.check_hostname = verifies and checks_host
        if not verifies:
            context.verify_mode = ssl.CERT_NONE
        if pem := self.get("ssl.ca.pem"):
            _load_authorities(context, "ssl.ca.pem", pem)
        elif (place := self.get("ssl.ca.location", "probe")) != "probe":
            _load_authorities(context, "ssl.ca.location", place)
        elif verifies:
            context.load_default_certs()
        if place := self.get("ssl.crl.location"):
            _load_authorities(context, "ssl.crl.location", place)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if suites := self.get("ssl.cipher.suites"):
            try:
                context.set_ciphers(suites.replace(",", ":"))
            except ssl.SSLError as error:
                raise SettingsError(f"ssl.cipher.suites = {suites!r}: {_reason(error)}: correct it") from None
        if self.get("ssl.certificate.location") or self.get("ssl.certificate.pem"):
            self._load_certificate(context)
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        with self._file_of("ssl.certificate") as (certificate, name), self._file_of("ssl.key") as (key, name_of_key):
            try:
                # without a password, OpenSSL would ask for it at the terminal
                context.load_cert_chain(certificate, key, password=self.get("ssl.key.password"))
            except ssl.SSLError as error:
                if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
                    raise SettingsError(f"{name_of_key} is not the key of {name}: correct one of them") from None
                raise SettingsError(
                    f"{name} and {name_of_key} cannot be used ({_reason(error)}): both have to be PEM, and an "
                    "encrypted key needs ssl.key.password"
                ) from None
            except (OSError, ValueError) as error:
                raise SettingsError(
                    f"{name} and {name_of_key} cannot be read: {_reason(error)}: correct them"
                ) from None

    @contextmanager
    def _file_of(self, what: str) -> Iterator[tuple[str, str]]:
        """Yields a path with the value of a setting, and the setting's name: Python reads certificates from files."""
        if place := self.get(f"{what}.location"):
            if not os.path.isfile(place) or not os.access(place, os.R_OK):  # noqa: PTH113 pathlib raises for texts that are not paths
                raise SettingsError(f"{what}.location{shown(place)} is not a readable file: correct it")
            yield place, f"{what}.location"
            return
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # only this user can read it; deleted at the end
            file.write(self.get(f"{what}.pem"))
            file.flush()
            yield file.name, f"{what}.pem"


def _without_aliases(kafka: Mapping[str, str]) -> dict[str, str]:
    found = {name: value for name, value in kafka.items() if name not in _ALIASES}
    for alias, name in _ALIASES.items():
        if alias in kafka and found.setdefault(name, kafka[alias]) != kafka[alias]:
            raise SettingsError(f"{alias} and {name} are two names of the same setting: remove one of them")
    return found


def _load_authorities(context: ssl.SSLContext, name: str, value: str) -> None:
    """Adds certificates of authorities from PEM, or from the path of a file or a directory."""
    which = name if name.endswith(".pem") else name + shown(value)
    try:
        if name.endswith(".pem"):
            context.load_verify_locations(cadata=ascii_of(value))
        elif Path(value).is_dir():
            context.load_verify_locations(capath=value)
        else:
            context.load_verify_locations(value)
    except ssl.SSLError as error:
        raise SettingsError(f"{which} is not PEM ({_reason(error)}): correct it") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{which} cannot be read ({_reason(error)}): correct it") from None


def shown(place: str) -> str:
    """Returns a path for a message; "" for a key or certificate that was written in place of a path."""
    return f" = {place!r}" if re.fullmatch(r"[/\\.~]?[\w./\\:~ -]{1,200}", place) and "--" not in place else ""


def _reason(error: Exception) -> str:
    """Returns the reason in words, without values that the error may quote."""
    if isinstance(error, ssl.SSLError):  # only some have a reason
        return str(getattr(error, "reason", "") or error.args[-1]).replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else "") or type(error).__name__


def _no_counterpart(name: str) -> SettingsError:
    return SettingsError(
        f"{name} has no counterpart in kafka-python, which asks about groups and transactions (`kstreams slots`, "
        "`kstreams transactions`, `doctor`, leave_on_stop): use PEM files or texts (ssl.ca, ssl.certificate, ssl.key), "
        f"and one of {', '.join(MECHANISMS)}; tokens of another kind come from oauth_cb"
    )
