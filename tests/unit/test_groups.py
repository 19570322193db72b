"""kafka/groups.py: what needs no broker."""

from __future__ import annotations

import pytest

from kstreams_py.kafka.groups import (
    GroupInfo,
    Member,
    Pending,
    describe_slots,
    members_of,
    positions_partition,
    slot_of,
)
from kstreams_py.kafka.transactions import OpenTransaction, find_command, place_options
from kstreams_py.records import TopicPartition


def member(instance: str, *partitions: int) -> Member:
    held = tuple(TopicPartition("in", number) for number in partitions)
    return Member(instance, f"{instance}-id", "client", "10.0.0.1", held)


GROUPS = {
    "shop.price": GroupInfo(
        "Stable", (member("shop.price.0", 0), member("shop.price.10", 2), member("shop.price.2", 1), member("", 3))
    ),
    "shop.announce": GroupInfo("PreparingRebalance", (member("shop.announce.2"), member("shop.price.1"))),
    "shop.store": GroupInfo("Empty", ()),
    "shop.new": GroupInfo("Dead", ()),
}


def test_slot_is_the_number_after_the_group_name_in_an_instance_id() -> None:
    numbers = {"shop.price.0": 0, "shop.price.12": 12}
    others = ("shop.price", "shop.price.", "shop.price.x", "shop.price.-1", "shop.price.1.2", "shop.prices.1", "")
    expected = numbers | dict.fromkeys(others)
    assert {instance: slot_of("shop.price", instance) for instance in expected} == expected


def test_slots_are_listed_by_group_and_number_before_other_members() -> None:
    assert describe_slots(GROUPS).splitlines() == [
        "shop.price: Stable",
        "  slot 0 on 10.0.0.1: in[0]; member shop.price.0-id",
        "  slot 2 on 10.0.0.1: in[1]; member shop.price.2-id",
        "  slot 10 on 10.0.0.1: in[2]; member shop.price.10-id",
        "  not a slot (client) on 10.0.0.1: in[3]; member -id",
        "shop.announce: PreparingRebalance",
        "  slot 2 on 10.0.0.1: no partition; member shop.announce.2-id",
        "  not a slot (shop.price.1) on 10.0.0.1: no partition; member shop.price.1-id",
        "shop.store: Empty",
        "shop.new: there is no such group yet",
    ]


def test_members_of_slots_are_found_in_every_group_that_has_them() -> None:
    assert members_of(GROUPS, [2, 10]) == {
        "shop.price": [member("shop.price.10", 2), member("shop.price.2", 1)],
        "shop.announce": [member("shop.announce.2")],
    }


@pytest.mark.parametrize(
    ("group", "partitions", "expected"),
    [
        ("", 50, 0),
        ("abc", 50, 96_354 % 50),
        ("polygenelubricants", 50, 0),  # its hash is the smallest integer, which has no absolute value
        ("polygenelubricants", 7, 0),
        ("polygenelubricantt", 50, (2**31 - 1) % 50),  # the next one: -2147483647
        ("\U0001f600", 1_000_000, 1_772_899 % 1_000_000),  # two UTF-16 units: 0xd83d * 31 + 0xde00
    ],
)
def test_committed_offsets_of_a_group_are_in_the_partition_of_javas_hash(
    group: str, partitions: int, expected: int
) -> None:
    assert positions_partition(group, partitions) == expected


ZERO, TWO, OFFSETS = TopicPartition("in", 0), TopicPartition("in", 2), TopicPartition("__consumer_offsets", 7)
HANGING = OpenTransaction(4, 1, 0, 121, 1_000.0, "shop.price.0", hangs=True, state="Empty")
ONGOING = OpenTransaction(5, 0, -1, 130, 1_050.4, "", hangs=False)
UNSHOWN = OpenTransaction(6, 0, -1, 140, 1_050.4, "", hangs=None)
FIND = "kstreams transactions find-hanging --bootstrap-servers 'a:1, b:2'"
PINNED_REMEDY = (
    f"stop the workers of this graph, then run `{FIND}`: it prints the commands that end each that hangs, outputs "
    "first and __consumer_offsets last"
)
PINNED = "group 'shop.price': the offsets of in[0], in[2] are pending in a transaction"


HANGING_TEXT = (
    "producer 4 epoch 1 (shop.price.0) from offset 121, 60 s old: its coordinator (Empty) will not end it: it "
    "never ends by itself"
)
ONGOING_TEXT = "producer 5 epoch 0 from offset 130, 10 s old: its coordinator will end it"
UNSHOWN_TEXT = (
    "producer 6 epoch 0 from offset 140, 10 s old: no coordinator shows it to this user: it hangs, or DESCRIBE on its "
    "transactional id is missing"
)
UNSURE = f"grant this user DESCRIBE on transactional ids to see which of them hang (`{FIND}`), and end none before"


@pytest.mark.parametrize(
    ("pending", "text"),
    [
        (Pending("shop.price", ()), "group 'shop.price': no offset is pending in a transaction"),
        (
            Pending("shop.price", (ZERO, TWO), OFFSETS, (HANGING, ONGOING)),
            f"{PINNED}; open on __consumer_offsets[7]: {HANGING_TEXT}; {ONGOING_TEXT}; {PINNED_REMEDY}",
        ),
        (
            Pending("shop.price", (ZERO, TWO), OFFSETS, (ONGOING,)),
            f"{PINNED}; open on __consumer_offsets[7]: {ONGOING_TEXT}; wait for it",
        ),
        (
            Pending("shop.price", (ZERO, TWO), OFFSETS, (ONGOING, UNSHOWN)),
            f"{PINNED}; open on __consumer_offsets[7]: {ONGOING_TEXT}; {UNSHOWN_TEXT}; {UNSURE}",
        ),
        (Pending("shop.price", (ZERO, TWO), OFFSETS), f"{PINNED}, which has ended on __consumer_offsets[7] just now"),
        (
            Pending("shop.price", (ZERO, TWO), unknown="no rights"),
            f"{PINNED}, and the transactions cannot be listed: no rights; {PINNED_REMEDY}",
        ),
    ],
    ids=["none", "hanging", "ongoing", "unshown", "ended", "unknown"],
)
def test_pending_offsets_are_described_with_the_remedy(pending: Pending, text: str) -> None:
    find = find_command(place_options("a:1, b:2"))
    assert pending.describe(1_060.0, find) == text
