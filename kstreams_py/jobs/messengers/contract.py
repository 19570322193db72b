"""The protocol of messengers, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from errno import EADDRINUSE
from typing import Protocol

from kstreams_py.errors import SettingsError
from kstreams_py.jobs.cluster.commands import FRAME_MAX
from kstreams_py.jobs.messengers.frames import ENVELOPE


@dataclass(frozen=True, kw_only=True)
class MessengerSettings:
    """The settings of a messenger.

    - `peer`: the id of this peer, which no other peer ever has.
    - `cluster`: the name of the cluster.
    - `host`: the name or address to listen on: by default, only programs of this machine reach it.
    - `port`: 0 for any free one.
    - `advertised`: the name or address under which other peers reach this one; by default `host`.
    - `frame_max`: the most bytes of a frame, the same for all peers of a cluster.
    - `queue`: the most frames that wait for another peer, and the most from another peer that wait to be received.
    - `queue_bytes`: likewise the most bytes; one frame always fits. `zmq` counts only frames.
    - `certificate`, `key`, `authority`: for `http`, files in PEM format for TLS. With `authority`, peers show each
      other certificates that it has issued.

    Raises SettingsError for values that make no sense.
    """

    peer: str
    cluster: str
    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""
    frame_max: int = FRAME_MAX
    queue: int = 64
    queue_bytes: int = 32 << 20
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None

    def __post_init__(self) -> None:
        if not self.peer or not self.cluster:
            raise SettingsError("a peer needs an id, and the name of its cluster")
        if not 0 <= self.port < 1 << 16:
            raise SettingsError(f"port={self.port}: give a number from 0 to 65535")
        if self.frame_max < 2 * ENVELOPE or self.queue < 1 or self.queue_bytes < 1:
            raise SettingsError(
                f"frame_max={self.frame_max}, queue={self.queue}, queue_bytes={self.queue_bytes}: give at least "
                f"{2 * ENVELOPE}, 1 and 1"
            )
        if self.certificate is None and (self.key is not None or self.authority is not None):
            raise SettingsError("key= and authority= need certificate=")
        if not self.advertised and self.host in ("", "*", "0.0.0.0", "::"):
            raise SettingsError(
                f"host={self.host!r}: others cannot reach a peer there: give the name of this machine as advertised="
            )


@dataclass
class MessengerCounts:
    """What a messenger has dropped.

    - `strangers`: connections and frames from outside the cluster: another key, another cluster, a peer that left.
    - `garbage`: connections and requests that are not of this protocol, and frames above the limit.
    """

    strangers: int = 0
    garbage: int = 0

    @property
    def dropped(self) -> int:
        """The sum of these counts."""
        return self.strangers + self.garbage


class Messenger(Protocol):
    """Sends frames to other peers, and receives theirs.

    It may lose, double and reorder frames when a connection breaks; a Link repairs that. One thread calls all methods
    but `wake`. Frames of peers that are not connected are dropped and counted.
    """

    counts: MessengerCounts

    def start(self) -> None:
        """Begins to listen. Raises SettingsError if the port is taken or the address is not one of this machine."""

    @property
    def address(self) -> str:
        """Where other peers reach this one. They get it from the `join` of this peer."""

    @property
    def public_key(self) -> str:
        """What other peers need besides the address; "" if they need nothing. Members of the cluster may read it."""

    def connect(self, peer: str, address: str, public_key: str) -> None:
        """Admits a member of the cluster, and begins to connect to it, again if it has moved. Does not block.

        Raises SettingsError for an address that this messenger does not understand.
        """

    def disconnect(self, peer: str) -> None:
        """Ends the connection to a peer that has left, and drops what waits for it."""

    def send(self, peer: str, frame: bytes) -> bool:
        """Sends a frame; returns False if it cannot be taken now: too many wait, or the peer is away.

        Raises ValueError if the frame is larger than `frame_max`: all others would refuse it.
        """

    def receive(self) -> list[tuple[str, bytes]]:
        """Returns the frames that have come, each with the id of its peer. Waits for nothing."""

    def wait(self, seconds: float) -> None:
        """Returns when a frame has come, when `wake` is called, or after `seconds`."""

    def wake(self) -> None:
        """Ends `wait`, or the next one. Any thread may call it."""

    def close(self) -> None:
        """Ends all connections, and frees the port."""


def check_size(frame: bytes, settings: MessengerSettings) -> None:
    """Raises ValueError for a frame that is larger than the limit."""
    if len(frame) > settings.frame_max:
        raise ValueError(f"a frame has {len(frame)} bytes: the limit of all peers is {settings.frame_max}")


def bind_error(settings: MessengerSettings, number: int | None, text: str) -> SettingsError:
    """Returns the error for an address at which a peer cannot listen. `number`, `text`: the system's error."""
    if number == EADDRINUSE:
        return SettingsError(
            f"port {settings.port} is in use: end the program that uses it, or choose another one, or 0 for a free one"
        )
    return SettingsError(f"cannot listen at {settings.host!r}, port {settings.port}: {text}: correct host= or port=")
