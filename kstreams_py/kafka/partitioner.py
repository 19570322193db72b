"""The partition of a key, as Java's clients compute it."""

from __future__ import annotations


def murmur2(data: bytes) -> int:
    """Returns the 32-bit MurmurHash2 (Austin Appleby) with the seed of Java's clients, as an unsigned number."""
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
    """Returns the partition number of a key in a topic that has `partitions` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
