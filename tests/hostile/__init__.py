"""Hostile inputs: what comes from outside, the place where it enters, and what becomes of it.

A module for each place has its table, and enters each row there. `tests/test_hostile.py` reads the tables. The rule
behind all of them: a record becomes an output or a dead letter, a setting or an argument is accepted or refused;
nothing ends a worker, stops a partition, or is changed without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest


class Outcome(StrEnum):
    """What becomes of an input."""

    OUTPUT = "output"
    """It is processed, and nothing of it is changed."""
    DEAD_LETTER = "dead letter"
    REFUSED = "refused"
    """An exception of this package, or an exit status that is not 0, with a remedy; for what is not a record."""

    PASSED_OVER = "passed over"
    """It changes nothing, and is named; for records of others in the framework's own topics."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place where inputs enter.

    - `name`: the place, in words.
    - `rows`: by the name of an input, what is entered, and the outcome.
    - `enter`: enters all rows; returns the outcome of each by the name of its input. Takes the request of the test for
      fixtures such as `kafka`.
    """

    name: str
    rows: Mapping[str, tuple[Any, Outcome]]
    enter: Callable[[Mapping[str, Any], pytest.FixtureRequest], Mapping[str, Outcome]]
