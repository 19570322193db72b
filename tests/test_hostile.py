"""The tables of hostile inputs, run."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Final

import pytest

from tests import hostile

PLACES: Final = [
    place
    for module in pkgutil.iter_modules(hostile.__path__, f"{hostile.__name__}.")
    for place in import_module(module.name).PLACES
]


@pytest.mark.parametrize("place", PLACES, ids=[place.name for place in PLACES])
def test_hostile_input_has_the_outcome_of_the_table(place: hostile.Place, request: pytest.FixtureRequest) -> None:
    entered = {name: what for name, (what, _) in place.rows.items()}
    assert place.enter(entered, request) == {name: outcome for name, (_, outcome) in place.rows.items()}
