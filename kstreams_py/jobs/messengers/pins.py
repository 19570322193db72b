"""Ids of segments that travel between peers: each names the peer of its acker and the peer of its input.

So a peer knows where to send an acknowledgement, and its acker knows where to send the end of an input, whoever the
members of the cluster are by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from kstreams_py.jobs.identity import ID_BYTES, Entropy, SegmentId, begin_alike, replace_begin

PIN_BYTES: Final = 4
"""Bytes of a peer's number."""

PINNED_BYTES: Final = 2 * PIN_BYTES + ID_BYTES
"""Bytes of an id: the number of the acker's peer, the number of the input's peer, random bytes."""

PEERS: Final = 1 << 8 * PIN_BYTES
"""Numbers of peers are below this."""


def pin_ids(entropy: Entropy, count: int, ackers: Sequence[int], own: int) -> list[SegmentId]:
    """Returns new ids of inputs.

    - `ackers`: the numbers of the peers that have an acker, in the order of the cluster's log. Each gets an equal run
      of consecutive ids, so that most messages are for one acker; a random byte chooses the first acker.
    - `own`: the number of the peer that reads the inputs.
    """
    if not count:
        return []
    data, found, of = entropy(count * ID_BYTES), list[SegmentId](), len(ackers)
    for number, (start, end) in enumerate(pairwise(count * part // of for part in range(of + 1)), data[0]):
        pins = ackers[number % of].to_bytes(PIN_BYTES, "big") + own.to_bytes(PIN_BYTES, "big")
        found += replace_begin(pins, data[start * ID_BYTES : end * ID_BYTES], ID_BYTES)
    return found


def are_pinned_alike(ids: Iterable[SegmentId], start: int = 0) -> bool:
    """Returns whether all ids name the same peer. `start`: where its number begins."""
    return begin_alike(b"".join(ids), PINNED_BYTES, start, start + PIN_BYTES)


def acker_of(segment: SegmentId) -> int:
    """Returns the number of the peer whose acker has the entry of an input."""
    return int.from_bytes(segment[:PIN_BYTES], "big")


def input_of(segment: SegmentId) -> int:
    """Returns the number of the peer that has read an input."""
    return int.from_bytes(segment[PIN_BYTES : 2 * PIN_BYTES], "big")
