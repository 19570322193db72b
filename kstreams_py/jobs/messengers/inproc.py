"""A messenger between threads of one process, for a graph in one process, and for simulations."""

from __future__ import annotations

import threading
from itertools import count
from typing import Final

from kstreams_py.errors import SettingsError
from kstreams_py.jobs.messengers.contract import MessengerCounts, MessengerSettings, check_size
from kstreams_py.jobs.messengers.queues import FrameQueues

SCHEME: Final = "inproc:"


class InprocNetwork:
    """The messengers that reach each other, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._messengers: dict[str, InprocMessenger] = {}

    def add(self, messenger: InprocMessenger, port: int) -> str:
        """Adds a messenger; returns its address, which has its number. Raises SettingsError if another one has it."""
        with self._lock:
            numbers = iter((port,)) if port else self._numbers
            address = next(found for each in numbers if (found := f"{SCHEME}{each}") not in self._messengers or port)
            if address in self._messengers:
                raise SettingsError(f"port {port} is in use: choose another one, or 0 for any free one")
            self._messengers[address] = messenger
            return address

    def find(self, address: str) -> InprocMessenger | None:
        """Returns the messenger at an address; None if there is none."""
        return self._messengers.get(address)

    def remove(self, address: str) -> None:
        """Frees an address."""
        with self._lock:
            self._messengers.pop(address, None)


_network: Final = InprocNetwork()
"""The network of this process."""


class InprocMessenger:
    """See Messenger. It loses nothing."""

    public_key = ""

    def __init__(self, settings: MessengerSettings, network: InprocNetwork = _network) -> None:
        """Listens from `start` on. `network`: where it finds the others."""
        self.settings, self._network = settings, network
        self.counts = MessengerCounts()
        self.address = ""
        self._peers: dict[str, str] = {}
        """The addresses of the connected peers."""
        self._queues = FrameQueues(settings)
        self._woken = threading.Event()

    def start(self) -> None:
        """See Messenger."""
        self.address = self._network.add(self, self.settings.port)

    def connect(self, peer: str, address: str, public_key: str) -> None:  # noqa: ARG002, of the protocol
        """See Messenger."""
        if not address.startswith(SCHEME):
            raise SettingsError(
                f"{peer}: {address!r} is not an inproc address: start all peers with the same messenger"
            )
        self._peers[peer] = address
        self._queues.open(peer)

    def disconnect(self, peer: str) -> None:
        """See Messenger."""
        self._peers.pop(peer, None)
        self._queues.close(peer)

    def send(self, peer: str, frame: bytes) -> bool:
        """See Messenger."""
        check_size(frame, self.settings)
        other, own = self._network.find(self._peers.get(peer, "")), self.settings
        if other is None or (other.settings.peer, other.settings.cluster) != (peer, own.cluster):
            return False
        return other.deliver(own.peer, frame)

    def deliver(self, peer: str, frame: bytes) -> bool:
        """Takes a frame of another peer; returns False if too many wait. Any thread may call it."""
        if peer not in self._queues:
            self.counts.strangers += 1
            return True
        is_taken = self._queues.put(peer, [frame])
        self._woken.set()
        return is_taken

    def receive(self) -> list[tuple[str, bytes]]:
        """See Messenger."""
        return self._queues.take_all()

    def wait(self, seconds: float) -> None:
        """See Messenger."""
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """See Messenger."""
        self._woken.set()

    def close(self) -> None:
        """See Messenger."""
        self._network.remove(self.address)
        for peer in [*self._peers]:
            self.disconnect(peer)
