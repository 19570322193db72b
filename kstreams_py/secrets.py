"""Hides what must not be shown: passwords, and the user and password of URLs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from kstreams_py.errors import SettingsError

_SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|api\.?key|\.key(?!store\.(location|type))|\.pem|sasl\.(jaas|username)|certificate|"
    r"credential|user\.info|oauthbearer\.config",
    re.IGNORECASE,
)

_PASSWORD: Final = re.compile(
    r"""(?<![\w.-])(?=[\w.-]*?(?:passw|passphrase|secret|token|api[_.-]?key))([\w.-]++["']?\s*+[=:]\s*+)("""
    r"""(?:'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+")(?![^\s,;&)\]}])|\S.*+)""",
    re.IGNORECASE | re.DOTALL,
)
"""A password, found by its name: in a URL's query, in a keyword string of libpq, in JSON.

A password without quotes extends to the end of the text, because it may contain any separator. The expression does
not backtrack: untrusted text must not take minutes, as `redact("passw" * 1_000)` did.
"""

_USER: Final = re.compile(r"\A(\s*+[a-z][a-z0-9+.-]*+://|).*@", re.IGNORECASE | re.DOTALL)
"""What may be user and password: everything up to the last @. A password may contain / ? # and @, or `,x://`."""


def mask(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns a client's settings, librdkafka's or Java's, with *** for each value whose name suggests a secret.

    The user and password of a URL are hidden in every value.
    """
    return {name: "***" if _SECRET.search(name) else redact(value) for name, value in settings.items()}


def redact(text: str) -> str:
    """Returns a text with *** in place of the user and password of a URL, and of each password that follows its name.

    Everything before the last @ counts as a password, because it could be one, even if there are several URLs.
    """
    return _USER.sub(r"\1***@", _PASSWORD.sub(_hidden, text))


def _hidden(found: re.Match[str]) -> str:
    """Returns *** for a password. Keeps an @: another password may be before it."""
    return f"{found[1]}***{'@' * ('@' in found[2])}"


def is_secret(name: str, value: str) -> bool:
    """Whether the name or the value of an environment variable shows that it must be hidden."""
    return bool(_SECRET.search(name.replace("_", "."))) or redact(value) != value


def split_user(url: str, what: str, form: str, schemes: Collection[str]) -> tuple[str, str]:
    """Returns the user and password of a URL, as written in it ("" if it has none), and the URL without them.

    - `what`, `form`: what needs the URL, and an example of one, for the message.
    - `schemes`: the schemes that are allowed.

    Raises SettingsError for an invalid URL, for another scheme, and if the end of the password is ambiguous. The
    message does not show the URL.
    """
    scheme, separator, rest = url.strip().partition("://")
    end = next((at for at, char in enumerate(rest) if char in "/?#"), len(rest))
    user, _, host = rest[:end].rpartition("@")
    bare = f"{scheme}://{host}{rest[end:]}"
    is_possible = separator and scheme in schemes and "@" not in user + rest[end:] and (host or scheme[:4] != "http")
    try:
        urlsplit(bare)
        url.encode()
    except ValueError:  # the text of this error contains the host
        is_possible = False
    if not is_possible:
        raise SettingsError(
            f"{what} needs a URL such as {form}: in the user and password, write / ? # , @ as %2F %3F %23 %2C "
            "%40; elsewhere, write @ as %40"
        )
    return user, bare


class SecretUrl(str):
    """A URL whose user and password `repr` does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redact(self))
