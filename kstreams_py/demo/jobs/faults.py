"""The faults that hit the peers and the jobs of a run, in random order, each after a number of rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from kstreams_py.jobs.cluster.heartbeats import INTERVAL, SILENT_AFTER

AWAKE_SECONDS: Final = 1.5
"""Seconds for which a peer is left alone after a freeze: the freeze is there to test what it does then."""

FROZEN_SECONDS: Final = INTERVAL * SILENT_AFTER + 2.0
"""Seconds after which the other peers have usually found a frozen peer silent."""

FROZEN_MAX: Final = 60.0
"""Seconds after which a frozen peer goes on, whether the others have found it silent or not."""

APART_SECONDS: Final = 1.0
"""The minimum number of seconds between two faults."""


class FaultKind(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    FREEZE = "freeze"
    JOIN = "join"
    RESUBMIT = "resubmit"


SECONDS: Final = {
    FaultKind.KILL: 3.0,
    FaultKind.FREEZE: FROZEN_SECONDS + AWAKE_SECONDS,
    FaultKind.JOIN: 3.0,
    FaultKind.RESUBMIT: 4.0,
}
"""The seconds of a run that each kind of fault takes. The next fault comes after them."""

LAST: Final = 0.9
"""The fraction of the rows after which no fault happens: enough rows are left to process after the last fault."""


class PlannedFault(NamedTuple):
    """A fault. `after`: how many rows are stored before it."""

    kind: FaultKind
    after: int


def seconds_of(counts: Counter[FaultKind]) -> float:
    """Returns how long a run with these faults is to take, in seconds."""
    return sum(SECONDS[kind] * count for kind, count in counts.items()) / LAST


def plan_faults(counts: Counter[FaultKind], rows: int, seed: int) -> Sequence[PlannedFault]:
    """Returns the faults in their order: each at a random point of the first third of its part of the run.

    - `counts`: how many of each kind.
    - `rows`: how many rows are stored in the whole run.
    - `seed`: the seed of their order, and of the points.
    """
    chance = random.Random(seed)
    kinds = sorted(counts.elements())
    chance.shuffle(kinds)
    ends = [*accumulate((SECONDS[kind] for kind in kinds), initial=0.0)]
    points = (start + SECONDS[kind] * chance.uniform(0.0, 1 / 3) for start, kind in zip(ends, kinds, strict=False))
    return [PlannedFault(kind, int(rows * LAST * point / ends[-1])) for kind, point in zip(kinds, points, strict=True)]
