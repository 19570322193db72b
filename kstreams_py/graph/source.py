"""The protocol of a source: inputs that are kept elsewhere, claimed to be read, and acknowledged when they are done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kstreams_py.records import Headers


class Claim(NamedTuple):
    """An input that a connection has claimed: no other connection reads it until it is given back.

    - `key`: its key in the source, a number or bytes. No two inputs of a source ever have the same key.
    - `value`: the value for functions.
    - `attempts`: how often its worker died while it was under way, or it was given back as failed.
    - `token`: what the source needs to acknowledge it.
    - `taken_over`: whether another worker had it under way when that worker's lease ended.
    - `headers`: what the source carries beside it, such as the context of a trace.
    - `size`: the bytes of its data, as far as the source knows: the bytes under way are limited.
    """

    key: int | bytes
    value: Any
    attempts: int
    token: Any
    taken_over: bool = False
    headers: Headers = ()
    size: int = 0


class BadInput(NamedTuple):
    """Takes the place of the value of an input that cannot be read: the input is refused with this error."""

    error: BaseException


class SourceConnection(Protocol):
    """One worker's connection to a source. After an exception it stays usable: the next call tries again.

    Every method raises SourceUnavailable if the source cannot be used now.
    """

    @property
    def identity(self) -> str:
        """Distinguishes the source from others that had its name, such as a file that was deleted and created again.

        The inputs of such sources may have the same keys. Empty if nothing distinguishes them.
        """

    @property
    def lease(self) -> float:
        """Seconds after which the claims of a silent connection are taken over; infinity if they never are."""

    @property
    def is_exhausted(self) -> bool:
        """Whether no input is left, none is claimed, and none will come."""

    @property
    def waits_alone(self) -> bool:
        """Whether inputs wait for a `read` with `alone`, or were claimed by such a `read` and may be under way."""

    @property
    def refused(self) -> int:
        """How many inputs `read` has refused: they were deleted, or their workers died too often."""

    def read(self, limit: int, *, alone: bool) -> Sequence[Claim]:
        """Claims up to `limit` inputs (0 is allowed); returns none if there are none now.

        Inputs that were under way when several workers died are suspects: they are claimed separately from others, in
        small groups, and then one by one, to find the one that kills its workers.

        - `alone`: nothing is under way in this worker, so that suspects may be claimed.
        """

    def ack(self, claims: Sequence[Claim]) -> None:
        """Acknowledges inputs: they are never read again. Ignores claims that another connection has taken over."""

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """Acknowledges inputs that could not be processed. The source keeps the reason for each."""

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """Gives inputs back, to be read again by any connection. `failed`: this counts as an attempt."""

    def keep(self) -> None:
        """Renews the claims. Another thread may call it while the first one is in another method."""

    def close(self) -> None:
        """Closes the connection. After its lease, other connections take over the claims that it did not give back."""


@runtime_checkable
class WakingConnection(Protocol):
    """A SourceConnection that learns of inputs immediately, and whose `read` costs nothing.

    A job then need not wait until it looks for inputs again.
    """

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Takes the function that the connection calls, in any thread, when an input comes."""


@runtime_checkable
class NamingConnection(Protocol):
    """A SourceConnection that knows better names for its inputs than their keys, such as the lines of files."""

    def name_of(self, claim: Claim) -> str:
        """Returns the name of a claimed input, for the log and the page. Any thread may call it."""


class RefusedInput(NamedTuple):
    """An input that was refused.

    - `key`: its key, as text.
    - `deaths`: how often its worker died while it was under way, or it was given back as failed.
    """

    key: str
    deaths: int
    reason: str


class SourceStatus(NamedTuple):
    """The number of inputs of a source that one reader has claimed, by state. Inputs that are done do not count.

    - `free`: given back; the next worker reads them.
    - `claimed`: under way.
    - `abandoned`: under way when the lease of their worker ended; the next worker reads them.
    - `suspects`: the free and abandoned inputs whose workers died several times: they are read separately from others.
    - `claimed_suspects`: the claimed inputs whose workers died several times before.
    - `refused`: not to be read again.
    - `shown`: some of the refused inputs, those with the highest keys first.
    """

    free: int = 0
    claimed: int = 0
    abandoned: int = 0
    suspects: int = 0
    refused: int = 0
    shown: tuple[RefusedInput, ...] = ()
    claimed_suspects: int = 0


class Source(Protocol):
    """The declaration of a source, in the module of a graph. It is immutable, picklable, and makes no connection.

    Its `str` and `repr` name the source without credentials.
    """

    def open(self, reader: str) -> SourceConnection:
        """Opens the connection of one worker. `reader`: the graph and the source's name in it, which own the claims.

        Raises SourceUnavailable, and SettingsError if the source cannot be read as it is declared.
        """


@runtime_checkable
class NeedsSoftware(Protocol):
    """A source or a target that needs a package of an extra."""

    def check_software(self) -> None:
        """Raises MissingSoftware, with the extra, if the package is not installed. Makes no connection."""


@runtime_checkable
class InspectedSource(Source, Protocol):
    """A source that shows its claims to operators, and lets refused inputs be read again."""

    def inspect(self, reader: str, limit: int) -> SourceStatus:
        """Returns the status of a reader's claims, with up to `limit` refused inputs. Changes nothing.

        Raises SourceUnavailable, and SettingsError if the source cannot be read as it is declared.
        """

    def retry(self, reader: str, keys: Collection[str] | None) -> int:
        """Lets refused inputs be read again as if they were new; returns how many. `keys`: as text; None for all.

        Raises SettingsError for a key that no refused input has, and SourceUnavailable; then nothing is changed.
        """
