"""How the schema registry is signed in to: TLS, certificates of clients, users, bearer tokens."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from kstreams_py.errors import SettingsError, Unavailable
from kstreams_py.formats.registries import open_registry
from tests.signing_in import CLIENT, SCOPE, SECRET, USER, Certificates, OidcServer, make_certificates

SCHEMA: Final = '"string"'
BASIC: Final = "Basic YWxpY2U6aHVudGVyMg=="  # alice:hunter2


class Registry(ThreadingHTTPServer):
    """Takes each schema, over TLS; notes how its clients sign in."""

    def __init__(self, certificates: Certificates, *, wants_certificate: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.seen = set[str]()
        """The headers Authorization."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.path("server.pem"))
        if wants_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(certificates.path("ca.pem"))
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Says nothing of a handshake that fails."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Request(BaseHTTPRequestHandler):
    server: Registry

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.add(self.headers.get("Authorization", ""))
        body = json.dumps({"id": 7}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[Registry]:
    with closing(Registry(certificates)) as made:
        yield made


@pytest.fixture(scope="module")
def of_certificates(certificates: Certificates) -> Iterator[Registry]:
    """One that takes clients with a certificate of its authority only."""
    with closing(Registry(certificates, wants_certificate=True)) as made:
        yield made


def register(url: str, **settings: Any) -> int:
    client = {name.replace("__", "."): value for name, value in settings.items()}
    return open_registry(url, Path("unused"), {"max.retries": "0", "timeout": "30", **client}).register("s", SCHEMA)


def refusal(kind: type[Exception], url: str, **settings: Any) -> str:
    with pytest.raises(kind) as caught:
        register(url, **settings)
    return str(caught.value)


def test_registry_over_tls_takes_users_and_tokens(server: Registry, certificates: Certificates) -> None:
    ca = {"ssl__ca__location": certificates.path("ca.pem")}
    with closing(OidcServer()) as oidc:
        of_oidc = {
            "bearer__auth__client__id": CLIENT,
            "bearer__auth__client__secret": SECRET,
            "bearer__auth__scope": SCOPE,
            "bearer__auth__issuer__endpoint__url": oidc.url,
        }
        ways: dict[str, tuple[str, dict[str, str]]] = {
            "nobody": (server.url, {}),
            "user": (server.url, {"basic__auth__user__info": f"{USER}:hunter2"}),
            "user in the address": (server.url.replace("//", f"//{USER}:hunter2@"), {}),
            "token": (server.url, {"bearer__auth__token": "ey.token"}),
            "OIDC": (server.url, of_oidc),
        }
        found = {}
        for name, (url, settings) in ways.items():
            server.seen.clear()
            assert register(url, **ca, **settings) == 7
            found[name] = {re.sub(r"ey[^.]+\.[^.]+\.[^.]*$", "a JWT", each) for each in server.seen}
    assert found == {
        "nobody": {""},
        "user": {BASIC},
        "user in the address": {BASIC},
        "token": {"Bearer ey.token"},
        "OIDC": {"Bearer a JWT"},
    }


def test_registry_that_asks_for_a_certificate_gets_it(of_certificates: Registry, certificates: Certificates) -> None:
    ca = {"ssl__ca__location": certificates.path("ca.pem")}
    of_client = {"ssl__certificate__location": certificates.path("client.pem")}
    (certificates.directory / "secret.key").write_text(certificates.client.encrypted_key("opensesame"))
    encrypted = of_client | {"ssl__key__location": certificates.path("secret.key")}
    plain = of_client | {"ssl__key__location": certificates.path("client.key")}
    assert register(of_certificates.url, **ca, **plain) == 7
    assert register(of_certificates.url, **ca, **encrypted, ssl__key__password="opensesame") == 7
    assert refusal(Unavailable, of_certificates.url, **ca).startswith(
        f"no answer from the schema registry at {of_certificates.url}"
    )
    shown = refusal(SettingsError, of_certificates.url, **ca, **encrypted, ssl__key__password="wrong")
    assert shown == refusal(SettingsError, of_certificates.url, **ca, **encrypted)  # does not ask at the terminal
    assert shown.endswith("one cannot be read as PEM, or its key needs another ssl.key.password: correct them")
    assert "wrong" not in shown


def test_registry_of_an_unknown_authority_is_not_trusted(server: Registry) -> None:
    assert "certificate verify failed" in refusal(Unavailable, server.url)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bearer.auth.token": "ey.token", "basic.auth.user.info": "a:b"}, "it takes one way to sign in"),
        ({"ssl.ca.location": "/no/such/file"}, "ssl.ca.location = '/no/such/file': one cannot be read as PEM"),
        ({"bearer.auth.client.secret": "ey.token"}, "Missing required OAuth configuration properties"),
        ({"basic.auth.user.info": "ey.token"}, "basic.auth.user.info must be in the form"),
        ({"timeout": "soon"}, "could not convert string to float: 'soon'"),
    ],
)
def test_registry_refuses_settings_that_contradict_each_other(settings: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_registry("https://127.0.0.1:9", Path("unused"), settings)
    assert words in str(caught.value)
    assert "ey.token" not in str(caught.value)


def test_registry_takes_no_second_way_beside_the_user_in_its_address() -> None:
    with pytest.raises(SettingsError, match="it takes one way to sign in"):
        open_registry("https://a:b@127.0.0.1:9", Path("unused"), {"bearer.auth.token": "ey.token"})
