"""What must not be shown: passwords, and user and password of URLs."""

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
    r"""'(?:\\.|[^'\\])*+'|"(?:\\.|[^"\\])*+"|[^\s&,;]+)""",
    re.IGNORECASE | re.DOTALL,
)
"""A password by its name: in a URL's query, in a keyword string of libpq, in JSON.

It looks once at each name, and never back: a text of others must not take minutes (`redact("passw" * 1_000)` did).
"""

_USER: Final = re.compile(r"\A(\s*+[a-z][a-z0-9+.-]*+://|).*@", re.IGNORECASE | re.DOTALL)
"""What may be user and password: up to the last @, as a password may have each of / ? # @."""

_NEXT: Final = re.compile(r"(?<=,)(?=\s*[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
"""Between two URLs of a list."""


def mask(settings: Mapping[str, str]) -> dict[str, str]:
    """A client's settings, librdkafka's or Java's, with *** in place of the values whose names mean a secret.

    User and password of a URL are hidden in any of them.
    """
    return {name: "***" if _SECRET.search(name) else redact(value) for name, value in settings.items()}


def redact(text: str) -> str:
    """A text with *** in place of user and password of URLs, and of passwords that have their name beside them.

    What could be a password counts as one: all before the last @ of a URL.
    """
    return "".join(_USER.sub(r"\1***@", _PASSWORD.sub(r"\1***", each)) for each in _NEXT.split(text))


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable is one that must not be shown, by its name or by what is in it."""
    return bool(_SECRET.search(name.replace("_", "."))) or redact(value) != value


def split_user(url: str, what: str, form: str, schemes: Collection[str]) -> tuple[str, str]:
    """User and password of a URL as they are written in it, or "", and the URL without them.

    - `what`, `form`: what needs the URL, and an example of one, for the message.
    - `schemes`: those that are possible.

    Raises SettingsError, without the URL, for another one, and where two readers could find two ends of a password.
    """
    scheme, separator, rest = url.strip().partition("://")
    end = next((at for at, char in enumerate(rest) if char in "/?#"), len(rest))
    user, _, host = rest[:end].rpartition("@")
    bare = f"{scheme}://{host}{rest[end:]}"
    is_possible = separator and scheme in schemes and "@" not in user + rest[end:] and (host or scheme[:4] != "http")
    try:
        urlsplit(bare)
    except ValueError:  # its text has the host
        is_possible = False
    if not is_possible:
        raise SettingsError(
            f"{what} needs a URL such as {form}: in user and password write / ? # , @ as %2F %3F %23 %2C %40, and "
            "elsewhere @ as %40"
        )
    return user, bare


class SecretUrl(str):
    """A URL whose user and password do not show in `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(redact(self))
