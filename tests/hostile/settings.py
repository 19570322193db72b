"""Passwords, names and URLs in settings and options: none is shown, whatever characters it has."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.cli import deploy
from kstreams_py.cli.order import _open_existing
from kstreams_py.errors import KStreamsError
from kstreams_py.formats.registries import SchemaRegistry
from kstreams_py.kafka.credentials.sign_in import SignIn
from kstreams_py.settings import Settings, explain
from kstreams_py.sinks import Redis
from kstreams_py.sinks.redis import open_client
from tests.hostile import Outcome, Place
from tests.hostile.signing_in import OAUTH, OIDC

OUTPUT, REFUSED = Outcome.OUTPUT, Outcome.REFUSED

PARTS: Final = ("hunter", "quagga", "zebra")
"""Of each password: what a reader takes for a host, a path or a query may be shown, and has one of them."""

PASSWORDS: Final = {
    "plain": "hunterquaggazebra",
    "with an escape": "hunter%2Fquagga%23zebra",
    "with a slash": "hunter/quaggazebra",
    "with a number sign": "hunterquagga#zebra",
    "with a question mark": "hunter?quagga=zebra",
    "with an at sign": "hunter@quagga",
    "with a colon": "hunter:quagga",
    "with all of them": "hunter/quagga@:#zebra?",
    "that looks like a port": "12/hunter",
    "with a comma and a scheme": "hunter,x://quagga",
    "with two of them": "hunter,x://quagga@a,http://zebra",
    "with a wrong escape": "hunter%zz quagga",
    "with separators": "hunter;quagga&zebra",
    "with quotes": "hunter'quagga\"zebra",
    "with a lone surrogate": "hunter\udcff",
}

SAFE: Final = frozenset(
    {"plain", "with an escape", "with a colon", "with a wrong escape", "with separators", "with quotes"}
)
"""Passwords in which no two readers find two ends."""


def tried(act: Callable[[], Any], texts: Callable[[Any], str]) -> Outcome:
    """The outcome of an act whose result is shown by `texts`: no part of a password is in it, or in a message."""
    try:
        made = act()
    except KStreamsError as error:
        text, outcome = str(error), REFUSED
    else:
        text, outcome = texts(made), OUTPUT
    assert not any(part in text for part in PARTS), text
    return outcome


def enter_postgresql(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    return {
        name: tried(partial(ks.PostgreSQL, url, table="t", columns=("a",)), lambda sink: f"{sink!r} {sink}")
        for name, url in urls.items()
    }


def enter_redis(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    def open_both(url: str) -> Redis:
        open_client(url).close()
        return Redis(url, key="k", columns=("a",))

    return {name: tried(partial(open_both, url), lambda sink: f"{sink!r} {sink}") for name, url in urls.items()}


def enter_registry(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    return {name: tried(partial(SchemaRegistry, url), lambda made: made._url) for name, url in urls.items()}


def enter_proxy(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    return {
        name: tried(partial(SchemaRegistry, "http://registry:8081", proxy=url), lambda made: made._url)
        for name, url in urls.items()
    }


def enter_proxy_of_environment(urls: Mapping[str, Any], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    variables: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")

    def opened(url: str) -> SchemaRegistry:
        variables.setenv("HTTP_PROXY", url)
        variables.setenv("http_proxy", url)
        return SchemaRegistry("http://registry:8081")

    return {name: tried(partial(opened, url), lambda made: made._url) for name, url in urls.items()}


def enter_token_endpoint(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    def signed_in(url: str) -> str:
        return SignIn(OAUTH | OIDC | {"sasl.oauthbearer.token.endpoint.url": url}).protocol

    return {name: tried(partial(signed_in, url), str) for name, url in urls.items()}


def enter_store(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """`--store` of `kstreams order`, with a mistake in its scheme."""

    def asked(url: str) -> str:
        with contextlib.closing(_open_existing(url, "")) as storage:
            return str(storage)

    return {name: tried(partial(asked, url), str) for name, url in urls.items()}


def enter_setting(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """Settings show it nowhere, and keep it."""

    def texts(settings: Settings) -> str:
        assert settings.schema_registry_url == settings.as_environment()["KSTREAMS_SCHEMA_REGISTRY_URL"]
        assert "KSTREAMS_SCHEMA_REGISTRY_URL" in settings.secret_variables()
        shown = explain(None, schema_registry_url=str(settings.schema_registry_url))
        return f"{settings!r} {settings} {settings.model_dump_json()} {shown} {settings.schema_registry_url!r}"

    return {name: tried(partial(Settings, schema_registry_url=url), texts) for name, url in urls.items()}


def enter_wrong_setting(urls: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """A URL that was written at another setting."""
    return {name: tried(partial(Settings, commit_records=url), repr) for name, url in urls.items()}


def enter_variable(variables: Mapping[str, Any], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """`--env` of the commands that print what many may read."""
    place: Path = request.getfixturevalue("tmp_path")
    (place / "shop.py").write_text(
        "import kstreams_py as ks\ngraph = ks.Graph('g')\n"
        "graph.map(graph.topic('a'), to=graph.topic('b'), id='p')(lambda value: value)\n"
    )
    target = os.fspath(place / "shop.py")

    def printed(variable: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            deploy.k8s(target, image="shop", bootstrap_servers="kafka:9092", env=[variable])
            deploy.systemd(target, env=[variable])
        assert variable.partition("=")[2] in out.getvalue()
        return out.getvalue()

    return {name: tried(partial(printed, each), str) for name, each in variables.items()}


def of_each(form: str, *, refused: bool = True) -> dict[str, tuple[str, Outcome]]:
    """A row for each password."""
    return {
        f"a password {name}": (form.format(password), REFUSED if refused and name not in SAFE else OUTPUT)
        for name, password in PASSWORDS.items()
    }


PLACES: Final = [
    Place(
        "the URL of a PostgreSQL table",
        {
            **of_each("postgresql://me:{}@db:5432/shop"),
            "a password in its query": ("postgresql://db/shop?user=me&password=hunter", OUTPUT),
            "a keyword string": ("host=db password=hunter", REFUSED),
            "a keyword string with quotes": ("host=db password='hunter quagga'", REFUSED),
            "a bracket that is open": ("postgresql://me:hunter@[db/shop", REFUSED),
            "another scheme": ("mysql://me:hunter@db/shop", REFUSED),
        },
        enter_postgresql,
    ),
    Place(
        "the URL of a Redis server",
        {
            **of_each("redis://me:{}@cache:6379/0"),
            "a password in its query": ("redis://cache:6379/0?password=hunter", OUTPUT),
            "a socket": ("unix://me:hunter@/run/redis.sock?db=1", OUTPUT),
            "another scheme": ("http://me:hunter@cache/0", REFUSED),
            "a port that is none": ("redis://me:hunter@cache:x/0", REFUSED),
        },
        enter_redis,
    ),
    Place(
        "the URL of a schema registry",
        {
            **of_each("http://me:{}@registry:8081"),
            "a token alone": ("http://hunter@registry:8081", OUTPUT),
            "a second address": ("http://a:8081,http://me:hunter#quagga@b:8081", REFUSED),
            "no host": ("http://", REFUSED),
        },
        enter_registry,
    ),
    Place("the URL of a proxy", of_each("http://me:{}@proxy:3128"), enter_proxy),
    Place(
        "the URL of a proxy in the environment",
        {
            name: (url, OUTPUT if name.endswith((" port", " at sign")) else outcome)
            for name, (url, outcome) in of_each("http://me:{}@proxy:3128").items()
        },
        enter_proxy_of_environment,
    ),
    Place(
        "the token endpoint",
        {
            **{name: (url, REFUSED) for name, (url, _) in of_each("https://me:{}@idp/token").items()},
            "no password": ("https://idp/token", OUTPUT),
        },
        enter_token_endpoint,
    ),
    Place(
        "the store of events, mistyped",
        {
            f"{name}, {scheme}": (url, REFUSED)
            for scheme in ("redis:/", "me:hunter@x,redis://", "reds://")
            for name, (url, _) in of_each(f"{scheme}me:{{}}@cache:6379/0").items()
        },
        enter_store,
    ),
    Place("schema_registry_url, shown", of_each("http://me:{}@registry:8081", refused=False), enter_setting),
    Place(
        "a URL at another setting",
        {
            f"{name}, in {form}": (url, REFUSED)
            for form in (
                "http://me:{}@registry:8081",
                "postgresql://db/s?password={}&x=1",
                "host=db password={} user=me",
            )
            for name, (url, _) in of_each(form).items()
        },
        enter_wrong_setting,
    ),
    Place(
        "--env of k8s and systemd",
        {
            **{
                name: (f"STORE={url}", REFUSED) for name, (url, _) in of_each("postgresql://me:{}@db:5432/shop").items()
            },
            "a keyword string": ("STORE=host=db password=hunter", REFUSED),
            "a password by its name": ("PGPASSWORD=hunter", REFUSED),
            "a password of Kafka": ("KSTREAMS_KAFKA__SASL_PASSWORD=hunter", REFUSED),
            "a key of Kafka": ("KSTREAMS_KAFKA__SSL_KEY_PEM=hunter", REFUSED),
            "a password in JSON": ('KSTREAMS_KAFKA={"sasl.password": "hunter"}', REFUSED),
            "headers of a collector": ("OTEL_EXPORTER_OTLP_HEADERS=api-key=hunter", REFUSED),
            "a key of an API": ("API_KEY=hunter", REFUSED),
            "no name, and a password": ("=postgresql://me:hunter@db/shop", REFUSED),
            "a price": ("PRICE=5 net", OUTPUT),
            "a URL without a password": ("STORE=postgresql://db:5432/shop", OUTPUT),
        },
        enter_variable,
    ),
]
