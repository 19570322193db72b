"""graph/hashes.py: what the delivery hash depends on, and that it is equal in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset

HASHES = """
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
print((hash_prefix("app.split", "flights", "id-1", 3) + pack_offset(7)).hex())
print(joined_hash("app.zip", [("b", "", 0, 1), ("a", "", 0, 2)]).hex())
"""


def test_delivery_hash_is_the_same_in_every_process_and_under_every_hash_seed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    exec(HASHES, {})  # under the seed of this process
    subprocess.run([sys.executable, "-c", HASHES], env={**os.environ, "PYTHONHASHSEED": "1"}, check=True)
    assert (
        capfd.readouterr().out.split() == ["8044c2e44019064e0000000000000007", "847be2c73329ec22c8540d3259e93d66"] * 2
    )


def test_delivery_hash_of_one_input_has_16_bytes_and_sorts_by_offset() -> None:
    prefix = hash_prefix("app.split", "flights", "id-1", 3)
    hashes = [prefix + pack_offset(offset) for offset in (0, 1, 255, 256, 65_536, 2**40)]
    assert {len(digest) for digest in hashes} == {16}
    assert hashes == sorted(hashes)


@pytest.mark.parametrize(
    "other",
    [
        ("app.other", "flights", "id-1", 3),
        ("app.split", "cancelled", "id-1", 3),
        ("app.split", "flights", "id-2", 3),
        ("app.split", "flights", "id-1", 4),
        ("app.spli", "tflights", "id-1", 3),
    ],
)
def test_hash_prefix_of_another_task_or_topic_differs(other: tuple[str, str, str, int]) -> None:
    assert hash_prefix(*other) != hash_prefix("app.split", "flights", "id-1", 3)


def test_joined_hash_depends_on_every_offset_and_not_on_the_order_of_inputs() -> None:
    tailers = [("a", "x", 0, 5), ("b", "y", 0, 7)]
    assert joined_hash("p", tailers) == joined_hash("p", reversed(tailers))
    changed = [
        joined_hash("q", tailers),
        joined_hash("p", [("a", "x", 0, 6), ("b", "y", 0, 7)]),
        joined_hash("p", [("a", "x", 0, 5), ("b", "y", 0, 8)]),
        joined_hash("p", [("a", "x", 1, 5), ("b", "y", 1, 7)]),
        joined_hash("p", [("a", "z", 0, 5), ("b", "y", 0, 7)]),
        joined_hash("p", [("a", "x", 0, 7), ("b", "y", 0, 5)]),
    ]
    assert len({joined_hash("p", tailers), *changed}) == 7


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.long)])
def test_hashes_of_many_offsets_do_not_collide(count: int) -> None:
    joined = {joined_hash("p", [("a", "x", 0, i), ("b", "y", 0, j)]) for i in range(count) for j in range(count)}
    assert len(joined) == count * count
