"""Values that `ks.Json()` decodes, and encodes again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import DecodeError
from tests.hostile import Outcome, Place

OUTPUT, DEAD_LETTER = Outcome.OUTPUT, Outcome.DEAD_LETTER


def enter(values: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """An output is JSON again that is equal to what came in."""

    def outcome(data: bytes) -> Outcome:
        try:
            value = ks.Json().deserialize(data)
        except DecodeError:
            return DEAD_LETTER
        assert ks.Json().deserialize(ks.Json().serialize(value)) == value
        return OUTPUT

    return {name: outcome(data) for name, data in values.items()}


PLACES: Final = [
    Place(
        "JSON, decoded",
        {
            "nested 100,000 deep": (b"[" * 100_000, DEAD_LETTER),
            "cut off": (b'{"a": 1', DEAD_LETTER),
            "bytes that are not UTF-8": (b'"\xff"', DEAD_LETTER),
            "Infinity": (b"Infinity", DEAD_LETTER),
            "nothing": (b"", DEAD_LETTER),
            "an object": (b'{"a": [1, 2.5, "b", null, true]}', OUTPUT),
        },
        enter,
    )
]
