"""The limit that follows the speed of what is limited."""

from __future__ import annotations

import os
from functools import partial

from kstreams_py.jobs.adaptive_limit import AdaptiveLimit
from kstreams_py.jobs.identity import new_ids
from kstreams_py.jobs.inputs import SourceInputs
from kstreams_py.testing.memory_source import MemorySource


def test_limit_grows_fourfold_at_most_and_shrinks_at_once() -> None:
    limit = AdaptiveLimit(seconds=1.0, first=10, most=10_000, least=8)
    limits = [limit.limit]
    for count, seconds in ((10, 0.001), (40, 0.0), (0, 5.0), (160, 0.5), (320, 320.0), (8, 1.0)):
        limit.took(count, seconds)
        limits.append(limit.limit)
    assert limits == [10, 40, 160, 160, 320, 8, 8]


def test_limit_is_never_above_the_most_nor_below_the_least() -> None:
    assert [AdaptiveLimit(1.0, first, 100, least).limit for first, least in ((500, 1), (5, 20), (5, 200))] == [
        100,
        20,
        100,
    ]
    limit = AdaptiveLimit(1.0, 50, 100)
    limit.took(1_000, 0.0)
    assert limit.limit == 100


def test_limit_of_inputs_follows_their_speed_and_not_two_that_end_at_once() -> None:
    source, new = MemorySource(range(1_000)), partial(new_ids, os.urandom)
    inputs = SourceInputs("graph:rows", source.open("rows"), (4, 10_000), 60.0, new)
    segments, limits = inputs.read(0.0).ids, set[int]()
    for number, segment in enumerate(segments):
        inputs.complete([segment])
        inputs.settle(number // 2 * 0.02 + number % 2 * 0.001)
        limits.add(inputs._limit.limit)
    assert limits - {500} <= {*range(90, 125)}, "100 inputs in a second"
