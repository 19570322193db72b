"""Where keys are placed, as Java's clients place them; and the partitions that a producer is new to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kstreams_py.delivery import Output

COLD_SECONDS: Final = 3_600.0
"""Well below producer.id.expiration.ms (a day), after which a broker forgets what it knows of a producer."""

PLACES_KEPT: Final = 100_000
"""Keys whose partition is kept, while a topic has partitions that were not written to."""


def murmur2(data: bytes) -> int:
    """The hash by which Java's clients place keys: 32-bit MurmurHash2 (Austin Appleby), as an unsigned number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        h = (h * m ^ (k ^ k >> 24) * m) & mask
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition number of a key in a topic with so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class ColdPartitions:
    """The partitions that a producer has not written to lately: their broker may have no sequence number of it.

    `partitions_of` gives the number of partitions of a topic, 0 if it is not known.
    """

    def __init__(self, partitions_of: Callable[[str], int]) -> None:
        self._partitions_of = partitions_of
        self._forgotten_at = 0.0
        self._forget()

    def _forget(self) -> None:
        self._warm: set[str] = set()
        """Topics all of whose partitions were written to."""
        self._cold: dict[str, set[int]] = {}
        self._counts: dict[str, int] = {}
        self._places: dict[tuple[str, bytes], int] = {}

    def take(self, outputs: list[Output], topics: set[str], now: float) -> list[Output]:
        """Takes the first output for each cold partition off the list: it is to be acknowledged before the others.

        `topics` are those of the outputs. Of those without a key, which go anywhere, some are sent to cold partitions.
        """
        if now - self._forgotten_at > COLD_SECONDS:
            self._forgotten_at = now
            self._forget()
        if self._warm.issuperset(topics):
            return []
        first, others = list[Output](), list[Output]()
        for output in outputs:
            topic = output[0]
            cold = set[int]() if topic in self._warm else self._cold_of(topic)
            place = self._place(output, cold) if cold else -1
            if place in cold:
                cold.discard(place)
                first.append((*output[:3], place, *output[4:]))
            else:
                others.append(output)
        self._warm |= {topic for topic, cold in self._cold.items() if not cold}
        outputs[:] = others
        return first

    def _cold_of(self, topic: str) -> set[int]:
        if topic not in self._cold:
            self._counts[topic] = self._partitions_of(topic)
            self._cold[topic] = set(range(self._counts[topic]))
        return self._cold[topic]

    def _place(self, output: Output, cold: set[int]) -> int:
        topic, _, key, number, *_ = output
        if number >= 0:
            return number
        if key is None:
            return min(cold)
        place = self._places.get((topic, key))
        if place is None:
            if len(self._places) >= PLACES_KEPT:
                self._places.clear()
            place = self._places[topic, key] = partition_of(key, self._counts[topic])
        return place
