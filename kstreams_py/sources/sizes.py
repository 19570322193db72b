"""The bytes of inputs: how many are read together."""

from __future__ import annotations

from typing import Any, Final

READ_BYTES: Final = 4 * 2**20
"""Bytes of inputs after which no more inputs are read together."""


def weigh(data: Any) -> int:
    """Returns the bytes of texts and binary data: of a single one, or of all in a list or in the values of a dict."""
    if isinstance(data, str | bytes):
        return len(data)
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return sum(len(each) for each in parts if isinstance(each, str | bytes))
