"""Sources of tokens: a user's function, an OIDC server, AWS."""

from __future__ import annotations

import base64
import importlib
import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kstreams_py.errors import BrokerUnavailable, MissingSoftware, SettingsError
from kstreams_py.kafka.credentials.tokens import Token, TokenSource

HTTP_SECONDS: Final = 5.0
"""Seconds that a token endpoint may take to answer."""

ANSWER_BYTES: Final = 1 << 20
"""The maximum number of bytes to read of a token endpoint's answer."""

REFUSED: Final = (400, 401, 403)
"""Statuses with which a token endpoint rejects the client's id or secret (RFC 6749, 5.2)."""

RETURNS: Final = "it returns (token, expiry in seconds since 1970), or also (..., principal, extensions)"


@cache
def of_callback(target: str, config: str) -> TokenSource:
    """Returns the source of tokens from a function.

    - `target`: the function, as `package.module:function`.
    - `config`: the function's argument, as confluent-kafka passes it.

    Raises SettingsError for a function that cannot be imported.
    """
    function = _imported(target)

    def call() -> Any:
        try:
            return function(config)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise BrokerUnavailable(why.replace(config, "***") if config else why) from None

    def ask() -> Token:
        match call():
            case (str(value), int() | float() as expires):
                return Token(value, expires)
            case (str(value), int() | float() as expires, str(principal)):
                return Token(value, expires, principal)
            case (str(value), int() | float() as expires, str(principal), Mapping() as extensions):
                return Token(value, expires, principal, {str(n): str(v) for n, v in extensions.items()})
            case other:
                raise BrokerUnavailable(f"it returned a {type(other).__name__}: {RETURNS}")

    return TokenSource(f"oauth_cb {target}", ask)


def _imported(target: str) -> Callable[[str], Any]:
    module_name, _, name = target.partition(":")
    where = f"oauth_cb = {target!r}"
    if not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        raise SettingsError(f"{where} does not name a function: write 'package.module:function'")
    try:
        found: Any = _import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise SettingsError(
            f"{where} cannot be imported ({type(error).__name__}: {error}): correct it, put its module on PYTHONPATH, "
            "or start from the directory it is in"
        ) from None
    if not callable(found):
        raise SettingsError(f"{where} is not a function but a {type(found).__name__}: {RETURNS}")
    function: Callable[[str], Any] = found
    return function


def _import_module(name: str) -> ModuleType:
    """Imports a module from sys.path, or else from the current directory, as graphs are imported."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] or str(Path.cwd()) in sys.path:
            raise
    sys.path.append(str(Path.cwd()))  # only now: libraries' optional imports would look there, too
    return importlib.import_module(name)


@cache
def of_aws(region: str) -> TokenSource:
    """Returns the source of AWS IAM tokens for Amazon MSK: AWS's signer, with the credentials that it finds.

    - `region`: the AWS region; "" for the one in AWS_REGION or AWS_DEFAULT_REGION.

    Raises SettingsError without a region, and MissingSoftware without the signer.
    """
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        raise SettingsError(
            "sasl.mechanism=AWS_MSK_IAM needs the region of the cluster: set AWS_REGION, or "
            'sasl.oauthbearer.config = "region=eu-west-1"'
        )
    try:
        signer = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        raise MissingSoftware(
            f"sasl.mechanism=AWS_MSK_IAM needs the package {package!r}: pip install 'kstreams_py[msk]'"
        ) from None

    def ask() -> Token:
        value, expires_ms = signer.generate_auth_token(region)
        return Token(value, expires_ms / 1000)

    return TokenSource("the signer of AWS MSK IAM", ask)


def of_oidc(settings: Mapping[str, str]) -> TokenSource:
    """Returns the source of tokens from an OIDC server, for kafka-python.

    `settings`: librdkafka's settings. The grant is `client_credentials`. librdkafka itself gets its own tokens.
    """
    return _of_oidc(frozenset((n, v) for n, v in settings.items() if n.startswith(("sasl.oauthbearer.", "https.ca."))))


@cache
def _of_oidc(settings: frozenset[tuple[str, str]]) -> TokenSource:
    of = dict(settings)
    prefix = "sasl.oauthbearer."
    url = of[f"{prefix}token.endpoint.url"]
    user = f"{of[f'{prefix}client.id']}:{of[f'{prefix}client.secret']}"
    form = {"grant_type": "client_credentials"}
    if scope := of.get(f"{prefix}scope"):
        form["scope"] = scope
    extensions = dict(pairs(of.get(f"{prefix}extensions", "")))
    request = urllib.request.Request(
        url,
        data=urllib.parse.urlencode(form).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        },
    )
    ca_file = of.get("https.ca.location")
    context = ssl.create_default_context(
        cafile=ca_file if ca_file and Path(ca_file).is_file() else None,
        capath=ca_file if ca_file and Path(ca_file).is_dir() else None,
        cadata=ascii_of(of.get("https.ca.pem", "")) or None,
    )
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())

    def ask() -> Token:
        try:
            with opener.open(request, timeout=HTTP_SECONDS) as answer:
                body = answer.read(ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                refused = error.code in REFUSED
                raise BrokerUnavailable(
                    f"it answers with status {error.code}"
                    + (": correct sasl.oauthbearer.client.id, client.secret and scope" if refused else ""),
                    may_return=not refused,
                ) from None
        except OSError as error:
            raise BrokerUnavailable(f"no answer: {getattr(error, 'reason', error)}") from None
        try:
            value = json.loads(body)["access_token"]
            claims = json.loads(base64.urlsafe_b64decode(value.split(".")[1] + "=="))
            return Token(value, float(claims["exp"]), str(claims.get("sub", "")), extensions)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise BrokerUnavailable("its answer has no access_token that is a JWT with the claim exp") from None

    return TokenSource(f"the token endpoint {url}", ask)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would send the client's secret to any host that the redirect names."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ascii_of(pem: str) -> str:
    """Returns PEM as Python accepts it: without the non-ASCII letters that a name in a comment may have."""
    return pem.encode("ascii", "ignore").decode()


def pairs(text: str) -> list[tuple[str, str]]:
    """Returns the pairs of `name=value,name=value`, as in sasl.oauthbearer.extensions. Raises SettingsError."""
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise SettingsError(f"{part!r} of sasl.oauthbearer.* is not of the form name=value: correct it")
        found.append((name.strip(), value.strip()))
    return found
