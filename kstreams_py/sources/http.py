"""Requests over HTTP as a source: each is answered when everything that was made from it is done."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.graph.source import SourceConnection
from kstreams_py.sources.http_requests import RequestRules


@dataclass(frozen=True, kw_only=True)
class HTTP(RequestRules):
    """The POST requests of a path, each answered when everything that was made from it is done.

    Needs Tornado: `pip install 'kstreams_py[http]'`. The input is the JSON value of a body of type `application/json`,
    and the bytes of any other. Only one worker can listen on a port: run the graph with one worker. Several sources may
    share a port, each with its own path.

    The answers are small JSON objects:

    - 200: everything is stored.
    - 422: the input was refused, with the reason; or its key was sent earlier, with another body.
    - 503: too many requests wait, or the worker stops: send it again.
    - 504: the input was not done before the deadline. Its processing goes on.
    - 400, 401, 403, 404, 405, 413, 415, 421: the request is not an input, for the reason in the answer.

    Only the client keeps a request until it is answered: a client that gets 503, 504 or no answer sends it again.
    A request with the same header `Idempotency-Key` is the same input: it gets the answer of the first one, or waits
    for it, and a target that stores by hash has its rows once even if a worker was killed. Without the header, each
    request is a new input. A key identifies an input of the source for ever, so clients should use a UUID.

    - `port`: 0 for any free one, which the log names.
    - `host`: the name or address to listen on. Any address but the loopback needs a `token`.
    - `token`: clients send it as `Authorization: Bearer TOKEN`; read it from the environment. Without a token, requests
      from web pages are refused.
    - `certificate`, `key`: files in PEM format for TLS. The file of the certificate may have the key as well.
    - `request`: functions get an HTTPRequest, with the body, the headers, and the query of the URL.
    - `body_max`: the most bytes of a body.
    - `max_pending`: how many requests may be under way.
    - `deadline`: seconds from the end of a request until it is answered with 504.
    - `show_reasons`: whether an answer of 422 has the text of the exception. The log always has it.

    Raises SettingsError for invalid options.
    """

    readers_max: ClassVar[int] = 1
    """How many workers or peers can read it at a time."""

    port: int
    host: str = "127.0.0.1"
    certificate: Path | str | None = None
    key: Path | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port < 1 << 16:
            raise SettingsError(f"port={self.port}: give a number from 0 to 65535")
        if self.token is None and not _is_loopback(self.host):
            raise SettingsError(
                f"host={self.host!r}: others can send inputs there: give token=, such as os.environ['ORDERS_TOKEN']"
            )
        if self.key is not None and self.certificate is None:
            raise SettingsError(f"key={str(self.key)!r}: give its certificate= as well")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}{self.path}"

    def check_software(self) -> None:
        """See NeedsSoftware."""
        try:
            import kstreams_py.sources.http_server  # noqa: F401, PLC0415 an extra
        except ImportError:
            raise MissingSoftware("a source of HTTP needs Tornado: pip install 'kstreams_py[http]'") from None

    def open(self, reader: str) -> SourceConnection:
        """See Source."""
        self.check_software()
        from kstreams_py.sources.http_server import open_requests  # noqa: PLC0415 an extra

        return open_requests(str(self), reader, self, (self.host, self.port), (self.certificate, self.key))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
