"""Counts how often workers died while records of a partition were under way, beside the committed offset."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise
from typing import Final

from kstreams_py.sources.suspects import SUSPECTED

Deaths = tuple[tuple[int, int], ...]
"""Ascending pairs: an offset, and the number of deaths of the records before it, back to the previous pair's offset."""

ORDINARY: Final = range(SUSPECTED)
"""The numbers of deaths of records that are still read together with others."""

PAIRS_MAX: Final = 50
"""How many pairs are kept. The deaths of later records are forgotten: at worst, more deaths follow."""


def deaths_of(deaths: Deaths, offset: int) -> int:
    """Returns the number of deaths of a record."""
    return next((count for end, count in deaths if offset < end), 0)


def add_death(deaths: Deaths, start: int, stop: int, counts: Collection[int]) -> Deaths:
    """Adds a death to the records from `start` up to, but not including, `stop`.

    - `counts`: only records with one of these numbers of deaths get another death.
    """
    ends = sorted({start, max(start, stop), *(end for end, _ in deaths)})
    found = list[tuple[int, int]]()
    for end in ends:
        count = deaths_of(deaths, end - 1)
        count += start < end <= stop and count in counts
        if found and found[-1][1] == count:
            found.pop()
        found.append((end, count))
    return tuple(found if found[-1][1] else found[:-1])


def pass_by(deaths: Deaths, position: int) -> Deaths:
    """Returns the counts of the records from `position` on."""
    return tuple(each for each in deaths if each[0] > position)


def write_deaths(deaths: Deaths) -> str:
    """Returns the counts as the text to keep beside an offset; "" if there was no death."""
    return " ".join(["deaths", *(f"{end}:{count}" for end, count in deaths[:PAIRS_MAX])]) if deaths else ""


def read_deaths(text: str) -> Deaths:
    """Returns the counts in a text; none for a text that `write_deaths` did not return."""
    if not re.fullmatch(r"deaths( [0-9]{1,19}:[0-9]{1,4})+", text, re.ASCII):
        return ()
    deaths = tuple((int(end), int(count)) for end, _, count in (each.partition(":") for each in text.split()[1:]))
    return deaths if all(first < second for (first, _), (second, _) in pairwise(deaths)) else ()
