"""The frames that have come from each other peer and have not been received yet, within limits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from kstreams_py.jobs.messengers.contract import MessengerSettings


class _Queue:
    def __init__(self) -> None:
        self.frames = deque[bytes]()
        self.bytes = 0


class FrameQueues:
    """A queue for each connected peer. Any thread may call all methods."""

    def __init__(self, settings: MessengerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}

    def open(self, peer: str) -> None:
        """Begins to take frames of a peer."""
        with self._lock:
            self._queues.setdefault(peer, _Queue())

    def close(self, peer: str) -> None:
        """Stops taking frames of a peer, and drops those that were not received."""
        with self._lock:
            self._queues.pop(peer, None)

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, peer: str) -> bool:
        return peer in self._queues

    def is_full(self, peer: str) -> bool:
        """Returns whether the queue of a peer has reached its limit, in frames or in bytes."""
        queue, settings = self._queues.get(peer), self._settings
        return queue is not None and (len(queue.frames) >= settings.queue or queue.bytes >= settings.queue_bytes)

    def put(self, peer: str, frames: Sequence[bytes]) -> bool:
        """Adds frames. Returns False, and adds none, if the queue is full or the peer is not connected."""
        with self._lock:
            if (queue := self._queues.get(peer)) is None or self.is_full(peer):
                return False
            queue.frames += frames
            queue.bytes += sum(map(len, frames))
        return True

    def take_all(self) -> list[tuple[str, bytes]]:
        """Removes all frames, and returns them with their peers."""
        found = list[tuple[str, bytes]]()
        with self._lock:
            for peer, queue in self._queues.items():
                if queue.frames:
                    found += [(peer, frame) for frame in queue.frames]
                    queue.frames.clear()
                    queue.bytes = 0
        return found
