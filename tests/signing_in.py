"""A broker with a listener for each way to sign in, its certificates, and a small OIDC server."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import ssl
import sys
import threading
import time
import types
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.nodes import free_ports
from tests.clusters import NEVER_KILLED, OF_BROKERS

USER, PASSWORD = "alice", 'hun"ter\\2'
CLIENT, SECRET, SCOPE = "a client", "s3cr3t of it", "of the tests"
DAY: Final = datetime.timedelta(days=1)
TOKEN_SECONDS: Final = 600


# Certificates.


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, both as PEM."""

    certificate: str
    key: str
    signed: x509.Certificate = field(repr=False)
    private: ec.EllipticCurvePrivateKey = field(repr=False)

    def encrypted_key(self, password: str) -> str:
        return _pem(self.private, serialization.BestAvailableEncryption(password.encode()))


def issue(name: str, authority: Issued | None = None) -> Issued:
    """A certificate for this machine's loopback, signed by an authority, or by itself as an authority."""
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.signed.subject if authority else subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .sign(authority.private if authority else private, hashes.SHA256())
    )
    pem = signed.public_bytes(serialization.Encoding.PEM).decode()
    return Issued(pem, _pem(private, serialization.NoEncryption()), signed, private)


def _pem(key: ec.EllipticCurvePrivateKey, encryption: serialization.KeySerializationEncryption) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


@dataclass(frozen=True)
class Certificates:
    """Of an authority, a server and a client; as files in a directory, too."""

    directory: Path
    authority: Issued
    server: Issued
    client: Issued

    def path(self, name: str) -> str:
        return str(self.directory / name)


def make_certificates(directory: Path) -> Certificates:
    authority = issue("the authority")
    made = Certificates(directory, authority, issue("127.0.0.1", authority), issue("a client", authority))
    texts = {
        "ca.pem": authority.certificate,
        "server.pem": made.server.key + made.server.certificate,
        "client.pem": made.client.certificate,
        "client.key": made.client.key,
    }
    for name, text in texts.items():
        (directory / name).write_text(text)
    return made


# Tokens.


@cache
def _signing_key() -> rsa.RSAPrivateKey:
    """Of the tokens that this process issues."""
    return rsa.generate_private_key(65_537, 2_048)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _key_set() -> str:
    """The public key of the tokens, as JSON Web Key Set."""
    numbers = _signing_key().public_key().public_numbers()
    key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "of-tests"}
    return json.dumps({"keys": [key | {"n": _base64(numbers.n.to_bytes(256)), "e": _base64(b"\1\0\1")}]})


def jwt(seconds: float = TOKEN_SECONDS) -> tuple[str, float]:
    """A token that the broker takes, and when it expires."""
    now = int(time.time())
    expires = now + int(seconds)
    parts = {"alg": "RS256", "kid": "of-tests"}, {"sub": USER, "scope": SCOPE, "iat": now, "exp": expires}
    signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
    signature = _signing_key().sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{_base64(signature)}", expires


def token(_: str) -> tuple[str, float]:
    """An `oauth_cb`."""
    return jwt()


SIGNER: Final = "aws_msk_iam_sasl_signer.MSKAuthTokenProvider"
"""The module of AWS's signer."""


def fake_signer() -> types.ModuleType:
    """The signer of AWS, which takes any region."""
    module: Any = types.ModuleType(SIGNER)
    module.generate_auth_token = lambda region: _in_ms(*jwt())
    return module  # type: ignore[no-any-return]


def _in_ms(value: str, expires: float) -> tuple[str, int]:
    return value, int(expires * 1000)


class LocalServer(ThreadingHTTPServer):
    """A server on the loopback in a thread, over TLS with certificates."""

    def __init__(
        self,
        handler: type[BaseHTTPRequestHandler],
        certificates: Certificates | None,
        *,
        wants_certificate: bool = False,
    ) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.address = f"{'http' if certificates is None else 'https'}://127.0.0.1:{self.server_port}"
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.path("server.pem"))
            if wants_certificate:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(certificates.path("ca.pem"))
            # the thread of the request makes the handshake: one that fails must not end the server
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """Says nothing of a handshake that fails."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class OidcServer(LocalServer):
    """Gives tokens to the one client that it knows, by the grant client_credentials; counts them."""

    def __init__(self, certificates: Certificates | None = None) -> None:
        self.given = 0
        self.status = 0
        """Each request is answered with it, if it is not 0."""
        super().__init__(_TokenRequest, certificates)

    @property
    def url(self) -> str:
        return f"{self.address}/token"


class _TokenRequest(BaseHTTPRequestHandler):
    server: OidcServer

    def do_POST(self) -> None:
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        who = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        # Java's client encodes both parts as a form, as RFC 6749 asks
        known = who in (f"{CLIENT}:{SECRET}", f"{urllib.parse.quote_plus(CLIENT)}:{urllib.parse.quote_plus(SECRET)}")
        fits = form == {"grant_type": ["client_credentials"], "scope": [SCOPE]}
        status = self.server.status or (200 if known and fits else 401 if not known else 400)
        answer: dict[str, object] = {"error": "invalid_client"}
        if status == 200:
            self.server.given += 1
            answer = {"access_token": jwt()[0], "token_type": "bearer", "expires_in": TOKEN_SECONDS}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


# The broker.


@dataclass(frozen=True)
class Listeners:
    """A running broker, by its listeners.

    - `open_servers`: the address that asks for nothing.
    - `clients`: librdkafka's settings of each way to sign in, with the address.
    """

    open_servers: str
    clients: dict[str, tuple[str, dict[str, str]]]
    certificates: Certificates
    oidc: OidcServer


WAYS: Final = ("PLAIN", "SCRAM over TLS", "mTLS from files", "mTLS from texts", "OIDC", "a callback", "AWS MSK IAM")


@contextmanager
def broker_of_all_ways(directory: Path) -> Iterator[Listeners]:
    """A broker that takes each way; the signer of AWS is a fake in this process meanwhile."""
    certificates = make_certificates(directory)
    plain, controller, *others = free_ports([None] * 6)
    listeners = dict(zip(("PLAIN", "SCRAM", "MTLS", "OAUTH"), others, strict=True))
    before = sys.modules.get(SIGNER)
    sys.modules[SIGNER] = fake_signer()
    try:
        with (
            _allowing(certificates),
            closing(OidcServer(certificates)) as oidc,
            EmbeddedKafka(port=plain, settings=_settings(certificates, plain, controller, listeners)) as kafka,
        ):
            _create_user(kafka.bootstrap_servers)
            servers = {name: f"127.0.0.1:{port}" for name, port in listeners.items()}
            yield Listeners(kafka.bootstrap_servers, clients_of(certificates, servers, oidc.url), certificates, oidc)
    finally:
        del sys.modules[SIGNER]
        if before is not None:
            sys.modules[SIGNER] = before


@contextmanager
def _allowing(certificates: Certificates) -> Iterator[None]:
    """Lets brokers that are started meanwhile read the keys of tokens."""
    (certificates.directory / "keys.json").write_text(_key_set())
    property_of_java = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{certificates.path('keys.json')}"
    before = os.environ.get("JAVA_TOOL_OPTIONS", "")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{before} {property_of_java}"
    try:
        yield
    finally:
        os.environ["JAVA_TOOL_OPTIONS"] = before


def _settings(certificates: Certificates, plain: int, controller: int, listeners: dict[str, int]) -> dict[str, str]:
    addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in {"BROKER": plain, **listeners}.items())
    security = "org.apache.kafka.common.security"
    quoted = PASSWORD.replace("\\", "\\\\\\\\").replace('"', '\\\\"')  # once for JAAS, once for the file of properties
    return {
        **OF_BROKERS,
        **NEVER_KILLED,
        "listeners": f"{addresses},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": addresses,
        "listener.security.protocol.map": (
            "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAIN:SASL_PLAINTEXT,SCRAM:SASL_SSL,MTLS:SSL,OAUTH:SASL_SSL"
        ),
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.path("server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.path("ca.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": (
            f'{security}.plain.PlainLoginModule required user_{USER}="{quoted}";'
        ),
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth.oauthbearer.sasl.jaas.config": (
            f'{security}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="unused";'
        ),
        "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": (
            f"{security}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{certificates.path('keys.json')}",
    }


def _create_user(bootstrap_servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    for future in admin.alter_user_scram_credentials([wanted]).values():
        future.result(30)


def clients_of(
    certificates: Certificates, servers: dict[str, str], token_endpoint: str
) -> dict[str, tuple[str, dict[str, str]]]:
    user = {"sasl.username": USER, "sasl.password": PASSWORD}
    ca = {"ssl.ca.location": certificates.path("ca.pem")}
    oauth = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **ca}
    files = {
        "ssl.certificate.location": certificates.path("client.pem"),
        "ssl.key.location": certificates.path("client.key"),
    }
    texts = {
        "ssl.ca.pem": certificates.authority.certificate,
        "ssl.certificate.pem": certificates.client.certificate,
        "ssl.key.pem": certificates.client.encrypted_key(PASSWORD),
        "ssl.key.password": PASSWORD,
    }
    oidc = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.scope": SCOPE,
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
        "sasl.oauthbearer.token.endpoint.url": token_endpoint,
        "https.ca.location": certificates.path("ca.pem"),
    }
    msk = {"sasl.mechanism": "AWS_MSK_IAM", "sasl.oauthbearer.config": "region=eu-west-1"}
    return {
        "PLAIN": (servers["PLAIN"], {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", **user}),
        "SCRAM over TLS": (
            servers["SCRAM"],
            {"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", **user, **ca},
        ),
        "mTLS from files": (servers["MTLS"], {"security.protocol": "ssl", **ca, **files}),
        "mTLS from texts": (servers["MTLS"], {"security.protocol": "ssl", **texts}),
        "OIDC": (servers["OAUTH"], {**oauth, **oidc}),
        "a callback": (servers["OAUTH"], {**oauth, "oauth_cb": "tests.signing_in:token"}),
        "AWS MSK IAM": (servers["OAUTH"], {**oauth, **msk}),
    }
