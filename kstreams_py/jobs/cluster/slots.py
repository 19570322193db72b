"""The slots of a grouped task: which peer has which keys. A key stays at its peer until that peer leaves.

The keys of a group are hashed to slots, and the table of slots is part of the replica. When a peer leaves, only its own
slots move, each to the peer with the highest random weight (Thaler and Ravishankar, "Using name-based mappings to
increase hit rates", 1998).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Final

from kstreams_py.errors import GraphError

SLOTS: Final = 256
"""The slots of a task: many more than it has peers, so that each peer has about as many."""


def new_table(peers: Sequence[int]) -> tuple[int, ...]:
    """Returns the peer of each slot, by the peers' numbers."""
    return tuple(peers[slot % len(peers)] for slot in range(SLOTS))


def remap(table: Sequence[int], left: int, peers: Sequence[int]) -> tuple[int, ...]:
    """Returns the table without a peer that has left. `peers`: the peers that remain, at least one."""
    return tuple(_heaviest(slot, peers) if peer == left else peer for slot, peer in enumerate(table))


def _heaviest(slot: int, peers: Sequence[int]) -> int:
    return max(peers, key=lambda peer: blake2b(b"%d:%d" % (slot, peer), digest_size=8, person=b"ks-slot").digest())


def slot_of(key: Hashable) -> int:
    """Returns the slot of a group's key, the same in each process.

    Raises GraphError for a key without a stable hash.
    """
    return blake2b(_encode(key), digest_size=8, person=b"ks-group").digest()[0] % SLOTS


def slot_of_id(segment: bytes) -> int:
    """Returns the slot of a segment that is gathered with the others of its input. `segment`: a random id."""
    return segment[-1] % SLOTS


def _encode(key: Hashable) -> bytes:
    """Returns bytes that are equal only for equal keys: 1, 1.0 and True are one key, as in a dict."""
    kind = type(key)
    if kind is str:
        return b"s" + str(key).encode(errors="surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, int):
        return b"i%d" % key
    if isinstance(key, float):
        return b"i%d" % int(key) if key.is_integer() else b"f" + repr(key).encode()
    if key is None:
        return b"n"
    if kind is tuple:
        assert isinstance(key, tuple)
        parts = [_encode(each) for each in key]
        return b"t" + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    raise GraphError(
        f"group_by= returned a {kind.__name__}, which has no hash that is the same on all peers: return a str, bytes, "
        "int, float, None, or a tuple of these"
    )
