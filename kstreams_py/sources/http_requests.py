"""Requests as inputs: which are refused, which share one input, and the answers to their clients."""

from __future__ import annotations

import hmac
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kstreams_py.errors import SettingsError
from kstreams_py.formats.serdes import Json
from kstreams_py.hosts import is_own_host
from kstreams_py.records import Headers

BYTES_MAX: Final = 64 << 20
"""The maximum bytes of all bodies that are received or under way, for one path; two bodies always fit."""

ENDED_MAX: Final = 10_000
"""How many ended inputs with a key are remembered, for one path."""

REASON_MAX: Final = 1_000
"""The maximum characters of a reason in an answer."""

_KEY: Final = re.compile(r"[!-~]{1,255}")
_PATH: Final = re.compile(r"/[!-\"$->@-~]*")
_TOKEN: Final = re.compile(r"[!-~]+")

WaiterT = TypeVar("WaiterT")


class Reply(NamedTuple):
    """The answer to a client.

    - `code`: the status code.
    - `status`: what became of the input, in a word or two.
    - `reason`: why.
    - `headers`: names and values, in addition to the headers of every answer.
    """

    code: int
    status: str
    reason: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def body(self) -> bytes:
        """The body of the answer: JSON in ASCII, so that no character of a reason has a special meaning."""
        told = {"status": self.status}
        if self.reason:
            told["reason"] = self.reason[:REASON_MAX]
        return json.dumps(told).encode() + b"\n"


_SOON: Final = (("Retry-After", "1"),)

DONE: Final = Reply(200, "done")
NO_PATH: Final = Reply(404, "invalid", "no source has this path")
ANOTHER_BODY: Final = Reply(422, "invalid", "the Idempotency-Key was sent with another body: give each input its own")
HIDDEN: Final = Reply(422, "refused", "the log of the run has the reason")
BUSY: Final = Reply(503, "not done", "too many requests wait: send it again later", _SOON)
STOPPED: Final = Reply(503, "not done", "it was given up before its end: send it again with its Idempotency-Key", _SOON)
LATE: Final = Reply(504, "under way", "it is not done yet: send it again with its Idempotency-Key to learn of it")

_METHOD: Final = Reply(405, "invalid", "send it with POST", (("Allow", "POST"),))
_NO_TOKEN: Final = Reply(
    401, "invalid", "send the token of the source: Authorization: Bearer TOKEN", (("WWW-Authenticate", "Bearer"),)
)
_WEB_PAGE: Final = Reply(403, "invalid", "a page in a browser sent it: the source needs a token= for that")
_NOT_OWN: Final = Reply(421, "invalid", "the host is neither localhost nor an IP address: the source needs a token=")
_ENCODED: Final = Reply(415, "invalid", "send the body without a Content-Encoding")
_BAD_KEY: Final = Reply(400, "invalid", "the Idempotency-Key is not 1 to 255 visible ASCII characters")


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """The value that functions get from a source with `request=True`.

    - `body`: the value that they get without it.
    - `headers`: by name in lower case, without `authorization`.
    - `query`: the text after the `?` of the URL, for `urllib.parse.parse_qs`.
    """

    body: Any
    headers: Mapping[str, str]
    query: str


@dataclass(frozen=True, kw_only=True)
class RequestRules:
    """Which requests are inputs, and how many at once: see HTTP."""

    path: str = "/"
    token: str | None = field(default=None, repr=False)
    request: bool = False
    body_max: int = 1 << 20
    max_pending: int = 500
    deadline: float = 30.0
    show_reasons: bool = True

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise SettingsError(f"path={self.path!r}: give a path that begins with /, percent-encoded, without ? and #")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise SettingsError("token: give visible ASCII characters, and at least one")
        for name in ("body_max", "max_pending"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: give a number above 0")
        if not 0 < self.deadline < float("inf"):
            raise SettingsError(f"deadline={self.deadline}: give seconds above 0")

    def refuse(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """Returns the answer to a request that cannot be an input, judging by its head; None if it may be one.

        Without a token, the server listens on the loopback, where web pages in a browser on this machine reach it, too.

        - `headers`: by name in any case.
        """
        if self.token is not None:
            scheme, _, given = headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                return _NO_TOKEN
        elif "Origin" in headers:
            return _WEB_PAGE
        elif not is_own_host(headers.get("Host", "localhost"), ()):
            return _NOT_OWN
        if method != "POST":
            return _METHOD
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            return _ENCODED
        if not _KEY.fullmatch(headers.get("Idempotency-Key", "-")):
            return _BAD_KEY
        return None

    def refused(self, reason: str) -> Reply:
        """Returns the answer to a request whose input was refused."""
        return Reply(422, "refused", reason[:REASON_MAX]) if self.show_reasons else HIDDEN

    def decode(self, body: bytes, headers: Mapping[str, str], query: str) -> Any:
        """Returns the value of an input. Raises DecodeError for a body that should be JSON and is not."""
        value = Json().deserialize(body) if is_json(headers) else body
        if not self.request:
            return value
        named = {name.lower(): text for name, text in headers.items()}
        named.pop("authorization", None)
        return HTTPRequest(value, named, query)


def carried_headers(headers: Mapping[str, str]) -> Headers:
    """Returns the headers of a request that a trace may need: none of them identifies the sender."""
    named = ((name.lower(), text.encode()) for name, text in headers.items())
    return [(name, value) for name, value in named if name not in ("authorization", "cookie")]


def is_json(headers: Mapping[str, str]) -> bool:
    """Returns whether the content type of a request says that its body is JSON."""
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def hash_request(body: bytes, headers: Mapping[str, str], query: str) -> bytes:
    """Returns a hash that distinguishes a request from others with the same key."""
    about = f"{is_json(headers)} {query}\0".encode()
    return blake2b(about + body, digest_size=16, person=b"ks-request").digest()


class RequestInput(Generic[WaiterT]):
    """An input that is under way: its key, its hash, the bytes of its body, and who waits for its end."""

    __slots__ = ("hash", "key", "size", "waiting")

    def __init__(self, key: str | None, hashed: bytes, size: int) -> None:
        self.key, self.hash, self.size = key, hashed, size
        self.waiting = set[WaiterT]()


class RequestInputs(Generic[WaiterT]):
    """The inputs of one path that are under way, and the answers to the last ended ones with a key."""

    def __init__(self, rules: RequestRules) -> None:
        self._most, self._bytes_most = rules.max_pending, max(BYTES_MAX, 2 * rules.body_max)
        self._under_way = set[RequestInput[WaiterT]]()
        self._by_key: dict[str, RequestInput[WaiterT]] = {}
        self._ended = OrderedDict[str, tuple[bytes, Reply]]()
        self.held = 0
        """The bytes of the bodies that are received or under way."""

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def is_full(self) -> bool:
        """Whether no more inputs may be under way."""
        return len(self._under_way) >= self._most

    def hold(self, size: int) -> bool:
        """Counts received bytes. Returns False, and counts none, if there would be too many."""
        if self.held + size > self._bytes_most:
            return False
        self.held += size
        return True

    def find(self, key: str, hashed: bytes) -> RequestInput[WaiterT] | Reply | None:
        """Returns the input under way with this key, or the answer to give at once; None for a new key.

        A key that came with another body has an answer, too.
        """
        if (known := self._by_key.get(key)) is not None:
            return known if known.hash == hashed else ANOTHER_BODY
        if (ended := self._ended.get(key)) is not None:
            return ended[1] if ended[0] == hashed else ANOTHER_BODY
        return None

    def add(self, key: str | None, hashed: bytes, size: int) -> RequestInput[WaiterT]:
        """Adds an input with a body of `size` bytes."""
        made = RequestInput[WaiterT](key, hashed, size)
        self.held += size
        self._under_way.add(made)
        if key is not None:
            self._by_key[key] = made
        return made

    def end(self, ended: RequestInput[WaiterT], reply: Reply) -> set[WaiterT]:
        """Removes an input; returns who waits for its end. An input that was given up is not remembered."""
        if ended not in self._under_way:
            return set()
        self._under_way.remove(ended)
        self.held -= ended.size
        if ended.key is not None:
            del self._by_key[ended.key]
            if reply.code != STOPPED.code:
                self._ended[ended.key] = ended.hash, reply
                if len(self._ended) > ENDED_MAX:
                    self._ended.popitem(last=False)
        return ended.waiting

    def end_all(self, reply: Reply) -> set[WaiterT]:
        """Removes all inputs; returns who waits for them."""
        return set[WaiterT]().union(*(self.end(each, reply) for each in [*self._under_way]))
