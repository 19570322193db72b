"""Values between peers: each arrives exactly as it was sent, or is refused; bytes of any kind raise one error."""

from __future__ import annotations

import math
import pickle
import random
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from struct import pack
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from kstreams_py.errors import DecodeError
from kstreams_py.jobs.messengers import values as of_values
from kstreams_py.jobs.messengers.values import DEPTH_MAX, decode_values, encode_values
from tests.tables import each_case

NAIVE: Final = datetime
"""Datetimes without a time zone."""

BERLIN: Final = ZoneInfo("Europe/Berlin")

SENT: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 10**400,
    -(10**400), 127, 128, 255, 256, -128, -129, 0.0, -0.0, 1.5, math.inf, -math.inf, math.nan,
    5e-324, 1.7976931348623157e308,
    "", "é", "\0", "\U0001f600", "\ud800", "a\udfffb", "x" * 70_000, b"", b"\0\xff", bytes(70_000),
    [], [[]], [1, [2.0, ["3"]]], {}, {"a": {"b": [1, {}]}}, {1: "int", "1": "text", b"1": "bytes", 1.5: None, None: 0},
    {True: "bool"}, {(1, "a"): (2,)}, {frozenset({1}): 1}, {date(2024, 2, 29): 1}, {1 << 70: 1}, {"\ud800": 1},
    {"z": 1, "a": 2, "m": 3}, (), (1,), ((), ((),)), [(1, [2, (3,)])], set(), {1, "a", None}, frozenset(),
    frozenset({(1, 2)}), {(1, 2): {"x": 1}, "z": 2, "a": ()},
    {"row": {"at": datetime(2024, 1, 2, tzinfo=UTC), "price": Decimal("1.10"), "tags": {"x"}, "pair": (1, 2)}},
    Decimal(0), Decimal("-0.00"), Decimal("1E+1000"), Decimal("NaN"), Decimal("-sNaN12"), Decimal("Infinity"),
    Decimal("1." + "1" * 100), UUID(int=0), UUID(int=(1 << 128) - 1), date.min, date.max, timedelta.min, timedelta.max,
    timedelta(microseconds=-1), time.min, time.max, time(1, 2, 3, 4, fold=1), time(1, tzinfo=UTC),
    time(2, tzinfo=timezone(timedelta(hours=-3), "BRT")), NAIVE.min, NAIVE.max, NAIVE(2024, 2, 29, 1, 2, 3, 4, fold=1),
    datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "Z")),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(microseconds=-1))), datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN), complex(-0.0, math.inf), 1j,
)  # fmt: skip


def exact(value: Any) -> Any:
    """What tells two values apart that `==` takes for equal: types, signs of zero, order of keys, names of zones."""
    kind = type(value)
    if kind is dict:
        return "dict", [(exact(key), exact(each)) for key, each in value.items()]
    if kind in (list, tuple):
        return kind.__name__, [exact(each) for each in value]
    if kind in (set, frozenset):
        return kind.__name__, sorted(map(repr, map(exact, value)))
    if kind is float:
        return "float", pack(">d", value)
    if kind is complex:
        return "complex", pack(">dd", value.real, value.imag)
    if kind in (datetime, time):
        return kind.__name__, value.replace(tzinfo=None).isoformat(), value.fold, pickle.dumps(value.tzinfo)
    return kind.__name__, str(value) if kind is Decimal else value


@each_case("value", SENT)
def test_value_arrives_exactly_as_it_was_sent(value: Any) -> None:
    for sent in ([value], [{"in a dict": value}], [[value]], [(value,)], ["beside", value, 1]):
        data, refused = encode_values(sent)
        assert refused == {}
        assert exact(decode_values(data)) == exact(sent)


def test_all_values_in_one_batch_arrive_in_order() -> None:
    data, refused = encode_values(SENT)
    assert refused == {}
    assert exact(decode_values(data)) == exact([*SENT])
    assert decode_values(encode_values([]).data) == []


@dataclass
class Flight:
    number: int


@dataclass
class Numbers(list[int]):
    name: str = ""


class Color(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Zone(tzinfo):
    """A time zone of a user."""

    def utcoffset(self, at: datetime | None, /) -> timedelta:
        return timedelta(hours=1)

    def dst(self, at: datetime | None, /) -> timedelta:
        return timedelta(0)

    def tzname(self, at: datetime | None, /) -> str:
        return "Z"


Point = namedtuple("Point", "x y")  # noqa: PYI024 users have these

HERE: Final = f"{__name__}."

REFUSED: Final = [
    (Flight(1), "Flight", "return its fields as a dict"),
    (Numbers(), "Numbers", "return its fields as a dict"),
    (Color.RED, "Color", "return its value"),
    (Level.LOW, "Level", "return its value"),
    (Text("a"), "Text", "return a str with the same content"),
    (Point(1, 2), "Point", "return its fields as a dict, or a tuple of them"),
    (defaultdict(int), "defaultdict", "return a dict with the same content"),
    (OrderedDict(a=1), "OrderedDict", "return a dict with the same content"),
    (bytearray(b"a"), "bytearray", "return its fields as a dict"),
    (object(), "object", "return its fields as a dict"),
    (len, "builtin_function_or_method", "return its fields as a dict"),
    ({"a": [Flight(1)]}, "Flight", "return its fields as a dict"),
    ({Color.RED: 1}, "Color", "return its value"),
    ((Text("a"),), "Text", "return a str with the same content"),
    (datetime(2024, 1, 1, tzinfo=Zone()), "Zone", "use timezone.utc, or a zoneinfo.ZoneInfo with a key"),
]


@each_case(("value", "kind", "remedy"), REFUSED)
def test_other_type_is_refused_with_its_name_and_the_remedy(value: Any, kind: str, remedy: str) -> None:
    data, refused = encode_values(["before", value, "after"])
    assert decode_values(data) == ["before", "after"]
    assert [*refused] == [1]
    assert kind in str(refused[1])
    assert str(refused[1]).endswith(f"another peer: {remedy}")


def test_value_that_contains_itself_or_is_too_deep_is_refused() -> None:
    of_list: list[Any] = []
    of_list += [of_list, of_list]
    of_dict: dict[str, Any] = {}
    of_dict["self"] = (of_dict,)
    deep: Any = 1
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    just: Any = 1
    for _ in range(DEPTH_MAX):
        just = [just]
    tuples: Any = ()
    for _ in range(DEPTH_MAX - 1):
        tuples = (tuples,)
    data, refused = encode_values([of_list, of_dict, deep, just, tuples])
    assert decode_values(data) == [just, tuples]
    assert {index: str(error)[:60] for index, error in refused.items()} == dict.fromkeys(
        range(3), "a value has more than 100 levels, or contains itself: a chan"
    )


@pytest.mark.parametrize("leaf", [1, Decimal(1)])
def test_value_that_doubles_with_each_level_is_refused_in_little_time(
    leaf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_values, "ITEMS_MAX", 10_000)
    value: Any = [leaf, leaf]
    for _ in range(DEPTH_MAX - 2):
        value = [value, value]
    _, refused = encode_values([value, "good"])
    assert str(refused[0]) == "values of a channel have more than 10000 items: return smaller ones"


def hostile(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Random bytes, or an encoding with bytes changed, doubled, left out or put in."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(40))
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.randrange(3)] = chance.choice(
            [
                b"",
                chance.randbytes(1),
                chance.randbytes(4),
                b"\xc7",
                b"\xdd\xff\xff\xff\xff",
                b"\x91" * 20,
                bytes(data[:9]),
            ]
        )
    return bytes(data)


def read_hostile(decode: Callable[[bytes], object], seeds: list[bytes], seed: int, count: int) -> None:
    """Decodes hostile bytes: an exception beside DecodeError fails, and the seed tells which bytes it were."""
    chance, read = random.Random(seed), 0
    for _ in range(count):
        with suppress(DecodeError):
            decode(hostile(chance, seeds))
            read += 1
    assert 0 < read < count


SEEDS: Final = [encode_values([value]).data for value in SENT if not isinstance(value, str | bytes) or len(value) < 99]


def test_bytes_from_outside_raise_one_error() -> None:
    read_hostile(decode_values, SEEDS, 1, 5_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_more_bytes_from_outside_raise_one_error(seed: int) -> None:
    read_hostile(decode_values, SEEDS, seed, 50_000)


ENDLESS: Final = {
    "lists in each other": b"\x91" * 100_000,
    "a list without its items": b"\xdd\xff\xff\xff\xff",
    "a dict without its items": b"\xdf\xff\xff\xff\xff",
    "no list": b"\x01",
    "an extension that nobody has": b"\x91\xd4\x63\x00",
    "a zone outside of the database": b"\x91\xc7\x1a\x09\x07\xe8\x01\x01\0\0\0\0\0\0\0\0\xad../etc/passwd",
    "a list as the key of a dict": b"\x81\x91\x01\x01",
    "a set of lists": b"\x91\xc7\x02\x04\x91\x90",
    "an impossible date": b"\x91\xd6\x08\x07\xe8\x02\x1e",
    "nothing": b"",
    "something behind": b"\x90\x90",
}


@each_case("name", ENDLESS)
def test_hostile_bytes_of_a_known_kind_raise_the_error(name: str) -> None:
    with pytest.raises(DecodeError, match=r"^values of a peer cannot be read: "):
        decode_values(ENDLESS[name])


def test_extensions_in_each_other_are_bounded() -> None:
    data = b"\x90"
    for _ in range(DEPTH_MAX + 1):
        data = b"\x91\xc9" + len(data).to_bytes(4, "big") + b"\x03" + data
    with pytest.raises(DecodeError, match="there are more than 100 levels"):
        decode_values(data)
