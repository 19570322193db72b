"""Values that `ks.Json()` decodes, and encodes again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import DecodeError, EncodeError
from tests.hostile import Outcome, Place

OUTPUT, DEAD_LETTER = Outcome.OUTPUT, Outcome.DEAD_LETTER


def enter(values: Mapping[str, Any], _: pytest.FixtureRequest) -> dict[str, Outcome]:
    """An output is JSON again that is equal to what came in."""

    def outcome(data: bytes) -> Outcome:
        try:
            value = ks.Json().deserialize(data)
            assert ks.Json().deserialize(ks.Json().serialize(value)) == value
        except (DecodeError, EncodeError):
            return DEAD_LETTER
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
            "1e400": (b"1e400", DEAD_LETTER),
            "-1E+400 in an object in a list": (b'[{"a": -1E+400}]', DEAD_LETTER),
            "400 digits and a fraction": (b"1" * 400 + b".5", DEAD_LETTER),
            "1e-400, which is not 0": (b"[0.00, 1e-400]", DEAD_LETTER),
            "zeros": (b"[0.0, -0.0, 0e0, 0E-400, 0, -0]", OUTPUT),
            "the greatest float": (b"1.7976931348623157e308", OUTPUT),
            "400 digits": (b"1" * 400, OUTPUT),
            "a million digits": (b"1" * 1_000_000, DEAD_LETTER),
            "half of a pair of surrogates, which UTF-8 does not have": (rb'{"a": "\ud800"}', DEAD_LETTER),
            "a name with half of a pair": (rb'{"\udc00": 1}', DEAD_LETTER),
            "a name twice: the last one counts": (b'{"a": 1, "a": 2}', OUTPUT),
            "an object": (b'{"a": [1, 2.5, "b", null, true]}', OUTPUT),
        },
        enter,
    )
]
