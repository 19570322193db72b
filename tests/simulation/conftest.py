"""Fixtures of the simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def disable_logging() -> Iterator[None]:
    """Disables logging: the faults of every run cause many warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
