"""OAUTHBEARER tokens: one for all clients of a process, renewed before it expires."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from kstreams_py.errors import BrokerUnavailable
from kstreams_py.log_fields import answers, away

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 8.0
"""Seconds that a client waits for a token: confluent-kafka waits 10 s for its callback, and reports no reason."""

KEPT_PART: Final = 0.8
"""The fraction of a token's life after which a new one is requested; librdkafka calls its callback by the same rule."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_EXTENSION: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Token:
    """A token that brokers accept.

    - `value`: the token itself; no `repr` shows it.
    - `expires`: seconds since 1970.
    - `principal`: its owner; librdkafka only logs it.
    - `extensions`: SASL extensions that are sent with it.

    Raises ValueError for a token that no client would send; the error does not show the token.
    """

    value: str = field(repr=False)
    expires: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.value):
            raise ValueError("the token is empty, or has characters other than visible ASCII")
        for name, value in self.extensions.items():
            if not _EXTENSION.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
                raise ValueError(f"{name!r} is not a SASL extension: its name has letters only, and is not auth")


class TokenSource:
    """Gives all clients of this process the same token.

    confluent-kafka calls it as `oauth_cb`; kafka-python uses it as its token provider.

    - `failed_at`: the monotonic time of its newest failure.
    """

    def __init__(self, name: str, ask: Callable[[], Token], clock: Callable[[], float] = time.time) -> None:
        """`name`: the source of the tokens, for messages. `ask`: gets a token from the source, in its own thread.

        An exception from `ask` is reported as the reason why there is no token: BrokerUnavailable by its message
        alone, any other exception with its class.
        """
        self._name = name
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._kept_until = 0.0
        self._asking: Future[Token] | None = None
        self._asked_at = 0.0
        self.failed_at = -math.inf
        self._has_failed = False

    def get(self, limit: float = ASK_SECONDS) -> Token:
        """Returns the token, or a new one once most of its life is over. Raises BrokerUnavailable with the reason.

        A token that has not expired is used until a new one arrives.
        """
        with self._lock:
            token, asking = self._token, self._asking
            if token is not None and self._clock() < self._kept_until:
                return token
            if asking is None:
                asking = self._asking = Future()
                self._asked_at = self._clock()
                threading.Thread(target=self._run, args=[asking], name=f"asking {self._name}", daemon=True).start()
        try:
            return asking.result(limit)
        except Exception as error:
            return self._kept(token, error if asking.done() else self._unanswered())

    def _unanswered(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"it has not returned for {self._clock() - self._asked_at:.0f} s")

    def _kept(self, token: Token | None, error: Exception) -> Token:
        """Returns the previous token, if it has not expired; otherwise raises BrokerUnavailable."""
        why = str(error) if isinstance(error, BrokerUnavailable) else f"{type(error).__name__}: {error}"
        self._has_failed, self.failed_at = True, time.monotonic()
        left = 0.0 if token is None else token.expires - self._clock()
        if token is None or left <= 1:
            raise BrokerUnavailable(
                f"cannot sign in to any broker: {self._name} provides no token: {why}",
                may_return=getattr(error, "may_return", True),
            ) from None
        logger.warning(
            "%s provides no token: %s; the previous one is used for another %.0f s", self._name, why, left,
            extra=away(f"tokens of {self._name}"),
        )  # fmt: skip
        return token

    def _run(self, asking: Future[Token]) -> None:
        try:
            token = self._ask()
            if token.expires <= (now := self._clock()) + 1:
                raise BrokerUnavailable("its token has expired: the expiry is in seconds since 1970")
        except BaseException as error:  # from the user's function; SystemExit would only end this thread
            with self._lock:
                self._asking = None
            asking.set_exception(error if isinstance(error, Exception) else BrokerUnavailable(f"it raised {error!r}"))
            return
        with self._lock:
            self._asking, self._token = None, token
            self._kept_until = now + KEPT_PART * (token.expires - now)
            had_failed, self._has_failed = self._has_failed, False
        if had_failed:
            logger.info("%s provides tokens again", self._name, extra=answers(f"tokens of {self._name}"))
        asking.set_result(token)

    def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Returns the token for confluent-kafka, which calls again 10 s after this method has raised an exception."""
        try:
            token = self.get()
        except BrokerUnavailable as error:  # the client reports only that its callback has raised
            logger.warning("%s", error, extra=away(f"tokens of {self._name}"))
            raise
        return token.value, token.expires, token.principal, dict(token.extensions)

    def token(self) -> str:
        """Returns the token for kafka-python."""
        return self.get().value

    def extensions(self) -> dict[str, str]:
        """Returns the extensions for kafka-python, which asks for the token first."""
        return dict(self.get().extensions)
