"""The protocol of a source: inputs that are kept elsewhere, claimed to be read, and acknowledged when all is done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kstreams_py.records import Headers


class Claim(NamedTuple):
    """An input that a connection has claimed: no other connection reads it until it is given back.

    - `key`: the key that the medium has for it: a number, or bytes; no two inputs of a source ever have the same.
    - `value`: what functions get.
    - `attempts`: how often it was under way before when its worker died, or when it was given back as failed.
    - `token`: what the medium needs to acknowledge it.
    - `taken_over`: whether another worker had it under way when its lease ended.
    - `headers`: what the medium carries beside it, such as the context of a trace.
    """

    key: int | bytes
    value: Any
    attempts: int
    token: Any
    taken_over: bool = False
    headers: Headers = ()


class BadInput(NamedTuple):
    """In place of the value of a claim that cannot be read: it is refused for this error, and no function called."""

    error: BaseException


class SourceConnection(Protocol):
    """One worker's connection to a source. After an exception it stays usable: the next call tries again.

    Every method raises SourceUnavailable if the source cannot be used now.
    """

    @property
    def identity(self) -> str:
        """What tells this medium from another one that has its name, such as a file that was made again.

        The keys of the other one may be the same. Empty if there is nothing to tell them by.
        """

    @property
    def lease(self) -> float:
        """Seconds for which a claim is kept without a word from this connection; infinity if nobody takes it over."""

    @property
    def is_exhausted(self) -> bool:
        """Whether no input is left, none is claimed, and none will come."""

    @property
    def waits_alone(self) -> bool:
        """Whether inputs wait for a `read` with `alone`."""

    @property
    def refused(self) -> int:
        """How many inputs `read` has refused by itself: those that are gone, or were under way at too many deaths."""

    def read(self, limit: int, *, alone: bool) -> Sequence[Claim]:
        """Claims up to `limit` inputs, which may be 0; returns none if none is there now.

        Inputs that were read at several deaths of a worker are suspects: they are claimed by themselves, in ever
        smaller groups, so that the one that ends its workers is found.

        - `alone`: nothing is under way in this worker, so that suspects may be claimed.
        """

    def ack(self, claims: Sequence[Claim]) -> None:
        """Acknowledges inputs: they are never read again. A claim that another connection has taken over is left."""

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """Acknowledges inputs that could not be processed, each with the reason, which the source keeps."""

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """Gives inputs back, to be read again by any connection. `failed`: this counts as an attempt."""

    def keep(self) -> None:
        """Keeps the claims. Another thread may call it, while the first one is in another method."""

    def close(self) -> None:
        """Closes the connection. Claims that were not given back are taken over by others after their lease."""


@runtime_checkable
class WakingConnection(Protocol):
    """What a connection has beside a SourceConnection if it learns of inputs at once, and if its `read` costs nothing.

    A job then does not wait until its next look for them.
    """

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Takes what the connection calls when an input comes, in any thread."""


class RefusedInput(NamedTuple):
    """An input that was refused.

    - `key`: its key, as text.
    - `deaths`: how often it was under way when its worker died, or when it was given back as failed.
    """

    key: str
    deaths: int
    reason: str


class SourceStatus(NamedTuple):
    """How many inputs of a source are claimed by one reader, and what keeps them. Those that are done do not count.

    - `free`: given back; the next worker reads them.
    - `claimed`: under way.
    - `abandoned`: under way when the lease of their worker ended; the next worker reads them.
    - `suspects`: of the free and the abandoned, those that were so at several deaths: they are read by themselves.
    - `refused`: not to be read again.
    - `shown`: some of the refused inputs, those with the highest keys first.
    """

    free: int = 0
    claimed: int = 0
    abandoned: int = 0
    suspects: int = 0
    refused: int = 0
    shown: tuple[RefusedInput, ...] = ()


class Source(Protocol):
    """The declaration of a source, in the module of a graph. It is immutable, picklable, and makes no connection.

    `str` and `repr` of it name the source without credentials.
    """

    def open(self, reader: str) -> SourceConnection:
        """Opens the connection of one worker. `reader`: the graph and the source's name in it, which own the claims.

        Raises SourceUnavailable, and SettingsError if the source cannot be read as it is declared.
        """


@runtime_checkable
class InspectedSource(Source, Protocol):
    """A source whose claims operators can look at, and whose refused inputs they can let be read again."""

    def inspect(self, reader: str, limit: int) -> SourceStatus:
        """Returns how the claims of a reader stand, with up to `limit` refused inputs. Changes nothing.

        Raises SourceUnavailable, and SettingsError if the source cannot be read as it is declared.
        """

    def retry(self, reader: str, keys: Collection[str] | None) -> int:
        """Lets refused inputs be read again as if they were new; returns how many. `keys`: as text; None for all.

        Raises SettingsError for a key of which no input is refused, and SourceUnavailable; nothing is changed then.
        """
