"""records.py: topic partitions, the fields of an output, the fields of a step."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from kstreams_py.records import KEEP, Out, Step, TopicPartition
from tests.unit.fakes import Read


def test_topic_partition_is_a_tuple_with_its_number_in_brackets_as_text() -> None:
    tp = TopicPartition("flights", 3)
    assert (tuple(tp), str(tp)) == (("flights", 3), "flights[3]")
    assert min([TopicPartition("b", 0), TopicPartition("a", 1), TopicPartition("a", 0)]) == ("a", 0)


def test_out_fields_that_are_not_given_are_keep() -> None:
    out = Out(1)
    assert (out.key, out.headers, out.timestamp) == (KEEP, KEEP, KEEP)
    assert repr(Out(None)) == "Out(value=None, key=KEEP, headers=KEEP, timestamp=KEEP)"
    assert Out(1, key=2, headers=[("h", b"3")], timestamp=4) == Out(1, 2, [("h", b"3")], 4)


def test_out_cannot_be_changed() -> None:
    out = Out(1)
    with pytest.raises(FrozenInstanceError):
        out.value = 2  # type: ignore[misc]


def test_step_of_one_record_has_its_key_headers_timestamp_and_offset() -> None:
    m = Read("a", 7, b"v", partition=2, key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=1_700)
    step = Step((m,), b"hash")
    assert (step.topic, step.key, step.headers, step.timestamp, step.offsets_read, step.delivery_hash) == (
        "a", b"k", [("h", b"1"), ("n", None)], 1_700, (("a", 2, 7),), b"hash",
    )  # fmt: skip


def test_step_of_a_join_has_the_first_key_and_headers_and_the_latest_timestamp() -> None:
    a, b = Read("a", 1, key=b"ka", timestamp=10), Read("b", 2, key=b"kb", headers=[("h", b"1")], timestamp=20)
    step = Step((a, b), b"hash")
    assert (step.topic, step.key, step.headers, step.timestamp, step.offsets_read) == (
        "a", b"ka", [], 20, (("a", 0, 1), ("b", 0, 2)),
    )  # fmt: skip


@pytest.mark.parametrize(("key", "decoded"), [(b"k", "k"), (b"", ""), (None, None)])
def test_step_decodes_the_key_unless_there_is_none(key: bytes | None, decoded: str | None) -> None:
    assert Step((Read("a", 0, key=key),), b"hash", bytes.decode).key == decoded
