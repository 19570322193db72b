"""Fixtures of the simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nothing is logged: every run is full of warnings, as it should be."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
