"""Ids of segments that travel between peers: they name the peer of their acker and the peer of their input.

So a peer knows where to send an acknowledgement, and its acker where to send the end of an input, whatever the members
of the cluster are by then.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from kstreams_py.jobs.identity import ID_BYTES, Entropy, SegmentId

PIN_BYTES: Final = 4
"""Bytes of the number of a peer."""

PINNED_BYTES: Final = 2 * PIN_BYTES + ID_BYTES
"""Bytes of an id: the number of the acker's peer, that of the input's peer, random bytes."""

PEERS: Final = 1 << 8 * PIN_BYTES
"""Numbers of peers are below this."""


def pin_ids(entropy: Entropy, count: int, ackers: Sequence[int], own: int) -> list[SegmentId]:
    """Returns new ids of inputs.

    - `ackers`: the numbers of the peers that have an acker, in the order of the cluster's log. The random bytes choose
      one, so ids are spread evenly.
    - `own`: the number of the peer that reads the inputs.
    """
    data, inputs = entropy(count * ID_BYTES), own.to_bytes(PIN_BYTES, "big")
    begins = [each.to_bytes(PIN_BYTES, "big") + inputs for each in ackers]
    of, chosen = len(begins), array("Q", data)[::2]
    found: Any = [
        begins[number % of] + data[start : start + ID_BYTES]
        for number, start in zip(chosen, range(0, len(data), ID_BYTES), strict=True)
    ]
    ids: list[SegmentId] = found
    return ids


def acker_of(segment: SegmentId) -> int:
    """Returns the number of the peer whose acker has the entry of an input."""
    return int.from_bytes(segment[:PIN_BYTES], "big")


def input_of(segment: SegmentId) -> int:
    """Returns the number of the peer that has read an input."""
    return int.from_bytes(segment[PIN_BYTES : 2 * PIN_BYTES], "big")
